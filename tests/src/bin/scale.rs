//! `make scale`: sizes that take too long for `make test`. Real processes, figures printed, limits asserted.
//!
//! - 500,000 held locks on one node: memory above its base, time of a restart with them
//! - 10,000 idle connections and 1,000 busy ones on one node
//! - a follower that missed a million commands catches up by snapshot

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::process::{allow_open_files, poll_until};
use redfence_tests::resp::{Connection, Value};

const HELD: usize = 500_000;
const HELD_MB_MAX: f64 = 186.0;
const RESTART_WITHIN: Duration = Duration::from_secs(10);
const IDLE: usize = 10_000;
const BUSY: usize = 1_000;
const MISSED: usize = 1_000_000;
const WITHIN: Duration = Duration::from_secs(120);
const DAY_MS: &str = "86400000";
/// Requests sent before the answers are read: what a client's pipeline does.
const PIPELINE: usize = 500;

fn main() {
    allow_open_files(15_000);
    held_locks();
    connections();
    catch_up();
    println!("scale: all within their limits");
}

/// 64-byte names, as in the benches.
fn name(number: usize) -> String {
    format!("{number:0>64}")
}

fn pipelined(address: SocketAddr, requests: impl Iterator<Item = Vec<String>>, mut check: impl FnMut(Value)) {
    let mut connection = Connection::open(address).expect("a connection");
    let mut requests = requests.peekable();
    while requests.peek().is_some() {
        let mut sent = 0;
        let mut bytes = Vec::new();
        for request in requests.by_ref().take(PIPELINE) {
            bytes.extend(redfence_tests::resp::encode(&request));
            sent += 1;
        }
        connection.send_raw(&bytes).expect("sent");
        for _ in 0..sent {
            check(connection.receive(WITHIN).expect("an answer"));
        }
    }
}

fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(|word| (*word).to_string()).collect()
}

fn take(address: SocketAddr, count: usize) {
    let requests = (0..count).map(|number| words(&["LOCK.ACQUIRE", &name(number), DAY_MS]));
    pipelined(address, requests, |reply| assert_eq!(reply.array().len(), 2, "{reply:?}"));
}

fn resident_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    let kb: f64 = line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number");
    kb / 1024.0
}

fn held_locks() {
    let mut cluster = Cluster::start(&Options::nodes(1));
    let base_mb = resident_mb(cluster.node(1).process().pid());
    let started = Instant::now();
    take(cluster.node(1).address, HELD);
    let took = started.elapsed();
    let above_mb = resident_mb(cluster.node(1).process().pid()) - base_mb;
    println!(
        "held locks: {HELD} taken in {:.1} s ({:.0}/s, one connection), {above_mb:.0} MB above a base of {base_mb:.0} MB",
        took.as_secs_f64(),
        HELD as f64 / took.as_secs_f64()
    );
    cluster.kill(1);
    let restarted = Instant::now();
    cluster.restart(1);
    cluster.wait_for_leader(WITHIN);
    let mut client = cluster.node(1).client();
    for number in [0, HELD / 2, HELD - 1] {
        assert_eq!(client.info(&name(number)).state, "held");
    }
    let back = restarted.elapsed();
    println!("held locks: served again {:.2} s after kill -9 and restart", back.as_secs_f64());
    assert!(above_mb <= HELD_MB_MAX, "{above_mb:.0} MB for {HELD} locks");
    assert!(back <= RESTART_WITHIN, "{back:?} to restart");
}

fn connections() {
    let options = Options::nodes(1).flag("--max-clients", "12000");
    let cluster = Cluster::start(&options);
    let address = cluster.node(1).address;
    let base_mb = resident_mb(cluster.node(1).process().pid());
    let idle: Vec<Connection> =
        (0..IDLE).map(|_| Connection::open(address).expect("an idle connection")).collect();
    let mut busy: Vec<Connection> =
        (0..BUSY).map(|_| Connection::open(address).expect("a busy connection")).collect();
    let started = Instant::now();
    let mut pairs = 0;
    while started.elapsed() < Duration::from_secs(5) {
        let mut fences = Vec::with_capacity(BUSY);
        for (number, client) in busy.iter_mut().enumerate() {
            client.send(&["LOCK.ACQUIRE", &name(number), DAY_MS]).expect("sent");
        }
        for client in &mut busy {
            fences.push(client.receive(WITHIN).expect("a grant").array()[0].integer());
        }
        for (number, client) in busy.iter_mut().enumerate() {
            client.send(&["LOCK.RELEASE", &name(number), &fences[number].to_string()]).expect("sent");
        }
        for client in &mut busy {
            assert_eq!(client.receive(WITHIN).expect("a release").array()[0], Value::Integer(1));
        }
        pairs += BUSY;
    }
    let mb = resident_mb(cluster.node(1).process().pid()) - base_mb;
    println!(
        "connections: {} idle and {BUSY} busy: {:.0} pairs/s, {mb:.0} MB above the base",
        idle.len(),
        pairs as f64 / started.elapsed().as_secs_f64()
    );
    for connection in idle {
        let mut connection = connection;
        assert_eq!(connection.ask(&["PING"], WITHIN).expect("still there"), Value::Simple(b"PONG".to_vec()));
    }
}

fn catch_up() {
    // Small snapshots, so that the log does not reach back to where the follower left.
    let options = Options::nodes(3).flag("--snapshot-entries", "500").flag("--log-keep-entries", "100");
    let mut cluster = Cluster::start(&options);
    let leader = cluster.wait_for_leader(WITHIN);
    let away = cluster.followers(leader)[0];
    cluster.kill(away);
    let started = Instant::now();
    take(cluster.node(leader).address, MISSED);
    println!(
        "catch up: {MISSED} commands in {:.1} s while a follower was away",
        started.elapsed().as_secs_f64()
    );
    let target = cluster.node(leader).cluster_info("applied").expect("an answer").integer();
    let restarted = Instant::now();
    cluster.restart(away);
    let caught_up = poll_until(
        WITHIN,
        || matches!(cluster.node(away).cluster_info("applied"), Some(Value::Integer(at)) if at >= target),
    );
    assert!(caught_up, "{}", cluster.log());
    println!("catch up: the follower was level {:.2} s after its start", restarted.elapsed().as_secs_f64());
    assert_eq!(cluster.node(away).client().info(&name(MISSED - 1)).state, "held");
}
