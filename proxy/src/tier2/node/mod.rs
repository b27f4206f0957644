//! [`Node`]: the raft driver, the pending table, stamps, reads, membership and snapshots, as one plain struct.
//!
//! It has no thread, socket, file or clock: the shell hands it [`Input`]s and carries out [`Outputs`] (see [`crate::node_api`]). The
//! same inputs give the same outputs, so the simulator drives this very struct. Its parts are in the files beside this one;
//! this one has the state, the way in, and the order of a turn.

mod apply;
mod failover;
pub(super) mod grant_delivery;
mod leader_tasks;
pub(super) mod log_cache;
mod metering;
pub(super) mod persist;
mod ready;
pub(super) mod rng;
mod shutdown;
pub(super) mod stamps;
mod status;

use crate::node_api::snapshot_stream;
use crate::node_api::{
    ClusterStatus, CpuClock, Input, LogPosition, LogReader, MemberProgress, NodeId, Now, Outputs,
    PeerMessage, Recovered, SnapshotMeta, WakeFilter,
};
use crate::tier2::cluster::digests::OwnDigests;
use crate::tier2::cluster::membership::{Goal, Membership};
use crate::tier2::cluster::peer_checks::{PeerRefusal, PeerRefusals};
use crate::tier2::cluster::versions::{MemberReport, MemberVersions};
use crate::tier2::config::NodeConfig;
use crate::tier2::node::apply::{TurnLoad, COMMITTED_BYTES_PER_READY};
use crate::tier2::node::failover::Failover;
use crate::tier2::node::grant_delivery::GrantDelivery;
use crate::tier2::node::log_cache::LogCache;
use crate::tier2::node::metering::Metering;
use crate::tier2::node::persist::PersistQueue;
use crate::tier2::node::rng::Rng;
use crate::tier2::node::shutdown::ShutdownState;
use crate::tier2::node::stamps::LogicalClock;
use crate::tier2::requests::batching::Batching;
use crate::tier2::requests::heavy::HeavyQueue;
use crate::tier2::requests::pending::PendingTable;
use crate::tier2::requests::reads::Reads;
use crate::tier2::requests::staging::StagingQueue;
use crate::tier2::scripts::{CountedCpu, Scripting};
use crate::tier2::snapshot::coordinator::Snapshots;
use raft::eraftpb::{Entry, HardState, Message, MessageType};
use raft::{RawNode, StateRole};
use redfence_core::limits::APPEND_BYTES_MAX;
use redfence_core::machine::{Applied, Machine};
use redfence_core::mutant;
use redfence_core::types::{Origin, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A turn that comes so much later than it was wanted shows that the process did not run.
const ASLEEP_US: u64 = 100_000;

/// The last entry of the log when it was looked at, and the time before that.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastIndexes {
    pub(super) looked_ms: u64,
    pub(super) then: u64,
    /// `u64::MAX`: not known.
    pub(super) before: u64,
}

/// Ticks made up for after a stall. More would start elections that the messages of the same turn make unnecessary.
const TICKS_PER_TURN_MAX: u64 = 3;
/// No Ready is begun after so much CPU time in one turn. Scripts, which may take long, are measured anyway; else the thread's clock
/// is looked at after every few Readies: most turns have no more, and it is a system call.
const TURN_CPU_US_MAX: u64 = 20_000;
const READIES_PER_LOOK: usize = 4;
/// Readies handled in one turn before the shell gets the outputs.
const READIES_PER_TURN_MAX: usize = 64;
/// Low bits of an incarnation: how often this process was declared gone and restarted under a new incarnation.
const RESTART_BITS: u32 = 20;

pub struct Node {
    pub(super) config: NodeConfig,
    pub(super) raw: RawNode<LogCache>,
    pub(super) machine: Machine,
    /// Index of the last applied entry.
    pub(super) applied: u64,
    /// The end of the log at start-up: entries up to here may have been applied, and published, before the restart.
    pub(super) log_at_start: LogPosition,
    pub(super) applying: Applied,
    /// Committed, and left for a later turn.
    pub(super) to_apply: VecDeque<Entry>,
    pub(super) turn_load: TurnLoad,
    /// When, on this node's own clock, the machine's clock last moved.
    pub(super) stamp_applied_at_ms: u64,
    pub(super) membership: Membership,
    pub(super) versions: MemberVersions,
    /// A hash of this node's ACL users; 0 where it is not known.
    pub(super) users: u64,
    pub(super) pending: PendingTable,
    pub(super) heavy: HeavyQueue,
    /// The machine accepts commands of this incarnation of the node.
    pub(super) origin_live: bool,
    pub(super) origin_start_due_ms: u64,
    pub(super) reads: Reads,
    pub(super) grant_delivery: GrantDelivery,
    pub(super) stage: StagingQueue,
    pub(super) scripting: Scripting,
    pub(super) cpu: Box<dyn CpuClock>,
    pub(super) metering: Metering,
    pub(super) clock: LogicalClock,
    pub(super) batching: Batching,
    pub(super) touched: BTreeSet<SessionId>,
    pub(super) touch_due_ms: u64,
    pub(super) goals: Vec<Goal>,
    /// When the last message of each peer was received.
    pub(super) heard_ms: BTreeMap<NodeId, u64>,
    /// When nobody listened at their ports the last time.
    pub(super) refused_ms: BTreeMap<NodeId, u64>,
    /// When a leader was last heard; at first, when the node started.
    pub(super) led_ms: Option<u64>,
    /// When the last turn wanted to be followed by another; 0 once it was.
    woken_at_us: u64,
    failover: Option<Failover>,
    pub(super) peer_refusals: PeerRefusals,
    pub(super) snapshots: Snapshots,
    pub(super) digests: OwnDigests,
    pub(super) persist: PersistQueue,
    /// A moved commit index, to be written with the next task: it need not be durable.
    pub(super) lazy_hard_state: Option<HardState>,
    pub(super) leader_tasks_due_ms: u64,
    pub(super) forgot_ms: u64,
    pub(super) gone_due_ms: u64,
    pub(super) last_indexes: LastIndexes,
    pub(super) removed: bool,
    pub(super) stopping: Option<ShutdownState>,
    pub(super) status: ClusterStatus,
    pub(super) status_due_ms: u64,
    /// As leader: when the others are sent the progress of the members. Otherwise: who said so, when, and what.
    pub(super) progress_due_ms: u64,
    pub(super) leaders_view: Option<(NodeId, u64, Vec<MemberProgress>)>,
    pub(super) members_changed: bool,
    pub(super) now: Now,
    pub(super) out: Outputs,
    pub(super) fatal: Option<String>,
    route: RequestTarget,
    raft_seen: (u64, StateRole),
    election_timeout: usize,
    rng: Rng,
    ticked_ms: Option<u64>,
}

/// Where requests are sent. Any change means that unapplied requests are sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RequestTarget {
    term: u64,
    leader: NodeId,
}

impl Node {
    /// Builds a node from what storage recovered. An error describes why the process cannot start.
    pub fn new(config: NodeConfig, recovered: Recovered, reader: Box<dyn LogReader>) -> Result<Node, String> {
        let mut recovered = recovered;
        if mutant!(MembersFromConfig) && recovered.snapshot.at.index > 1 {
            let founders: Vec<_> = (1..=3).map(|id| (id, format!("host{id}:7380"))).collect();
            let founding = SnapshotMeta::founding(&founders);
            recovered.snapshot.conf_state = founding.conf_state;
            recovered.snapshot.members = founding.members;
        }
        let machine = snapshot_stream::load_for(&recovered.snapshot, reader.as_ref(), config.versions)?;
        let applied = recovered.snapshot.at.index;
        let membership = Membership::from_snapshot(&recovered.snapshot);
        let boot = recovered.boot;
        let quarantined = recovered.quarantined;
        let origin = Origin { node: config.id, incarnation: boot << RESTART_BITS };
        let log = LogCache::new(recovered, reader);
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&raft_config(&config, applied), log, &logger)
            .map_err(|error| format!("raft does not start from this data: {error}"))?;
        let log_at_start =
            LogPosition { index: raw.raft.raft_log.last_index(), term: raw.raft.raft_log.last_term() };
        let mut node = Node {
            raw,
            machine,
            applied,
            log_at_start,
            applying: Applied::default(),
            to_apply: VecDeque::new(),
            turn_load: TurnLoad::default(),
            stamp_applied_at_ms: 0,
            membership,
            versions: MemberVersions::default(),
            users: 0,
            pending: PendingTable::new(origin),
            heavy: HeavyQueue::default(),
            origin_live: false,
            origin_start_due_ms: 0,
            reads: Reads::default(),
            grant_delivery: GrantDelivery::default(),
            stage: StagingQueue::default(),
            scripting: Scripting::default(),
            cpu: Box::new(CountedCpu::default()),
            metering: Metering::default(),
            clock: LogicalClock::new(config.clock_gap_ms_max),
            batching: Batching::default(),
            touched: BTreeSet::new(),
            touch_due_ms: 0,
            goals: Vec::new(),
            heard_ms: BTreeMap::new(),
            refused_ms: BTreeMap::new(),
            led_ms: None,
            woken_at_us: 0,
            failover: None,
            peer_refusals: PeerRefusals::default(),
            snapshots: Snapshots::new(boot),
            digests: OwnDigests::new(quarantined),
            persist: PersistQueue::default(),
            lazy_hard_state: None,
            leader_tasks_due_ms: 0,
            forgot_ms: 0,
            gone_due_ms: 0,
            last_indexes: LastIndexes { looked_ms: 0, then: u64::MAX, before: u64::MAX },
            removed: false,
            stopping: None,
            status: ClusterStatus::default(),
            status_due_ms: 0,
            progress_due_ms: 0,
            leaders_view: None,
            members_changed: true,
            now: Now::default(),
            out: Outputs::default(),
            fatal: None,
            route: RequestTarget::default(),
            raft_seen: (0, StateRole::Follower),
            election_timeout: config.election_ticks,
            rng: Rng::new(config.seed),
            ticked_ms: None,
            config,
        };
        node.tell_machine_members();
        if let Some(index) = quarantined {
            tracing::error!(
                index,
                "this data directory is quarantined: its state differed from that of a majority of voters; remove this node from the cluster, delete the directory and add the node again"
            );
        }
        node.check_origin();
        node.draw_election_timeout();
        if node.membership.conf_state().voters == [node.config.id] && !node.is_quarantined() {
            // Nobody to wait for.
            node.raw
                .campaign()
                .map_err(|error| format!("a single node cannot stand for election: {error}"))?;
        }
        Ok(node)
    }

    /// The clock that scripts and slices of work are measured by. Without one every look at it counts the same.
    pub fn set_cpu_clock(&mut self, clock: Box<dyn CpuClock>) {
        self.cpu = clock;
    }

    /// Takes one input. Its effects come out of the next [`Node::turn`].
    pub fn input(&mut self, now: Now, input: Input) {
        self.observe(now);
        if self.fatal.is_some() {
            return;
        }
        match input {
            Input::Submit(submit) => self.on_submit(submit),
            Input::Read(read) => self.on_read(read),
            Input::Cancel { ticket } => self.on_cancel(ticket),
            Input::Withdraw { ticket } => self.on_withdraw(ticket),
            Input::SessionsTouched(_) if self.is_quarantined() => {}
            Input::SessionsTouched(_) if mutant!(KeepAlivesLost) && !self.is_leader() => {}
            Input::SessionsTouched(ids) => {
                self.note_absent_sessions(&ids);
                self.touched.extend(ids);
            }
            Input::SessionsInHurry(_) if self.is_quarantined() => {}
            Input::SessionsInHurry(ids) => {
                self.note_absent_sessions(&ids);
                self.submit_touches(&ids);
            }
            Input::SessionsOrphaned { ids, grace_ms, heard_index } => {
                self.on_orphaned(&ids, grace_ms, heard_index);
            }
            Input::Wanted(wanted) => self.machine.set_wanted(wanted),
            Input::Users(hash) => self.users = hash,
            Input::Peer { from, message } => self.on_peer(from, message),
            Input::Unreachable(peer) => self.on_unreachable(peer),
            Input::Refused(peer) => self.on_refused(peer),
            Input::Persisted { number } => self.on_persisted(number),
            Input::PersistFailed { reason } => {
                self.fatal = Some(format!("the log cannot be written: {reason}"));
            }
            Input::SnapshotProgress { id, written_bytes } => self.on_snapshot_progress(id, written_bytes),
            Input::SnapshotStored(id) => self.on_snapshot_stored(id),
            Input::SnapshotFailed { id, reason } => self.on_snapshot_failed(id, &reason),
            Input::Admin { ticket, request, timeout_ms } => self.on_admin(ticket, request, timeout_ms),
            Input::Shutdown => self.begin_shutdown(),
            Input::Wake => {}
            #[cfg(any(debug_assertions, feature = "mutants"))]
            Input::Diverge(how) => self.machine.plant_divergence(how),
        }
    }

    /// Does what is due and hands out everything the shell must carry out. `out` comes in cleared.
    pub fn turn(&mut self, now: Now, out: &mut Outputs) {
        self.observe(now);
        if self.fatal.is_none() {
            self.run_ticks();
            self.continue_failover();
            self.note_route();
            self.time_out();
            self.run_leader_tasks();
            self.run_raft();
            self.reads.walk(&self.machine, &mut self.out.replies);
            self.work_on_snapshots();
            self.continue_shutdown();
            self.publish();
            self.out.entry_index = self.machine.entry_index();
            self.out.wake_at_us = self.wake_at_us();
            self.woken_at_us = self.out.wake_at_us;
            self.out.wake_filter = self.wake_filter();
        }
        if let Some(reason) = &self.fatal {
            self.out.clear();
            self.out.fatal = Some(reason.clone());
        }
        std::mem::swap(out, &mut self.out);
    }

    /// One input and a turn.
    pub fn step(&mut self, now: Now, input: Input, out: &mut Outputs) {
        self.input(now, input);
        self.turn(now, out);
    }

    /// Requests into the log, log to disk, committed entries to the machine, until there is nothing more to do.
    fn run_raft(&mut self) {
        self.turn_load = TurnLoad::default();
        if !self.to_apply.is_empty() {
            self.apply_some();
            self.report_applied();
        }
        let mut began_us = None;
        for readies in 1..=READIES_PER_TURN_MAX {
            self.send_grant_barrier();
            self.route_requests();
            self.propose_staged();
            self.broadcast_commit();
            self.ask_reads();
            if !self.raw.has_ready() {
                break;
            }
            let answered = self.out.replies.len();
            self.handle_ready();
            self.expect_follow_ups(self.out.replies.len() - answered);
            if self.fatal.is_some() {
                return;
            }
            self.note_route();
            // The rest is handled next turn, after new messages and requests were read.
            if self.is_turn_full() || self.is_turn_long(readies, &mut began_us) {
                break;
            }
        }
        self.answer_reads();
    }

    /// Whether the turn has used its CPU time. `began_us`: by the first look.
    fn is_turn_long(&mut self, readies: usize, began_us: &mut Option<u64>) -> bool {
        if self.turn_load.scripts_us >= TURN_CPU_US_MAX {
            return true;
        }
        if !readies.is_multiple_of(READIES_PER_LOOK) {
            return false;
        }
        let now_us = self.cpu.thread_us();
        now_us.saturating_sub(*began_us.get_or_insert(now_us)) >= TURN_CPU_US_MAX
    }

    fn observe(&mut self, now: Now) {
        self.now = now;
        let late_us =
            if self.woken_at_us > 0 { now.monotonic_us.saturating_sub(self.woken_at_us) } else { 0 };
        if late_us > ASLEEP_US {
            // Nobody was silent while nobody listened: what they said is read after this.
            for heard_ms in self.heard_ms.values_mut() {
                *heard_ms = (*heard_ms + late_us / 1_000).min(now.monotonic_ms());
            }
        }
        self.woken_at_us = 0;
        self.led_ms.get_or_insert(now.monotonic_ms());
        self.clock.observe(now, self.machine.logical_ms());
    }

    fn run_ticks(&mut self) {
        let tick_ms = self.config.tick_ms;
        let now_ms = self.now.monotonic_ms();
        let since_ms = *self.ticked_ms.get_or_insert(now_ms);
        let due = now_ms.saturating_sub(since_ms) / tick_ms;
        if due == 0 || (self.removed && mutant!(RemovedNeverSleeps)) {
            return;
        }
        self.ticked_ms = Some(match due > TICKS_PER_TURN_MAX {
            true => now_ms,
            false => since_ms + due * tick_ms,
        });
        // A removed node does not tick raft, but its time must advance: the next wake-up is counted from here.
        if self.removed {
            return;
        }
        for _ in 0..due.min(TICKS_PER_TURN_MAX) {
            if !self.is_installing() {
                match self.is_quarantined() {
                    true => self.tick_quarantined(),
                    false => {
                        self.raw.tick();
                    }
                }
                self.after_raft();
            }
        }
    }

    fn on_peer(&mut self, from: NodeId, message: PeerMessage) {
        if let Err(refusal) = self.check_peer(from, &message) {
            if refusal == PeerRefusal::NotMember && asks_for_votes(&message) {
                self.hint_not_member(from);
            }
            return self.note_refused(from, refusal);
        }
        if self.membership.get(from).is_some() {
            self.heard_ms.insert(from, self.now.monotonic_ms());
        }
        match message {
            PeerMessage::Raft(message) => self.on_raft(from, *message),
            PeerMessage::Forward(forward) => self.on_forward(forward),
            PeerMessage::SnapshotChunk(chunk) => self.on_snapshot_chunk(from, &chunk),
            PeerMessage::SnapshotAck(ack) => self.on_snapshot_ack(from, &ack),
            PeerMessage::Admin { applied, request } => self.on_asked(applied, &request),
            PeerMessage::NotMember { conf_index } => self.on_not_member(conf_index),
            PeerMessage::Progress(rows) => self.on_progress(from, rows),
            PeerMessage::Versions { term, range, users } => {
                self.on_versions(from, term, MemberReport { range, users });
            }
        }
    }

    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "raft-rs's message types: the others are stepped as they are"
    )]
    fn on_raft(&mut self, from: NodeId, message: Message) {
        self.meter_received(from, message.get_msg_type());
        match message.get_msg_type() {
            MessageType::MsgTimeoutNow if self.is_quarantined() => return,
            MessageType::MsgRequestPreVote | MessageType::MsgRequestVote => self.hint_not_member(from),
            // Added again. A delayed copy of entries from before the removal contains nothing new.
            MessageType::MsgAppend if message.index + message.entries.len() as u64 > self.applied => {
                self.removed = false;
            }
            _ => {}
        }
        let of_leader = matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat);
        if of_leader && message.term >= self.raw.raft.term {
            self.led_ms = Some(self.now.monotonic_ms());
        }
        if self.is_installing() && !of_leader {
            return;
        }
        // An error means a stale message, or one from a removed member.
        let _ = self.raw.step(message);
        self.after_raft();
    }

    /// After every call that may change raft's role: raft's own random election time-out is replaced by a seeded one.
    pub(super) fn after_raft(&mut self) {
        let seen = (self.raw.raft.term, self.raw.raft.state);
        if seen != self.raft_seen {
            self.meter_role(self.raft_seen.1);
            self.raft_seen = seen;
            self.draw_election_timeout();
        }
        // A follower that becomes one again has drawn too, and a simulated run would not repeat.
        self.raw.raft.set_randomized_election_timeout(self.election_timeout);
    }

    fn draw_election_timeout(&mut self) {
        self.election_timeout = self.rng.between(self.config.election_ticks, 2 * self.config.election_ticks);
        self.raw.raft.set_randomized_election_timeout(self.election_timeout);
    }

    /// A new leader, or a new term of the old one: what was sent may be lost, what was asked may be dropped.
    fn note_route(&mut self) {
        let route = RequestTarget { term: self.raw.raft.term, leader: self.raw.raft.leader_id };
        if route == self.route {
            return;
        }
        self.route = route;
        self.meter_route();
        self.batching = Batching::default();
        self.stage.clear();
        self.forget_scripts();
        self.versions.leader_changed();
        self.pending.leader_changed();
        self.reads.leader_changed();
        self.origin_start_due_ms = 0;
        self.goals.iter_mut().for_each(|goal| goal.due_ms = 0);
        self.status_due_ms = 0;
        match self.is_leader() {
            true => {
                self.clock.start(self.now, route.term, self.machine.logical_ms());
                // Everybody gets the full time to be heard of.
                let now_ms = self.now.monotonic_ms();
                self.heard_ms.extend(self.membership.iter().map(|member| (member.id, now_ms)));
            }
            false => {
                self.clock.stop();
                self.snapshots.outgoing.clear();
            }
        }
    }

    #[must_use]
    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// As it was last published.
    #[must_use]
    pub fn status(&self) -> &ClusterStatus {
        &self.status
    }

    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    pub(super) fn leader(&self) -> NodeId {
        self.raw.raft.leader_id
    }

    /// When the next thing falls due: a tick, the end of a lock, more of a snapshot, or what the leader has put off for a moment.
    fn wake_at_us(&self) -> u64 {
        let now_ms = self.now.monotonic_ms();
        if self.raw.has_ready()
            || !self.to_apply.is_empty()
            || self.may_admit_heavy()
            || self.reads.has_ready(self.applied)
            || self.reads.has_walks()
            || self.snapshots.wants_turn(&self.config)
        {
            return self.now.monotonic_us;
        }
        let mut wake_at_ms = self.ticked_ms.unwrap_or(now_ms) + self.config.tick_ms;
        if let (Some(logical_ms), Some(due_ms)) = (self.clock.logical_ms(), self.machine.next_due_ms()) {
            // A deadline that has passed is covered by an entry under way.
            let left_ms = due_ms.saturating_sub(logical_ms);
            wake_at_ms = wake_at_ms.min(now_ms.saturating_add(left_ms.max(1)));
        }
        wake_at_ms = wake_at_ms.min(self.failover_at_ms().unwrap_or(u64::MAX).max(now_ms));
        if let Some(until_ms) = self.reads.held_until_ms() {
            wake_at_ms = wake_at_ms.min(until_ms.max(now_ms));
        }
        let slice_at_ms = self.digests.wake_at_ms().unwrap_or(u64::MAX);
        let wake_at_us = 1_000 * wake_at_ms.min(slice_at_ms.max(now_ms));
        let wanted_at_us = self.batching_wake_at_us().into_iter().chain(self.scripts_at_us()).min();
        wanted_at_us.map_or(wake_at_us, |at_us| at_us.min(wake_at_us))
    }

    /// What can be done about an input decides whether it is worth waking up for.
    fn wake_filter(&self) -> WakeFilter {
        let log = &self.raw.raft.raft_log;
        let follows = self.raw.raft.state == StateRole::Follower;
        WakeFilter {
            requests: match self.is_leader() {
                true => self.commands_awaited().saturating_sub(self.stage.len()).max(1),
                false => 1,
            },
            // A follower's answer leaves without the node; what it holds is applied when the leader says so.
            durable: !follows
                || self.applied < log.committed
                || self.stopping.is_some()
                || self.is_installing(),
        }
    }

    /// The state machine, for a look from tests and from the simulator.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    #[must_use]
    pub fn applied_index(&self) -> u64 {
        self.applied
    }

    /// What the snapshot holds that a restart would begin with.
    #[must_use]
    pub fn snapshot_index(&self) -> u64 {
        self.raw.store().snapshot_meta().at.index
    }

    #[must_use]
    pub fn id(&self) -> NodeId {
        self.config.id
    }

    /// Under which this start of the node has its requests logged.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.pending.origin()
    }

    /// A number for this start of the node, different from all earlier ones.
    pub(super) fn next_origin(&self) -> Origin {
        let Origin { node, incarnation } = self.pending.origin();
        Origin { node, incarnation: incarnation + 1 }
    }
}

fn asks_for_votes(message: &PeerMessage) -> bool {
    let PeerMessage::Raft(message) = message else { return false };
    matches!(message.get_msg_type(), MessageType::MsgRequestPreVote | MessageType::MsgRequestVote)
}

fn raft_config(config: &NodeConfig, applied: u64) -> raft::Config {
    raft::Config {
        id: config.id,
        election_tick: config.election_ticks,
        heartbeat_tick: config.heartbeat_ticks,
        applied,
        max_size_per_msg: APPEND_BYTES_MAX as u64,
        max_inflight_msgs: 256,
        check_quorum: true,
        pre_vote: true,
        // raft 0.7.0 merges entries into a queued empty append whatever index that one has, and the follower then
        // acknowledges entries it never got. One entry carries many commands here, so nothing is lost by going without.
        batch_append: mutant!(BatchedAppends),
        max_uncommitted_size: 64 << 20,
        max_committed_size_per_ready: COMMITTED_BYTES_PER_READY,
        // `broadcast_commit` does it, once a turn, and not at all where the next entry says it anyway.
        skip_bcast_commit: true,
        ..raft::Config::default()
    }
}
