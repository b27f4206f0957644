//! Batching on the leader: how many commands an entry holds, and when followers learn the commit index.
//!
//! An entry costs every node a write, an fsync and several wake-ups, however many commands it holds; a separate message with
//! the commit index costs a message and an answer. So a small entry waits for more commands where more are likely to come soon,
//! and commit-index updates piggyback on the next append unless a follower's client is blocked on them. Safety does not
//! depend on any of this: a command is staged, or it is in the log.

use crate::tier2::node::Node;
use std::collections::VecDeque;

/// Proposals in flight, and what the next entry waits for. Reset with every leadership.
#[derive(Debug, Default)]
pub(in crate::tier2) struct Batching {
    /// Own proposals that are not applied yet: index and number of commands.
    under_way: VecDeque<(u64, usize)>,
    gathering: Gathering,
    commit_broadcast: CommitBroadcast,
}

/// Clients that were answered together often send their next command together: a holder releases, a releaser acquires again. The
/// next entry waits for them for a moment; if they did not come, not at all for a while.
#[derive(Debug, Default)]
struct Gathering {
    /// Wait for this many commands until this time.
    expected: usize,
    until_us: u64,
    /// Opportunities to skip before trying again, and how many were skipped the last time.
    passes_left: u32,
    passes: u32,
}

/// What followers know of the commit index.
#[derive(Debug, Default)]
struct CommitBroadcast {
    announced: u64,
    due_us: Option<u64>,
    /// A client of another node waits for an answer in what is applied here.
    is_awaited: bool,
}

/// How many opportunities are skipped after clients did not come. Doubles each time.
const PASSES_MIN: u32 = 8;
const PASSES_MAX: u32 = 1_024;

impl CommitBroadcast {
    /// The message being sent now carries this commit index.
    fn announced(&mut self, committed: u64) {
        *self = CommitBroadcast { announced: committed, ..CommitBroadcast::default() };
    }
}

impl Gathering {
    fn begin(&mut self, expected: usize, until_us: u64) {
        if expected < 2 {
            return;
        }
        if self.passes_left > 0 {
            self.passes_left -= 1;
            return;
        }
        (self.expected, self.until_us) = (expected, until_us);
    }

    /// An entry with so many commands leaves.
    fn end(&mut self, commands: usize) {
        if self.expected == 0 {
            return;
        }
        self.passes = match 4 * commands < 3 * self.expected {
            true => (2 * self.passes).clamp(PASSES_MIN, PASSES_MAX),
            false => 0,
        };
        self.passes_left = self.passes;
        self.expected = 0;
    }
}

impl Node {
    /// Everything staged becomes one entry, or a few if it is too much for one.
    pub(in crate::tier2) fn propose_staged(&mut self) {
        while self.batching.under_way.front().is_some_and(|(index, _)| *index <= self.applied) {
            self.batching.under_way.pop_front();
        }
        self.run_scripts();
        while self.may_propose() && self.stage.len() >= self.commands_awaited() && !self.must_run_scripts() {
            let Some(stamp) = self.clock.stamp(self.now) else { return };
            let (commands_max, bytes_max) = (self.config.entry_commands_max, self.config.entry_bytes_max);
            let runs = self.machine.cluster_version();
            let built = self.stage.build(runs, stamp, &self.pending, commands_max, bytes_max);
            let Some(built) = built else { return };
            let covered = built.covered();
            if self.raw.propose(Vec::new(), built.data).is_err() {
                // Dropped before it entered the log: it stays staged.
                return;
            }
            let staged = self.stage.numbered();
            self.stage.proposed(&covered);
            // What no client waits for must not hold up those that come next.
            self.note_proposed(staged - self.stage.numbered());
            for seq in built.own {
                self.pending.mark_proposed(seq);
            }
        }
    }

    /// An entry with so many commands is in the log.
    pub(in crate::tier2) fn note_proposed(&mut self, commands: usize) {
        self.batching.commit_broadcast.announced(self.raw.raft.raft_log.committed);
        self.batching.under_way.push_back((self.raw.raft.raft_log.last_index(), commands));
        self.batching.gathering.end(commands);
        self.meter_proposal();
    }

    pub(in crate::tier2) fn may_propose(&self) -> bool {
        self.is_leader()
            && self.raw.raft.lead_transferee.is_none()
            && !self.is_quarantined()
            && self.entries_under_way() < self.config.entries_under_way_max
    }

    pub(in crate::tier2) fn entries_under_way(&self) -> u64 {
        self.raw.raft.raft_log.last_index().saturating_sub(self.applied)
    }

    /// How many commands the next entry waits for: as many as are in flight, since their completion triggers the next turn; or, for
    /// a moment, as many as were just answered, beside those that are no client's.
    pub(in crate::tier2) fn commands_awaited(&self) -> usize {
        let under_way: usize = self.batching.under_way.iter().map(|(_, commands)| commands).sum();
        let awaited = match self.is_gathering() {
            true => self.batching.gathering.expected + self.stage.unnumbered(),
            false => under_way,
        };
        awaited.clamp(1, self.config.entry_commands_min)
    }

    fn is_gathering(&self) -> bool {
        let Gathering { expected, until_us, .. } = self.batching.gathering;
        expected > 0 && self.now.monotonic_us < until_us && self.batching.under_way.is_empty()
    }

    /// This many clients were answered, and may soon send their next commands. What is staged already waits for them.
    pub(in crate::tier2) fn expect_follow_ups(&mut self, answered: usize) {
        if answered > 0 && self.is_leader() {
            let expected = (self.stage.numbered() + answered).min(self.config.entry_commands_min);
            let wait_us = self.config.gather_us + self.config.gather_each_us * answered as u64;
            self.batching.gathering.begin(expected, self.now.monotonic_us + wait_us);
        }
    }

    /// Followers apply what they know to be committed, and answer their own clients then. The next entry carries the commit index;
    /// without one it is sent alone: at once if a client of a follower is blocked on it, else after `commit_broadcast_us`.
    pub(in crate::tier2) fn broadcast_commit(&mut self) {
        let committed = self.raw.raft.raft_log.committed;
        if !self.is_leader() || self.batching.commit_broadcast.announced >= committed {
            return;
        }
        let now_us = self.now.monotonic_us;
        let due_us =
            *self.batching.commit_broadcast.due_us.get_or_insert(now_us + self.config.commit_broadcast_us);
        if now_us < due_us && !self.batching.commit_broadcast.is_awaited {
            return;
        }
        self.batching.commit_broadcast.announced(committed);
        // While a change of membership is under way, raft sends the commit index itself.
        if !self.raw.raft.has_pending_conf() {
            self.raw.raft.bcast_append();
        }
    }

    /// An answer for a client of another node was applied here.
    pub(in crate::tier2) fn note_remote_waiters(&mut self) {
        self.batching.commit_broadcast.is_awaited = true;
    }

    /// When this wants to be called again, if it does.
    pub(in crate::tier2) fn batching_wake_at_us(&self) -> Option<u64> {
        if !self.is_leader() {
            return None;
        }
        let gathered_at_us = self.is_gathering().then_some(self.batching.gathering.until_us);
        gathered_at_us.into_iter().chain(self.batching.commit_broadcast.due_us).min()
    }
}
