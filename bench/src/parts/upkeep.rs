//! What operators do to a running cluster, under load: a rolling restart, a rolling upgrade from another release (`--other`), and a
//! backup of half a million held locks.
//!
//! Clients wait for each answer. One whose node goes away, or says `UNAVAILABLE`, asks the next node; every other error is counted as one.

use super::held_locks::fill;
use super::systems::{addresses_of, pairs, NodeSelection};
use crate::connection::BlockingConnection;
use crate::load_generator::{LoadGenerator, Tally};
use crate::options::Options;
use crate::report::{progress, Findings};
use crate::resp;
use crate::servers::redfence::Cluster;
use crate::servers::STARTS_WITHIN;
use crate::work::pairs::LockCommands;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const CLIENTS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);
/// Before a node goes, between two of them, and after the last.
const CALM: Duration = Duration::from_secs(2);
const RETRY_AFTER: Duration = Duration::from_millis(2);
const BACKUP_OF: u64 = 500_000;
const BACKUP_OF_QUICK: u64 = 20_000;
const BACKUPS: usize = 3;
const TURN: Duration = Duration::from_secs(1);
const PART: &str = "upkeep";

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let mut findings = Findings::default();
    let ours = options.redfence()?;
    println!("\nrolling restart of {NODES} nodes under {CLIENTS} clients");
    let seen = roll(&ours, &ours)?;
    tell(&mut findings, "rolling restart", &seen);
    match &options.other {
        Some(before) => {
            println!("\nrolling upgrade of {NODES} nodes under {CLIENTS} clients, from {}", before.display());
            let seen = roll(before, &ours)?;
            tell(&mut findings, "rolling upgrade", &seen);
        }
        None => eprintln!("  no rolling upgrade: name the program of the release before with --other"),
    }
    findings.absorb(backup(options, &ours)?);
    Ok(findings)
}

/// What one or all clients saw.
#[derive(Default)]
struct Seen {
    grants: Vec<Instant>,
    /// Error replies by their code; connections that broke or could not be made are `connection`.
    errors: BTreeMap<String, u64>,
}

impl Seen {
    fn absorb(&mut self, other: Seen) {
        self.grants.extend(other.grants);
        for (code, count) in other.errors {
            *self.errors.entry(code).or_default() += count;
        }
    }

    fn longest_gap(&self) -> Duration {
        let mut sorted = self.grants.clone();
        sorted.sort_unstable();
        sorted.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// Errors that a client which retries `UNAVAILABLE` and connects again still meets.
    fn left_over(&self) -> u64 {
        let retried = |code: &str| code == CONNECTION || code == UNAVAILABLE;
        self.errors.iter().filter(|(code, _)| !retried(code)).map(|(_, count)| count).sum()
    }
}

const CONNECTION: &str = "connection";
const UNAVAILABLE: &str = "UNAVAILABLE";

fn tell(findings: &mut Findings, what: &str, seen: &Seen) {
    findings.figure(PART, &format!("{what}, grants meanwhile"), seen.grants.len() as f64, "");
    let gap_ms = seen.longest_gap().as_secs_f64() * 1e3;
    findings.figure(PART, &format!("{what}, longest time without a grant"), gap_ms, "ms");
    for (code, count) in &seen.errors {
        findings.figure(PART, &format!("{what}, errors: {code}"), *count as f64, "");
    }
    let left = seen.left_over() as f64;
    findings.goal_at_most(&format!("{what}: errors of clients that retry {UNAVAILABLE}"), Some(left), 0.0);
}

/// Stops the nodes one after the other, as an operator would, and starts each with the other program.
fn roll(before: &Path, after: &Path) -> Result<Seen, String> {
    let mut cluster = Cluster::start(before, NODES, &[])?;
    let stop = Arc::new(AtomicBool::new(false));
    let addresses = cluster.addresses();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (addresses, stop) = (addresses.clone(), Arc::clone(&stop));
            std::thread::spawn(move || pairs_until(&addresses, number, &stop))
        })
        .collect();
    let rolled = roll_nodes(&mut cluster, after);
    stop.store(true, Ordering::Relaxed);
    let mut all = Seen::default();
    for client in clients {
        all.absorb(client.join().map_err(|_| "a client failed")?);
    }
    rolled.map(|()| all)
}

fn roll_nodes(cluster: &mut Cluster, after: &Path) -> Result<(), String> {
    let leader = cluster.await_leader()?;
    cluster.replace_program(after);
    std::thread::sleep(CALM);
    // The leader last: one hand-over for all.
    let followers = (0..NODES).filter(|at| *at != leader);
    for at in followers.chain([leader]) {
        progress(&format!("{PART}: node {}", at + 1));
        cluster.nodes[at].process.terminate(STARTS_WITHIN)?;
        cluster.restart(at)?;
        cluster.await_leader()?;
        std::thread::sleep(CALM);
    }
    progress("");
    Ok(())
}

fn pairs_until(addresses: &[SocketAddr], number: usize, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let (mut at, mut attempt) = (number, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let address = addresses[at % addresses.len()];
        if pairs_on(address, number, &mut attempt, &mut seen, stop).is_err() {
            *seen.errors.entry(CONNECTION.into()).or_default() += 1;
        }
        at += 1;
        std::thread::sleep(RETRY_AFTER);
    }
    seen
}

/// Until an error reply, which is counted, or the end of the connection.
fn pairs_on(
    address: SocketAddr,
    number: usize,
    attempt: &mut u64,
    seen: &mut Seen,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let mut connection = BlockingConnection::open(address, PATIENCE)?;
    while !stop.load(Ordering::Relaxed) {
        *attempt += 1;
        // A new name each time: whatever became of the last attempt is in nobody's way.
        let name = format!("upkeep:{number}:{attempt}");
        let reply = connection.ask(&[b"LOCK.ACQUIRE", name.as_bytes(), b"10000"])?;
        if note_error(&reply, seen) {
            return Ok(());
        }
        let Some(fence) = resp::integers(&reply).next() else {
            return Err(std::io::Error::other(resp::shown(&reply)));
        };
        seen.grants.push(Instant::now());
        let reply = connection.ask(&[b"LOCK.RELEASE", name.as_bytes(), fence.to_string().as_bytes()])?;
        if note_error(&reply, seen) {
            return Ok(());
        }
    }
    Ok(())
}

fn note_error(reply: &[u8], seen: &mut Seen) -> bool {
    let is_error = resp::is_error(reply);
    if is_error {
        let text = resp::shown(reply);
        let code = text.trim_start_matches('-').split_whitespace().next().unwrap_or("?");
        *seen.errors.entry(code.into()).or_default() += 1;
    }
    is_error
}

/// Pairs by the same clients in turns, with a backup under way and without.
fn backup(options: &Options, binary: &Path) -> Result<Findings, String> {
    let held = if options.quick { BACKUP_OF_QUICK } else { BACKUP_OF };
    println!("\nbackup of {held} held locks under {CLIENTS} clients");
    let cluster = Cluster::start(binary, NODES, &[])?;
    progress("taking locks");
    fill(&cluster, 0, held)?;
    let leader = addresses_of(&cluster, NodeSelection::Leader)?;
    let mut load = LoadGenerator::connect(&leader, pairs(LockCommands::Lock, CLIENTS))?;
    let folder = crate::servers::temporary_directory()?;
    let file = folder.path().join("locks.backup");
    let from = leader.first().ok_or("no leader")?.to_string();
    let (mut with, mut without, mut longest) = (Tally::default(), Tally::default(), Duration::ZERO);
    load.turn(TURN)?;
    for time in 1..=options.turns(BACKUPS) {
        progress(&format!("{PART}: backup {time}"));
        without.absorb(&load.turn(TURN * 2)?);
        let begun = Instant::now();
        let mut command = Command::new(binary);
        command.args(["backup", "--from", &from, "--out"]).arg(&file);
        let mut child = command
            .stderr(std::process::Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start a backup: {error}"))?;
        let status = loop {
            with.absorb(&load.turn(TURN / 4)?);
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                break status;
            }
        };
        longest = longest.max(begun.elapsed());
        if !status.success() {
            return Err(format!("the backup failed: {status}"));
        }
    }
    progress("");
    let bytes = std::fs::metadata(&file).map_err(|error| error.to_string())?.len();
    let mut findings = Findings::default();
    let mut figure = |name: &str, value: f64, unit: &str| {
        findings.figure(PART, &format!("backup of {held} locks, {name}"), value, unit)
    };
    figure("longest time", longest.as_secs_f64(), "s");
    figure("size", bytes as f64 / 1e6, "MB");
    for (beside, tally) in [("beside it", &with), ("without it", &without)] {
        figure(&format!("pairs a second {beside}"), tally.per_s(), "");
        figure(&format!("p99 of an acquire {beside}"), tally.latencies.quantile_us(0.99) / 1e3, "ms");
        figure(&format!("longest acquire {beside}"), tally.latencies.longest_us() / 1e3, "ms");
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_code_and_only_the_unexpected_are_left_over() {
        let mut seen = Seen::default();
        assert!(!note_error(b"*2\r\n:1\r\n:9\r\n", &mut seen));
        assert!(note_error(b"-UNAVAILABLE no leader\r\n", &mut seen));
        assert_eq!(seen.left_over(), 0);
        assert!(note_error(b"-INDETERMINATE it may have happened\r\n", &mut seen));
        assert_eq!((seen.left_over(), seen.errors["UNAVAILABLE"]), (1, 1));
    }

    #[test]
    fn the_longest_gap_is_between_grants_of_any_clients() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut all = Seen { grants: vec![at(0), at(50)], ..Seen::default() };
        all.absorb(Seen { grants: vec![at(10), at(90)], ..Seen::default() });
        assert_eq!(all.longest_gap(), Duration::from_millis(40));
    }
}
