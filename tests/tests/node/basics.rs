//! Elections, replication, forwarding, reads, waits, expiry.

use super::*;
use bytes::Bytes;
use redfence::node_api::{Input, OwnedQuery};
use redfence_core::reply::LockInfo;
use redfence_core::types::{Reason, SessionId, SessionScope};

fn info(cluster: &mut SimCluster, node: NodeId, resource: &'static str) -> LockInfo {
    let query = OwnedQuery::Info {
        db: 0,
        resource: Bytes::from_static(resource.as_bytes()),
        sessions: SessionScope::All,
    };
    let ticket = cluster.read(node, query);
    match cluster.wait_for(ticket, 6_000) {
        Reply::Info(info) => *info,
        other => panic!("not an info: {other:?}"),
    }
}

/// A session of a node's client, with a lock for as long as it lives.
fn session_with_lock(cluster: &mut SimCluster, node: NodeId, ttl_ms: u64) -> SessionId {
    let id = SessionId(77);
    let ticket = cluster.submit(node, &Command::SessionOpen { id, ttl_ms, label: b"" }, 0);
    cluster.wait_for(ticket, 1_000);
    let command =
        Command::Acquire { db: 0, resource: b"r", ttl_ms: 0, wait_ms: 0, owner: b"a", session: Some(id) };
    let ticket = cluster.submit(node, &command, 0);
    granted(&cluster.wait_for(ticket, 1_000));
    id
}

#[test]
fn a_single_node_serves_at_once() {
    let mut cluster = SimCluster::new(1, 1, defaults);
    let ticket = cluster.submit(1, &acquire("r", "a", 1_000, 0), 0);
    granted(&cluster.wait_for(ticket, 100));
    assert!(info(&mut cluster, 1, "r").held);
}

#[test]
fn every_node_answers_every_client() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        for node in cluster.ids() {
            let fence = take(&mut cluster, node, &format!("r{node}"), "a", 10_000);
            for other in cluster.ids() {
                let name: &'static str = ["", "r1", "r2", "r3"][node as usize];
                let shown = info(&mut cluster, other, name);
                assert_eq!((shown.held, shown.fence), (true, fence), "seed {seed}");
            }
        }
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn a_waiter_on_another_node_gets_the_lock_when_it_is_released() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let fence = take(&mut cluster, 1, "r", "a", 60_000);
        let second = wait_in_line(&mut cluster, 2, "r", "b", 30_000);
        cluster.run_for(200);
        let third = wait_in_line(&mut cluster, 3, "r", "c", 30_000);
        cluster.run_for(200);
        assert!(cluster.answer(second).is_none(), "queued is no answer");
        let ticket = cluster.submit(3, &release("r", fence), 0);
        assert_eq!(cluster.wait_for(ticket, 1_000), Reply::Released);
        let next = granted(&cluster.wait_for(second, 1_000));
        assert!(next > fence, "seed {seed}");
        let ticket = cluster.submit(1, &release("r", next), 0);
        assert_eq!(cluster.wait_for(ticket, 1_000), Reply::Released);
        assert!(granted(&cluster.wait_for(third, 1_000)) > next, "seed {seed}");
    }
}

#[test]
fn a_wait_that_runs_out_is_answered_nil() {
    let mut cluster = settled(3, 5);
    take(&mut cluster, 1, "r", "a", 60_000);
    let waiting = wait_in_line(&mut cluster, 2, "r", "b", 700);
    let asked_ms = cluster.now_ms();
    assert_eq!(cluster.wait_for(waiting, 2_000), Reply::Nil);
    let waited_ms = cluster.now_ms() - asked_ms;
    assert!((700..1_000).contains(&waited_ms), "waited {waited_ms} ms");
}

#[test]
fn a_client_that_goes_away_leaves_the_queue() {
    let mut cluster = settled(3, 6);
    take(&mut cluster, 1, "r", "a", 60_000);
    let waiting = wait_in_line(&mut cluster, 2, "r", "b", 30_000);
    cluster.run_for(200);
    assert_eq!(info(&mut cluster, 3, "r").waiters, 1);
    cluster.input(2, Input::Cancel { ticket: waiting });
    cluster.run_for(200);
    assert_eq!(info(&mut cluster, 3, "r").waiters, 0);
    assert!(cluster.answer(waiting).is_none());
}

#[test]
fn a_lock_ends_soon_after_its_ttl_and_never_before() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let asked_ms = cluster.now_ms();
        take(&mut cluster, 1, "r", "a", 1_500);
        let waiting = wait_in_line(&mut cluster, 2, "r", "b", 30_000);
        granted(&cluster.wait_for(waiting, 3_000));
        let held_ms = cluster.now_ms() - asked_ms;
        assert!((1_500..1_600).contains(&held_ms), "seed {seed}: held {held_ms} ms");
    }
}

#[test]
fn sessions_live_by_batched_keep_alives_and_die_without_them() {
    let mut cluster = settled(3, 7);
    let id = session_with_lock(&mut cluster, 2, 1_000);
    for _ in 0..10 {
        cluster.input(2, Input::SessionsTouched(vec![id]));
        cluster.run_for(500);
    }
    assert!(info(&mut cluster, 1, "r").held);
    cluster.input(2, Input::SessionsOrphaned { ids: vec![id], grace_ms: 500, heard_index: u64::MAX });
    cluster.run_for(1_000);
    assert!(!info(&mut cluster, 1, "r").held);
}

/// Clients whose requests fill a node must not end the sessions of others.
#[test]
fn a_session_in_a_hurry_is_reported_where_no_request_is_taken() {
    fn two_is_full(config: &mut NodeConfig) {
        if config.id == 2 {
            config.pending_requests_max = 0;
        }
    }
    let mut cluster = settled_with(3, 7, two_is_full);
    let refused = cluster.submit(2, &acquire("r", "a", 1_000, 0), 0);
    assert!(matches!(cluster.wait_for(refused, 1_000), Reply::Error(_)));
    let id = session_with_lock(&mut cluster, 1, 1_000);
    for _ in 0..10 {
        cluster.input(2, Input::SessionsInHurry(vec![id]));
        cluster.run_for(900);
    }
    assert!(info(&mut cluster, 1, "r").held);
    cluster.run_for(2_000);
    assert!(!info(&mut cluster, 1, "r").held);
}

/// The connection is closed while there is no quorum, for longer than anything else is tried: nobody else would end its session.
#[test]
fn a_session_orphaned_during_a_long_outage_ends_after_it() {
    let mut cluster = settled(3, 7);
    let id = session_with_lock(&mut cluster, 2, 3_600_000);
    cluster.crash(1);
    cluster.crash(3);
    cluster.run_for(1_000);
    cluster.input(2, Input::SessionsOrphaned { ids: vec![id], grace_ms: 500, heard_index: u64::MAX });
    cluster.run_for(120_000);
    cluster.start(1);
    cluster.start(3);
    cluster.run_for(10_000);
    assert!(!info(&mut cluster, 2, "r").held);
}

/// The same where its node alone is cut off, for less or more than it takes to be declared gone.
#[test]
fn a_session_orphaned_at_a_node_that_is_cut_off_ends_after_it() {
    for cut_ms in [5_000, 40_000] {
        let mut cluster = settled(3, 7);
        let id = session_with_lock(&mut cluster, 2, 3_600_000);
        cluster.network().split(&[2], &[1, 3]);
        cluster.run_for(1_000);
        cluster.input(2, Input::SessionsOrphaned { ids: vec![id], grace_ms: 500, heard_index: u64::MAX });
        cluster.run_for(cut_ms);
        cluster.heal();
        cluster.run_for(60_000);
        assert!(!info(&mut cluster, 1, "r").held, "cut off for {cut_ms} ms");
    }
}

fn keep_alive_at(cluster: &mut SimCluster, node: u64, id: SessionId) {
    let ticket = cluster.submit(node, &Command::SessionKeepAlive { id, own: false }, 0);
    assert_eq!(cluster.wait_for(ticket, 1_000), Reply::Int(60_000));
}

/// Its client goes on at another node. The node that is cut off says so late, and that ends nothing.
#[test]
fn a_session_that_was_taken_over_outlives_what_a_node_says_late() {
    for cut_ms in [5_000, 40_000] {
        let mut cluster = settled(3, 7);
        let id = session_with_lock(&mut cluster, 2, 60_000);
        cluster.network().split(&[2], &[1, 3]);
        cluster.run_for(1_000);
        cluster.input(2, Input::SessionsOrphaned { ids: vec![id], grace_ms: 500, heard_index: u64::MAX });
        keep_alive_at(&mut cluster, 1, id);
        cluster.run_for(cut_ms);
        keep_alive_at(&mut cluster, 3, id);
        cluster.heal();
        cluster.run_for(20_000);
        assert!(info(&mut cluster, 1, "r").held, "cut off for {cut_ms} ms");
        cluster.run_for(60_000);
        assert!(!info(&mut cluster, 1, "r").held, "its client has gone");
    }
}

/// The connection's end is seen late: its host vanished, or the network was cut between it and the node. Whoever kept the session alive
/// elsewhere since the last word of that connection keeps it.
#[test]
fn the_late_end_of_a_connection_ends_its_session_unless_it_went_on_elsewhere() {
    for goes_on in [false, true] {
        for late_ms in [0, 5_000, 30_000] {
            let mut cluster = settled(3, 7);
            let id = session_with_lock(&mut cluster, 2, 60_000);
            // Before its last word.
            keep_alive_at(&mut cluster, 1, id);
            cluster.run_for(1_000);
            let heard_index = cluster.node(2).unwrap().machine().entry_index();
            if goes_on {
                keep_alive_at(&mut cluster, 1, id);
            }
            cluster.run_for(late_ms);
            cluster.input(2, Input::SessionsOrphaned { ids: vec![id], grace_ms: 500, heard_index });
            cluster.run_for(2_000);
            assert_eq!(info(&mut cluster, 1, "r").held, goes_on, "{late_ms} ms late");
        }
    }
}

/// A keep-alive on the connection itself takes nothing over, whether it is applied before or after the connection is known to be closed.
#[test]
fn a_keep_alive_on_the_connection_itself_takes_nothing_over() {
    for closed_first in [false, true] {
        let mut cluster = settled(3, 7);
        let id = session_with_lock(&mut cluster, 2, 3_600_000);
        let heard_index = cluster.node(2).unwrap().machine().entry_index();
        let orphaned = Input::SessionsOrphaned { ids: vec![id], grace_ms: 500, heard_index };
        let keep_alive = Command::SessionKeepAlive { id, own: true };
        if closed_first {
            cluster.input(2, orphaned);
            cluster.submit(2, &keep_alive, 0);
        } else {
            cluster.submit(2, &keep_alive, 0);
            cluster.input(2, orphaned);
        }
        cluster.run_for(2_000);
        assert!(!info(&mut cluster, 1, "r").held, "closed first: {closed_first}");
    }
}

/// Of two clients of these nodes the first has a lock, and the second waits for it.
fn one_waits(cluster: &mut SimCluster, holder_at: NodeId, waiter_at: NodeId) {
    take(cluster, holder_at, "r", "holder", 600_000);
    wait_in_line(cluster, waiter_at, "r", "waiter", 600_000);
    cluster.run_for(500);
    assert_eq!(info(cluster, holder_at, "r").waiters, 1);
}

/// Where nobody listens at the port of a silent node its process has ended, and nobody is there to be told of a grant.
#[test]
fn waiters_of_a_process_that_has_ended_leave_soon() {
    for is_refused in [false, true] {
        let mut cluster = settled(3, 7);
        let (at, other) = (leader(&cluster), follower(&cluster));
        one_waits(&mut cluster, at, other);
        cluster.crash(other);
        for _ in 0..6 {
            if is_refused {
                cluster.input(at, Input::Refused(other));
            }
            cluster.run_for(500);
        }
        assert_eq!(info(&mut cluster, at, "r").waiters, u64::from(!is_refused));
        cluster.run_for(10_000);
        assert_eq!(info(&mut cluster, at, "r").waiters, 0);
    }
}

/// What the others said meanwhile is read after it runs again. So is a leader of two that is frozen, and a whole cluster.
#[test]
fn a_leader_that_did_not_run_takes_nobody_for_lost() {
    for (nodes, all) in [(2, false), (3, true)] {
        let mut cluster = settled(nodes, 7);
        let (at, other) = (leader(&cluster), follower(&cluster));
        take(&mut cluster, at, "r", "holder", 600_000);
        let first = wait_in_line(&mut cluster, other, "r", "first", 300_000);
        cluster.run_for(200);
        wait_in_line(&mut cluster, at, "r", "second", 300_000);
        cluster.run_for(200);
        let frozen: Vec<NodeId> = cluster.ids().into_iter().filter(|id| all || *id == at).collect();
        frozen.iter().for_each(|id| cluster.pause(*id));
        cluster.run_for(11_000);
        frozen.iter().for_each(|id| cluster.resume(*id));
        cluster.run_for(3_000);
        assert_eq!(info(&mut cluster, other, "r").waiters, 2, "{nodes} nodes");
        assert!(cluster.answer(first).is_none(), "{nodes} nodes: it waits in its place");
    }
}

/// The cluster is never without an entry under way.
#[test]
fn waiters_of_a_lost_node_leave_and_idle_names_are_forgotten_under_load() {
    fn forgets(config: &mut NodeConfig) {
        config.idle_record_ms = 2_000;
    }
    let mut cluster = settled_with(3, 7, forgets);
    cluster.network().delay_us = (15_000, 16_000);
    cluster.run_for(2_000);
    let (at, other) = (leader(&cluster), follower(&cluster));
    let once = take(&mut cluster, at, "once", "o", 100);
    one_waits(&mut cluster, at, other);
    cluster.crash(other);
    for n in 0..14_000 {
        cluster.submit(at, &acquire(&format!("busy{}", n % 50), "b", 20, 0), 0);
        cluster.run_for(1);
    }
    let machine = cluster.node(at).unwrap().machine();
    assert!(machine.live_origins().all(|origin| origin.node != other), "it is still waited for");
    cluster.submit(at, &acquire("busy", "b", 20, 0), 0);
    let release = cluster.submit(at, &release("once", once), 0);
    assert_eq!(
        cluster.wait_for(release, 1_000),
        Reply::Refused(Reason::NotOwner),
        "how it ended is forgotten"
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut cluster = settled(3, seed);
        for round in 0..20 {
            let node = 1 + round % 3;
            cluster.submit(node, &acquire("r", &format!("o{round}"), 100, 1_000), 1_000);
            cluster.run_for(50);
        }
        cluster.trace()
    };
    assert_eq!(run(42), run(42));
    assert_ne!(run(42), run(43));
}
