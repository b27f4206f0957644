//! Sessions of connections that are active, or blocked, live on: whatever their ttl, and however the commands fall between the batches in
//! which a node reports them.

mod support;

use std::time::{Duration, Instant};
use support::{Client, Node};

/// On a busy machine a client may itself be too late; then the session ends by right, and the attempt says nothing.
const ATTEMPTS: usize = 20;

fn open(client: &mut Client, ttl: &str) -> String {
    client.ask(&["LOCK.SESSION", "OPEN", ttl]).trim_matches('"').to_owned()
}

#[test]
fn commands_far_apart_keep_a_session_alive() {
    const TTL: Duration = Duration::from_millis(700);
    let node = Node::start(&[]);
    for _ in 0..ATTEMPTS {
        let mut client = node.connect();
        let mut began = Instant::now();
        let session = open(&mut client, "700");
        let mut in_time = true;
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(550));
            client.ask(&["PING"]);
            in_time &= began.elapsed() < TTL;
            began = Instant::now();
        }
        let info = client.ask(&["LOCK.SESSION", "INFO", &session]);
        if in_time {
            assert!(info.contains(&session), "{info}");
            return;
        }
    }
    println!("left out: this machine is too busy for a ttl of {TTL:?}");
}

#[test]
fn a_session_shorter_than_a_batch_lives_while_its_client_is_active() {
    const TTL: Duration = Duration::from_millis(150);
    let node = Node::start(&[]);
    for _ in 0..ATTEMPTS {
        let mut client = node.connect();
        let mut began = Instant::now();
        let session = open(&mut client, "150");
        let mut in_time = true;
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(30));
            client.ask(&["PING"]);
            // What the log takes is the node's business, within reason.
            in_time &= began.elapsed() < TTL / 2;
            began = Instant::now();
        }
        let info = client.ask(&["LOCK.SESSION", "INFO", &session]);
        if in_time {
            assert!(info.contains(&session), "{info}");
            return;
        }
    }
    println!("left out: this machine is too busy for a ttl of {TTL:?}");
}

#[test]
fn a_session_shorter_than_a_batch_lives_while_its_client_is_blocked() {
    let node = Node::start(&[]);
    let mut holder = node.connect();
    holder.acquire(&["held", "600000"]);
    let waits = || {
        let mut client = node.connect();
        let session = open(&mut client, "250");
        client.ask(&["LOCK.ACQUIRE", "held", "1000", "WAIT", "1500", "SESSION", &session])
    };
    let answers: Vec<String> = (0..ATTEMPTS).map(|_| waits()).take_while(|answer| answer != "nil").collect();
    assert!(answers.len() < ATTEMPTS, "never waited to the end: {answers:?}");
}
