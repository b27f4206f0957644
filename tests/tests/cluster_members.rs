//! Membership of real processes, under load: a node is added, a dead one replaced, the leader moved and removed, and a
//! wiped disk kept out. Nothing acknowledged is lost meanwhile, and fences rise.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect};

const WITHIN: Duration = Duration::from_secs(30);

/// A client that takes and gives back one lock for as long as it is told to, and checks that fences rise.
struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Load {
    fn start(mut client: Client, name: &'static str) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut last, mut grants) = (0, 0);
            while !stopped.load(Ordering::Relaxed) {
                let owner = format!("owner-{grants}");
                match ask!(client, "LOCK.ACQUIRE", name, 60_000, "OWNER", &owner) {
                    // A change of leader may leave an answer out; the same OWNER asks again.
                    Value::Error(line) => {
                        assert!(
                            line.starts_with("UNAVAILABLE") || line.starts_with("INDETERMINATE"),
                            "{line}"
                        );
                    }
                    reply => {
                        let grant = expect::granted(&reply);
                        assert!(grant.fence > last, "fence {} after {last}", grant.fence);
                        last = grant.fence;
                        grants += 1;
                        while let Value::Error(line) = ask!(client, "LOCK.RELEASE", name, last) {
                            assert!(
                                line.starts_with("UNAVAILABLE") || line.starts_with("INDETERMINATE"),
                                "{line}"
                            );
                        }
                    }
                }
            }
            grants
        });
        Load { stop, thread }
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the load saw nothing wrong")
    }
}

/// Members that the node asked says are up, and have part of the log.
fn up(cluster: &Cluster, asked: u64) -> Vec<i64> {
    let mut client = cluster.node(asked).client();
    let Value::Array(nodes) = ask!(client, "LOCK.CLUSTER", "NODES") else { return Vec::new() };
    let up = |node: &Value| {
        let Value::Array(fields) = node else { panic!("a node is a map: {node:?}") };
        let number = |name: &str| {
            let pair = fields.chunks_exact(2).find(|pair| pair[0] == Value::bulk(name));
            pair.expect("every field is there")[1].integer()
        };
        (number("up") == 1 && number("match") > 0).then(|| number("id"))
    };
    nodes.iter().filter_map(up).collect()
}

#[test]
fn every_node_shows_which_members_are_up() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(WITHIN);
    let agree = |cluster: &Cluster, ids: &[u64], expected: &[i64]| {
        let done = poll_until(WITHIN, || ids.iter().all(|id| up(cluster, *id) == expected));
        assert!(done, "{:?}\n{}", ids.iter().map(|id| up(cluster, *id)).collect::<Vec<_>>(), cluster.log());
    };
    agree(&cluster, &[1, 2, 3], &[1, 2, 3]);
    let (kept, killed) = (cluster.followers(leader)[0], cluster.followers(leader)[1]);
    cluster.kill(killed);
    let mut left = [leader, kept];
    left.sort_unstable();
    agree(&cluster, &left, &left.map(|id| id as i64));
}

fn roles(cluster: &Cluster, asked: u64) -> Vec<(i64, String)> {
    let mut client = cluster.node(asked).client();
    let Value::Array(nodes) = ask!(client, "LOCK.CLUSTER", "NODES") else { return Vec::new() };
    nodes
        .iter()
        .map(|node| {
            let Value::Array(fields) = node else { panic!("a node is a map: {node:?}") };
            let field = |name: &str| {
                fields.chunks_exact(2).find(|pair| pair[0] == Value::bulk(name)).map(|pair| pair[1].clone())
            };
            let (Some(Value::Integer(id)), Some(role)) = (field("id"), field("role")) else {
                panic!("id and role: {node:?}")
            };
            (id, role.text())
        })
        .collect()
}

fn has_voter(cluster: &Cluster, asked: u64, id: i64) -> bool {
    roles(cluster, asked).iter().any(|(node, role)| *node == id && role != "learner")
}

fn ok(reply: &Value) {
    assert_eq!(*reply, Value::Simple(b"OK".to_vec()));
}

#[test]
fn a_dead_node_is_replaced_under_load() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let dead = cluster.followers(leader)[1];
    let asked = cluster.followers(leader)[0];
    let mut client = cluster.node(asked).client();
    let held = client.acquire_as("held", 600_000, "holder");
    let load = Load::start(cluster.node(asked).client(), "busy");

    cluster.kill(dead);
    ok(&ask!(client, "LOCK.CLUSTER", "REMOVE", dead));
    let address = cluster.join(4);
    ok(&ask!(client, "LOCK.CLUSTER", "ADD", 4, address.to_string()));
    assert!(poll_until(WITHIN, || has_voter(&cluster, leader, 4)), "node 4 is no voter\n{}", cluster.log());

    // Now the newcomer counts: without it there is no majority when another one goes.
    let second = cluster.node(4).client().info("held");
    assert_eq!((second.fence, second.owner.as_deref()), (held.fence, Some("holder")));
    let grants = load.end();
    assert!(grants > 0, "the load got nothing done");
    cluster.kill(leader);
    let next = [Some(asked), Some(4)];
    assert!(poll_until(WITHIN, || next.contains(&cluster.agreed_leader())), "{}", cluster.log());
    let mut client = cluster.node(4).client();
    assert_eq!(client.info("held").fence, held.fence);
    client.release("held", held.fence);
    println!("{grants} grants while a node was replaced");
}

#[test]
fn leadership_is_moved_and_a_leader_removed_under_load() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let first = cluster.wait_for_leader(REPLY_WITHIN);
    let second = cluster.followers(first)[0];
    let load = Load::start(cluster.node(cluster.followers(first)[1]).client(), "busy");
    ok(&ask!(cluster.node(first).client(), "LOCK.CLUSTER", "TRANSFER", second));
    assert!(poll_until(WITHIN, || cluster.agreed_leader() == Some(second)), "{}", cluster.log());

    ok(&ask!(cluster.node(first).client(), "LOCK.CLUSTER", "REMOVE", second));
    assert!(
        poll_until(WITHIN, || {
            cluster.node(second).cluster_info("role") == Some(Value::bulk("removed"))
                && cluster.node(first).cluster_info("voters") == Some(Value::Integer(2))
        }),
        "{}",
        cluster.log()
    );
    let reply = ask!(cluster.node(second).client(), "LOCK.INFO", "busy");
    assert!(reply.error_code() == "UNAVAILABLE", "a removed node serves nothing: {reply:?}");
    cluster.kill(second);
    cluster.wait_for_leader(WITHIN);
    let grants = load.end();
    assert!(grants > 0);
    // It comes back as what it is: removed.
    cluster.restart(second);
    assert!(
        poll_until(WITHIN, || cluster.node(second).cluster_info("role") == Some(Value::bulk("removed"))),
        "{}",
        cluster.log()
    );
}

#[test]
fn a_wiped_disk_is_kept_out_until_it_is_added_anew() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let wiped = cluster.followers(leader)[0];
    let held = cluster.node(leader).client().acquire_as("held", 600_000, "holder");
    cluster.kill(wiped);
    std::fs::remove_dir_all(cluster.data(wiped)).expect("its data can be removed");
    cluster.restart(wiped);

    // It may start, but the others do not talk to it: it never learns of the lock and never counts.
    std::thread::sleep(Duration::from_secs(2));
    if cluster.node(wiped).process().exit_status().is_none() {
        assert_eq!(cluster.node(wiped).cluster_info("applied"), Some(Value::Integer(1)), "{}", cluster.log());
    }
    cluster.kill(wiped);
    let mut client = cluster.node(leader).client();
    assert_eq!(client.info("held").fence, held.fence);
    client.release("held", held.fence);
}
