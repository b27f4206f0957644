//! A cluster of real processes whose traffic is encrypted: it serves, loses nodes and gets them back, and its secret is rotated under
//! load without one failed operation. Strangers on the peer port get nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use redfence_tests::ask;
use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::cluster::{Cluster, Options, PEER_SECRET};
use redfence_tests::expect;
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;

const WITHIN: Duration = Duration::from_secs(30);
const NEXT_SECRET: &str = "3c5e7a9b1d2f4e6081a3c5e7f90b2d4f6a8c0e1f3b5d7f90a2c4e6f8091b3d5f";

/// Takes and gives back one lock until it is told to stop. Every operation must succeed.
fn load(mut client: Client, name: String, stop: Arc<AtomicBool>) -> u64 {
    let mut grants = 0;
    while !stop.load(Ordering::Relaxed) {
        let grant = expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 60_000, "OWNER", "load"));
        let released = ask!(client, "LOCK.RELEASE", &name, grant.fence);
        assert!(!matches!(released, Value::Error(_)), "{released:?}");
        grants += 1;
    }
    grants
}

/// How often each node has read its secrets again.
fn rereads(cluster: &Cluster) -> Vec<usize> {
    let lines = |log: String| log.matches("peer secrets read again").count();
    cluster.nodes.iter().map(|node| lines(node.process().log())).collect()
}

#[test]
fn a_secret_is_rotated_under_load_without_a_failed_operation() {
    let cluster = Cluster::start(&Options::nodes(3).with_peer_secret());
    let stop = Arc::new(AtomicBool::new(false));
    let loads: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| {
            let (client, stop, name) = (node.client(), Arc::clone(&stop), format!("lock-{}", node.id));
            std::thread::spawn(move || load(client, name, stop))
        })
        .collect();
    let steps = [
        format!("{PEER_SECRET}\n{NEXT_SECRET}\n"),
        format!("{NEXT_SECRET}\n{PEER_SECRET}\n"),
        format!("{NEXT_SECRET}\n"),
    ];
    for (step, text) in steps.iter().enumerate() {
        cluster.set_peer_secret(text);
        let done = || rereads(&cluster).iter().all(|count| *count > step);
        assert!(poll_until(WITHIN, done), "step {step}: {:?}\n{}", rereads(&cluster), cluster.log());
    }
    // Another grant of each after the last step: the new connections carry the load.
    let mut clients: Vec<Client> = cluster.nodes.iter().map(|node| node.client()).collect();
    for client in &mut clients {
        expect::granted(&ask!(client, "LOCK.ACQUIRE", "after", 60_000, "OWNER", "after"));
    }
    stop.store(true, Ordering::Relaxed);
    for load in loads {
        assert!(load.join().expect("no operation failed") > 0);
    }
}

#[test]
fn a_killed_node_comes_back_to_an_encrypted_cluster_and_a_new_one_joins() {
    let mut cluster = Cluster::start(&Options::nodes(3).with_peer_secret());
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let held = cluster.node(leader).client().acquire_as("held", 600_000, "holder");
    cluster.kill(leader);
    cluster.wait_for_leader(WITHIN);
    cluster.restart(leader);
    cluster.wait_for_leader(WITHIN);
    let sees = |cluster: &Cluster, id| cluster.node(id).client().info("held").fence == held.fence;
    assert!(poll_until(WITHIN, || sees(&cluster, leader)), "{}", cluster.log());
    let address = cluster.join(4).to_string();
    let added = ask!(cluster.node(leader).client(), "LOCK.CLUSTER", "ADD", 4, &address);
    assert_eq!(added, Value::Simple("OK".into()), "{}", cluster.log());
    assert!(poll_until(WITHIN, || sees(&cluster, 4)), "{}", cluster.log());
}

#[test]
fn a_stranger_on_the_peer_port_gets_nothing() {
    let cluster = Cluster::start(&Options::nodes(3).with_peer_secret());
    for node in &cluster.nodes {
        for bytes in [&b"RFPEER1\n"[..], b"PING\r\n", &[0; 100], &[]] {
            let mut stream = TcpStream::connect(node.peer_address()).unwrap();
            stream.set_read_timeout(Some(WITHIN)).unwrap();
            stream.write_all(bytes).unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert_eq!(answer, b"");
        }
    }
    let mut client = cluster.nodes[0].client();
    client.acquire_as("lock", 60_000, "somebody");
}

#[test]
fn an_address_beyond_this_machine_is_not_added_without_a_secret() {
    let cluster = Cluster::start(&Options::nodes(1));
    let mut client = cluster.nodes[0].client();
    for address in ["10.1.2.3:7380", "elsewhere:7380", "0.0.0.0:7380", "127.0.0.1", ":1", "127.0.0.1:x"] {
        let reply = ask!(client, "LOCK.CLUSTER", "ADD", 2, address);
        assert!(matches!(&reply, Value::Error(line) if line.starts_with("ERR")), "{address}: {reply:?}");
    }
}
