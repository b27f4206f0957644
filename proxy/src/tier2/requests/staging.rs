//! The leader's queue of commands for the next entry: those of its own clients and those forwarded by followers, unstamped.
//!
//! Bounded; forwarded commands beyond the bound are dropped, and their node sends them again. Cleared when leadership ends:
//! every node keeps its requests until it has applied them, so nothing is lost.
//!
//! **Order.** Followers resend everything from the oldest unapplied request on (go-back-N). For each follower the queue knows the
//! highest sequence number taken in this leadership. A batch with a gap before it is rejected; commands taken already are
//! skipped. So the commands of one node are staged in the order of their sequence numbers, whatever was lost, repeated or reordered
//! by the network; and what a former leader left in the log is a prefix of the same sequence.

use crate::node_api::{Forward, Forwarded, NodeId};
use crate::tier2::requests::pending::PendingTable;
use crate::tier2::scripts::{prepare, ConnectionKey, ScriptQueue, StagedCommand};
use bytes::Bytes;
use redfence_core::machine::version::{begins_entry, ClusterVersion};
use redfence_core::machine::{EntryBuilder, Machine};
use redfence_core::mutant;
use redfence_core::script::Preparation;
use redfence_core::types::{Origin, Stamp};
use std::collections::{BTreeMap, VecDeque};

/// The sequence number of a command without a reply that is not deduplicated.
pub(in crate::tier2) const UNNUMBERED: u64 = 0;

#[derive(Debug, Default)]
pub(in crate::tier2) struct StagingQueue {
    groups: VecDeque<StagedGroup>,
    /// Of the groups.
    commands: usize,
    /// Those of them that are no client's, so nobody waits for them: reports of digests for one.
    unnumbered: usize,
    bytes: usize,
    /// Commands of the groups that have left them so far, counted from the beginning.
    pub(in crate::tier2) proposed: u64,
    /// Scripts that must run first, and what waits behind them.
    pub(in crate::tier2) scripts: ScriptQueue,
    /// By node: the newest incarnation seen, and the highest sequence number taken from it.
    taken: BTreeMap<NodeId, OriginProgress>,
}

#[derive(Debug, Default)]
struct OriginProgress {
    incarnation: u64,
    seq: u64,
}

#[derive(Debug)]
enum StagedGroup {
    /// Of this node's clients: looked up when the entry is built, so that requests that timed out meanwhile stay out.
    Own(VecDeque<OwnCommand>),
    /// Of the node itself: expiry and the like.
    Unnumbered(Bytes),
    Forwarded {
        origin: Origin,
        acked_below: u64,
        commands: VecDeque<Forwarded>,
    },
}

#[derive(Debug)]
struct OwnCommand {
    seq: u64,
    /// What is logged in place of the request's own bytes.
    native: Option<Bytes>,
}

impl OwnCommand {
    /// `None` where the request was given up.
    fn blob<'a>(&'a self, pending: &'a PendingTable) -> Option<&'a Bytes> {
        let blob = pending.blob(self.seq)?;
        Some(self.native.as_ref().unwrap_or(blob))
    }
}

/// Bounds of the queue for forwarded commands.
pub(in crate::tier2) struct StageLimits {
    pub(in crate::tier2) commands: usize,
    pub(in crate::tier2) bytes: usize,
}

/// What became of a forwarded batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tier2) enum PushedForward {
    Taken,
    /// Something before it is missing.
    Gap,
    Full,
}

/// An entry that is built but not yet taken out of the stage.
pub(in crate::tier2) struct BuiltEntry {
    pub(in crate::tier2) data: Vec<u8>,
    /// Numbers of this node's own requests inside.
    pub(in crate::tier2) own: Vec<u64>,
    /// How many staged commands it covers, including skipped ones.
    covered: usize,
}

impl StagingQueue {
    /// Whether nothing is ready for an entry. Scripts may wait.
    pub(in crate::tier2) fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Commands of the groups so far, counted from the beginning.
    fn staged(&self) -> u64 {
        self.proposed + self.commands as u64
    }

    /// Commands that are ready for an entry.
    pub(in crate::tier2) fn len(&self) -> usize {
        self.commands
    }

    /// Those of them that are no client's.
    pub(in crate::tier2) fn unnumbered(&self) -> usize {
        self.unnumbered
    }

    /// Those of them that clients wait for.
    pub(in crate::tier2) fn numbered(&self) -> usize {
        self.commands - self.unnumbered
    }

    pub(in crate::tier2) fn clear(&mut self) {
        *self = StagingQueue::default();
    }

    /// A request of this node's own client.
    pub(in crate::tier2) fn push_own(
        &mut self,
        seq: u64,
        machine: &Machine,
        pending: &PendingTable,
        now_us: u64,
    ) {
        let Some((connection, blob)) = pending.command(seq) else { return };
        let key = ConnectionKey::new(pending.origin().node, connection, seq);
        if self.scripts.holds(key) {
            self.scripts.push_behind(key, StagedCommand::Own { seq });
            return;
        }
        let native = match prepare(machine, blob) {
            Preparation::AsIs => None,
            Preparation::Native(native) => Some(native),
            Preparation::Run => {
                self.scripts.push(key, StagedCommand::Own { seq }, now_us, self.staged());
                return;
            }
        };
        let command = OwnCommand { seq, native };
        match self.groups.back_mut() {
            Some(StagedGroup::Own(commands)) => commands.push_back(command),
            Some(StagedGroup::Unnumbered(_) | StagedGroup::Forwarded { .. }) | None => {
                self.groups.push_back(StagedGroup::Own([command].into()));
            }
        }
        self.commands += 1;
    }

    pub(in crate::tier2) fn push_unnumbered(&mut self, blob: Bytes) {
        self.bytes += blob.len();
        self.commands += 1;
        self.unnumbered += 1;
        self.groups.push_back(StagedGroup::Unnumbered(blob));
    }

    /// What is not taken is dropped; its node sends it again.
    pub(in crate::tier2) fn push_forwarded(
        &mut self,
        forward: Forward,
        limits: &StageLimits,
        machine: &Machine,
        now_us: u64,
    ) -> PushedForward {
        let Forward { origin, prev, acked_below, mut commands, .. } = forward;
        let Some(last) = commands.last().map(|command| command.seq) else { return PushedForward::Taken };
        if last != UNNUMBERED {
            let taken = self.taken.entry(origin.node).or_default();
            if origin.incarnation > taken.incarnation {
                *taken = OriginProgress { incarnation: origin.incarnation, seq: 0 };
            }
            let is_gap = prev > taken.seq && !mutant!(GapsAccepted);
            if origin.incarnation < taken.incarnation || is_gap {
                return PushedForward::Gap;
            }
            let repeated = commands.partition_point(|command| command.seq <= taken.seq);
            commands.drain(..repeated);
        }
        let bytes: usize = commands.iter().map(|command| command.blob.len()).sum();
        let staged_commands = self.commands + self.scripts.len();
        let staged_bytes = self.bytes + self.scripts.bytes();
        if staged_commands + commands.len() > limits.commands || staged_bytes + bytes > limits.bytes {
            return PushedForward::Full;
        }
        if let Some(taken) = self.taken.get_mut(&origin.node).filter(|_| last != UNNUMBERED) {
            taken.seq = last;
        }
        let mut ready = 0;
        commands.retain_mut(|command| {
            let is_ready = self.keep_ready(origin, acked_below, command, ready, machine, now_us);
            ready += u64::from(is_ready);
            is_ready
        });
        self.push_ready(origin, acked_below, commands);
        PushedForward::Taken
    }

    /// False: it was moved behind a script, or is one. `batch`: ready commands before it that are about to be staged.
    fn keep_ready(
        &mut self,
        origin: Origin,
        acked_below: u64,
        command: &mut Forwarded,
        batch: u64,
        machine: &Machine,
        now_us: u64,
    ) -> bool {
        let moved = |command: &mut Forwarded| {
            let Forwarded { seq, connection, .. } = *command;
            let command = Forwarded { seq, connection, blob: std::mem::take(&mut command.blob) };
            StagedCommand::Forwarded { origin, acked_below, command }
        };
        let key = ConnectionKey::new(origin.node, command.connection, command.seq);
        if self.scripts.holds(key) {
            self.scripts.push_behind(key, moved(command));
            return false;
        }
        match prepare(machine, &command.blob) {
            Preparation::AsIs => true,
            Preparation::Native(native) => {
                command.blob = native;
                true
            }
            Preparation::Run => {
                self.scripts.push(key, moved(command), now_us, self.staged() + batch);
                false
            }
        }
    }

    fn push_ready(&mut self, origin: Origin, acked_below: u64, commands: Vec<Forwarded>) {
        if commands.is_empty() {
            return;
        }
        self.commands += commands.len();
        self.unnumbered += commands.iter().filter(|command| command.seq == UNNUMBERED).count();
        self.bytes += commands.iter().map(|command| command.blob.len()).sum::<usize>();
        self.groups.push_back(StagedGroup::Forwarded { origin, acked_below, commands: commands.into() });
    }

    /// So many scripts are in the log or need not be run: what waited behind them is staged, up to the next script of its connection.
    pub(in crate::tier2) fn scripts_done(
        &mut self,
        count: usize,
        machine: &Machine,
        pending: &PendingTable,
        now_us: u64,
    ) {
        for _ in 0..count {
            for command in self.scripts.pop() {
                match command {
                    StagedCommand::Own { seq } => self.push_own(seq, machine, pending, now_us),
                    StagedCommand::Forwarded { origin, acked_below, mut command } => {
                        if self.keep_ready(origin, acked_below, &mut command, 0, machine, now_us) {
                            self.push_ready(origin, acked_below, vec![command]);
                        }
                    }
                }
            }
        }
    }

    /// Builds one entry from the front of the stage. `None` where nothing is left to propose.
    pub(in crate::tier2) fn build(
        &mut self,
        runs: ClusterVersion,
        stamp: Stamp,
        pending: &PendingTable,
        commands_max: usize,
        bytes_max: usize,
    ) -> Option<BuiltEntry> {
        let mut builder = EntryBuilder::for_version(runs, stamp);
        let mut own = Vec::new();
        let mut covered = 0;
        for group in &self.groups {
            let budget = EntryBudget {
                commands: commands_max.saturating_sub(covered),
                bytes: bytes_max.saturating_sub(builder.len()),
                is_empty: builder.is_empty(),
            };
            if budget.commands == 0 || budget.bytes == 0 {
                break;
            }
            let taken = match group {
                StagedGroup::Own(commands) => {
                    push_own_batch(&mut builder, commands, pending, &budget, &mut own)
                }
                StagedGroup::Unnumbered(blob) if !budget.is_empty && begins_entry(blob) => 0,
                StagedGroup::Unnumbered(blob) if budget.fitting([blob.len()].into_iter()) == 0 => 0,
                StagedGroup::Unnumbered(blob) => {
                    builder.push_batch(pending.origin(), pending.acked_below(), [(UNNUMBERED, blob)]);
                    1
                }
                StagedGroup::Forwarded { origin, acked_below, commands } => {
                    let count = budget.fitting(commands.iter().map(|command| command.blob.len()));
                    let batch = commands.iter().take(count).map(|command| (command.seq, &command.blob));
                    if count > 0 {
                        builder.push_batch(*origin, *acked_below, batch);
                    }
                    count
                }
            };
            covered += taken;
            if taken < group.len() {
                break;
            }
        }
        if builder.is_empty() {
            self.take_out(covered);
            return None;
        }
        Some(BuiltEntry { data: builder.finish(), own, covered })
    }

    /// The entry is in the log: what it covers leaves the stage.
    pub(in crate::tier2) fn proposed(&mut self, covered: &CoveredCommands) {
        self.take_out(covered.0);
    }

    fn take_out(&mut self, mut count: usize) {
        self.commands -= count;
        self.proposed += count as u64;
        while count > 0 {
            let Some(group) = self.groups.front_mut() else { return };
            let left = match group {
                StagedGroup::Own(commands) => {
                    let taken = count.min(commands.len());
                    commands.drain(..taken);
                    count -= taken;
                    commands.len()
                }
                StagedGroup::Unnumbered(blob) => {
                    self.bytes -= blob.len();
                    self.unnumbered -= 1;
                    count -= 1;
                    0
                }
                StagedGroup::Forwarded { commands, .. } => {
                    let taken = count.min(commands.len());
                    for command in commands.drain(..taken) {
                        self.bytes -= command.blob.len();
                        self.unnumbered -= usize::from(command.seq == UNNUMBERED);
                    }
                    count -= taken;
                    commands.len()
                }
            };
            if left == 0 {
                self.groups.pop_front();
            }
        }
    }
}

/// How much of the stage an entry covers.
pub(in crate::tier2) struct CoveredCommands(usize);

impl BuiltEntry {
    pub(in crate::tier2) fn covered(&self) -> CoveredCommands {
        CoveredCommands(self.covered)
    }
}

impl StagedGroup {
    fn len(&self) -> usize {
        match self {
            StagedGroup::Own(commands) => commands.len(),
            StagedGroup::Unnumbered(_) => 1,
            StagedGroup::Forwarded { commands, .. } => commands.len(),
        }
    }
}

struct EntryBudget {
    commands: usize,
    bytes: usize,
    /// Nothing is in the entry yet: it takes one command however large it is. So no entry is larger than one largest command.
    is_empty: bool,
}

impl EntryBudget {
    /// How many commands of these sizes fit.
    fn fitting(&self, sizes: impl Iterator<Item = usize>) -> usize {
        let mut bytes = 0;
        let mut count = 0;
        for size in sizes.take(self.commands) {
            bytes += size;
            if bytes > self.bytes && (count > 0 || !self.is_empty) {
                break;
            }
            count += 1;
        }
        count
    }
}

fn push_own_batch(
    builder: &mut EntryBuilder,
    commands: &VecDeque<OwnCommand>,
    pending: &PendingTable,
    budget: &EntryBudget,
    own: &mut Vec<u64>,
) -> usize {
    let blobs: Vec<(u64, Option<&Bytes>)> =
        commands.iter().take(budget.commands).map(|command| (command.seq, command.blob(pending))).collect();
    let count = budget.fitting(blobs.iter().map(|(_, blob)| blob.map_or(0, Bytes::len)));
    // Requests that timed out meanwhile stay out.
    let alive = || blobs[..count].iter().filter_map(|(seq, blob)| Some((*seq, (*blob)?)));
    let first = own.len();
    own.extend(alive().map(|(seq, _)| seq));
    if own.len() > first {
        builder.push_batch(pending.origin(), pending.acked_below(), alive());
    }
    count
}
