//! Sessions, deadlocks between them, and the policies against those.

mod deadlock;
pub(crate) mod policy;
pub(crate) mod session;
