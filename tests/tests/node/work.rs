//! Work that is spread: sweeps after a flush, `KEYS` in slices. Others are served meanwhile.

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
