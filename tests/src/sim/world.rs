//! The world of one run: the kernel with its hosts and network, and what is drawn from the seed beside them. No threads, no real time.
//!
//! Here is what a turn of a node means to the world; what clients do is in `clients.rs`, what befalls everybody in `faults.rs`.

use super::books::Books;
use super::calls::{CallNumber, OpenCall};
use super::clients::Client;
use super::event::WorldEvent;
use super::faults::Changes;
use super::kernel::host::{Host, GOOD_DISK};
use super::kernel::{address, AfterTurn, Happened, Kernel};
use super::kinds::Kinds;
use super::names;
use super::plain::Role;
use super::plan::Plan;
use super::upgrades::{self, Hold};
use super::wider::Wider;
use crate::checker::history::SeenQueued;
use crate::checker::{History, Operation};
use crate::rng::Rng;
use redfence::node_api::{NodeId, SnapshotMeta, Ticket};
use redfence::tier2::NodeConfig;
use redfence_core::event::{Event, EventKind};
use std::collections::{BTreeMap, BTreeSet};

/// After so long without trouble everybody is served.
pub const SETTLE_US: u64 = 4_000_000;
/// Every so many seeds one is patient.
const PATIENT_EVERY: u64 = 10;
/// A node has its turn so soon after an input.
const TURN_US_MAX: u64 = 60;

pub struct World {
    pub plan: Plan,
    pub kernel: Kernel<WorldEvent>,
    pub clients: Vec<Client>,
    pub calls: BTreeMap<CallNumber, OpenCall>,
    pub call_of_ticket: BTreeMap<Ticket, CallNumber>,
    pub history: History,
    /// Locks that Redlock clients hold by a majority, as they see it.
    pub majorities: Vec<Operation>,
    pub books: Books,
    pub changes: Changes,
    pub hold: Hold,
    pub upgrades_asked: BTreeSet<Ticket>,
    pub wider: Wider,
    pub kinds: Kinds,
    /// Since when nothing is wrong; `None` while something is.
    pub calm_since_us: Option<u64>,
    /// The storm is over: no more faults.
    pub healed: bool,
    /// Clients begin nothing new.
    pub clients_rest: bool,
    pub next_number: u64,
    /// What went wrong so far, first first.
    pub failures: Vec<String>,
    /// In the end it waits as long as anything can take, whether there is anything to wait for or not.
    pub patient: bool,
}

impl World {
    #[must_use]
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let plan = Plan::of(seed, &mut rng);
        let founders: Vec<(NodeId, String)> = (1..=plan.founders).map(|id| (id, address(id))).collect();
        let mut world = World {
            kernel: Kernel::new(rng, TURN_US_MAX),
            clients: Vec::new(),
            calls: BTreeMap::new(),
            call_of_ticket: BTreeMap::new(),
            history: History::default(),
            majorities: Vec::new(),
            books: Books::default(),
            changes: Changes::new(plan.founders),
            hold: Hold::default(),
            upgrades_asked: BTreeSet::new(),
            wider: Wider::new(seed),
            kinds: Kinds::new(seed),
            calm_since_us: Some(0),
            healed: false,
            clients_rest: false,
            next_number: 1,
            failures: Vec::new(),
            patient: seed.is_multiple_of(PATIENT_EVERY),
            plan,
        };
        for (id, _) in &founders {
            world.add_host(*id, SnapshotMeta::founding(&founders));
            world.host(*id).member_since_us = Some(0);
        }
        for _ in 0..world.plan.clients {
            let mut client = Client::new(world.kernel.rng.fork(), world.number());
            client.role = Role::draw(&world.plan, &mut client.rng);
            world.clients.push(client);
            let at_us = world.kernel.rng.below(1_500_000);
            world.kernel.plan(at_us, WorldEvent::ClientActs { client: world.clients.len() - 1 });
        }
        world.kernel.plan(1_000_000, WorldEvent::Fault);
        if world.plan.wider {
            world.kernel.plan(700_000, WorldEvent::Wider);
        }
        if world.plan.kinds {
            world.kernel.plan(600_000, WorldEvent::Kinds);
        }
        world
    }

    /// A number never used before in this run.
    pub fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub fn host(&mut self, id: NodeId) -> &mut Host {
        self.kernel.host(id)
    }

    pub fn fail(&mut self, text: String) {
        if self.failures.len() < 20 {
            self.failures.push(format!("at {} ms: {text}", self.kernel.now_us / 1_000));
        }
    }

    pub fn add_host(&mut self, id: NodeId, first: SnapshotMeta) {
        self.kernel.add_host(id, first);
        if self.plan.mixed_versions {
            // A node that joins has the newer program: the greeting, which is not here, refuses one that is too old.
            let versions = if id <= self.plan.founders { upgrades::OLD } else { upgrades::NEW };
            self.host(id).versions = versions;
        }
        self.start_host(id);
    }

    pub fn start_host(&mut self, id: NodeId) {
        let (plan, versions) = (&self.plan, self.kernel.hosts[&id].versions);
        let configure = |config: &mut NodeConfig| {
            plan.configure(config);
            config.versions = versions;
        };
        if let Err(error) = self.kernel.start_host(id, configure) {
            self.fail(format!("node {id} does not start from its own disk: {error}"));
        }
    }

    /// The process of a host ends; its connections break.
    pub fn stop_host(&mut self, id: NodeId, power_cut: bool) {
        self.kernel.stop_host(id, power_cut);
        let broken: Vec<CallNumber> =
            self.calls.iter().filter(|(_, call)| call.host == id).map(|(number, _)| *number).collect();
        for call in broken {
            let at_us = self.kernel.now_us + self.kernel.rng.between(100, 20_000);
            self.kernel.plan(at_us, WorldEvent::HungUp { call });
        }
        if !power_cut {
            self.kernel.refuse_dials(id);
        }
    }

    /// Runs up to this time.
    pub fn run_to(&mut self, end_us: u64) {
        while let Some(event) = self.kernel.next(end_us) {
            self.tell(&event);
            match self.kernel.happen(event) {
                Happened::Nothing => {}
                Happened::Turned(id) => self.turned(id),
                Happened::Other(event) => self.happen(event),
            }
        }
        self.kernel.now_us = end_us;
    }

    fn happen(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Answer { ticket, reply } => self.answered(ticket, &reply),
            WorldEvent::HungUp { call } => self.hung_up(call),
            WorldEvent::ClientActs { client } => self.client_acts(client),
            WorldEvent::Touch { call } => self.touch_blocked(call),
            WorldEvent::Fault => self.faults(),
            WorldEvent::Wider => self.wider_acts(),
            WorldEvent::Kinds => self.kinds_act(),
            WorldEvent::Relief { what } => self.relieve(what),
        }
    }

    fn turned(&mut self, id: NodeId) {
        let mut out = std::mem::take(&mut self.kernel.out);
        // Whatever a snapshot took the place of was never applied here, and may still lie on the disk.
        let installed =
            out.persist.iter().filter_map(|task| task.install.as_ref()).map(|meta| meta.at.index).max();
        self.note_applied(id, installed.unwrap_or(0));
        for (ticket, reply) in out.replies.drain(..) {
            self.replied(ticket, reply);
        }
        let queued = |event: &Event| event.kind == EventKind::Queued && !names::is_kind(&event.resource);
        for event in out.events.drain(..).filter(queued) {
            self.history.queued.push(SeenQueued {
                at_ns: self.kernel.now_us * 1_000,
                resource: names::resource_number(&event.resource),
                owner: names::owner_number(&event.owner),
            });
        }
        self.kernel.out = out;
        match self.kernel.carry_out(id) {
            AfterTurn::GoesOn => {}
            AfterTurn::GaveUp(reason) => self.gave_up(id, &reason),
            AfterTurn::Stopped => self.stop_host(id, false),
        }
    }

    /// A node that cannot write must stop; any other reason to stop is a failure.
    fn gave_up(&mut self, id: NodeId, reason: &str) {
        if self.host(id).write_failed {
            let power_cut = self.kernel.rng.per_mille(500);
            self.stop_host(id, power_cut);
            self.start_later(id);
        } else {
            self.fail(format!("node {id} gave up: {reason}"));
            self.stop_host(id, false);
        }
    }

    fn note_applied(&mut self, id: NodeId, installed: u64) {
        let host = self.kernel.hosts.get_mut(&id).expect("it has just had its turn");
        let Some(node) = &host.node else { return };
        let applied = node.applied_index();
        if applied == host.applied_seen {
            return;
        }
        let from = std::mem::replace(&mut host.applied_seen, applied).max(installed);
        host.first_applied_us.get_or_insert(self.kernel.now_us);
        let noted = self.books.note_applied(id, node, &host.disk, from, applied);
        let digests = node.status().digests;
        self.kernel.agenda.note(applied);
        self.kernel.tell_text(|| format!("node {id} applied {applied}"));
        if let Err(text) = noted {
            self.fail(text);
        }
        // All nodes are healthy here, unless a bug is planted.
        if let Some(index) = digests.quarantined_at {
            self.fail(format!("node {id} is quarantined: its digest differs at entry {index}"));
        }
        if digests.no_majority {
            self.fail(format!("node {id} finds no majority of equal digests"));
        }
    }

    /// Looks whether anything is wrong, after something changed.
    pub fn note_calm(&mut self) {
        let all_well = self.kernel.network.is_calm()
            && self.kernel.hosts.values().all(|host| {
                host.is_up()
                    && !host.paused
                    && !host.stopping
                    && host.mood == GOOD_DISK
                    && host.clock.is_true()
            });
        self.calm_since_us = match (all_well, self.calm_since_us) {
            (true, Some(since_us)) => Some(since_us),
            (true, None) => Some(self.kernel.now_us),
            (false, _) => None,
        };
    }
}
