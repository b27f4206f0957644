//! Two programs in one cluster: hosts that can run cluster version 1 alone and hosts that can run 1 and 2, exchanged one by one
//! while everything else goes wrong, forward and, under a hold, back again.

use super::world::World;
use redfence::node_api::{Input, NodeId, Submit, Ticket};
use redfence_core::machine::version::{UpgradeCommand, VersionRange};
use redfence_core::machine::Command;
use redfence_core::reply::Reply;

/// The older program.
pub const OLD: VersionRange = VersionRange { oldest: 1, newest: 1 };
/// The newer one.
pub const NEW: VersionRange = VersionRange { oldest: 1, newest: 2 };

const ASK_TIMEOUT_MS: u64 = 3_000;
/// After healing and `UPGRADE FINISH`, the version has risen everywhere within this time.
const RAISE_MS_MAX: u64 = 15_000;

/// What the operators know of the upgrade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// The version may rise at any time.
    #[default]
    None,
    /// `UPGRADE HOLD` was asked for at this node.
    Asked(Ticket, NodeId),
    /// The node that answered shows the hold and version 1: the way back is open. Another one may be behind the log, and show a
    /// hold of the past.
    Held,
    /// `UPGRADE FINISH` was asked for and may be carried out at any time. Until it is answered no hold is asked for: it would be
    /// lifted by what was asked before it.
    Finishing(Ticket),
}

impl World {
    /// One operator's step: the program of a host is exchanged, or the hold is set or finished.
    pub(super) fn upgrade_step(&mut self, victim: NodeId) {
        match self.hold {
            Hold::None if self.kernel.rng.per_mille(250) => {
                if let Some((ticket, at)) = self.ask_upgrade(UpgradeCommand::Hold) {
                    self.hold = Hold::Asked(ticket, at);
                }
            }
            Hold::Held if self.kernel.rng.per_mille(150) && self.all_new() => {
                if let Some((ticket, _)) = self.ask_upgrade(UpgradeCommand::Finish) {
                    self.hold = Hold::Finishing(ticket);
                }
            }
            Hold::None | Hold::Asked(..) | Hold::Held | Hold::Finishing(_) => self.exchange_program(victim),
        }
    }

    fn exchange_program(&mut self, victim: NodeId) {
        let versions = match self.kernel.hosts[&victim].versions == OLD {
            true => NEW,
            false if self.hold == Hold::Held => OLD,
            false => return,
        };
        if !self.kernel.hosts[&victim].is_up() {
            return;
        }
        self.kernel.tell_text(|| format!("node {victim} gets the program that can run {versions}"));
        let power_cut = self.kernel.rng.per_mille(300);
        self.stop_host(victim, power_cut);
        self.host(victim).versions = versions;
        self.start_later(victim);
    }

    fn all_new(&self) -> bool {
        self.kernel.hosts.values().all(|host| host.versions == NEW)
    }

    fn ask_upgrade(&mut self, command: UpgradeCommand) -> Option<(Ticket, NodeId)> {
        let up: Vec<NodeId> = self
            .kernel
            .hosts
            .values()
            .filter(|host| host.is_up() && host.member_since_us.is_some())
            .map(|host| host.id)
            .collect();
        let at = *self.kernel.rng.pick(&up)?;
        let ticket = self.number();
        let mut blob = Vec::new();
        Command::Upgrade(command).encode(&mut blob);
        let (blob, timeout_ms) = (blob.into(), ASK_TIMEOUT_MS);
        self.kernel.give(at, Input::Submit(Submit { ticket, connection: 0, blob, timeout_ms, wait_ms: 0 }));
        self.upgrades_asked.insert(ticket);
        Some((ticket, at))
    }

    /// Takes the answer to `UPGRADE HOLD` or `FINISH`. False: it was somebody else's.
    pub(super) fn upgrade_answered(&mut self, ticket: Ticket, reply: &Reply) -> bool {
        if !self.upgrades_asked.remove(&ticket) {
            return false;
        }
        if self.hold == Hold::Finishing(ticket) && matches!(reply, Reply::Status(_)) {
            self.hold = Hold::None;
        }
        let asked = match self.hold {
            Hold::Asked(of, at) if of == ticket => Some(at),
            Hold::Asked(..) | Hold::None | Hold::Held | Hold::Finishing(_) => None,
        };
        if let Some(at) = asked {
            let node = self.kernel.hosts.get(&at).and_then(|host| host.node.as_ref());
            let shown = node
                .is_some_and(|node| node.machine().upgrade_hold() && node.machine().cluster_version() == 1);
            let held = matches!(reply, Reply::Status(_)) && shown;
            self.hold = if held { Hold::Held } else { Hold::None };
        }
        true
    }

    /// The upgrade comes to its end: every host gets the newer program.
    pub(super) fn heal_programs(&mut self) {
        let ids: Vec<NodeId> = self.kernel.hosts.keys().copied().collect();
        for id in ids {
            if self.kernel.hosts[&id].versions == OLD {
                if self.kernel.hosts[&id].is_up() {
                    self.stop_host(id, false);
                }
                self.host(id).versions = NEW;
            }
        }
    }

    /// Every member runs version 2 once nobody holds it back.
    pub(super) fn demand_raise(&mut self) {
        if !self.plan.mixed_versions {
            return;
        }
        self.hold = Hold::None;
        let end_us = self.kernel.now_us + 1_000 * RAISE_MS_MAX;
        while self.kernel.now_us < end_us && !self.has_risen() {
            self.ask_upgrade(UpgradeCommand::Finish);
            self.run_to(self.kernel.now_us + 1_000_000);
        }
        if !self.has_risen() {
            let versions: Vec<_> = self
                .kernel
                .hosts
                .values()
                .filter_map(|host| Some((host.id, host.node.as_ref()?.machine().cluster_version())))
                .collect();
            self.fail(format!(
                "the cluster version has not risen {RAISE_MS_MAX} ms after healing: {versions:?}"
            ));
        }
    }

    fn has_risen(&self) -> bool {
        let members = self.members();
        !members.is_empty()
            && members.iter().all(|id| {
                let node = self.kernel.hosts.get(id).and_then(|host| host.node.as_ref());
                node.is_some_and(|node| node.machine().cluster_version() == NEW.newest)
            })
    }
}
