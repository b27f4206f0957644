//! Requests of the nodes: a retried proposal is applied once, and lost nodes are forgotten.

pub(crate) mod dedup;
pub(crate) mod origins;
