//! What befalls the cluster, and what its operators do to it; and the end of all that.

use super::event::{Relief, WorldEvent};
use super::kernel::address;
use super::kernel::host::{DiskFaults, GOOD_DISK};
use super::plan::Fault;
use super::world::World;
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
        let next_us = self.kernel.now_us + 1_000 * self.kernel.rng.between(20, 2 * self.plan.fault_every_ms);
        self.kernel.plan(next_us, WorldEvent::Fault);
        let Some(fault) = self.kernel.rng.pick(&self.plan.faults).copied() else { return };
        let ids: Vec<NodeId> = self.kernel.hosts.keys().copied().collect();
        let victim = *self.kernel.rng.pick(&ids).expect("there are hosts");
        self.strike(fault, victim, &ids);
        self.note_calm();
    }

    fn strike(&mut self, fault: Fault, victim: NodeId, ids: &[NodeId]) {
        let up = self.kernel.hosts[&victim].is_up();
        let lasts_ms = *self.kernel.rng.pick(&[100, 600, 2_000, 6_000]).expect("not empty");
        let ends_us = self.kernel.now_us + 1_000 * self.kernel.rng.between(10, lasts_ms);
        match fault {
            Fault::Kill | Fault::PowerCut if up => {
                self.stop_host(victim, fault == Fault::PowerCut);
                self.start_later(victim);
            }
            Fault::Blackout if self.kernel.rng.per_mille(300) => {
                for id in ids {
                    if self.kernel.hosts[id].is_up() {
                        let power_cut = self.kernel.rng.per_mille(700);
                        self.stop_host(*id, power_cut);
                        self.start_later(*id);
                    }
                }
            }
            Fault::Pause if up && !self.kernel.hosts[&victim].paused => {
                self.host(victim).paused = true;
                let life = self.kernel.hosts[&victim].life;
                self.relieve_at(ends_us, Relief::Resume { host: victim, life });
            }
            Fault::Split => {
                let (one, other): (Vec<NodeId>, Vec<NodeId>) =
                    ids.iter().partition(|_| self.kernel.rng.per_mille(500));
                self.kernel.network.split(&one, &other);
                self.relieve_at(ends_us, Relief::HealNetwork);
            }
            Fault::OneWay => {
                let other = *self.kernel.rng.pick(ids).expect("there are hosts");
                self.kernel.network.cut.insert((victim, other));
                self.relieve_at(ends_us, Relief::HealNetwork);
            }
            Fault::BadNetwork => {
                self.kernel.network.loss_permille = self.kernel.rng.below(300);
                self.kernel.network.double_permille = self.kernel.rng.below(150);
                self.kernel.network.reorder_permille = self.kernel.rng.below(300);
                let slowest_us = *self.kernel.rng.pick(&[1_000, 20_000, 150_000]).expect("not empty");
                self.kernel.network.delay_us = (100, slowest_us);
                self.relieve_at(ends_us, Relief::HealNetwork);
            }
            Fault::SlowDisk => {
                let slowest_us = *self.kernel.rng.pick(&[20_000, 300_000, 2_000_000]).expect("not empty");
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
                let reach_us =
                    *self.kernel.rng.pick(&[1_000_000, 3_600_000_000, YEAR_US]).expect("not empty");
                let offset_us = self.kernel.rng.below(2 * reach_us) as i64 - reach_us as i64;
                self.host(victim).clock.jump_wall(offset_us);
            }
            Fault::ClockRate => {
                let off_ppm = self.kernel.rng.below(self.plan.rate_off_ppm + 1);
                let rate_ppm = match self.kernel.rng.per_mille(500) {
                    true => 1_000_000 + off_ppm,
                    false => 1_000_000 * 1_000_000 / (1_000_000 + off_ppm),
                };
                let now_us = self.kernel.now_us;
                self.host(victim).clock.set_rate(now_us, rate_ppm);
                self.relieve_at(ends_us, Relief::TrueRate { host: victim });
            }
            Fault::Members => self.change_members(victim),
            Fault::Transfer => self.ask_operator(AdminRequest::Transfer { id: victim }),
            Fault::Shutdown if up && !self.kernel.hosts[&victim].stopping => {
                self.host(victim).stopping = true;
                self.kernel.give(victim, Input::Shutdown);
                self.start_later(victim);
            }
            Fault::Upgrade => self.upgrade_step(victim),
            Fault::CutPeers => {
                let other = *self.kernel.rng.pick(ids).expect("there are hosts");
                self.kernel.network.split(&[victim], &[other]);
                for (at, lost) in [(victim, other), (other, victim)] {
                    if at != lost && self.kernel.hosts[&at].is_up() {
                        // Refused by something in between: the process lives.
                        let false_alarm = self.kernel.rng.per_mille(300);
                        let input = if false_alarm { Input::Refused(lost) } else { Input::Unreachable(lost) };
                        self.kernel.give(at, input);
                    }
                }
                let ends_us = self.kernel.now_us + self.kernel.rng.between(500, 40_000);
                self.relieve_at(ends_us, Relief::HealNetwork);
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
        self.kernel.plan(at_us, WorldEvent::Relief { what });
    }

    /// A host that is down, or goes down, comes back after a while.
    pub(super) fn start_later(&mut self, id: NodeId) {
        let lasts_ms = *self.kernel.rng.pick(&[5, 300, 3_000]).expect("not empty");
        let at_us = self.kernel.now_us + 1_000 * self.kernel.rng.between(1, lasts_ms);
        let life = self.kernel.hosts[&id].life;
        self.relieve_at(at_us, Relief::Start { host: id, life });
    }

    pub(super) fn relieve(&mut self, what: Relief) {
        match what {
            Relief::Start { host, life } => {
                if !self.kernel.hosts[&host].is_up() {
                    self.start_host(host);
                } else if self.kernel.hosts[&host].stopping && self.kernel.hosts[&host].life == life {
                    // A shutdown takes its time: look again.
                    self.start_later(host);
                }
            }
            Relief::Resume { host, life } => {
                if self.kernel.lives(host, life) {
                    self.kernel.resume(host);
                }
            }
            Relief::HealNetwork => self.kernel.network.heal(),
            Relief::GoodDisk { host } => self.host(host).mood = GOOD_DISK,
            Relief::TrueRate { host } => {
                let now_us = self.kernel.now_us;
                self.host(host).clock.set_rate(now_us, 1_000_000);
            }
        }
        self.note_calm();
    }

    fn change_members(&mut self, victim: NodeId) {
        if self.changes.under_way() {
            return;
        }
        let members: Vec<NodeId> = self
            .kernel
            .hosts
            .values()
            .filter(|host| host.member_since_us.is_some())
            .map(|host| host.id)
            .collect();
        if members.len() < MEMBERS_MAX && (members.len() < 3 || self.kernel.rng.per_mille(500)) {
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
        if self.upgrade_answered(ticket, reply) {
            return true;
        }
        let Some(request) = self.changes.asked.remove(&ticket) else { return false };
        let now_us = self.kernel.now_us;
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
            .kernel
            .hosts
            .values()
            .filter(|host| host.is_up() && host.member_since_us.is_some())
            .map(|host| host.id)
            .collect();
        let Some(&at) = self.kernel.rng.pick(&up) else { return };
        let ticket = self.number();
        self.changes.unsettled_us = self.kernel.now_us;
        self.changes.asked.insert(ticket, request.clone());
        self.kernel.give(at, Input::Admin { ticket, request, timeout_ms: 3_000 });
    }

    /// Everything that is broken is mended.
    pub fn heal(&mut self) {
        self.healed = true;
        self.kernel.network.heal();
        // Answers that a dead node owes its operators never come.
        self.changes.asked.clear();
        self.upgrades_asked.clear();
        if self.plan.mixed_versions {
            self.heal_programs();
        }
        let ids: Vec<NodeId> = self.kernel.hosts.keys().copied().collect();
        for id in ids {
            let now_us = self.kernel.now_us;
            let host = self.host(id);
            host.mood = GOOD_DISK;
            host.clock.set_rate(now_us, 1_000_000);
            if host.paused {
                self.kernel.resume(id);
            }
            if self.kernel.hosts[&id].stopping {
                self.stop_host(id, false);
            }
            if !self.kernel.hosts[&id].is_up() {
                self.start_host(id);
            }
        }
        self.calm_since_us = Some(self.kernel.now_us);
    }
}
