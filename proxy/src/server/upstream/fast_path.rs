//! The usual case of a proxy, in few steps: commands that came together and all pass to the shared connection as they are. Part of
//! [`Connection`].
//!
//! [`CommandContext::pass_run`] looks at the bytes of whole commands at the front of what came and stages as many as it is sure of in one piece.
//! Sure is what [`crate::server::routing::dispatch`] would decide in the same way: anything unusual in the state of the client, in the frame, in the name or in
//! the routes of its key is left to it, so this file holds no rule of its own. Called by `connection` before each command.

use crate::server::context::CommandContext;

/// A command with more words is left to the parser.
const WORDS_MAX: usize = 99;

/// One whole command at the front of some bytes, in the form every client library writes.
#[derive(Debug, PartialEq, Eq)]
struct Frame<'a> {
    len: usize,
    name: &'a [u8],
    /// The word behind the name.
    first: Option<&'a [u8]>,
}

impl CommandContext {
    /// Stages the commands at the front of `bytes` that pass by the shared connection for certain; answers how many bytes they have.
    pub(in crate::server) fn pass_run(&mut self, bytes: &[u8]) -> usize {
        if bytes.first() != Some(&b'*') || !self.may_pass_runs() {
            return 0;
        }
        let Some(room) = self.upstream.shared.room() else { return 0 };
        let (mut len, mut commands) = (0, 0);
        while commands < room.commands && len < room.bytes {
            match whole_frame(&bytes[len..]) {
                Some(frame)
                    if frame.len <= room.frame_bytes && self.is_sure_to_pass(frame.name, frame.first) =>
                {
                    len += frame.len;
                    commands += 1;
                }
                Some(_) | None => break,
            }
        }
        if commands > 0 {
            self.share_run(&bytes[..len], commands);
            self.commands_run += commands;
            if let Some(sessions) = &self.client.sessions {
                sessions.touch();
            }
        }
        len
    }

    /// Whether nothing in the state of the client asks for a second look. No command of a run changes it.
    fn may_pass_runs(&self) -> bool {
        self.may_share_now()
            && self.client.authenticated
            && self.client.tracking.is_none()
            && !self.client.is_listening_only()
            && self.may_pass_by_routes()
    }
}

/// The command at the front of `bytes`, if it is there to its end and in canonical RESP encoding.
fn whole_frame(bytes: &[u8]) -> Option<Frame<'_>> {
    let (words, mut at) = number_line(bytes, 0, b'*')?;
    if words == 0 || words > WORDS_MAX {
        return None;
    }
    let mut name: &[u8] = &[];
    let mut first = None;
    for number in 0..words {
        let (len, begin) = number_line(bytes, at, b'$')?;
        let end = begin + len;
        // Whatever the two bytes behind a word are: see the parser.
        at = end + 2;
        if at > bytes.len() {
            return None;
        }
        match number {
            0 => name = &bytes[begin..end],
            1 => first = Some(&bytes[begin..end]),
            _ => {}
        }
    }
    Some(Frame { len: at, name, first })
}

/// The number of at most five digits in the line that begins at `at` with `kind`, and where the next line begins.
fn number_line(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let line = bytes.get(at..)?;
    let (&found, line) = line.split_first()?;
    if found != kind {
        return None;
    }
    let mut value = 0;
    for (place, &byte) in line.iter().take(6).enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            // No leading zeros, as in the parser.
            if place == 1 && value == 0 {
                return None;
            }
            value = value * 10 + usize::from(digit);
        } else if byte == b'\r' && place > 0 && line.get(place + 1) == Some(&b'\n') {
            return Some((value, at + 1 + place + 2));
        } else {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::request::{ParseLimits, RequestParser, Step};

    fn parse(bytes: &[u8]) -> Option<(usize, Vec<Vec<u8>>)> {
        let mut parser = RequestParser::default();
        match parser.parse(bytes, ParseLimits { authenticated: true, may_stream: |_| true }) {
            Ok(Step::Command { len }) => {
                let words = parser.words().iter();
                Some((
                    len,
                    words.map(|(start, len)| bytes[*start as usize..][..*len as usize].to_vec()).collect(),
                ))
            }
            _ => None,
        }
    }

    /// What is taken here, the parser takes in the same way.
    fn agrees(bytes: &[u8]) -> bool {
        let Some(frame) = whole_frame(bytes) else { return false };
        let (len, words) = parse(bytes).unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(bytes)));
        assert_eq!(
            (frame.len, frame.name, frame.first),
            (len, &*words[0], words.get(1).map(Vec::as_slice)),
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
        true
    }

    #[test]
    fn takes_what_clients_write() {
        for frame in [
            "*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
            "*3\r\n$3\r\nset\r\n$0\r\n\r\n$12\r\na\r\nb\r\n*1\r\n$1\r\n\r\n",
            "*1\r\n$4\r\nPING\r\n",
            "*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET",
            "*2\r\n$3\r\nGETxx$1\r\nayy",
        ] {
            assert!(agrees(frame.as_bytes()), "{frame}");
        }
        let many = format!("*{}\r\n{}", WORDS_MAX, "$1\r\na\r\n".repeat(WORDS_MAX));
        assert!(agrees(many.as_bytes()));
    }

    #[test]
    fn leaves_the_unusual_alone() {
        for frame in [
            "",
            "*",
            "*2\r\n",
            "*2\r\n$3\r\nGET\r\n$1\r\na\r",
            "*0\r\n",
            "*-1\r\n",
            "*+1\r\n$1\r\na\r\n",
            "*01\r\n$1\r\na\r\n",
            "*1\r\n$01\r\na\r\n",
            "*1\r\n$-1\r\n",
            "*1\r\n$\r\n\r\n",
            "*\r\n$1\r\na\r\n",
            "*1\rx$1\r\na\r\n",
            "*1\n$1\na\n",
            "*1\r\n:1\r\n",
            "*1\r\n$100000\r\n",
            "*100\r\n$1\r\na\r\n",
            "GET a\r\n",
        ] {
            assert_eq!(whole_frame(frame.as_bytes()), None, "{frame}");
        }
    }

    #[test]
    fn never_disagrees_with_the_parser() {
        // Every frame that differs from a good one in one byte, or ends early.
        let good = b"*3\r\n$3\r\nSET\r\n$10\r\nabcdefghij\r\n$1\r\nx\r\n";
        let mut taken = 0;
        for at in 0..good.len() {
            assert_eq!(whole_frame(&good[..at]), None);
            for byte in 0..=255 {
                let mut bytes = good.to_vec();
                bytes[at] = byte;
                taken += usize::from(agrees(&bytes));
            }
        }
        assert!(taken > 20 * 256, "{taken}");
    }
}
