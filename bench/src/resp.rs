//! Redis's protocol as a load generator needs it: requests written, replies cut apart and read without building a tree.
//!
//! RESP2, and as much of RESP3 as a push and the answer to `HELLO 3` need. Not for untrusted input.

use std::io::Write;

/// One command as an array of bulk strings.
pub(crate) fn encode(words: &[&[u8]], into: &mut Vec<u8>) {
    let _ = write!(into, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(into, "${}\r\n", word.len());
        into.extend_from_slice(word);
        into.extend_from_slice(b"\r\n");
    }
}

/// The length of the first reply in `bytes`; `None` where it is not complete.
pub(crate) fn reply_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut left = 1usize;
    while left > 0 {
        let line_len = bytes.get(at..)?.iter().position(|byte| *byte == b'\n')? + 1;
        let kind = bytes[at];
        let line = &bytes[at + 1..(at + line_len).saturating_sub(2).max(at + 1)];
        at += line_len;
        left -= 1;
        match kind {
            b'$' => {
                if let Some(len) = number(line).filter(|len| *len >= 0) {
                    at += len as usize + 2;
                }
            }
            b'*' | b'>' => left += number(line).filter(|count| *count > 0).unwrap_or(0) as usize,
            b'%' => left += 2 * number(line).filter(|count| *count > 0).unwrap_or(0) as usize,
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The integers of a reply, in order, however deep: `[fence, ttl]` gives both.
pub(crate) fn integers(reply: &[u8]) -> impl Iterator<Item = i64> + '_ {
    lines(reply).filter(|line| line.first() == Some(&b':')).filter_map(|line| number(&line[1..]))
}

/// The text after the type byte of each line, with it, and without the line's end. Only for replies whose bulk strings hold no line ends.
pub(crate) fn lines(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    reply.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

pub(crate) fn is_error(reply: &[u8]) -> bool {
    reply.first() == Some(&b'-')
}

pub(crate) fn is_nil(reply: &[u8]) -> bool {
    reply.starts_with(b"$-1") || reply.starts_with(b"*-1")
}

/// For messages: what was answered, on one line.
pub(crate) fn shown(reply: &[u8]) -> String {
    String::from_utf8_lossy(reply).trim_end().replace("\r\n", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut out = Vec::new();
        encode(&[b"GET", b"a\r\nb"], &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n");
    }

    #[test]
    fn replies_are_cut_where_they_end() {
        let replies: [&[u8]; 11] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":12\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"$5\r\na\r\nb!\r\n",
            b"*0\r\n",
            b"*2\r\n:1\r\n$2\r\nok\r\n",
            b"*2\r\n*2\r\n:1\r\n:2\r\n:30000\r\n",
            b"%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n*0\r\n",
            b">2\r\n+a\r\n_\r\n",
        ];
        for reply in replies {
            let mut two = reply.to_vec();
            two.extend_from_slice(b"+next\r\n");
            assert_eq!(reply_len(&two), Some(reply.len()), "{}", shown(reply));
            for cut in 0..reply.len() {
                assert_eq!(reply_len(&reply[..cut]), None, "{} cut at {cut}", shown(reply));
            }
        }
    }

    #[test]
    fn integers_are_found_at_any_depth() {
        let found: Vec<i64> = integers(b"*2\r\n*2\r\n:17\r\n:18\r\n:30000\r\n").collect();
        assert_eq!(found, [17, 18, 30_000]);
    }
}
