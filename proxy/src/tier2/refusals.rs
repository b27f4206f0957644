//! Every error text of Tier 2's own. The first word is the code a client acts on.

use redfence_core::reply::{Refusal, Reply};

/// Certainly not applied: it never left this node.
#[must_use]
pub fn no_quorum() -> Reply {
    error("UNAVAILABLE no leader with a quorum was reached in time; nothing was done; retry")
}

#[must_use]
pub fn queue_full() -> Reply {
    error("UNAVAILABLE this node has too many requests under way; nothing was done; retry later")
}

/// It waited behind other clients' expensive commands and never left this node.
#[must_use]
pub fn heavy_waited() -> Reply {
    error("UNAVAILABLE other large commands took the time until the deadline; nothing was done; retry later, or with fewer keys")
}

/// Refused where it enters, so that no entry and no frame is ever too large.
#[must_use]
pub fn too_large(bytes: usize) -> Reply {
    Reply::Error(Refusal::new(format!(
        "ERR the command takes {bytes} bytes in the log, the limit is 4 MiB; split it"
    )))
}

#[must_use]
pub fn too_many_backups(most: usize) -> Reply {
    Reply::Error(Refusal::new(format!(
        "ERR this node has {most} backups under way already; end one, ask another node, or wait a minute"
    )))
}

#[must_use]
pub fn backup_of_a_learner() -> Reply {
    error("ERR this node is a learner, and nobody compares its state: ask a voter, see LOCK.CLUSTER NODES")
}

#[must_use]
pub fn unknown_backup() -> Reply {
    error("ERR this node has no such backup: it was ended, was not read for a minute, or the node was restarted; begin again")
}

#[must_use]
pub fn unreadable_backup(why: &str) -> Reply {
    Reply::Error(Refusal::new(format!("ERR the snapshot of this backup cannot be read: {why}; begin again")))
}

/// The node's thread did not take it in time.
#[must_use]
pub fn not_taken() -> Reply {
    error("UNAVAILABLE this node did not take the request before its deadline; nothing was done; retry")
}

#[must_use]
pub fn stopping() -> Reply {
    error("UNAVAILABLE this node is shutting down; nothing was done; retry at another node")
}

#[must_use]
pub fn removed() -> Reply {
    error("UNAVAILABLE this node was removed from the cluster; nothing was done; retry at another node")
}

/// Its state differs from that of a majority.
#[must_use]
pub fn quarantined() -> Reply {
    error("UNAVAILABLE this node is quarantined because its state differs from that of the other nodes; nothing was done; retry at another node")
}

/// Voters report different digests, and none of them has a majority.
#[must_use]
pub fn no_equal_majority() -> Reply {
    error("UNAVAILABLE the replicas differ and no majority of them agrees; nothing was done; an operator must look at LOCK.CLUSTER NODES")
}

/// The log cannot be compacted, because nobody confirms it.
#[must_use]
pub fn log_unconfirmed() -> Reply {
    error("UNAVAILABLE the log is full: no majority of voters has confirmed its digests for too long; nothing was done; bring a voter back, or replace it")
}

/// It left this node, and nobody knows what became of it.
#[must_use]
pub fn indeterminate() -> Reply {
    error(
        "INDETERMINATE the request was sent but its outcome is not known; retry with the same OWNER, or wait out the ttl",
    )
}

/// In a mixed cluster.
#[must_use]
pub fn unknown_to_leader() -> Reply {
    error("ERR the leader runs a release that does not know this command; nothing was done; upgrade it first")
}

#[must_use]
pub fn change_indeterminate() -> Reply {
    error(
        "INDETERMINATE the change was asked for but is not done yet; look at LOCK.CLUSTER NODES, then retry",
    )
}

#[must_use]
pub fn unknown_member(id: u64) -> Reply {
    error(format!("ERR node {id} is not a member of this cluster; see LOCK.CLUSTER NODES"))
}

#[must_use]
pub fn member_elsewhere(id: u64, addr: &str) -> Reply {
    error(format!("ERR node {id} is already a member at {addr}; REMOVE it first"))
}

#[must_use]
pub fn address_taken(addr: &str) -> Reply {
    error(format!("ERR another node is a member at {addr}; every node has an address of its own"))
}

#[must_use]
pub fn no_such_address() -> Reply {
    error("ERR not the address of a node: use host:port, with a number of 1 to 65535".to_owned())
}

#[must_use]
pub fn unprotected(addr: &str) -> Reply {
    error(format!(
        "ERR {addr} is beyond this machine, and traffic between nodes is not protected; start every node with --peer-secret-file first"
    ))
}

#[must_use]
pub fn last_voter(id: u64) -> Reply {
    error(format!("ERR node {id} is the last voter; a cluster cannot remove it"))
}

#[must_use]
pub fn transfer_to_learner(id: u64) -> Reply {
    error(format!("ERR node {id} is a learner and cannot lead yet"))
}

#[must_use]
pub fn transfer_to_quarantined(id: u64) -> Reply {
    error(format!(
        "ERR node {id} is quarantined and cannot lead; REMOVE it, delete its data and ADD it again"
    ))
}

#[must_use]
pub fn too_many_members(limit: usize) -> Reply {
    error(format!("ERR a cluster has at most {limit} members"))
}

fn error(line: impl Into<std::borrow::Cow<'static, str>>) -> Reply {
    Reply::Error(Refusal::new(line))
}
