//! Requests of this node's clients, and of followers' clients at the leader, on their way into the log.

pub(super) mod batching;
pub(super) mod heavy;
pub(super) mod pending;
pub(super) mod reads;
pub(super) mod staging;

use crate::metrics::Queue;
use crate::node_api::{Forward, Forwarded, NodeId, OwnedQuery, PeerMessage, Read, Submit, Ticket};
use crate::tier2::node::Node;
use crate::tier2::refusals;
use crate::tier2::requests::pending::{OverdueRequest, TimeoutOutcome, WithdrawOutcome};
use crate::tier2::requests::reads::{count_reply, ReadyRead};
use crate::tier2::requests::staging::{PushedForward, StageLimits};
use bytes::Bytes;
use redfence_core::limits::{PEER_FRAME_BYTES_MAX, REQUEST_BYTES_MAX};
use redfence_core::machine::{version, Command};
use redfence_core::mutant;
use redfence_core::reply::Reply;
use redfence_core::types::{RequestId, SessionId};

/// Commands in one forwarded message.
const FORWARD_COMMANDS: usize = 2_048;
/// Bytes in one forwarded message, unless a single command is larger.
const FORWARD_BYTES: usize = 256 << 10;
/// A batch ends with the command that reaches its size, so it is larger by one command at most.
const _: () = assert!(FORWARD_BYTES + REQUEST_BYTES_MAX + 64 * FORWARD_COMMANDS < PEER_FRAME_BYTES_MAX);
/// CPU time for the reads of one turn, and after how many reads it is checked.
const READS_CPU_US_MAX: u64 = 15_000;
const READS_PER_LOOK: usize = 8;
/// By how much the ways of two stamps to this node usually differ.
const STAMP_JITTER_MS_MAX: u64 = 5;
/// Machine work for the reads of one turn; checked after every read.
const READS_WORK_MAX: u64 = 200_000;
/// How long the node tries to get most commands of its own into the log.
const OWN_TIMEOUT_MS: u64 = 30_000;
/// Sessions in one batched keep-alive.
const TOUCH_IDS_MAX: usize = 8_192;

impl Node {
    pub(super) fn on_submit(&mut self, submit: Submit) {
        let full = self.pending.unapplied_len() >= self.config.pending_requests_max
            || self.pending.unapplied_bytes() + submit.blob.len() > self.config.pending_bytes_max
            || (submit.wait_ms > 0 && self.pending.placed_len() >= self.config.waits_max);
        if full {
            self.metering.metrics().queue_full(Queue::Requests).increment();
        }
        let refusal = self.client_refusal().or_else(|| full.then(refusals::queue_full));
        match refusal.or_else(|| self.version_refusal_of_client(&submit.blob)) {
            Some(refusal) => self.out.replies.push((submit.ticket, refusal)),
            None => {
                self.renew_outside_log(&submit.blob);
                self.take_in(submit);
            }
        }
    }

    /// A planted bug, see `redfence_core::mutants`.
    fn renew_outside_log(&mut self, blob: &[u8]) {
        if mutant!(RenewOutsideLog) && self.is_leader() {
            if let Some(renew @ Command::Renew { .. }) = Command::decode(blob) {
                self.machine.apply(self.machine.stamp(), None, renew, &mut Default::default());
            }
        }
    }

    pub(super) fn on_read(&mut self, read: Read) {
        if let OwnedQuery::Here(query) = &read.query {
            self.out.replies.push((read.ticket, query.ask(&self.machine, 0)));
            return;
        }
        let full = self.reads.len() >= self.config.reads_max
            || self.reads.bytes() + read.query.bytes() > self.config.pending_bytes_max;
        if full {
            self.metering.metrics().queue_full(Queue::Requests).increment();
        }
        match self.client_refusal().or_else(|| full.then(refusals::queue_full)) {
            Some(refusal) => self.out.replies.push((read.ticket, refusal)),
            None => self.reads.add(read, self.now.monotonic_ms()),
        }
    }

    /// The error for new requests while this node accepts none.
    pub(super) fn refusal(&self) -> Option<Reply> {
        if self.stopping.is_some() {
            Some(refusals::stopping())
        } else if self.removed {
            Some(refusals::removed())
        } else if self.is_quarantined() {
            Some(refusals::quarantined())
        } else {
            None
        }
    }

    /// The same for clients: operators are still served where the replicas differ, because only they can end it.
    fn client_refusal(&self) -> Option<Reply> {
        self.refusal().or_else(|| {
            if self.has_no_majority() {
                Some(refusals::no_equal_majority())
            } else if self.is_log_unconfirmed() {
                Some(refusals::log_unconfirmed())
            } else {
                None
            }
        })
    }

    pub(super) fn on_cancel(&mut self, ticket: Ticket) {
        self.grant_delivery.cancel(ticket);
        if self.call_off_heavy(ticket) {
            return;
        }
        if let Some(seq) = self.pending.cancel(ticket) {
            self.cancel_in_log(seq);
        }
    }

    pub(super) fn on_withdraw(&mut self, ticket: Ticket) {
        if self.call_off_heavy(ticket) {
            self.out.replies.push((ticket, Reply::NilArray));
            return;
        }
        match self.pending.withdraw(ticket) {
            WithdrawOutcome::NeverSent => self.out.replies.push((ticket, Reply::NilArray)),
            WithdrawOutcome::CancelInLog(seq) => self.cancel_in_log(seq),
            WithdrawOutcome::Unknown => {}
        }
    }

    pub(super) fn cancel_in_log(&mut self, seq: u64) {
        let request = RequestId { origin: self.pending.origin(), seq };
        self.submit_own(&Command::Cancel { request });
    }

    /// `grace_ms` is this node's own flag: it counts until the cluster's settings are founded.
    pub(super) fn on_orphaned(&mut self, ids: &[SessionId], grace_ms: u64, heard_index: u64) {
        let settings = self.machine.settings();
        let grace_ms = if settings.founded { settings.session_grace_ms } else { grace_ms };
        let now_ms = self.now.monotonic_ms();
        for ids in ids.chunks(TOUCH_IDS_MAX) {
            // Nobody else ends these sessions before their ttl, which may be a year: also after a long outage it is said.
            let has_room = self.pending.unapplied_bytes() <= self.config.pending_bytes_max / 2;
            let deadline_ms = if has_room { u64::MAX } else { now_ms + OWN_TIMEOUT_MS };
            // It may come long after somebody else has taken the session over: it says from when it is.
            let is_known = self.machine.cluster_version() >= version::SECOND;
            let heard_index = is_known.then(|| heard_index.min(self.machine.entry_index()));
            let command =
                Command::SessionsOrphan { ids: ids.iter().copied().collect(), grace_ms, heard_index };
            self.pending.submit_own(encoded(&command), now_ms, deadline_ms);
        }
    }

    /// Submits the session keep-alives received since the last time as one command.
    pub(super) fn touch_sessions(&mut self) {
        if self.touched.is_empty() || self.now.monotonic_ms() < self.touch_due_ms {
            return;
        }
        self.touch_due_ms = self.now.monotonic_ms() + self.config.touch_interval_ms;
        let touched: Vec<SessionId> = std::mem::take(&mut self.touched).into_iter().collect();
        self.submit_touches(&touched);
    }

    /// This node has told its clients of sessions that it has applied. One that is not there has ended, or is being opened.
    pub(super) fn note_absent_sessions(&mut self, ids: &[SessionId]) {
        let absent = ids.iter().filter(|id| !self.machine.has_session(**id));
        self.out.absent_sessions.extend(absent);
    }

    pub(super) fn submit_touches(&mut self, ids: &[SessionId]) {
        for ids in ids.chunks(TOUCH_IDS_MAX) {
            self.submit_own(&Command::SessionsTouch { ids: ids.iter().copied().collect() });
        }
    }

    pub(super) fn submit_own(&mut self, command: &Command<'_>) -> u64 {
        let now_ms = self.now.monotonic_ms();
        self.pending.submit_own(encoded(command), now_ms, now_ms + OWN_TIMEOUT_MS)
    }

    /// Ends requests that are past their deadline, and retries reads without an answer.
    pub(super) fn time_out(&mut self) {
        let now_ms = self.now.monotonic_ms();
        if now_ms < self.leader_tasks_due_ms {
            return;
        }
        for overdue in self.pending.overdue(now_ms) {
            self.give_up(&overdue);
        }
        let has_leader = self.leader() != 0;
        self.give_up_heavy(now_ms, if has_leader { refusals::heavy_waited } else { refusals::no_quorum });
        self.give_up_held_back(now_ms);
        for ticket in self.reads.overdue(now_ms) {
            self.out.replies.push((ticket, refusals::no_quorum()));
        }
        if !mutant!(ReadNotAskedAgain) {
            self.reads.retry_overdue(now_ms, self.config.read_retry_ms);
        }
    }

    pub(super) fn give_up(&mut self, overdue: &OverdueRequest) {
        if overdue.cancel {
            self.cancel_in_log(overdue.seq);
        }
        let reply = match overdue.verdict {
            TimeoutOutcome::NeverSent => refusals::no_quorum(),
            TimeoutOutcome::Unknown if mutant!(DefiniteErrorAfterSending) => refusals::no_quorum(),
            TimeoutOutcome::Unknown => refusals::indeterminate(),
        };
        if let Some(ticket) = overdue.ticket {
            self.out.replies.push((ticket, reply));
        }
    }

    /// Hands requests to the leader: to the local staging queue, or to the leading node in one or a few messages.
    pub(super) fn route_requests(&mut self) {
        self.admit_heavy();
        if self.leader() == 0 || self.removed {
            return;
        }
        if !self.origin_live {
            self.announce_start();
            return;
        }
        match self.is_leader() {
            true => {
                while let Some(seq) = self.pending.next_unsent() {
                    self.stage.push_own(seq, &self.machine, &self.pending, self.now.monotonic_us);
                }
            }
            false => {
                self.pending.go_back_if_due(self.now.monotonic_ms(), self.config.resend_ms);
                while self.forward_batch() {}
            }
        }
    }

    /// Requests in flight to an unreachable leader may be lost.
    pub(super) fn on_unreachable(&mut self, peer: NodeId) {
        self.raw.report_unreachable(peer);
        self.meter_unreachable(peer);
        self.versions.connection_lost(peer);
        if peer == self.leader() {
            self.pending.leader_unreachable(self.now.monotonic_ms());
        }
    }

    /// The machine accepts no command of this incarnation before its `OriginStart`.
    fn announce_start(&mut self) {
        if self.now.monotonic_ms() < self.origin_start_due_ms || self.is_stopping() {
            return;
        }
        self.origin_start_due_ms = self.now.monotonic_ms() + self.config.resend_ms;
        self.send_unnumbered(&Command::OriginStart { origin: self.pending.origin() });
    }

    /// Sends a command without a sequence number to the log. It may be lost; the caller checks for its effect.
    pub(super) fn send_unnumbered(&mut self, command: &Command<'_>) {
        let blob = encoded(command);
        match self.is_leader() {
            true => self.stage.push_unnumbered(blob),
            false => {
                let commands = vec![Forwarded { seq: staging::UNNUMBERED, connection: 0, blob }];
                self.send_forward(0, commands);
            }
        }
    }

    /// Sends one message's worth of requests to the leader. False when none is left.
    fn forward_batch(&mut self) -> bool {
        let mut commands = Vec::new();
        let mut bytes = 0;
        while commands.len() < FORWARD_COMMANDS && bytes < FORWARD_BYTES {
            let Some(command) = self.pending.next_to_forward() else { break };
            bytes += command.blob.len();
            commands.push(command);
        }
        let Some(first) = commands.first() else { return false };
        let prev = self.pending.unsettled_before(first.seq);
        self.pending.await_leader(self.now.monotonic_ms(), self.config.resend_ms);
        self.send_forward(prev, commands);
        true
    }

    fn send_forward(&mut self, prev: u64, commands: Vec<Forwarded>) {
        let forward = Forward {
            origin: self.pending.origin(),
            term: self.raw.raft.term,
            prev,
            acked_below: self.pending.acked_below(),
            commands,
        };
        self.out.send.push((self.leader(), PeerMessage::Forward(forward)));
    }

    /// A batch forwarded by a follower. It is dropped if this node does not lead in its term, the queue is full, or a batch before
    /// it is missing: the follower sends it again.
    pub(super) fn on_forward(&mut self, mut forward: Forward) {
        let is_of_clients = || forward.commands.iter().any(|command| command.seq != staging::UNNUMBERED);
        // Without an equal majority only reports are taken, which may end it.
        let refuses = self.is_quarantined() || (self.has_no_majority() && is_of_clients());
        let takes = self.is_leader() && forward.term == self.raw.raft.term && !refuses;
        if takes && self.refuse_unknown(&mut forward) {
            let limits = StageLimits {
                commands: self.config.staged_commands_max,
                bytes: self.config.staged_bytes_max,
            };
            let pushed = self.stage.push_forwarded(forward, &limits, &self.machine, self.now.monotonic_us);
            if pushed == PushedForward::Full {
                self.metering.metrics().queue_full(Queue::Staged).increment();
            }
        }
    }

    /// Starts one ReadIndex round for all waiting reads. Not on a leader without a committed entry in its term: raft would silently drop it.
    pub(super) fn ask_reads(&mut self) {
        let deaf = self.is_leader() && !self.raw.raft.commit_to_current_term();
        if self.leader() == 0 || deaf || self.removed {
            return;
        }
        if let Some(name) = self.reads.open_round(self.pending.origin(), self.now.monotonic_ms()) {
            if mutant!(ReadWithoutRound) || (mutant!(LeaderReadsAlone) && self.is_leader()) {
                self.reads.confirmed(self.pending.origin(), &name, 0, self.now.monotonic_ms());
                self.answer_reads();
                return;
            }
            self.raw.read_index(name);
        }
    }

    pub(super) fn answer_reads(&mut self) {
        let applied = if mutant!(ReadBeforeApply) { u64::MAX } else { self.applied };
        // Most turns have no read to answer, and the clock below costs a system call.
        if !self.reads.has_ready(applied) && !self.reads.has_held() {
            return;
        }
        let late_ms = self.since_last_stamp_ms();
        let (now_ms, logical_ms) = (self.now.monotonic_ms(), self.machine.logical_ms() + late_ms);
        let began_us = self.cpu.thread_us();
        let worked = self.machine.work_total();
        let mut answered = 0;
        loop {
            let held = self.reads.next_held(&self.machine, now_ms);
            let has_waited = held.is_some();
            let Some(read) = held.or_else(|| self.reads.next_ready(applied)) else { break };
            let is_early = self.reads.is_behind_held(&read)
                || (self.reads.may_hold() && read.query.meets_ending(&self.machine, logical_ms));
            if is_early && !has_waited {
                self.reads.hold(read, logical_ms, now_ms);
                continue;
            }
            if read.is_deferred() {
                self.out.deferred.push((read.ticket, read.query));
                continue;
            }
            let ReadyRead { ticket, query, account } = read;
            if let Some(walk) = query.keys_walk() {
                self.reads.begin_walk(ticket, walk, account);
                continue;
            }
            let reply = if let OwnedQuery::Backup(request) = query {
                self.answer_backup(request)
            } else {
                self.ask(&query, late_ms)
            };
            let reply = count_reply(account.as_ref(), reply);
            self.out.replies.push((ticket, reply));
            answered += 1;
            // The rest is answered next turn, after new messages and requests were read.
            if self.machine.work_total().wrapping_sub(worked) > READS_WORK_MAX {
                break;
            }
            let is_time_to_look =
                matches!(query, OwnedQuery::Script { .. }) || answered % READS_PER_LOOK == 0;
            if is_time_to_look && self.cpu.thread_us().saturating_sub(began_us) >= READS_CPU_US_MAX {
                break;
            }
        }
    }
}

impl Node {
    /// A stamp was applied. Those that took longer to arrive than others do not set this node's idea of the logical clock back, or
    /// the time left of a key would rise.
    pub(super) fn note_stamp_applied(&mut self, expected_ms: u64) {
        let ahead_ms = expected_ms.saturating_sub(self.machine.logical_ms());
        let kept_ms = if ahead_ms <= STAMP_JITTER_MS_MAX { ahead_ms } else { 0 };
        self.stamp_applied_at_ms = self.now.monotonic_ms().saturating_sub(kept_ms).max(1);
    }

    /// Logical time that has gone by since the newest applied stamp: the leader knows it, others look at their own clock.
    pub(super) fn since_last_stamp_ms(&self) -> u64 {
        match self.clock.logical_ms() {
            Some(logical_ms) => logical_ms.saturating_sub(self.machine.logical_ms()),
            // Nothing applied since start-up: the age of the snapshot's clock is unknown.
            None if self.stamp_applied_at_ms == 0 => 0,
            None => self.now.monotonic_ms().saturating_sub(self.stamp_applied_at_ms),
        }
    }
}

pub(super) fn encoded(command: &Command<'_>) -> Bytes {
    let mut bytes = Vec::new();
    command.encode(&mut bytes);
    bytes.into()
}
