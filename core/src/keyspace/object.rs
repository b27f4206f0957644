//! `OBJECT` and `MEMORY USAGE`: how a key would be kept by Redis 7.0 with its shipped limits, and about how much it weighs here.

use super::context::{CommandResult, Context};
use super::errors;
use super::numbers::parse_i64;
use super::value::View;
use crate::reply::{Refusal, Reply};

/// Longest string Redis keeps in one piece with its header.
const EMBEDDED_BYTES_MAX: usize = 44;
/// `hash-max-listpack-entries`, `-value`; `zset-max-listpack-entries`; `set-max-intset-entries`.
const HASH_PACKED_MAX: usize = 512;
const PACKED_BYTES_MAX: usize = 64;
const ZSET_PACKED_MAX: usize = 128;
const INTSET_MAX: usize = 512;
/// What a key costs besides its bytes.
const KEY_BYTES: usize = 64;

const NOT_LFU: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
                       between policies at runtime LRU and LFU data will take some time to adjust.";

pub(super) fn object(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let verb = argv[1].to_ascii_lowercase();
    let known = matches!(&*verb, b"encoding" | b"refcount" | b"idletime" | b"freq");
    let [_, _, key] = argv else {
        return Err(match known {
            true => errors::wrong_arity(&format!("object|{}", String::from_utf8_lossy(&verb))),
            false => unknown_subcommand("OBJECT", argv[1]),
        });
    };
    if !known {
        return Err(unknown_subcommand("OBJECT", argv[1]));
    }
    let Some(view) = cx.value(key) else { return Ok(Reply::Nil) };
    match &*verb {
        b"encoding" => Ok(Reply::Text(encoding(view))),
        b"refcount" => Ok(Reply::Int(1)),
        // Nobody counts it, and all nodes must agree.
        b"idletime" => Ok(Reply::Int(0)),
        _ => Err(Refusal::new(NOT_LFU)),
    }
}

pub(super) fn memory(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if !argv[1].eq_ignore_ascii_case(b"usage") {
        return Err(unknown_subcommand("MEMORY", argv[1]));
    }
    let key = match argv {
        [_, _, key] => key,
        [_, _, key, word, samples] if word.eq_ignore_ascii_case(b"samples") => {
            match parse_i64(samples).ok_or(errors::NOT_AN_INTEGER)? {
                0.. => key,
                _ => return Err(errors::SYNTAX),
            }
        }
        [_, _] => return Err(errors::wrong_arity("memory|usage")),
        _ => return Err(errors::SYNTAX),
    };
    let Some(view) = cx.value(key) else { return Ok(Reply::Nil) };
    Ok(Reply::Int((KEY_BYTES + key.len() + view.weight()) as i64))
}

fn encoding(view: View<'_>) -> &'static str {
    let short = |bytes: &[u8]| bytes.len() <= PACKED_BYTES_MAX;
    match view {
        View::Str(bytes) if parse_i64(bytes).is_some() => "int",
        View::Str(bytes) if bytes.len() <= EMBEDDED_BYTES_MAX => "embstr",
        View::Str(_) => "raw",
        View::List(_) => "quicklist",
        View::Hash(fields) => {
            let packed = fields.len() <= HASH_PACKED_MAX
                && fields.iter().all(|(name, value)| short(name) && short(value));
            if packed {
                "listpack"
            } else {
                "hashtable"
            }
        }
        View::Set(members) => {
            let numbers =
                members.len() <= INTSET_MAX && members.iter().all(|(member, ())| parse_i64(member).is_some());
            if numbers {
                "intset"
            } else {
                "hashtable"
            }
        }
        View::ZSet(members) => {
            let packed = members.len() <= ZSET_PACKED_MAX && members.iter().all(|(_, member)| short(member));
            if packed {
                "listpack"
            } else {
                "skiplist"
            }
        }
    }
}

fn unknown_subcommand(command: &str, word: &[u8]) -> Refusal {
    let shown = String::from_utf8_lossy(&word[..word.len().min(128)]).replace(['\r', '\n'], " ");
    Refusal::new(format!("ERR unknown subcommand '{shown}'. Try {command} HELP."))
}
