//! What the threads of the Raft node measure.

use super::histogram::{Counter, Gauge, Histogram, LATENCY_BOUNDS_US, LONG_BOUNDS_US};
use redfence_core::machine::tally::Tally;
use redfence_core::types::LossCause;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Queues that may be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Requests of clients on their way to the node.
    Requests,
    /// Messages of peers on their way to the node.
    PeerMessages,
    /// Messages to peers that their sockets did not take.
    PeerSends,
    /// Commands of other nodes that the leader has not proposed yet.
    Staged,
}

impl Queue {
    pub const ALL: [Queue; 4] = [Queue::Requests, Queue::PeerMessages, Queue::PeerSends, Queue::Staged];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Queue::Requests => "requests",
            Queue::PeerMessages => "peer_messages",
            Queue::PeerSends => "peer_sends",
            Queue::Staged => "staged",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotStep {
    Write,
    Send,
    Receive,
}

impl SnapshotStep {
    pub const ALL: [SnapshotStep; 3] = [SnapshotStep::Write, SnapshotStep::Send, SnapshotStep::Receive];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            SnapshotStep::Write => "write",
            SnapshotStep::Send => "send",
            SnapshotStep::Receive => "receive",
        }
    }
}

#[derive(Debug)]
pub struct NodeMetrics {
    /// How long locks were held, of all that ended in entries applied here.
    pub hold: Histogram,
    /// From the proposal of the entry that ended a hold to the grant of its successor; on the leader.
    pub handover: Histogram,
    /// Applying what was committed, of one batch.
    pub apply: Histogram,
    /// From the proposal of an entry until it was applied; on the leader.
    pub proposal_to_apply: Histogram,
    /// One batch of log writes with its fsync.
    pub log_write: Histogram,
    snapshots: [Histogram; SnapshotStep::ALL.len()],
    snapshots_failed: [Counter; SnapshotStep::ALL.len()],
    losses: [Counter; LossCause::ALL.len()],
    /// Elections that this node stood for.
    pub elections: Counter,
    /// New leaders that this node has heard of.
    pub leader_changes: Counter,
    /// Own digests that were found equal to those of a majority.
    pub digests_compared: Counter,
    /// Times that the wall clock was set.
    pub clock_steps: Counter,
    /// Times that the process did not run for a while.
    pub pauses: Counter,
    /// Log writes that did not return for a while.
    pub disk_stalls: Counter,
    queues_full: [Counter; Queue::ALL.len()],
    pub log_entries: Gauge,
    pub log_bytes: Gauge,
    /// Log writes handed to the disk and not durable yet.
    pub log_writes_queued: Gauge,
    /// When the log write that is under way began; 0 where none is.
    log_write_began_us: AtomicU64,
    peers: Mutex<BTreeMap<u64, Arc<PeerMetrics>>>,
}

impl Default for NodeMetrics {
    fn default() -> NodeMetrics {
        let latency = || Histogram::new(LATENCY_BOUNDS_US);
        let long = || Histogram::new(LONG_BOUNDS_US);
        NodeMetrics {
            hold: long(),
            handover: latency(),
            apply: latency(),
            proposal_to_apply: latency(),
            log_write: latency(),
            snapshots: [long(), long(), long()],
            snapshots_failed: Default::default(),
            losses: Default::default(),
            elections: Counter::default(),
            leader_changes: Counter::default(),
            digests_compared: Counter::default(),
            clock_steps: Counter::default(),
            pauses: Counter::default(),
            disk_stalls: Counter::default(),
            queues_full: Default::default(),
            log_entries: Gauge::default(),
            log_bytes: Gauge::default(),
            log_writes_queued: Gauge::default(),
            log_write_began_us: AtomicU64::new(0),
            peers: Mutex::default(),
        }
    }
}

impl NodeMetrics {
    #[must_use]
    pub fn snapshot(&self, step: SnapshotStep) -> &Histogram {
        &self.snapshots[step as usize]
    }

    #[must_use]
    pub fn snapshots_failed(&self, step: SnapshotStep) -> &Counter {
        &self.snapshots_failed[step as usize]
    }

    #[must_use]
    pub fn losses(&self, cause: LossCause) -> &Counter {
        &self.losses[cause as usize]
    }

    #[must_use]
    pub fn queue_full(&self, queue: Queue) -> &Counter {
        &self.queues_full[queue as usize]
    }

    /// Takes over what was counted while entries were applied, and empties it.
    pub fn take_tally(&self, tally: &mut Tally) {
        if tally.is_empty() {
            return;
        }
        let Tally { holds, held_us, losses, served: _ } = std::mem::take(tally);
        self.hold.add_counts(&holds, held_us);
        for (counter, count) in self.losses.iter().zip(losses) {
            counter.add(count);
        }
    }

    /// The log writer begins a write. Times are of one monotonic clock.
    pub fn log_write_begins(&self, now_us: u64) {
        self.log_write_began_us.store(now_us.max(1), Ordering::Relaxed);
    }

    pub fn log_write_ends(&self, now_us: u64) {
        let began_us = self.log_write_began_us.swap(0, Ordering::Relaxed);
        self.log_write.observe_us(now_us.saturating_sub(began_us));
    }

    /// For how long the write that is under way has lasted; 0 where none is.
    #[must_use]
    pub fn log_write_age_us(&self, now_us: u64) -> u64 {
        match self.log_write_began_us.load(Ordering::Relaxed) {
            0 => 0,
            began_us => now_us.saturating_sub(began_us),
        }
    }

    /// What is measured of one peer; made when first asked for.
    #[must_use]
    pub fn peer(&self, id: u64) -> Arc<PeerMetrics> {
        Arc::clone(self.lock_peers().entry(id).or_default())
    }

    /// Forgets peers that are no members any more.
    pub fn keep_peers(&self, is_member: impl Fn(u64) -> bool) {
        self.lock_peers().retain(|id, _| is_member(*id));
    }

    #[must_use]
    pub fn peers(&self) -> Vec<(u64, Arc<PeerMetrics>)> {
        self.lock_peers().iter().map(|(id, peer)| (*id, Arc::clone(peer))).collect()
    }

    fn lock_peers(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<PeerMetrics>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a node measures of one other member.
#[derive(Debug)]
pub struct PeerMetrics {
    /// From a heartbeat to its answer; on the leader.
    pub round_trip: Histogram,
    /// 1 while it is slow to answer the leader.
    pub slow: Gauge,
    /// 1 where something was heard from it lately.
    pub up: Gauge,
    lag_entries: AtomicU64,
    lag_bytes: AtomicU64,
}

/// Nobody but the leader knows how far others are behind.
const UNKNOWN: u64 = u64::MAX;

impl Default for PeerMetrics {
    fn default() -> PeerMetrics {
        PeerMetrics {
            round_trip: Histogram::new(LATENCY_BOUNDS_US),
            slow: Gauge::default(),
            up: Gauge::default(),
            lag_entries: AtomicU64::new(UNKNOWN),
            lag_bytes: AtomicU64::new(UNKNOWN),
        }
    }
}

impl PeerMetrics {
    /// Entries and bytes of log that it has not acknowledged. `None` where this node does not lead.
    pub fn set_lag(&self, lag: Option<(u64, u64)>) {
        let (entries, bytes) = lag.unwrap_or((UNKNOWN, UNKNOWN));
        self.lag_entries.store(entries, Ordering::Relaxed);
        self.lag_bytes.store(bytes, Ordering::Relaxed);
    }

    #[must_use]
    pub fn lag(&self) -> Option<(u64, u64)> {
        let (entries, bytes) =
            (self.lag_entries.load(Ordering::Relaxed), self.lag_bytes.load(Ordering::Relaxed));
        (entries != UNKNOWN && bytes != UNKNOWN).then_some((entries, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_is_taken_once() {
        let metrics = NodeMetrics::default();
        let mut tally = Tally::default();
        tally.holds[3] = 2;
        tally.held_us = 18_000;
        tally.losses[LossCause::Forced as usize] = 1;
        metrics.take_tally(&mut tally);
        metrics.take_tally(&mut tally);
        assert_eq!((metrics.hold.snapshot().count(), metrics.hold.snapshot().sum_us), (2, 18_000));
        assert_eq!(metrics.losses(LossCause::Forced).get(), 1);
    }

    #[test]
    fn the_age_of_a_write_is_known_while_it_lasts() {
        let metrics = NodeMetrics::default();
        assert_eq!(metrics.log_write_age_us(500), 0);
        metrics.log_write_begins(100);
        assert_eq!(metrics.log_write_age_us(500), 400);
        metrics.log_write_ends(600);
        assert_eq!(metrics.log_write_age_us(700), 0);
        assert_eq!(metrics.log_write.snapshot().sum_us, 500);
    }

    #[test]
    fn lag_is_known_to_a_leader_alone() {
        let metrics = NodeMetrics::default();
        assert_eq!(metrics.peer(2).lag(), None);
        metrics.peer(2).set_lag(Some((3, 400)));
        assert_eq!(metrics.peer(2).lag(), Some((3, 400)));
        metrics.peer(2).set_lag(None);
        assert_eq!(metrics.peer(2).lag(), None);
        metrics.keep_peers(|id| id != 2);
        assert!(metrics.peers().is_empty());
    }
}
