//! A cluster that a test drives step by step: it submits, pauses, cuts and crashes, and runs until something is so.
//!
//! The hosts, the network and the agenda are the [`kernel`](super::kernel)'s. Clients' requests and answers take no time here, and a
//! node has its turn at the moment of an input: what a test does at one moment is taken together.

use super::kernel::agenda::Mark;
use super::kernel::host::{DiskFaults, GOOD_DISK};
use super::kernel::network::Network;
use super::kernel::{address, AfterTurn, Happened, Kernel};
use crate::rng::Rng;
use redfence::node_api::{
    AdminRequest, ConnectionId, Input, NodeId, OwnedQuery, Read, SnapshotMeta, Submit, Ticket,
};
use redfence::tier2::{Node, NodeConfig};
use redfence_core::event::Event;
use redfence_core::machine::Command;
use redfence_core::reply::Reply;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

/// How long a client waits, unless a test says otherwise.
const TIMEOUT_MS: u64 = 5_000;

impl Mark for Infallible {
    fn mark(&self) -> u64 {
        match *self {}
    }
}

/// A lock event as some node's apply has shown it.
#[derive(Clone, Debug)]
pub struct ObservedEvent {
    pub at_ms: u64,
    pub event: Event,
}

pub struct SimCluster {
    kernel: Kernel<Infallible>,
    next_ticket: Ticket,
    pub answers: BTreeMap<Ticket, Reply>,
    pub events: Vec<ObservedEvent>,
    /// Nodes that stopped by themselves, after a shutdown.
    stopped: BTreeSet<NodeId>,
    configure: fn(&mut NodeConfig),
    /// Nodes that a test expects to stop, and why they did. Any other that gives up fails the test.
    pub may_give_up: BTreeSet<NodeId>,
    pub gave_up: BTreeMap<NodeId, String>,
}

impl SimCluster {
    /// `founders` nodes with ids from 1, running.
    #[must_use]
    pub fn new(founders: u64, seed: u64, configure: fn(&mut NodeConfig)) -> SimCluster {
        let mut cluster = SimCluster {
            kernel: Kernel::new(Rng::new(seed), 0),
            next_ticket: 1,
            answers: BTreeMap::new(),
            events: Vec::new(),
            stopped: BTreeSet::new(),
            configure,
            may_give_up: BTreeSet::new(),
            gave_up: BTreeMap::new(),
        };
        let list: Vec<(NodeId, String)> = (1..=founders).map(|id| (id, address(id))).collect();
        for (id, _) in &list {
            cluster.add_host(*id, SnapshotMeta::founding(&list));
        }
        cluster
    }

    /// A new machine that waits to be added.
    pub fn add_joiner(&mut self, id: NodeId) {
        self.add_host(id, SnapshotMeta::joining());
    }

    fn add_host(&mut self, id: NodeId, first: SnapshotMeta) {
        self.kernel.add_host(id, first);
        self.start(id);
    }

    /// What nodes are told from their next start on.
    pub fn set_configure(&mut self, configure: fn(&mut NodeConfig)) {
        self.configure = configure;
    }

    /// Starts a stopped host from its disk.
    pub fn start(&mut self, id: NodeId) {
        self.kernel.start_host(id, self.configure).expect("a node starts from its own disk");
    }

    /// The host loses power: the node is gone, and of unsynced writes a random part.
    pub fn crash(&mut self, id: NodeId) {
        self.kernel.stop_host(id, true);
    }

    /// The host stands still: time passes, it does not notice. What comes for it waits.
    pub fn pause(&mut self, id: NodeId) {
        self.kernel.host(id).paused = true;
    }

    pub fn resume(&mut self, id: NodeId) {
        self.kernel.resume(id);
    }

    pub fn network(&mut self) -> &mut Network {
        &mut self.kernel.network
    }

    /// From now on this node needs so much longer to sync and read back a snapshot file that is complete.
    pub fn slow_finish(&mut self, id: NodeId, finish_ms: u64) {
        self.kernel.host(id).mood.finish_us = finish_ms * 1_000;
    }

    /// Whether no snapshot file can be written.
    pub fn refuse_snapshots(&mut self, id: NodeId, refuses: bool) {
        self.kernel.host(id).mood.refuses_snapshots = refuses;
    }

    /// When a disk last refused a snapshot.
    #[must_use]
    pub fn snapshot_refused_us(&self) -> Option<u64> {
        self.kernel.snapshot_refused_us
    }

    /// From now on every disk takes up to so long to sync.
    pub fn slow_disks(&mut self, sync_us_max: u64) {
        for host in self.kernel.hosts.values_mut() {
            host.mood = DiskFaults { sync_us: (100, sync_us_max), ..GOOD_DISK };
        }
    }

    /// Network and disks are well again. What is paused or down stays so.
    pub fn heal(&mut self) {
        self.kernel.network.heal();
        for host in self.kernel.hosts.values_mut() {
            host.mood = GOOD_DISK;
        }
    }

    #[must_use]
    pub fn is_up(&self, id: NodeId) -> bool {
        self.node(id).is_some()
    }

    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.kernel.hosts.get(&id)?.node.as_ref()
    }

    /// Lets the state of one node differ from that of the others.
    #[cfg(any(debug_assertions, feature = "mutants"))]
    pub fn diverge(&mut self, id: NodeId, how: redfence_core::machine::digest::Divergence) {
        self.input(id, Input::Diverge(how));
    }

    #[must_use]
    pub fn ids(&self) -> Vec<NodeId> {
        self.kernel.hosts.keys().copied().collect()
    }

    #[must_use]
    pub fn stopped(&self, id: NodeId) -> bool {
        self.stopped.contains(&id)
    }

    /// The node that leads in the highest term, as the nodes themselves see it.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        self.kernel.leader()
    }

    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.kernel.now_us / 1_000
    }

    /// A fingerprint of everything that happened: equal for equal runs.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.kernel.agenda.trace
    }

    pub fn submit(&mut self, id: NodeId, command: &Command<'_>, wait_ms: u64) -> Ticket {
        self.submit_by(id, 0, command, wait_ms)
    }

    /// By a certain connection: its commands keep their order.
    pub fn submit_by(
        &mut self,
        id: NodeId,
        connection: ConnectionId,
        command: &Command<'_>,
        wait_ms: u64,
    ) -> Ticket {
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let (blob, timeout_ms) = (blob.into(), TIMEOUT_MS);
        self.ask(id, |ticket| Input::Submit(Submit { ticket, connection, blob, timeout_ms, wait_ms }))
    }

    pub fn read(&mut self, id: NodeId, query: OwnedQuery) -> Ticket {
        self.ask(id, |ticket| Input::Read(Read { ticket, query, timeout_ms: TIMEOUT_MS, account: None }))
    }

    pub fn admin(&mut self, id: NodeId, request: AdminRequest) -> Ticket {
        self.ask(id, |ticket| Input::Admin { ticket, request, timeout_ms: TIMEOUT_MS })
    }

    fn ask(&mut self, id: NodeId, input: impl FnOnce(Ticket) -> Input) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.input(id, input(ticket));
        ticket
    }

    /// Hands an input to a node now. Lost where the node is down.
    pub fn input(&mut self, to: NodeId, input: Input) {
        if self.kernel.host(to).is_up() {
            self.kernel.give(to, input);
        }
    }

    #[must_use]
    pub fn answer(&self, ticket: Ticket) -> Option<&Reply> {
        self.answers.get(&ticket)
    }

    pub fn run_for(&mut self, ms: u64) {
        self.run_until(ms, |_| false);
    }

    /// Runs until `done`, or for `ms_max`. Answers whether it was done.
    pub fn run_until(&mut self, ms_max: u64, done: impl Fn(&SimCluster) -> bool) -> bool {
        let end_us = self.kernel.now_us + ms_max * 1_000;
        while !done(self) {
            let Some(event) = self.kernel.next(end_us) else {
                self.kernel.now_us = end_us;
                return done(self);
            };
            match self.kernel.happen(event) {
                Happened::Nothing => {}
                Happened::Turned(id) => self.turned(id),
                Happened::Other(never) => match never {},
            }
        }
        true
    }

    /// The reply to a request, running until it comes.
    pub fn wait_for(&mut self, ticket: Ticket, ms_max: u64) -> Reply {
        assert!(
            self.run_until(ms_max, |cluster| cluster.answers.contains_key(&ticket)),
            "no answer in {ms_max} ms"
        );
        self.answers[&ticket].clone()
    }

    /// A random number below `below`, from the seed.
    pub fn draw(&mut self, below: u64) -> u64 {
        self.kernel.rng.below(below)
    }

    fn turned(&mut self, id: NodeId) {
        let at_ms = self.now_ms();
        for (ticket, reply) in self.kernel.out.replies.drain(..) {
            let earlier = self.answers.insert(ticket, reply);
            assert!(earlier.is_none(), "ticket {ticket} was answered twice");
        }
        self.events.extend(self.kernel.out.events.drain(..).map(|event| ObservedEvent { at_ms, event }));
        match self.kernel.carry_out(id) {
            AfterTurn::GoesOn => {}
            AfterTurn::GaveUp(reason) => {
                assert!(self.may_give_up.contains(&id), "node {id} gave up: {reason}");
                self.kernel.stop_host(id, false);
                self.gave_up.insert(id, reason);
            }
            AfterTurn::Stopped => {
                self.kernel.stop_host(id, false);
                self.stopped.insert(id);
            }
        }
    }
}
