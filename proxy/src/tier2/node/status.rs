//! What the node shows of itself: `LOCK.CLUSTER INFO` and `NODES`, and the members the transport talks to.

use crate::node_api::{ClusterMember, ClusterStatus, NodeStatus, Role};
use crate::tier2::node::Node;
use raft::StateRole;

/// Moving figures are published this often; a new leader or a new membership at once.
const PUBLISH_MS: u64 = 100;

impl Node {
    pub(in crate::tier2) fn publish(&mut self) {
        if self.members_changed {
            self.members_changed = false;
            self.out.members = Some(self.membership.list());
            self.status_due_ms = 0;
        }
        if self.machine.settings().version != self.status.settings_version {
            // Before the answers of the same turn: what they were decided by may be in force no more.
            self.status_due_ms = 0;
        }
        if self.now.monotonic_ms() < self.status_due_ms {
            return;
        }
        self.status_due_ms = self.now.monotonic_ms() + PUBLISH_MS;
        let status = self.status_now();
        if status != self.status {
            self.status = status.clone();
            self.out.status = Some(status);
        }
    }

    fn status_now(&self) -> ClusterStatus {
        let raft = &self.raw.raft;
        let leader = match self.removed {
            true => 0,
            false => raft.leader_id,
        };
        ClusterStatus {
            id: self.config.id,
            role: self.own_role(),
            leader,
            term: raft.term,
            commit: raft.raft_log.committed,
            applied: self.applied,
            voters: self.membership.voters() as u64,
            quorum: leader != 0,
            settings_version: self.machine.settings().version,
            routing_version: self.machine.settings().routing_version,
            stats: self.machine.stats(),
            nodes: self.membership.iter().map(|member| self.node_status(member)).collect(),
        }
    }

    fn own_role(&self) -> Role {
        if self.removed {
            return Role::Removed;
        }
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Follower if self.raw.raft.promotable() => Role::Follower,
            StateRole::Follower => Role::Learner,
        }
    }

    fn node_status(&self, member: &ClusterMember) -> NodeStatus {
        let raft = &self.raw.raft;
        let own = member.id == self.config.id;
        let role = if own {
            self.own_role()
        } else if member.id == raft.leader_id {
            Role::Leader
        } else if member.voter {
            Role::Follower
        } else {
            Role::Learner
        };
        let matched = match (own, self.is_leader()) {
            (true, _) => raft.raft_log.persisted,
            (false, true) => raft.prs().get(member.id).map_or(0, |progress| progress.matched),
            (false, false) => 0,
        };
        let up = own || self.silent_ms(member.id, self.now.monotonic_ms()) < self.config.node_down_ms;
        NodeStatus { id: member.id, addr: member.addr.clone(), role, matched, up }
    }
}
