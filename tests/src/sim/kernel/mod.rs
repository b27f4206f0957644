//! The kernel of both simulators: hosts with real nodes on simulated disks and clocks, a network between them, and the agenda
//! that drives them. No threads, no real time; all chance comes from one seed.
//!
//! [`World`](super::world::World) adds clients, faults and a checker to it, drawn from a seed; [`SimCluster`](super::cluster::SimCluster)
//! is driven by a test, step by step. Both plan events of their own (`U`) in the same agenda.
//!
//! Whoever drives it takes the next event ([`Kernel::next`]), lets it happen ([`Kernel::happen`]), looks at what a node put out
//! where it had its turn, and has the rest of that carried out ([`Kernel::carry_out`]).
//!
//! # Layout
//!
//! - [`agenda`]: what happens, and when; [`host`]: one machine: node, disk, writers; [`clock`]: its clocks
//! - [`network`]: what happens to messages on their way

pub mod agenda;
pub mod clock;
pub mod host;
pub mod network;

use crate::rng::Rng;
use agenda::{Agenda, Mark, SimEvent};
use bytes::{Buf, BytesMut};
use clock::HostClock;
use host::Host;
use network::Network;
use redfence::node_api::wire;
use redfence::node_api::{Input, NodeId, Outputs, PeerMessage, SnapshotMeta, SnapshotOp, GROUP};
use redfence::tier2::NodeConfig;
use std::collections::BTreeMap;

/// Frames are cut from pieces of this size.
const FRAMES_BYTES: usize = 8 << 10;

#[must_use]
pub fn address(id: NodeId) -> String {
    format!("host{id}:7380")
}

pub struct Kernel<U> {
    pub now_us: u64,
    pub agenda: Agenda<U>,
    pub hosts: BTreeMap<NodeId, Host>,
    pub network: Network,
    pub rng: Rng,
    /// The network's own, so that one message more does not change everything else.
    net_rng: Rng,
    /// A node has its turn within this time of an input; what comes meanwhile is taken with it.
    turn_us_max: u64,
    /// When a disk last refused to write a snapshot.
    pub snapshot_refused_us: Option<u64>,
    /// Tell what happens, line by line.
    pub trace: bool,
    /// What the last turn put out.
    pub out: Outputs,
    /// Where frames are built.
    frame: BytesMut,
}

/// What has happened, as far as it concerns whoever drives the kernel.
pub enum Happened<U> {
    /// Something of a host's own.
    Nothing,
    /// A node had its turn: [`Kernel::out`] is to be looked at, and then to be carried out.
    Turned(NodeId),
    Other(U),
}

/// What became of a node in its turn.
#[derive(Debug)]
pub enum AfterTurn {
    GoesOn,
    GaveUp(String),
    /// As it was asked to.
    Stopped,
}

impl<U: Mark> Kernel<U> {
    #[must_use]
    pub fn new(mut rng: Rng, turn_us_max: u64) -> Kernel<U> {
        // A run must not depend on those before it.
        redfence::tier2::scripts::forget_vm();
        Kernel {
            now_us: 0,
            agenda: Agenda::default(),
            hosts: BTreeMap::new(),
            network: Network::default(),
            net_rng: rng.fork(),
            rng,
            turn_us_max,
            snapshot_refused_us: None,
            trace: false,
            out: Outputs::default(),
            frame: BytesMut::new(),
        }
    }

    pub fn host(&mut self, id: NodeId) -> &mut Host {
        self.hosts.get_mut(&id).unwrap_or_else(|| panic!("there is no host {id}"))
    }

    #[must_use]
    pub fn lives(&self, id: NodeId, life: u64) -> bool {
        self.hosts.get(&id).is_some_and(|host| host.is_up() && host.life == life)
    }

    /// Whoever leads in the highest term, as the nodes that are not paused see it.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        let nodes = self.hosts.values().filter(|host| !host.paused).filter_map(|host| host.node.as_ref());
        nodes.filter(|node| node.is_leader()).map(|node| (node.term(), node.id())).max().map(|(_, id)| id)
    }

    /// A new machine. It is not started yet.
    pub fn add_host(&mut self, id: NodeId, first: SnapshotMeta) {
        let local_us = self.rng.below(100_000_000_000);
        let mut clock = HostClock::new(self.now_us, local_us);
        // Wall clocks of different machines are never quite alike.
        clock.jump_wall(self.rng.below(4_000_000) as i64 - 2_000_000);
        self.hosts.insert(id, Host::new(id, first, clock));
    }

    pub fn start_host(&mut self, id: NodeId, configure: impl FnOnce(&mut NodeConfig)) -> Result<(), String> {
        let mut config = NodeConfig::new(id, self.rng.draw());
        configure(&mut config);
        self.host(id).start(config)?;
        self.plan_turn(id);
        Ok(())
    }

    /// The process of a host ends, and with the power a part of what its disk had not synced.
    pub fn stop_host(&mut self, id: NodeId, power_cut: bool) {
        if power_cut {
            let unsynced = self.host(id).disk.unsynced_tasks() as u64;
            let survivors = self.rng.below(unsynced + 1) as usize;
            self.tell_text(|| format!("node {id} loses power: {survivors} of {unsynced} tasks stay"));
            self.host(id).lose_power(survivors);
        } else {
            self.tell_text(|| format!("node {id} stops"));
            self.host(id).stop();
        }
    }

    /// The others find that nobody listens where this process did, each in its own time. Not all do: it may have started again
    /// when they dial.
    pub fn refuse_dials(&mut self, id: NodeId) {
        let others: Vec<(NodeId, u64)> = self.hosts.iter().map(|(other, host)| (*other, host.life)).collect();
        for (other, life) in others {
            let at_us = self.now_us + self.rng.between(200, 30_000);
            if other != id && self.rng.per_mille(700) {
                self.agenda.plan(at_us, SimEvent::Request { host: other, life, input: Input::Refused(id) });
            }
        }
    }

    pub fn resume(&mut self, id: NodeId) {
        let host = self.host(id);
        host.paused = false;
        host.turn_planned = false;
        let life = host.life;
        if std::mem::take(&mut host.synced_in_sleep) {
            self.agenda.plan(self.now_us, SimEvent::Synced { host: id, life });
        }
        self.give(id, Input::Wake);
    }

    /// Plans an event of the kernel's user.
    pub fn plan(&mut self, at_us: u64, event: U) {
        self.agenda.plan(at_us, SimEvent::Other(event));
    }

    /// The next event at or before `end_us`; the clock moves to it.
    pub fn next(&mut self, end_us: u64) -> Option<SimEvent<U>> {
        let (at_us, event) = self.agenda.next(end_us)?;
        self.now_us = self.now_us.max(at_us);
        Some(event)
    }

    pub fn happen(&mut self, event: SimEvent<U>) -> Happened<U> {
        match event {
            SimEvent::Deliver { from, to, message } => {
                if self.hosts.get(&to).is_some_and(Host::is_up) {
                    self.give(to, Input::Peer { from, message });
                }
            }
            SimEvent::Turn { host, life } => {
                if self.lives(host, life) && self.turn(host) {
                    return Happened::Turned(host);
                }
            }
            SimEvent::Wake { host, life } => {
                if self.lives(host, life) && self.host(host).wake_at_us <= self.now_us {
                    self.give(host, Input::Wake);
                }
            }
            SimEvent::Synced { host, life } => {
                if self.lives(host, life) {
                    self.synced(host);
                }
            }
            SimEvent::SnapshotOp { host, life } => {
                if self.lives(host, life) {
                    self.snapshot_op(host);
                }
            }
            SimEvent::Request { host, life, input } => {
                if self.lives(host, life) {
                    self.give(host, input);
                }
            }
            SimEvent::Other(event) => return Happened::Other(event),
        }
        Happened::Nothing
    }

    /// Puts an input into a node's queue.
    pub fn give(&mut self, id: NodeId, input: Input) {
        self.host(id).inbox.push(input);
        self.plan_turn(id);
    }

    /// Whatever has come by the next turn is taken together, as the real shell does.
    fn plan_turn(&mut self, id: NodeId) {
        let at_us = self.now_us + self.rng.below(self.turn_us_max);
        let host = self.host(id);
        if !host.turn_planned && !host.paused {
            host.turn_planned = true;
            let life = host.life;
            self.agenda.plan(at_us, SimEvent::Turn { host: id, life });
        }
    }

    /// False: the machine stands still.
    fn turn(&mut self, id: NodeId) -> bool {
        let now_us = self.now_us;
        let host = self.hosts.get_mut(&id).expect("it lives");
        host.turn_planned = false;
        host.turns += 1;
        if host.paused {
            return false;
        }
        let now = host.clock.now(now_us);
        self.out.clear();
        if let Some(node) = &mut host.node {
            for input in host.inbox.drain(..) {
                node.input(now, input);
            }
            node.turn(now, &mut self.out);
            // Every sender here is a member of the cluster or was one: the checks refuse nothing that it sends.
            assert_eq!(node.impossible_messages(), 0, "node {id} was sent what no member sends");
        }
        true
    }

    /// Sends, writes and plans what a turn has put out. Replies and events are for whoever drives the kernel.
    pub fn carry_out(&mut self, id: NodeId) -> AfterTurn {
        let mut out = std::mem::take(&mut self.out);
        let after = self.carry_out_all(id, &mut out);
        self.out = out;
        after
    }

    fn carry_out_all(&mut self, id: NodeId, out: &mut Outputs) -> AfterTurn {
        for (to, message) in out.send.drain(..) {
            self.send(id, to, message);
        }
        self.tell_writes(id, out);
        let host = self.host(id);
        host.to_write.append(&mut out.persist);
        host.snapshot_ops.extend(out.snapshot_ops.drain(..));
        if let Some(members) = out.members.take() {
            host.members = members;
        }
        if let Some(reason) = out.fatal.take() {
            return AfterTurn::GaveUp(reason);
        }
        if out.stopped {
            return AfterTurn::Stopped;
        }
        self.begin_write(id);
        self.begin_snapshot_op(id);
        let now_us = self.now_us;
        let host = self.host(id);
        let wake_at_us = host.clock.true_time_us(now_us, out.wake_at_us);
        let sooner = host.wake_at_us <= now_us || wake_at_us < host.wake_at_us;
        if sooner {
            host.wake_at_us = wake_at_us;
            let life = host.life;
            self.agenda.plan(wake_at_us, SimEvent::Wake { host: id, life });
        }
        AfterTurn::GoesOn
    }

    fn begin_write(&mut self, id: NodeId) {
        let (low_us, high_us) = self.host(id).mood.sync_us;
        let at_us = self.now_us + self.rng.between(low_us, high_us);
        let host = self.host(id);
        match host.begin_write() {
            None => {}
            Some(Ok(())) => {
                let life = host.life;
                self.agenda.plan(at_us, SimEvent::Synced { host: id, life });
            }
            Some(Err(reason)) => self.give(id, Input::PersistFailed { reason }),
        }
    }

    fn synced(&mut self, id: NodeId) {
        let host = self.host(id);
        if host.paused {
            host.synced_in_sleep = true;
            return;
        }
        let after = host.end_write();
        self.plan_turn(id);
        for (to, message) in after {
            self.send(id, to, message);
        }
        self.begin_write(id);
    }

    fn begin_snapshot_op(&mut self, id: NodeId) {
        let at_us = self.now_us + self.rng.between(20, 2_000);
        let host = self.host(id);
        let is_finish = matches!(host.snapshot_ops.front(), Some(SnapshotOp::Finish { .. }));
        let at_us = at_us + if is_finish { host.mood.finish_us } else { 0 };
        if !host.snapshot_busy && !host.snapshot_ops.is_empty() {
            host.snapshot_busy = true;
            let life = host.life;
            self.agenda.plan(at_us, SimEvent::SnapshotOp { host: id, life });
        }
    }

    fn snapshot_op(&mut self, id: NodeId) {
        let now_us = self.now_us;
        let host = self.hosts.get_mut(&id).expect("it lives");
        host.snapshot_busy = false;
        if let Some(op) = host.snapshot_ops.pop_front() {
            let input = match op {
                SnapshotOp::Append { id: file, .. } | SnapshotOp::Finish { id: file, .. }
                    if host.mood.refuses_snapshots =>
                {
                    self.snapshot_refused_us = Some(now_us);
                    host.disk.carry_out(SnapshotOp::Discard(file));
                    Some(Input::SnapshotFailed { id: file, reason: "simulated full disk".to_string() })
                }
                op => host.disk.carry_out(op),
            };
            if let Some(input) = input {
                self.give(id, input);
            }
        }
        self.begin_snapshot_op(id);
    }

    fn send(&mut self, from: NodeId, to: NodeId, message: PeerMessage) {
        if !self.hosts.contains_key(&to) {
            return;
        }
        let mut arrivals = self.network.arrivals(from, to, self.now_us, &mut self.net_rng);
        let Some(last_us) = arrivals.pop() else {
            if self.net_rng.per_mille(200) {
                self.give(from, Input::Unreachable(to));
            }
            return;
        };
        let message = through_bytes(&message, &mut self.frame);
        for at_us in arrivals {
            self.agenda.plan(at_us, SimEvent::Deliver { from, to, message: message.clone() });
        }
        self.agenda.plan(last_us, SimEvent::Deliver { from, to, message });
    }

    fn tell_writes(&self, id: NodeId, out: &Outputs) {
        for task in &out.persist {
            let (first, count) = (task.entries.first().map_or(0, |entry| entry.index), task.entries.len());
            let (number, sync) = (task.number, task.must_sync);
            let install = task.install.as_ref().map(|meta| meta.at);
            let snapshot = task.snapshot.as_ref().map(|meta| meta.at);
            self.tell_text(|| {
                format!(
                    "node {id} writes {number}: {count} from {first} install {install:?} snapshot {snapshot:?} {:?} {sync}",
                    task.compact
                )
            });
        }
    }

    pub fn tell_text(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10.3}   {}", self.now_us as f64 / 1_000.0, text());
        }
    }
}

/// What the other side decodes from what this side encodes.
fn through_bytes(message: &PeerMessage, frame: &mut BytesMut) -> PeerMessage {
    if frame.capacity() < FRAMES_BYTES / 8 {
        *frame = BytesMut::with_capacity(FRAMES_BYTES);
    }
    wire::encode_frame(GROUP, message, frame).expect("a frame holds the largest message");
    let mut frame = frame.split();
    frame.advance(4);
    wire::decode_frame(frame.freeze()).expect("our own frame is well formed").1
}
