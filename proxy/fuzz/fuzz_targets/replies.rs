//! The scanner of replies: whatever the bytes, and however they are cut, it finds the same ends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redfence::resp::replies::{NotResp, ScannedReply, ReplyScanner};

fn ends(bytes: &[u8], piece: usize) -> (Vec<(usize, ScannedReply)>, Option<NotResp>) {
    let mut scanner = ReplyScanner::default();
    let mut found = Vec::new();
    let mut at = 0;
    for chunk in bytes.chunks(piece) {
        let mut rest = chunk;
        while !rest.is_empty() {
            match scanner.scan(rest) {
                Err(error) => return (found, Some(error)),
                Ok((taken, outcome)) => {
                    assert!(taken > 0 && taken <= rest.len());
                    at += taken;
                    rest = &rest[taken..];
                    found.extend(outcome.map(|outcome| (at, outcome)));
                }
            }
        }
    }
    (found, None)
}

fuzz_target!(|bytes: &[u8]| {
    let whole = ends(bytes, usize::MAX);
    assert_eq!(whole, ends(bytes, 1));
    assert_eq!(whole, ends(bytes, 5));
});
