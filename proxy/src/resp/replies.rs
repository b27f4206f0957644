//! Finds where a reply of the upstream Redis ends, so that its bytes can pass unchanged and in order.
//!
//! Works on whatever piece has come, keeps its place, needs no recursion and no memory for nested replies: it only counts how
//! many elements are still to come. Common replies that are there to their end are found without any of it. Used by `tier1`.

/// Longest header line of a number or a length.
const HEADER_BYTES_MAX: usize = 64;

/// What a reply turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScannedReply {
    /// An answer to a command.
    Reply { is_error: bool },
    /// A RESP3 push, which answers nothing.
    Push,
}

/// The bytes are not RESP: the connection to that Redis is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotResp;

#[derive(Debug, Default)]
pub struct ReplyScanner {
    /// Elements still to come; 0 between replies.
    missing: u64,
    /// Bytes of a string still to pass.
    skip: u64,
    /// Inside a line of any length (simple string, error, big number): only its end matters.
    in_text_line: bool,
    /// A header that has not come whole.
    header: Vec<u8>,
    is_push: bool,
    is_error: bool,
    /// The last byte of a text line so far was a CR.
    after_cr: bool,
}

impl ReplyScanner {
    /// Whether a reply has begun and not ended.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.missing > 0
    }

    /// How many bytes at the front of `bytes` belong to the reply in flight, and what it was if it ends there.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<(usize, Option<ScannedReply>), NotResp> {
        if !self.is_inside() {
            if let Some((len, outcome)) = whole_reply(bytes) {
                return Ok((len, Some(outcome)));
            }
        }
        let mut at = 0;
        while at < bytes.len() {
            if self.skip > 0 {
                let step = self.skip.min((bytes.len() - at) as u64);
                self.skip -= step;
                at += step as usize;
                if self.skip == 0 {
                    self.missing -= 1;
                }
            } else if self.in_text_line {
                at += self.pass_text(&bytes[at..]);
            } else {
                at += self.read_header(&bytes[at..])?;
            }
            if self.missing == 0 && self.header.is_empty() && !self.in_text_line && self.skip == 0 {
                let outcome = if self.is_push {
                    ScannedReply::Push
                } else {
                    ScannedReply::Reply { is_error: self.is_error }
                };
                return Ok((at, Some(outcome)));
            }
        }
        Ok((at, None))
    }

    fn pass_text(&mut self, bytes: &[u8]) -> usize {
        if self.after_cr && bytes[0] == b'\n' {
            self.after_cr = false;
            self.in_text_line = false;
            self.missing -= 1;
            return 1;
        }
        match memchr::memchr(b'\r', bytes) {
            Some(found) => {
                self.after_cr = true;
                found + 1
            }
            None => {
                self.after_cr = false;
                bytes.len()
            }
        }
    }

    /// Takes bytes of a header line; acts on it once it is whole.
    fn read_header(&mut self, bytes: &[u8]) -> Result<usize, NotResp> {
        if self.header.is_empty() {
            let kind = bytes[0];
            if self.missing == 0 {
                self.missing = 1;
                self.is_push = kind == b'>';
                self.is_error = matches!(kind, b'-' | b'!');
            }
            if matches!(kind, b'+' | b'-' | b'(' | b',' | b':' | b'#' | b'_') {
                self.in_text_line = true;
                self.after_cr = false;
                return Ok(1);
            }
        }
        let (taken, whole) = match memchr::memchr(b'\n', bytes) {
            Some(newline) => (newline + 1, true),
            None => (bytes.len(), false),
        };
        if self.header.len() + taken > HEADER_BYTES_MAX {
            return Err(NotResp);
        }
        self.header.extend_from_slice(&bytes[..taken]);
        if whole {
            let header = std::mem::take(&mut self.header);
            self.act_on(&header)?;
            self.header = header;
            self.header.clear();
        }
        Ok(taken)
    }

    fn act_on(&mut self, header: &[u8]) -> Result<(), NotResp> {
        let text = header.strip_suffix(b"\r\n").ok_or(NotResp)?;
        let (kind, number) = text.split_first().ok_or(NotResp)?;
        let length: i64 =
            std::str::from_utf8(number).ok().and_then(|text| text.parse().ok()).ok_or(NotResp)?;
        if length < -1 {
            return Err(NotResp);
        }
        let length = u64::try_from(length).ok();
        match (kind, length) {
            (b'$' | b'=' | b'!' | b'*' | b'%' | b'~', None) => self.missing -= 1,
            (b'$' | b'=' | b'!', Some(length)) => self.skip = length.saturating_add(2),
            (b'*' | b'~' | b'>', Some(length)) => self.missing = (self.missing - 1).saturating_add(length),
            (b'%', Some(length)) => {
                self.missing = (self.missing - 1).saturating_add(length.saturating_mul(2))
            }
            // An attribute stands before its reply and is none itself.
            (b'|', Some(length)) => self.missing = self.missing.saturating_add(length.saturating_mul(2)),
            _ => return Err(NotResp),
        }
        Ok(())
    }
}

/// The reply at the front of `bytes`, if it is one of the common kinds and there to its end: most are, and need no state.
fn whole_reply(bytes: &[u8]) -> Option<(usize, ScannedReply)> {
    let (kind, rest) = bytes.split_first()?;
    match kind {
        b'$' if rest.starts_with(b"-1\r\n") => Some((5, ScannedReply::Reply { is_error: false })),
        b'$' => {
            let mut value = 0;
            for (place, byte) in rest.iter().take(6).enumerate() {
                let digit = byte.wrapping_sub(b'0');
                if digit <= 9 {
                    value = value * 10 + usize::from(digit);
                } else if *byte == b'\r' && place > 0 && rest.get(place + 1) == Some(&b'\n') {
                    let len = 1 + place + 2 + value + 2;
                    return (len <= bytes.len()).then_some((len, ScannedReply::Reply { is_error: false }));
                } else {
                    return None;
                }
            }
            None
        }
        b'+' | b'-' | b':' => {
            let end = rest.iter().take(HEADER_BYTES_MAX).position(|byte| *byte == b'\r')?;
            let is_whole = rest.get(end + 1) == Some(&b'\n');
            is_whole.then_some((1 + end + 2, ScannedReply::Reply { is_error: *kind == b'-' }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_whole(reply: &[u8], outcome: ScannedReply) {
        let mut bytes = reply.to_vec();
        bytes.extend_from_slice(b"+NEXT\r\n");
        assert_eq!(ReplyScanner::default().scan(&bytes), Ok((reply.len(), Some(outcome))));
        let mut scanner = ReplyScanner::default();
        for (at, byte) in reply.iter().enumerate() {
            let last = at + 1 == reply.len();
            let (taken, end) = scanner.scan(std::slice::from_ref(byte)).unwrap();
            assert_eq!(
                (taken, end),
                (1, last.then_some(outcome)),
                "byte {at} of {:?}",
                String::from_utf8_lossy(reply)
            );
        }
        assert!(!scanner.is_inside());
    }

    #[test]
    fn finds_the_end_of_every_kind() {
        let reply = ScannedReply::Reply { is_error: false };
        for text in [
            "+OK\r\n",
            ":1\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "$0\r\n\r\n",
            "$3\r\na\r\n\r\n",
            "$012\r\nabcdefghijkl\r\n",
            "$0000012\r\nabcdefghijkl\r\n",
            "*0\r\n",
            "_\r\n",
            "#t\r\n",
            ",1.5\r\n",
            "(12345678901234567890\r\n",
            "=7\r\ntxt:abc\r\n",
            "*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
            "%1\r\n+a\r\n*2\r\n:1\r\n:2\r\n",
            "~2\r\n:1\r\n:2\r\n",
            "|1\r\n+ttl\r\n:3\r\n*1\r\n:1\r\n",
            "*3\r\n:1\r\n*-1\r\n-ERR x\r\n",
            "+a\rb\r\n",
        ] {
            scan_whole(text.as_bytes(), reply);
        }
        scan_whole(format!("${}\r\n{}\r\n", 99_999, "x".repeat(99_999)).as_bytes(), reply);
        scan_whole(format!("${}\r\n{}\r\n", 100_000, "x".repeat(100_000)).as_bytes(), reply);
        scan_whole(format!("+{}\r\n", "x".repeat(100)).as_bytes(), reply);
        scan_whole(b"-ERR x\r\n", ScannedReply::Reply { is_error: true });
        scan_whole(b"!5\r\nERR x\r\n", ScannedReply::Reply { is_error: true });
        scan_whole(b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n", ScannedReply::Push);
    }

    #[test]
    fn nesting_costs_nothing() {
        let mut bytes = b"*1\r\n".repeat(1_000_000);
        bytes.extend_from_slice(b":1\r\n");
        let len = bytes.len();
        assert_eq!(
            ReplyScanner::default().scan(&bytes),
            Ok((len, Some(ScannedReply::Reply { is_error: false })))
        );
    }

    #[test]
    fn what_is_not_resp_is_said_so() {
        for text in ["HTTP/1.1 200 OK\r\n", "*x\r\n", "$-2\r\n", "*1\n"] {
            assert_eq!(ReplyScanner::default().scan(text.as_bytes()), Err(NotResp), "{text}");
        }
    }
}
