//! What held locks cost: memory, and throughput as they grow from a thousand to a million; and what a snapshot of half a million delays.
//!
//! Two clusters of three side by side, one that keeps a thousand locks and one that grows: their turns alternate, so that the machine's
//! weather does not look like a cost.

use super::systems::{addresses_of, pairs, NodeSelection};
use crate::load_generator::{Client, LoadGenerator, NextStep, Tally};
use crate::options::Options;
use crate::plot::Plot;
use crate::report::{progress, table, Findings};
use crate::resp;
use crate::servers::redfence::Cluster;
use crate::servers::{call, STARTS_WITHIN};
use crate::target::{alternate, Target};
use crate::work::pairs::LockCommands;
use crate::work::write_owner;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const LEVELS: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
const LEVELS_QUICK: [u64; 2] = [1_000, 20_000];
const SNAPSHOT_OF: u64 = 500_000;
const SNAPSHOT_OF_QUICK: u64 = 20_000;
/// Low, so that several snapshots fall into the measured time.
const SNAPSHOT_ENTRIES: &str = "8000";
const NO_SNAPSHOTS: &str = "1000000000";
const CLIENTS: usize = 64;
const TURNS: (usize, Duration) = (5, Duration::from_millis(600));
const SNAPSHOT_TURNS: (usize, Duration) = (6, Duration::from_millis(2_000));
const RESTARTS: usize = 5;
const FILLERS: usize = 16;
const DEPTH: u64 = 64;
const PART: &str = "held locks";

/// Takes a range of names and keeps them, many at a time.
struct Filler {
    next: u64,
    end: u64,
    due: u64,
    owner: Vec<u8>,
}

impl Client for Filler {
    fn ask(&mut self, _now: Instant, out: &mut Vec<u8>) {
        let until = self.end.min(self.next + DEPTH);
        self.due = until - self.next;
        for number in self.next..until {
            write_owner(0, number, &mut self.owner);
            // Far from the names of the pairs.
            let name = crate::work::name(500_000_000_000 + number);
            resp::encode(&[b"LOCK.ACQUIRE", &name, b"86400000", b"OWNER", &self.owner], out);
        }
        self.next = until;
    }

    fn take(&mut self, reply: &[u8], _now: Instant, tally: &mut Tally) -> Result<NextStep, String> {
        if reply.first() != Some(&b'*') || resp::is_nil(reply) {
            return Err(format!("not granted: {}", resp::shown(reply)));
        }
        tally.done += 1;
        self.due -= 1;
        Ok(match (self.due, self.next == self.end) {
            (0, true) => NextStep::MayStop,
            (0, false) => NextStep::MustContinue,
            (_, _) => NextStep::AwaitReply,
        })
    }
}

/// Locks `from..to` are taken and stay so.
pub(crate) fn fill(cluster: &Cluster, from: u64, to: u64) -> Result<(), String> {
    let share = (to - from).div_ceil(FILLERS as u64);
    let filler = |number: u64| Filler {
        next: (from + number * share).min(to),
        end: (from + (number + 1) * share).min(to),
        due: 0,
        owner: Vec::new(),
    };
    let fillers: Vec<Filler> =
        (0..FILLERS as u64).map(filler).filter(|filler| filler.next < filler.end).collect();
    if fillers.is_empty() {
        return Ok(());
    }
    let tally = LoadGenerator::connect(&addresses_of(cluster, NodeSelection::Leader)?, fillers)?
        .turn(Duration::ZERO)?;
    if tally.done == to - from {
        Ok(())
    } else {
        Err(format!("{} of {} locks were taken", tally.done, to - from))
    }
}

fn load(name: &str, cluster: &Cluster) -> Result<Target, String> {
    let generator = LoadGenerator::connect(
        &addresses_of(cluster, NodeSelection::Leader)?,
        pairs(LockCommands::Lock, CLIENTS),
    )?;
    Ok(Target::of_generator(name, generator, cluster.process_ids()))
}

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let mut findings = growth(options)?;
    findings.absorb(snapshots(options)?);
    findings.absorb(cold_restart(options)?);
    Ok(findings)
}

fn growth(options: &Options) -> Result<Findings, String> {
    println!("\nheld locks: pairs by {CLIENTS} clients beside them");
    let levels: &[u64] = if options.quick { &LEVELS_QUICK } else { &LEVELS };
    let binary = options.redfence()?;
    let (small, large) = (Cluster::start(&binary, 3, &[])?, Cluster::start(&binary, 3, &[])?);
    fill(&small, 0, levels[0])?;
    let mut findings = Findings::default();
    let (mut shares, mut held) = (Vec::new(), 0);
    let resident =
        |cluster: &Cluster| -> u64 { cluster.nodes.iter().map(|node| node.process.resident_bytes()).sum() };
    let empty = resident(&large);
    for level in levels {
        progress(&format!("taking {level} locks"));
        fill(&large, held, *level)?;
        held = *level;
        let (beside, name) = (format!("{} held", levels[0]), format!("{level} held locks"));
        let targets = vec![load(&beside, &small)?, load(&name, &large)?];
        let part = format!("{PART}, {level}");
        let rows = alternate(&part, CLIENTS, targets, options, TURNS);
        print!("{}", table(&rows));
        findings.rows.extend(rows);
        let share = findings.ratio(&part, CLIENTS, &name, &beside);
        shares.push((*level as f64, share.unwrap_or(0.0)));
        findings.figure(
            PART,
            &format!("throughput with {level} held / with {}", levels[0]),
            share.unwrap_or(0.0),
            "x",
        );
    }
    let each = (resident(&large) - empty) as f64 / large.nodes.len() as f64 / held as f64;
    findings.figure(
        PART,
        "resident bytes a held lock and node (64-byte names, 39-byte owners)",
        each,
        "bytes",
    );
    findings.goal_at_most("resident bytes a held lock and node", Some(each), 220.0);
    let last = shares.last().map(|(_, share)| *share);
    findings.goal_at_least("throughput with a million held locks / with a thousand", last, 0.85);
    let plot = Plot::Lines {
        title: "Pairs a second beside held locks, as a share of those beside a thousand".into(),
        x_label: "held locks".into(),
        y_label: "share".into(),
        lines: vec![("tier 2, 3 nodes".into(), shares)],
    };
    findings.plots.push(("held".into(), plot));
    Ok(findings)
}

fn snapshots(options: &Options) -> Result<Findings, String> {
    let held = if options.quick { SNAPSHOT_OF_QUICK } else { SNAPSHOT_OF };
    println!("\nsnapshots of {held} locks under the load of {CLIENTS} clients");
    let binary = options.redfence()?;
    let with =
        Cluster::start(&binary, 3, &["--snapshot-entries", SNAPSHOT_ENTRIES, "--log-keep-entries", "1000"])?;
    let without = Cluster::start(&binary, 3, &["--snapshot-entries", NO_SNAPSHOTS])?;
    progress("taking locks");
    fill(&with, 0, held)?;
    fill(&without, 0, held)?;
    let before = with.snapshots_made();
    let (on, off) = ("with snapshots", "without");
    let targets = vec![load(on, &with)?, load(off, &without)?];
    let rows = alternate("snapshots", CLIENTS, targets, options, SNAPSHOT_TURNS);
    print!("{}", table(&rows));
    let mut findings = Findings { rows, ..Findings::default() };
    let made = with.snapshots_made().saturating_sub(before);
    findings.figure("snapshots", "snapshots made meanwhile by the three nodes", made as f64, "");
    let longest = |target| findings.row("snapshots", target, CLIENTS).map(|row| row.longest_us / 1e3);
    let beyond = longest(on).zip(longest(off)).map(|(on, off)| (on - off).max(0.0));
    if made == 0 {
        eprintln!("  no snapshot was made: nothing can be said of their delay");
    } else {
        findings.goal_at_most(
            "longest operation during snapshots beyond the longest without, ms",
            beyond,
            50.0,
        );
    }
    Ok(findings)
}

/// All nodes killed at once and started again: from the start of the last one to the first grant.
fn cold_restart(options: &Options) -> Result<Findings, String> {
    let held = if options.quick { SNAPSHOT_OF_QUICK } else { SNAPSHOT_OF };
    println!("\ncold restart with {held} held locks");
    let mut cluster = Cluster::start(&options.redfence()?, 3, &[])?;
    fill(&cluster, 0, held)?;
    let mut times_ms = Vec::new();
    for time in 0..RESTARTS {
        cluster.restart_all()?;
        let start = Instant::now();
        let name = format!("after-restart:{time}");
        let addresses = cluster.addresses();
        let is_granted = |address: &SocketAddr| {
            let reply = call(*address, &[b"LOCK.ACQUIRE", name.as_bytes(), b"1000"]);
            reply.is_ok_and(|reply| reply.first() == Some(&b'*') && !resp::is_nil(&reply))
        };
        while !addresses.iter().any(is_granted) {
            if start.elapsed() > STARTS_WITHIN {
                return Err(format!("no grant {} s after a restart of all nodes", STARTS_WITHIN.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times_ms.sort_by(f64::total_cmp);
    let mut findings = Findings::default();
    let median = times_ms[RESTARTS / 2];
    findings.figure(
        PART,
        &format!("all nodes restarted with {held} held locks, first grant, median of {RESTARTS}"),
        median,
        "ms",
    );
    findings.goal_at_most("cold restart with 500,000 locks to the first grant, ms", Some(median), 400.0);
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filler_takes_every_name_of_its_range_once() {
        let mut filler = Filler { next: 10, end: 10 + DEPTH + 3, due: 0, owner: Vec::new() };
        let mut tally = Tally::default();
        let mut asked = 0;
        loop {
            let mut out = Vec::new();
            filler.ask(Instant::now(), &mut out);
            asked += out.windows(12).filter(|some| *some == b"LOCK.ACQUIRE").count();
            let mut then = NextStep::AwaitReply;
            for _ in 0..filler.due {
                then = filler.take(b"*2\r\n:1\r\n:9\r\n", Instant::now(), &mut tally).expect("granted");
            }
            if then == NextStep::MayStop {
                break;
            }
            assert_eq!(then, NextStep::MustContinue);
        }
        assert_eq!((asked as u64, tally.done), (DEPTH + 3, DEPTH + 3));
        assert!(filler.take(b"*-1\r\n", Instant::now(), &mut tally).is_err());
    }
}
