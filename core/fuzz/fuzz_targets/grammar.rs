//! Any words: a request, a refusal, or not ours; never a panic. The first byte picks a command, a zero byte parts words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redfence_core::grammar::{self, table};
use redfence_core::machine::request::{work, Context};
use redfence_core::types::SessionId;

fuzz_target!(|data: &[u8]| {
    let Some((pick, rest)) = data.split_first() else { return };
    let name = table::ROWS[usize::from(*pick) % table::ROWS.len()].name.as_bytes();
    let argv: Vec<&[u8]> = std::iter::once(name).chain(rest.split(|byte| *byte == 0)).collect();
    let parsed = grammar::parse(&argv).expect("the name is ours");
    if let Ok(request) = parsed {
        let _ = work(request, Context { db: 0, owner: b"owner", session: SessionId(1) });
    }
});
