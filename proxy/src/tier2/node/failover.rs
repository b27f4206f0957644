//! Failover as soon as the leader's process is known to have ended.
//!
//! A process that dies closes its sockets at once, those that it has dialled too, and nobody listens on its port: the next dial is
//! refused. That is more than silence, so a follower need not wait for its election time-out. It forgets the leader, so that it grants
//! pre-votes, and campaigns when its turn comes: voters in the order of their ids, [`STEP_MS`] apart, so that they do not split the
//! vote. Each tries a few times, since another voter may learn a moment later that the leader is gone, and ignores pre-votes until then.
//!
//! A false alarm costs nothing: pre-votes change no term, the others, who hear the leader, ignore them, and its next heartbeat makes it
//! the leader again here. There is one alarm a second for a leader, however often its port refuses.

use crate::node_api::NodeId;
use crate::tier2::node::Node;
use raft::StateRole;

/// Between the first tries of two voters: longer than a round of votes with its writes to disk takes on a good disk.
const STEP_MS: u64 = 15;
/// A leader that was forgotten and then heard again is forgotten no sooner than this.
const ALARM_EVERY_MS: u64 = 1_000;
/// Tries of one voter, so far apart that all others have theirs in between.
const TRIES_MAX: u32 = 4;

/// The leader of a term whose port refuses, and what is left to be tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failover {
    term: u64,
    leader: NodeId,
    began_ms: u64,
    tries_left: u32,
    due_ms: u64,
    every_ms: u64,
}

impl Node {
    /// Nobody listens where this peer did.
    pub(super) fn on_refused(&mut self, peer: NodeId) {
        self.on_unreachable(peer);
        let (term, own, now_ms) = (self.term(), self.config.id, self.now.monotonic_ms());
        self.refused_ms.insert(peer, now_ms);
        let voters = &self.membership.conf_state().voters;
        let known = self.failover.is_some_and(|failover| {
            (failover.term, failover.leader) == (term, peer)
                && now_ms.saturating_sub(failover.began_ms) < ALARM_EVERY_MS
        });
        let may_lead =
            voters.contains(&own) && !self.removed && !self.is_quarantined() && !self.is_stopping();
        if peer != self.leader() || known || !may_lead || self.is_installing() {
            return;
        }
        let others = voters.iter().filter(|voter| **voter != peer);
        let turn = others.clone().filter(|voter| **voter < own).count() as u64;
        self.failover = Some(Failover {
            term,
            leader: peer,
            began_ms: now_ms,
            tries_left: TRIES_MAX,
            due_ms: now_ms + turn * STEP_MS,
            every_ms: others.count() as u64 * STEP_MS,
        });
        tracing::info!(leader = peer, term, "nobody listens where the leader did: an election begins");
        self.raw.raft.become_follower(term, raft::INVALID_ID);
        self.after_raft();
    }

    /// Campaigns where this node's turn has come and there is no leader yet.
    pub(super) fn continue_failover(&mut self) {
        let now_ms = self.now.monotonic_ms();
        let Some(at_ms) = self.failover_at_ms().filter(|at_ms| *at_ms <= now_ms) else { return };
        if let Some(failover) = &mut self.failover {
            failover.tries_left -= 1;
            failover.due_ms = at_ms.max(now_ms) + failover.every_ms;
        }
        // An error means that raft may not campaign now: entries that change the membership wait to be applied.
        let _ = self.raw.campaign();
        self.after_raft();
    }

    /// When the next try is due, if any is.
    pub(super) fn failover_at_ms(&self) -> Option<u64> {
        let Failover { term, tries_left, due_ms, .. } = self.failover?;
        let leaderless = self.leader() == raft::INVALID_ID && self.term() == term;
        let idle = matches!(self.raw.raft.state, StateRole::Follower | StateRole::PreCandidate);
        let may = leaderless && idle && tries_left > 0 && !self.is_installing() && !self.is_quarantined();
        may.then_some(due_ms)
    }
}
