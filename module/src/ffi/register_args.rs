//! The arguments of a command for `COMMAND DOCS`, read off its syntax line so that there is one truth.
//!
//! Understands what our own syntax lines use: plain words, `[WORD value]`, and `[more words ...]`. A line with alternatives
//! (`|`) becomes one argument whose name is the line.

use super::register::c_string;
use redfence_core::grammar::table::{KeyPlaces, Row};
use redis_module::raw;
use std::ffi::CString;

/// The list Redis reads, and the texts it points to.
pub(super) struct Arguments {
    list: Vec<raw::RedisModuleCommandArg>,
    texts: Vec<CString>,
}

impl Arguments {
    pub(super) fn of(row: &Row) -> Arguments {
        let mut arguments = Arguments { list: Vec::new(), texts: Vec::new() };
        for word in parts(row.syntax) {
            arguments.add(&word, row);
        }
        // All zeros ends the list.
        arguments.list.push(blank());
        arguments
    }

    pub(super) fn list(&mut self) -> *mut raw::RedisModuleCommandArg {
        self.list.as_mut_ptr()
    }

    fn add(&mut self, part: &Part<'_>, row: &Row) {
        let mut argument = blank();
        argument.name = self.text(&part.name.to_ascii_lowercase());
        argument.type_ = match part.name {
            "resource" if row.keys != KeyPlaces::None => {
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY
            }
            "ttl" | "ms" | "fence" | "count" | "n" | "cursor" => {
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER
            }
            "glob" => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PATTERN,
            _ => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        };
        argument.key_spec_index =
            if argument.type_ == raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY { 0 } else { -1 };
        if let Some(token) = part.token {
            argument.token = self.text(token);
        }
        let optional = if part.optional { raw::REDISMODULE_CMD_ARG_OPTIONAL } else { 0 };
        let multiple = if part.multiple { raw::REDISMODULE_CMD_ARG_MULTIPLE } else { 0 };
        argument.flags = (optional | multiple) as i32;
        self.list.push(argument);
    }

    /// The text's bytes stay where they are when the vector grows: a `CString` keeps them on the heap.
    fn text(&mut self, text: &str) -> *const std::ffi::c_char {
        self.texts.push(c_string(text));
        self.texts[self.texts.len() - 1].as_ptr()
    }
}

fn blank() -> raw::RedisModuleCommandArg {
    raw::RedisModuleCommandArg {
        name: std::ptr::null(),
        type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        key_spec_index: 0,
        token: std::ptr::null(),
        summary: std::ptr::null(),
        since: std::ptr::null(),
        flags: 0,
        deprecated_since: std::ptr::null(),
        subargs: std::ptr::null_mut(),
        display_text: std::ptr::null(),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Part<'a> {
    name: &'a str,
    token: Option<&'a str>,
    optional: bool,
    multiple: bool,
}

fn parts(syntax: &str) -> Vec<Part<'_>> {
    if syntax.contains('|') {
        return vec![Part { name: syntax, token: None, optional: false, multiple: false }];
    }
    let mut parts: Vec<Part<'_>> = Vec::new();
    let mut rest = syntax.trim();
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (group, behind) = inner.split_once(']').unwrap_or((inner, ""));
            push_group(group, &mut parts);
            rest = behind.trim_start();
        } else {
            let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
            parts.push(Part { name: word, token: None, optional: false, multiple: false });
            rest = behind.trim_start();
        }
    }
    parts
}

fn push_group<'a>(group: &'a str, parts: &mut Vec<Part<'a>>) {
    let words: Vec<&str> = group.split(' ').collect();
    match words.as_slice() {
        // `resource [resource ...]` repeats what stands before it.
        [name, "..."] if parts.last().is_some_and(|part| part.name == *name) => {
            if let Some(part) = parts.last_mut() {
                part.multiple = true;
            }
        }
        [name, "..."] => parts.push(Part { name, token: None, optional: true, multiple: true }),
        [first, second, "..."] => {
            for part in parts.iter_mut().filter(|part| part.name == *first || part.name == *second) {
                part.multiple = true;
            }
        }
        [token, name] => parts.push(Part { name, token: Some(token), optional: true, multiple: false }),
        _ => parts.push(Part { name: group, token: None, optional: true, multiple: false }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(syntax: &str) -> Vec<String> {
        parts(syntax)
            .iter()
            .map(|part| {
                let mut text = part.token.map(|token| format!("{token}=")).unwrap_or_default();
                text.push_str(part.name);
                text.push_str(if part.optional { "?" } else { "" });
                text.push_str(if part.multiple { "+" } else { "" });
                text
            })
            .collect()
    }

    #[test]
    fn reads_syntax_lines() {
        assert_eq!(shown("resource ttl [WAIT ms]"), ["resource", "ttl", "WAIT=ms?"]);
        assert_eq!(shown("count resource [resource ...] ttl"), ["count", "resource+", "ttl"]);
        assert_eq!(shown("count resource fence [resource fence ...]"), ["count", "resource+", "fence+"]);
        assert_eq!(shown("resource fence command [arg ...]"), ["resource", "fence", "command", "arg?+"]);
        assert_eq!(shown("INFO | NODES").len(), 1);
    }
}
