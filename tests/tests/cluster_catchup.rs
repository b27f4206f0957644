//! A follower that was away longer than the log reaches back is brought up by a snapshot, while commands go on.

use std::time::Duration;

use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;

const WITHIN: Duration = Duration::from_secs(30);
const LONG_MS: u64 = 600_000;

#[test]
fn a_follower_behind_the_log_catches_up_by_snapshot() {
    let options = Options::nodes(3).flag("--snapshot-entries", "200").flag("--log-keep-entries", "50");
    let mut cluster = Cluster::start(&options);
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let away = cluster.followers(leader)[0];
    let mut client = cluster.node(leader).client();
    let held = client.acquire_as("held", LONG_MS, "me");
    cluster.kill(away);
    for number in 0..1_000 {
        let name = format!("lock-{}", number % 300);
        let grant = client.acquire(&name, LONG_MS);
        client.release(&name, grant.fence);
    }
    let last = client.acquire_as("last", LONG_MS, "me");
    let target = cluster.node(leader).cluster_info("applied").expect("the leader answers").integer();
    cluster.restart(away);
    assert!(
        poll_until(WITHIN, || {
            matches!(cluster.node(away).cluster_info("applied"), Some(Value::Integer(at)) if at >= target)
        }),
        "{}",
        cluster.log()
    );
    let snapshots = std::fs::read_dir(cluster.data(away).join("snapshots")).expect("its folder").count();
    assert!(snapshots > 0, "it came by the log, not by a snapshot");
    let mut back = cluster.node(away).client();
    assert_eq!((back.info("held").fence, back.info("last").fence), (held.fence, last.fence));

    // What it was given is whole: it can carry the cluster with one of the others.
    let other = cluster.followers(leader).into_iter().find(|id| *id != away).expect("a third node");
    cluster.kill(leader);
    let next = [Some(away), Some(other)];
    assert!(poll_until(WITHIN, || next.contains(&cluster.agreed_leader())), "{}", cluster.log());
    let mut client = cluster.node(away).client();
    client.release("held", held.fence);
    assert!(client.acquire("held", LONG_MS).fence > held.fence);
}

#[test]
fn a_dropped_connection_ends_its_session_soon() {
    let cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let mut holder = cluster.follower(leader).client();
    let session = redfence_tests::ask!(holder, "LOCK.SESSION", "OPEN", 60_000).text();
    let reply = redfence_tests::ask!(holder, "LOCK.ACQUIRE", "bound", 0, "SESSION", &session);
    let grant = redfence_tests::expect::granted(&reply);
    let mut waiter = cluster.node(leader).client();
    waiter.start_waiting("bound", LONG_MS, LONG_MS, "next");
    let mut watcher = cluster.node(leader).client();
    watcher.await_waiters("bound", 1);
    let dropped = std::time::Instant::now();
    drop(holder);
    assert!(waiter.receive_grant().fence > grant.fence);
    println!("the next waiter had the lock {:?} after the connection was dropped", dropped.elapsed());
    assert!(dropped.elapsed() < Duration::from_secs(10), "generous: 2 s are promised on a quiet machine");
}
