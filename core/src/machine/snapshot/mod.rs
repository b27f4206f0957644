//! The state as bytes, written between applies, restored and checked.

pub(crate) mod invariants;
pub(crate) mod restore;
pub(crate) mod write;
