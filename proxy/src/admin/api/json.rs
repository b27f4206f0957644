//! Names and replies as JSON. Names are bytes: `name` is text for people, `key` is what stands for them in paths.

use crate::cli::reply::Reply;
use serde_json::{Map, Value};
use std::fmt::Write;

/// UTF-8 as it is; other bytes and control characters as `\xNN`, a backslash as two.
pub(in crate::admin) fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '\\' {
                // So that what is escaped here is told from a name that looks like it.
                text.push_str("\\\\");
            } else if character.is_control() {
                push_escaped(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        push_escaped(&mut text, chunk.invalid());
    }
    text
}

/// The same of at most so many bytes, with a mark where it was longer.
pub(in crate::admin) fn cut(bytes: &[u8], bytes_max: usize) -> String {
    match bytes.len() > bytes_max {
        true => format!("{}…", shown(&bytes[..bytes_max])),
        false => shown(bytes),
    }
}

fn push_escaped(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a text cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

pub(in crate::admin) use crate::cli::reply::key_of as key;

/// A reply of a command.
pub(in crate::admin) fn of_reply(reply: &Reply) -> Value {
    match reply {
        Reply::Nil => Value::Null,
        Reply::Int(number) => Value::from(*number),
        Reply::Error(text) => Value::from(text.as_str()),
        Reply::Text(text) => Value::from(shown(text)),
        Reply::Array(items) | Reply::Push(items) => items.iter().map(of_reply).collect(),
        Reply::Map(pairs) => {
            let pairs = pairs.iter().map(|(name, value)| (name.shown(), of_reply(value)));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
    }
}

/// One value of a map.
pub(in crate::admin) fn field(reply: &Reply, name: &str) -> Value {
    reply.field(name).map_or(Value::Null, of_reply)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::http;

    #[test]
    fn names_are_shown_as_text_and_their_keys_lead_back() {
        let hostile = b"<b>\"\x00\x1b\xff\xc3\xa4\xe2\x80\xae/..%2f ";
        assert_eq!(shown(hostile), "<b>\"\\x00\\x1b\\xffä\u{202e}/..%2f ");
        for name in [&hostile[..], b".", b"..", b"plain-1_a.b~", b"\n"] {
            let key = key(name);
            assert!(key.bytes().all(|byte| byte.is_ascii_graphic()) && !key.contains('/'), "{key}");
            assert_eq!(http::percent_decoded(&key, false).unwrap(), name);
        }
        assert_eq!(shown("\u{85}".as_bytes()), "\\xc2\\x85");
        assert_eq!((shown(b"\xff"), shown(b"\\xff")), ("\\xff".to_owned(), "\\\\xff".to_owned()));
    }
}
