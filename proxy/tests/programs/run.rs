//! `redfence run`: the command, its fence, its signals and its end.

use super::support::{await_that, free_address, start_cluster, Client, Node};
use super::{address, fails, output, program, succeeds, Background};
use std::path::Path;
use tempfile::TempDir;

fn holder_of(client: &mut Client, name: &str) -> String {
    client.ask(&["LOCK.INFO", name])
}

fn is_free(client: &mut Client, name: &str) -> bool {
    holder_of(client, name).contains("\"free\"")
}

fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// A run whose command writes its process id to a file and then goes on for long.
fn long_run(addresses: &str, folder: &TempDir, options: &[&str], script: &str) -> (Background, String) {
    let pid = folder.path().join("pid");
    let script = format!("{script}; echo $$ > {}; for i in $(seq 600); do sleep 0.1; done", pid.display());
    let words = [&["run", "job"], options, &["--", "sh", "-c", &script]].concat();
    let run = Background::start(program(addresses, &words));
    await_that("the command runs", || !text_of(&pid).is_empty());
    (run, text_of(&pid))
}

fn is_alive(pid: &str) -> bool {
    // A process that nobody has waited for yet is dead all the same.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn the_command_has_the_fence_and_its_exit_code_is_handed_on() {
    let node = Node::start(&[]);
    let (at, mut client) = (address(&node), node.connect());
    let said = succeeds(&at, &["run", "job", "--", "sh", "-c", "echo $REDFENCE_FENCE $REDFENCE_RESOURCE"]);
    let fence: u64 = said.trim().strip_suffix(" job").and_then(|fence| fence.parse().ok()).expect("a fence");
    assert!(
        client.acquire(&["job", "600000", "OWNER", "me"]) > fence,
        "it was released, and this is the next grant"
    );
    client.ask(&["LOCK.FORCERELEASE", "job"]);
    let code = |script: &str| output(&at, &["run", "job", "--", "sh", "-c", script]).status.code();
    assert_eq!(code("exit 7"), Some(7));
    assert_eq!(code("kill -KILL $$"), Some(128 + 9));
    let umask = std::process::Command::new("sh").args(["-c", "umask"]).output().unwrap().stdout;
    assert_eq!(output(&at, &["run", "job", "--", "sh", "-c", "umask"]).stdout, umask, "that of its user");
    assert!(is_free(&mut client, "job"));
}

#[test]
fn each_reason_not_to_run_has_its_exit_code() {
    let node = Node::start(&[]);
    let (at, mut client) = (address(&node), node.connect());
    client.acquire(&["job", "600000", "OWNER", "alice"]);
    let (code, line) = fails(&at, &["run", "job", "--", "touch", "never"]);
    assert_eq!(code, 75, "{line}");
    assert!(line.contains("job is held by alice"), "{line}");
    assert_eq!(fails(&at, &["run", "job", "--wait", "100ms", "--", "true"]).0, 75);
    assert_eq!(fails(&at, &["run", "other", "--", "/no/such/program"]).0, 127);
    assert_eq!(fails(&at, &["run", "other", "--", "/etc/passwd"]).0, 126);
    assert!(is_free(&mut client, "other"), "it is given back where the command cannot be run");
    assert_eq!(fails(&at, &["run", &"x".repeat(513), "--", "true"]).0, 69, "a name that is refused");
    assert_eq!(fails(&free_address().to_string(), &["run", "job", "--", "true"]).0, 69);
    assert_eq!(output(&at, &["run", "job"]).status.code(), Some(2), "no command");
}

#[test]
fn the_lock_is_waited_for() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let fence = client.acquire(&["job", "600000", "OWNER", "alice"]).to_string();
    let mut run = Background::start(program(&address(&node), &["run", "job", "--wait", "1m", "--", "true"]));
    await_that("it is in line", || client.ask(&["LOCK.QUEUE", "job"]) != "()");
    client.ask(&["LOCK.RELEASE", "job", &fence]);
    assert_eq!(run.await_exit().0, Some(0));

    client.acquire(&["job", "600000", "OWNER", "bob"]);
    let mut run = Background::start(program(&address(&node), &["run", "job", "--wait", "1m", "--", "true"]));
    await_that("it is in line again", || client.ask(&["LOCK.QUEUE", "job"]) != "()");
    run.signal("TERM");
    assert_eq!(run.await_exit().0, Some(128 + 15), "a signal ends the wait");
    await_that("it left the queue", || client.ask(&["LOCK.QUEUE", "job"]) == "()");
}

#[test]
fn a_node_that_stands_still_is_not_waited_for() {
    let nodes = start_cluster(3, &[]);
    let addresses: Vec<String> = nodes.iter().map(address).collect();
    let mut client = nodes[1].connect();
    let fence = client.acquire(&["job", "600000", "OWNER", "alice"]).to_string();
    let words = ["run", "job", "--wait", "10m", "--", "sh", "-c", "echo done"];
    let mut run = Background::start(program(&addresses.join(","), &words));
    await_that("it is in line at the first node", || client.ask(&["LOCK.QUEUE", "job"]) != "()");
    nodes[0].process.signal("STOP");
    await_that("the others have a leader", || client.ask(&["LOCK.RELEASE", "job", &fence]).starts_with("("));
    assert_eq!(run.await_exit().0, Some(0), "another node has told it of its grant");
}

#[test]
fn signals_are_forwarded_to_the_command() {
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    let heard = folder.path().join("heard");
    let script = format!("trap 'echo x > {}' USR1", heard.display());
    let (mut run, _) = long_run(&address(&node), &folder, &[], &script);
    run.signal("USR1");
    await_that("the command has heard it", || heard.exists());
    run.signal("TERM");
    assert_eq!(run.await_exit().0, Some(128 + 15));
    assert!(is_free(&mut node.connect(), "job"), "and the lock is released");
}

#[test]
fn the_command_dies_with_a_killed_run() {
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    let (run, pid) = long_run(&address(&node), &folder, &[], ":");
    run.signal("KILL");
    await_that("nobody works without a lock", || !is_alive(&pid));
}

/// Milliseconds left of the lock.
fn ttl_of(info: &str) -> u64 {
    let ttl = info.split("\"ttl\", ").nth(1).and_then(|rest| rest.split(',').next());
    ttl.and_then(|ttl| ttl.parse().ok()).unwrap_or(0)
}

/// Waits until more is left than before: somebody has renewed it.
fn await_renewal(client: &mut Client) {
    let mut last = ttl_of(&holder_of(client, "job"));
    await_that("the lock is renewed", || {
        let before = std::mem::replace(&mut last, ttl_of(&holder_of(client, "job")));
        last > before
    });
}

#[test]
fn the_lock_is_renewed_as_long_as_the_command_runs() {
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    let (mut run, pid) = long_run(&address(&node), &folder, &["--ttl", "4s", "--kill-after", "100ms"], ":");
    let mut client = node.connect();
    let fence_of = |info: &str| info.split("\"fence\", ").nth(1).map(|rest| rest[..16].to_owned());
    let before = fence_of(&holder_of(&mut client, "job"));
    for _ in 0..4 {
        await_renewal(&mut client);
    }
    assert_eq!(fence_of(&holder_of(&mut client, "job")), before, "under the same fence");
    assert!(is_alive(&pid));
    run.signal("INT");
    run.await_exit();
}

#[test]
fn the_group_is_ended_when_the_lock_is_taken_away() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    await_that("the cluster has version 2: the loss is told at once", || {
        client.ask(&["LOCK.NOTIFY", "ON"]) == "OK"
    });
    let folder = TempDir::new().unwrap();
    let grandchild = folder.path().join("grandchild");
    // Deaf to SIGTERM, as is what it starts: only SIGKILL to the group ends both.
    let script = format!(
        "trap '' TERM; sh -c 'echo $$ > {}; for i in $(seq 600); do sleep 0.1; done' &",
        grandchild.display()
    );
    let script = format!("{script} :");
    let (mut run, pid) =
        long_run(&address(&node), &folder, &["--ttl", "1h", "--kill-after", "200ms"], &script);
    await_that("its own child runs", || !text_of(&grandchild).is_empty());
    assert_eq!(client.ask(&["LOCK.FORCERELEASE", "job"]), "1");
    let (code, line) = run.await_exit();
    assert_eq!(code, Some(76), "{line}");
    assert!(line.contains("is lost, cause: forced"), "{line}");
    let grandchild = text_of(&grandchild);
    await_that("all of the group is dead", || !is_alive(&pid) && !is_alive(&grandchild));
}

#[test]
fn a_run_that_stood_still_past_its_ttl_ends_its_command_when_it_wakes_up() {
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    let (mut run, pid) = long_run(&address(&node), &folder, &["--ttl", "1s"], ":");
    run.signal("STOP");
    let mut client = node.connect();
    client.acquire(&["job", "600000", "WAIT", "9000", "OWNER", "next"]);
    run.signal("CONT");
    let (code, line) = run.await_exit();
    assert_eq!(code, Some(76), "{line}");
    await_that("the command is dead", || !is_alive(&pid));
    assert!(holder_of(&mut client, "job").contains("\"next\""), "the new holder keeps the lock");
}

#[test]
fn a_command_that_succeeds_after_its_lock_has_ended_is_no_success() {
    // Tier 1 in a Redis without the module: nobody tells of a loss there, and the renewal is far away.
    let (_redis, node) = super::support::behind(&[]);
    let take_away = format!(
        "redis-cli -h {} -p {} LOCK.FORCERELEASE job TIER EFFICIENCY",
        node.address.ip(),
        node.address.port()
    );
    let words = ["run", "job", "--ttl", "1h", "--tier", "efficiency", "--", "sh", "-c", &take_away];
    let (code, line) = fails(&address(&node), &words);
    assert_eq!(code, 76, "{line}");
    assert!(line.contains("ended before the command did"), "{line}");
}

#[test]
fn it_holds_on_while_one_node_is_down_and_ends_the_command_before_the_lock_is_somebody_elses() {
    let mut nodes = start_cluster(3, &[]);
    let addresses: Vec<String> = nodes.iter().map(address).collect();
    let folder = TempDir::new().unwrap();
    let (mut run, pid) =
        long_run(&addresses.join(","), &folder, &["--ttl", "8s", "--kill-after", "100ms"], ":");
    drop(nodes.remove(0));
    let mut client = nodes[0].connect();
    await_that("the others have a leader", || client.ask(&["LOCK.INFO", "job"]).contains("\"held\""));
    await_renewal(&mut client);
    assert!(is_alive(&pid));
    drop(nodes);
    let (code, line) = run.await_exit();
    assert_eq!(code, Some(76), "{line}");
    assert!(line.contains("could not be renewed in time"), "{line}");
    await_that("the command is dead", || !is_alive(&pid));
}
