//! What a client may be told: `UNAVAILABLE` is a promise, `INDETERMINATE` is the truth about the rest.

use super::*;
use bytes::Bytes;
use redfence::node_api::{Input, OwnedQuery, Submit};
use redfence_core::types::SessionScope;

#[test]
fn a_minority_refuses_writes_and_reads_within_the_deadline() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let alone = follower(&cluster);
        for id in cluster.ids() {
            if id != alone {
                cluster.crash(id);
            }
        }
        cluster.run_for(1_500);
        let asked_ms = cluster.now_ms();
        let write = cluster.submit(alone, &acquire("r", "a", 1_000, 0), 0);
        let query =
            OwnedQuery::Info { db: 0, resource: Bytes::from_static(b"r"), sessions: SessionScope::All };
        let read = cluster.read(alone, query);
        assert_eq!(code(&cluster.wait_for(write, 5_500)), "UNAVAILABLE", "seed {seed}");
        assert_eq!(code(&cluster.wait_for(read, 5_500)), "UNAVAILABLE", "seed {seed}");
        assert!(cluster.now_ms() - asked_ms < 5_200);
        for id in cluster.ids() {
            if id != alone {
                cluster.start(id);
            }
        }
        assert!(cluster.run_until(5_000, |cluster| cluster.leader().is_some()), "seed {seed}");
        take(&mut cluster, alone, "r", "b", 1_000);
    }
}

#[test]
fn a_leader_cut_off_after_it_proposed_does_not_know() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let old = leader(&cluster);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != old).collect();
        cluster.network().split(&[old], &others);
        let lost = cluster.submit(old, &acquire("r", "a", 60_000, 0), 0);
        assert_eq!(code(&cluster.wait_for(lost, 6_000)), "INDETERMINATE", "seed {seed}");
    }
}

#[test]
fn a_request_sent_to_a_leader_that_dies_is_applied_once_by_the_next() {
    for seed in 0..60 {
        let mut cluster = settled(3, seed);
        let dead = leader(&cluster);
        let other = follower(&cluster);
        let ticket = cluster.submit(other, &acquire("r", "a", 60_000, 0), 0);
        // Somewhere between leaving and being applied everywhere.
        cluster.run_for(seed % 6);
        cluster.crash(dead);
        let fence = granted(&cluster.wait_for(ticket, 5_000));
        cluster.start(dead);
        cluster.run_for(1_000);
        let grants: Vec<_> = cluster
            .events
            .iter()
            .filter(|seen| seen.event.kind == redfence_core::event::EventKind::Acquired)
            .map(|seen| seen.event.fence)
            .collect();
        assert!(grants.iter().all(|seen| *seen == fence), "seed {seed}: granted more than once: {grants:?}");
        assert_equal_states(&mut cluster, seed);
    }
}

/// Whoever leads is killed, again and again, and comes back cold after a moment, or at once. A node that stays up has requests in
/// flight all the time: sent to a leader that is dead, to one that has just started and leads no more, and while nobody leads.
#[test]
fn no_request_is_lost_when_leaders_are_stopped_and_started_cold() {
    let mut longest_ms = 0;
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        for round in 0..10 {
            let (dead, asker) = (leader(&cluster), follower(&cluster));
            let mut asked = Vec::new();
            let mut ask = |cluster: &mut SimCluster, number: u64, pause_ms: u64| {
                let name = format!("r{round}-{number}");
                let ticket = cluster.submit_by(asker, 1 + number % 3, &acquire(&name, "a", 60_000, 0), 0);
                asked.push((ticket, cluster.now_ms()));
                let pause_ms = cluster.draw(pause_ms);
                cluster.run_for(pause_ms);
            };
            (0..6).for_each(|number| ask(&mut cluster, number, 4));
            cluster.crash(dead);
            (6..9).for_each(|number| ask(&mut cluster, number, [1, 60, 400][round % 3]));
            cluster.start(dead);
            (9..12).for_each(|number| ask(&mut cluster, number, 100));
            for (ticket, asked_ms) in asked {
                let reply = cluster.wait_for(ticket, 4_500);
                assert!(matches!(reply, Reply::Granted { .. }), "seed {seed}, round {round}: {reply:?}");
                longest_ms = longest_ms.max(cluster.now_ms() - asked_ms);
            }
            assert!(cluster.run_until(5_000, |cluster| cluster.leader().is_some()), "seed {seed}");
            cluster.run_for(300);
        }
    }
    println!("the longest wait was {longest_ms} ms");
    assert!(longest_ms < 4_000, "{longest_ms} ms");
}

#[test]
fn nothing_acknowledged_is_lost_when_all_lose_power() {
    for seed in 0..40 {
        let mut cluster = settled(3, seed);
        let fences: Vec<Fence> =
            (0..10).map(|n| take(&mut cluster, 1 + n % 3, &format!("r{n}"), "a", 600_000)).collect();
        for id in cluster.ids() {
            cluster.crash(id);
        }
        for id in cluster.ids() {
            cluster.start(id);
        }
        assert!(cluster.run_until(5_000, |cluster| cluster.leader().is_some()), "seed {seed}");
        for (n, fence) in fences.into_iter().enumerate() {
            let name = format!("r{n}");
            let ticket = cluster.submit(2, &release(&name, fence), 0);
            assert_eq!(cluster.wait_for(ticket, 5_000), Reply::Released, "seed {seed}: r{n} was lost");
        }
        assert_equal_states(&mut cluster, seed);
    }
}

/// What a member of another release forwards is not logged by a leader that does not know it: everybody would stop.
#[test]
fn a_leader_logs_nothing_it_could_not_apply() {
    let mut cluster = settled(3, 1);
    let other = follower(&cluster);
    let blob = Bytes::from_static(&[250, 1]);
    let submit = Submit { ticket: 77, connection: Default::default(), blob, timeout_ms: 5_000, wait_ms: 0 };
    cluster.input(other, Input::Submit(submit));
    assert_eq!(code(&cluster.wait_for(77, 1_000)), "ERR");
    take(&mut cluster, other, "r", "a", 1_000);
    assert_equal_states(&mut cluster, 1);
}
