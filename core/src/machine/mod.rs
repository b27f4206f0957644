//! The deterministic lock machine. Everything Tier 2 promises happens here; embedded Tier 1 and the simulator run it too.
//!
//! `apply` is total: it never fails, never waits, and gives the same state and the same answers for the same entries.

pub mod command;

use crate::event::Event;
use crate::reply::Reply;
use crate::types::{RequestId, SessionId};
pub use command::{Command, Db};

/// What applying an entry brought about. Reused from entry to entry by its owner.
#[derive(Debug, Default)]
pub struct Applied {
    /// Answers that are due now. A queued acquire has none yet: its answer comes with a later entry.
    pub replies: Vec<(RequestId, Reply)>,
    /// Only filled while somebody watches.
    pub events: Vec<Event>,
}

/// A look at the state that changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query<'a> {
    Info { db: Db, resource: &'a [u8] },
    Queue { db: Db, resource: &'a [u8] },
    Scan { db: Db, cursor: u64, pattern: Option<&'a [u8]>, count: u64 },
    Session { id: SessionId },
}
