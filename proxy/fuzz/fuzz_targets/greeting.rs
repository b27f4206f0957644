//! Any bytes as a stranger's greeting: refused, or read and written as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redfence::transport::greeting::Hello;

fn check(bytes: &[u8]) {
    match Hello::decode(bytes) {
        Ok(hello) => assert_eq!(hello.encode(), bytes),
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
}

fuzz_target!(|data: &[u8]| {
    check(data);
    // Past the first bytes, which chance would hardly ever find.
    check(&[&b"RFPEER1\n\x01\0\x01\0\x01\0"[..], data].concat());
});
