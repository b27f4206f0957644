//! Measures the node: proposals, apply, elections, peers, the log. Nothing is decided by what is measured here.
//!
//! Times are those of the turns, which come with the inputs; only the time that apply takes is read from a stopwatch, which the
//! shell hands in and the simulator does not.

use crate::clock::Clock;
use crate::metrics::{NodeMetrics, PeerMetrics, SnapshotStep};
use crate::node_api::NodeId;
use crate::tier2::node::Node;
use raft::eraftpb::{Entry, Message, MessageType};
use raft::StateRole;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Proposals whose times are kept: far more than a leader has under way.
const PROPOSED_MAX: usize = 4_096;
/// Places in the log whose distance in bytes is kept.
const LOG_MARKS_MAX: usize = 1_024;
/// A peer that stays slow is logged this often.
const SLOW_LINES_MS: u64 = 10_000;

#[derive(Debug, Default)]
pub(in crate::tier2) struct Metering {
    metrics: Arc<NodeMetrics>,
    stopwatch: Option<Clock>,
    /// Own proposals that are not applied yet: index, and when.
    proposed: VecDeque<(u64, u64)>,
    peers: BTreeMap<NodeId, PeerMeter>,
    log: LogMarks,
    leader: NodeId,
    snapshot_began_us: BTreeMap<(SnapshotDirection, NodeId), u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SnapshotDirection {
    Own,
    To,
    From,
}

impl SnapshotDirection {
    fn of(step: SnapshotStep) -> SnapshotDirection {
        match step {
            SnapshotStep::Write => SnapshotDirection::Own,
            SnapshotStep::Send => SnapshotDirection::To,
            SnapshotStep::Receive => SnapshotDirection::From,
        }
    }
}

#[derive(Debug)]
struct PeerMeter {
    metrics: Arc<PeerMetrics>,
    /// When the oldest heartbeat without an answer was sent.
    asked_us: Option<u64>,
    logged_ms: Option<u64>,
}

/// How many bytes of entries have been appended since the start, and where the log was at some of these moments.
#[derive(Debug, Default)]
struct LogMarks {
    appended_bytes: u64,
    marks: VecDeque<LogMark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogMark {
    index: u64,
    appended_bytes: u64,
}

impl LogMarks {
    fn mark(&mut self, index: u64) {
        // What took the place of entries that were not committed has an older index.
        while self.marks.back().is_some_and(|mark| mark.index >= index) {
            self.marks.pop_back();
        }
        if self.marks.len() == LOG_MARKS_MAX {
            let mut at = 0;
            self.marks.retain(|_| {
                at += 1;
                at % 2 == 1
            });
        }
        self.marks.push_back(LogMark { index, appended_bytes: self.appended_bytes });
    }

    /// About how many bytes of log are behind `index`, of a log that ends at `last_index`.
    fn bytes_behind(&self, index: u64, last_index: u64) -> u64 {
        if index >= last_index {
            return 0;
        }
        let after = self.marks.partition_point(|mark| mark.index <= index);
        let end = LogMark { index: last_index, appended_bytes: self.appended_bytes };
        let above = self.marks.get(after).copied().unwrap_or(end);
        let Some(below) = after.checked_sub(1).and_then(|before| self.marks.get(before)) else {
            // Before the first mark: by the size of entries since.
            let entries = end.index.saturating_sub(above.index).max(1);
            let each = (end.appended_bytes - above.appended_bytes) / entries;
            return end.appended_bytes - above.appended_bytes + each * (above.index - index);
        };
        let entries = above.index.saturating_sub(below.index).max(1);
        let between = above.appended_bytes - below.appended_bytes;
        let part = u128::from(between) * u128::from(index - below.index) / u128::from(entries);
        end.appended_bytes - below.appended_bytes - u64::try_from(part).unwrap_or(between)
    }
}

impl Metering {
    fn peer(&mut self, id: NodeId) -> &mut PeerMeter {
        let metrics = &self.metrics;
        self.peers.entry(id).or_insert_with(|| PeerMeter {
            metrics: metrics.peer(id),
            asked_us: None,
            logged_ms: None,
        })
    }

    pub(in crate::tier2) fn metrics(&self) -> &NodeMetrics {
        &self.metrics
    }

    /// A snapshot is begun: our own, or one to or from a peer.
    pub(in crate::tier2) fn snapshot_begins(&mut self, step: SnapshotStep, peer: NodeId, now_us: u64) {
        self.snapshot_began_us.insert((SnapshotDirection::of(step), peer), now_us);
    }

    pub(in crate::tier2) fn snapshot_ends(
        &mut self,
        step: SnapshotStep,
        peer: NodeId,
        succeeded: bool,
        now_us: u64,
    ) {
        let began_us = self.snapshot_began_us.remove(&(SnapshotDirection::of(step), peer));
        match (succeeded, began_us) {
            (true, Some(began_us)) => {
                self.metrics.snapshot(step).observe_us(now_us.saturating_sub(began_us));
            }
            (true, None) => {}
            (false, _) => self.metrics.snapshots_failed(step).increment(),
        }
    }
}

impl Node {
    /// Where this node's figures go. Without it they go nowhere.
    pub fn set_metrics(&mut self, metrics: Arc<NodeMetrics>, stopwatch: Clock) {
        self.metering.metrics = metrics;
        self.metering.stopwatch = Some(stopwatch);
    }

    /// The newest entry of the log was proposed in this turn.
    pub(in crate::tier2) fn meter_proposal(&mut self) {
        if self.metering.proposed.len() < PROPOSED_MAX {
            let index = self.raw.raft.raft_log.last_index();
            self.metering.proposed.push_back((index, self.now.monotonic_us));
        }
    }

    /// An entry was applied, and so many waiters were granted a lock by it.
    pub(in crate::tier2) fn meter_applied(&mut self, index: u64, served: u64) {
        let metering = &mut self.metering;
        while metering.proposed.front().is_some_and(|(proposed, _)| *proposed < index) {
            metering.proposed.pop_front();
        }
        let Some((_, proposed_us)) = metering.proposed.pop_front_if(|(proposed, _)| *proposed == index)
        else {
            return;
        };
        let took_us = self.now.monotonic_us.saturating_sub(proposed_us);
        metering.metrics.proposal_to_apply.observe_us(took_us);
        if served > 0 {
            metering.metrics.handover.observe_many_us(took_us, served);
        }
    }

    pub(in crate::tier2) fn stopwatch_us(&self) -> Option<u64> {
        self.metering.stopwatch.map(|clock| clock.monotonic_us())
    }

    /// Entries were applied since `began_us` of the stopwatch.
    pub(in crate::tier2) fn meter_apply(&self, began_us: Option<u64>) {
        if let (Some(began_us), Some(now_us)) = (began_us, self.stopwatch_us()) {
            self.metering.metrics.apply.observe_us(now_us.saturating_sub(began_us));
        }
    }

    pub(in crate::tier2) fn meter_appended(&mut self, entries: &[Entry]) {
        self.metering.log.appended_bytes += entries.iter().map(|entry| entry.data.len() as u64).sum::<u64>();
    }

    /// raft's term or role has changed.
    pub(in crate::tier2) fn meter_role(&self, before: StateRole) {
        let stands = |role| matches!(role, StateRole::PreCandidate | StateRole::Candidate);
        // A successful PreCandidate becomes a Candidate: one election.
        if stands(self.raw.raft.state) && !stands(before) {
            self.metering.metrics.elections.increment();
        }
    }

    /// Another leader, or another term.
    pub(in crate::tier2) fn meter_route(&mut self) {
        let leader = self.raw.raft.leader_id;
        self.metering.proposed.clear();
        self.metering.peers.values_mut().for_each(|peer| peer.asked_us = None);
        if leader != 0 && leader != self.metering.leader {
            self.metering.leader = leader;
            self.metering.metrics.leader_changes.increment();
        }
    }

    pub(in crate::tier2) fn meter_sent(&mut self, message: &Message) {
        if message.get_msg_type() == MessageType::MsgHeartbeat {
            let now_us = self.now.monotonic_us;
            self.metering.peer(message.to).asked_us.get_or_insert(now_us);
        }
    }

    pub(in crate::tier2) fn meter_received(&mut self, from: NodeId, kind: MessageType) {
        if kind != MessageType::MsgHeartbeatResponse || self.membership.get(from).is_none() {
            return;
        }
        let now_us = self.now.monotonic_us;
        let Some(asked_us) = self.metering.peer(from).asked_us.take() else { return };
        let took_us = now_us.saturating_sub(asked_us);
        self.metering.peer(from).metrics.round_trip.observe_us(took_us);
        self.note_slowness(from, took_us);
    }

    /// The connection to a peer was lost, and heartbeats with it.
    pub(in crate::tier2) fn meter_unreachable(&mut self, peer: NodeId) {
        if let Some(peer) = self.metering.peers.get_mut(&peer) {
            peer.asked_us = None;
        }
    }

    fn note_slowness(&mut self, id: NodeId, took_us: u64) {
        let slow_us = self.config.tick_ms * self.config.election_ticks as u64 * 1_000 / 2;
        let now_ms = self.now.monotonic_ms();
        let peer = self.metering.peer(id);
        let is_slow = took_us >= slow_us;
        peer.metrics.slow.set(u64::from(is_slow));
        let is_due = peer.logged_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= SLOW_LINES_MS);
        if is_slow && is_due {
            peer.logged_ms = Some(now_ms);
            tracing::warn!(
                peer = id,
                heartbeat_ms = took_us / 1_000,
                slow_from_ms = slow_us / 1_000,
                "peer is slow to answer heartbeats: look at its load, its disk and the network"
            );
        }
    }

    /// Figures that are set now and then: of the log and of the peers.
    pub(in crate::tier2) fn publish_metrics(&mut self) {
        self.metering.metrics.take_tally(&mut self.applying.tally);
        let last_index = self.raw.raft.raft_log.last_index();
        self.metering.log.mark(last_index);
        let metrics = Arc::clone(&self.metering.metrics);
        metrics.log_entries.set(last_index.saturating_sub(self.raw.store().truncated_index()));
        metrics.log_writes_queued.set(self.persist.len() as u64);
        let own = self.config.id;
        let members: Vec<NodeId> =
            self.membership.iter().map(|member| member.id).filter(|id| *id != own).collect();
        if self.metering.peers.keys().any(|id| !members.contains(id)) {
            self.metering.peers.retain(|id, _| members.contains(id));
            metrics.keep_peers(|id| members.contains(&id));
        }
        for id in members {
            self.publish_peer(id, last_index);
        }
    }

    fn publish_peer(&mut self, id: NodeId, last_index: u64) {
        let is_leader = self.is_leader();
        let up = self.status.nodes.iter().any(|node| node.id == id && node.up);
        let progress = self.raw.raft.prs().get(id).filter(|_| is_leader);
        let lag = progress.map(|progress| {
            let behind = last_index.saturating_sub(progress.matched);
            (behind, self.metering.log.bytes_behind(progress.matched, last_index))
        });
        let waits_us =
            self.metering.peer(id).asked_us.map(|at_us| self.now.monotonic_us.saturating_sub(at_us));
        let peer = self.metering.peer(id);
        peer.metrics.up.set(u64::from(up));
        peer.metrics.set_lag(lag);
        match waits_us.filter(|_| is_leader) {
            Some(waits_us) if waits_us >= 1_000 * self.config.tick_ms * self.config.election_ticks as u64 => {
                self.note_slowness(id, waits_us);
            }
            Some(_) => {}
            // Nobody but the leader asks.
            None if !is_leader => peer.metrics.slow.set(0),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_behind_are_counted_from_the_marks() {
        let mut log = LogMarks::default();
        for index in (10..=100).step_by(10) {
            log.appended_bytes = index * 100;
            log.mark(index);
        }
        assert_eq!(log.bytes_behind(100, 100), 0);
        assert_eq!(log.bytes_behind(90, 100), 1_000);
        assert_eq!(log.bytes_behind(95, 100), 500);
        assert_eq!(log.bytes_behind(10, 100), 9_000);
        assert_eq!(log.bytes_behind(0, 100), 10_000, "before the first mark: by the size of entries since");
        log.appended_bytes += 50;
        assert_eq!(log.bytes_behind(100, 101), 50);
        assert_eq!(LogMarks::default().bytes_behind(3, 9), 0);
    }

    #[test]
    fn marks_are_bounded_and_follow_a_log_that_was_cut() {
        let mut log = LogMarks::default();
        for index in 1..=3_000 {
            log.appended_bytes += 10;
            log.mark(index);
        }
        assert!(log.marks.len() <= LOG_MARKS_MAX);
        assert_eq!(log.bytes_behind(2_000, 3_000), 10_000);
        log.mark(1_500);
        assert!(log.marks.iter().all(|mark| mark.index <= 1_500));
    }
}
