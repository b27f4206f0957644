//! Whole commands in canonical RESP encoding, as every client library writes them: seen without keeping the place of each word.
//!
//! For pipelines that pass unchanged. Whatever is unusual is left to [`super::request`], the parser that decides what a frame is; what
//! is taken here, it takes in the same way (the tests compare them).

/// A command with more words is left to the parser.
const WORDS_MAX: usize = 99;

/// One whole command at the front of some bytes, in the form every client library writes.
#[derive(Debug, PartialEq, Eq)]
pub struct CanonicalFrame<'a> {
    pub len: usize,
    pub name: &'a [u8],
    /// The word behind the name.
    pub first: Option<&'a [u8]>,
}

/// The command at the front of `bytes`, if it is there to its end and in canonical RESP encoding.
#[must_use]
pub fn whole_frame(bytes: &[u8]) -> Option<CanonicalFrame<'_>> {
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
    Some(CanonicalFrame { len: at, name, first })
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
