//! How many requests are answered at the same time: lanes for what is read, for searches, for actions and for logins, so that none of
//! them takes the others' turns; and within a lane a share for each user at an address, so that one viewer does not take them all.

use super::api::ApiError;
use super::Peer;
use crate::acl::User;
use crate::server::client::registry::network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Whoever gets no turn within this time is told so.
const TURN_WITHIN: Duration = Duration::from_secs(2);
/// Users at addresses that are remembered before those without a turn are forgotten.
const KNOWN_MAX: usize = 256;

/// Whose share it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Who {
    /// `None`: nobody who has logged in.
    pub(super) user: Option<Vec<u8>>,
    pub(super) address: IpAddr,
}

impl Who {
    pub(super) fn of(peer: &Peer, user: Option<&User>) -> Who {
        Who { user: user.map(|user| user.name.clone()), address: network(peer.address.ip()) }
    }
}

#[derive(Debug)]
struct Lane {
    all: Arc<Semaphore>,
    share: usize,
    shares: Mutex<HashMap<Who, Arc<Semaphore>>>,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Lane {
    fn new(all: usize, share: usize) -> Lane {
        Lane { all: Arc::new(Semaphore::new(all)), share, shares: Mutex::default() }
    }

    /// One of its own share first: so no more than a share of one user stands in the queue of all.
    async fn take(&self, who: Who) -> Option<Turn> {
        let own = {
            let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
            if shares.len() >= KNOWN_MAX {
                // Turns, and those who wait for one, hold theirs.
                shares.retain(|_, share| Arc::strong_count(share) > 1);
            }
            Arc::clone(shares.entry(who).or_insert_with(|| Arc::new(Semaphore::new(self.share))))
        };
        let turn = async {
            let own = own.acquire_owned().await.ok()?;
            let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some(Turn { _own: own, _all: all })
        };
        tokio::time::timeout(TURN_WITHIN, turn).await.ok()?
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnKind {
    Read,
    /// A page of locks: many commands.
    Search,
    /// The same over many pages.
    SortedSearch,
    Action,
    /// Guesses are slow on purpose. How many of an address or a user wait is limited where passwords are checked.
    Login,
}

#[derive(Debug)]
pub(super) struct Turns {
    reads: Lane,
    searches: Lane,
    sorted_searches: Lane,
    actions: Lane,
    logins: Lane,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            reads: Lane::new(64, 48),
            searches: Lane::new(4, 3),
            sorted_searches: Lane::new(2, 1),
            actions: Lane::new(16, 12),
            logins: Lane::new(512, 256),
        }
    }
}

impl Turns {
    pub(super) async fn take(&self, kind: TurnKind, who: Who) -> Result<Turn, ApiError> {
        let lane = match kind {
            TurnKind::Read => &self.reads,
            TurnKind::Search => &self.searches,
            TurnKind::SortedSearch => &self.sorted_searches,
            TurnKind::Action => &self.actions,
            TurnKind::Login => &self.logins,
        };
        lane.take(who).await.ok_or_else(|| ApiError::unavailable("too many requests at once; retry"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(user: &str) -> Who {
        Who { user: Some(user.as_bytes().to_vec()), address: std::net::Ipv4Addr::LOCALHOST.into() }
    }

    #[tokio::test]
    async fn one_user_has_its_share_and_no_more() {
        let lane = Lane::new(4, 3);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(lane.take(who("many")).await.unwrap());
        }
        let (fourth, other) = tokio::join!(lane.take(who("many")), lane.take(who("other")));
        assert!(fourth.is_none() && other.is_some());
        held.pop();
        assert!(lane.take(who("many")).await.is_some());
    }

    #[tokio::test]
    async fn those_without_a_turn_are_forgotten() {
        let lane = Lane::new(4, 3);
        for number in 0..1_000 {
            drop(lane.take(who(&number.to_string())).await.unwrap());
        }
        assert!(lane.shares.lock().unwrap().len() <= KNOWN_MAX);
    }
}
