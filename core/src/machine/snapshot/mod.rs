//! The state as bytes, written between applies, restored and checked; and what a backup becomes in a new cluster.

pub(crate) mod invariants;
pub(crate) mod refound;
pub(crate) mod restore;
pub(crate) mod write;
