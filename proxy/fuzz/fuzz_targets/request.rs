//! The request parser: whatever the bytes, and however they are cut, it gives the same words or the same refusal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redfence::resp::request::{ProtocolError, RequestParser, ParseLimits, Step, FRAME_BYTES_MAX};

#[derive(Debug, PartialEq)]
enum Seen {
    Words(Vec<Vec<u8>>),
    Nothing,
    Large,
    Refused(ProtocolError),
}

/// Everything `bytes` amounts to, when at most `piece` bytes come at a time.
fn read_all(bytes: &[u8], piece: usize, limits: ParseLimits) -> Vec<Seen> {
    let mut parser = RequestParser::default();
    let (mut start, mut end) = (0, 0);
    let mut seen = Vec::new();
    loop {
        let frame = &bytes[start..end];
        let len = match parser.parse(frame, limits) {
            Err(error) => {
                seen.push(Seen::Refused(error));
                return seen;
            }
            Ok(Step::Incomplete) if end == bytes.len() => return seen,
            Ok(Step::Incomplete) => {
                end = end.saturating_add(piece).min(bytes.len());
                continue;
            }
            Ok(Step::Nothing { len }) => {
                seen.push(Seen::Nothing);
                len
            }
            Ok(Step::Command { len }) => {
                let words = parser.words().iter();
                seen.push(Seen::Words(words.map(|(at, len)| frame[*at as usize..][..*len as usize].to_vec()).collect()));
                len
            }
            Ok(Step::Inline { len }) => {
                seen.push(Seen::Words(parser.take_inline_words()));
                len
            }
            Ok(Step::Large { .. }) => {
                seen.push(Seen::Large);
                return seen;
            }
        };
        assert!(len > 0 && len <= frame.len() && len <= FRAME_BYTES_MAX);
        parser.reset();
        start += len;
    }
}

fuzz_target!(|bytes: &[u8]| {
    for authenticated in [true, false] {
        for may_stream in [|_: &[u8]| false, |name: &[u8]| !name.starts_with(b"LOCK.")] {
            let limits = ParseLimits { authenticated, may_stream };
            let whole = read_all(bytes, usize::MAX, limits);
            assert_eq!(whole, read_all(bytes, 1, limits));
            assert_eq!(whole, read_all(bytes, 7, limits));
        }
    }
});
