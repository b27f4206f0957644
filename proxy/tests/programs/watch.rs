//! `redfence watch`: events as they happen, also after its node is gone.

use super::support::{start_cluster, Node};
use super::{address, program, Background};
use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// Lines of a pipe, read by a thread of their own.
fn lines(pipe: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn next(lines: &Receiver<String>) -> String {
    lines.recv_timeout(Duration::from_secs(20)).expect("a line in time")
}

fn start(addresses: &str, args: &[&str]) -> (Background, Receiver<String>, Receiver<String>) {
    let mut watch = Background::start(program(addresses, &[&["watch"], args].concat()));
    let events = lines(watch.0.stdout.take().expect("piped") as ChildStdout);
    let notes = lines(watch.0.stderr.take().expect("piped"));
    assert!(next(&notes).starts_with("watching "));
    (watch, events, notes)
}

#[test]
fn events_are_shown_until_there_were_enough() {
    let node = Node::start(&[]);
    let (mut table, shown, _notes) = start(&address(&node), &["wallet:*", "--count", "2"]);
    let (_json, events, _notes) = start(&address(&node), &["wallet:*", "--json"]);
    let mut client = node.connect();
    client.acquire(&["other", "600000"]);
    let fence = client.acquire(&["wallet:7", "600000", "OWNER", "alice"]).to_string();
    client.ask(&["LOCK.RELEASE", "wallet:7", &fence]);
    let line = next(&shown);
    assert!(line.contains("acquired") && line.contains("wallet:7") && line.contains(&fence), "{line}");
    assert!(next(&shown).contains("released"));
    assert!(table.0.wait().expect("a child").success(), "it ends by itself");
    let event: serde_json::Value = serde_json::from_str(&next(&events)).expect("JSON");
    assert_eq!((event["event"].as_str(), event["owner"].as_str()), (Some("acquired"), Some("alice")));
}

#[test]
fn what_is_no_event_is_passed_over() {
    let node = Node::start(&[]);
    let (_json, events, notes) = start(&address(&node), &["w*", "--json"]);
    let mut client = node.connect();
    for message in ["no event\n{\"event\":\"forged\"}", "7", "{\n\"event\":\"odd\u{9b}\"}"] {
        assert_eq!(client.ask(&["PUBLISH", "__lock__:w", message]), "1");
    }
    client.acquire(&["w\u{9b}31m", "600000"]);
    assert!(next(&notes).contains("is no event"));
    let odd = next(&events);
    assert_eq!(odd, "{ \"event\":\"odd\\u009b\"}");
    let event: serde_json::Value = serde_json::from_str(&next(&events)).expect("JSON");
    assert_eq!((event["event"].as_str(), event["resource"].as_str()), (Some("acquired"), Some("w\u{9b}31m")));
}

#[test]
fn it_goes_on_at_another_node_and_says_that_events_may_be_missed() {
    let mut nodes = start_cluster(3, &[]);
    let addresses: Vec<String> = nodes.iter().map(address).collect();
    let (_watch, events, notes) = start(&addresses.join(","), &["kept*", "--json"]);
    drop(nodes.remove(0));
    assert!(next(&notes).contains("events may be missed"));
    assert!(next(&notes).starts_with("watching "));
    let mut client = nodes[0].connect();
    super::support::await_that("the others have a leader", || {
        client.ask(&["LOCK.ACQUIRE", "kept", "600000", "OWNER", "me"]).starts_with('(')
    });
    assert!(next(&events).contains("acquired"));
}

#[test]
fn a_user_without_the_right_to_the_channels_is_told_so() {
    let folder = tempfile::TempDir::new().unwrap();
    let users = folder.path().join("users.acl");
    std::fs::write(&users, "user default on nopass ~* +@all resetchannels\n").unwrap();
    let node = Node::start(&["--acl-file", users.to_str().unwrap()]);
    let (code, line) = super::fails(&address(&node), &["watch"]);
    assert!(code == 1 && line.contains("NOPERM"), "{line}");
}
