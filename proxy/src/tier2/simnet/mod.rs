//! A cluster of real [`Node`]s on a simulated network, disk and clock, from one seed. No threads, no real time.
//!
//! For unit tests; the seeded simulator of the `tests` crate has its own. Messages go through their real bytes; disks are [`MemoryDisk`]s that lose what was not
//! synced; each host has clocks of its own. Everything that happens is an event in one heap, so a seed repeats a run.
//!
//! # Layout
//!
//! - `host.rs`: one machine: node, disk, writer, clocks; - `rules.rs`: what the network does to messages

mod host;
mod rules;

use crate::node_api::wire;
use crate::node_api::{
    AdminRequest, ConnectionId, Input, NodeId, Outputs, OwnedQuery, PeerMessage, Read, SnapshotMeta, Submit,
    Ticket, GROUP,
};
use crate::storage::memory::MemoryDisk;
use crate::tier2::config::NodeConfig;
use crate::tier2::node::rng::Rng;
use crate::tier2::node::Node;
use crate::tier2::requests::encoded;
use bytes::{Buf, BytesMut};
use host::Host;
use redfence_core::event::Event;
use redfence_core::machine::{Command, Wanted};
use redfence_core::reply::Reply;
pub(in crate::tier2) use rules::Rules;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How long a client waits, unless a test says otherwise.
pub(in crate::tier2) const TIMEOUT_MS: u64 = 5_000;

/// Something that happens at a time. `life` tells a host's starts apart: what was meant for an earlier one is dropped.
enum SimEvent {
    Deliver { from: NodeId, to: NodeId, message: PeerMessage },
    Input { to: NodeId, life: u64, input: Input },
    Synced { host: NodeId, life: u64 },
    Wake { host: NodeId, life: u64 },
}

/// A lock event as some node's apply has shown it.
#[derive(Clone, Debug)]
pub(in crate::tier2) struct ObservedEvent {
    pub(in crate::tier2) at_ms: u64,
    pub(in crate::tier2) event: Event,
}

pub(in crate::tier2) struct SimCluster {
    pub(in crate::tier2) rules: Rules,
    now_us: u64,
    next_order: u64,
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: BTreeMap<u64, SimEvent>,
    hosts: BTreeMap<NodeId, Host>,
    rng: Rng,
    next_ticket: Ticket,
    pub(in crate::tier2) answers: BTreeMap<Ticket, Reply>,
    pub(in crate::tier2) events: Vec<ObservedEvent>,
    /// A fingerprint of everything that was delivered: equal for equal runs.
    pub(in crate::tier2) trace: u64,
    configure: fn(&mut NodeConfig),
}

impl SimCluster {
    /// `founders` nodes with ids from 1, running.
    #[must_use]
    pub(in crate::tier2) fn new(founders: u64, seed: u64, configure: fn(&mut NodeConfig)) -> SimCluster {
        let mut cluster = SimCluster {
            rules: Rules::default(),
            now_us: 0,
            next_order: 0,
            heap: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            hosts: BTreeMap::new(),
            rng: Rng::new(seed),
            next_ticket: 1,
            answers: BTreeMap::new(),
            events: Vec::new(),
            trace: 0,
            configure,
        };
        let list: Vec<(NodeId, String)> = (1..=founders).map(|id| (id, addr(id))).collect();
        for (id, _) in &list {
            cluster.add_host(*id, SnapshotMeta::founding(&list));
        }
        cluster
    }

    /// A new machine that waits to be added.
    pub(in crate::tier2) fn add_joiner(&mut self, id: NodeId) {
        self.add_host(id, SnapshotMeta::joining());
    }

    fn add_host(&mut self, id: NodeId, first: SnapshotMeta) {
        let skew_ms = self.rng.next() % 1_000_000;
        self.hosts.insert(id, Host::new(MemoryDisk::new(first), skew_ms));
        self.start(id);
    }

    /// Starts a stopped host from its disk.
    pub(in crate::tier2) fn start(&mut self, id: NodeId) {
        let seed = self.rng.next();
        let mut config = NodeConfig::new(id, seed);
        (self.configure)(&mut config);
        let host = self.host_mut(id);
        assert!(host.node.is_none(), "host {id} runs already");
        let store = host.disk.open().expect("a simulated disk opens");
        let recovered = crate::storage::LogStore::recovered(&store);
        let reader = crate::storage::LogStore::reader(&store);
        host.node = Some(Node::new(config, recovered, reader).expect("a node starts from its own disk"));
        host.store = Some(store);
        self.input(id, Input::Wanted(Wanted { events: true, ..Wanted::default() }));
    }

    /// The host loses power: the node is gone, and of unsynced writes a random part.
    pub(in crate::tier2) fn crash(&mut self, id: NodeId) {
        let draw = self.rng.next();
        let host = self.host_mut(id);
        let survivors = (draw % (host.disk.unsynced_tasks() as u64 + 1)) as usize;
        host.stop();
        host.disk.crash(survivors);
    }

    /// The host stands still: time passes, it does not notice. What comes for it waits.
    pub(in crate::tier2) fn pause(&mut self, id: NodeId) {
        self.host_mut(id).paused = true;
    }

    pub(in crate::tier2) fn resume(&mut self, id: NodeId) {
        let host = self.host_mut(id);
        host.paused = false;
        let backlog = std::mem::take(&mut host.backlog);
        for happening in backlog {
            self.schedule(0, happening);
        }
        self.wake(id, 0);
    }

    #[must_use]
    pub(in crate::tier2) fn is_up(&self, id: NodeId) -> bool {
        self.hosts.get(&id).is_some_and(|host| host.node.is_some())
    }

    #[must_use]
    pub(in crate::tier2) fn node(&self, id: NodeId) -> Option<&Node> {
        self.hosts.get(&id)?.node.as_ref()
    }

    #[must_use]
    pub(in crate::tier2) fn ids(&self) -> Vec<NodeId> {
        self.hosts.keys().copied().collect()
    }

    #[must_use]
    pub(in crate::tier2) fn stopped(&self, id: NodeId) -> bool {
        self.hosts.get(&id).is_some_and(|host| host.stopped)
    }

    /// The node that leads in the highest term, as the nodes themselves see it.
    #[must_use]
    pub(in crate::tier2) fn leader(&self) -> Option<NodeId> {
        let leaders = self.hosts.values().filter(|host| !host.paused).filter_map(|host| host.node.as_ref());
        leaders.filter(|node| node.is_leader()).map(|node| (node.term(), node.id())).max().map(|(_, id)| id)
    }

    #[must_use]
    pub(in crate::tier2) fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    pub(in crate::tier2) fn submit(&mut self, id: NodeId, command: &Command<'_>, wait_ms: u64) -> Ticket {
        self.submit_by(id, 0, command, wait_ms)
    }

    /// By a certain connection: its commands keep their order.
    pub(in crate::tier2) fn submit_by(
        &mut self,
        id: NodeId,
        connection: ConnectionId,
        command: &Command<'_>,
        wait_ms: u64,
    ) -> Ticket {
        let blob = encoded(command);
        let timeout_ms = TIMEOUT_MS;
        self.ask(id, |ticket| Input::Submit(Submit { ticket, connection, blob, timeout_ms, wait_ms }))
    }

    pub(in crate::tier2) fn read(&mut self, id: NodeId, query: OwnedQuery) -> Ticket {
        self.ask(id, |ticket| Input::Read(Read { ticket, query, timeout_ms: TIMEOUT_MS, account: None }))
    }

    pub(in crate::tier2) fn admin(&mut self, id: NodeId, request: AdminRequest) -> Ticket {
        self.ask(id, |ticket| Input::Admin { ticket, request, timeout_ms: TIMEOUT_MS })
    }

    fn ask(&mut self, id: NodeId, input: impl FnOnce(Ticket) -> Input) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.input(id, input(ticket));
        ticket
    }

    /// Hands an input to a node now.
    pub(in crate::tier2) fn input(&mut self, to: NodeId, input: Input) {
        let life = self.host_mut(to).life;
        self.schedule(0, SimEvent::Input { to, life, input });
    }

    #[must_use]
    pub(in crate::tier2) fn answer(&self, ticket: Ticket) -> Option<&Reply> {
        self.answers.get(&ticket)
    }

    pub(in crate::tier2) fn run_for(&mut self, ms: u64) {
        let end_us = self.now_us + ms * 1_000;
        while self.heap.peek().is_some_and(|Reverse((at_us, _))| *at_us <= end_us) {
            self.happen();
        }
        self.now_us = end_us;
    }

    /// Runs until `done`, or for `ms_max`. Answers whether it was done.
    pub(in crate::tier2) fn run_until(&mut self, ms_max: u64, done: impl Fn(&SimCluster) -> bool) -> bool {
        let end_us = self.now_us + ms_max * 1_000;
        while !done(self) {
            match self.heap.peek() {
                Some(Reverse((at_us, _))) if *at_us <= end_us => self.happen(),
                Some(_) | None => {
                    self.now_us = end_us;
                    return done(self);
                }
            }
        }
        true
    }

    /// The reply to a request, running until it comes.
    pub(in crate::tier2) fn wait_for(&mut self, ticket: Ticket, ms_max: u64) -> Reply {
        assert!(
            self.run_until(ms_max, |cluster| cluster.answers.contains_key(&ticket)),
            "no answer in {ms_max} ms"
        );
        self.answers[&ticket].clone()
    }

    pub(in crate::tier2) fn draw(&mut self, below: u64) -> u64 {
        self.rng.next() % below.max(1)
    }

    fn host_mut(&mut self, id: NodeId) -> &mut Host {
        self.hosts.get_mut(&id).unwrap_or_else(|| panic!("there is no host {id}"))
    }

    fn schedule(&mut self, delay_us: u64, happening: SimEvent) {
        self.next_order += 1;
        self.heap.push(Reverse((self.now_us + delay_us, self.next_order)));
        self.happenings.insert(self.next_order, happening);
    }

    fn wake(&mut self, host: NodeId, delay_us: u64) {
        let life = self.host_mut(host).life;
        self.schedule(delay_us, SimEvent::Wake { host, life });
    }

    fn happen(&mut self) {
        let Some(Reverse((at_us, order))) = self.heap.pop() else { return };
        self.now_us = self.now_us.max(at_us);
        let happening = self.happenings.remove(&order).expect("scheduled once");
        let to = happening.host();
        self.trace = self.trace.rotate_left(5) ^ at_us ^ (to << 40) ^ happening.kind();
        let Some(host) = self.hosts.get_mut(&to) else { return };
        if host.paused {
            host.backlog.push(happening);
            return;
        }
        if happening.life().is_some_and(|life| life != host.life) || host.node.is_none() {
            return;
        }
        match happening {
            SimEvent::Deliver { from, message, .. } => self.step(to, Input::Peer { from, message }),
            SimEvent::Input { input, .. } => self.step(to, input),
            SimEvent::Synced { .. } => self.synced(to),
            SimEvent::Wake { .. } => self.step(to, Input::Wake),
        }
    }

    /// One input and a turn of a node, and all that comes of it.
    fn step(&mut self, id: NodeId, input: Input) {
        let now_us = self.now_us;
        let host = self.host_mut(id);
        let now = host.clocks(now_us);
        let mut out = Outputs::default();
        if let Some(node) = &mut host.node {
            node.step(now, input, &mut out);
        }
        self.carry_out(id, now.monotonic_us, out);
    }

    fn carry_out(&mut self, id: NodeId, host_now_us: u64, mut out: Outputs) {
        assert!(out.fatal.is_none(), "node {id} gave up: {:?}", out.fatal);
        let at_ms = self.now_ms();
        for (ticket, reply) in out.replies.drain(..) {
            let earlier = self.answers.insert(ticket, reply);
            assert!(earlier.is_none(), "ticket {ticket} was answered twice");
        }
        self.events.extend(out.events.drain(..).map(|event| ObservedEvent { at_ms, event }));
        for (to, message) in out.send.drain(..) {
            self.send(id, to, message);
        }
        let host = self.host_mut(id);
        host.to_write.append(&mut out.persist);
        let life = host.life;
        let disk = host.disk.clone();
        for op in out.snapshot_ops.drain(..) {
            if let Some(input) = disk.carry_out(op) {
                let delay_us = 200 + self.draw(self.rules.disk_us_max);
                self.schedule(delay_us, SimEvent::Input { to: id, life, input });
            }
        }
        self.start_write(id);
        if out.stopped {
            let host = self.host_mut(id);
            host.stop();
            host.stopped = true;
            return;
        }
        let wake_in_us = out.wake_at_us.saturating_sub(host_now_us);
        let (now_us, wake_at_us) = (self.now_us, self.now_us + wake_in_us.max(100));
        if self.host_mut(id).wants_wake(now_us, wake_at_us) {
            self.wake(id, wake_at_us - now_us);
        }
    }

    /// The writer takes all that waits, writes it, and is busy until it is synced.
    fn start_write(&mut self, id: NodeId) {
        let delay_us = 100 + self.draw(self.rules.disk_us_max);
        let host = self.host_mut(id);
        if host.begin_write() {
            let life = host.life;
            self.schedule(delay_us, SimEvent::Synced { host: id, life });
        }
    }

    fn synced(&mut self, id: NodeId) {
        let (number, after) = self.host_mut(id).end_write();
        self.step(id, Input::Persisted { number });
        for (to, message) in after {
            self.send(id, to, message);
        }
        self.start_write(id);
    }

    fn send(&mut self, from: NodeId, to: NodeId, message: PeerMessage) {
        if !self.rules.passes(from, to) || !self.hosts.contains_key(&to) {
            return;
        }
        if self.draw(1_000) < self.rules.loss_permille {
            return;
        }
        let message = through_bytes(&message);
        if self.draw(1_000) < self.rules.double_permille {
            let delay_us = self.delay_us(from, to, true);
            self.schedule(delay_us, SimEvent::Deliver { from, to, message: message.clone() });
        }
        let reordered = self.draw(1_000) < self.rules.reorder_permille;
        let delay_us = self.delay_us(from, to, reordered);
        self.schedule(delay_us, SimEvent::Deliver { from, to, message });
    }

    /// In order along a link, unless the message is to be reordered.
    fn delay_us(&mut self, from: NodeId, to: NodeId, reordered: bool) -> u64 {
        let delay_us = self.rules.delay_us_min + self.draw(self.rules.delay_us_max - self.rules.delay_us_min);
        if reordered {
            return delay_us + self.draw(5 * self.rules.delay_us_max);
        }
        let arrives_us = self.rules.in_order(from, to, self.now_us + delay_us);
        arrives_us - self.now_us
    }
}

/// What the other side decodes from what this side encodes.
fn through_bytes(message: &PeerMessage) -> PeerMessage {
    let mut frame = BytesMut::new();
    wire::encode_frame(GROUP, message, &mut frame).expect("a frame holds the largest message");
    frame.advance(4);
    wire::decode_frame(frame.freeze()).expect("our own frame is well formed").1
}

#[must_use]
pub(in crate::tier2) fn addr(id: NodeId) -> String {
    format!("host{id}:7380")
}

impl SimEvent {
    fn host(&self) -> NodeId {
        match self {
            SimEvent::Deliver { to, .. } | SimEvent::Input { to, .. } => *to,
            SimEvent::Synced { host, .. } | SimEvent::Wake { host, .. } => *host,
        }
    }

    fn life(&self) -> Option<u64> {
        match self {
            SimEvent::Deliver { .. } => None,
            SimEvent::Input { life, .. } | SimEvent::Synced { life, .. } | SimEvent::Wake { life, .. } => {
                Some(*life)
            }
        }
    }

    fn kind(&self) -> u64 {
        match self {
            SimEvent::Deliver { from, .. } => 1 + (from << 8),
            SimEvent::Input { .. } => 2,
            SimEvent::Synced { .. } => 3,
            SimEvent::Wake { .. } => 4,
        }
    }
}
