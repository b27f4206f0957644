//! Whole clusters of nodes on a simulated network, driven step by step: one file a topic. A failure names the seed that repeats it.
//!
//! The hosts, the network and the agenda are those of the seeded simulator (`redfence_tests::sim::kernel`).

mod basics;
mod batching;
mod chaos;
mod digests;
mod grant_delivery;
mod heavy;
mod leaders;
mod members;
mod order;
mod outcomes;
mod scripts;
mod snapshots;
mod turns;
mod unconfirmed;
mod versions;
mod work;

use redfence::node_api::{NodeId, Ticket};
use redfence::tier2::NodeConfig;
use redfence_core::machine::Command;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Fence;
use redfence_tests::sim::cluster::SimCluster;

fn defaults(_: &mut NodeConfig) {}

/// A cluster that has a leader with everything settled.
fn settled(nodes: u64, seed: u64) -> SimCluster {
    settled_with(nodes, seed, defaults)
}

fn settled_with(nodes: u64, seed: u64, configure: fn(&mut NodeConfig)) -> SimCluster {
    let mut cluster = SimCluster::new(nodes, seed, configure);
    assert!(cluster.run_until(5_000, |cluster| cluster.leader().is_some()), "seed {seed}: no leader");
    cluster.run_for(300);
    cluster
}

fn leader(cluster: &SimCluster) -> NodeId {
    cluster.leader().expect("there is a leader")
}

fn follower(cluster: &SimCluster) -> NodeId {
    let leader = leader(cluster);
    cluster.ids().into_iter().find(|id| *id != leader && cluster.is_up(*id)).expect("there is a follower")
}

fn acquire<'a>(resource: &'a str, owner: &'a str, ttl_ms: u64, wait_ms: u64) -> Command<'a> {
    Command::Acquire {
        db: 0,
        resource: resource.as_bytes(),
        ttl_ms,
        wait_ms,
        owner: owner.as_bytes(),
        session: None,
    }
}

fn release(resource: &str, fence: Fence) -> Command<'_> {
    Command::Release { db: 0, resource: resource.as_bytes(), fence }
}

fn take(cluster: &mut SimCluster, node: NodeId, resource: &str, owner: &str, ttl_ms: u64) -> Fence {
    let ticket = cluster.submit(node, &acquire(resource, owner, ttl_ms, 0), 0);
    granted(&cluster.wait_for(ticket, 6_000))
}

fn wait_in_line(cluster: &mut SimCluster, node: NodeId, resource: &str, owner: &str, wait_ms: u64) -> Ticket {
    cluster.submit(node, &acquire(resource, owner, 30_000, wait_ms), wait_ms)
}

fn granted(reply: &Reply) -> Fence {
    match reply {
        Reply::Granted { fence, .. } => *fence,
        other => panic!("not granted: {other:?}"),
    }
}

fn code(reply: &Reply) -> &str {
    match reply {
        Reply::Error(refusal) => refusal.code(),
        other => panic!("not an error: {other:?}"),
    }
}

/// Runs until all live nodes have applied the same, and compares their states.
fn assert_equal_states(cluster: &mut SimCluster, seed: u64) {
    let same_index = |cluster: &SimCluster| {
        let mut indexes =
            cluster.ids().into_iter().filter_map(|id| cluster.node(id)).map(|node| node.applied_index());
        let first = indexes.next();
        indexes.all(|index| Some(index) == first)
    };
    assert!(cluster.run_until(20_000, same_index), "seed {seed}: nodes stay apart");
    let hashes: Vec<(NodeId, u64)> = cluster
        .ids()
        .into_iter()
        .filter_map(|id| Some((id, cluster.node(id)?.machine().state_hash())))
        .collect();
    assert!(hashes.windows(2).all(|pair| pair[0].1 == pair[1].1), "seed {seed}: states differ: {hashes:?}");
}
