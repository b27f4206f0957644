//! Users are a file per node, and a cluster is meant to have the same on all of them: each node tells the others a hash of its users,
//! and warns where another node has different ones.
//!
//! The hash is over the users as they are now, not over the bytes of the file: comments and the order of lines do not count, and
//! what `ACL SETUSER` changed at one node does. It travels with what a member tells the leader of itself, and back with the
//! leader's view of the members (`tier2/cluster/versions.rs`). Nothing is decided by it.

use crate::node_api::{ClusterStatus, Input, NodeId};
use crate::server::ServerState;
use sha2::{Digest, Sha256};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A difference is reported when it was there in so many looks one after the other: a new file reaches one node after the other.
const LOOKS_BEFORE_WARNING: u32 = 3;

/// What other nodes compare with theirs. Never 0, which stands for "not known".
fn hash_of(text: &str) -> u64 {
    let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    hash.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte)).max(1)
}

/// The nodes that are up and have other users.
fn differing(status: &ClusterStatus, own: u64) -> Vec<NodeId> {
    let others = status.nodes.iter().filter(|node| node.id != status.id && node.up);
    others.filter(|node| node.users != 0 && node.users != own).map(|node| node.id).collect()
}

/// Tells the hash of this node's users whenever they change, and compares it with that of the others, for ever.
pub async fn follow(server: Arc<ServerState>) {
    let (mut generation, mut own) = (0, 0);
    let (mut warned_of, mut looks) = (Vec::new(), 0);
    loop {
        let now = server.access.generation();
        if now != generation {
            own = hash_of(&server.access.users().text());
            // Where it was not taken it is sent at the next look.
            if server.tier2.push_report(Input::Users(own)) {
                generation = now;
            }
        }
        let differing = differing(&server.tier2.status(), own);
        server.access.users_differ.store(differing.len() as u64, Ordering::Relaxed);
        looks = if differing == warned_of { 0 } else { looks + 1 };
        if looks >= LOOKS_BEFORE_WARNING {
            match differing.is_empty() {
                true => tracing::info!("ACL users are the same as at the other nodes again"),
                false => tracing::warn!(
                    nodes = ?differing,
                    "ACL users differ from those of other nodes; give every node the same ACL file"
                ),
            }
            (warned_of, looks) = (differing, 0);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_api::NodeStatus;

    #[test]
    fn only_nodes_that_are_up_and_have_told_theirs_can_differ() {
        let node = |id, users, up| NodeStatus { id, users, up, ..NodeStatus::default() };
        let nodes =
            vec![node(1, 7, true), node(2, 7, true), node(3, 8, true), node(4, 9, false), node(5, 0, true)];
        let status = ClusterStatus { id: 1, nodes, ..ClusterStatus::default() };
        assert_eq!(differing(&status, 7), [3]);
        assert_eq!(differing(&status, 8), [2]);
        assert_ne!(hash_of("user default on"), hash_of("user default off"));
    }
}
