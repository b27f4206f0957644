//! Images of the machine: made between turns, written in pieces, sent to peers that are too far behind, received from a
//! leader, read back at start-up.
//!
//! A snapshot file is a row of pieces, each `u32 length | bytes` (little endian), as the machine gives them.
//!
//! # Layout
//!
//! - `making.rs`: our own; - `sending.rs`: to followers; - `receiving.rs`: from a leader; - `pieces.rs`: the file's bytes

pub(super) mod making;
pub(crate) mod pieces;
pub(super) mod receiving;
pub(super) mod sending;
