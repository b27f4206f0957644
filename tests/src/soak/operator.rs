//! What is done to the cluster while it serves: a rolling upgrade, kills, pauses, rolling restarts, a backup, a replaced node.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Settings, Shared};
use crate::artifacts;
use crate::cluster::{Cluster, Node};
use crate::process::poll_until;
use crate::resp::Value;

const WITHIN: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
enum Step {
    KillLeader,
    KillFollower,
    PauseLeader,
    RollingRestart,
    RollingUpgrade,
    Backup,
    ReplaceNode,
}

/// All of them once at least, however short the run is. An upgrade, where there is one, comes before.
const STEPS: [Step; 6] = [
    Step::KillFollower,
    Step::Backup,
    Step::KillLeader,
    Step::RollingRestart,
    Step::PauseLeader,
    Step::ReplaceNode,
];

/// Step after step until the time is over.
pub fn work(shared: &Shared, cluster: &mut Cluster, settings: &Settings) {
    let begun = Instant::now();
    let upgrade = settings.upgrade_from.iter().map(|_| Step::RollingUpgrade);
    let least = STEPS.len() + upgrade.len();
    for (done, step) in upgrade.chain(STEPS.into_iter().cycle()).enumerate() {
        if begun.elapsed() >= settings.duration && done >= least {
            break;
        }
        rest(shared, cluster, settings.step / 2);
        let started = Instant::now();
        let said = carry_out(step, shared, cluster);
        shared.report(|report| {
            let (at, took) = (shared.begun.elapsed().as_secs(), started.elapsed().as_secs_f64());
            report.notes.push(format!("at {at} s: {step:?} took {took:.1} s {said}"));
        });
        rest(shared, cluster, settings.step / 2);
    }
    check_members(shared, cluster);
}

fn rest(shared: &Shared, cluster: &Cluster, time: Duration) {
    let until = Instant::now() + time;
    loop {
        note_memory(shared, cluster);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_secs(5)));
    }
}

fn carry_out(step: Step, shared: &Shared, cluster: &mut Cluster) -> String {
    let leader = cluster.wait_for_leader(WITHIN);
    match step {
        Step::KillLeader => kill_and_start(cluster, leader),
        Step::KillFollower => {
            let follower = cluster.followers(leader)[0];
            kill_and_start(cluster, follower);
        }
        Step::PauseLeader => {
            cluster.pause(leader);
            std::thread::sleep(Duration::from_secs(2));
            cluster.resume(leader);
        }
        Step::RollingRestart => roll(shared, cluster),
        Step::RollingUpgrade => return upgrade(shared, cluster),
        Step::Backup => return backup(shared, cluster, leader),
        Step::ReplaceNode => replace(shared, cluster, leader),
    }
    cluster.wait_for_leader(WITHIN);
    String::new()
}

/// Stops and starts the nodes one by one.
fn roll(shared: &Shared, cluster: &mut Cluster) {
    let ids: Vec<u64> = cluster.nodes.iter().map(|node| node.id).collect();
    for id in ids {
        cluster.node(id).process().signal(libc::SIGTERM);
        let (status, log) = cluster.wait_for_end(id, WITHIN);
        if !status.success() {
            shared.wrong(format!("node {id} ended with {status}: {log}"));
        }
        cluster.restart(id);
        level(cluster, id);
    }
}

/// To the program under test. With its last node the cluster runs the newest version.
fn upgrade(shared: &Shared, cluster: &mut Cluster) -> String {
    let before = cluster_versions(cluster);
    let program = artifacts::redfence().expect("the program is built");
    let ids: Vec<u64> = cluster.nodes.iter().map(|node| node.id).collect();
    ids.into_iter().for_each(|id| cluster.set_program(id, &program));
    roll(shared, cluster);
    let is_raised = poll_until(WITHIN, || {
        let versions = cluster_versions(cluster);
        versions.iter().all(|version| version.is_some_and(|(runs, newest)| runs == newest))
    });
    let after = cluster_versions(cluster);
    if !is_raised {
        shared.wrong(format!("the cluster version was not raised after the upgrade: {after:?}"));
    }
    let runs = |versions: &[Option<(i64, i64)>]| versions.iter().flatten().map(|(runs, _)| *runs).max();
    format!("(cluster version {} to {})", runs(&before).unwrap_or(0), runs(&after).unwrap_or(0))
}

/// Of each node: the version that the cluster runs, and the newest that the node can run.
fn cluster_versions(cluster: &Cluster) -> Vec<Option<(i64, i64)>> {
    let version = |node: &Node| match node.ask(&["LOCK.CLUSTER", "VERSION"], Duration::from_secs(10))? {
        Value::Array(fields) => match fields[..] {
            [_, Value::Integer(runs), _, Value::Integer(newest), ..] => Some((runs, newest)),
            _ => None,
        },
        _ => None,
    };
    cluster.nodes.iter().map(version).collect()
}

fn kill_and_start(cluster: &mut Cluster, id: u64) {
    cluster.kill(id);
    std::thread::sleep(Duration::from_secs(1));
    cluster.restart(id);
    level(cluster, id);
}

/// Waits until a node has applied what another one had when it was asked.
fn level(cluster: &Cluster, id: u64) {
    let applied = |id: u64| match cluster.node(id).cluster_info("applied") {
        Some(Value::Integer(at)) => at,
        _ => 0,
    };
    let target = cluster.nodes.iter().filter(|node| node.id != id).map(|node| applied(node.id)).max();
    let is_level = poll_until(WITHIN, || target.is_none_or(|target| applied(id) >= target));
    assert!(is_level, "node {id} does not catch up\n{}", cluster.log());
}

fn backup(shared: &Shared, cluster: &Cluster, leader: u64) -> String {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("soak.backup");
    let from = cluster.node(leader).address.to_string();
    let text = |path: &Path| path.to_string_lossy().into_owned();
    for words in [
        vec!["backup".to_owned(), "--from".into(), from, "--out".into(), text(&file)],
        vec!["backup".to_owned(), "verify".into(), text(&file)],
    ] {
        let program = artifacts::redfence().expect("the program is built");
        let output = Command::new(program).args(&words).output().expect("it runs");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            shared.wrong(format!("{}: {said}", words.join(" ")));
        }
    }
    let bytes = std::fs::metadata(&file).map_or(0, |file| file.len());
    format!("({} MB)", bytes >> 20)
}

/// A follower's machine is lost for good; another takes its place under a new id.
fn replace(shared: &Shared, cluster: &mut Cluster, leader: u64) {
    let lost = cluster.followers(leader)[0];
    let fresh = cluster.nodes.iter().map(|node| node.id).max().unwrap_or(0) + 1;
    cluster.kill(lost);
    change(shared, cluster, &["REMOVE", &lost.to_string()]);
    cluster.discard(lost);
    let address = cluster.join(fresh).to_string();
    change(shared, cluster, &["ADD", &fresh.to_string(), &address]);
    level(cluster, fresh);
    shared.set_addresses(cluster);
}

/// Asked again while the cluster has other things to do.
fn change(shared: &Shared, cluster: &Cluster, words: &[&str]) {
    let mut all = vec!["LOCK.CLUSTER"];
    all.extend(words);
    let (mut last, mut tries) = (None, 0);
    let done = poll_until(WITHIN, || {
        tries += 1;
        let Some(node) = cluster.nodes.iter().find(|node| node.runs()) else { return false };
        last = node.ask(&all, Duration::from_secs(20));
        // An earlier try whose answer was lost may have done it.
        let was_done =
            tries > 1 && last.as_ref().is_some_and(|reply| reply.is_error() && reply.error_code() == "ERR");
        was_done || last == Some(Value::Simple(b"OK".to_vec()))
    });
    if !done {
        shared.wrong(format!("{}: {last:?}", all.join(" ")));
    }
}

/// In the end all members are up and none is quarantined.
fn check_members(shared: &Shared, cluster: &Cluster) {
    let leader = cluster.wait_for_leader(WITHIN);
    let shown = cluster.node(leader).ask(&["LOCK.CLUSTER", "NODES"], Duration::from_secs(10));
    let text = format!("{shown:?}");
    let bytes_of = |word: &str| format!("{:?}", Value::bulk(word));
    if shown.is_none() || text.contains(&bytes_of("quarantined")) {
        shared.wrong(format!("members in the end: {text}"));
    }
}

pub fn note_memory(shared: &Shared, cluster: &Cluster) {
    let minute = shared.minute();
    for node in cluster.nodes.iter().filter(|node| node.runs()) {
        let Some(mb) = resident_mb(node.process().pid()) else { continue };
        shared.report(|report| {
            report.minute(minute).memory_mb.insert(node.id, mb);
        });
    }
}

fn resident_mb(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? >> 10)
}
