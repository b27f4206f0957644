//! The word of a commit waits for the next entry: nobody who waits for an answer waits for it.

use super::*;
use bytes::Bytes;
use redfence::node_api::OwnedQuery;
use redfence::tier2::Node;
use redfence_core::types::SessionScope;

/// Heartbeats carry the word, too.
fn rare_heartbeats(config: &mut NodeConfig) {
    config.heartbeat_ticks = config.election_ticks - 1;
}

fn late_word(config: &mut NodeConfig) {
    rare_heartbeats(config);
    config.commit_broadcast_us = 60_000_000;
}

/// Even if the word never went alone: whoever waits for an answer on another node has it at once.
#[test]
fn answers_and_reads_on_other_nodes_do_not_wait_for_a_late_word() {
    for seed in 0..20 {
        let mut cluster = settled_with(3, seed, late_word);
        let (leader, follower) = (leader(&cluster), follower(&cluster));
        let fence = take(&mut cluster, leader, "r", "a", 60_000);
        let query =
            OwnedQuery::Info { db: 0, resource: Bytes::from_static(b"r"), sessions: SessionScope::All };
        let ticket = cluster.read(follower, query);
        match cluster.wait_for(ticket, 60) {
            Reply::Info(info) => assert_eq!((info.held, info.fence), (true, fence), "seed {seed}"),
            other => panic!("seed {seed}: not an info: {other:?}"),
        }
        let waiting = wait_in_line(&mut cluster, follower, "r", "b", 30_000);
        cluster.run_for(200);
        let ticket = cluster.submit(leader, &release("r", fence), 0);
        assert_eq!(cluster.wait_for(ticket, 60), Reply::Released);
        granted(&cluster.wait_for(waiting, 60));
        let ticket = cluster.submit(follower, &acquire("other", "c", 60_000, 0), 0);
        granted(&cluster.wait_for(ticket, 60));
    }
}

#[test]
fn followers_hear_of_a_commit_soon_though_nobody_waits_there() {
    for seed in 0..20 {
        let mut cluster = settled_with(3, seed, rare_heartbeats);
        let leader = leader(&cluster);
        take(&mut cluster, leader, "r", "a", 60_000);
        let index = cluster.node(leader).map(Node::applied_index);
        let all = |cluster: &SimCluster| {
            cluster.ids().into_iter().all(|id| cluster.node(id).map(Node::applied_index) >= index)
        };
        assert!(cluster.run_until(20, all), "seed {seed}");
    }
}
