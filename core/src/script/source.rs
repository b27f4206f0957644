//! From the text a client sent to the text Luau compiles: `KEYS` and `ARGV` become parameters of the chunk, and the first
//! line `#!lua …` is read. No line is moved.

use super::native::lexer::{Lexer, Token};

/// Tokens and functions a script may have. Compiling is no step of the VM and cannot be stopped half-way, so what it takes
/// is bounded: about ten milliseconds.
pub(super) const TOKENS_MAX: usize = 30_000;
const FUNCTIONS_MAX: usize = 1_000;

/// What the first line `#!lua …` of a script asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) no_writes: bool,
}

/// The text to compile and the flags, or the error line without its position.
pub(super) fn prepare(body: &[u8]) -> Result<(Vec<u8>, Flags), String> {
    let (flags, code_at) = shebang(body)?;
    let code = &body[code_at..];
    check_length(code)?;
    let mut out = Vec::with_capacity(code.len() + 32);
    out.extend_from_slice(b"local KEYS, ARGV = ...; ");
    out.extend_from_slice(code);
    Ok((out, flags))
}

fn check_length(code: &[u8]) -> Result<(), String> {
    let (mut tokens, mut functions) = (0, 0);
    let mut lexer = Lexer::new(code);
    while let Some(token) = lexer.next_token() {
        tokens += 1;
        match token {
            Token::Word(b"function") => functions += 1,
            // Luau would read code inside such a text.
            Token::Sign(b"`") => {
                return Err(format!("user_script:{}: unexpected symbol near '`'", lexer.line()));
            }
            Token::Word(_) | Token::Text(_) | Token::Number(_) | Token::Sign(_) => {}
        }
        if tokens > TOKENS_MAX || functions > FUNCTIONS_MAX {
            return Err(format!(
                "a script may have {TOKENS_MAX} tokens and {FUNCTIONS_MAX} functions at most; pass data as arguments"
            ));
        }
    }
    Ok(())
}

/// Whether the first line says `flags=no-writes`.
pub(super) fn is_flagged_no_writes(body: &[u8]) -> bool {
    shebang(body).is_ok_and(|(flags, _)| flags.no_writes)
}

/// `#!lua [name=…] [flags=a,b]`; answers where the code begins: at the end of that line, so that lines keep their numbers.
fn shebang(body: &[u8]) -> Result<(Flags, usize), String> {
    let mut flags = Flags::default();
    if !body.starts_with(b"#!") {
        return Ok((flags, 0));
    }
    let end = body.iter().position(|byte| *byte == b'\n').ok_or("Invalid script shebang")?;
    let line = String::from_utf8_lossy(&body[2..end]).into_owned();
    let mut words = line.split_ascii_whitespace();
    match words.next() {
        Some("lua") => {}
        other => return Err(format!("Unexpected engine in script shebang: {}", other.unwrap_or(""))),
    }
    for word in words {
        let Some(names) = word.strip_prefix("flags=") else {
            return Err(format!("Unknown lua shebang option: {word}"));
        };
        for name in names.split(',').filter(|name| !name.is_empty()) {
            match name {
                "no-writes" => flags.no_writes = true,
                "allow-oom" | "allow-stale" | "no-cluster" | "allow-cross-slot-keys" => {}
                _ => return Err(format!("Unexpected flag in script shebang: {name}")),
            }
        }
    }
    Ok((flags, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_first_line() {
        assert_eq!(prepare(b"#!lua flags=no-writes\nreturn 1").unwrap().1, Flags { no_writes: true });
        assert!(prepare(b"#!lua flags=bad\nreturn 1").is_err());
        assert!(prepare(b"#!js\nreturn 1").is_err());
        assert!(prepare(b"#!lua").is_err());
    }

    #[test]
    fn a_script_that_would_take_long_to_compile_is_refused_whatever_is_cached() {
        let long = "x=1 ".repeat(TOKENS_MAX / 3 + 1);
        assert!(prepare(long.as_bytes()).unwrap_err().contains("tokens and"));
        let functions = "f(function() end) ".repeat(FUNCTIONS_MAX + 1);
        assert!(prepare(functions.as_bytes()).unwrap_err().contains("functions at most"));
        // Text that Luau and Redis's Lua read alike, and this lexer with them.
        let hidden = format!("x = \"\\\r\n\" {}", "x=1 ".repeat(TOKENS_MAX));
        assert!(prepare(hidden.as_bytes()).is_err());
        let text = format!("return '{}' --{}", "x".repeat(400_000), "y".repeat(400_000));
        assert!(prepare(text.as_bytes()).is_ok());
    }
}
