//! Waiters of a lock: joining and leaving its queue, and serving the first of it.

mod enqueue;
mod serve;
pub(crate) mod waiter;
