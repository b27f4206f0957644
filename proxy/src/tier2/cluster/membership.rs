//! The members of the cluster, and membership changes in progress.
//!
//! A change is a goal. The node that received the request keeps it until its own applied membership shows it done: as leader it
//! proposes the change, otherwise it forwards the request to the leader, repeatedly. Requests are idempotent, and a delayed
//! copy is detected by its applied index. raft takes one change at a time; goals wait for their turn. A new node joins as a
//! learner and is promoted to voter by the leader once it has caught up; a leader that is to be removed transfers its
//! leadership first, because raft would let it continue.

use crate::node_api::wire;
use crate::node_api::{AdminRequest, ClusterMember, NodeId, SnapshotMeta, Ticket};
use crate::tier2::refusals;
use crate::transport::security::is_loopback;
use bytes::Bytes;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState};
use redfence_core::grammar::cluster;
use redfence_core::reply::Reply;
use std::collections::BTreeMap;

/// Goals a node keeps for its operators. One more is refused.
pub(in crate::tier2) const GOALS_MAX: usize = 16;

/// The membership as of the last applied entry.
#[derive(Clone, Debug, Default)]
pub(in crate::tier2) struct Membership {
    members: BTreeMap<NodeId, ClusterMember>,
    conf_state: ConfState,
    /// No change was applied behind this index.
    changed_at: u64,
}

impl Membership {
    pub(in crate::tier2) fn from_snapshot(meta: &SnapshotMeta) -> Membership {
        let members = meta.members.iter().map(|member| (member.id, member.clone())).collect();
        Membership { members, conf_state: meta.conf_state.clone(), changed_at: meta.at.index }
    }

    pub(in crate::tier2) fn changed_at(&self) -> u64 {
        self.changed_at
    }

    pub(in crate::tier2) fn conf_state(&self) -> &ConfState {
        &self.conf_state
    }

    pub(in crate::tier2) fn get(&self, id: NodeId) -> Option<&ClusterMember> {
        self.members.get(&id)
    }

    pub(in crate::tier2) fn iter(&self) -> impl Iterator<Item = &ClusterMember> {
        self.members.values()
    }

    pub(in crate::tier2) fn list(&self) -> Vec<ClusterMember> {
        self.members.values().cloned().collect()
    }

    pub(in crate::tier2) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(in crate::tier2) fn voters(&self) -> usize {
        self.members.values().filter(|member| member.voter).count()
    }

    /// An applied change: raft's new configuration, and the addresses that came with it.
    pub(in crate::tier2) fn applied(&mut self, change: &ConfChangeV2, conf_state: ConfState, index: u64) {
        self.conf_state = conf_state;
        self.changed_at = index;
        for single in change.get_changes() {
            let id = single.node_id;
            match single.get_change_type() {
                ConfChangeType::RemoveNode => {
                    self.members.remove(&id);
                }
                ConfChangeType::AddNode | ConfChangeType::AddLearnerNode => {
                    let voter = self.conf_state.voters.contains(&id);
                    let addr = String::from_utf8_lossy(&change.context).into_owned();
                    self.members
                        .entry(id)
                        .and_modify(|member| member.voter = voter)
                        .or_insert(ClusterMember { id, addr, added_at: index, voter });
                }
            }
        }
    }

    /// Whether a goal is reached. `leader` as this node knows it.
    pub(in crate::tier2) fn shows(&self, goal: &AdminRequest, leader: NodeId) -> bool {
        match goal {
            AdminRequest::Add { id, addr } => self.get(*id).is_some_and(|member| member.addr == *addr),
            AdminRequest::Remove { id } => self.get(*id).is_none(),
            AdminRequest::Transfer { id } => leader == *id,
        }
    }

    /// What is wrong with a request, as far as this node can see. `loopback_only`: peers are not protected.
    pub(in crate::tier2) fn refuse(&self, request: &AdminRequest, loopback_only: bool) -> Option<Reply> {
        match request {
            // A peer may have sent it: the grammar has not seen it here.
            AdminRequest::Add { id, addr } if !(1..=65_535).contains(id) || !cluster::is_address(addr) => {
                Some(refusals::no_such_address())
            }
            AdminRequest::Add { addr, .. } if loopback_only && !is_loopback(addr) => {
                Some(refusals::unprotected(addr))
            }
            AdminRequest::Add { id, addr } => match self.get(*id) {
                Some(member) if member.addr != *addr => Some(refusals::member_elsewhere(*id, &member.addr)),
                Some(_) => None,
                None if self.iter().any(|member| member.addr == *addr) => Some(refusals::address_taken(addr)),
                None if self.members.len() >= wire::MEMBERS_MAX => {
                    Some(refusals::too_many_members(wire::MEMBERS_MAX))
                }
                None => None,
            },
            AdminRequest::Remove { id } => match self.get(*id) {
                None => Some(refusals::unknown_member(*id)),
                Some(member) if member.voter && self.voters() == 1 => Some(refusals::last_voter(*id)),
                Some(_) => None,
            },
            AdminRequest::Transfer { id } => match self.get(*id) {
                None => Some(refusals::unknown_member(*id)),
                Some(member) if !member.voter => Some(refusals::transfer_to_learner(*id)),
                Some(_) => None,
            },
        }
    }
}

pub(in crate::tier2) fn add_learner(id: NodeId, addr: &str) -> ConfChangeV2 {
    let mut change = single(id, ConfChangeType::AddLearnerNode);
    change.context = Bytes::copy_from_slice(addr.as_bytes());
    change
}

pub(in crate::tier2) fn promote(id: NodeId) -> ConfChangeV2 {
    single(id, ConfChangeType::AddNode)
}

pub(in crate::tier2) fn remove(id: NodeId) -> ConfChangeV2 {
    single(id, ConfChangeType::RemoveNode)
}

fn single(id: NodeId, kind: ConfChangeType) -> ConfChangeV2 {
    let mut step = ConfChangeSingle::default();
    step.set_change_type(kind);
    step.node_id = id;
    let mut change = ConfChangeV2::default();
    change.set_changes(vec![step].into());
    change
}

/// A request of an operator at this node.
#[derive(Debug)]
pub(in crate::tier2) struct Goal {
    pub(in crate::tier2) ticket: Ticket,
    pub(in crate::tier2) request: AdminRequest,
    pub(in crate::tier2) deadline_ms: u64,
    /// When to work towards it again.
    pub(in crate::tier2) due_ms: u64,
    /// It was proposed or forwarded. From now on a time-out must report INDETERMINATE.
    pub(in crate::tier2) started: bool,
}

impl Goal {
    pub(in crate::tier2) fn gave_up(&self) -> Reply {
        match self.started {
            true => refusals::change_indeterminate(),
            false => refusals::no_quorum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn founding() -> Membership {
        Membership::from_snapshot(&SnapshotMeta::founding(&[(1, "a:1".to_owned()), (2, "b:1".to_owned())]))
    }

    #[test]
    fn a_second_life_of_an_id_is_told_from_the_first() {
        let mut membership = founding();
        let mut conf_state = membership.conf_state().clone();
        conf_state.set_voters(vec![1]);
        membership.applied(&remove(2), conf_state.clone(), 10);
        assert!(membership.get(2).is_none());
        conf_state.set_learners(vec![2]);
        membership.applied(&add_learner(2, "c:1"), conf_state.clone(), 12);
        let learner = ClusterMember { id: 2, addr: "c:1".to_owned(), added_at: 12, voter: false };
        assert_eq!(membership.get(2), Some(&learner));
        conf_state.set_learners(vec![]);
        conf_state.set_voters(vec![1, 2]);
        membership.applied(&promote(2), conf_state, 15);
        assert_eq!(membership.get(2), Some(&ClusterMember { voter: true, ..learner }));
    }

    #[test]
    fn requests_that_cannot_be_met_are_refused() {
        let membership = founding();
        let refused = |request| membership.refuse(&request, false).is_some();
        assert!(refused(AdminRequest::Remove { id: 9 }));
        assert!(refused(AdminRequest::Transfer { id: 9 }));
        assert!(refused(AdminRequest::Add { id: 2, addr: "elsewhere:1".to_owned() }));
        assert!(!refused(AdminRequest::Add { id: 3, addr: "c:1".to_owned() }));
        assert!(!refused(AdminRequest::Remove { id: 2 }));
        let add = |addr: &str| AdminRequest::Add { id: 3, addr: addr.to_owned() };
        for addr in ["", "c", ":1", "c:0", "c:x", "0.0.0.0:1", "[::]:1", "a b:1", "a\n:1", "b:1"] {
            assert!(refused(add(addr)), "{addr:?}");
        }
        assert!(refused(add(&format!("{}:1", "c".repeat(300)))));
        let on_loopback = |addr| membership.refuse(&add(addr), true).is_none();
        assert!(on_loopback("127.0.0.1:7380") && on_loopback("localhost:7380"));
        assert!(!on_loopback("10.0.0.1:7380") && !on_loopback("node3:7380"));
    }
}
