//! A client's pipelined writes through a follower keep their order while connections between nodes are cut.

use std::time::{Duration, Instant};

use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::resp::{encode, Connection, Value};

const PUSHES: usize = 12_000;
const CUTS: usize = 16;
/// How many pushes are under way at once.
const WINDOW: usize = 600;

fn push(number: usize) -> Vec<u8> {
    encode(&["RPUSH", "order", &number.to_string()])
}

#[test]
fn pipelined_pushes_keep_their_order_while_peer_connections_are_cut() {
    let cluster = Cluster::start(&Options::nodes(3).relayed());
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let follower = cluster.follower(leader);
    let mut client = Connection::open(follower.address).expect("the follower listens");
    let (mut sent, mut cuts, mut cut_connections) = (0, 0, 0);
    let mut not_known = 0;
    for answered in 0..PUSHES {
        while sent < PUSHES && sent < answered + WINDOW {
            client.send_raw(&push(sent)).expect("sent");
            sent += 1;
        }
        if answered * (CUTS + 1) >= (cuts + 1) * PUSHES {
            // What follower and leader dialled to each other: either may carry the pushes.
            cut_connections += cluster.node(leader).cut_peers() + follower.cut_peers();
            cuts += 1;
        }
        match client.receive(REPLY_WITHIN).unwrap_or_else(|error| panic!("{error:?}\n{}", cluster.log())) {
            Value::Integer(_) => {}
            Value::Error(line) if line.starts_with("INDETERMINATE") || line.starts_with("UNAVAILABLE") => {
                not_known += 1;
            }
            other => panic!("push {answered}: {other:?}"),
        }
    }
    println!("{cuts} cuts of {cut_connections} connections; {not_known} pushes not known or refused");
    assert!(cut_connections >= CUTS, "nothing was cut");
    let numbers = numbers(&cluster);
    let fall = numbers.windows(2).find(|pair| pair[0] >= pair[1]);
    assert_eq!(fall, None, "the order changed\n{}", cluster.log());
    assert!(numbers.len() + not_known >= PUSHES, "{} of {PUSHES} are there", numbers.len());
}

/// The list, read in parts from any node that answers.
fn numbers(cluster: &Cluster) -> Vec<usize> {
    let mut client = Connection::open(cluster.nodes[0].address).expect("it listens");
    let deadline = Instant::now() + REPLY_WITHIN;
    let mut numbers = Vec::new();
    loop {
        let (first, last) = (numbers.len().to_string(), (numbers.len() + 999).to_string());
        let reply = client.ask(&["LRANGE", "order", &first, &last], REPLY_WITHIN).expect("an answer");
        let Value::Array(items) = reply else {
            assert!(Instant::now() < deadline, "{reply:?}");
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if items.is_empty() {
            return numbers;
        }
        numbers.extend(items.iter().map(|item| item.text().parse::<usize>().expect("a number")));
    }
}
