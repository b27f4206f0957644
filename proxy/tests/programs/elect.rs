//! `redfence elect`: one leads, the next takes over, whoever lost stands again.

use super::support::{await_that, Node};
use super::{address, program, Background};
use std::process::Command;
use tempfile::TempDir;

fn candidate(node: &Node, folder: &TempDir, name: &str) -> Command {
    let led = folder.path().join("led");
    let script =
        format!("echo {name} $REDFENCE_FENCE >> {}; for i in $(seq 600); do sleep 0.1; done", led.display());
    program(
        &address(node),
        &[
            "elect",
            "boss",
            "--ttl",
            "1h",
            "--kill-after",
            "200ms",
            "--value",
            name,
            "--",
            "sh",
            "-c",
            &script,
        ],
    )
}

fn leaders(folder: &TempDir) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(folder.path().join("led")).unwrap_or_default();
    let pair = |line: &str| {
        let (name, fence) = line.split_once(' ')?;
        Some((name.to_owned(), fence.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

#[test]
fn one_leads_and_whoever_loses_it_stands_for_election_again() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    await_that("the cluster has version 2", || client.ask(&["LOCK.NOTIFY", "ON"]) == "OK");
    let folder = TempDir::new().unwrap();
    let first = Background::start(candidate(&node, &folder, "a:1"));
    await_that("the first leads", || leaders(&folder).len() == 1);
    let mut second = Background::start(candidate(&node, &folder, "b:2"));
    await_that("the second stands in line", || client.ask(&["LOCK.QUEUE", "boss"]) != "()");
    assert!(client.ask(&["LOCK.INFO", "boss"]).contains("\"value\", \"a:1\""));

    assert_eq!(client.ask(&["LOCK.FORCERELEASE", "boss"]), "1");
    await_that("the second leads", || leaders(&folder).len() == 2);
    assert!(client.ask(&["LOCK.INFO", "boss"]).contains("\"value\", \"b:2\""));
    await_that("the first stands again", || client.ask(&["LOCK.QUEUE", "boss"]) != "()");

    second.signal("TERM");
    assert_eq!(second.await_exit().0, Some(128 + 15), "the end of its command is its own");
    await_that("the first leads again", || leaders(&folder).len() == 3);
    let led = leaders(&folder);
    assert_eq!(led.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a:1", "b:2", "a:1"]);
    assert!(led.windows(2).all(|pair| pair[0].1 < pair[1].1), "fences rise: {led:?}");
    drop(first);
}

#[test]
fn nobody_who_reads_standard_error_is_no_reason_to_end() {
    let node = Node::start(&[]);
    let script = "\"$0\" elect boss -- sh -c 'exit 7' 2>&-; echo $?";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_redfence")]).env("REDFENCE_ADDR", address(&node));
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "7");
    // The reader has gone before a word was said.
    let folder = TempDir::new().unwrap();
    let mut command = candidate(&node, &folder, "a:1");
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    await_that("it leads all the same", || leaders(&folder).len() == 1);
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15), "and did not panic");
}
