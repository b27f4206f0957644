//! Replicas that differ are found, the right one is quarantined, and no healthy one ever is.

#![cfg(any(debug_assertions, feature = "mutants"))]

use super::*;
use redfence::node_api::{AdminRequest, Input, OwnedQuery, PeerMessage, Role};
use redfence_core::grammar::cluster::Backup;
use redfence_core::machine::digest::{Divergence, POINT_ENTRIES};
use redfence_tests::sim::kernel::address as addr;
use std::collections::BTreeMap;

const NOBODY: [NodeId; 0] = [];

fn often(config: &mut NodeConfig) {
    config.snapshot_entries = 50;
    config.log_keep_entries = 10;
    config.cache_entries_max = 16;
    config.checkpoint_ms = 700;
}

fn rarely(config: &mut NodeConfig) {
    config.checkpoint_ms = 3_600_000;
}

/// Some locks are taken and released at a node.
fn work(cluster: &mut SimCluster, node: NodeId, rounds: u64) {
    for round in 0..rounds {
        let name = format!("w{}", round % 7);
        let fence = take(cluster, node, &name, "worker", 60_000);
        let ticket = cluster.submit(node, &release(&name, fence), 0);
        assert_eq!(cluster.wait_for(ticket, 6_000), Reply::Released);
    }
}

fn role(cluster: &SimCluster, seen_by: NodeId, of: NodeId) -> Role {
    let status = cluster.node(seen_by).expect("runs").status();
    status.nodes.iter().find(|node| node.id == of).expect("a member").role
}

fn quarantined(cluster: &SimCluster) -> Vec<NodeId> {
    let is_quarantined =
        |id: &NodeId| cluster.node(*id).is_some_and(|node| node.status().role == Role::Quarantined);
    cluster.ids().into_iter().filter(is_quarantined).collect()
}

fn healthy(cluster: &SimCluster) -> NodeId {
    let bad = quarantined(cluster);
    cluster.ids().into_iter().find(|id| !bad.contains(id) && cluster.is_up(*id)).expect("a healthy node")
}

/// Until these and no others are quarantined, with a little work going on at a healthy node.
fn await_quarantine(cluster: &mut SimCluster, wanted: &[NodeId], seed: u64) {
    for _ in 0..30 {
        let at = cluster.ids().into_iter().find(|id| !wanted.contains(id) && cluster.is_up(*id));
        let ticket = cluster.submit(at.expect("a healthy node"), &acquire("busy", "b", 100, 0), 0);
        cluster.run_for(100);
        let _ = ticket;
        if quarantined(cluster) == wanted {
            cluster.run_for(1_000);
            assert_eq!(quarantined(cluster), wanted, "seed {seed}");
            return;
        }
    }
    panic!("seed {seed}: quarantined are {:?}, not {wanted:?}", quarantined(cluster));
}

/// The node serves nothing, everybody shows it, and the others go on.
fn assert_set_apart(cluster: &mut SimCluster, bad: NodeId, seed: u64) {
    assert!(cluster.run_until(5_000, |cluster| cluster.leader().is_some_and(|id| id != bad)), "seed {seed}");
    for id in cluster.ids() {
        assert_eq!(role(cluster, id, bad), Role::Quarantined, "seed {seed}: as node {id} sees it");
        let told = cluster.submit(id, &acquire(&format!("a{id}"), "o", 30_000, 0), 0);
        let reply = cluster.wait_for(told, 6_000);
        match id == bad {
            true => assert_eq!(code(&reply), "UNAVAILABLE", "seed {seed}"),
            false => assert!(matches!(reply, Reply::Granted { .. }), "seed {seed}: node {id}: {reply:?}"),
        }
    }
    let status = cluster.node(bad).expect("runs").status().clone();
    assert_eq!((status.role, status.quorum), (Role::Quarantined, false));
    let (commit, applied) = (status.commit, cluster.node(bad).expect("runs").applied_index());
    assert!(applied > 0 && commit > 0);
}

#[test]
fn a_follower_that_answered_something_else_is_found_and_the_cluster_goes_on() {
    for (nodes, seed) in [(3, 1), (3, 2), (5, 3)] {
        let mut cluster = settled_with(nodes, seed, rarely);
        let bad = follower(&cluster);
        let other = leader(&cluster);
        work(&mut cluster, other, 20);
        cluster.diverge(bad, Divergence::Answer(1));
        await_quarantine(&mut cluster, &[bad], seed);
        assert_set_apart(&mut cluster, bad, seed);
        // It goes on acknowledging the log.
        let at = healthy(&cluster);
        work(&mut cluster, at, 10);
        let applied = cluster.node(at).expect("runs").applied_index();
        cluster.run_for(1_000);
        let matched = cluster.node(leader(&cluster)).expect("runs").status().nodes.clone();
        let matched = matched.iter().find(|node| node.id == bad).expect("a member").matched;
        assert!(matched >= applied, "seed {seed}: {matched} of {applied}");
    }
}

#[test]
fn a_leader_that_differs_steps_down_and_is_the_one_that_is_blamed() {
    for seed in 0..4 {
        let mut cluster = settled_with(3, seed, rarely);
        let bad = leader(&cluster);
        cluster.diverge(bad, Divergence::Answer(9));
        await_quarantine(&mut cluster, &[bad], seed);
        assert_set_apart(&mut cluster, bad, seed);
    }
}

#[test]
fn a_state_that_no_answer_has_shown_is_found_by_a_full_digest() {
    for seed in 0..4 {
        let mut cluster = settled_with(3, seed, often);
        let bad = if seed % 2 == 0 { leader(&cluster) } else { follower(&cluster) };
        cluster.diverge(bad, Divergence::State(1));
        await_quarantine(&mut cluster, &[bad], seed);
        assert_set_apart(&mut cluster, bad, seed);
    }
}

#[test]
fn two_of_five_that_differ_in_different_ways_are_both_found() {
    for seed in 0..3 {
        let mut cluster = settled_with(5, seed, often);
        let (one, two) = (leader(&cluster), follower(&cluster));
        cluster.diverge(one, Divergence::Answer(1));
        cluster.diverge(two, Divergence::Answer(2));
        let mut wanted = vec![one, two];
        wanted.sort_unstable();
        await_quarantine(&mut cluster, &wanted, seed);
        for bad in wanted {
            assert!(cluster.run_until(5_000, |cluster| cluster.leader().is_some_and(|id| id != bad)));
        }
        let at = healthy(&cluster);
        work(&mut cluster, at, 5);
    }
}

/// Nobody can tell who is right, so nobody serves and nobody is blamed. An operator who keeps one of them gets it back.
#[test]
fn without_an_equal_majority_all_refuse_until_an_operator_decides() {
    let mut cluster = settled_with(3, 5, rarely);
    let ids = cluster.ids();
    for id in &ids[1..] {
        cluster.diverge(*id, Divergence::Answer(*id));
    }
    let busy = leader(&cluster);
    cluster.submit(busy, &acquire("busy", "b", 100, 0), 0);
    cluster.run_for(3_000);
    assert_eq!(quarantined(&cluster), NOBODY);
    for id in &ids {
        let ticket = cluster.submit(*id, &acquire("x", "o", 1_000, 0), 0);
        assert_eq!(code(&cluster.wait_for(ticket, 6_000)), "UNAVAILABLE", "node {id}");
        assert!(!cluster.node(*id).expect("runs").status().quorum);
    }
    let kept = leader(&cluster);
    for id in ids.iter().filter(|id| **id != kept) {
        let ticket = cluster.admin(kept, AdminRequest::Remove { id: *id });
        assert_eq!(cluster.wait_for(ticket, 10_000), Reply::OK);
    }
    assert!(cluster.run_until(15_000, |cluster| cluster.node(kept).is_some_and(|node| node.status().quorum)));
    take(&mut cluster, kept, "x", "o", 1_000);
}

/// Two that are up differ while the third is down: nobody knows who is right before it is back.
#[test]
fn two_that_differ_wait_for_the_third() {
    let mut cluster = settled_with(3, 6, rarely);
    let (bad, other) = (follower(&cluster), leader(&cluster));
    let third = cluster.ids().into_iter().find(|id| *id != bad && *id != other).expect("three");
    cluster.crash(third);
    cluster.diverge(bad, Divergence::Answer(1));
    cluster.submit(other, &acquire("busy", "b", 100, 0), 0);
    cluster.run_for(4_000);
    assert_eq!(quarantined(&cluster), NOBODY);
    let ticket = cluster.submit(other, &acquire("x", "o", 1_000, 0), 0);
    assert_eq!(code(&cluster.wait_for(ticket, 6_000)), "UNAVAILABLE");
    cluster.start(third);
    assert!(cluster.run_until(15_000, |cluster| quarantined(cluster) == [bad]));
    cluster.run_for(2_000);
    assert_set_apart(&mut cluster, bad, 6);
}

#[test]
fn two_states_that_differ_wait_for_the_third_though_their_answers_are_alike() {
    let mut cluster = settled_with(3, 8, often);
    let (bad, other) = (follower(&cluster), leader(&cluster));
    let third = cluster.ids().into_iter().find(|id| *id != bad && *id != other).expect("three");
    work(&mut cluster, other, 5);
    cluster.crash(third);
    cluster.diverge(bad, Divergence::State(1));
    for _ in 0..80 {
        cluster.submit(other, &acquire("busy", "b", 100, 0), 0);
        cluster.run_for(100);
    }
    assert_eq!(quarantined(&cluster), NOBODY);
    let ticket = cluster.submit(other, &acquire("x", "o", 1_000, 0), 0);
    assert_eq!(code(&cluster.wait_for(ticket, 6_000)), "UNAVAILABLE");
    cluster.start(third);
    assert!(cluster.run_until(30_000, |cluster| quarantined(cluster) == [bad]));
    // Until the next full digest, which the leader asks for every few seconds while states differ.
    cluster.run_for(12_000);
    assert_set_apart(&mut cluster, bad, 8);
}

#[test]
fn it_is_found_within_the_promised_distance() {
    let mut cluster = settled_with(3, 7, rarely);
    let (bad, other) = (follower(&cluster), leader(&cluster));
    work(&mut cluster, other, 50);
    let before = cluster.node(other).expect("runs").applied_index();
    let before_ms = cluster.now_ms();
    cluster.diverge(bad, Divergence::Answer(1));
    while quarantined(&cluster).is_empty() {
        work(&mut cluster, other, 1);
    }
    let entries = cluster.node(other).expect("runs").applied_index() - before;
    let took_ms = cluster.now_ms() - before_ms;
    assert!(entries <= POINT_ENTRIES + 64 && took_ms <= 1_500, "{entries} entries, {took_ms} ms");
}

#[test]
fn a_restart_stays_quarantined_and_a_fresh_learner_is_welcome() {
    for seed in 0..3 {
        let mut cluster = settled_with(3, seed, often);
        let bad = follower(&cluster);
        cluster.diverge(bad, Divergence::Answer(1));
        await_quarantine(&mut cluster, &[bad], seed);
        let at = healthy(&cluster);
        work(&mut cluster, at, 60);
        cluster.crash(bad);
        cluster.start(bad);
        cluster.run_for(5);
        assert_eq!(quarantined(&cluster), [bad], "seed {seed}: by its data directory");
        cluster.run_for(2_000);
        assert_set_apart(&mut cluster, bad, seed);

        // Removed, but the directory kept: nothing has changed for it.
        let at = healthy(&cluster);
        let remove = cluster.admin(at, AdminRequest::Remove { id: bad });
        assert_eq!(cluster.wait_for(remove, 10_000), Reply::OK);
        let add = cluster.admin(at, AdminRequest::Add { id: bad, addr: addr(bad) });
        assert_eq!(cluster.wait_for(add, 10_000), Reply::OK);
        cluster.run_for(5_000);
        assert_eq!(quarantined(&cluster), [bad], "seed {seed}");
        assert_eq!(role(&cluster, at, bad), Role::Quarantined, "seed {seed}: it says so itself");

        // Removed, wiped and added again it is a member like any other.
        let remove = cluster.admin(at, AdminRequest::Remove { id: bad });
        assert_eq!(cluster.wait_for(remove, 10_000), Reply::OK);
        cluster.crash(bad);
        cluster.run_for(2_000);
        cluster.add_joiner(bad);
        let add = cluster.admin(at, AdminRequest::Add { id: bad, addr: addr(bad) });
        assert_eq!(cluster.wait_for(add, 10_000), Reply::OK);
        assert!(
            cluster.run_until(20_000, |cluster| role(cluster, at, bad) == Role::Follower),
            "seed {seed}: it is {:?}",
            role(&cluster, at, bad)
        );
        work(&mut cluster, bad, 5);
        assert_eq!(quarantined(&cluster), NOBODY, "seed {seed}");
    }
}

/// A quarantined node is asked to lead, is sent raft's word to stand at once, and is left with one other node.
#[test]
fn a_quarantined_node_never_leads() {
    for seed in 0..4 {
        let mut cluster = settled_with(3, seed, rarely);
        let bad = follower(&cluster);
        cluster.diverge(bad, Divergence::Answer(1));
        await_quarantine(&mut cluster, &[bad], seed);
        let (lead, term) = (leader(&cluster), cluster.node(leader(&cluster)).expect("runs").term());
        let ticket = cluster.admin(lead, AdminRequest::Transfer { id: bad });
        assert_eq!(code(&cluster.wait_for(ticket, 6_000)), "ERR");
        let mut message = raft::eraftpb::Message { from: lead, to: bad, term, ..Default::default() };
        message.set_msg_type(raft::eraftpb::MessageType::MsgTimeoutNow);
        cluster.input(bad, Input::Peer { from: lead, message: PeerMessage::Raft(Box::new(message)) });
        cluster.run_for(500);
        assert_eq!(cluster.leader(), Some(lead));
        // The leader is lost: the other healthy node leads, with the vote of the quarantined one.
        cluster.crash(lead);
        let led = cluster.run_until(10_000, |cluster| cluster.leader().is_some());
        assert!(led && cluster.leader() != Some(bad), "seed {seed}: {:?}", cluster.leader());
        let at = leader(&cluster);
        work(&mut cluster, at, 3);
        // Left alone it waits.
        cluster.crash(at);
        cluster.run_for(10_000);
        assert_eq!(cluster.leader(), None, "seed {seed}");
        cluster.start(lead);
        cluster.start(at);
        assert!(cluster.run_until(10_000, |cluster| cluster.leader().is_some_and(|id| id != bad)));
    }
}

fn applied_behind_snapshot(cluster: &SimCluster, id: NodeId) -> u64 {
    let node = cluster.node(id).expect("runs");
    node.applied_index() - node.snapshot_index()
}

/// Nobody confirms its snapshots, and it goes on acknowledging what the others log: without compaction its disk would fill up.
#[test]
fn a_quarantined_node_compacts_its_log_and_its_state_stays_its_own() {
    for (seed, how) in [(0, Divergence::Answer(1)), (1, Divergence::State(1)), (2, Divergence::Answer(5))] {
        let mut cluster = settled_with(3, seed, often);
        let bad = if seed == 2 { leader(&cluster) } else { follower(&cluster) };
        cluster.diverge(bad, how);
        await_quarantine(&mut cluster, &[bad], seed);
        let at = healthy(&cluster);
        work(&mut cluster, at, 200);
        cluster.run_for(3_000);
        for id in cluster.ids() {
            let behind = applied_behind_snapshot(&cluster, id);
            assert!(behind < 150, "seed {seed}: node {id} keeps {behind} entries behind its snapshot");
        }
        assert_set_apart(&mut cluster, bad, seed);
        let others = |cluster: &SimCluster| {
            let digests = cluster.node(at).expect("runs").status().digests;
            assert_eq!((digests.quarantined_members, digests.no_majority), (1, false), "seed {seed}");
            digests.confirmed_index
        };
        let confirmed = others(&cluster);
        let backup = cluster.read(bad, OwnedQuery::Backup(Backup::Begin));
        assert_eq!(code(&cluster.wait_for(backup, 6_000)), "UNAVAILABLE", "seed {seed}");

        // A restart begins with that snapshot, quarantined as before, and the log stays short.
        let snapshot = cluster.node(bad).expect("runs").snapshot_index();
        cluster.crash(bad);
        cluster.start(bad);
        cluster.run_for(5);
        assert_eq!(quarantined(&cluster), [bad], "seed {seed}: by its data directory");
        let begun = cluster.node(bad).expect("runs").snapshot_index();
        assert_eq!(begun, snapshot, "seed {seed}");
        work(&mut cluster, at, 100);
        cluster.run_for(3_000);
        assert!(applied_behind_snapshot(&cluster, bad) < 150, "seed {seed}");
        assert!(cluster.node(bad).expect("runs").snapshot_index() > begun, "seed {seed}");
        assert_set_apart(&mut cluster, bad, seed);
        assert!(others(&cluster) > confirmed, "seed {seed}: the others go on confirming");

        // A new member gets the state of a healthy one, also where the only other member that is up is quarantined.
        let third = cluster.ids().into_iter().find(|id| *id != bad && *id != at).expect("three");
        let add = cluster.admin(at, AdminRequest::Add { id: 9, addr: addr(9) });
        cluster.add_joiner(9);
        assert_eq!(cluster.wait_for(add, 10_000), Reply::OK, "seed {seed}");
        assert!(cluster.run_until(20_000, |cluster| role(cluster, at, 9) == Role::Follower), "seed {seed}");
        cluster.run_for(2_000);
        let chain = |cluster: &SimCluster, id| cluster.node(id).expect("runs").machine().digest_chain();
        assert_eq!(chain(&cluster, 9), chain(&cluster, at), "seed {seed}");
        assert_eq!(quarantined(&cluster), [bad], "seed {seed}");

        // Left alone it waits: it does not lead.
        for id in [at, third, 9] {
            cluster.crash(id);
        }
        cluster.run_for(10_000);
        assert_eq!(cluster.leader(), None, "seed {seed}");
        for id in [at, third, 9] {
            cluster.start(id);
        }
        assert!(cluster.run_until(10_000, |cluster| cluster.leader().is_some_and(|id| id != bad)));
        cluster.run_for(2_000);
        assert_eq!(quarantined(&cluster), [bad], "seed {seed}");
    }
}

/// Power is cut at any moment after the node has found out: it begins with a state of its own only if it knows that it is quarantined.
#[test]
fn a_snapshot_that_nobody_confirmed_is_never_there_without_the_mark() {
    let mut marked = 0;
    for seed in 0..40 {
        let mut cluster = settled_with(3, seed, often);
        let (bad, other) = (follower(&cluster), leader(&cluster));
        work(&mut cluster, other, 20);
        cluster.run_for(2_000);
        let before = cluster.node(bad).expect("runs").snapshot_index();
        cluster.diverge(bad, Divergence::Answer(1));
        let names: Vec<String> = (0..40).map(|n| format!("n{n}")).collect();
        for name in &names {
            cluster.submit(other, &acquire(name, "o", 600_000, 0), 0);
        }
        assert!(cluster.run_until(6_000, |cluster| quarantined(cluster) == [bad]), "seed {seed}");
        cluster.run_for(seed % 20);
        cluster.crash(bad);
        cluster.start(bad);
        let node = cluster.node(bad).expect("runs");
        let (is_marked, snapshot) = (node.is_quarantined(), node.snapshot_index());
        assert!(is_marked || snapshot <= before, "seed {seed}: it begins at {snapshot}, and not quarantined");
        marked += u64::from(is_marked);
    }
    assert!(marked > 10, "{marked}");
}

/// Whatever happens to healthy nodes: restarts, power cuts, snapshots, new leaders and members, a network that loses, doubles and
/// reorders reports.
#[test]
fn no_healthy_node_is_ever_quarantined() {
    for seed in 0..8 {
        let mut cluster = settled_with(3, seed, often);
        for round in 0..12 {
            cluster.network().loss_permille = cluster.draw(150);
            cluster.network().double_permille = cluster.draw(150);
            cluster.network().reorder_permille = cluster.draw(300);
            let ids = cluster.ids();
            let victim = ids[cluster.draw(ids.len() as u64) as usize];
            match cluster.draw(5) {
                0 if cluster.is_up(victim) => {
                    cluster.crash(victim);
                    cluster.run_for(400);
                    cluster.start(victim);
                }
                1 => {
                    cluster.pause(victim);
                    cluster.run_for(900);
                    cluster.resume(victim);
                }
                2 => {
                    let others: Vec<NodeId> = ids.iter().copied().filter(|id| *id != victim).collect();
                    cluster.network().split(&[victim], &others);
                    cluster.run_for(1_500);
                }
                3 if round == 5 => {
                    cluster.add_joiner(9);
                    cluster.admin(ids[0], AdminRequest::Add { id: 9, addr: addr(9) });
                }
                _ => {
                    cluster.admin(ids[0], AdminRequest::Transfer { id: victim });
                }
            }
            cluster.heal();
            for id in cluster.ids() {
                for n in 0..6 {
                    cluster.submit(id, &acquire(&format!("n{n}"), &format!("{id}"), 200, 50), 50);
                    cluster.run_for(40);
                }
            }
        }
        cluster.run_for(5_000);
        assert_eq!(quarantined(&cluster), NOBODY, "seed {seed}");
        for id in cluster.ids() {
            assert!(!cluster.node(id).expect("runs").status().digests.no_majority, "seed {seed}");
        }
        assert_equal_states(&mut cluster, seed);
        let digests = cluster.node(leader(&cluster)).expect("runs").status().digests;
        assert!(digests.full_index > 0 && digests.confirmed_index >= digests.full_index, "seed {seed}");
    }
}

/// A full digest that begins between a snapshot's last piece and its end would take the snapshot's place, and neither would end.
#[test]
fn snapshots_and_full_digests_go_on_beside_each_other() {
    fn both_often(config: &mut NodeConfig) {
        often(config);
        config.snapshot_entries = 20;
        config.checkpoint_ms = 20;
        // A piece waits for the one before it to be written.
        config.snapshot_window_bytes = 1;
    }
    for seed in 0..6 {
        let mut cluster = settled_with(3, seed, both_often);
        let at = leader(&cluster);
        work(&mut cluster, at, 150);
        cluster.run_for(1_000);
        for id in cluster.ids() {
            let node = cluster.node(id).expect("runs");
            let (applied, snapshot) = (node.applied_index(), node.snapshot_index());
            assert!(
                applied - snapshot < 100,
                "seed {seed}: node {id} applied {applied}, its snapshot is of {snapshot}"
            );
            let full = node.status().digests.full_index;
            assert!(
                applied - full < 150,
                "seed {seed}: node {id} applied {applied}, the last full digest is of {full}"
            );
        }
        assert_eq!(quarantined(&cluster), NOBODY, "seed {seed}");
    }
}

#[test]
fn an_idle_cluster_writes_nothing() {
    let mut cluster = settled_with(3, 4, often);
    let at = leader(&cluster);
    work(&mut cluster, at, 10);
    cluster.run_for(5_000);
    let before = cluster.node(at).expect("runs").status().commit;
    cluster.run_for(120_000);
    assert_eq!(cluster.node(at).expect("runs").status().commit, before);
    let digests = cluster.node(at).expect("runs").status().digests;
    assert!(digests.confirmed_index >= cluster.node(at).expect("runs").machine().content_index());
}

#[test]
fn one_dead_voter_does_not_stop_compaction_and_a_single_node_confirms_itself() {
    let mut cluster = settled_with(3, 8, often);
    let (dead, at) = (follower(&cluster), leader(&cluster));
    cluster.crash(dead);
    work(&mut cluster, at, 150);
    cluster.run_for(3_000);
    let snapshot = cluster.node(at).expect("runs").snapshot_index();
    assert!(snapshot + 120 > cluster.node(at).expect("runs").applied_index(), "the last is of {snapshot}");

    let mut single = settled_with(1, 9, often);
    work(&mut single, 1, 100);
    single.run_for(3_000);
    let node = single.node(1).expect("runs");
    assert!(node.snapshot_index() + 60 > node.applied_index());
    assert!(node.machine().confirmed_index() >= node.machine().content_index());
}

/// One is quarantined, another dead: nobody confirms what the last one does. Its log is not compacted, and does not grow for ever.
#[test]
fn an_unconfirmed_log_is_kept_and_bounded() {
    fn bounded(config: &mut NodeConfig) {
        often(config);
        config.unconfirmed_entries_max = 300;
    }
    let mut cluster = settled_with(3, 10, bounded);
    let bad = follower(&cluster);
    cluster.diverge(bad, Divergence::Answer(1));
    await_quarantine(&mut cluster, &[bad], 10);
    let at = leader(&cluster);
    let dead = cluster.ids().into_iter().find(|id| *id != bad && *id != at).expect("three");
    cluster.crash(dead);
    let kept = cluster.node(at).expect("runs").snapshot_index();
    let mut refused = false;
    for n in 0..800 {
        let ticket = cluster.submit(at, &acquire(&format!("r{n}"), "a", 600_000, 0), 0);
        let reply = cluster.wait_for(ticket, 6_000);
        if reply.is_error() {
            assert_eq!(code(&reply), "UNAVAILABLE");
            refused = true;
            break;
        }
    }
    assert!(refused, "the log grows");
    let confirmed = cluster.node(at).expect("runs").machine().confirmed_index();
    let snapshot = cluster.node(at).expect("runs").snapshot_index();
    assert!(snapshot <= confirmed.max(kept), "a snapshot of {snapshot} counts, {confirmed} is confirmed");
    cluster.start(dead);
    assert!(cluster.run_until(20_000, |cluster| {
        cluster.node(at).is_some_and(|node| node.machine().confirmed_index() > confirmed)
    }));
    cluster.run_for(3_000);
    take(&mut cluster, dead, "served again", "a", 1_000);
}

/// The state of a leader that has diverged never reaches another disk: what it stores counts, and is sent, only once confirmed.
#[test]
fn a_diverged_leader_sends_nobody_its_state() {
    for seed in 0..4 {
        let mut cluster = settled_with(3, seed, often);
        let (bad, behind) = (leader(&cluster), follower(&cluster));
        cluster.crash(behind);
        work(&mut cluster, bad, 60);
        cluster.run_for(1_500);
        cluster.diverge(bad, Divergence::Answer(1));
        cluster.start(behind);
        let ticket = cluster.submit(bad, &acquire("busy", "b", 100, 0), 0);
        cluster.run_for(6_000);
        let _ = ticket;
        assert_eq!(quarantined(&cluster), [bad], "seed {seed}");
        assert_set_apart(&mut cluster, bad, seed);
        cluster.run_for(1_000);
        let hashes: Vec<u64> = cluster
            .ids()
            .into_iter()
            .filter(|id| *id != bad)
            .map(|id| cluster.node(id).expect("runs").machine().digest_chain())
            .collect();
        assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}");
    }
}

/// In a quiet stretch the last full digest covers the last entry, and yet says nothing of a state that has changed since: the snapshot
/// that a new member asks for waits for a digest of its own.
#[test]
fn a_full_digest_from_before_a_snapshot_does_not_confirm_it() {
    fn for_members_alone(config: &mut NodeConfig) {
        often(config);
        config.snapshot_entries = 1_000_000;
    }
    for seed in 0..4 {
        let mut cluster = settled_with(3, seed, for_members_alone);
        let (bad, gone) = (leader(&cluster), follower(&cluster));
        work(&mut cluster, bad, 20);
        cluster.run_for(10_000);
        let machine = cluster.node(bad).expect("runs").machine();
        assert!(machine.last_full_index() > machine.content_index(), "seed {seed}: it is quiet");
        cluster.diverge(bad, Divergence::State(1));
        let before = cluster.node(bad).expect("runs").snapshot_index();
        let remove = cluster.admin(bad, AdminRequest::Remove { id: gone });
        assert_eq!(cluster.wait_for(remove, 10_000), Reply::OK);
        cluster.crash(gone);
        cluster.add_joiner(9);
        cluster.admin(bad, AdminRequest::Add { id: 9, addr: addr(9) });
        cluster.run_for(20_000);
        assert_eq!(
            cluster.node(bad).expect("runs").snapshot_index(),
            before,
            "seed {seed}: nobody has confirmed it"
        );
        cluster.start(gone);
    }
}

/// One of three is down, and a full digest takes longer than anything waits for it: whoever asks again while the other still walks is
/// alone. Without a longer wait both could go on in turns for ever, until the log is full.
#[test]
fn slow_digests_confirm_snapshots_with_one_of_three_down() {
    fn slow(config: &mut NodeConfig) {
        config.snapshot_entries = 60;
        config.log_keep_entries = 10;
        config.cache_entries_max = 16;
        config.digest_slice_ms = 45_000;
    }
    for seed in 0..8 {
        let mut cluster = settled_with(3, seed, slow);
        let (dead, at) = (follower(&cluster), leader(&cluster));
        let other = cluster.ids().into_iter().find(|id| ![dead, at].contains(id)).expect("one of three");
        cluster.crash(dead);
        // Two slices of them.
        for name in 0..1_500 {
            cluster.submit(at, &acquire(&format!("held{name}"), "h", 100_000_000, 0), 0);
        }
        cluster.run_for(5_000);
        let full_index = |cluster: &SimCluster| cluster.node(at).expect("runs").machine().last_full_index();
        let before = full_index(&cluster);
        while full_index(&cluster) == before {
            work(&mut cluster, at, 2);
        }
        // One of the two begins anew while the other walks.
        cluster.run_for(5_000 * (1 + seed));
        cluster.crash(other);
        cluster.start(other);
        cluster.run_for(5_000);
        let mut snapshots = std::collections::BTreeSet::new();
        for _ in 0..120 {
            let at = leader(&cluster);
            work(&mut cluster, at, 2);
            cluster.run_for(15_000);
            snapshots.insert(cluster.node(at).expect("runs").snapshot_index());
        }
        assert!(snapshots.len() > 3, "seed {seed}: {snapshots:?}");
    }
}

/// Node 2 takes a hundred seconds for a full digest, where the others take one turn.
fn one_is_slow(config: &mut NodeConfig) {
    config.snapshot_entries = 60;
    config.log_keep_entries = 10;
    config.cache_entries_max = 16;
    if config.id == 2 {
        config.digest_slice_ms = 100_000;
    }
}

/// Two slices of a full digest.
fn fill(cluster: &mut SimCluster, at: NodeId) {
    for name in 0..1_500 {
        cluster.submit(at, &acquire(&format!("held{name}"), "h", 100_000_000, 0), 0);
    }
    cluster.run_for(5_000);
}

/// With one of three down the slow one's word is needed: the other must not ask for so many more digests meanwhile that the one it is
/// at work on is forgotten.
#[test]
fn a_slow_voter_confirms_with_one_of_three_down() {
    fn one_is_very_slow(config: &mut NodeConfig) {
        one_is_slow(config);
        config.digest_slice_ms *= 6;
    }
    for seed in 0..4 {
        let how = if seed % 2 == 0 { one_is_slow } else { one_is_very_slow };
        let mut cluster = settled_with(3, seed, how);
        let dead = cluster.ids().into_iter().find(|id| *id != 2 && *id != leader(&cluster)).expect("three");
        cluster.crash(dead);
        cluster.run_for(5_000);
        let at = leader(&cluster);
        fill(&mut cluster, at);
        let mut snapshots = std::collections::BTreeSet::new();
        for _ in 0..240 {
            let at = leader(&cluster);
            work(&mut cluster, at, 2);
            cluster.run_for(15_000);
            snapshots.insert(cluster.node(at).expect("runs").snapshot_index());
        }
        assert!(snapshots.len() > 2, "seed {seed}: {snapshots:?}");
    }
}

/// Two that differ, and a third that needs minutes to say who is right.
#[test]
fn a_slow_third_decides_between_two_that_differ() {
    fn one_is_slower(config: &mut NodeConfig) {
        one_is_slow(config);
        config.digest_slice_ms *= 2;
    }
    let mut cluster = settled_with(3, 1, one_is_slower);
    let at = leader(&cluster);
    fill(&mut cluster, at);
    cluster.run_for(400_000);
    let bad = if leader(&cluster) == 1 { 3 } else { 1 };
    let healthy = cluster.ids().into_iter().find(|id| *id != bad && *id != 2).expect("three");
    cluster.diverge(bad, Divergence::State(1));
    for _ in 0..200 {
        cluster.submit(healthy, &acquire("busy", "b", 100, 0), 0);
        cluster.run_for(10_000);
        if quarantined(&cluster) == [bad] {
            return;
        }
    }
    panic!("quarantined are {:?}, not {bad}", quarantined(&cluster));
}

/// With all of them up the others agree without it, and go on. It remembers what they came to.
#[test]
fn a_slow_voter_compares_with_what_the_others_came_to_long_ago() {
    for seed in 0..4 {
        let mut cluster = settled_with(3, seed, one_is_slow);
        let at = leader(&cluster);
        fill(&mut cluster, at);
        let mut snapshots = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let at = leader(&cluster);
            work(&mut cluster, at, 40);
            cluster.run_for(10_000);
            snapshots.insert(cluster.node(2).expect("runs").snapshot_index());
        }
        assert!(snapshots.len() > 3, "seed {seed}: {snapshots:?}");
        assert_eq!(quarantined(&cluster), NOBODY, "seed {seed}");

        cluster.diverge(2, Divergence::State(1));
        for _ in 0..40 {
            let at = cluster.leader().filter(|id| *id != 2).unwrap_or(1);
            cluster.submit(at, &acquire("busy", "b", 100, 0), 0);
            cluster.run_for(10_000);
        }
        assert_eq!(quarantined(&cluster), [2], "seed {seed}");
    }
}

fn backup_state(cluster: &mut SimCluster, at: NodeId, id: i64) -> Reply {
    let read = cluster.read(at, OwnedQuery::Backup(Backup::Read { id: id as u64, offset: 0 }));
    let Reply::Array(parts) = cluster.wait_for(read, 6_000) else { panic!("a piece of the backup") };
    parts[0].clone()
}

/// What a memory cell has become while a backup is written, and is no more when the next digest is made, is in no backup: the records
/// in it are compared themselves.
#[test]
fn a_backup_is_compared_by_its_own_records() {
    for (seed, flips) in [(0, false), (1, true), (2, false), (3, true)] {
        let mut cluster = settled_with(3, seed, rarely);
        let at = if seed < 2 { leader(&cluster) } else { follower(&cluster) };
        let busy = leader(&cluster);
        work(&mut cluster, busy, 20);
        let begin = cluster.read(at, OwnedQuery::Backup(Backup::Begin));
        let Reply::Int(id) = cluster.wait_for(begin, 6_000) else { panic!("a number") };
        let full_before = cluster.node(at).expect("runs").machine().last_full_index();
        if flips {
            cluster.diverge(at, Divergence::State(1));
        }
        let is_begun =
            |cluster: &SimCluster| cluster.node(at).expect("runs").machine().last_full_index() > full_before;
        while !is_begun(&cluster) {
            cluster.run_for(1);
        }
        if flips {
            cluster.diverge(at, Divergence::State(u64::MAX));
        }
        cluster.run_for(10_000);
        match flips {
            true => assert_eq!(quarantined(&cluster), [at], "seed {seed}"),
            false => {
                assert_eq!(quarantined(&cluster), NOBODY, "seed {seed}");
                assert_eq!(backup_state(&mut cluster, at, id), Reply::Text("ready"), "seed {seed}");
                let snapshot = cluster.node(at).expect("runs").snapshot_index();
                let full = cluster.node(at).expect("runs").machine().last_full_index();
                assert_eq!(snapshot, full, "seed {seed}: of the checkpoint itself");
            }
        }
    }
}

/// All nodes make a backup at one time, and full digests take half a minute: none waits for long.
#[test]
fn backups_at_all_nodes_at_once() {
    fn slow(config: &mut NodeConfig) {
        config.snapshot_entries = 1_000_000;
        config.digest_slice_ms = 15_000;
    }
    for seed in 0..4 {
        let mut cluster = settled_with(3, seed, slow);
        let at = leader(&cluster);
        fill(&mut cluster, at);
        let mut begun = Vec::new();
        for id in cluster.ids() {
            let begin = cluster.read(id, OwnedQuery::Backup(Backup::Begin));
            let Reply::Int(number) = cluster.wait_for(begin, 6_000) else { panic!("a number") };
            begun.push((id, number));
            cluster.run_for(700 * seed);
        }
        // As a client that asks while it waits.
        for _ in 0..9 {
            cluster.run_for(10_000);
            for (id, number) in &begun {
                backup_state(&mut cluster, *id, *number);
            }
        }
        for (id, number) in begun {
            let state = backup_state(&mut cluster, id, number);
            assert_eq!(state, Reply::Text("ready"), "seed {seed}: node {id}");
        }
    }
}

/// Of five nodes each has a snapshot that waits, and all have waited for the same digest: were they to ask for the next at once, five
/// rows would put the first out of the table while all are at work on it.
#[test]
fn five_nodes_do_not_ask_for_the_next_digest_at_once() {
    fn walks_take_turns(config: &mut NodeConfig) {
        often(config);
        config.snapshot_entries = 100;
        config.checkpoint_ms = 1_500;
        config.digest_slice_ms = 20;
    }
    for seed in 0..4 {
        let mut cluster = settled_with(5, seed, walks_take_turns);
        let at = leader(&cluster);
        fill(&mut cluster, at);
        // Nobody hears the first, so that it is in vain.
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != at).collect();
        for id in &others[..3] {
            cluster.crash(*id);
        }
        cluster.run_for(3_000);
        for id in &others[..3] {
            cluster.start(*id);
        }
        cluster.run_for(5_000);
        let at = leader(&cluster);
        for _ in 0..6 {
            work(&mut cluster, at, 30);
            cluster.run_for(4_000);
        }
        cluster.run_for(20_000);
        for id in cluster.ids() {
            let behind = applied_behind_snapshot(&cluster, id);
            assert!(behind < 250, "seed {seed}: node {id} keeps {behind} entries behind its snapshot");
        }
        let digests = cluster.node(leader(&cluster)).expect("runs").status().digests;
        assert_eq!((digests.quarantined_members, digests.no_majority), (0, false), "seed {seed}");
    }
}

/// Snapshots are due all the time, are written slowly, and one of three is down: a backup has its turn.
#[test]
fn a_backup_is_ready_beside_snapshots_that_are_always_due() {
    fn busy(config: &mut NodeConfig) {
        config.snapshot_entries = 20;
        config.log_keep_entries = 10;
        config.cache_entries_max = 16;
        config.snapshot_window_bytes = 1;
        config.checkpoint_ms = 60;
    }
    for seed in 0..3 {
        let mut cluster = settled_with(3, seed, busy);
        let at = leader(&cluster);
        for _ in 0..20 {
            fill(&mut cluster, at);
        }
        let at = leader(&cluster);
        let dead = cluster.ids().into_iter().find(|id| *id != at).expect("three");
        cluster.crash(dead);
        cluster.run_for(1_000);
        let begin = cluster.read(at, OwnedQuery::Backup(Backup::Begin));
        let Reply::Int(id) = cluster.wait_for(begin, 6_000) else { panic!("a number") };
        let mut is_ready = false;
        for n in 0..15_000 {
            cluster.submit(at, &acquire(&format!("l{}", n % 50), "x", 20, 0), 0);
            cluster.run_for(2);
            is_ready = n % 500 == 499 && backup_state(&mut cluster, at, id) == Reply::Text("ready");
            if is_ready {
                break;
            }
        }
        assert!(is_ready, "seed {seed}");
    }
}

/// What a memory cell was while a snapshot was written is in that snapshot alone. The other voter is at work on an earlier digest and
/// misses that of the snapshot, and agrees on a later one: that says nothing of the records that were written.
#[test]
fn a_snapshot_whose_own_digest_was_missed_is_never_sent() {
    fn two_is_slow(config: &mut NodeConfig) {
        one_is_slow(config);
        config.digest_slice_ms = if config.id == 2 { 50_000 } else { config.digest_slice_ms };
    }
    let mut compared = 0;
    for seed in 0..6 {
        let mut cluster = settled_with(3, seed, two_is_slow);
        let at = leader(&cluster);
        let Some(gone) = cluster.ids().into_iter().find(|id| ![at, 2].contains(id)).filter(|_| at != 2)
        else {
            continue;
        };
        compared += 1;
        fill(&mut cluster, at);
        cluster.run_for(300_000);
        cluster.crash(gone);
        let full = |cluster: &SimCluster| cluster.node(at).expect("runs").machine().last_full_index();
        let snapshot = |cluster: &SimCluster| cluster.node(at).expect("runs").snapshot_index();
        work(&mut cluster, at, 1);
        let before = full(&cluster);
        assert!(cluster.run_until(300_000, |cluster| full(cluster) > before), "seed {seed}");
        cluster.run_for(1_000);
        let (first, begun) = (full(&cluster), snapshot(&cluster));
        while cluster.node(at).expect("runs").applied_index() < begun + 55 {
            cluster.submit(at, &acquire("busy", "b", 100, 0), 0);
            cluster.run_for(50);
        }
        cluster.diverge(at, Divergence::State(1));
        for ms in 0..60_000 {
            if full(&cluster) > first {
                break;
            }
            if ms % 50 == 0 {
                cluster.submit(at, &acquire("busy", "b", 100, 0), 0);
            }
            cluster.run_for(1);
        }
        let wrong = full(&cluster);
        cluster.diverge(at, Divergence::State(u64::MAX));
        cluster.run_until(400_000, |cluster| snapshot(cluster) > begun);
        assert_ne!(snapshot(&cluster), wrong, "seed {seed}: no majority has compared it");
    }
    assert!(compared > 1, "{compared}");
}

/// Twenty locks a second are taken at the leader. For each node that runs, how many snapshots counted, and the longest time without a new
/// one, in seconds.
fn snapshots_under_load(cluster: &mut SimCluster, seconds: u64) -> BTreeMap<NodeId, (u64, u64)> {
    let mut seen: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
    let mut counted: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
    for second in 0..seconds {
        let at = leader(cluster);
        let mut asked = Vec::new();
        for name in 0..20 {
            asked.push(cluster.submit(at, &acquire(&format!("l{name}"), "x", 20, 0), 0));
            cluster.run_for(50);
        }
        for ticket in asked {
            let answer = cluster.wait_for(ticket, 6_000);
            assert!(!matches!(answer, Reply::Error(_)), "after {second} s: {answer:?}");
        }
        for id in cluster.ids() {
            let Some(index) = cluster.node(id).map(|node| node.snapshot_index()) else { continue };
            let (last, since) = seen.entry(id).or_insert((index, second));
            let (count, longest) = counted.entry(id).or_default();
            *longest = (*longest).max(second - *since);
            if *last != index {
                (*last, *since) = (index, second);
                *count += 1;
            }
        }
    }
    counted
}

/// A node that syncs its file and reads it back took part in no digest, and one with a quicker disk was alone each time: its snapshots
/// were dropped without end, until requests were refused.
#[test]
fn snapshots_go_on_beside_disks_that_need_as_long_as_until_the_next() {
    fn bounded(config: &mut NodeConfig) {
        config.snapshot_entries = 300;
        config.unconfirmed_entries_max = 3_000;
        config.log_keep_entries = 10;
        config.cache_entries_max = 16;
    }
    // Nodes, how many of them are down, and how long the leader's disk and those of the others need.
    let cases = [
        (3, 0, 29_000, 30_000),
        (3, 0, 10_000, 30_000),
        (3, 0, 1_000, 4_000),
        (3, 1, 0, 30_000),
        (3, 1, 30_000, 0),
        (5, 0, 29_000, 30_000),
        (5, 2, 29_000, 30_000),
    ];
    for (nodes, down, of_leader_ms, of_others_ms) in cases {
        let mut cluster = settled_with(nodes, 1, bounded);
        let at = leader(&cluster);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != at).collect();
        cluster.slow_finish(at, of_leader_ms);
        others.iter().for_each(|id| cluster.slow_finish(*id, of_others_ms));
        others[..down].iter().for_each(|id| cluster.crash(*id));
        cluster.run_for(1_000);
        let counted = snapshots_under_load(&mut cluster, 600);
        let is_well = |(count, longest): &(u64, u64)| *count > 2 && *longest < 120;
        assert!(
            counted.values().all(is_well),
            "{nodes} nodes, {down} down, {of_leader_ms} and {of_others_ms} ms: {counted:?}"
        );
    }
}

/// One that is due after more entries than may be in an unconfirmed log is no reason to refuse anybody.
#[test]
fn a_snapshot_that_is_merely_due_refuses_nobody() {
    fn rare(config: &mut NodeConfig) {
        config.snapshot_entries = 600;
        config.unconfirmed_entries_max = 300;
        config.log_keep_entries = 10;
        config.cache_entries_max = 16;
    }
    for has_backup in [false, true] {
        let mut cluster = settled_with(3, 1, rare);
        let at = leader(&cluster);
        if has_backup {
            // Then one is due at another entry than at the leader.
            work(&mut cluster, at, 20);
            let other = cluster.ids().into_iter().find(|id| *id != at).expect("three");
            let begun = cluster.read(other, OwnedQuery::Backup(Backup::Begin));
            assert!(matches!(cluster.wait_for(begun, 6_000), Reply::Int(_)));
            cluster.run_for(5_000);
        }
        let counted = snapshots_under_load(&mut cluster, 120);
        assert!(counted.values().all(|(count, _)| *count > 0), "{counted:?}");
    }
}

/// Also one that was due by the bytes of the log.
#[test]
fn a_snapshot_that_could_not_be_written_is_tried_again_soon() {
    fn by_bytes(config: &mut NodeConfig) {
        config.snapshot_entries = 1_000_000;
        config.snapshot_bytes = 40_000;
    }
    let mut cluster = settled_with(3, 1, by_bytes);
    let at = leader(&cluster);
    cluster.refuse_snapshots(at, true);
    let full = |cluster: &SimCluster| cluster.node(at).expect("runs").machine().last_full_index();
    while full(&cluster) == 0 {
        work(&mut cluster, at, 1);
    }
    cluster.run_for(1_000);
    assert_eq!(cluster.node(at).expect("runs").snapshot_index(), 1);
    cluster.refuse_snapshots(at, false);
    for _ in 0..15 {
        work(&mut cluster, at, 1);
        cluster.run_for(1_000);
    }
    assert!(cluster.node(at).expect("runs").snapshot_index() > 1);
}
