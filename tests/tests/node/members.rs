//! Nodes that come, go, and come back.

use super::*;
use raft::eraftpb::{Message, MessageType};
use redfence::node_api::{AdminRequest, Input, PeerMessage};
use redfence_tests::sim::kernel::address as addr;

fn add(cluster: &mut SimCluster, asked: NodeId, id: NodeId) -> Reply {
    let ticket = cluster.admin(asked, AdminRequest::Add { id, addr: addr(id) });
    cluster.wait_for(ticket, 6_000)
}

fn remove(cluster: &mut SimCluster, asked: NodeId, id: NodeId) -> Reply {
    let ticket = cluster.admin(asked, AdminRequest::Remove { id });
    cluster.wait_for(ticket, 6_000)
}

fn voters(cluster: &SimCluster, asked: NodeId) -> Vec<NodeId> {
    let status = cluster.node(asked).expect("runs").status();
    let voters = status.nodes.iter().filter(|node| node.role != redfence::node_api::Role::Learner);
    voters.map(|node| node.id).collect()
}

#[test]
fn a_new_node_learns_and_becomes_a_voter() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let fence = take(&mut cluster, 1, "r", "a", 600_000);
        cluster.add_joiner(4);
        let asked = follower(&cluster);
        assert_eq!(add(&mut cluster, asked, 4), Reply::OK, "seed {seed}");
        cluster.run_for(2_000);
        assert_eq!(voters(&cluster, 4), [1, 2, 3, 4], "seed {seed}");
        let ticket = cluster.submit(4, &release("r", fence), 0);
        assert_eq!(cluster.wait_for(ticket, 2_000), Reply::Released, "seed {seed}");
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn a_dead_node_is_replaced() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let dead = follower(&cluster);
        cluster.crash(dead);
        let asked = leader(&cluster);
        assert_eq!(remove(&mut cluster, asked, dead), Reply::OK, "seed {seed}");
        cluster.add_joiner(4);
        assert_eq!(add(&mut cluster, asked, 4), Reply::OK, "seed {seed}");
        cluster.run_for(2_000);
        // The two that are left of the first three are a majority with the new one, even when one of them dies.
        let old = leader(&cluster);
        cluster.crash(old);
        cluster.run_for(2_000);
        take(&mut cluster, 4, "r", "a", 1_000);
    }
}

#[test]
fn an_address_belongs_to_one_node() {
    let mut cluster = settled(3, 1);
    let asked = follower(&cluster);
    let ticket = cluster.admin(asked, AdminRequest::Add { id: 9, addr: addr(1) });
    let refused = Reply::Error(Refusal::new(format!(
        "ERR another node is a member at {}; every node has an address of its own",
        addr(1)
    )));
    assert_eq!(cluster.wait_for(ticket, 6_000), refused);
    assert_eq!(voters(&cluster, asked).len(), 3);
}

#[test]
fn a_leader_that_is_removed_hands_over_first() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let old = leader(&cluster);
        let asked = follower(&cluster);
        assert_eq!(remove(&mut cluster, asked, old), Reply::OK, "seed {seed}");
        cluster.run_for(1_500);
        assert_ne!(cluster.leader(), Some(old), "seed {seed}");
        take(&mut cluster, asked, "r", "a", 1_000);
        let ticket = cluster.submit(old, &acquire("r", "b", 1_000, 0), 0);
        assert_eq!(code(&cluster.wait_for(ticket, 6_000)), "UNAVAILABLE", "seed {seed}");
    }
}

#[test]
fn a_late_copy_of_a_met_wish_undoes_nothing() {
    let mut cluster = settled(3, 1);
    let asker = follower(&cluster);
    let asked_at = cluster.node(asker).expect("runs").applied_index();
    cluster.add_joiner(4);
    assert_eq!(add(&mut cluster, asker, 4), Reply::OK);
    cluster.run_for(2_000);
    assert_eq!(remove(&mut cluster, asker, 4), Reply::OK);
    let to = leader(&cluster);
    let mut ask = |applied: u64| {
        let request = AdminRequest::Add { id: 4, addr: addr(4) };
        cluster.input(to, Input::Peer { from: asker, message: PeerMessage::Admin { applied, request } });
        cluster.run_for(1_000);
        cluster.node(to).expect("runs").status().nodes.iter().any(|node| node.id == 4)
    };
    assert!(!ask(asked_at));
    assert!(ask(asked_at + 1_000), "a wish of today is heard");
}

#[test]
fn a_removed_node_that_restarts_stays_out() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let out = follower(&cluster);
        cluster.crash(out);
        let asked = leader(&cluster);
        assert_eq!(remove(&mut cluster, asked, out), Reply::OK, "seed {seed}");
        let term = cluster.node(asked).map(|node| node.term());
        cluster.start(out);
        cluster.run_for(3_000);
        assert_eq!(cluster.leader(), Some(asked), "seed {seed}: a removed node disturbs the cluster");
        assert_eq!(cluster.node(asked).map(|node| node.term()), term, "seed {seed}");
        let ticket = cluster.submit(out, &acquire("r", "b", 1_000, 0), 0);
        assert_eq!(code(&cluster.wait_for(ticket, 6_000)), "UNAVAILABLE", "seed {seed}");
    }
}

#[test]
fn votes_that_come_late_make_no_leader_of_a_removed_node() {
    let mut cluster = settled(3, 1);
    let out = follower(&cluster);
    let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != out).collect();
    cluster.network().split(&[out], &others);
    cluster.run_for(3_000);
    let asking_for = cluster.node(out).expect("runs").term() + 1;
    let conf_index = cluster.node(out).expect("runs").applied_index() + 100;
    cluster.input(out, Input::Peer { from: others[0], message: PeerMessage::NotMember { conf_index } });
    let votes = [MessageType::MsgRequestPreVoteResponse, MessageType::MsgRequestVoteResponse];
    for (vote, from) in votes.into_iter().flat_map(|vote| others.iter().map(move |from| (vote, *from))) {
        let message = Message { msg_type: vote, from, to: out, term: asking_for, ..Message::default() };
        cluster.input(out, Input::Peer { from, message: PeerMessage::Raft(Box::new(message)) });
    }
    cluster.run_for(100);
    assert!(
        !cluster.node(out).expect("runs").is_leader(),
        "it would lead for good: it does not tick any more"
    );
}

#[test]
fn the_last_voter_cannot_be_removed_and_strangers_neither() {
    let mut cluster = settled(1, 1);
    assert_eq!(code(&remove(&mut cluster, 1, 1)), "ERR");
    assert_eq!(code(&remove(&mut cluster, 1, 9)), "ERR");
}

#[test]
fn one_grows_to_three() {
    for seed in 0..10 {
        let mut cluster = settled(1, seed);
        take(&mut cluster, 1, "r", "a", 600_000);
        for id in [2, 3] {
            cluster.add_joiner(id);
            assert_eq!(add(&mut cluster, 1, id), Reply::OK, "seed {seed}");
            cluster.run_for(1_500);
        }
        assert_eq!(voters(&cluster, 3), [1, 2, 3], "seed {seed}");
        cluster.crash(1);
        cluster.run_for(1_500);
        let ticket = cluster.submit(3, &acquire("r", "b", 1_000, 0), 0);
        assert_eq!(cluster.wait_for(ticket, 5_000), Reply::Nil, "seed {seed}");
    }
}
