//! Work that is spread: sweeps after a flush, `KEYS` in slices. Others are served meanwhile. And reads of keys whose end is under way.

use super::*;
use bytes::Bytes;
use redfence::node_api::OwnedQuery;
use redfence_core::keyspace::Resp;
use redfence_core::machine::Words;
use redfence_core::types::SessionScope;

fn redis(line: &str) -> Command<'_> {
    let argv: Words<'_> = line.split(' ').map(str::as_bytes).collect();
    Command::Redis { db: 0, resp: Resp::Two, member: None, argv }
}

fn say(cluster: &mut SimCluster, node: NodeId, line: &str) -> Reply {
    let ticket = cluster.submit(node, &redis(line), 0);
    cluster.wait_for(ticket, 6_000)
}

fn fill(cluster: &mut SimCluster, node: NodeId, keys: usize) {
    for block in 0..keys / 500 {
        let pairs: String = (0..500).map(|number| format!(" key{} v", 500 * block + number)).collect();
        assert_eq!(say(cluster, node, &format!("MSET{pairs}")), Reply::OK);
    }
}

#[test]
fn a_flush_is_swept_by_entries_of_the_leader_while_locks_are_served() {
    let seed = 11;
    let mut cluster = settled(3, seed);
    let leader = leader(&cluster);
    fill(&mut cluster, leader, 20_000);
    let waiting = wait_in_line(&mut cluster, 2, "key19999", "waiter", 30_000);
    cluster.run_for(200);
    assert_eq!(say(&mut cluster, leader, "FLUSHALL"), Reply::OK);
    // One of the last to be swept.
    take(&mut cluster, 1, "key19998", "me", 30_000);
    granted(&cluster.wait_for(waiting, 3_000));
    let swept = |cluster: &SimCluster| {
        let held = |id| cluster.node(id).map(|node| node.machine().stats().locks_held);
        cluster.ids().into_iter().all(|id| held(id) == Some(2))
    };
    assert!(cluster.run_until(5_000, swept), "nobody asked for it, and it was swept all the same");
    assert_equal_states(&mut cluster, seed);
}

#[test]
fn keys_goes_in_slices_and_others_are_answered_before_it() {
    let mut cluster = SimCluster::new(1, 1, defaults);
    assert!(cluster.run_until(5_000, |cluster| cluster.leader().is_some()));
    fill(&mut cluster, 1, 40_000);
    let argv = vec![Bytes::from_static(b"KEYS"), Bytes::from_static(b"key*")];
    let keys = cluster.read(1, OwnedQuery::Redis { db: 0, resp: Resp::Two, member: None, argv });
    let info = cluster.read(
        1,
        OwnedQuery::Info { db: 0, resource: Bytes::from_static(b"key1"), sessions: SessionScope::All },
    );
    let later = cluster.submit(1, &acquire("lock", "me", 10_000, 0), 0);
    assert!(cluster.run_until(5_000, |cluster| cluster.answer(info).is_some()));
    assert!(cluster.answer(keys).is_none(), "it takes more than one turn");
    granted(&cluster.wait_for(later, 1_000));
    assert!(matches!(cluster.wait_for(keys, 5_000), Reply::Array(names) if names.len() == 40_000));
}

fn read(cluster: &mut SimCluster, node: NodeId, line: &str) -> Ticket {
    let argv = line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
    cluster.read(node, OwnedQuery::Redis { db: 0, resp: Resp::Two, member: None, argv })
}

#[test]
fn a_key_is_not_shown_to_who_has_waited_for_its_whole_time() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        for node in cluster.ids() {
            for (at, line) in ["GET k", "EXISTS a k", "TTL k", "DBSIZE", "SCAN 0"].iter().enumerate() {
                assert_eq!(say(&mut cluster, node, "SET k v PX 400"), Reply::OK);
                let info = OwnedQuery::Info {
                    db: 0,
                    resource: Bytes::from_static(b"k"),
                    sessions: SessionScope::All,
                };
                // A deadline has passed after its own millisecond, and times are counted in whole ones.
                cluster.run_for(402);
                let (ticket, later) = (read(&mut cluster, node, line), cluster.read(node, info));
                let reply = cluster.wait_for(ticket, 1_000);
                let gone = match at {
                    0 => Reply::Nil,
                    2 => Reply::Int(-2),
                    4 => Reply::Array(vec![Reply::bulk("0"), Reply::Array(vec![])]),
                    _ => Reply::Int(0),
                };
                assert_eq!(reply, gone, "seed {seed}, node {node}: {line}");
                let Reply::Info(info) = cluster.wait_for(later, 1_000) else { panic!("no info") };
                assert!(!info.held, "seed {seed}, node {node}");
            }
        }
    }
}

#[test]
fn a_read_of_a_key_that_does_not_end_is_answered_all_the_same() {
    let mut cluster = settled(3, 3);
    let (leader, follower) = (leader(&cluster), follower(&cluster));
    assert_eq!(say(&mut cluster, follower, "SET k v PX 300"), Reply::OK);
    assert_eq!(say(&mut cluster, follower, "SET other v"), Reply::OK);
    // Nobody leads, so nothing ends, until another does.
    cluster.crash(leader);
    let asked_ms = cluster.now_ms();
    let (ticket, other) = (read(&mut cluster, follower, "GET k"), read(&mut cluster, follower, "GET other"));
    assert_eq!(cluster.wait_for(other, 5_000), Reply::bulk("v"));
    let reply = cluster.wait_for(ticket, 5_000);
    assert!(
        matches!(reply, Reply::Nil | Reply::Bulk(_)),
        "{reply:?} after {} ms",
        cluster.now_ms() - asked_ms
    );
}
