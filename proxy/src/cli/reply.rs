//! What a node answers to a program: RESP2 and RESP3 frames, read within limits.

use serde_json::{Map, Value};
use std::fmt::Write;

/// The deepest reply of ours is `LOCK.EXPLAIN`'s map of arrays of arrays of maps.
const DEPTH_MAX: usize = 6;
/// Of one array or map.
const ITEMS_MAX: usize = 100_000;
const LINE_BYTES_MAX: usize = 64 << 10;
const BULK_BYTES_MAX: usize = 8 << 20;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Error(String),
    Int(i64),
    Text(Vec<u8>),
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    /// Out of band: it answers no command.
    Push(Vec<Reply>),
}

/// What came is no RESP, or larger than any reply of a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotResp;

impl Reply {
    /// The frame at the beginning of `bytes` and its length; `None` where it is not whole yet.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, NotResp> {
        let mut at = 0;
        Ok(parse(bytes, &mut at, DEPTH_MAX)?.map(|reply| (reply, at)))
    }

    /// The value of a map; a flat array of pairs is one, too.
    pub(crate) fn field(&self, name: &str) -> Option<&Reply> {
        let found = |key: &Reply| matches!(key, Reply::Text(text) if text == name.as_bytes());
        match self {
            Reply::Map(pairs) => pairs.iter().find(|(key, _)| found(key)).map(|(_, value)| value),
            Reply::Array(items) => items.chunks_exact(2).find(|pair| found(&pair[0])).map(|pair| &pair[1]),
            Reply::Nil | Reply::Error(_) | Reply::Int(_) | Reply::Text(_) | Reply::Push(_) => None,
        }
    }

    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Reply::Int(number) => Some(*number),
            Reply::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            Reply::Nil | Reply::Error(_) | Reply::Array(_) | Reply::Map(_) | Reply::Push(_) => None,
        }
    }

    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Text(text) => Some(text),
            Reply::Nil
            | Reply::Error(_)
            | Reply::Int(_)
            | Reply::Array(_)
            | Reply::Map(_)
            | Reply::Push(_) => None,
        }
    }

    pub(crate) fn items(&self) -> &[Reply] {
        match self {
            Reply::Array(items) | Reply::Push(items) => items,
            Reply::Nil | Reply::Error(_) | Reply::Int(_) | Reply::Text(_) | Reply::Map(_) => &[],
        }
    }

    /// For programs. Bytes that are not UTF-8 become U+FFFD, as in events.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Reply::Nil => Value::Null,
            Reply::Int(number) => Value::from(*number),
            Reply::Error(text) => Value::from(text.as_str()),
            Reply::Text(text) => Value::from(String::from_utf8_lossy(text)),
            Reply::Array(items) | Reply::Push(items) => items.iter().map(Reply::to_json).collect(),
            Reply::Map(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| (key.shown(), value.to_json()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }

    /// In one line, whatever is in it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Reply::Nil => "-".to_owned(),
            Reply::Int(number) => number.to_string(),
            Reply::Error(text) => text.clone(),
            Reply::Text(text) => shown_bytes(text),
            Reply::Array(_) | Reply::Map(_) | Reply::Push(_) => self.to_json().to_string(),
        }
    }
}

/// Text as it is; control characters and bytes that are not UTF-8 are escaped.
pub(crate) fn shown_bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(is_unprintable) => text.to_owned(),
        Ok(text) => text.escape_debug().to_string(),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// A name as it stands in paths and globs of the HTTP API, whatever bytes it has: every byte that is not a letter, a digit or one of `-_.~` as
/// `%NN`. Dots alone are written so, too.
pub(crate) fn key_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let is_dots = matches!(bytes, b"." | b"..");
    for byte in bytes {
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
        if is_plain && !is_dots {
            text.push(char::from(*byte));
        } else {
            // Writing to a text cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Steers the terminal, or is not seen: a name with it can look like another one.
pub(crate) fn is_unprintable(c: char) -> bool {
    let is_format = matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    c.is_control() || is_format
}

fn parse(bytes: &[u8], at: &mut usize, depth: usize) -> Result<Option<Reply>, NotResp> {
    let rest = &bytes[*at..];
    let Some(end) = memchr::memchr(b'\n', &rest[..rest.len().min(LINE_BYTES_MAX)]) else {
        return if rest.len() >= LINE_BYTES_MAX { Err(NotResp) } else { Ok(None) };
    };
    let line = rest[..end].strip_suffix(b"\r").ok_or(NotResp)?;
    let (kind, text) = line.split_first().ok_or(NotResp)?;
    *at += end + 1;
    let number = || std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()).ok_or(NotResp);
    let whole = |reply| Ok(Some(reply));
    match kind {
        b'_' => whole(Reply::Nil),
        b'-' => whole(Reply::Error(String::from_utf8_lossy(text).into_owned())),
        b'+' | b',' | b'#' | b'(' => whole(Reply::Text(text.to_vec())),
        b':' => whole(Reply::Int(number()?)),
        b'$' | b'=' | b'!' | b'*' if text == b"-1" => whole(Reply::Nil),
        b'$' | b'=' | b'!' => {
            let length = limited(number()?, BULK_BYTES_MAX)?;
            let Some(body) = bytes.get(*at..*at + length + 2) else { return Ok(None) };
            let text = body.strip_suffix(b"\r\n").ok_or(NotResp)?;
            *at += length + 2;
            whole(match kind {
                b'!' => Reply::Error(String::from_utf8_lossy(text).into_owned()),
                b'=' => Reply::Text(text.get(4..).unwrap_or_default().to_vec()),
                _ => Reply::Text(text.to_vec()),
            })
        }
        b'*' | b'~' | b'>' | b'%' => {
            let depth = depth.checked_sub(1).ok_or(NotResp)?;
            let count = limited(number()?, ITEMS_MAX)?;
            let count = if *kind == b'%' { 2 * count } else { count };
            let mut items = Vec::new();
            for _ in 0..count {
                let Some(item) = parse(bytes, at, depth)? else { return Ok(None) };
                items.push(item);
            }
            whole(match kind {
                b'>' => Reply::Push(items),
                b'%' => Reply::Map(pairs(items)),
                _ => Reply::Array(items),
            })
        }
        _ => Err(NotResp),
    }
}

fn pairs(items: Vec<Reply>) -> Vec<(Reply, Reply)> {
    let mut items = items.into_iter();
    std::iter::from_fn(|| Some((items.next()?, items.next()?))).collect()
}

fn limited(number: i64, max: usize) -> Result<usize, NotResp> {
    usize::try_from(number).ok().filter(|number| *number <= max).ok_or(NotResp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn every_frame_of_both_protocols_is_read() {
        let frames = "*3\r\n$5\r\nready\r\n:12\r\n$4\r\na\r\nb\r\n";
        let expected = Reply::Array(vec![text("ready"), Reply::Int(12), text("a\r\nb")]);
        assert_eq!(Reply::parse(frames.as_bytes()), Ok(Some((expected, frames.len()))));
        for (bytes, expected) in [
            ("-UNAVAILABLE x\r\n", Reply::Error("UNAVAILABLE x".to_owned())),
            ("_\r\n", Reply::Nil),
            ("$-1\r\n", Reply::Nil),
            ("*-1\r\n", Reply::Nil),
            ("=7\r\ntxt:abc\r\n", text("abc")),
            ("%1\r\n+a\r\n:1\r\n", Reply::Map(vec![(text("a"), Reply::Int(1))])),
            (">1\r\n+a\r\n", Reply::Push(vec![text("a")])),
        ] {
            assert_eq!(Reply::parse(bytes.as_bytes()), Ok(Some((expected, bytes.len()))), "{bytes:?}");
        }
    }

    #[test]
    fn a_frame_that_is_not_whole_is_waited_for() {
        let frame = b"%1\r\n$1\r\na\r\n*2\r\n:1\r\n$3\r\nabc\r\n";
        for length in 0..frame.len() {
            assert_eq!(Reply::parse(&frame[..length]), Ok(None), "{length} bytes");
        }
        assert!(Reply::parse(frame).unwrap().is_some());
    }

    #[test]
    fn what_is_too_large_or_no_resp_is_refused_without_memory_for_it() {
        let deep = "*1\r\n".repeat(7);
        for bad in ["$9999999999\r\n", "*1000000\r\n", "HTTP/1.1 400\r\n", ":x\r\n", ":1\n", &deep] {
            assert_eq!(Reply::parse(bad.as_bytes()), Err(NotResp), "{bad:?}");
        }
    }

    #[test]
    fn a_map_is_an_object_and_a_flat_array_has_fields() {
        let map = Reply::Map(vec![(text("owner"), text("alice")), (text("ttl"), Reply::Nil)]);
        assert_eq!(map.to_json().to_string(), r#"{"owner":"alice","ttl":null}"#);
        let flat = Reply::Array(vec![text("owner"), text("alice")]);
        assert_eq!(flat.field("owner"), Some(&text("alice")));
        assert_eq!(flat.field("alice"), None);
    }
}
