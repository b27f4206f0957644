//! The world of one run: hosts, network, clients, and the agenda that drives them. No threads, no real time.
//!
//! Here is what happens to hosts; what clients do is in `clients.rs`, what befalls everybody in `faults.rs`.

use super::books::Books;
use super::calls::{CallNumber, OpenCall};
use super::clients::Client;
use super::clock::HostClock;
use super::event::{Agenda, Happening};
use super::faults::Changes;
use super::host::{Host, GOOD_DISK};
use super::names;
use super::network::Network;
use super::plain::Role;
use super::plan::Plan;
use crate::checker::history::SeenQueued;
use crate::checker::{History, Operation};
use crate::rng::Rng;
use bytes::{Buf, BytesMut};
use redfence::node_api::wire;
use redfence::node_api::{Input, NodeId, Outputs, PeerMessage, SnapshotMeta, Ticket, GROUP};
use redfence::tier2::NodeConfig;
use redfence_core::event::EventKind;
use std::collections::BTreeMap;

/// After so long without trouble everybody is served.
pub const SETTLE_US: u64 = 4_000_000;
/// Every so many seeds one is patient.
const PATIENT_EVERY: u64 = 10;
/// Frames are cut from pieces of this size.
const FRAMES_BYTES: usize = 8 << 10;

pub struct World {
    pub plan: Plan,
    pub now_us: u64,
    pub agenda: Agenda,
    pub hosts: BTreeMap<NodeId, Host>,
    pub network: Network,
    pub clients: Vec<Client>,
    pub calls: BTreeMap<CallNumber, OpenCall>,
    pub call_of_ticket: BTreeMap<Ticket, CallNumber>,
    pub history: History,
    /// Locks that Redlock clients hold by a majority, as they see it.
    pub majorities: Vec<Operation>,
    pub books: Books,
    pub changes: Changes,
    pub rng: Rng,
    pub net_chance: Rng,
    /// Since when nothing is wrong; `None` while something is.
    pub calm_since_us: Option<u64>,
    /// When a disk last refused to write a snapshot.
    pub snapshot_refused_us: Option<u64>,
    /// The storm is over: no more misfortunes.
    pub healed: bool,
    /// Clients begin nothing new.
    pub clients_rest: bool,
    pub next_number: u64,
    /// What went wrong so far, first first.
    pub failures: Vec<String>,
    pub trace: bool,
    /// In the end it waits as long as anything can take, whether there is anything to wait for or not.
    pub patient: bool,
    out: Outputs,
    /// Where frames are built.
    frame: BytesMut,
}

#[must_use]
pub fn address(id: NodeId) -> String {
    format!("host{id}:7380")
}

impl World {
    #[must_use]
    pub fn new(seed: u64) -> World {
        // A run must not depend on those before it.
        redfence::tier2::scripts::forget_vm();
        let mut rng = Rng::new(seed);
        let plan = Plan::of(seed, &mut rng);
        let founders: Vec<(NodeId, String)> = (1..=plan.founders).map(|id| (id, address(id))).collect();
        let mut world = World {
            now_us: 0,
            agenda: Agenda::default(),
            hosts: BTreeMap::new(),
            network: Network::default(),
            clients: Vec::new(),
            calls: BTreeMap::new(),
            call_of_ticket: BTreeMap::new(),
            history: History::default(),
            majorities: Vec::new(),
            books: Books::default(),
            changes: Changes::new(plan.founders),
            net_chance: rng.fork(),
            calm_since_us: Some(0),
            snapshot_refused_us: None,
            healed: false,
            clients_rest: false,
            next_number: 1,
            failures: Vec::new(),
            trace: false,
            patient: seed.is_multiple_of(PATIENT_EVERY),
            out: Outputs::default(),
            frame: BytesMut::new(),
            rng,
            plan,
        };
        for (id, _) in &founders {
            world.add_host(*id, SnapshotMeta::founding(&founders));
            world.host(*id).member_since_us = Some(0);
        }
        for _ in 0..world.plan.clients {
            let mut client = Client::new(world.rng.fork(), world.number());
            client.role = Role::draw(&world.plan, &mut client.rng);
            world.clients.push(client);
            let at_us = world.rng.below(1_500_000);
            world.agenda.plan(at_us, Happening::ClientActs { client: world.clients.len() - 1 });
        }
        world.agenda.plan(1_000_000, Happening::Misfortune);
        world
    }

    /// A number never used before in this run.
    pub fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub fn host(&mut self, id: NodeId) -> &mut Host {
        self.hosts.get_mut(&id).unwrap_or_else(|| panic!("there is no host {id}"))
    }

    pub fn fail(&mut self, text: String) {
        if self.failures.len() < 20 {
            self.failures.push(format!("at {} ms: {text}", self.now_us / 1_000));
        }
    }

    pub fn add_host(&mut self, id: NodeId, first: SnapshotMeta) {
        let local_us = self.rng.below(100_000_000_000);
        let mut clock = HostClock::new(self.now_us, local_us);
        // Wall clocks of different machines are never quite alike.
        clock.jump_wall(self.rng.below(4_000_000) as i64 - 2_000_000);
        self.hosts.insert(id, Host::new(id, first, clock));
        self.start_host(id);
    }

    pub fn start_host(&mut self, id: NodeId) {
        let mut config = NodeConfig::new(id, self.rng.draw());
        self.plan.configure(&mut config);
        if let Err(error) = self.host(id).start(config) {
            self.fail(format!("node {id} does not start from its own disk: {error}"));
            return;
        }
        self.plan_turn(id);
    }

    /// The process of a host ends; its connections break.
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
        self.break_connections(id);
    }

    fn break_connections(&mut self, id: NodeId) {
        let broken: Vec<CallNumber> =
            self.calls.iter().filter(|(_, call)| call.host == id).map(|(number, _)| *number).collect();
        for call in broken {
            let at_us = self.now_us + self.rng.between(100, 20_000);
            self.agenda.plan(at_us, Happening::HungUp { call });
        }
    }

    /// Runs up to this time.
    pub fn run_to(&mut self, end_us: u64) {
        while let Some((at_us, happening)) = self.agenda.next(end_us) {
            self.now_us = self.now_us.max(at_us);
            self.tell(&happening);
            self.happen(happening);
        }
        self.now_us = end_us;
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver { from, to, message } => {
                if self.hosts.get(&to).is_some_and(Host::is_up) {
                    self.give(to, Input::Peer { from, message });
                }
            }
            Happening::Turn { host, life } => {
                if self.lives(host, life) {
                    self.turn(host);
                }
            }
            Happening::Wake { host, life } => {
                if self.lives(host, life) && self.host(host).wake_at_us <= self.now_us {
                    self.give(host, Input::Wake);
                }
            }
            Happening::Synced { host, life } => {
                if self.lives(host, life) {
                    self.synced(host);
                }
            }
            Happening::SnapshotOp { host, life } => {
                if self.lives(host, life) {
                    self.snapshot_op(host);
                }
            }
            Happening::Request { host, life, input } => {
                if self.lives(host, life) {
                    self.give(host, input);
                }
            }
            Happening::Answer { ticket, reply } => self.answered(ticket, &reply),
            Happening::HungUp { call } => self.hung_up(call),
            Happening::ClientActs { client } => self.client_acts(client),
            Happening::Touch { call } => self.touch_blocked(call),
            Happening::Misfortune => self.faults(),
            Happening::Relief { what } => self.relieve(what),
        }
    }

    pub fn lives(&self, id: NodeId, life: u64) -> bool {
        self.hosts.get(&id).is_some_and(|host| host.is_up() && host.life == life)
    }

    /// Puts an input into a node's queue.
    pub fn give(&mut self, id: NodeId, input: Input) {
        self.host(id).inbox.push(input);
        self.plan_turn(id);
    }

    /// Whatever has come by the next turn is taken together, as the real shell does.
    pub fn plan_turn(&mut self, id: NodeId) {
        let at_us = self.now_us + self.rng.below(60);
        let host = self.host(id);
        if !host.turn_planned && !host.paused {
            host.turn_planned = true;
            let life = host.life;
            self.agenda.plan(at_us, Happening::Turn { host: id, life });
        }
    }

    fn turn(&mut self, id: NodeId) {
        let now_us = self.now_us;
        let mut out = std::mem::take(&mut self.out);
        let host = self.host(id);
        host.turn_planned = false;
        host.turns += 1;
        if host.paused {
            self.out = out;
            return;
        }
        let now = host.clock.now(now_us);
        if let Some(node) = &mut host.node {
            for input in host.inbox.drain(..) {
                node.input(now, input);
            }
            node.turn(now, &mut out);
        }
        self.carry_out(id, &mut out);
        out.clear();
        self.out = out;
    }

    fn carry_out(&mut self, id: NodeId, out: &mut Outputs) {
        // Whatever a snapshot took the place of was never applied here, and may still lie on the disk.
        let installed =
            out.persist.iter().filter_map(|task| task.install.as_ref()).map(|meta| meta.at.index).max();
        self.note_applied(id, installed.unwrap_or(0));
        for (ticket, reply) in out.replies.drain(..) {
            self.replied(ticket, reply);
        }
        for event in out.events.drain(..).filter(|event| event.kind == EventKind::Queued) {
            self.history.queued.push(SeenQueued {
                at_ns: self.now_us * 1_000,
                resource: names::resource_number(&event.resource),
                owner: names::owner_number(&event.owner),
            });
        }
        for (to, message) in out.send.drain(..) {
            self.send(id, to, message);
        }
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
        let host = self.host(id);
        host.to_write.append(&mut out.persist);
        host.snapshot_ops.extend(out.snapshot_ops.drain(..));
        if let Some(members) = out.members.take() {
            host.members = members;
        }
        if let Some(reason) = out.fatal.take() {
            self.gave_up(id, &reason);
            return;
        }
        if out.stopped {
            self.stop_host(id, false);
            return;
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
            self.agenda.plan(wake_at_us, Happening::Wake { host: id, life });
        }
    }

    /// A node that cannot write must stop; any other reason to stop is a failure.
    fn gave_up(&mut self, id: NodeId, reason: &str) {
        if self.host(id).write_failed {
            let power_cut = self.rng.per_mille(500);
            self.stop_host(id, power_cut);
            self.start_later(id);
        } else {
            self.fail(format!("node {id} gave up: {reason}"));
            self.stop_host(id, false);
        }
    }

    fn note_applied(&mut self, id: NodeId, installed: u64) {
        let host = self.hosts.get_mut(&id).expect("it has just had its turn");
        let Some(node) = &host.node else { return };
        let applied = node.applied_index();
        if applied == host.applied_seen {
            return;
        }
        let from = std::mem::replace(&mut host.applied_seen, applied).max(installed);
        host.first_applied_us.get_or_insert(self.now_us);
        let noted = self.books.note_applied(id, node, &host.disk, from, applied);
        self.agenda.note(applied);
        self.tell_text(|| format!("node {id} applied {applied}"));
        if let Err(text) = noted {
            self.fail(text);
        }
    }

    fn begin_write(&mut self, id: NodeId) {
        let (low_us, high_us) = self.host(id).mood.sync_us;
        let at_us = self.now_us + self.rng.between(low_us, high_us);
        let host = self.host(id);
        match host.begin_write() {
            None => {}
            Some(Ok(())) => {
                let life = host.life;
                self.agenda.plan(at_us, Happening::Synced { host: id, life });
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
        if !host.snapshot_busy && !host.snapshot_ops.is_empty() {
            host.snapshot_busy = true;
            let life = host.life;
            self.agenda.plan(at_us, Happening::SnapshotOp { host: id, life });
        }
    }

    fn snapshot_op(&mut self, id: NodeId) {
        use redfence::node_api::SnapshotOp;
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

    pub fn send(&mut self, from: NodeId, to: NodeId, message: PeerMessage) {
        if !self.hosts.contains_key(&to) {
            return;
        }
        let mut arrivals = self.network.arrivals(from, to, self.now_us, &mut self.net_chance);
        let Some(last_us) = arrivals.pop() else {
            if self.net_chance.per_mille(200) {
                self.give(from, Input::Unreachable(to));
            }
            return;
        };
        let message = through_bytes(&message, &mut self.frame);
        for at_us in arrivals {
            self.agenda.plan(at_us, Happening::Deliver { from, to, message: message.clone() });
        }
        self.agenda.plan(last_us, Happening::Deliver { from, to, message });
    }

    /// Looks whether anything is wrong, after something changed.
    pub fn note_calm(&mut self) {
        let all_well = self.network.is_calm()
            && self.hosts.values().all(|host| {
                host.is_up()
                    && !host.paused
                    && !host.stopping
                    && host.mood == GOOD_DISK
                    && host.clock.is_true()
            });
        self.calm_since_us = match (all_well, self.calm_since_us) {
            (true, Some(since_us)) => Some(since_us),
            (true, None) => Some(self.now_us),
            (false, _) => None,
        };
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
