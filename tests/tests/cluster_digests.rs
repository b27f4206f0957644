//! Replicas that differ, as real processes: the right one quarantines itself, every node shows it, the others serve, and it comes
//! back only with an empty data directory. A debug build of the program plants the difference (`DEBUG DIVERGE`).

use std::time::{Duration, Instant};

use redfence_tests::ask;
use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;

const WITHIN: Duration = Duration::from_secs(30);

/// False: the program under test is a release build, which has no way to be made to differ.
fn diverge(cluster: &Cluster, id: u64, how: &str) -> bool {
    let reply = ask!(cluster.node(id).client(), "DEBUG", "DIVERGE", how, id);
    reply == Value::Simple(b"OK".to_vec())
}

fn role(cluster: &Cluster, asked: u64, of: u64) -> Option<String> {
    let reply = cluster.node(asked).ask(&["LOCK.CLUSTER", "NODES"], Duration::from_secs(5))?;
    let Value::Array(nodes) = reply else { return None };
    nodes.iter().find_map(|node| {
        let Value::Array(fields) = node else { return None };
        assert_eq!(fields.len(), 10, "id, addr, role, match, up and nothing else: {fields:?}");
        let field = |name: &str| {
            fields.chunks_exact(2).find(|pair| pair[0] == Value::bulk(name)).map(|pair| pair[1].clone())
        };
        (field("id") == Some(Value::Integer(of as i64))).then(|| field("role").expect("a role").text())
    })
}

/// A lock taken and released at a node, however often it takes while a leader changes.
fn work(cluster: &Cluster, id: u64, owner: &str) {
    let served = poll_until(WITHIN, || {
        let reply = cluster.node(id).ask(&["LOCK.ACQUIRE", "busy", "1", "OWNER", owner], REPLY_WITHIN);
        !matches!(reply, None | Some(Value::Error(_)))
    });
    assert!(served, "node {id} does not serve\n{}", cluster.log());
}

/// Works at the others until these nodes are quarantined, and answers how long it took.
fn await_quarantine(cluster: &Cluster, bad: &[u64]) -> Duration {
    let began = Instant::now();
    let others: Vec<u64> = cluster.nodes.iter().map(|node| node.id).filter(|id| !bad.contains(id)).collect();
    let is_over = || {
        work(cluster, others[0], "worker");
        let seen =
            |of: &u64| others.iter().all(|by| role(cluster, *by, *of).as_deref() == Some("quarantined"));
        bad.iter().all(seen)
    };
    assert!(poll_until(WITHIN, is_over), "{bad:?} not quarantined\n{}", cluster.log());
    began.elapsed()
}

fn assert_serves_nothing(cluster: &Cluster, bad: u64) {
    let node = cluster.node(bad);
    for words in [&["LOCK.ACQUIRE", "x", "1000"][..], &["LOCK.INFO", "x"], &["GET", "x"], &["SET", "x", "1"]]
    {
        let reply = node.ask(words, REPLY_WITHIN).expect("it answers");
        assert_eq!(reply.error_code(), "UNAVAILABLE", "{words:?}: {reply:?}");
    }
    assert_eq!(node.cluster_info("role"), Some(Value::bulk("quarantined")));
    assert_eq!(node.cluster_info("quorum"), Some(Value::Integer(0)));
    let info = node.ask(&["INFO", "redfence"], REPLY_WITHIN).expect("it answers").text();
    assert!(info.contains("quarantined:1\r\n"), "{info}");
    assert_eq!(node.ask(&["PING"], REPLY_WITHIN), Some(Value::Simple(b"PONG".to_vec())));
    let lines = node.process().log_tail();
    assert_eq!(
        lines.matches("its digest differs").count() + lines.matches("'s digest differs").count(),
        1,
        "{lines}"
    );
}

#[test]
fn a_follower_that_differs_is_quarantined_and_comes_back_as_a_fresh_learner() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(WITHIN);
    let (bad, other) = (cluster.followers(leader)[0], cluster.followers(leader)[1]);
    if !diverge(&cluster, bad, "ANSWER") {
        return;
    }
    let mut cached = cluster.node(bad).client();
    assert!(matches!(ask!(cached, "HELLO", "3"), Value::Map(_)));
    assert_eq!(ask!(cached, "CLIENT", "TRACKING", "ON"), Value::Simple(b"OK".to_vec()));
    ask!(cached, "GET", "cached");
    let took = await_quarantine(&cluster, &[bad]);
    println!("found after {took:?}");
    assert_serves_nothing(&cluster, bad);
    // What its clients have cached of it may be wrong.
    assert_eq!(cached.receive(), Value::Push(vec![Value::bulk("invalidate"), Value::Null]));
    work(&cluster, leader, "a");
    work(&cluster, other, "b");

    // A restart with the same data changes nothing.
    cluster.kill(bad);
    cluster.restart(bad);
    let quarantined = Some(Value::bulk("quarantined"));
    assert!(
        poll_until(WITHIN, || cluster.node(bad).cluster_info("role") == quarantined),
        "{}",
        cluster.log()
    );
    let reply = cluster.node(bad).ask(&["LOCK.INFO", "x"], REPLY_WITHIN).expect("it answers");
    assert_eq!(reply.error_code(), "UNAVAILABLE");

    // Removed, wiped, added again: a member like any other.
    let mut client = cluster.node(leader).client();
    assert_eq!(ask!(client, "LOCK.CLUSTER", "REMOVE", bad), Value::Simple(b"OK".to_vec()));
    cluster.discard(bad);
    let address = cluster.join(bad);
    assert_eq!(ask!(client, "LOCK.CLUSTER", "ADD", bad, address.to_string()), Value::Simple(b"OK".to_vec()));
    let is_back = || role(&cluster, leader, bad).as_deref() == Some("follower");
    assert!(poll_until(WITHIN, is_back), "{:?}\n{}", role(&cluster, leader, bad), cluster.log());
    work(&cluster, bad, "c");
}

#[test]
fn a_leader_that_differs_steps_down_and_the_cluster_goes_on() {
    let cluster = Cluster::start(&Options::nodes(3));
    let bad = cluster.wait_for_leader(WITHIN);
    if !diverge(&cluster, bad, "ANSWER") {
        return;
    }
    await_quarantine(&cluster, &[bad]);
    assert!(poll_until(WITHIN, || cluster.agreed_leader().is_some_and(|id| id != bad)), "{}", cluster.log());
    assert_serves_nothing(&cluster, bad);
    for id in cluster.followers(bad) {
        work(&cluster, id, "a");
    }
}

#[test]
fn two_of_five_that_differ_in_different_ways_are_quarantined() {
    let cluster = Cluster::start(&Options::nodes(5));
    let leader = cluster.wait_for_leader(WITHIN);
    let bad = [leader, cluster.followers(leader)[0]];
    if !bad.iter().all(|id| diverge(&cluster, *id, "ANSWER")) {
        return;
    }
    await_quarantine(&cluster, &bad);
    bad.iter().for_each(|id| assert_serves_nothing(&cluster, *id));
    for node in cluster.nodes.iter().filter(|node| !bad.contains(&node.id)) {
        work(&cluster, node.id, "a");
    }
}

/// Nobody knows who is right: nobody serves, nobody is blamed.
#[test]
fn three_that_all_differ_answer_unavailable() {
    let cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(WITHIN);
    if !cluster.followers(leader).iter().all(|id| diverge(&cluster, *id, "ANSWER")) {
        return;
    }
    let refused = |id: &u64| {
        let reply = cluster.node(*id).ask(&["LOCK.ACQUIRE", "busy", "1"], REPLY_WITHIN);
        reply.is_some_and(|reply| matches!(reply, Value::Error(_)) && reply.error_code() == "UNAVAILABLE")
    };
    assert!(poll_until(WITHIN, || [1, 2, 3].iter().all(refused)), "{}", cluster.log());
    for id in 1..=3 {
        assert!(role(&cluster, id, id).is_none_or(|role| role != "quarantined"), "{}", cluster.log());
    }
}

fn small_snapshots() -> Options {
    Options::nodes(3).flag("--snapshot-entries", "100").flag("--log-keep-entries", "10")
}

/// So many entries, one at a time.
fn write(cluster: &Cluster, id: u64, count: u64) {
    let mut client = cluster.node(id).client();
    for number in 0..count {
        let reply = ask!(client, "SET", "written", number);
        assert_eq!(reply, Value::Simple(b"OK".to_vec()), "{}", cluster.log());
    }
}

fn is_refused(cluster: &Cluster, id: u64) -> bool {
    let reply = cluster.node(id).ask(&["LOCK.ACQUIRE", "busy", "1"], REPLY_WITHIN);
    reply.is_some_and(|reply| matches!(reply, Value::Error(_)) && reply.error_code() == "UNAVAILABLE")
}

/// Works at one of two that differ until neither serves. A full digest may be a minute away.
fn await_refusals(cluster: &Cluster, one: u64, other: u64) {
    let is_noticed = || {
        let _ = cluster.node(one).ask(&["SET", "written", "again"], REPLY_WITHIN);
        is_refused(cluster, one) && is_refused(cluster, other)
    };
    assert!(poll_until(Duration::from_secs(90), is_noticed), "{}", cluster.log());
}

/// Its answers are those of the others, so only a full digest tells. Whoever it brings in must not get its state from it: the two
/// would be a majority, and the healthy one the one that differs.
#[test]
fn a_leader_whose_state_differs_does_not_hand_it_on() {
    let mut cluster = Cluster::start(&small_snapshots());
    let bad = cluster.wait_for_leader(WITHIN);
    write(&cluster, bad, 250);
    let (gone, healthy) = (cluster.followers(bad)[0], cluster.followers(bad)[1]);
    cluster.kill(gone);
    if !diverge(&cluster, bad, "STATE") {
        return;
    }
    let mut client = cluster.node(bad).client();
    assert_eq!(ask!(client, "LOCK.CLUSTER", "REMOVE", gone), Value::Simple(b"OK".to_vec()));
    cluster.discard(gone);
    let address = cluster.join(4);
    assert_eq!(ask!(client, "LOCK.CLUSTER", "ADD", 4, address.to_string()), Value::Simple(b"OK".to_vec()));
    await_refusals(&cluster, healthy, bad);

    // The operator decides between the two. From then on the other one's state is the cluster's.
    assert_eq!(
        role(&cluster, healthy, 4).as_deref(),
        Some("learner"),
        "nobody has brought it in\n{}",
        cluster.log()
    );
    let removed = ask!(cluster.node(healthy).client(), "LOCK.CLUSTER", "REMOVE", bad);
    assert_eq!(removed, Value::Simple(b"OK".to_vec()), "{}", cluster.log());
    work(&cluster, healthy, "a");
    let is_voter = || role(&cluster, healthy, 4).as_deref() == Some("follower");
    assert!(poll_until(WITHIN, is_voter), "{}", cluster.log());
    work(&cluster, 4, "b");
    for id in [healthy, 4] {
        assert!(role(&cluster, id, id).is_some_and(|role| role != "quarantined"), "{}", cluster.log());
    }
}

/// The log that the third needs is gone. It gets the snapshot that was confirmed before they differed, and decides.
#[test]
fn a_voter_that_comes_back_decides_between_two_also_by_a_snapshot() {
    let mut cluster = Cluster::start(&small_snapshots());
    let leader = cluster.wait_for_leader(WITHIN);
    let (away, bad) = (cluster.followers(leader)[0], cluster.followers(leader)[1]);
    cluster.kill(away);
    write(&cluster, leader, 500);
    if !diverge(&cluster, bad, "ANSWER") {
        return;
    }
    await_refusals(&cluster, leader, bad);
    cluster.restart(away);
    await_quarantine(&cluster, &[bad]);
    work(&cluster, away, "a");
}

/// What they differ in is in the log: who was started since serves no more than before.
#[test]
fn a_restart_does_not_serve_while_no_majority_agrees() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(WITHIN);
    let (away, bad) = (cluster.followers(leader)[0], cluster.followers(leader)[1]);
    cluster.kill(away);
    if !diverge(&cluster, bad, "ANSWER") {
        return;
    }
    await_refusals(&cluster, leader, bad);
    cluster.kill(leader);
    cluster.restart(leader);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        for id in [leader, bad] {
            let reply = cluster.node(id).ask(&["LOCK.ACQUIRE", "busy", "1"], REPLY_WITHIN);
            let is_served = reply.is_some_and(|reply| !matches!(reply, Value::Error(_)));
            assert!(!is_served, "node {id} serves\n{}", cluster.log());
        }
    }
}
