//! What the machine knows of the nodes that send to it. Their own nodes look here after every apply, and a leader looks for
//! nodes that are lost.

use super::dedup::Seen;
use super::Machine;
use crate::reply::Reply;
use crate::types::{Origin, RequestId};

/// The newest start of a node that the machine has heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginState {
    pub origin: Origin,
    /// Declared lost: its commands are passed over.
    pub gone: bool,
}

impl Machine {
    #[must_use]
    pub fn origin_state(&self, node: u64) -> Option<OriginState> {
        self.dedup.state(node)
    }

    /// Every node whose commands are taken, lowest id first.
    pub fn live_origins(&self) -> impl Iterator<Item = Origin> + '_ {
        self.dedup.states().filter(|state| !state.gone).map(|state| state.origin)
    }

    /// Whether a request stands in a queue.
    #[must_use]
    pub fn is_waiting(&self, id: RequestId) -> bool {
        self.requests.contains_key(&id)
    }

    /// The answer a request was given, where it is still remembered.
    #[must_use]
    pub fn remembered(&self, id: RequestId) -> Option<Reply> {
        match self.dedup.known(id) {
            Seen::Before(reply) => Some(reply),
            Seen::New | Seen::Stale | Seen::Forgotten | Seen::NoRoom => None,
        }
    }

    /// Whether events are collected.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.watched
    }
}
