//! Orderly shutdown: finish requests in flight, remove this node's waiters from lock queues, transfer leadership.
//!
//! Each step has a share of the time; a step that does not finish in it is skipped, and the replies at the end claim only
//! what is known.

use crate::tier2::node::Node;
use crate::tier2::refusals;
use redfence_core::machine::Command;

#[derive(Debug)]
pub(in crate::tier2) struct ShutdownState {
    since_ms: u64,
    gone_due_ms: u64,
    hand_over_due_ms: u64,
    /// This node has applied the removal of its waiters.
    released: bool,
}

/// Share of the time for each step, as divisors of the whole.
const DRAIN_SHARE: u64 = 3;
const RELEASE_SHARE: u64 = 2;
const RETRY_MS: u64 = 200;

impl Node {
    pub(in crate::tier2) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    pub(in crate::tier2) fn begin_shutdown(&mut self) {
        let since_ms = self.now.monotonic_ms();
        self.give_up_heavy(u64::MAX, refusals::stopping);
        self.stopping.get_or_insert(ShutdownState {
            since_ms,
            gone_due_ms: 0,
            hand_over_due_ms: 0,
            released: false,
        });
    }

    /// The machine has removed this node's waiters: certainly none of them was granted.
    pub(in crate::tier2) fn released_by_shutdown(&mut self) {
        if let Some(stopping) = &mut self.stopping {
            stopping.released = true;
        }
        let origin = self.pending.origin();
        for ticket in self.pending.restart_incarnation(origin) {
            self.out.replies.push((ticket, refusals::stopping()));
        }
    }

    pub(in crate::tier2) fn continue_shutdown(&mut self) {
        let Some(stopping) = &self.stopping else { return };
        let now_ms = self.now.monotonic_ms();
        let elapsed_ms = now_ms - stopping.since_ms;
        let whole_ms = self.config.shutdown_ms_max;
        let reachable = self.leader() != 0 && !self.removed;
        if elapsed_ms < whole_ms && reachable {
            let drained =
                self.pending.unapplied_len() == 0 && self.reads.len() == 0 && self.grant_delivery.is_empty();
            if !drained && elapsed_ms < whole_ms / DRAIN_SHARE {
                return;
            }
            if self.origin_live && !stopping.released && elapsed_ms < whole_ms / RELEASE_SHARE {
                self.release_waiters();
                return;
            }
            if self.is_leader() && self.membership.voters() > 1 && self.try_transfer_leadership() {
                return;
            }
        }
        self.answer_the_rest();
        self.out.stopped = true;
    }

    fn release_waiters(&mut self) {
        let origin = self.pending.origin();
        let now_ms = self.now.monotonic_ms();
        let Some(stopping) = &mut self.stopping else { return };
        if stopping.gone_due_ms <= now_ms {
            stopping.gone_due_ms = now_ms + RETRY_MS;
            self.send_unnumbered(&Command::OriginGone { origin });
        }
    }

    /// False: there is no voter to transfer leadership to.
    fn try_transfer_leadership(&mut self) -> bool {
        let now_ms = self.now.monotonic_ms();
        let Some(stopping) = &mut self.stopping else { return false };
        if now_ms < stopping.hand_over_due_ms {
            return true;
        }
        stopping.hand_over_due_ms = now_ms + RETRY_MS;
        self.transfer_leadership()
    }

    fn answer_the_rest(&mut self) {
        for overdue in self.pending.drain() {
            self.give_up(&overdue);
        }
        self.give_up_held_back(u64::MAX);
        for ticket in self.reads.drain() {
            self.out.replies.push((ticket, refusals::stopping()));
        }
        for goal in std::mem::take(&mut self.goals) {
            self.out.replies.push((goal.ticket, goal.gave_up()));
        }
    }
}
