//! Redis's own error texts (7.0.15), in one place.

use crate::reply::Refusal;
use crate::types::{CHANNEL_BYTES_MAX, PATTERN_BYTES_MAX};

pub const SYNTAX: Refusal = fixed("ERR syntax error");
pub const WRONG_TYPE: Refusal = fixed("WRONGTYPE Operation against a key holding the wrong kind of value");
pub const NOT_AN_INTEGER: Refusal = fixed("ERR value is not an integer or out of range");
pub const NOT_A_FLOAT: Refusal = fixed("ERR value is not a valid float");
pub const NO_SUCH_KEY: Refusal = fixed("ERR no such key");
pub const INDEX_OUT_OF_RANGE: Refusal = fixed("ERR index out of range");
pub const OFFSET_OUT_OF_RANGE: Refusal = fixed("ERR offset is out of range");
pub const OUT_OF_RANGE_POSITIVE: Refusal = fixed("ERR value is out of range, must be positive");
pub const OVERFLOW: Refusal = fixed("ERR increment or decrement would overflow");
pub const DECREMENT_OVERFLOW: Refusal = fixed("ERR decrement would overflow");
pub const NAN_OR_INFINITY: Refusal = fixed("ERR increment would produce NaN or Infinity");
pub const SCORE_NAN: Refusal = fixed("ERR resulting score is not a number (NaN)");
pub const HASH_NOT_AN_INTEGER: Refusal = fixed("ERR hash value is not an integer");
pub const HASH_NOT_A_FLOAT: Refusal = fixed("ERR hash value is not a float");
pub const STRING_TOO_LONG: Refusal = fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
pub const COLLECTION_TOO_LARGE: Refusal =
    fixed("ERR collection exceeds 16 MiB, the limit for correctness-tier keys");
pub const ARGUMENT_TOO_LONG: Refusal =
    fixed("ERR argument exceeds 1 MiB, the limit for correctness-tier keys");
pub const READ_REPLY_TOO_LARGE: Refusal = fixed("ERR reply exceeds 8 MiB; ask for less at a time");
pub const LOGGED_REPLY_TOO_LARGE: Refusal =
    fixed("ERR reply exceeds 2 MiB, the limit for writes and transactions; ask for less at a time");
pub const ENTRY_REPLIES_TOO_LARGE: Refusal =
    fixed("UNAVAILABLE the replies of this batch exceed 32 MiB; nothing was done; retry");
pub const KEY_TOO_LONG: Refusal = fixed("ERR key exceeds the limit of 65536 bytes");
pub const PATTERN_TOO_LONG: Refusal = fixed("ERR pattern exceeds the limit of 1024 bytes");
pub const CHANNEL_TOO_LONG: Refusal = fixed("ERR channel name exceeds the limit of 1024 bytes");
pub const INVALID_CURSOR: Refusal = fixed("ERR invalid cursor");
pub const MIN_OR_MAX_NOT_A_FLOAT: Refusal = fixed("ERR min or max is not a float");
pub const MIN_OR_MAX_NOT_A_RANGE: Refusal = fixed("ERR min or max not valid string range item");
pub const TIMEOUT_NOT_A_FLOAT: Refusal = fixed("ERR timeout is not a float or out of range");
pub const TIMEOUT_NEGATIVE: Refusal = fixed("ERR timeout is negative");
pub const DB_OUT_OF_RANGE: Refusal = fixed("ERR DB index is out of range");
pub const SAME_OBJECT: Refusal = fixed("ERR source and destination objects are the same");
pub const NUMKEYS_POSITIVE: Refusal = fixed("ERR numkeys should be greater than 0");
pub const COUNT_POSITIVE: Refusal = fixed("ERR count should be greater than 0");

/// Redis has no such thing as a Redlock listener.
pub const HELD_BY_MEMBERS: Refusal =
    fixed("ERR the key is held under another value through other Redlock listeners");
pub const TOO_MANY_MEMBERS: Refusal = fixed("OOM too many Redlock listeners have granted this key");

pub const KEYS_TOO_LONG: Refusal = fixed("ERR reply exceeds 8 MiB, the limit of one reply; use SCAN");
pub const ENTRY_TOO_MUCH_WORK: Refusal =
    fixed("UNAVAILABLE too much work was asked for at once; nothing happened; retry");
pub const MEMBER_FLUSH_TOO_LARGE: Refusal = fixed(
    "ERR a Redlock listener flushes 10000 records at most; delete the keys, or flush through another listener",
);

const fn fixed(line: &'static str) -> Refusal {
    Refusal(std::borrow::Cow::Borrowed(line))
}

/// Patterns are matched against many names, so they are short.
pub fn check_pattern(pattern: &[u8]) -> Result<(), Refusal> {
    match pattern.len() <= PATTERN_BYTES_MAX {
        true => Ok(()),
        false => Err(PATTERN_TOO_LONG),
    }
}

/// A channel's name is matched against many patterns.
pub fn check_channel(name: &[u8]) -> Result<(), Refusal> {
    match name.len() <= CHANNEL_BYTES_MAX {
        true => Ok(()),
        false => Err(CHANNEL_TOO_LONG),
    }
}

/// A command, or the commands of a transaction together, would look at too many elements.
#[must_use]
pub fn too_much_work(units: u64) -> Refusal {
    Refusal::new(format!(
        "ERR this would look at more than {units} elements, the limit of one command or transaction; ask for less at a time"
    ))
}

#[must_use]
pub fn wrong_arity(name: &str) -> Refusal {
    Refusal::new(format!("ERR wrong number of arguments for '{name}' command"))
}

#[must_use]
pub fn invalid_expire(name: &str) -> Refusal {
    Refusal::new(format!("ERR invalid expire time in '{name}' command"))
}

/// Cuts as Redis does: 128 bytes of the name, and as many arguments as fit in 128 more.
#[must_use]
pub fn unknown_command(argv: &[&[u8]]) -> Refusal {
    let cut = |bytes: &[u8], len: usize| {
        // To Redis this is C text: it ends at the first zero byte.
        let cut = bytes[..bytes.len().min(len)].split(|byte| *byte == 0).next().unwrap_or(b"");
        // A simple error is one line: Redis turns line ends into spaces.
        String::from_utf8_lossy(cut).replace(['\r', '\n'], " ")
    };
    let mut args = String::new();
    for arg in argv.iter().skip(1) {
        if args.len() >= 128 {
            break;
        }
        let rest = 128 - args.len();
        args.push_str(&format!("'{}' ", cut(arg, rest)));
    }
    let name = cut(argv.first().copied().unwrap_or(b""), 128);
    Refusal::new(format!("ERR unknown command '{name}', with args beginning with: {args}"))
}
