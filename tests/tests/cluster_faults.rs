//! Clusters of real processes under kill -9, SIGSTOP and loss of quorum: nothing acknowledged is lost, nobody holds a
//! lock that another has, a minority refuses, and all goes on by itself when nodes come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect, words};

const LONG_MS: u64 = 600_000;
/// What `docs/operations.md` promises of SIGTERM.
const STOPS_WITHIN: Duration = Duration::from_secs(5);
/// Generous: what is measured is printed, what is asserted only tells working from broken.
const RECOVERS_WITHIN: Duration = Duration::from_secs(20);

/// Asks again while the cluster has no leader, as a client should; the same OWNER makes that safe.
fn acquire_through_faults(client: &mut Client, name: &str, owner: &str) -> i64 {
    let deadline = Instant::now() + RECOVERS_WITHIN;
    loop {
        let reply = ask!(client, "LOCK.ACQUIRE", name, LONG_MS, "OWNER", owner);
        match &reply {
            Value::Error(line) if line.starts_with("UNAVAILABLE") || line.starts_with("INDETERMINATE") => {
                assert!(Instant::now() < deadline, "still {line}");
            }
            _ => return expect::granted(&reply).fence,
        }
    }
}

#[test]
fn the_leader_is_killed() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let followers = cluster.followers(leader);
    let (mut holder, mut watcher) =
        (cluster.node(followers[0]).client(), cluster.node(followers[1]).client());
    let held = holder.acquire_as("held", LONG_MS, "holder");
    let mut waiters: Vec<Client> = (0..3).map(|turn| cluster.node(followers[turn % 2]).client()).collect();
    for (place, waiter) in waiters.iter_mut().enumerate() {
        waiter.start_waiting("held", LONG_MS, LONG_MS, &format!("waiter-{place}"));
        watcher.await_waiters("held", place as i64 + 1);
    }

    let killed = Instant::now();
    cluster.kill(leader);
    acquire_through_faults(&mut watcher, "fresh", "first-after");
    println!("first grant through another node {:?} after the kill", killed.elapsed());

    let info = watcher.info("held");
    assert_eq!(
        (info.fence, info.owner.as_deref()),
        (held.fence, Some("holder")),
        "a held lock keeps its fence"
    );
    watcher.is_refused("held", LONG_MS);
    assert_eq!(watcher.queue("held"), ["waiter-0", "waiter-1", "waiter-2"], "waiters keep their places");
    let mut last = held.fence;
    for waiter in &mut waiters {
        watcher.release("held", last);
        let grant = waiter.receive_grant();
        assert!(grant.fence > last);
        last = grant.fence;
    }
    cluster.restart(leader);
    cluster.wait_for_leader(RECOVERS_WITHIN);
    assert_eq!(
        cluster.node(leader).client().info("held").fence,
        last,
        "the node that came back has caught up"
    );
}

#[test]
fn a_blocked_pop_keeps_its_place_when_the_leader_is_killed() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let followers = cluster.followers(leader);
    let mut pusher = cluster.node(followers[0]).client();
    let mut waiters: Vec<Client> = (0..3).map(|turn| cluster.node(followers[turn % 2]).client()).collect();
    for (place, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&words!["BLPOP", "list", 0]);
        let line = format!("blocked_commands:{}\r\n", place + 1);
        let info = |client: &mut Client| match ask!(client, "INFO", "redfence") {
            Value::Bulk(text) | Value::Verbatim(text) => String::from_utf8_lossy(&text).into_owned(),
            other => panic!("{other:?}"),
        };
        assert!(
            poll_until(REPLY_WITHIN, || info(&mut pusher).contains(&line)),
            "waiter {place} has no place"
        );
    }
    cluster.kill(leader);
    acquire_through_faults(&mut pusher, "fresh", "first-after");
    for (place, waiter) in waiters.iter_mut().enumerate() {
        assert_eq!(ask!(pusher, "RPUSH", "list", place as u64), Value::Integer(1));
        let item = Value::bulk(place.to_string());
        assert_eq!(waiter.receive(), Value::Array(vec![Value::bulk("list"), item]));
    }
}

#[test]
fn a_follower_is_killed() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let follower = cluster.followers(leader)[0];
    let mut client = cluster.node(leader).client();
    let held = client.acquire("lock", LONG_MS);
    cluster.kill(follower);
    for _ in 0..20 {
        let grant = client.acquire("other", LONG_MS);
        client.release("other", grant.fence);
    }
    cluster.restart(follower);
    cluster.wait_for_leader(RECOVERS_WITHIN);
    assert_eq!(cluster.node(follower).client().info("lock").fence, held.fence);
}

#[test]
fn two_of_five_are_killed() {
    let mut cluster = Cluster::start(&Options::nodes(5));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let followers = cluster.followers(leader);
    let mut client = cluster.node(followers[3]).client();
    let held = client.acquire_as("lock", LONG_MS, "holder");
    cluster.kill(leader);
    cluster.kill(followers[0]);
    acquire_through_faults(&mut client, "fresh", "me");
    let info = client.info("lock");
    assert_eq!((info.fence, info.owner.as_deref()), (held.fence, Some("holder")));
    client.release("lock", held.fence);
}

#[test]
fn all_are_killed_and_come_back() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    cluster.wait_for_leader(REPLY_WITHIN);
    let mut client = cluster.node(1).client();
    let held = client.acquire_as("held", LONG_MS, "holder");
    let released = client.acquire("released", LONG_MS);
    client.release("released", released.fence);
    let mut last = 0;
    for _ in 0..50 {
        last = client.acquire("busy", LONG_MS).fence;
        client.release("busy", last);
    }
    drop(client);
    [1, 2, 3].into_iter().for_each(|id| cluster.kill(id));
    [1, 2, 3].into_iter().for_each(|id| cluster.restart(id));
    cluster.wait_for_leader(RECOVERS_WITHIN);
    for id in [1, 2, 3] {
        let mut client = cluster.node(id).client();
        let info = client.info("held");
        assert_eq!((info.fence, info.owner.as_deref()), (held.fence, Some("holder")), "at node {id}");
        client.is_refused("held", LONG_MS);
        client.release_is_refused("released", released.fence, "already_released");
        let next = client.acquire("busy", LONG_MS).fence;
        assert!(next > last, "fence {next} after {last}");
        last = next;
        client.release("busy", next);
    }
}

#[test]
fn a_minority_refuses_and_recovers() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let followers = cluster.followers(leader);
    let mut client = cluster.node(leader).client();
    let held = client.acquire("lock", LONG_MS);
    followers.iter().for_each(|id| cluster.kill(*id));
    let start = Instant::now();
    let write = ask!(client, "LOCK.ACQUIRE", "other", LONG_MS, "OWNER", "me");
    assert!(["UNAVAILABLE", "INDETERMINATE"].contains(&write.error_code()), "a write got {write:?}");
    expect::error(&ask!(client, "LOCK.INFO", "lock"), "UNAVAILABLE");
    expect::error(&ask!(client, "LOCK.ACQUIRE", "another", LONG_MS), "UNAVAILABLE");
    println!("a minority refused a write, a read and a write in {:?}", start.elapsed());
    let alone = poll_until(RECOVERS_WITHIN, || {
        cluster.node(leader).cluster_info("quorum") == Some(Value::Integer(0))
    });
    assert!(alone, "the node itself says that it has no quorum");
    followers.iter().for_each(|id| cluster.restart(*id));
    cluster.wait_for_leader(RECOVERS_WITHIN);
    acquire_through_faults(&mut client, "other", "me");
    assert_eq!(client.info("lock").fence, held.fence);
    client.release("lock", held.fence);
}

#[test]
fn a_paused_leader_expires_nobody_and_answers_nothing_stale() {
    let cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let mut client = cluster.node(cluster.followers(leader)[0]).client();
    let mut at_leader = cluster.node(leader).client();
    let short_ms = 3_000;
    let kept = client.acquire_as("kept", short_ms, "holder");
    let moved = client.acquire("moved", LONG_MS);
    cluster.pause(leader);
    let paused = Instant::now();
    acquire_through_faults(&mut client, "fresh", "me");
    // Renewed at the new leader, well past the ttl that the paused one knows of.
    while paused.elapsed() < Duration::from_millis(2 * short_ms) {
        expect::ttl_told(client.renew("kept", kept.fence, short_ms), short_ms);
        std::thread::sleep(Duration::from_millis(200));
    }
    client.release("moved", moved.fence);
    let newer = client.acquire_as("moved", LONG_MS, "newer");
    cluster.resume(leader);
    let reply = ask!(at_leader, "LOCK.INFO", "moved");
    if !reply.is_error() {
        let info = expect::info(&reply, at_leader.protocol());
        assert_eq!(info.fence, newer.fence, "the woken leader answered from the past");
    }
    // Nobody was expired by the sleeper.
    expect::ttl_told(client.renew("kept", kept.fence, short_ms), short_ms);
    cluster.wait_for_leader(RECOVERS_WITHIN);
    client.release("kept", kept.fence);
}

#[test]
fn sigterm_hands_leadership_over() {
    let cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let mut client = cluster.node(cluster.followers(leader)[0]).client();
    let held = client.acquire("lock", LONG_MS);
    let start = Instant::now();
    cluster.node(leader).process().signal(libc::SIGTERM);
    let status = cluster.node(leader).process().wait(STOPS_WITHIN).expect("it stops");
    println!("stopped after {:?}", start.elapsed());
    assert!(status.success(), "it ended with {status}");
    let fence = acquire_through_faults(&mut client, "lock2", "me");
    println!("first grant {:?} after SIGTERM", start.elapsed());
    assert_eq!(client.info("lock2").fence, fence);
    assert_eq!(client.info("lock").fence, held.fence);
}

/// One leader after the other is restarted, as an upgrade does it. Clients of the nodes that stay get an answer to everything.
#[test]
fn restarts_of_leaders_fail_no_operation_of_other_nodes_clients() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    for round in 0..3 {
        let leader = cluster.wait_for_leader(REPLY_WITHIN);
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..6)
            .map(|number| {
                let mut client = cluster.node(cluster.followers(leader)[number % 2]).client();
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    let name = format!("restart-{round}-{number}");
                    let (mut count, mut last, mut longest) = (0, Instant::now(), Duration::ZERO);
                    while !stop.load(Ordering::Relaxed) {
                        let fence = client.acquire(&name, LONG_MS).fence;
                        client.release(&name, fence);
                        (longest, last) = (longest.max(last.elapsed()), Instant::now());
                        count += 1;
                    }
                    (count, longest)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        cluster.node(leader).process().signal(libc::SIGTERM);
        cluster.node(leader).process().wait(STOPS_WITHIN).expect("it stops");
        cluster.kill(leader);
        let next = cluster.wait_for_leader(REPLY_WITHIN);
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            let (count, longest) = worker.join().expect("every operation succeeds");
            println!("leader {leader}, then {next}: {count} pairs, longest {longest:?}");
            assert!(count > 0);
        }
        cluster.restart(leader);
    }
}

#[test]
fn a_dead_holder_is_followed_within_its_ttl() {
    let cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let followers = cluster.followers(leader);
    let (mut holder, mut waiter) = (cluster.node(followers[0]).client(), cluster.node(followers[1]).client());
    let start = Instant::now();
    holder.acquire("lock", 2_000);
    drop(holder);
    waiter.start_waiting("lock", LONG_MS, LONG_MS, "next");
    waiter.receive_grant();
    let took = start.elapsed();
    println!("the next waiter had a lock of 2 s {took:?} after it was taken");
    assert!(took >= Duration::from_millis(1_990), "too early: {took:?}");
    assert!(took < Duration::from_millis(2_500) + RECOVERS_WITHIN, "too late: {took:?}");
}
