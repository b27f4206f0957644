//! The steps of a Ready, in order. The order is the safety of the whole: see each step.

use crate::metrics::SnapshotStep;
use crate::node_api::{NodeId, PeerMessage, PersistTask};
use crate::tier2::node::Node;
use raft::eraftpb::{HardState, Message, MessageType};
use raft::Ready;
use redfence_core::mutant;

impl Node {
    pub(in crate::tier2) fn handle_ready(&mut self) {
        let mut ready = self.raw.ready();
        // 1. A leader's messages leave before its own write: followers write at the same time.
        for message in ready.take_messages() {
            self.dispatch(message);
        }
        // 2. A received snapshot takes the place of log and machine.
        let install = match ready.snapshot().is_empty() {
            true => None,
            false => Some(self.install_received(ready.snapshot().get_metadata().index)),
        };
        // 3. Entries can be read from here on, though they are not durable yet.
        let entries = ready.take_entries();
        self.raw.mut_store().append(&entries);
        self.meter_appended(&entries);
        // 4. What must be durable goes to the writer, and with it the messages that may leave only then.
        let holds_vote = self.note_hard_state(ready.hs());
        let mut after = Vec::new();
        for message in ready.take_persisted_messages() {
            match self.may_overtake(&message, holds_vote) {
                true => self.dispatch(message),
                false => after.extend(self.addressed(message)),
            }
        }
        let task = PersistTask { install, entries, after, ..PersistTask::default() };
        let written = self.hand_to_writer(task, &ready, holds_vote);
        // 5. Confirmed reads wait for their index to be applied.
        let now_ms = self.now.monotonic_ms();
        for state in ready.take_read_states() {
            self.reads.confirmed(self.pending.origin(), &state.request_ctx, state.index, now_ms);
        }
        let committed = ready.take_committed_entries();
        let number = ready.number();
        self.raw.advance_append_async(ready);
        if (!written && self.persist.nothing_to_write(number)) || mutant!(OwnAckBeforeSync) {
            self.raw.on_persist_ready(number);
        }
        // 6. Committed entries (raft gives out none that are not durable here) go to the machine.
        if !committed.is_empty() {
            self.apply_committed(committed);
        }
        self.report_applied();
        self.after_raft();
    }

    /// Tells raft how far the machine is. An installed snapshot counts only once it is durable.
    pub(in crate::tier2) fn report_applied(&mut self) {
        let log = &self.raw.raft.raft_log;
        if self.applied <= log.committed.min(log.persisted) {
            self.raw.advance_apply_to(self.applied);
        }
    }

    /// Between the installing of a snapshot and its durability raft cannot read the entries it believes to be unapplied,
    /// and would panic if it stood for election: it must neither tick nor hear of votes.
    pub(in crate::tier2) fn is_installing(&self) -> bool {
        self.raw.raft.raft_log.applied < self.raw.store().truncated_index()
    }

    /// Keeps a moved commit index for the next write. Answers whether term or vote are new.
    fn note_hard_state(&mut self, hard_state: Option<&HardState>) -> bool {
        let Some(hard_state) = hard_state else { return false };
        let written = self.raw.store().hard_state();
        let holds_vote = (hard_state.term, hard_state.vote) != (written.term, written.vote);
        self.raw.mut_store().set_hard_state(hard_state.clone());
        self.lazy_hard_state = Some(hard_state.clone());
        holds_vote
    }

    /// Answers whether a task was needed.
    fn hand_to_writer(&mut self, mut task: PersistTask, ready: &Ready, holds_vote: bool) -> bool {
        let nothing_new = task.install.is_none() && task.entries.is_empty() && !holds_vote;
        if nothing_new && (task.after.is_empty() || self.persist.is_idle()) {
            self.out.send.append(&mut task.after);
            return false;
        }
        if mutant!(HardStateFirst) {
            let (number, hard_state) = (self.persist.next_number(), self.lazy_hard_state.take());
            self.persist.started(number, 0, false);
            self.out.persist.push(PersistTask {
                number,
                hard_state,
                must_sync: true,
                ..PersistTask::default()
            });
        }
        task.number = self.persist.next_number();
        task.must_sync = !nothing_new;
        task.hard_state = self.lazy_hard_state.take();
        self.persist.started(task.number, ready.number(), holds_vote);
        self.out.persist.push(task);
        true
    }

    /// Followers' messages wait for the disk, except those that promise nothing about it: a question, and an answer to a
    /// heartbeat once the term it names is durable. A slow disk then costs no leadership.
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "raft-rs's message types: a new one waits for the disk"
    )]
    fn may_overtake(&self, message: &Message, holds_vote: bool) -> bool {
        match message.get_msg_type() {
            MessageType::MsgReadIndex => true,
            MessageType::MsgRequestVoteResponse => mutant!(VoteBeforeSync),
            MessageType::MsgAppendResponse => mutant!(AckBeforeSync),
            MessageType::MsgHeartbeatResponse => !holds_vote && self.persist.vote_is_durable(),
            _ => false,
        }
    }

    fn dispatch(&mut self, message: Message) {
        self.meter_sent(&message);
        let addressed = self.addressed(message);
        self.out.send.extend(addressed);
    }

    /// A message with its address; a snapshot becomes a transfer in pieces instead.
    #[allow(clippy::wildcard_enum_match_arm, reason = "raft-rs's message types: the others pass unchanged")]
    fn addressed(&mut self, mut message: Message) -> Option<(NodeId, PeerMessage)> {
        let to = message.to;
        match message.get_msg_type() {
            // The state of a quarantined leader must not spread.
            MessageType::MsgSnapshot if self.is_quarantined() => None,
            MessageType::MsgSnapshot => {
                // Raft spoke of the one there was at that moment; a newer may have taken its place since.
                message.set_snapshot(self.raw.store().own_snapshot());
                let meta = self.raw.store().snapshot_meta().clone();
                let log_position = self.snapshots.log_position_of_current();
                let now_ms = self.now.monotonic_ms();
                self.snapshots.outgoing.start(to, meta, Box::new(message), log_position, now_ms);
                self.metering.snapshot_begins(SnapshotStep::Send, to, self.now.monotonic_us);
                None
            }
            // Proposals are never forwarded by raft: only a leader proposes here.
            MessageType::MsgPropose => None,
            _ => Some((to, PeerMessage::Raft(Box::new(message)))),
        }
    }

    pub(in crate::tier2) fn on_persisted(&mut self, number: u64) {
        if let Some(ready) = self.persist.persisted(number) {
            self.raw.on_persist_ready(ready);
            self.report_applied();
            self.after_raft();
        }
        self.snapshots.discard_durable(&self.persist, &mut self.out.snapshot_ops);
    }
}
