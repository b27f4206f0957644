//! The cluster version: which versions each member can run, and when the leader raises it.
//!
//! Every node tells the leader its range until the leader's own view shows it. The leader proposes the raise once every member
//! (learners too) has reported it in this term and is up, all can run the next version, and no hold is set. What a member said is
//! forgotten when its connection is lost and when members change: it may come back with an older program.

use crate::node_api::{Forward, MemberProgress, NodeId, PeerMessage};
use crate::tier2::node::Node;
use crate::tier2::refusals;
use crate::tier2::requests::encoded;
use bytes::Bytes;
use redfence_core::machine::effects::Effects;
use redfence_core::machine::version::{ClusterVersion, UpgradeCommand, VersionRange};
use redfence_core::machine::{Command, EntryError};
use redfence_core::mutant;
use redfence_core::reply::Reply;
use std::collections::BTreeMap;

/// A node tells its range again after this time, where the leader does not show it.
const TELL_MS: u64 = 500;
/// A raise that was lost with its entry is proposed again after this time.
const RAISE_RETRY_MS: u64 = 1_000;

/// What a member tells the leader of itself.
#[derive(Clone, Copy, Debug)]
pub(in crate::tier2) struct MemberReport {
    pub(in crate::tier2) range: VersionRange,
    /// A hash of its ACL users.
    pub(in crate::tier2) users: u64,
}

/// What is known of the members' versions.
#[derive(Debug, Default)]
pub(in crate::tier2) struct MemberVersions {
    /// As leader: what members said in this term.
    reports: BTreeMap<NodeId, MemberReport>,
    tell_due_ms: u64,
    raise_due_ms: u64,
    /// What was committed under this leader at the last tick, and at the one before. A node that keeps up has applied the latter.
    committed: (Option<u64>, Option<u64>),
}

impl MemberVersions {
    /// The peer may be stopped, and come back with an older program.
    pub(in crate::tier2) fn connection_lost(&mut self, peer: NodeId) {
        self.reports.remove(&peer);
    }

    /// A member that was removed and added again may run another program.
    pub(in crate::tier2) fn members_changed(&mut self) {
        self.reports.clear();
    }

    /// A new term or a new leader: whatever was known may be outdated.
    pub(in crate::tier2) fn leader_changed(&mut self) {
        *self = MemberVersions::default();
    }
}

impl Node {
    /// The newest version a member can run, 0 where it has not said so in this term.
    pub(in crate::tier2) fn version_of(&self, id: NodeId) -> ClusterVersion {
        match id == self.config.id {
            true => self.config.versions.newest,
            false => self.versions.reports.get(&id).map_or(0, |report| report.range.newest),
        }
    }

    /// The hash of a member's ACL users, 0 where it has not reported it in this term.
    pub(in crate::tier2) fn users_of(&self, id: NodeId) -> u64 {
        match id == self.config.id {
            true => self.users,
            false => self.versions.reports.get(&id).map_or(0, |report| report.users),
        }
    }

    /// Not the leader: tells it what this node can run, until it shows that it knows. Notes how far this node should be.
    pub(in crate::tier2) fn tell_versions(&mut self) {
        self.versions.committed = (Some(self.raw.raft.raft_log.committed), self.versions.committed.0);
        let (leader, now_ms) = (self.leader(), self.now.monotonic_ms());
        if leader == 0 || self.is_leader() || self.removed || now_ms < self.versions.tell_due_ms {
            return;
        }
        self.versions.tell_due_ms = now_ms + TELL_MS;
        let (range, users) = (self.config.versions, self.users);
        let is_known = |row: MemberProgress| row.version == range.newest && row.users == users;
        if !self.leaders_row(self.config.id).is_some_and(is_known) {
            let message = PeerMessage::Versions { term: self.raw.raft.term, range, users };
            self.out.send.push((leader, message));
        }
    }

    pub(in crate::tier2) fn on_versions(&mut self, from: NodeId, term: u64, report: MemberReport) {
        let is_current = self.is_leader() && term == self.raw.raft.term;
        if is_current && self.membership.get(from).is_some() {
            self.versions.reports.insert(from, report);
        }
    }

    /// As leader: raises the cluster version to the highest that every member can run.
    pub(in crate::tier2) fn raise_version(&mut self) {
        let now_ms = self.now.monotonic_ms();
        let runs = self.machine.cluster_version();
        if runs >= self.config.versions.newest
            || self.machine.upgrade_hold()
            || now_ms < self.versions.raise_due_ms
            || !self.has_applied_own_term()
            // A member that is being added counts too.
            || self.raw.raft.has_pending_conf()
        {
            return;
        }
        if let Some(to) = self.version_of_all().filter(|to| *to > runs) {
            self.versions.raise_due_ms = now_ms + RAISE_RETRY_MS;
            tracing::info!(from = runs, to, "every member can run it: raising the cluster version");
            self.stage.push_unnumbered(encoded(&Command::Upgrade(UpgradeCommand::Raise { to })));
        }
    }

    /// The newest version that every member can run; `None` where one has not said what it can.
    fn version_of_all(&self) -> Option<ClusterVersion> {
        if mutant!(RaiseUnseen) {
            return Some(self.config.versions.newest);
        }
        let now_ms = self.now.monotonic_ms();
        let ranges = self.membership.iter().map(|member| match member.id == self.config.id {
            true => Some(self.config.versions),
            false if self.silent_ms(member.id, now_ms) >= self.config.node_down_ms => None,
            false => self.versions.reports.get(&member.id).map(|report| report.range),
        });
        let ranges: Vec<VersionRange> = ranges.collect::<Option<_>>()?;
        let to = ranges.iter().map(|range| range.newest).min()?;
        ranges.iter().all(|range| range.contains(to)).then_some(to)
    }

    /// Whether everything an earlier leader committed is applied here. Before that, this leader's view of the cluster version
    /// may be an old one.
    fn has_applied_own_term(&self) -> bool {
        self.raw.raft.raft_log.term(self.applied).is_ok_and(|term| term == self.raw.raft.term)
    }

    /// Whether the cluster version is likely to be the one that this node knows. One that has no leader, or has not caught up, may have
    /// missed a raise.
    fn knows_cluster_version(&self) -> bool {
        match self.is_leader() {
            true => self.has_applied_own_term(),
            false => {
                self.raw.raft.leader_id != 0
                    && self.versions.committed.1.is_some_and(|committed| self.applied >= committed)
            }
        }
    }

    /// The error for a client's command that the cluster's version does not have. A node that cannot know says so, and does not take the
    /// command in: it might lead by the time the command is logged.
    pub(in crate::tier2) fn version_refusal_of_client(&self, blob: &[u8]) -> Option<Reply> {
        let refusal = self.version_refusal(blob)?;
        Some(if self.knows_cluster_version() { refusal } else { refusals::no_quorum() })
    }

    /// The error for a command that the cluster's version does not have. Costs nothing where the cluster runs the newest version
    /// this node can run.
    fn version_refusal(&self, blob: &[u8]) -> Option<Reply> {
        if self.machine.cluster_version() >= self.config.versions.newest {
            return None;
        }
        match self.machine.check_command(blob) {
            Err(EntryError::NeedsVersion { need, runs, .. }) => Some(need.refusal(runs).into()),
            Ok(()) | Err(_) => None,
        }
    }

    /// What a script came to may need a later version than its request needs. The error is logged in its place.
    pub(in crate::tier2) fn gated(&self, blob: Bytes) -> Bytes {
        match self.version_refusal(&blob) {
            None => blob,
            Some(reply) => encoded(&Command::Effects(Effects { member: None, steps: Vec::new(), reply })),
        }
    }

    /// A member of another release may forward a command this release or the cluster's version does not know. In the log it
    /// would stop every node that applies it; an error for its client is logged in its place. False: not decided yet, the
    /// batch is to be dropped and comes again.
    pub(in crate::tier2) fn refuse_unknown(&self, forward: &mut Forward) -> bool {
        for command in &mut forward.commands {
            let Err(error) = self.machine.check_command(&command.blob) else { continue };
            let reply = match &error {
                EntryError::NeedsVersion { .. } if !self.has_applied_own_term() => return false,
                EntryError::NeedsVersion { need, runs, .. } => need.refusal(*runs).into(),
                EntryError::Format(_)
                | EntryError::Ahead { .. }
                | EntryError::Frame
                | EntryError::Command { .. }
                | EntryError::RedisCommand { .. }
                | EntryError::Script { .. }
                | EntryError::Raise { .. } => refusals::unknown_to_leader(),
            };
            tracing::warn!(origin = ?forward.origin, command.seq, %error, "refusing a forwarded command");
            let effects = Effects { member: None, steps: Vec::new(), reply };
            command.blob = encoded(&Command::Effects(effects));
        }
        true
    }
}
