//! A grant is told only while it is the holder's, and with the time that is left (issue item 8).

use super::*;
use bytes::Bytes;
use redfence::node_api::OwnedQuery;
use redfence_core::types::{Reason, SessionScope};

fn ttl_of(reply: &Reply) -> u64 {
    match reply {
        Reply::Granted { ttl_ms, .. } => *ttl_ms,
        other => panic!("not granted: {other:?}"),
    }
}

fn wait_with_ttl(cluster: &mut SimCluster, node: NodeId, owner: &str, ttl_ms: u64) -> Ticket {
    cluster.submit(node, &acquire("r", owner, ttl_ms, 60_000), 60_000)
}

fn owner_of(cluster: &mut SimCluster, node: NodeId) -> Option<Bytes> {
    let ticket = cluster.read(
        node,
        OwnedQuery::Info { db: 0, resource: Bytes::from_static(b"r"), sessions: SessionScope::All },
    );
    match cluster.wait_for(ticket, 3_000) {
        Reply::Info(info) => info.owner,
        other => panic!("not an info: {other:?}"),
    }
}

/// A lock held at the leader, a waiter at a follower that stands still, and the lock released meanwhile.
fn granted_while_paused(seed: u64, ttl_ms: u64) -> (SimCluster, NodeId, Ticket) {
    let mut cluster = settled(3, seed);
    let (holder, paused) = (leader(&cluster), follower(&cluster));
    let fence = take(&mut cluster, holder, "r", "a", 60_000);
    let waiter = wait_with_ttl(&mut cluster, paused, "b", ttl_ms);
    cluster.run_for(300);
    cluster.pause(paused);
    let released = cluster.submit(holder, &release("r", fence), 0);
    assert_eq!(cluster.wait_for(released, 1_000), Reply::Released);
    (cluster, paused, waiter)
}

#[test]
fn a_grant_that_ended_while_the_node_was_paused_is_not_told() {
    for seed in 0..20 {
        let (mut cluster, paused, waiter) = granted_while_paused(seed, 3_000);
        let other = leader(&cluster);
        let next = wait_with_ttl(&mut cluster, other, "c", 30_000);
        granted(&cluster.wait_for(next, 4_500));
        cluster.run_for(500);
        cluster.resume(paused);
        assert_eq!(cluster.wait_for(waiter, 3_000), Reply::Nil, "seed {seed}");
        assert_eq!(owner_of(&mut cluster, paused), Some(Bytes::from_static(b"c")), "seed {seed}");
    }
}

#[test]
fn a_grant_that_still_stands_after_a_pause_is_told_with_what_is_left() {
    for seed in 0..20 {
        let (mut cluster, paused, waiter) = granted_while_paused(seed, 10_000);
        cluster.run_for(4_000);
        cluster.resume(paused);
        let left_ms = ttl_of(&cluster.wait_for(waiter, 3_000));
        assert!((5_000..=6_000).contains(&left_ms), "seed {seed}: {left_ms} ms are left");
        assert_eq!(owner_of(&mut cluster, paused), Some(Bytes::from_static(b"b")), "seed {seed}");
    }
}

#[test]
fn a_grant_taken_away_while_the_node_was_paused_is_not_told() {
    for seed in 0..10 {
        let (mut cluster, paused, waiter) = granted_while_paused(seed, 600_000);
        let other = leader(&cluster);
        let forced = cluster.submit(other, &Command::ForceRelease { db: 0, resource: b"r" }, 0);
        cluster.wait_for(forced, 1_000);
        cluster.run_for(1_000);
        cluster.resume(paused);
        assert_eq!(cluster.wait_for(waiter, 3_000), Reply::Nil, "seed {seed}");
    }
}

/// The same where the node runs but does not hear of its leader, and for a multi-lock.
#[test]
fn a_grant_to_a_node_that_was_cut_off_is_told_with_what_is_left_or_not_at_all() {
    for (ttl_ms, told) in [(2_000, false), (20_000, true)] {
        let mut cluster = settled(3, ttl_ms);
        let (holder, alone) = (leader(&cluster), follower(&cluster));
        let fence = take(&mut cluster, holder, "r", "a", 60_000);
        let many = Command::MAcquire {
            db: 0,
            resources: [&b"s"[..], b"r"].into_iter().collect(),
            ttl_ms,
            wait_ms: 60_000,
            owner: b"b",
            session: None,
        };
        let waiter = cluster.submit(alone, &many, 60_000);
        cluster.run_for(300);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != alone).collect();
        cluster.network().split(&[alone], &others);
        let released = cluster.submit(holder, &release("r", fence), 0);
        assert_eq!(cluster.wait_for(released, 1_000), Reply::Released);
        cluster.run_for(4_000);
        cluster.heal();
        match cluster.wait_for(waiter, 5_000) {
            Reply::Nil => assert!(!told),
            Reply::GrantedMany { ttl_ms, .. } => {
                assert!(told && (12_000..=16_000).contains(&ttl_ms), "{ttl_ms} ms are left");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// With messages that take long all the time no clock jumps: the way there and back tells.
#[test]
fn a_node_whose_messages_always_come_late_tells_what_is_left() {
    let mut cluster = settled(3, 1);
    let other = follower(&cluster);
    cluster.network().delay_us = (200_000, 200_001);
    cluster.run_for(2_000);
    let asked_ms = cluster.now_ms();
    let ticket = cluster.submit(other, &acquire("r", "a", 10_000, 0), 0);
    let told_ms = ttl_of(&cluster.wait_for(ticket, 5_000));
    // It was stamped a way later than it was asked for.
    let left_ms = asked_ms + 200 + 10_000 - cluster.now_ms();
    assert!(told_ms <= left_ms + 5, "told {told_ms}, left {left_ms}");
    assert!(told_ms > 8_000);
}

#[test]
fn grants_told_at_once_have_the_time_that_was_asked_for() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        for node in cluster.ids() {
            let (name, ttl_ms) = (format!("r{node}"), 1_000 + seed);
            let ticket = cluster.submit(node, &acquire(&name, "a", ttl_ms, 0), 0);
            let reply = cluster.wait_for(ticket, 1_000);
            assert_eq!(ttl_of(&reply), ttl_ms, "seed {seed}");
            let waiter = cluster.submit(node, &acquire(&name, "b", 2 * ttl_ms, 60_000), 60_000);
            cluster.run_for(100);
            let applied = cluster.node(node).expect("runs").applied_index();
            cluster.submit(node, &release(&name, granted(&reply)), 0);
            assert_eq!(ttl_of(&cluster.wait_for(waiter, 1_000)), 2 * ttl_ms, "seed {seed}");
            let entries = cluster.node(node).expect("runs").applied_index() - applied;
            assert_eq!(entries, 1, "seed {seed}: nothing is asked");
        }
    }
}

/// A single node that slept: its clock stood still with it, so its waiter has the whole time.
#[test]
fn a_single_node_that_slept_tells_its_waiter_nearly_all_of_the_time() {
    let mut cluster = settled(1, 1);
    take(&mut cluster, 1, "r", "a", 1_000);
    let waiter = wait_with_ttl(&mut cluster, 1, "b", 2_000);
    cluster.run_for(500);
    cluster.pause(1);
    cluster.run_for(5_000);
    cluster.resume(1);
    let told_ms = ttl_of(&cluster.wait_for(waiter, 3_000));
    assert!((1_700..=2_000).contains(&told_ms), "{told_ms}");
}

/// A renewal that its node hears of late: what is left of it, or that it has ended.
#[test]
fn a_renewal_is_told_with_what_is_left_or_as_expired() {
    for (seed, ttl_ms) in (0..10).flat_map(|seed| [(seed, 1_500), (seed, 20_000)]) {
        let mut cluster = settled(3, seed);
        let (from, node) = (leader(&cluster), follower(&cluster));
        let fence = take(&mut cluster, node, "r", "a", 60_000);
        // The renewal gets through to the leader; nothing comes back for a while.
        cluster.network().cut.insert((from, node));
        let renew = Command::Renew { db: 0, resource: b"r", fence, ttl_ms };
        let ticket = cluster.submit(node, &renew, 0);
        cluster.run_for(2_500);
        assert!(cluster.answer(ticket).is_none(), "seed {seed}");
        cluster.heal();
        match cluster.wait_for(ticket, 2_400) {
            Reply::Refused(reason) => {
                assert_eq!((reason, ttl_ms), (Reason::Expired, 1_500), "seed {seed}");
            }
            Reply::Renewed { ttl_ms: left_ms } => {
                assert!(ttl_ms == 20_000 && (12_000..=17_600).contains(&left_ms), "seed {seed}: {left_ms}");
                assert_eq!(owner_of(&mut cluster, node), Some(Bytes::from_static(b"a")), "seed {seed}");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
}

/// A renewal at a follower that hears nothing from its leader for a while, and what else is sent meanwhile.
fn renewed_while_cut_off(
    seed: u64,
    meanwhile: impl Fn(&mut SimCluster, NodeId, NodeId, Fence) -> Ticket,
) -> (Reply, Reply) {
    let mut cluster = settled(3, seed);
    let (from, node) = (leader(&cluster), follower(&cluster));
    let fence = take(&mut cluster, node, "r", "a", 60_000);
    cluster.network().cut.insert((from, node));
    let renew = Command::Renew { db: 0, resource: b"r", fence, ttl_ms: 20_000 };
    let renewal = cluster.submit_by(node, 7, &renew, 0);
    let other = meanwhile(&mut cluster, from, node, fence);
    cluster.run_for(1_500);
    assert!(cluster.answer(renewal).is_none(), "seed {seed}");
    cluster.heal();
    (cluster.wait_for(renewal, 3_000), cluster.wait_for(other, 3_000))
}

/// A client's own commands take effect in order: its release does not make its renewal fail.
#[test]
fn a_renewal_told_late_is_not_refused_for_a_release_pipelined_behind_it() {
    for seed in 0..10 {
        let (renewal, released) = renewed_while_cut_off(seed, |cluster, _, node, fence| {
            cluster.submit_by(node, 7, &release("r", fence), 0)
        });
        assert!(matches!(renewal, Reply::Renewed { ttl_ms: 1..=20_000 }), "seed {seed}: {renewal:?}");
        assert_eq!(released, Reply::Released, "seed {seed}");
        let (renewal, released) = renewed_while_cut_off(seed, |cluster, _, node, fence| {
            let pairs = [(&b"r"[..], fence)].into_iter().collect();
            cluster.submit_by(node, 7, &Command::MRelease { db: 0, pairs }, 0)
        });
        assert!(matches!(renewal, Reply::Renewed { ttl_ms: 1..=20_000 }), "seed {seed}: {renewal:?}");
        assert_eq!(released, Reply::Array(vec![Reply::Released]), "seed {seed}");
    }
}

/// The same where the release comes after the renewal was heard of, at any time while the node makes sure of it.
#[test]
fn a_renewal_that_is_being_looked_at_is_not_refused_for_its_clients_release() {
    for seed in 0..30 {
        let mut cluster = settled(3, seed);
        let node = follower(&cluster);
        let fence = take(&mut cluster, node, "r", "a", 60_000);
        cluster.network().delay_us = (200_000, 200_001);
        cluster.run_for(2_000);
        let renew = Command::Renew { db: 0, resource: b"r", fence, ttl_ms: 20_000 };
        let renewal = cluster.submit_by(node, 7, &renew, 0);
        // It is heard of after 800 ms, and sure after 1,600 ms.
        cluster.run_for(780 + 2 * seed);
        let released = cluster.submit_by(node, 7, &release("r", fence), 0);
        let told = cluster.wait_for(renewal, 4_000);
        assert!(matches!(told, Reply::Renewed { ttl_ms: 1..=20_000 }), "seed {seed}: {told:?}");
        assert_eq!(cluster.wait_for(released, 4_000), Reply::Released, "seed {seed}");
    }
}

/// Whoever has the fence may release: the renewal is told what a release would be told now.
#[test]
fn a_renewal_told_late_is_refused_with_the_reason_of_the_end() {
    for seed in 0..10 {
        let (renewal, released) = renewed_while_cut_off(seed, |cluster, leader, _, fence| {
            // After the renewal has reached the leader.
            cluster.run_for(300);
            cluster.submit(leader, &release("r", fence), 0)
        });
        assert_eq!(renewal, Reply::Refused(Reason::AlreadyReleased), "seed {seed}");
        assert_eq!(released, Reply::Released, "seed {seed}");
        let (renewal, forced) = renewed_while_cut_off(seed, |cluster, leader, _, _| {
            cluster.run_for(300);
            cluster.submit(leader, &Command::ForceRelease { db: 0, resource: b"r" }, 0)
        });
        assert_eq!(renewal, Reply::Refused(Reason::Expired), "seed {seed}");
        assert_eq!(forced, Reply::Int(1), "seed {seed}");
    }
}

/// The barrier takes longer than the ttl, and the lock is renewed again meanwhile.
#[test]
fn a_renewal_is_not_told_as_expired_while_the_lock_is_held() {
    for (seed, ttl_ms) in (0..5).flat_map(|seed| [1_100, 1_200, 1_300].map(|ttl_ms| (seed, ttl_ms))) {
        let mut cluster = settled(3, seed);
        let node = follower(&cluster);
        let fence = take(&mut cluster, node, "r", "a", 60_000);
        cluster.network().delay_us = (200_000, 200_001);
        cluster.run_for(2_000);
        let renew = |ttl_ms| Command::Renew { db: 0, resource: b"r", fence, ttl_ms };
        let short = cluster.submit(node, &renew(ttl_ms), 0);
        cluster.run_for(1_000);
        let long = cluster.submit(node, &renew(60_000), 0);
        let told = cluster.wait_for(short, 4_500);
        let Reply::Renewed { ttl_ms: told_ms } = told else { panic!("seed {seed}, {ttl_ms}: {told:?}") };
        assert!((1..=ttl_ms).contains(&told_ms), "seed {seed}, {ttl_ms}: {told_ms}");
        assert!(matches!(cluster.wait_for(long, 4_500), Reply::Renewed { .. }), "seed {seed}");
    }
}

/// An owner asks again for what it holds at a node that hears of everything late, and renews it meanwhile at another.
#[test]
fn a_lock_that_its_owner_asked_for_again_is_not_released_by_a_late_node() {
    for (seed, ttl_ms) in (0..5).flat_map(|seed| [1_100, 1_200, 1_300].map(|ttl_ms| (seed, ttl_ms))) {
        let mut cluster = settled(3, seed);
        let (late, other) = (follower(&cluster), leader(&cluster));
        let fence = take(&mut cluster, other, "r", "a", 1_000);
        cluster.network().delay_us = (200_000, 200_001);
        let again = cluster.submit(late, &acquire("r", "a", ttl_ms, 0), 0);
        cluster.run_for(1_000);
        let renew = Command::Renew { db: 0, resource: b"r", fence, ttl_ms: 60_000 };
        let renewed = cluster.submit(other, &renew, 0);
        assert!(matches!(cluster.wait_for(renewed, 4_500), Reply::Renewed { .. }), "seed {seed}");
        let told = cluster.wait_for(again, 4_500);
        let Reply::Granted { fence: same, ttl_ms: told_ms } = told else {
            panic!("seed {seed}, {ttl_ms}: {told:?}")
        };
        assert_eq!(same, fence);
        assert!((1..=ttl_ms).contains(&told_ms), "seed {seed}, {ttl_ms}: {told_ms}");
        cluster.run_for(3_000);
        assert_eq!(owner_of(&mut cluster, other), Some(Bytes::from_static(b"a")), "seed {seed}, {ttl_ms}");
    }
}

/// The same with several locks, one of which its owner has released meanwhile: the others stay its own, and nothing certain is told.
#[test]
fn locks_that_their_owner_asked_for_again_are_not_released_by_a_late_node() {
    for seed in 0..5 {
        let mut cluster = settled(3, seed);
        let (late, other) = (follower(&cluster), leader(&cluster));
        let many = Command::MAcquire {
            db: 0,
            resources: [&b"r"[..], b"s"].into_iter().collect(),
            ttl_ms: 60_000,
            wait_ms: 0,
            owner: b"a",
            session: None,
        };
        let unheard = cluster.submit(late, &many, 60_000);
        cluster.run_for(1);
        cluster.pause(late);
        cluster.run_for(300);
        let again = cluster.submit(other, &many, 0);
        let s = match cluster.wait_for(again, 1_000) {
            Reply::GrantedMany { fences, .. } => fences[1],
            reply => panic!("seed {seed}: {reply:?}"),
        };
        let released = cluster.submit(other, &release("s", s), 0);
        assert_eq!(cluster.wait_for(released, 1_000), Reply::Released);
        cluster.run_for(1_000);
        cluster.resume(late);
        match cluster.wait_for(unheard, 6_000) {
            Reply::Error(refusal) => assert_eq!(refusal.code(), "INDETERMINATE", "seed {seed}"),
            reply => panic!("seed {seed}: {reply:?}"),
        }
        cluster.run_for(3_000);
        assert_eq!(owner_of(&mut cluster, other), Some(Bytes::from_static(b"a")), "seed {seed}");
    }
}

#[test]
fn a_renewal_told_at_once_has_the_time_that_was_asked_for() {
    let mut cluster = settled(3, 1);
    for node in cluster.ids() {
        let fence = take(&mut cluster, node, "r", "a", 60_000);
        let ticket = cluster.submit(node, &Command::Renew { db: 0, resource: b"r", fence, ttl_ms: 700 }, 0);
        assert_eq!(cluster.wait_for(ticket, 1_000), Reply::Renewed { ttl_ms: 700 });
        let ticket = cluster.submit(node, &release("r", fence), 0);
        assert_eq!(cluster.wait_for(ticket, 1_000), Reply::Released);
    }
}
