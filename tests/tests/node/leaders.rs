//! Leaders that die, sleep, are cut off, or hand over.

use super::*;
use redfence::node_api::{AdminRequest, Forward, Forwarded, Input, PeerMessage};
use redfence::tier2::Node;
use redfence_core::types::{Origin, SessionScope};

#[test]
fn a_killed_leader_is_replaced_within_half_a_second_at_the_median() {
    let mut gaps_ms: Vec<u64> = (0..60)
        .map(|seed| {
            let mut cluster = settled(3, seed);
            let fence = take(&mut cluster, 1, "held", "a", 60_000);
            let dead = leader(&cluster);
            cluster.crash(dead);
            let asked_ms = cluster.now_ms();
            let other = cluster.ids().into_iter().find(|id| *id != dead).expect("two are left");
            let ticket = cluster.submit(other, &acquire("r", "b", 60_000, 0), 0);
            granted(&cluster.wait_for(ticket, 6_000));
            let gap_ms = cluster.now_ms() - asked_ms;
            let ticket = cluster.submit(other, &acquire("held", "c", 1_000, 0), 0);
            assert_eq!(cluster.wait_for(ticket, 6_000), Reply::Nil, "seed {seed}: {fence} was lost");
            gap_ms
        })
        .collect();
    gaps_ms.sort_unstable();
    let (median, worst) = (gaps_ms[gaps_ms.len() / 2], gaps_ms[gaps_ms.len() - 1]);
    assert!(median < 500 && worst < 2_000, "median {median} ms, worst {worst} ms");
}

#[test]
fn a_leader_whose_port_refuses_is_replaced_without_an_election_timeout() {
    for (seed, nodes) in (0..20).flat_map(|seed| [(seed, 3), (seed, 5)]) {
        let mut cluster = settled(nodes, seed);
        let dead = leader(&cluster);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != dead).collect();
        cluster.crash(dead);
        let killed_ms = cluster.now_ms();
        let ticket = cluster.submit(others[0], &acquire("r", "b", 60_000, 0), 0);
        // They learn it one after the other, the last to stand first.
        for id in others.iter().rev() {
            cluster.input(*id, Input::Refused(dead));
            cluster.run_for(5);
        }
        granted(&cluster.wait_for(ticket, 6_000));
        let gap_ms = cluster.now_ms() - killed_ms;
        // The shortest election time-out is 300 ms.
        assert!(gap_ms < 200, "seed {seed}, {nodes} nodes: {gap_ms} ms");
    }
}

#[test]
fn a_leader_that_lives_stays_though_its_port_refuses_again_and_again() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let old = leader(&cluster);
        let term = cluster.node(old).map(Node::term);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != old).collect();
        for round in 0..50_usize {
            cluster.input(others[round % 2], Input::Refused(old));
            let ticket = cluster.submit(others[round % 2], &acquire(&format!("r{round}"), "a", 60_000, 0), 0);
            granted(&cluster.wait_for(ticket, 2_000));
            cluster.run_for(40);
        }
        assert_eq!((leader(&cluster), cluster.node(old).map(Node::term)), (old, term), "seed {seed}");
    }
}

#[test]
fn waiters_keep_their_place_when_the_leader_dies() {
    for seed in 0..30 {
        let mut cluster = settled(3, seed);
        let dead = leader(&cluster);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != dead).collect();
        let fence = take(&mut cluster, others[0], "r", "a", 60_000);
        let second = wait_in_line(&mut cluster, others[1], "r", "b", 30_000);
        cluster.run_for(200);
        cluster.crash(dead);
        // Asked while nobody leads.
        let third = wait_in_line(&mut cluster, others[0], "r", "c", 30_000);
        cluster.run_for(2_000);
        let ticket = cluster.submit(others[0], &release("r", fence), 0);
        assert_eq!(cluster.wait_for(ticket, 2_000), Reply::Released, "seed {seed}");
        let next = granted(&cluster.wait_for(second, 2_000));
        assert!(cluster.answer(third).is_none(), "seed {seed}: out of turn");
        let ticket = cluster.submit(others[1], &release("r", next), 0);
        cluster.wait_for(ticket, 2_000);
        granted(&cluster.wait_for(third, 2_000));
        cluster.start(dead);
        cluster.run_for(1_000);
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn a_leader_that_slept_past_every_ttl_ends_nothing_early() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let asleep = leader(&cluster);
        let other = follower(&cluster);
        take(&mut cluster, other, "r", "a", 4_000);
        cluster.pause(asleep);
        cluster.run_for(2_000);
        // Held and renewed under the new leader.
        let ticket = cluster.submit(other, &acquire("r", "a", 20_000, 0), 0);
        let fence = granted(&cluster.wait_for(ticket, 5_000));
        cluster.run_for(8_000);
        cluster.resume(asleep);
        cluster.run_for(2_000);
        let ticket = cluster.submit(asleep, &acquire("r", "thief", 1_000, 0), 0);
        assert_eq!(cluster.wait_for(ticket, 6_000), Reply::Nil, "seed {seed}");
        let ticket = cluster.submit(asleep, &release("r", fence), 0);
        assert_eq!(cluster.wait_for(ticket, 6_000), Reply::Released, "seed {seed}");
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn a_single_node_that_slept_counts_one_gap() {
    let mut cluster = settled(1, 3);
    take(&mut cluster, 1, "r", "a", 5_000);
    cluster.pause(1);
    cluster.run_for(60_000);
    cluster.resume(1);
    cluster.run_for(100);
    let ticket = cluster.submit(1, &acquire("r", "b", 1_000, 0), 0);
    assert_eq!(cluster.wait_for(ticket, 1_000), Reply::Nil);
    cluster.run_for(5_000);
    take(&mut cluster, 1, "r", "c", 1_000);
}

#[test]
fn a_deposed_leader_serves_no_stale_read() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let old = leader(&cluster);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != old).collect();
        let fence = take(&mut cluster, others[0], "r", "a", 60_000);
        cluster.network().split(&[old], &others);
        let query = redfence::node_api::OwnedQuery::Info {
            db: 0,
            resource: bytes::Bytes::from_static(b"r"),
            sessions: SessionScope::All,
        };
        let stale = cluster.read(old, query);
        let ticket = cluster.submit(others[1], &release("r", fence), 0);
        assert_eq!(cluster.wait_for(ticket, 5_000), Reply::Released, "seed {seed}");
        cluster.run_for(6_000);
        assert_eq!(code(cluster.answer(stale).expect("refused by now")), "UNAVAILABLE", "seed {seed}");
    }
}

#[test]
fn leadership_moves_when_asked_from_anywhere() {
    for seed in 0..10 {
        let mut cluster = settled(3, seed);
        let target = follower(&cluster);
        let asked = cluster.ids().into_iter().find(|id| *id != target && Some(*id) != cluster.leader());
        let ticket = cluster.admin(asked.expect("a third node"), AdminRequest::Transfer { id: target });
        assert_eq!(cluster.wait_for(ticket, 5_000), Reply::OK, "seed {seed}");
        assert_eq!(cluster.leader(), Some(target));
        take(&mut cluster, 1, "r", "a", 1_000);
    }
}

#[test]
fn shutdown_hands_over_and_frees_the_queue() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let old = leader(&cluster);
        let other = follower(&cluster);
        let fence = take(&mut cluster, other, "r", "a", 60_000);
        let waiting = wait_in_line(&mut cluster, old, "r", "b", 30_000);
        cluster.run_for(300);
        cluster.input(old, Input::Shutdown);
        let asked_ms = cluster.now_ms();
        assert!(cluster.run_until(5_000, |cluster| cluster.stopped(old)), "seed {seed}: does not stop");
        assert!(cluster.now_ms() - asked_ms < 1_500, "seed {seed}: took {} ms", cluster.now_ms() - asked_ms);
        assert_eq!(code(cluster.answer(waiting).expect("answered")), "UNAVAILABLE", "seed {seed}");
        // Nobody is without a leader for long, and the waiter is not granted the lock after its end.
        let ticket = cluster.submit(other, &release("r", fence), 0);
        assert_eq!(cluster.wait_for(ticket, 300), Reply::Released, "seed {seed}");
        take(&mut cluster, other, "r", "c", 1_000);
    }
}

#[test]
fn waiters_of_a_dead_node_leave_their_queues() {
    let mut cluster = settled(3, 9);
    let dead = follower(&cluster);
    let other = leader(&cluster);
    let fence = take(&mut cluster, other, "r", "a", 60_000);
    wait_in_line(&mut cluster, dead, "r", "ghost", 60_000);
    cluster.run_for(300);
    cluster.crash(dead);
    cluster.run_for(11_000);
    let ticket = cluster.submit(other, &release("r", fence), 0);
    assert_eq!(cluster.wait_for(ticket, 1_000), Reply::Released);
    take(&mut cluster, other, "r", "b", 1_000);
}

#[test]
fn a_node_declared_gone_while_it_lived_begins_anew() {
    for seed in 0..10 {
        let mut cluster = settled(3, seed);
        let cut_off = follower(&cluster);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != cut_off).collect();
        let fence = take(&mut cluster, others[0], "r", "a", 120_000);
        let waiting = wait_in_line(&mut cluster, cut_off, "r", "b", 60_000);
        cluster.run_for(300);
        cluster.network().split(&[cut_off], &others);
        cluster.run_for(12_000);
        cluster.heal();
        cluster.run_for(2_000);
        assert_eq!(code(cluster.answer(waiting).expect("answered")), "UNAVAILABLE", "seed {seed}");
        let ticket = cluster.submit(cut_off, &release("r", fence), 0);
        assert_eq!(cluster.wait_for(ticket, 2_000), Reply::Released, "seed {seed}");
        take(&mut cluster, cut_off, "r", "c", 1_000);
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn a_node_that_a_late_word_of_its_earlier_start_put_aside_begins_anew() {
    for seed in 0..10 {
        let mut cluster = settled(3, seed);
        let node = follower(&cluster);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != node).collect();
        cluster.network().split(&[node], &others);
        let mut starts: Vec<Origin> = Vec::new();
        for _ in 0..2 {
            cluster.crash(node);
            cluster.start(node);
            starts.extend(cluster.node(node).map(Node::origin));
        }
        // Both starts' announcements come through, the earlier one last, before the node sees what became of either.
        for &origin in starts.iter().rev() {
            let mut blob = Vec::new();
            Command::OriginStart { origin }.encode(&mut blob);
            // Without a number: nobody waits for an answer.
            let commands = vec![Forwarded { seq: 0, connection: 0, blob: blob.into() }];
            let to = leader(&cluster);
            let term = cluster.node(to).expect("it runs").term();
            let message = PeerMessage::Forward(Forward { origin, term, prev: 0, acked_below: 1, commands });
            cluster.input(to, Input::Peer { from: node, message });
        }
        cluster.run_for(300);
        cluster.heal();
        cluster.run_for(2_000);
        take(&mut cluster, node, "r", "a", 1_000);
        assert_equal_states(&mut cluster, seed);
    }
}
