//! Watchers of this node: who listens to which channel, and the way a lock event takes to them.
//!
//! Apply never waits for a watcher. It drops its events into a bounded queue ([`EventQueue`]); one task turns them into
//! messages and puts these into each listener's bounded inbox ([`Hub`]). A full queue loses events (counted); a listener whose
//! inbox is full is marked, and its connection ends: it learns that it missed something.
//!
//! Fed by the embedded Tier 1, by Tier 2's apply and by `PUBLISH` where no Redis is behind; emptied by `connection`.

mod hub;
mod queue;

pub use hub::{is_about_locks, Delivery, Hub, Inbox, Kind, Message};
pub use queue::EventQueue;
