//! What clients of real nodes are told late: grants of a node that was stopped, and sessions of closed connections.

use std::time::Duration;

use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect};

const LONG_MS: u64 = 600_000;

/// A waiter's node is stopped; meanwhile its lock is granted, ends, and goes to somebody else. It is not told of the grant.
#[test]
fn a_waiter_of_a_stopped_node_is_not_told_of_a_grant_that_ended() {
    let cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let stopped = cluster.followers(leader)[0];
    let (mut holder, mut next) = (cluster.node(leader).client(), cluster.node(leader).client());
    let held = holder.acquire_as("late", LONG_MS, "holder");
    let mut waiter = cluster.node(stopped).client();
    waiter.start_waiting("late", 3_000, LONG_MS, "waiter");
    holder.await_waiters("late", 1);

    cluster.pause(stopped);
    holder.release("late", held.fence);
    next.start_waiting("late", LONG_MS, LONG_MS, "next");
    // Granted only when the stopped node's waiter has lost it.
    let grant = next.receive_grant();
    cluster.resume(stopped);
    waiter.receive_nil();
    let info = holder.info("late");
    assert_eq!((info.fence, info.owner.as_deref()), (grant.fence, Some("next")));
}

/// Sessions end soon after their connections, whatever keep-alives were on their way. Their ttl is far longer than the test.
#[test]
fn a_hundred_and_fifty_closed_connections_leave_no_session() {
    let cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let follower = cluster.followers(leader)[0];
    let mut clients: Vec<Client> = (0..150).map(|_| cluster.node(follower).client()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        let Value::Bulk(session) = ask!(client, "LOCK.SESSION", "OPEN", LONG_MS) else {
            panic!("no session")
        };
        let session = String::from_utf8(session).expect("an id is text");
        let reply = ask!(client, "LOCK.ACQUIRE", format!("s{at}"), 0, "SESSION", session);
        expect::granted(&reply);
    }
    // Each is touched just before it is closed: a report of it is under way when the close is.
    for mut client in clients {
        assert!(!matches!(ask!(client, "PING"), Value::Error(_)));
    }
    let mut watcher = cluster.node(leader).client();
    let free = poll_until(Duration::from_secs(60), || {
        (0..150).all(|at| watcher.info(&format!("s{at}")).owner.is_none())
    });
    let left: Vec<u64> = (0..150).filter(|at| watcher.info(&format!("s{at}")).owner.is_some()).collect();
    assert!(free, "sessions of closed connections live on: {left:?}");
}
