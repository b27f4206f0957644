//! The configuration of a node, with the defaults of a production node.

use crate::node_api::NodeId;
use redfence_core::machine::version::VersionRange;

/// So many entries more may stand behind the last snapshot where none of them changed what is in it: confirming one takes entries too,
/// and must not lead to the next.
pub const QUIET_ENTRIES: u64 = 1_024;

/// Sizes and times of one node. Times are in milliseconds of the monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    pub id: NodeId,
    /// Draws election time-outs. The same seed and the same inputs give the same outputs.
    pub seed: u64,
    /// The cluster versions it can run: the program's, unless a test plays another program.
    pub versions: VersionRange,
    /// The traffic between peers is not protected: a member beyond this machine is not added.
    pub loopback_peers_only: bool,

    pub tick_ms: u64,
    pub heartbeat_ticks: usize,
    /// A follower that hears nothing stands for election after this many ticks, or up to twice as many, drawn anew each time.
    pub election_ticks: usize,

    /// Requests of this node's clients that may be without an answer, queued waits apart. One more is `UNAVAILABLE`.
    pub pending_requests_max: usize,
    pub pending_bytes_max: usize,
    /// Waits that stand in a queue of the machine. One more is `UNAVAILABLE`.
    pub waits_max: usize,
    /// Reads without an answer. One more is `UNAVAILABLE`.
    pub reads_max: usize,
    /// A client's command that is expected to cost more than this is heavy, and waits while so much heavy work of this node's clients
    /// is in the log or on the way there, and not applied here: see `heavy.rs`.
    pub heavy_from_us: u64,
    pub heavy_under_way_us_max: u64,
    /// Commands the leader holds ready for its next entry. What followers send beyond it is dropped; they send again.
    pub staged_commands_max: usize,
    pub staged_bytes_max: usize,

    /// One entry takes at most so many commands and (unless one alone is larger) so many bytes.
    pub entry_commands_max: usize,
    pub entry_bytes_max: usize,
    /// Entries proposed and not yet applied here. More wait, and grow into larger entries.
    pub entries_under_way_max: u64,
    /// While entries are under way, the next waits until it has as many commands as they have together, or this many.
    pub entry_commands_min: usize,
    /// Clients that were answered together are waited for, so that what they ask next becomes one entry: this long, and so much
    /// longer for each.
    pub gather_us: u64,
    pub gather_each_us: u64,
    /// Followers hear of a commit after this time at the latest, where none of their clients waits for it.
    pub commit_broadcast_us: u64,

    /// Other connections' commands may pass a waiting script for so long; then nothing is proposed until one ran.
    pub script_passed_us_max: u64,

    /// First time-out after which a forwarded request is sent again; doubles up to eight times as long.
    pub resend_ms: u64,
    /// First time after which an unanswered ReadIndex is asked again under a new name; doubles up to sixteen times as long.
    pub read_retry_ms: u64,
    /// Keep-alives of sessions go into the log together, this often.
    pub touch_interval_ms: u64,

    /// The most that one gap between two looks at the clock can add to the logical clock. A leader that slept does not make
    /// up for it.
    pub clock_gap_ms_max: u64,
    /// While anything has a deadline, the log carries the clock at least this often.
    pub clock_entry_ms: u64,
    /// Records of free locks are forgotten after this time.
    pub idle_record_ms: u64,
    /// A node not heard of for this long loses its waiters.
    pub node_gone_ms: u64,
    /// A node not heard of for this long is shown as down.
    pub node_down_ms: u64,

    /// A snapshot is made after this many entries or this many bytes since the last.
    pub snapshot_entries: u64,
    pub snapshot_bytes: u64,
    /// A digest of the whole state is asked for this often, where anything has changed.
    pub checkpoint_ms: u64,
    /// The pause between two slices of it ([`redfence_core::machine::digest::DigestSlice`]): those of a small state take a few hundredths
    /// of the thread's time.
    pub digest_slice_ms: u64,
    /// What may be in the log behind a snapshot that waits to be confirmed. Beyond it requests are `UNAVAILABLE`. Bytes: see also
    /// [`NodeConfig::unconfirmed_log_bytes_max`].
    pub unconfirmed_entries_max: u64,
    pub unconfirmed_bytes_max: u64,
    /// Entries kept in the log behind a snapshot, for followers that are only briefly behind.
    pub log_keep_entries: u64,
    /// Bytes of log kept behind a snapshot for members that are being sent an older one, or go on from it.
    pub catch_up_bytes_max: u64,
    /// Entries kept in memory, whichever comes first. Older ones are read back from disk.
    pub cache_entries_max: usize,
    pub cache_bytes_max: usize,
    pub snapshot_piece_bytes: usize,
    /// Pieces of a snapshot on their way to a disk or to a peer.
    pub snapshot_window_bytes: u64,
    /// A transfer without progress for this long has failed.
    pub snapshot_stall_ms: u64,

    /// A learner this close to the leader's last entry becomes a voter.
    pub promote_lag_entries: u64,
    /// So does one that has what was the leader's last entry this time ago, or up to twice as long ago.
    pub promote_lag_ms: u64,
    /// Longest time a shutdown may take.
    pub shutdown_ms_max: u64,
}

impl NodeConfig {
    /// A leader that is silent is replaced in about 0.4 s (300 to 600 ms without a heartbeat, drawn by each follower), one whose
    /// process has ended in some 30 ms (see `failover`). A leader must be stopped for 300 ms to be replaced by mistake.
    #[must_use]
    pub fn new(id: NodeId, seed: u64) -> NodeConfig {
        NodeConfig {
            id,
            seed,
            versions: VersionRange::PROGRAM,
            loopback_peers_only: false,
            tick_ms: 25,
            heartbeat_ticks: 3,
            election_ticks: 12,
            pending_requests_max: 32_768,
            pending_bytes_max: 64 << 20,
            waits_max: 200_000,
            reads_max: 32_768,
            heavy_from_us: 32,
            heavy_under_way_us_max: 5_000,
            staged_commands_max: 65_536,
            staged_bytes_max: 32 << 20,
            entry_commands_max: 4_096,
            entry_bytes_max: 256 << 10,
            entries_under_way_max: 8,
            entry_commands_min: 64,
            gather_us: 200,
            gather_each_us: 25,
            commit_broadcast_us: 500,
            script_passed_us_max: 50_000,
            resend_ms: 500,
            read_retry_ms: 150,
            touch_interval_ms: 200,
            clock_gap_ms_max: 500,
            clock_entry_ms: 5_000,
            idle_record_ms: 600_000,
            node_gone_ms: 10_000,
            node_down_ms: 2_000,
            snapshot_entries: 100_000,
            snapshot_bytes: 64 << 20,
            checkpoint_ms: 60_000,
            digest_slice_ms: 5,
            unconfirmed_entries_max: 1_000_000,
            unconfirmed_bytes_max: 1 << 30,
            log_keep_entries: 10_000,
            catch_up_bytes_max: 512 << 20,
            cache_entries_max: 16_384,
            cache_bytes_max: 32 << 20,
            snapshot_piece_bytes: 128 << 10,
            snapshot_window_bytes: 2 << 20,
            snapshot_stall_ms: 10_000,
            promote_lag_entries: 64,
            promote_lag_ms: 300,
            shutdown_ms_max: 2_500,
        }
    }

    /// One that is merely due must not be beyond it.
    pub(in crate::tier2) fn unconfirmed_log_entries_max(&self) -> u64 {
        self.unconfirmed_entries_max.max(self.snapshot_entries.saturating_mul(2))
    }

    /// A large state takes longer to write and to confirm, and its disk is as large: the log behind it may grow to its size.
    pub(in crate::tier2) fn unconfirmed_log_bytes_max(&self, state_bytes: u64) -> u64 {
        self.unconfirmed_bytes_max.max(self.snapshot_bytes.saturating_mul(2)).max(state_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unconfirmed_log_may_be_as_large_as_a_large_state() {
        let (config, gib) = (NodeConfig::new(1, 1), 1 << 30);
        let cases = [(0, gib), (gib - 1, gib), (gib, gib), (gib + 1, gib + 1), (16 * gib, 16 * gib)];
        for (state_bytes, bytes_max) in cases {
            assert_eq!(config.unconfirmed_log_bytes_max(state_bytes), bytes_max, "{state_bytes}");
        }
    }
}
