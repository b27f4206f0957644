//! What befalls the cluster, and what its operators do to it; and the end of all that.

use super::event::{Happening, Relief};
use super::host::{DiskFaults, GOOD_DISK};
use super::plan::Fault;
use super::world::{address, World};
use redfence::node_api::{AdminRequest, Input, NodeId, SnapshotMeta, Ticket};
use redfence_core::reply::Reply;
use std::collections::{BTreeMap, BTreeSet};

/// Most members a cluster grows to.
const MEMBERS_MAX: usize = 5;
const YEAR_US: u64 = 365 * 24 * 3_600 * 1_000_000;

/// Changes of membership: asked, and acknowledged.
pub struct Changes {
    next_id: NodeId,
    asked: BTreeMap<Ticket, AdminRequest>,
    pub added: BTreeSet<NodeId>,
    pub removed: BTreeSet<NodeId>,
    /// Whom anybody asked to remove, whatever came of it.
    pub remove_asked: BTreeSet<NodeId>,
    /// The last time somebody changed anything.
    pub unsettled_us: u64,
}

impl Changes {
    #[must_use]
    pub fn new(founders: u64) -> Changes {
        Changes {
            next_id: founders + 1,
            asked: BTreeMap::new(),
            added: BTreeSet::new(),
            removed: BTreeSet::new(),
            remove_asked: BTreeSet::new(),
            unsettled_us: 0,
        }
    }

    #[must_use]
    pub fn under_way(&self) -> bool {
        !self.asked.is_empty()
    }
}

impl World {
    pub(super) fn faults(&mut self) {
        if self.healed {
            return;
        }
        let next_us = self.now_us + 1_000 * self.rng.between(20, 2 * self.plan.fault_every_ms);
        self.agenda.plan(next_us, Happening::Misfortune);
        let Some(fault) = self.rng.pick(&self.plan.faults).copied() else { return };
        let ids: Vec<NodeId> = self.hosts.keys().copied().collect();
        let victim = *self.rng.pick(&ids).expect("there are hosts");
        self.strike(fault, victim, &ids);
        self.note_calm();
    }

    fn strike(&mut self, fault: Fault, victim: NodeId, ids: &[NodeId]) {
        let up = self.hosts[&victim].is_up();
        let lasts_ms = *self.rng.pick(&[100, 600, 2_000, 6_000]).expect("not empty");
        let ends_us = self.now_us + 1_000 * self.rng.between(10, lasts_ms);
        match fault {
            Fault::Kill | Fault::PowerCut if up => {
                self.stop_host(victim, fault == Fault::PowerCut);
                self.start_later(victim);
            }
            Fault::Blackout if self.rng.per_mille(300) => {
                for id in ids {
                    if self.hosts[id].is_up() {
                        let power_cut = self.rng.per_mille(700);
                        self.stop_host(*id, power_cut);
                        self.start_later(*id);
                    }
                }
            }
            Fault::Pause if up && !self.hosts[&victim].paused => {
                self.host(victim).paused = true;
                let life = self.hosts[&victim].life;
                self.relieve_at(ends_us, Relief::Resume { host: victim, life });
            }
            Fault::Split => {
                let (one, other): (Vec<NodeId>, Vec<NodeId>) =
                    ids.iter().partition(|_| self.rng.per_mille(500));
                self.network.split(&one, &other);
                self.relieve_at(ends_us, Relief::HealNetwork);
            }
            Fault::OneWay => {
                let other = *self.rng.pick(ids).expect("there are hosts");
                self.network.cut.insert((victim, other));
                self.relieve_at(ends_us, Relief::HealNetwork);
            }
            Fault::BadNetwork => {
                self.network.loss_permille = self.rng.below(300);
                self.network.double_permille = self.rng.below(150);
                self.network.reorder_permille = self.rng.below(300);
                let slowest_us = *self.rng.pick(&[1_000, 20_000, 150_000]).expect("not empty");
                self.network.delay_us = (100, slowest_us);
                self.relieve_at(ends_us, Relief::HealNetwork);
            }
            Fault::SlowDisk => {
                let slowest_us = *self.rng.pick(&[20_000, 300_000, 2_000_000]).expect("not empty");
                self.host(victim).mood = DiskFaults { sync_us: (1_000, slowest_us), ..GOOD_DISK };
                self.relieve_at(ends_us, Relief::GoodDisk { host: victim });
            }
            Fault::DiskError if up => {
                self.host(victim).mood.fails = true;
                self.relieve_at(ends_us, Relief::GoodDisk { host: victim });
            }
            Fault::SnapshotError => {
                self.host(victim).mood.refuses_snapshots = true;
                self.relieve_at(ends_us, Relief::GoodDisk { host: victim });
            }
            Fault::WallJump => {
                let reach_us = *self.rng.pick(&[1_000_000, 3_600_000_000, YEAR_US]).expect("not empty");
                let offset_us = self.rng.below(2 * reach_us) as i64 - reach_us as i64;
                self.host(victim).clock.jump_wall(offset_us);
            }
            Fault::ClockRate => {
                let off_ppm = self.rng.below(self.plan.rate_off_ppm + 1);
                let rate_ppm = match self.rng.per_mille(500) {
                    true => 1_000_000 + off_ppm,
                    false => 1_000_000 * 1_000_000 / (1_000_000 + off_ppm),
                };
                let now_us = self.now_us;
                self.host(victim).clock.set_rate(now_us, rate_ppm);
                self.relieve_at(ends_us, Relief::TrueRate { host: victim });
            }
            Fault::Members => self.change_members(victim),
            Fault::Transfer => self.ask_operator(AdminRequest::Transfer { id: victim }),
            Fault::Shutdown if up && !self.hosts[&victim].stopping => {
                self.host(victim).stopping = true;
                self.give(victim, Input::Shutdown);
                self.start_later(victim);
            }
            Fault::Kill
            | Fault::PowerCut
            | Fault::Blackout
            | Fault::Pause
            | Fault::DiskError
            | Fault::Shutdown => {}
        }
    }

    fn relieve_at(&mut self, at_us: u64, what: Relief) {
        self.agenda.plan(at_us, Happening::Relief { what });
    }

    /// A host that is down, or goes down, comes back after a while.
    pub(super) fn start_later(&mut self, id: NodeId) {
        let lasts_ms = *self.rng.pick(&[5, 300, 3_000]).expect("not empty");
        let at_us = self.now_us + 1_000 * self.rng.between(1, lasts_ms);
        let life = self.hosts[&id].life;
        self.relieve_at(at_us, Relief::Start { host: id, life });
    }

    pub(super) fn relieve(&mut self, what: Relief) {
        match what {
            Relief::Start { host, life } => {
                if !self.hosts[&host].is_up() {
                    self.start_host(host);
                } else if self.hosts[&host].stopping && self.hosts[&host].life == life {
                    // A shutdown takes its time: look again.
                    self.start_later(host);
                }
            }
            Relief::Resume { host, life } => {
                if self.lives(host, life) {
                    self.resume(host);
                }
            }
            Relief::HealNetwork => self.network.heal(),
            Relief::GoodDisk { host } => self.host(host).mood = GOOD_DISK,
            Relief::TrueRate { host } => {
                let now_us = self.now_us;
                self.host(host).clock.set_rate(now_us, 1_000_000);
            }
        }
        self.note_calm();
    }

    fn resume(&mut self, id: NodeId) {
        let host = self.host(id);
        host.paused = false;
        host.turn_planned = false;
        let life = host.life;
        if std::mem::take(&mut host.synced_in_sleep) {
            self.agenda.plan(self.now_us, Happening::Synced { host: id, life });
        }
        self.give(id, Input::Wake);
    }

    fn change_members(&mut self, victim: NodeId) {
        if self.changes.under_way() {
            return;
        }
        let members: Vec<NodeId> =
            self.hosts.values().filter(|host| host.member_since_us.is_some()).map(|host| host.id).collect();
        if members.len() < MEMBERS_MAX && (members.len() < 3 || self.rng.per_mille(500)) {
            let id = self.changes.next_id;
            self.changes.next_id += 1;
            self.add_host(id, SnapshotMeta::joining());
            self.ask_operator(AdminRequest::Add { id, addr: address(id) });
        } else if members.contains(&victim) && members.len() > 1 {
            self.host(victim).member_since_us = None;
            self.changes.remove_asked.insert(victim);
            self.ask_operator(AdminRequest::Remove { id: victim });
        }
    }

    /// Takes the answer to an operator's request. False: it was a client's.
    pub(super) fn operator_answered(&mut self, ticket: Ticket, reply: &Reply) -> bool {
        let Some(request) = self.changes.asked.remove(&ticket) else { return false };
        let now_us = self.now_us;
        self.changes.unsettled_us = now_us;
        match (request, reply) {
            (AdminRequest::Add { id, .. }, Reply::Status(_)) => {
                self.changes.added.insert(id);
                self.host(id).member_since_us = Some(now_us);
            }
            (AdminRequest::Remove { id }, Reply::Status(_)) => {
                self.changes.removed.insert(id);
            }
            _ => {}
        }
        true
    }

    fn ask_operator(&mut self, request: AdminRequest) {
        let up: Vec<NodeId> = self
            .hosts
            .values()
            .filter(|host| host.is_up() && host.member_since_us.is_some())
            .map(|host| host.id)
            .collect();
        let Some(&at) = self.rng.pick(&up) else { return };
        let ticket = self.number();
        self.changes.unsettled_us = self.now_us;
        self.changes.asked.insert(ticket, request.clone());
        self.give(at, Input::Admin { ticket, request, timeout_ms: 3_000 });
    }

    /// Everything that is broken is mended.
    pub fn heal(&mut self) {
        self.healed = true;
        self.network.heal();
        // Answers that a dead node owes its operators never come.
        self.changes.asked.clear();
        let ids: Vec<NodeId> = self.hosts.keys().copied().collect();
        for id in ids {
            let now_us = self.now_us;
            let host = self.host(id);
            host.mood = GOOD_DISK;
            host.clock.set_rate(now_us, 1_000_000);
            if host.paused {
                self.resume(id);
            }
            if self.hosts[&id].stopping {
                self.stop_host(id, false);
            }
            if !self.hosts[&id].is_up() {
                self.start_host(id);
            }
        }
        self.calm_since_us = Some(self.now_us);
    }
}
