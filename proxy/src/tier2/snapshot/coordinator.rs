//! When snapshots are made, sent, received and installed. The work itself is in the files beside this one.

use crate::metrics::SnapshotStep;
use crate::node_api::{
    LogPosition, NodeId, PeerMessage, PersistTask, SnapshotAck, SnapshotChunk, SnapshotId, SnapshotMeta,
    SnapshotOp, TransferState,
};
use crate::tier2::cluster::membership::Membership;
use crate::tier2::config::{NodeConfig, QUIET_ENTRIES};
use crate::tier2::node::persist::PersistQueue;
use crate::tier2::node::Node;
use crate::tier2::snapshot::backups::Backups;
use crate::tier2::snapshot::making::{OwnSnapshot, StoredSnapshot};
use crate::tier2::snapshot::receiving::{IncomingSnapshot, ReceivedSnapshot};
use crate::tier2::snapshot::sending::{OutgoingSnapshots, TransferEnd};
use raft::{SnapshotStatus, Storage};
use redfence_core::machine::Machine;
use redfence_core::mutant;

/// Snapshots one start of a node can make before file names would repeat.
const ID_BITS: u32 = 24;
/// After a failed write, the next try waits this long; after each that follows twice as long, up to the usual time between two digests.
const RETRY_MS: u64 = 5_000;
/// The same for one that is received.
const RECEIVE_RETRY_MS: u64 = 1_000;

pub(in crate::tier2) struct Snapshots {
    next_id: u64,
    making: Option<OwnSnapshot>,
    /// Our own, stored and not confirmed yet: a restart begins with it, and the log behind it goes, only once it is.
    unconfirmed: Option<StoredSnapshot>,
    pub(in crate::tier2) outgoing: OutgoingSnapshots,
    pub(in crate::tier2) backups: Backups,
    receiving: Option<IncomingSnapshot>,
    /// Handed to raft, and waiting for its Ready.
    received: Option<(SnapshotMeta, Machine)>,
    /// The last transfer that was received to its end: its sender may not have heard.
    finished: Option<(NodeId, u64)>,
    /// Bytes of entries applied since the last snapshot began.
    bytes_since: u64,
    /// Bytes of entries applied since the snapshot that a restart would begin with.
    pub(in crate::tier2) log_bytes: u64,
    /// Bytes of entries applied since the start.
    applied_bytes: u64,
    /// A new member cannot be brought in with the snapshot there is.
    wanted: bool,
    not_before_ms: u64,
    /// Of the last writes of our own.
    failed_in_a_row: u32,
    receive_not_before_ms: u64,
    receives_failed_in_a_row: u32,
    /// Files to delete once the task that names their successor is durable.
    discard: Vec<(SnapshotId, u64)>,
}

impl Snapshots {
    pub(in crate::tier2) fn new(boot: u64) -> Snapshots {
        Snapshots {
            next_id: boot << ID_BITS,
            making: None,
            unconfirmed: None,
            outgoing: OutgoingSnapshots::new(boot << ID_BITS),
            backups: Backups::new(boot << ID_BITS),
            receiving: None,
            received: None,
            finished: None,
            bytes_since: 0,
            log_bytes: 0,
            applied_bytes: 0,
            wanted: false,
            not_before_ms: 0,
            failed_in_a_row: 0,
            receive_not_before_ms: 0,
            receives_failed_in_a_row: 0,
            discard: Vec::new(),
        }
    }

    fn next_id(&mut self) -> SnapshotId {
        self.next_id += 1;
        SnapshotId(self.next_id)
    }

    /// An entry of so many bytes was applied.
    pub(in crate::tier2) fn note_applied(&mut self, bytes: u64) {
        self.bytes_since += bytes;
        self.log_bytes += bytes;
        self.applied_bytes += bytes;
    }

    /// Where the log behind the snapshot that a restart would begin with starts, in bytes applied since the start.
    pub(in crate::tier2) fn log_position_of_current(&self) -> u64 {
        self.applied_bytes - self.log_bytes
    }

    /// Whether the machine is being walked for one of our own.
    pub(in crate::tier2) fn is_walking(&self) -> bool {
        self.making.as_ref().is_some_and(|making| !making.has_digest())
    }

    /// Of our own that is being made or waits to be confirmed.
    pub(in crate::tier2) fn own_index(&self) -> Option<u64> {
        let making = self.making.as_ref().map(OwnSnapshot::index);
        making.or(self.unconfirmed.as_ref().map(|waiting| waiting.meta.at.index))
    }

    /// A majority has come to the digest of the records of our own.
    pub(in crate::tier2) fn confirm(&mut self, index: u64) {
        if let Some(making) = self.making.as_mut().filter(|making| making.index() == index) {
            making.confirm();
        }
        if let Some(waiting) = self.unconfirmed.as_mut().filter(|waiting| waiting.meta.at.index == index) {
            waiting.is_confirmed = waiting.at_checkpoint;
        }
    }

    /// The disk did not take our last one.
    pub(in crate::tier2) fn has_failed(&self) -> bool {
        self.failed_in_a_row > 0
    }

    /// Whether a stored one waits to be confirmed.
    pub(in crate::tier2) fn has_unconfirmed(&self) -> bool {
        self.unconfirmed.is_some()
    }

    /// Whether there is work that need not wait for anything.
    pub(in crate::tier2) fn wants_turn(&self, config: &NodeConfig) -> bool {
        self.making.as_ref().is_some_and(|making| making.can_go_on(config.snapshot_window_bytes))
    }

    /// Of the snapshot that is being made, or waits to be confirmed.
    pub(in crate::tier2) fn written_bytes(&self) -> u64 {
        let stored = self.unconfirmed.as_ref().map_or(0, |waiting| waiting.meta.size_bytes);
        self.making.as_ref().map_or(stored, OwnSnapshot::written_bytes)
    }

    fn discard_after(&mut self, id: SnapshotId, number: u64) {
        if id != SnapshotId(0) {
            self.discard.push((id, number));
        }
    }

    /// Deletes files whose successor is durable, unless they are still being sent or read.
    pub(in crate::tier2) fn discard_durable(&mut self, persist: &PersistQueue, ops: &mut Vec<SnapshotOp>) {
        let (outgoing, backups) = (&self.outgoing, &self.backups);
        self.discard.retain(|(id, number)| {
            let durable = persist.is_durable(*number) || mutant!(SnapshotDiscardedEarly);
            let free = durable && !outgoing.uses(*id) && !backups.uses(*id);
            if free {
                ops.push(SnapshotOp::Discard(*id));
            }
            !free
        });
    }
}

impl Node {
    /// One step of every snapshot in progress.
    pub(in crate::tier2) fn work_on_snapshots(&mut self) {
        if !mutant!(TransferNeverEnds) {
            self.drop_stalled_receiving();
        }
        self.adopt_confirmed();
        let is_single = self.is_only_voter();
        self.snapshots.backups.go_on(self.raw.store().snapshot_meta(), is_single, self.now.monotonic_ms());
        self.begin_snapshot_if_due();
        let ops = &mut self.out.snapshot_ops;
        if let Some(making) = &mut self.snapshots.making {
            if making.can_go_on(self.config.snapshot_window_bytes) {
                if let Some((index, digest)) = making.go_on(&mut self.machine, ops) {
                    self.full_digest_made(index, digest);
                }
            }
        }
        self.send_snapshots();
        self.snapshots.discard_durable(&self.persist, &mut self.out.snapshot_ops);
    }

    /// Of a node that compares with nobody. All others begin theirs at a checkpoint ([`Node::waits_for_checkpoint`]).
    fn begin_snapshot_if_due(&mut self) {
        self.snapshots.wanted |= self.raw.store().take_wanted();
        if !self.is_without_comparison() || !self.is_snapshot_due() || !self.may_begin_snapshot() {
            return;
        }
        let Ok(term) = self.raw.store().term(self.applied) else { return };
        self.begin_snapshot(LogPosition { index: self.applied, term }, false);
    }

    fn is_snapshot_due(&self) -> bool {
        let last = self.raw.store().snapshot_meta().at.index;
        let since = self.applied - last;
        let quiet = if self.machine.content_index() <= last { QUIET_ENTRIES } else { 0 };
        let is_due = since >= self.config.snapshot_entries.saturating_add(quiet)
            || self.snapshots.bytes_since >= self.config.snapshot_bytes
            || self.snapshots.wanted
            || self.snapshots.backups.wait();
        is_due && since > 0
    }

    /// A single voter, or one that has diverged.
    fn is_without_comparison(&self) -> bool {
        self.is_only_voter() || self.is_quarantined()
    }

    /// The cluster has one voter, and it is this node. Its learners have nobody who compares their state: they make no snapshots, and
    /// keep their log until they vote.
    fn is_only_voter(&self) -> bool {
        let is_voter = self.membership.get(self.config.id).is_some_and(|own| own.voter);
        is_voter && self.machine.is_single_voter()
    }

    /// Whether a snapshot begins at the next checkpoint. Its own digest is compared then: the records of the snapshot are hashed as they
    /// are written, and nobody walks twice, nor misses the digest of another because of a snapshot of its own.
    pub(in crate::tier2) fn waits_for_checkpoint(&self) -> bool {
        let is_compared = !self.machine.is_single_voter() && !self.is_quarantined();
        is_compared && self.may_begin_snapshot() && self.is_snapshot_due()
    }

    fn may_begin_snapshot(&self) -> bool {
        self.snapshots.making.is_none()
            && self.snapshots.unconfirmed.is_none()
            && !self.digests.is_walking()
            && self.snapshots.receiving.is_none()
            && self.snapshots.received.is_none()
            && self.now.monotonic_ms() >= self.snapshots.not_before_ms
    }

    /// Of the state as it is now, after the entry at this position.
    pub(in crate::tier2) fn begin_snapshot(&mut self, at: LogPosition, at_checkpoint: bool) {
        let id = self.snapshots.next_id();
        self.snapshots.bytes_since = 0;
        self.snapshots.wanted = false;
        let (membership, ops) = (&self.membership, &mut self.out.snapshot_ops);
        let making = OwnSnapshot::begin(id, at, at_checkpoint, membership, &mut self.machine, ops);
        self.snapshots.making = Some(making);
        self.metering.snapshot_begins(SnapshotStep::Write, self.config.id, self.now.monotonic_us);
    }

    fn send_snapshots(&mut self) {
        // Also while voters differ: what is sent was confirmed before, and who gets it may be the one to decide.
        if self.snapshots.outgoing.is_empty() {
            return;
        }
        let now_ms = self.now.monotonic_ms();
        for ended in self.snapshots.outgoing.stalled(now_ms, self.config.snapshot_stall_ms) {
            self.report_transfer(&ended);
        }
        let sent = self.snapshots.outgoing.go_on(
            self.raw.store().reader(),
            now_ms,
            self.config.snapshot_piece_bytes,
            self.config.snapshot_window_bytes,
            &mut self.out.send,
        );
        if let Err(error) = sent {
            self.fatal = Some(format!("a stored snapshot cannot be read: {}", error.0));
        }
    }

    pub(in crate::tier2) fn on_snapshot_ack(&mut self, from: NodeId, ack: &SnapshotAck) {
        if let Some(ended) = self.snapshots.outgoing.acked(from, ack, self.now.monotonic_ms()) {
            self.report_transfer(&ended);
        }
    }

    fn report_transfer(&mut self, ended: &TransferEnd) {
        let status = match ended.delivered {
            true => SnapshotStatus::Finish,
            false => SnapshotStatus::Failure,
        };
        let now_us = self.now.monotonic_us;
        self.metering.snapshot_ends(SnapshotStep::Send, ended.to, ended.delivered, now_us);
        match ended.delivered {
            true => tracing::info!(to = ended.to, "snapshot delivered"),
            false => tracing::warn!(
                to = ended.to,
                "a snapshot could not be sent: the peer refused it or acknowledged nothing for too long; it is sent again"
            ),
        }
        self.raw.report_snapshot(ended.to, status);
    }

    pub(in crate::tier2) fn on_snapshot_chunk(&mut self, from: NodeId, chunk: &SnapshotChunk) {
        let other = self.snapshots.receiving.as_ref().is_none_or(|receiving| receiving.is_other(from, chunk));
        if other {
            if self.snapshots.finished == Some((from, chunk.transfer)) {
                self.acknowledge(from, chunk.transfer, TransferState::Done);
                return;
            }
            if self.now.monotonic_ms() < self.snapshots.receive_not_before_ms {
                // The disk took none a moment ago. The sender asks again every second.
                return;
            }
            let is_late = |receiving: &IncomingSnapshot| receiving.is_newer_than(from, chunk);
            let is_late = self.snapshots.receiving.as_ref().is_some_and(is_late);
            // raft ignores one of an earlier term, which must not take the place of what the leader of this one sends.
            let term =
                self.snapshots.receiving.as_ref().map_or(0, IncomingSnapshot::term).max(self.raw.raft.term);
            let is_outdated = chunk.message.as_ref().is_some_and(|message| message.term < term);
            if chunk.message.is_none() || is_late || is_outdated {
                // A chunk of an unknown or dropped transfer: its sender must start over.
                self.acknowledge(from, chunk.transfer, TransferState::Failed);
                return;
            }
            let resumes = |receiving: &mut IncomingSnapshot| receiving.resume(from, chunk);
            if !self.snapshots.receiving.as_mut().is_some_and(resumes) {
                let stays =
                    |complete: &IncomingSnapshot| complete.is_complete() && !complete.is_outdated_by(chunk);
                if self.snapshots.receiving.as_ref().is_some_and(stays) {
                    // Rather an older one than none: under load there is always a newer one by the time that a large one has come.
                    self.acknowledge(from, chunk.transfer, TransferState::Failed);
                    return;
                }
                if !self.begin_receiving(from, chunk) {
                    return;
                }
            }
        }
        let Some(receiving) = &mut self.snapshots.receiving else { return };
        receiving.heard(self.now.monotonic_ms());
        if let Err(reason) = receiving.take(chunk, &mut self.out.snapshot_ops) {
            if receiving.is_of_unknown_version() {
                self.fatal = Some(format!(
                    "the snapshot that node {from} sent cannot be read: {reason}; run the release that the other members run"
                ));
                return;
            }
            tracing::warn!(from, reason, "snapshot transfer failed");
            self.metering.snapshot_ends(SnapshotStep::Receive, from, false, self.now.monotonic_us);
            let failed = receiving.failed();
            self.out.send.push((from, failed));
            self.drop_receiving();
            return;
        }
        if receiving.is_complete_without_file() {
            self.offer_received();
        } else {
            let ack = receiving.ack(self.config.snapshot_window_bytes);
            self.out.send.push((from, ack));
        }
    }

    /// A transfer of another snapshot begins. False: it is refused.
    fn begin_receiving(&mut self, from: NodeId, chunk: &SnapshotChunk) -> bool {
        self.drop_receiving();
        let id = self.snapshots.next_id();
        let (now_ms, versions) = (self.now.monotonic_ms(), self.config.versions);
        match IncomingSnapshot::begin(from, chunk, id, now_ms, versions, &mut self.out.snapshot_ops) {
            Ok(receiving) => {
                self.snapshots.receiving = Some(receiving);
                self.metering.snapshot_begins(SnapshotStep::Receive, from, self.now.monotonic_us);
                true
            }
            Err(reason) => {
                tracing::warn!(from, reason, "refusing a snapshot transfer");
                false
            }
        }
    }

    fn acknowledge(&mut self, to: NodeId, transfer: u64, state: TransferState) {
        let ack = SnapshotAck { transfer, received_bytes: 0, state };
        self.out.send.push((to, PeerMessage::SnapshotAck(ack)));
    }

    /// While a transfer is open this node makes no snapshots of its own, so none may stay open for ever.
    fn drop_stalled_receiving(&mut self) {
        let (now_ms, stall_ms) = (self.now.monotonic_ms(), self.config.snapshot_stall_ms);
        if self.snapshots.receiving.as_ref().is_some_and(|receiving| receiving.is_stalled(now_ms, stall_ms)) {
            tracing::warn!("dropping a stalled snapshot transfer");
            let from = self.snapshots.receiving.as_ref().map_or(0, IncomingSnapshot::from);
            self.metering.snapshot_ends(SnapshotStep::Receive, from, false, self.now.monotonic_us);
            self.drop_receiving();
        }
    }

    fn drop_receiving(&mut self) {
        if let Some(receiving) = self.snapshots.receiving.take() {
            if receiving.id() != SnapshotId(0) {
                self.out.snapshot_ops.push(SnapshotOp::Discard(receiving.id()));
            }
        }
    }

    pub(in crate::tier2) fn on_snapshot_progress(&mut self, id: SnapshotId, written_bytes: u64) {
        if let Some(making) = self.snapshots.making.as_mut().filter(|making| making.id() == id) {
            making.progress(written_bytes);
        }
        if let Some(receiving) = self.snapshots.receiving.as_mut().filter(|receiving| receiving.id() == id) {
            receiving.progress(written_bytes);
            let ack = receiving.ack(self.config.snapshot_window_bytes);
            self.out.send.push((receiving.from(), ack));
        }
    }

    pub(in crate::tier2) fn on_snapshot_stored(&mut self, id: SnapshotId) {
        if self.snapshots.making.as_ref().is_some_and(|making| making.id() == id) {
            self.keep_until_confirmed();
        } else if self.snapshots.receiving.as_ref().is_some_and(|receiving| receiving.id() == id) {
            self.snapshots.receives_failed_in_a_row = 0;
            self.offer_received();
        } else {
            // Dropped meanwhile.
            self.out.snapshot_ops.push(SnapshotOp::Discard(id));
        }
    }

    pub(in crate::tier2) fn on_snapshot_failed(&mut self, id: SnapshotId, reason: &str) {
        let (now_us, now_ms) = (self.now.monotonic_us, self.now.monotonic_ms());
        let most_ms = RETRY_MS.max(self.config.checkpoint_ms);
        let again_ms = |first_ms: u64, times: u32| now_ms + (first_ms << times.min(8)).min(most_ms);
        if self.snapshots.making.as_ref().is_some_and(|making| making.id() == id) {
            tracing::error!(reason, "storing a snapshot failed; it will be retried");
            // Else the machine may be at the next digest.
            let is_walking = self.snapshots.is_walking();
            match self.snapshots.making.take().filter(|_| is_walking) {
                // The others wait for the digest: the walk goes on for its own sake.
                Some(making) if making.is_at_checkpoint() => self.walk_on(making.index()),
                Some(_) => self.machine.snapshot_cancel(),
                None => {}
            }
            self.snapshots.bytes_since = self.snapshots.log_bytes;
            self.metering.snapshot_ends(SnapshotStep::Write, self.config.id, false, now_us);
            self.snapshots.not_before_ms = again_ms(RETRY_MS, self.snapshots.failed_in_a_row);
            self.snapshots.failed_in_a_row += 1;
        }
        if let Some(receiving) = self.snapshots.receiving.take_if(|receiving| receiving.id() == id) {
            tracing::error!(reason, "storing a snapshot of another node failed; it will be asked for again");
            self.metering.snapshot_ends(SnapshotStep::Receive, receiving.from(), false, now_us);
            self.snapshots.receive_not_before_ms =
                again_ms(RECEIVE_RETRY_MS, self.snapshots.receives_failed_in_a_row);
            self.snapshots.receives_failed_in_a_row += 1;
        }
    }

    /// Our own snapshot is stored. It counts once a majority has come to the digest of its own records: a state that only this node has
    /// must never be sent, nor take the place of the log it came from. A digest of another entry says nothing: what was hashed then is
    /// not what was written now.
    fn keep_until_confirmed(&mut self) {
        let Some(making) = self.snapshots.making.take() else { return };
        self.snapshots.failed_in_a_row = 0;
        self.metering.snapshot_ends(SnapshotStep::Write, self.config.id, true, self.now.monotonic_us);
        self.snapshots.unconfirmed = Some(making.into_stored());
        self.snapshot_waits();
        self.adopt_confirmed();
    }

    /// A restart begins with the confirmed snapshot, and the log behind it can go. A quarantined node takes its own as it is: nobody will
    /// ever confirm it, and with a log that only grows its disk would fill up.
    fn adopt_confirmed(&mut self) {
        let Some(StoredSnapshot { meta, at_checkpoint, is_confirmed }) = &self.snapshots.unconfirmed else {
            return;
        };
        let (is_confirmed, index) = (*is_confirmed, meta.at.index);
        let may_count = is_confirmed && self.is_digest_agreed();
        let is_alone = self.is_only_voter();
        let counts_uncompared = is_alone && !at_checkpoint || self.is_set_apart_for_good();
        if !may_count && !counts_uncompared {
            // Of a voter that is alone now: it may differ from that of a voter that was removed for this.
            let is_in_vain = !at_checkpoint || !is_confirmed && (is_alone || self.is_never_confirmed(index));
            if !self.is_quarantined() && is_in_vain {
                self.drop_unconfirmed();
            }
            return;
        }
        let Some(StoredSnapshot { meta, .. }) = self.snapshots.unconfirmed.take() else { return };
        if may_count {
            self.snapshots.backups.allow(meta.id);
        }
        self.snapshots.log_bytes = self.snapshots.bytes_since;
        let before = self.raw.store().snapshot_meta().id;
        let needed_from = self.log_needed_from(meta.at.index);
        let keep_entries = self.config.log_keep_entries;
        let compact = self.raw.mut_store().adopt_snapshot(meta.clone(), keep_entries, needed_from);
        let number = self.persist.next_number();
        tracing::info!(index = meta.at.index, bytes = meta.size_bytes, "snapshot stored");
        self.out.persist.push(PersistTask {
            number,
            snapshot: Some(meta),
            compact,
            must_sync: true,
            ..PersistTask::default()
        });
        self.persist.started(number, 0, false);
        self.snapshots.discard_after(before, number);
    }

    /// Nobody will compare it any more: what is in it may be wrong though the state is not, so another takes its place.
    fn drop_unconfirmed(&mut self) {
        let Some(StoredSnapshot { meta, .. }) = self.snapshots.unconfirmed.take() else { return };
        tracing::info!(index = meta.at.index, "no majority has compared a snapshot: another is made");
        self.snapshots.bytes_since = self.snapshots.log_bytes;
        self.out.snapshot_ops.push(SnapshotOp::Discard(meta.id));
    }

    /// From where on members need the log that are being sent a snapshot, or go on from one that they have received. Without it, a
    /// transfer that takes longer than the leader needs for its next snapshot would be followed by another, without end.
    fn log_needed_from(&mut self, snapshot_index: u64) -> Option<u64> {
        let members = self.raw.raft.prs();
        let oldest = self.snapshots.applied_bytes.saturating_sub(self.config.catch_up_bytes_max);
        let matched = |id| members.get(id).map(|progress| progress.matched);
        self.snapshots.outgoing.log_needed_from(snapshot_index, oldest, matched)
    }

    /// A received snapshot is complete and stored: raft decides whether it wants it.
    fn offer_received(&mut self) {
        let Some(receiving) = self.snapshots.receiving.take() else { return };
        let from = receiving.from();
        let Some(received) = receiving.into_received() else { return };
        let ReceivedSnapshot { transfer, message, meta, machine } = received;
        let (id, index) = (meta.id, meta.at.index);
        if self.snapshots.received.is_some() {
            // raft has taken one in this turn, and installs it at its end.
            if id != SnapshotId(0) {
                self.out.snapshot_ops.push(SnapshotOp::Discard(id));
            }
            self.metering.snapshot_ends(SnapshotStep::Receive, from, false, self.now.monotonic_us);
            self.acknowledge(from, transfer, TransferState::Failed);
            return;
        }
        self.snapshots.received = Some((meta, machine));
        let _ = self.raw.step(*message);
        self.after_raft();
        let wanted = self.raw.snap().is_some_and(|snapshot| snapshot.get_metadata().index == index);
        if !wanted {
            self.snapshots.received = None;
            if id != SnapshotId(0) {
                self.out.snapshot_ops.push(SnapshotOp::Discard(id));
            }
        }
        self.snapshots.finished = Some((from, transfer));
        self.metering.snapshot_ends(SnapshotStep::Receive, from, true, self.now.monotonic_us);
        self.acknowledge(from, transfer, TransferState::Done);
    }

    /// raft took the snapshot that was offered: machine, membership and log are replaced by it.
    pub(in crate::tier2) fn install_received(&mut self, index: u64) -> SnapshotMeta {
        let (meta, mut machine) =
            self.snapshots.received.take().expect("raft installs only a snapshot that was offered");
        assert_eq!(meta.at.index, index, "raft took another snapshot than was offered");
        if let Some(making) = self.snapshots.making.take() {
            self.out.snapshot_ops.push(SnapshotOp::Discard(making.id()));
        }
        if let Some(unconfirmed) = self.snapshots.unconfirmed.take() {
            self.out.snapshot_ops.push(SnapshotOp::Discard(unconfirmed.meta.id));
        }
        self.forget_own_digests();
        machine.set_wanted(self.machine.wanted());
        self.out.missed = true;
        self.machine = machine;
        if !mutant!(OldMembersAfterInstall) {
            self.membership = Membership::from_snapshot(&meta);
        }
        self.members_changed = true;
        self.tell_machine_members();
        // All of them are behind the snapshot: raft takes none that is not ahead of its commit index.
        self.to_apply.clear();
        self.applied = index;
        self.snapshots.bytes_since = 0;
        self.snapshots.log_bytes = 0;
        // The number the task gets in a moment.
        let before = self.raw.store().snapshot_meta().id;
        let number = self.persist.peek_number();
        self.snapshots.discard_after(before, number);
        self.raw.mut_store().install(meta.clone());
        tracing::info!(index, "snapshot installed");
        self.reconcile_pending();
        meta
    }
}
