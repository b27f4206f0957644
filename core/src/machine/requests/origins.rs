//! What the machine knows of the nodes that send to it. Their own nodes look here after every apply, and a leader looks for
//! nodes that are lost.

use crate::machine::requests::dedup::Seen;
use crate::machine::Machine;
use crate::reply::Reply;
use crate::types::{Origin, RequestId, SessionId};

/// The newest start of a node that the machine has heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginState {
    pub origin: Origin,
    /// Declared lost: its commands are passed over.
    pub gone: bool,
}

/// What the machine can say of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// Not applied so far.
    Unmet,
    /// In a queue.
    Waiting,
    Answered(Reply),
    /// Its number is settled or forgotten, or its node's start is gone: it may or may not have been applied.
    Unknown,
}

impl Machine {
    #[must_use]
    pub fn origin_state(&self, node: u64) -> Option<OriginState> {
        self.dedup.state(node)
    }

    /// Whether another start of the node has taken this one's place: its commands are passed over, and announcing it again
    /// changes nothing.
    #[must_use]
    pub fn is_past(&self, origin: Origin) -> bool {
        self.dedup.is_past(origin)
    }

    /// Every node whose commands are taken, lowest id first.
    pub fn live_origins(&self) -> impl Iterator<Item = Origin> + '_ {
        self.dedup.states().filter(|state| !state.gone).map(|state| state.origin)
    }

    /// Whether a request stands in a queue, or waits in a command such as `BLPOP`.
    #[must_use]
    pub fn is_waiting(&self, id: RequestId) -> bool {
        self.requests.contains_key(&id) || self.blocked.has(id)
    }

    /// Whether a session is there. It may be due.
    #[must_use]
    pub fn has_session(&self, id: SessionId) -> bool {
        self.session_ids.contains_key(&id)
    }

    /// What became of a request, for a node that did not see the entries it may have been in.
    #[must_use]
    pub fn fate(&self, id: RequestId) -> Fate {
        if self.is_waiting(id) {
            return Fate::Waiting;
        }
        match self.dedup.known(id) {
            Seen::New => Fate::Unmet,
            Seen::Before(reply) => Fate::Answered(reply),
            Seen::Stale | Seen::Forgotten | Seen::NoRoom => Fate::Unknown,
        }
    }
}
