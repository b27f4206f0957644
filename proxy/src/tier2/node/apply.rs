//! Applies committed entries to the machine, and delivers the replies of this node's own clients.

use crate::node_api::wire::{is_without_groups, CONF_CHANGE};
use crate::node_api::ClientKeyAccess;
use crate::tier2::node::Node;
use crate::tier2::refusals;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeV2, Entry, EntryType};
use redfence_core::machine::{self, Fate};
use redfence_core::mutant;
use redfence_core::types::RequestId;

/// Work of entries applied in one turn (see `redfence_core::machine::work`), and their bytes with those of the replies to this node's
/// clients. One entry more may begin.
const TURN_WORK_MAX: u64 = 400_000;
const TURN_BYTES_MAX: usize = 1 << 20;
/// Bytes of committed entries that raft hands out at once, where none are left of those before.
pub(in crate::tier2) const COMMITTED_BYTES_PER_READY: u64 = 4 << 20;

/// What was applied in this turn, and the CPU time of scripts that were run in it.
#[derive(Debug, Default)]
pub(in crate::tier2) struct TurnLoad {
    work: u64,
    bytes: usize,
    pub(in crate::tier2) scripts_us: u64,
}

impl Node {
    /// Committed entries wait here for their turn: see [`Node::apply_some`].
    pub(in crate::tier2) fn apply_committed(&mut self, entries: Vec<Entry>) {
        self.to_apply.extend(entries);
        self.apply_some();
    }

    /// Applies what is committed, but no more in one turn than keeps heartbeats and acknowledgements in time; the next turn
    /// follows at once. While something is left raft hands out single entries, so that what waits stays small.
    pub(in crate::tier2) fn apply_some(&mut self) {
        if self.to_apply.is_empty() {
            return;
        }
        let began_us = self.stopwatch_us();
        while !self.is_turn_full() {
            let Some(entry) = self.to_apply.pop_front() else { break };
            let worked = self.machine.work_total();
            if let Err(reason) = self.apply_one(&entry) {
                return self.stop_at_entry(entry.index, &reason);
            }
            self.turn_load.work += self.machine.work_total().wrapping_sub(worked);
            self.turn_load.bytes += entry.data.len();
        }
        self.meter_apply(began_us);
        let committed_bytes = if self.to_apply.is_empty() { COMMITTED_BYTES_PER_READY } else { 1 };
        self.raw.raft.set_max_committed_size_per_ready(committed_bytes);
        self.note_queued();
        self.check_origin();
        self.compare_new_digests();
        let (entries_max, bytes_max) = (self.config.cache_entries_max, self.config.cache_bytes_max);
        let settled = self.applied.min(self.raw.raft.raft_log.persisted);
        self.raw.mut_store().trim_cache(settled, entries_max, bytes_max);
    }

    fn apply_one(&mut self, entry: &Entry) -> Result<(), String> {
        assert_eq!(entry.index, self.applied + 1, "an entry was left out");
        match entry.get_entry_type() {
            // An empty one is a new leader's first, or a change of membership that raft refused.
            EntryType::EntryNormal if entry.data.is_empty() => {}
            EntryType::EntryNormal if mutant!(FollowersDoNotApply) && !self.is_leader() => {}
            EntryType::EntryNormal => {
                let differing = self.machine.differing_effects();
                let expected_ms = self.machine.logical_ms() + self.since_last_stamp_ms();
                let served = self.applying.tally.served;
                let applied = self.machine.apply_entry_at(entry.index, &entry.data, &mut self.applying);
                applied.map_err(|error| error.to_string())?;
                if self.machine.differing_effects() != differing {
                    self.warn_of_differing_effects(entry.index);
                }
                self.note_point(entry.term);
                self.diverge(entry.index);
                self.note_stamp_applied(expected_ms);
                self.meter_applied(entry.index, self.applying.tally.served.wrapping_sub(served));
                self.deliver_results(self.was_here_at_start(entry));
            }
            EntryType::EntryConfChangeV2 => self.apply_change(entry)?,
            // Never proposed by this release.
            EntryType::EntryConfChange => {
                return Err("a ConfChange v1, which this release does not support".to_owned());
            }
        }
        self.applied = entry.index;
        self.snapshots.note_applied(entry.data.len() as u64);
        Ok(())
    }

    /// Planted bugs, see `redfence_core::mutants`: this replica is not like the others any more.
    #[cfg(feature = "mutants")]
    fn diverge(&mut self, index: u64) {
        use redfence_core::machine::digest::Divergence;
        let id = self.config.id;
        let is_time = index == 40;
        if is_time && mutant!(FollowerDiverges) && !self.is_leader() && id == 2
            || is_time && mutant!(LeaderDiverges) && self.is_leader()
            || is_time && mutant!(TwoDiverge) && id <= 2
        {
            self.machine.plant_divergence(Divergence::Answer(id));
        }
        if is_time && mutant!(StateDiverges) && id == 2 {
            self.machine.plant_divergence(Divergence::State(1));
        }
    }

    #[cfg(not(feature = "mutants"))]
    fn diverge(&mut self, _: u64) {}

    /// Whether this turn has applied enough.
    pub(in crate::tier2) fn is_turn_full(&self) -> bool {
        self.turn_load.work >= TURN_WORK_MAX || self.turn_load.bytes >= TURN_BYTES_MAX
    }

    /// An entry that this release does not know: skipping it would be divergence. `applied` stays before it, so that a
    /// release that knows it continues from here.
    fn stop_at_entry(&mut self, index: u64, reason: &str) {
        let cure = "run the release that the other members run";
        self.fatal =
            Some(format!("log entry {index} cannot be applied: {reason}; nothing of it was applied; {cure}"));
    }

    /// Whether an entry stood in the log when the node started. One that took the place of such an entry has a later term.
    fn was_here_at_start(&self, entry: &Entry) -> bool {
        entry.index <= self.log_at_start.index && entry.term <= self.log_at_start.term
    }

    /// Replies go only to clients of this node: every node answers its own. Events and messages go to the listeners of every
    /// node, at most once: an entry that is applied again after a restart publishes nothing.
    fn deliver_results(&mut self, is_replayed: bool) {
        // Before the replies: answering removes the requests from the pending table.
        self.deliver_key_accesses();
        self.deliver_admin_acts();
        let origin = self.pending.origin();
        let mut others_wait = false;
        let mut replies = std::mem::take(&mut self.applying.replies);
        for (id, reply) in replies.drain(..) {
            match id.origin == origin {
                true => {
                    // Replies leave at the end of the turn.
                    self.turn_load.bytes += reply.weight();
                    self.answer_own(id.seq, reply);
                }
                false => others_wait = true,
            }
        }
        self.applying.replies = replies;
        if others_wait {
            self.note_remote_waiters();
        }
        self.out.garbage.append(&mut self.applying.garbage);
        if is_replayed || self.is_quarantined() {
            self.applying.clear();
        }
        self.out.events.append(&mut self.applying.events);
        self.out.losses.append(&mut self.applying.losses);
        self.out.published.append(&mut self.applying.published);
    }

    fn deliver_admin_acts(&mut self) {
        let (origin, pending) = (self.pending.origin(), &self.pending);
        let own = self.applying.admin_acts.drain(..).filter(|(id, _)| id.origin == origin);
        self.out.admin_acts.extend(own.filter_map(|(id, act)| Some((pending.ticket_of(id.seq)?, act))));
    }

    fn deliver_key_accesses(&mut self) {
        let origin = self.pending.origin();
        let pending = &self.pending;
        let ticket = |id: RequestId| pending.ticket_of(id.seq).filter(|_| id.origin == origin);
        for noted in self.applying.key_accesses.drain(..) {
            self.out.key_accesses.extend(match noted {
                machine::KeyAccess::Read { by, key } => {
                    ticket(by).map(|by| ClientKeyAccess::Read { by, key })
                }
                machine::KeyAccess::Changed { by, key } => {
                    Some(ClientKeyAccess::Changed { by: by.and_then(ticket), key })
                }
                machine::KeyAccess::Flushed => Some(ClientKeyAccess::Flushed),
            });
        }
    }

    /// Requests the machine has put into a queue: "queued" is no answer, but they need not be sent again.
    fn note_queued(&mut self) {
        let origin = self.pending.origin();
        for seq in self.pending.may_be_queued() {
            if self.machine.is_waiting(RequestId { origin, seq }) {
                self.now_queued(seq);
            }
        }
    }

    fn now_queued(&mut self, seq: u64) {
        if let Some(submitted_ms) = self.pending.submitted_ms(seq) {
            self.note_stamp_of(submitted_ms);
        }
        if self.pending.queued(seq) {
            self.cancel_in_log(seq);
        }
    }

    fn apply_change(&mut self, entry: &Entry) -> Result<(), String> {
        let mut change = ConfChangeV2::default();
        if !is_without_groups(&entry.data, &CONF_CHANGE) {
            return Err("a change of membership cannot be read".to_owned());
        }
        if let Err(error) = change.merge_from_bytes(&entry.data) {
            return Err(format!("a change of membership cannot be read ({error})"));
        }
        match self.raw.apply_conf_change(&change) {
            Ok(conf_state) => {
                self.membership.applied(&change, conf_state, entry.index);
                self.members_changed = true;
                self.tell_machine_members();
                self.versions.members_changed();
                self.removed = self.membership.get(self.config.id).is_none();
                if self.removed && self.is_leader() {
                    // raft 0.7.0 lets a removed leader go on, and panics when it next counts its own acknowledgement.
                    self.stand_back();
                }
                tracing::info!(entry.index, members = ?self.membership.list(), "membership changed");
            }
            // Decided by the configuration alone, which is the same on every node.
            Err(error) => tracing::error!(entry.index, %error, "membership change refused by raft"),
        }
        Ok(())
    }

    /// Checks whether the machine still accepts commands of this incarnation. A node that was declared gone while it was running
    /// (paused, partitioned) restarts under a new incarnation: nothing of the old one will be applied any more, so requests
    /// that are not applied yet never will be, and are safe to submit again. Also true if a delayed `OriginStart` from a
    /// previous incarnation was applied after ours, possibly in the same entry, so that we never saw our own as live.
    pub(in crate::tier2) fn check_origin(&mut self) {
        let origin = self.pending.origin();
        let state = self.machine.origin_state(origin.node);
        let live = state.is_some_and(|state| state.origin == origin && !state.gone);
        let lost = state.is_some_and(|state| state.origin == origin && state.gone);
        let gone = lost || self.machine.is_past(origin);
        if live || !(gone || self.origin_live) {
            self.origin_live = live;
            return;
        }
        self.origin_live = false;
        if self.is_stopping() {
            self.released_by_shutdown();
            return;
        }
        let restart_incarnation = self.next_origin();
        tracing::warn!(
            ?origin,
            ?restart_incarnation,
            "this node was declared gone: its waiting requests were removed from lock queues; continuing under a new incarnation"
        );
        self.origin_start_due_ms = 0;
        self.stage.clear();
        self.forget_scripts();
        for ticket in self.pending.restart_incarnation(restart_incarnation) {
            self.out.replies.push((ticket, refusals::no_quorum()));
        }
    }

    /// After a snapshot replaced entries this node never applied: requests answered in them are answered from the machine's
    /// remembered replies; where those are gone the outcome is unknown. All others were not applied, and are sent again.
    pub(in crate::tier2) fn reconcile_pending(&mut self) {
        let origin = self.pending.origin();
        if mutant!(PendingDeniedAfterInstall) {
            let tickets = self.pending.drain().into_iter().filter_map(|overdue| overdue.ticket);
            self.out.replies.extend(tickets.map(|ticket| (ticket, refusals::no_quorum())));
        }
        let mut seqs = self.pending.sent_seqs();
        seqs.extend(self.pending.placed_seqs());
        for seq in seqs {
            let placed = !self.pending.is_unapplied(seq);
            match self.machine.fate(RequestId { origin, seq }) {
                Fate::Waiting => self.now_queued(seq),
                Fate::Answered(reply) => self.answer_own_from_memory(seq, reply),
                Fate::Unmet if !placed => {}
                Fate::Unknown if self.pending.say_again(seq) => {}
                Fate::Unmet | Fate::Unknown => {
                    if let Some(overdue) = self.pending.give_up(seq) {
                        self.give_up(&overdue);
                    }
                }
            }
        }
        self.pending.leader_changed();
        self.check_origin();
    }
}
