//! What the node shows of itself: `LOCK.CLUSTER INFO` and `NODES`, and the members the transport talks to.

use crate::node_api::{ClusterMember, ClusterStatus, MemberProgress, NodeId, NodeStatus, PeerMessage, Role};
use crate::tier2::node::Node;
use raft::StateRole;

/// Moving figures are published this often; a new leader or a new membership at once.
const PUBLISH_MS: u64 = 100;
/// The leader's view of the members goes to the others this often.
const PROGRESS_MS: u64 = 500;

impl Node {
    pub(in crate::tier2) fn publish(&mut self) {
        if self.members_changed {
            self.members_changed = false;
            self.out.members = Some(self.membership.list());
            self.status_due_ms = 0;
        }
        self.tell_progress();
        if self.machine.settings().version != self.status.settings_version {
            // Before the answers of the same turn: what they were decided by may be in force no more.
            self.status_due_ms = 0;
        }
        if (self.machine.cluster_version(), self.machine.upgrade_hold())
            != (self.status.cluster_version, self.status.upgrade_hold)
        {
            self.status_due_ms = 0;
        }
        if self.machine.knows_several() && !self.status.knows_several {
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
        self.publish_metrics();
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
            cluster_version: self.machine.cluster_version(),
            node_version: self.config.versions.newest,
            upgrade_hold: self.machine.upgrade_hold(),
            quorum: leader != 0 && !self.is_quarantined() && !self.has_no_majority(),
            settings_version: self.machine.settings().version,
            routing_version: self.machine.settings().routing_version,
            knows_several: self.status.knows_several || self.machine.knows_several(),
            stats: self.machine.stats(),
            digests: self.digest_status(),
            nodes: self.membership.iter().map(|member| self.node_status(member)).collect(),
        }
    }

    fn own_role(&self) -> Role {
        if self.removed {
            return Role::Removed;
        }
        if self.is_quarantined() {
            return Role::Quarantined;
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
        } else if self.is_diverged(member.id) {
            Role::Quarantined
        } else if member.id == raft.leader_id {
            Role::Leader
        } else if member.voter {
            Role::Follower
        } else {
            Role::Learner
        };
        let progress = self.progress_of(member.id);
        let (matched, up) = match own {
            true => (raft.raft_log.persisted, true),
            false => (progress.matched, progress.up),
        };
        let version = if own { self.config.versions.newest } else { progress.version };
        let users = if own { self.users } else { progress.users };
        NodeStatus { id: member.id, addr: member.addr.clone(), role, matched, up, version, users }
    }

    /// How far another member is: as the leader says where it has said so lately, else as this node sees it.
    fn progress_of(&self, id: NodeId) -> MemberProgress {
        let now_ms = self.now.monotonic_ms();
        let up = self.silent_ms(id, now_ms) < self.config.node_down_ms;
        if self.is_leader() {
            let matched = self.raw.raft.prs().get(id).map_or(0, |progress| progress.matched);
            let (version, users) = (self.version_of(id), self.users_of(id));
            return MemberProgress { id, matched, up, version, users };
        }
        self.leaders_row(id).unwrap_or(MemberProgress { id, matched: 0, up, version: 0, users: 0 })
    }

    /// What the leader has lately said of a member.
    pub(in crate::tier2) fn leaders_row(&self, id: NodeId) -> Option<MemberProgress> {
        let now_ms = self.now.monotonic_ms();
        let lately = |(by, at_ms, _): &&(NodeId, u64, Vec<MemberProgress>)| {
            *by == self.raw.raft.leader_id && now_ms < at_ms + self.config.node_down_ms
        };
        let (_, _, rows) = self.leaders_view.as_ref().filter(lately)?;
        rows.iter().find(|row| row.id == id).copied()
    }

    /// The leader tells the others, who hear of each other by it alone.
    fn tell_progress(&mut self) {
        let now_ms = self.now.monotonic_ms();
        if !self.is_leader() || now_ms < self.progress_due_ms {
            return;
        }
        self.progress_due_ms = now_ms + PROGRESS_MS;
        let own = MemberProgress {
            id: self.config.id,
            matched: self.raw.raft.raft_log.persisted,
            up: true,
            version: self.config.versions.newest,
            users: self.users,
        };
        let others: Vec<NodeId> =
            self.membership.iter().map(|member| member.id).filter(|id| *id != self.config.id).collect();
        let mut rows: Vec<MemberProgress> = others.iter().map(|id| self.progress_of(*id)).collect();
        rows.push(own);
        for id in others {
            self.out.send.push((id, PeerMessage::Progress(rows.clone())));
        }
    }

    pub(in crate::tier2) fn on_progress(&mut self, from: NodeId, rows: Vec<MemberProgress>) {
        if from == self.raw.raft.leader_id {
            self.leaders_view = Some((from, self.now.monotonic_ms(), rows));
        }
    }
}
