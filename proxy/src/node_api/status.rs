//! Members of the cluster, and the status a node shows of itself and of them.

use super::NodeId;
use redfence_core::machine::version::ClusterVersion;
use redfence_core::machine::Stats;

/// One member, as the transport and `LOCK.CLUSTER NODES` know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterMember {
    pub id: NodeId,
    pub addr: String,
    /// Log index of the change that added it; 0 for founders. Distinguishes a member from an earlier one with the same id.
    pub added_at: u64,
    pub voter: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    Leader,
    #[default]
    Follower,
    Candidate,
    Learner,
    /// Removed from the cluster. Serves only its status.
    Removed,
    /// Its state differs from that of a majority of voters. Serves only its status.
    Quarantined,
}

impl Role {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Learner => "learner",
            Role::Removed => "removed",
            Role::Quarantined => "quarantined",
        }
    }
}

/// `LOCK.CLUSTER INFO` and `NODES`, as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    pub id: NodeId,
    pub role: Role,
    /// 0 where none is known.
    pub leader: NodeId,
    pub term: u64,
    pub commit: u64,
    pub applied: u64,
    pub voters: u64,
    /// What the replicated machine does, as of the last entry applied here.
    pub cluster_version: ClusterVersion,
    /// The newest cluster version this node can run.
    pub node_version: ClusterVersion,
    /// `LOCK.CLUSTER UPGRADE HOLD`.
    pub upgrade_hold: bool,
    /// Whether this node knows a leader with a majority.
    pub quorum: bool,
    pub nodes: Vec<NodeStatus>,
    /// Of the replicated settings that are applied here.
    pub settings_version: u64,
    /// Of the routes in force as applied here. Never older than any answer given later.
    pub routing_version: u64,
    /// Whether anybody has held a lock in another mode than exclusive since this node runs. Never older than any answer given later.
    pub knows_several: bool,
    /// Statistics of the machine, for `INFO`. At most 100 ms old.
    pub stats: Stats,
    pub digests: DigestStatus,
}

/// How the comparison of the replicas stands, for `INFO` and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestStatus {
    /// The last entry at which all nodes noted their digest.
    pub point_index: u64,
    /// A majority of voters agrees on everything up to here.
    pub confirmed_index: u64,
    /// The last entry at which a digest of the whole state was asked for.
    pub full_index: u64,
    /// Where this node was found to differ.
    pub quarantined_at: Option<u64>,
    pub quarantined_members: u64,
    /// Voters differ, and no majority decides it: nobody serves.
    pub no_majority: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    pub id: NodeId,
    pub addr: String,
    pub role: Role,
    /// Highest log index known to be on it. Of others the leader knows it and tells; 0 where it has not lately.
    pub matched: u64,
    /// A message from it was received within the last seconds.
    pub up: bool,
    /// The newest cluster version it can run. The leader knows it and tells; 0 where it has not lately.
    pub version: ClusterVersion,
    /// A hash of its ACL users. The leader knows it and tells; 0 where it has not lately.
    pub users: u64,
}
