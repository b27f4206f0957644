//! Sessions, and deadlocks between them.

mod deadlock;
pub(crate) mod session;
