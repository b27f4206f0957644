//! Any bytes as a frame from a peer: refused, or a message that is written again as what it was read from.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use redfence::node_api::wire::{decode_frame, encode_frame};

fuzz_target!(|data: &[u8]| {
    let Ok((group, message)) = decode_frame(Bytes::copy_from_slice(data)) else { return };
    let mut written = BytesMut::new();
    encode_frame(group, &message, &mut written).expect("what came in a frame fits into one");
    let (again, same) = decode_frame(written.freeze().slice(4..)).expect("what was written can be read");
    assert_eq!(again, group);
    // Not the bytes: raft's messages keep fields that they do not know in no order.
    assert_eq!(message, same);
});
