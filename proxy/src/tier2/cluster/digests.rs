//! Digests of this node: reported through the log, compared with what a majority of voters reports, and what follows from it.
//!
//! The comparison itself is in the machine ([`redfence_core::machine::digest`]), and the same on every node. Here is what a node
//! does about it:
//!
//! - It reports its value for the newest point until the report is in the log. A report that is lost costs nothing: the next point
//!   covers it.
//! - Where a majority agrees on another value than its own, it quarantines itself: it steps down, serves nobody, never campaigns,
//!   and goes on acknowledging the log. A mark in the data directory keeps it so over restarts.
//! - Where voters differ and no majority decides it, it serves nobody until one does.
//! - As leader it asks for a point where entries stay without one, and now and then for a full digest.
//! - Where a snapshot of its own is due it asks for a full digest to begin it at, whether it leads or not; and again, while one waits
//!   to be confirmed.
//!
//! Rows of reports are few, and each full digest that is asked for takes the place of an old one. So nobody asks for the next before
//! a majority agrees on the last, or has had time to: twice as long after each that was in vain, because some node may be far slower.
//! A node that is slower than a majority remembers what that majority came to. Where one was in vain, the leader asks again as soon as
//! another voter is back.
//!
//! # Caveats
//!
//! While a node writes the records of a snapshot it makes no full digest but theirs: it sits that round out. While the file is synced and
//! read back it takes part: nodes whose disks differ would else miss each other's rounds for ever.

use crate::node_api::{DigestStatus, LogPosition, NodeId, PersistTask};
use crate::tier2::node::Node;
use crate::tier2::refusals;
use crate::tier2::requests::encoded;
use raft::StateRole;
use redfence_core::machine::digest::{
    DigestCommand, DigestKind, DigestSlice, MemberLife, Standing, POINT_MS,
};
use redfence_core::machine::Command;
use std::collections::VecDeque;

/// A full digest is also asked for after so many entries.
const FULL_ENTRIES: u64 = 1_000_000;
/// Own values that wait to be compared.
const OWN_VALUES_MAX: usize = 24;
/// How long voters may differ before nobody is served: by then every voter that is up has reported, unless it is still at work on a
/// full digest ([`OwnDigests::slow_walk_ms`]).
const UNDECIDED_MS_MAX: u64 = 1_000;
/// A voter may be so many times slower than this node.
const SLOW_WALK: u64 = 4;
/// And yet nobody waits longer for it than this, while voters differ.
const SLOW_WALK_MS_MAX: u64 = 30_000;
/// A full digest is asked for again after this part of the usual time between two, and that of a slow walk.
const FULL_AGAIN_PART: u64 = 30;
/// After each that was in vain twice as long, up to so many times the usual time between two: who asks again while another node still
/// walks is alone, and then alone again when that one asks. Four are waited for side by side.
const FULL_AGAIN_MOST: u64 = 2;
/// After so many in vain it is no passing trouble of the network or of disks, and up to so many times.
const FULL_TROUBLED: u32 = 12;
const FULL_AGAIN_MOST_TROUBLED: u64 = 10;
/// Who is not the first to ask waits this part longer for each before it.
const ASK_TURN_PART: u64 = 4;
/// A follower waits for another part of it first.
const PATIENCE_PART: u64 = 4;
/// While voters differ, the leader asks for new reports this often.
const CONFLICT_ASK_MS: u64 = 5_000;
/// A quarantined leader hands over; after this time it steps down without a successor.
const STEP_DOWN_MS: u64 = 1_000;

#[derive(Debug, Default)]
pub(in crate::tier2) struct OwnDigests {
    /// What this node came to, until it is compared. Oldest first.
    values: VecDeque<OwnValue>,
    /// The machine's table of reports as it was when they were last compared.
    compared_at: Option<u64>,
    /// A full digest made for its own sake: the index it is of, and when its next slice is due.
    walk: Option<(u64, u64)>,
    /// Since when this node serves no more, and the index at which it differed.
    quarantine: Option<Quarantine>,
    /// Since when voters differ, as this node sees it.
    undecided_since_ms: Option<u64>,
    no_majority: bool,
    ask_due_ms: u64,
    full_due_ms: Option<u64>,
    /// From then on one is asked for because a snapshot waits for it.
    full_wanted_ms: u64,
    /// None is asked for before: the last ask may be on its way.
    full_again_ms: u64,
    /// The last full digest that was asked for, since when and until when it is waited for.
    full_index: u64,
    full_asked_ms: u64,
    full_open_until_ms: u64,
    /// How many of the last no majority had agreed on when the next was asked for, less those it had.
    full_in_vain: u32,
    /// As the leader sees it: one more asks for a full digest, if the last was in vain, but only so often.
    led_term: u64,
    led_since_ms: u64,
    voters_up: usize,
    full_owed: bool,
    owed_again_ms: u64,
    /// Since when a snapshot is due.
    due_since_ms: Option<u64>,
    /// The full digest that this node is at work on.
    under_way: Option<UnderWay>,
    /// The newest index at which a majority has come to the same full digest as this node.
    full_confirmed: u64,
    /// Of the full digest under way: by the state as it was when that began.
    slice: DigestSlice,
    /// When the full digest under way was begun, and how long the last one took: by a walk, and by the records of a snapshot.
    walk_began_ms: u64,
    walk_took_ms: u64,
    write_took_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct OwnValue {
    kind: DigestKind,
    index: u64,
    value: u64,
    report_due_ms: u64,
    /// A majority has reported the same.
    is_confirmed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Quarantine {
    index: u64,
    since_ms: u64,
    declare_due_ms: u64,
    /// The task that writes the mark. 0: it was there at the start.
    mark_number: u64,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    index: u64,
    /// What a majority came to meanwhile: its row may be gone by the time that this node is done.
    agreed: Option<u64>,
}

fn doubled(ms: u64, times: u32) -> u64 {
    ms.saturating_mul(1 << times.min(20))
}

impl OwnDigests {
    /// `quarantined`: the mark in the data directory.
    pub(in crate::tier2) fn new(quarantined: Option<u64>) -> OwnDigests {
        let quarantine =
            quarantined.map(|index| Quarantine { index, since_ms: 0, declare_due_ms: 0, mark_number: 0 });
        OwnDigests { quarantine, ..OwnDigests::default() }
    }

    /// How long a full digest may take on a node that is slower than this one.
    fn slow_walk_ms(&self) -> u64 {
        self.walk_took_ms.saturating_mul(SLOW_WALK).min(SLOW_WALK_MS_MAX)
    }

    /// After how long all nodes should be done with a full digest, and free for the next. `usual_ms`: between two.
    fn walk_again_ms(&self, usual_ms: u64) -> u64 {
        let took_ms = self.walk_took_ms.max(self.write_took_ms);
        let once_ms = usual_ms / FULL_AGAIN_PART + took_ms.saturating_mul(SLOW_WALK);
        let times =
            if self.full_in_vain > FULL_TROUBLED { FULL_AGAIN_MOST_TROUBLED } else { FULL_AGAIN_MOST };
        doubled(once_ms, self.full_in_vain).min(once_ms.max(usual_ms.saturating_mul(times)))
    }

    /// The index at which this node was found to differ.
    pub(in crate::tier2) fn quarantined_at(&self) -> Option<u64> {
        self.quarantine.map(|quarantine| quarantine.index)
    }

    pub(in crate::tier2) fn is_walking(&self) -> bool {
        self.walk.is_some()
    }

    /// When the next slice of a full digest is due.
    pub(in crate::tier2) fn wake_at_ms(&self) -> Option<u64> {
        self.walk.map(|(_, due_ms)| due_ms)
    }

    fn push(&mut self, kind: DigestKind, index: u64, value: u64) {
        self.values.push_back(OwnValue { kind, index, value, report_due_ms: 0, is_confirmed: false });
        while self.values.len() > OWN_VALUES_MAX {
            self.values.pop_front();
        }
    }
}

impl Node {
    #[must_use]
    pub fn is_quarantined(&self) -> bool {
        self.digests.quarantine.is_some()
    }

    pub(in crate::tier2) fn digest_status(&self) -> DigestStatus {
        DigestStatus {
            point_index: self.machine.last_point().0,
            confirmed_index: self.machine.confirmed_index(),
            full_index: self.machine.last_full_index(),
            quarantined_at: self.digests.quarantined_at(),
            quarantined_members: self.machine.quarantined_members() as u64,
            no_majority: self.digests.no_majority,
        }
    }

    /// Voters differ, and nobody can tell who is right.
    pub(in crate::tier2) fn has_no_majority(&self) -> bool {
        self.digests.no_majority
    }

    /// So much of the log is unconfirmed, and therefore cannot be compacted, that no more may come.
    pub(in crate::tier2) fn is_log_unconfirmed(&self) -> bool {
        // Where none waits yet, one begins as soon as the others make their digest: that is asked for at once. Where the disk takes no
        // snapshot, nobody else can help: the log grows until one is stored.
        self.snapshots.has_unconfirmed() && self.is_log_long(1)
            || self.waits_for_checkpoint() && !self.snapshots.has_failed() && self.is_log_long(2)
    }

    /// Whether the log behind the last confirmed snapshot is longer than so many times its limit.
    fn is_log_long(&self, times: u64) -> bool {
        let entries_max = self.config.unconfirmed_log_entries_max().saturating_mul(times);
        let bytes_max = || self.config.unconfirmed_log_bytes_max(self.machine.memory_used_bytes());
        self.applied > self.snapshot_index().saturating_add(entries_max)
            || self.snapshots.log_bytes > bytes_max().saturating_mul(times)
    }

    /// Whether a member is known to have diverged.
    pub(in crate::tier2) fn is_diverged(&self, id: NodeId) -> bool {
        let added_at = self.membership.get(id).map(|member| member.added_at);
        added_at.is_some_and(|added_at| self.machine.quarantined_at(id, added_at).is_some())
    }

    /// The machine must know who votes: at the start, after a change of membership, after an installed snapshot.
    pub(in crate::tier2) fn tell_machine_members(&mut self) {
        let life = |member: &crate::node_api::ClusterMember| MemberLife {
            node: member.id,
            added_at: member.added_at,
            voter: member.voter,
        };
        self.machine.set_members(self.membership.iter().map(life).collect());
    }

    /// An entry of this term was applied: if it is a point, this node's digests at it are noted.
    pub(in crate::tier2) fn note_point(&mut self, term: u64) {
        let Some(point) = self.machine.take_point() else { return };
        self.digests.push(DigestKind::Chain, point.index, point.chain);
        if point.full {
            self.begin_full(LogPosition { index: point.index, term });
        }
    }

    /// A full digest is asked for, of the state as it is now.
    fn begin_full(&mut self, at: LogPosition) {
        let now_ms = self.now.monotonic_ms();
        self.note_asked(at.index, now_ms);
        // The machine is walked for one purpose at a time: a snapshot's last pieces must not come out of a digest's walk, and the end
        // of a snapshot must not end the walk of a digest.
        if self.digests.is_walking() || self.snapshots.is_walking() {
            return;
        }
        if self.waits_for_checkpoint() {
            self.begin_snapshot(at, true);
        } else if self.machine.digest_begin() {
            self.digests.walk = Some((at.index, now_ms));
            self.digests.slice = self.machine.digest_slice();
        } else {
            return;
        }
        self.digests.walk_began_ms = now_ms;
        self.digests.under_way = Some(UnderWay { index: at.index, agreed: None });
    }

    /// From now on it is this full digest that is waited for.
    fn note_asked(&mut self, index: u64, now_ms: u64) {
        let once_ms = self.config.checkpoint_ms / FULL_AGAIN_PART;
        let is_agreed = self.digests.full_index == 0 || self.is_full_agreed(self.digests.full_index);
        if !is_agreed && now_ms < self.digests.full_asked_ms + once_ms {
            // Two nodes have asked at the same time, and who is at work on the first misses this.
            return;
        }
        let in_vain = self.digests.full_in_vain;
        self.digests.full_in_vain = match is_agreed {
            true => in_vain.saturating_sub(1),
            // Where it has not had its time, somebody else has a shorter one, or an ask came late.
            false if now_ms < self.digests.full_open_until_ms => in_vain,
            false => in_vain.saturating_add(1),
        };
        (self.digests.full_index, self.digests.full_asked_ms) = (index, now_ms);
        let turn = self.turn_to_ask();
        let in_turn = |wait_ms: u64| now_ms + wait_ms + wait_ms / ASK_TURN_PART * turn;
        self.digests.full_again_ms = in_turn(once_ms);
        self.digests.full_open_until_ms = in_turn(self.digests.walk_again_ms(self.config.checkpoint_ms));
    }

    /// Nodes that wait for the same digest ask for the next one after another: what the first asks for is for all of them, and as many
    /// asks as there are nodes would put one another out of the table. The leader is the first.
    fn turn_to_ask(&self) -> u64 {
        let own = self.config.id;
        let before = self.membership.iter().filter(|member| member.voter && member.id < own);
        if self.is_leader() {
            0
        } else {
            1 + before.count() as u64
        }
    }

    /// Whether a majority has come to the same full digest at this index.
    fn is_full_agreed(&self, index: u64) -> bool {
        let row = self.machine.digest_row(DigestKind::Full, index);
        self.machine.is_single_voter() || row.is_some_and(|row| row.agreed().is_some())
    }

    /// Whether nobody may still be at work on the last full digest.
    fn is_full_over(&self, now_ms: u64) -> bool {
        let index = self.digests.full_index;
        index == 0 || now_ms >= self.digests.full_open_until_ms || self.is_full_agreed(index)
    }

    /// This node has come to a full digest, by a walk or with a snapshot.
    pub(in crate::tier2) fn full_digest_made(&mut self, index: u64, value: u64) {
        let took_ms = self.now.monotonic_ms().saturating_sub(self.digests.walk_began_ms);
        let is_snapshot = self.snapshots.own_index() == Some(index);
        *(if is_snapshot { &mut self.digests.write_took_ms } else { &mut self.digests.walk_took_ms }) =
            took_ms;
        let agreed = self.digests.under_way.take_if(|under_way| under_way.index == index);
        if let Some(agreed) = agreed.and_then(|under_way| under_way.agreed) {
            if agreed != value {
                self.quarantine(index);
                return;
            }
            self.digests.full_confirmed = self.digests.full_confirmed.max(index);
        }
        self.digests.push(DigestKind::Full, index, value);
        // The others may have agreed meanwhile.
        self.compare_digests();
    }

    /// The snapshot whose records were hashed cannot be stored: the rest of the state is hashed without it.
    pub(in crate::tier2) fn walk_on(&mut self, index: u64) {
        let now_ms = self.now.monotonic_ms();
        self.digests.walk = Some((index, now_ms));
        self.digests.slice = self.machine.digest_slice();
        // How long the disk kept it says nothing of a walk.
        self.digests.walk_began_ms = now_ms;
    }

    /// A snapshot has taken the place of the state: what was computed on the old one says nothing any more.
    pub(in crate::tier2) fn forget_own_digests(&mut self) {
        self.digests.values.clear();
        self.digests.compared_at = None;
        self.digests.walk = None;
        self.digests.under_way = None;
        self.digests.full_index = 0;
        self.digests.full_confirmed = 0;
    }

    /// Whether a majority has come to the same full digest as this node at this very index, as far as its row is still known. Chains are
    /// not enough: states that differ may answer alike for long.
    fn is_confirmed_at(&self, index: u64) -> bool {
        let is_it = |own: &OwnValue| own.kind == DigestKind::Full && own.index == index && own.is_confirmed;
        self.digests.full_confirmed == index || self.digests.values.iter().any(is_it)
    }

    pub(in crate::tier2) fn is_digest_agreed(&self) -> bool {
        self.machine.digest_standing() == Standing::Agreed
    }

    /// Whether no majority will come to the full digest of this index any more: its row is gone, or one behind it has been agreed on.
    /// (A row that is agreed on after a later one is lost with it: the next snapshot is of a later entry.)
    pub(in crate::tier2) fn is_never_confirmed(&self, index: u64) -> bool {
        let is_gone = self.machine.digest_row(DigestKind::Full, index).is_none();
        is_gone || self.digests.full_confirmed > index
    }

    /// Whether the state of this node can reach nobody any more, not even after a restart: no majority will confirm it, and nobody needs to.
    pub(in crate::tier2) fn is_set_apart_for_good(&self) -> bool {
        let is_marked = |quarantine: Quarantine| self.persist.is_durable(quarantine.mark_number);
        self.digests.quarantine.is_some_and(is_marked) && !self.is_leader()
    }

    /// After entries were applied: nothing to do, unless a report or a point was among them.
    #[inline]
    pub(in crate::tier2) fn compare_new_digests(&mut self) {
        if self.digests.compared_at != Some(self.machine.digest_revision()) {
            self.compare_digests();
        }
    }

    /// What the voters agree on, against this node's own values.
    fn compare_digests(&mut self) {
        self.digests.compared_at = Some(self.machine.digest_revision());
        let machine = &self.machine;
        let (mut differs_at, mut full_confirmed) = (None, self.digests.full_confirmed);
        let compared = &self.metering.metrics().digests_compared;
        self.digests.values.retain_mut(|own| {
            let Some(row) = machine.digest_row(own.kind, own.index) else { return false };
            match row.agreed() {
                Some(agreed) if agreed != own.value => {
                    differs_at.get_or_insert(own.index);
                    false
                }
                Some(_) => {
                    if !std::mem::replace(&mut own.is_confirmed, true) {
                        compared.increment();
                    }
                    if own.kind == DigestKind::Full {
                        full_confirmed = full_confirmed.max(own.index);
                    }
                    true
                }
                None => true,
            }
        });
        self.digests.full_confirmed = full_confirmed;
        if let Some(under_way) = &mut self.digests.under_way {
            let row = machine.digest_row(DigestKind::Full, under_way.index);
            under_way.agreed = under_way.agreed.or(row.and_then(|row| row.agreed()));
        }
        // By the time that a snapshot is stored its row may be gone.
        if let Some(index) = self.snapshots.own_index().filter(|index| self.is_confirmed_at(*index)) {
            self.snapshots.confirm(index);
        }
        let added_at = self.membership.get(self.config.id).map(|member| member.added_at);
        let decided = added_at.and_then(|added_at| self.machine.quarantined_at(self.config.id, added_at));
        if let Some(index) = differs_at.or(decided) {
            self.quarantine(index);
        }
        self.watch_standing();
    }

    fn watch_standing(&mut self) {
        let now_ms = self.now.monotonic_ms();
        let standing = self.machine.digest_standing();
        let (index, decided) = match standing {
            Standing::Agreed => {
                if std::mem::take(&mut self.digests.no_majority) {
                    match self.is_quarantined() {
                        true => tracing::warn!("a majority of voters agrees again"),
                        false => tracing::warn!("a majority of voters agrees again: this node serves again"),
                    }
                    self.status_due_ms = 0;
                }
                self.digests.undecided_since_ms = None;
                return;
            }
            Standing::Undecided(index) => (index, false),
            Standing::NoMajority(index) => (index, true),
        };
        let since_ms = *self.digests.undecided_since_ms.get_or_insert(now_ms);
        let for_walk_ms = if self.machine.has_full_conflict() { self.digests.slow_walk_ms() } else { 0 };
        let is_late = now_ms.saturating_sub(since_ms) >= UNDECIDED_MS_MAX + for_walk_ms;
        // They differed before this node was started: it does not know for how long.
        let is_old = index <= self.log_at_start.index;
        if (decided || is_late || is_old) && !self.digests.no_majority {
            self.digests.no_majority = true;
            tracing::error!(
                index,
                "voters report different digests and no majority agrees: no node serves until one does; see the operations guide, 'Diverged replicas'"
            );
            self.refuse_everybody();
        }
    }

    /// What is due: reports, and as leader a new point.
    pub(in crate::tier2) fn work_on_digests(&mut self) {
        let now_ms = self.now.monotonic_ms();
        self.compare_digests();
        self.report_digests(now_ms);
        self.declare_quarantine(now_ms);
        if !self.is_quarantined() {
            self.ask_for_full(now_ms);
        }
        if self.is_leader() {
            match self.is_quarantined() {
                true => self.step_down(now_ms),
                false => self.ask_for_digests(now_ms),
            }
        }
    }

    /// The next slice of a full digest, if it is due.
    pub(in crate::tier2) fn walk_digest(&mut self) {
        let now_ms = self.now.monotonic_ms();
        let Some((index, _)) = self.digests.walk.filter(|(_, due_ms)| *due_ms <= now_ms) else { return };
        match self.machine.digest_step(self.digests.slice) {
            Some(value) => {
                self.digests.walk = None;
                self.full_digest_made(index, value);
            }
            None => self.digests.walk = Some((index, now_ms + self.config.digest_slice_ms)),
        }
    }

    /// Sends the newest value of each kind, again and again until it is in the log.
    fn report_digests(&mut self, now_ms: u64) {
        if self.digests.values.is_empty() || self.leader() == 0 || self.is_quarantined() || self.removed {
            return;
        }
        let Some(member) = self.membership.get(self.config.id).filter(|member| member.voter) else { return };
        let (node, added_at) = (member.id, member.added_at);
        for kind in [DigestKind::Chain, DigestKind::Full] {
            let Some(own) = self.digests.values.iter_mut().rev().find(|own| own.kind == kind) else {
                continue;
            };
            let row = self.machine.digest_row(kind, own.index);
            let is_wanted = row.is_some_and(|row| !row.has_report_of(node, added_at));
            if !is_wanted || now_ms < own.report_due_ms {
                continue;
            }
            own.report_due_ms = now_ms + self.config.resend_ms;
            let (index, value) = (own.index, own.value);
            let report = DigestCommand::Report { node, added_at, kind, index, value };
            self.send_unnumbered(&Command::Digest(report));
        }
    }

    /// A snapshot of this node as of `index` was stored, and waits to be confirmed. The leader's comes first: mostly it confirms those
    /// of the others.
    pub(in crate::tier2) fn snapshot_waits(&mut self) {
        self.digests.full_wanted_ms = self.now.monotonic_ms() + self.patience_ms();
    }

    /// How long a snapshot of this node waits for another's digest.
    fn patience_ms(&self) -> u64 {
        let (usual_ms, turn) = (self.config.checkpoint_ms, self.turn_to_ask());
        if turn == 0 {
            0
        } else {
            usual_ms / PATIENCE_PART + usual_ms / FULL_AGAIN_PART * turn
        }
    }

    /// Asks for the full digest that a snapshot of this node begins at, or waits for. Again, where too many nodes sat a round out.
    fn ask_for_full(&mut self, now_ms: u64) {
        let is_due = self.waits_for_checkpoint();
        let since_ms = *self.digests.due_since_ms.get_or_insert(now_ms);
        self.digests.due_since_ms = is_due.then_some(since_ms);
        // The leader's comes first: mostly there are snapshots due at the others, too.
        let is_urgent =
            is_due && !self.snapshots.has_failed() && (self.snapshots.backups.wait() || self.is_log_long(1));
        let patience_ms = if is_urgent { 0 } else { self.patience_ms() };
        let is_busy = self.digests.is_walking() || self.snapshots.is_walking();
        let may_ask = !self.machine.is_single_voter() && self.leader() != 0 && !self.removed;
        let is_wanted = is_due && now_ms >= since_ms + patience_ms
            || self.snapshots.has_unconfirmed() && now_ms >= self.digests.full_wanted_ms;
        let is_time = now_ms >= self.digests.full_again_ms && self.is_full_over(now_ms);
        if !is_wanted || !is_time || is_busy || !may_ask {
            return;
        }
        self.digests.full_again_ms = now_ms + self.config.checkpoint_ms / FULL_AGAIN_PART;
        self.send_unnumbered(&Command::Digest(DigestCommand::Checkpoint { kind: DigestKind::Full }));
    }

    /// Where the last full digest was in vain, a voter that is back may be the one that was missing.
    fn note_voters_up(&mut self, now_ms: u64) {
        let (own, down_ms) = (self.config.id, self.config.node_down_ms);
        let is_up = |id: NodeId| id == own || self.silent_ms(id, now_ms) < down_ms;
        let up = self.membership.iter().filter(|member| member.voter && is_up(member.id)).count();
        // Who has just begun to lead has not heard of everybody yet.
        if std::mem::replace(&mut self.digests.led_term, self.raw.raft.term) != self.raw.raft.term {
            self.digests.led_since_ms = now_ms;
        }
        let is_new = now_ms < self.digests.led_since_ms + down_ms;
        let is_more = up > std::mem::replace(&mut self.digests.voters_up, up) && !is_new;
        let is_in_vain = self.digests.full_index > 0 && !self.is_full_agreed(self.digests.full_index);
        if is_more && is_in_vain && now_ms >= self.digests.owed_again_ms {
            self.digests.full_owed = true;
            self.digests.owed_again_ms = now_ms + self.config.checkpoint_ms;
        }
    }

    /// The leader asks for a point where the last entries have none, and for a full digest now and then. Not without anything
    /// new to compare: an idle cluster writes nothing.
    fn ask_for_digests(&mut self, now_ms: u64) {
        self.note_voters_up(now_ms);
        let full_due_ms = *self.digests.full_due_ms.get_or_insert(now_ms + self.config.checkpoint_ms);
        if now_ms < self.digests.ask_due_ms || !self.may_propose() {
            return;
        }
        let Some(logical_ms) = self.clock.logical_ms() else { return };
        let (point_index, point_ms) = self.machine.last_point();
        let (content, full_index) = (self.machine.content_index(), self.machine.last_full_index());
        let is_conflict = self.digests.undecided_since_ms.is_some();
        let is_full_due =
            content > full_index && (now_ms >= full_due_ms || self.applied >= full_index + FULL_ENTRIES);
        let is_in_time = (is_full_due || self.machine.has_full_conflict()) && self.is_full_over(now_ms);
        let wants_full = (is_in_time || self.digests.full_owed)
            && !self.digests.is_walking()
            && !self.snapshots.is_walking();
        let wants_point = content > point_index && logical_ms >= point_ms + POINT_MS;
        let kind = match (wants_full, wants_point || is_conflict) {
            (true, _) => DigestKind::Full,
            (false, true) => DigestKind::Chain,
            (false, false) => return,
        };
        if wants_full {
            self.digests.full_due_ms = Some(now_ms + self.config.checkpoint_ms);
            self.digests.full_owed = false;
        }
        self.digests.ask_due_ms = now_ms + if is_conflict { CONFLICT_ASK_MS } else { self.config.resend_ms };
        self.stage.push_unnumbered(encoded(&Command::Digest(DigestCommand::Checkpoint { kind })));
    }

    /// This node is not like the majority.
    fn quarantine(&mut self, index: u64) {
        if self.is_quarantined() {
            return;
        }
        let (since_ms, mark_number) = (self.now.monotonic_ms(), self.persist.next_number());
        self.digests.quarantine = Some(Quarantine { index, since_ms, declare_due_ms: 0, mark_number });
        self.digests.values.clear();
        tracing::error!(
            index,
            "this node's digest differs from that of a majority of voters: it is quarantined and serves nothing; remove it from the cluster, delete its data directory and add it again"
        );
        self.out.persist.push(PersistTask {
            number: mark_number,
            quarantine: Some(index),
            must_sync: true,
            ..PersistTask::default()
        });
        self.persist.started(mark_number, 0, false);
        self.refuse_everybody();
        // What its clients heard and cached may be wrong.
        self.out.missed = true;
        self.touched.clear();
        self.snapshots.outgoing.clear();
        self.snapshots.backups.clear();
        self.stage.clear();
        self.forget_scripts();
        if matches!(self.raw.raft.state, StateRole::Candidate | StateRole::PreCandidate) {
            self.follow_nobody();
        }
    }

    /// Answers every client that waits. What was sent may still be applied, so its outcome is unknown.
    fn refuse_everybody(&mut self) {
        let reply = match self.is_quarantined() {
            true => refusals::quarantined,
            false => refusals::no_equal_majority,
        };
        self.give_up_heavy(u64::MAX, reply);
        for overdue in self.pending.drain() {
            self.give_up(&overdue);
        }
        self.give_up_held_back(u64::MAX);
        for ticket in self.reads.drain() {
            self.out.replies.push((ticket, reply()));
        }
        self.status_due_ms = 0;
    }

    /// The others learn of it by the log, whatever became of this node's report.
    fn declare_quarantine(&mut self, now_ms: u64) {
        let Some(member) = self.membership.get(self.config.id) else { return };
        let (node, added_at) = (member.id, member.added_at);
        let is_known = self.machine.quarantined_at(node, added_at).is_some();
        let (has_leader, resend_ms) = (self.leader() != 0, self.config.resend_ms);
        let is_leader = self.is_leader();
        let Some(quarantine) = &mut self.digests.quarantine else { return };
        if is_known || !has_leader || is_leader || now_ms < quarantine.declare_due_ms {
            return;
        }
        quarantine.declare_due_ms = now_ms + resend_ms;
        let index = quarantine.index;
        self.send_unnumbered(&Command::Digest(DigestCommand::Quarantine { node, added_at, index }));
    }

    fn step_down(&mut self, now_ms: u64) {
        let since_ms = self.digests.quarantine.map_or(0, |quarantine| quarantine.since_ms);
        let is_late = now_ms.saturating_sub(since_ms) >= STEP_DOWN_MS;
        if is_late || !self.transfer_leadership() {
            self.follow_nobody();
        }
    }

    fn follow_nobody(&mut self) {
        let term = self.raw.raft.term;
        self.raw.raft.become_follower(term, raft::INVALID_ID);
        self.after_raft();
    }

    /// As raft's own tick, but an election time-out leads to no election: a quarantined node never campaigns. It goes on voting,
    /// since its log is as good as any.
    pub(in crate::tier2) fn tick_quarantined(&mut self) {
        match self.is_leader() {
            true => {
                self.raw.tick();
            }
            false => self.raw.raft.election_elapsed = self.raw.raft.election_elapsed.saturating_add(1),
        }
    }
}
