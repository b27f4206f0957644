//! The RESP proxy and the Raft node of Redfence.

#![forbid(unsafe_code)]

pub mod clock;
pub mod storage;
pub mod tier2;
pub mod transport;
