//! Connections between living nodes that are closed, refused and held up again and again: how many elections that causes, in this build and
//! in another (`--other`) at the same time, with the same faults at the same moments.
//!
//! A burst is aimed at the leader's port, at a follower's, or at all of them, which cuts the leader off in both directions. No pause is as
//! long as an election time-out: a leader that lives should stay one.

use crate::connection::BlockingConnection;
use crate::options::Options;
use crate::report::{progress, Findings};
use crate::resp;
use crate::servers::redfence::{leader_at, term_at, Cluster};
use crate::servers::site::Site;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PART: &str = "flapping";
const NODES: usize = 3;
const LENGTH: Duration = Duration::from_secs(3600);
const LENGTH_QUICK: Duration = Duration::from_secs(20);
const SECONDS_A_DAY: f64 = 86_400.0;
const PATIENCE: Duration = Duration::from_secs(2);
/// Between the pairs of a client: the nodes have something to replicate, and the machine has time for both clusters.
const PAIR_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug)]
enum Fault {
    Closed,
    Refused,
    Held,
}

#[derive(Clone, Copy, Debug)]
enum Aim {
    Leader,
    Follower,
    Everywhere,
}

const BURSTS: [(&str, Fault, Aim); 8] = [
    ("connections to the leader closed", Fault::Closed, Aim::Leader),
    ("connections to a follower closed", Fault::Closed, Aim::Follower),
    ("all connections closed", Fault::Closed, Aim::Everywhere),
    ("the leader's port refuses", Fault::Refused, Aim::Leader),
    ("a follower's port refuses", Fault::Refused, Aim::Follower),
    ("connections to the leader held up", Fault::Held, Aim::Leader),
    ("connections to a follower held up", Fault::Held, Aim::Follower),
    ("all connections held up", Fault::Held, Aim::Everywhere),
];

/// One build under the faults.
struct Side {
    name: &'static str,
    cluster: Cluster,
    load: Load,
    first_term: i64,
    /// Elections by kind of burst.
    elections: [i64; BURSTS.len()],
}

#[derive(Clone, Default)]
struct Load {
    grants: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
}

impl Side {
    fn start(name: &'static str, binary: &std::path::Path) -> Result<Side, String> {
        let cluster = Cluster::start_at(binary, NODES, &[], Site::flapping())?;
        let load = Load::default();
        for address in cluster.addresses() {
            let load = load.clone();
            std::thread::spawn(move || {
                while !load.stopped.load(Ordering::Relaxed) && pairs(address, &load).is_err() {}
            });
        }
        let first_term = newest_term(&cluster);
        Ok(Side { name, cluster, load, first_term, elections: [0; BURSTS.len()] })
    }

    /// The nodes whose ports a burst is aimed at.
    fn aimed_at(&self, aim: Aim, number: u64) -> Vec<usize> {
        let leader = self.cluster.addresses().into_iter().find_map(leader_at).map_or(0, |leader| leader - 1);
        match aim {
            Aim::Leader => vec![leader],
            Aim::Follower => vec![(leader + 1 + number as usize % (NODES - 1)) % NODES],
            Aim::Everywhere => (0..NODES).collect(),
        }
    }

    fn apply(&self, fault: Fault, targets: &[usize], on: bool) {
        for at in targets {
            self.cluster.with_flapping_relay(*at, |relay| match fault {
                Fault::Closed if on => relay.close_all(),
                Fault::Closed => {}
                Fault::Refused => relay.refuse(on),
                Fault::Held => relay.hold(on),
            });
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.load.stopped.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let length = if options.quick { LENGTH_QUICK } else { LENGTH };
    let mut sides = vec![Side::start("this build", &options.redfence()?)?];
    if let Some(other) = &options.other {
        sides.push(Side::start("the other build", other)?);
    }
    println!("\nflapping: {} bursts of faults in turn, {} minutes", BURSTS.len(), length.as_secs() / 60);
    let began = Instant::now();
    let mut bursts = 0;
    while began.elapsed() < length {
        progress(&format!(
            "flapping: burst {bursts}, {} of {} s",
            began.elapsed().as_secs(),
            length.as_secs()
        ));
        burst(&mut sides, bursts);
        bursts += 1;
    }
    progress("");
    let days = began.elapsed().as_secs_f64() / SECONDS_A_DAY;
    let mut findings = Findings::default();
    findings.figure(PART, "bursts", bursts as f64, "");
    let mut a_day = Vec::new();
    for side in &sides {
        let elections = newest_term(&side.cluster) - side.first_term;
        a_day.push(elections as f64 / days);
        findings.figure(PART, &format!("{}: elections", side.name), elections as f64, "");
        for ((kind, _, _), count) in BURSTS.iter().zip(side.elections).filter(|(_, count)| *count > 0) {
            findings.figure(PART, &format!("{}: elections, {kind}", side.name), count as f64, "");
        }
        let grants = side.load.grants.load(Ordering::Relaxed);
        findings.figure(PART, &format!("{}: grants", side.name), grants as f64, "");
        findings.figure(PART, &format!("{}: elections a day", side.name), *a_day.last().unwrap_or(&0.0), "");
    }
    if let [ours, theirs] = a_day[..] {
        findings.goal_at_most(
            "elections a day under flapping connections, this build and the other",
            Some(ours),
            theirs,
        );
    }
    Ok(findings)
}

fn burst(sides: &mut [Side], number: u64) {
    let at = number as usize % BURSTS.len();
    let (_, fault, aim) = BURSTS[at];
    let before: Vec<i64> = sides.iter().map(|side| newest_term(&side.cluster)).collect();
    let targets: Vec<Vec<usize>> =
        sides.iter().map(|side| side.aimed_at(aim, number / BURSTS.len() as u64)).collect();
    for time in 0..between(number, 3, 8) {
        let salt = number * 16 + time;
        for on in [true, false] {
            for (side, targets) in sides.iter().zip(&targets) {
                side.apply(fault, targets, on);
            }
            let pause_ms = if on { between(salt, 20, 200) } else { between(salt + 8, 10, 150) };
            std::thread::sleep(Duration::from_millis(pause_ms));
        }
    }
    // Whoever campaigns because of it has done so by then.
    std::thread::sleep(Duration::from_millis(between(number, 700, 1_500)));
    for (side, before) in sides.iter_mut().zip(before) {
        side.elections[at] += newest_term(&side.cluster) - before;
    }
}

fn newest_term(cluster: &Cluster) -> i64 {
    cluster.addresses().into_iter().filter_map(term_at).max().unwrap_or(0)
}

/// A number in the range that is always the same for the same `salt`.
fn between(salt: u64, low: u64, high: u64) -> u64 {
    let mixed = (salt + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    low + (mixed >> 33) % (high - low + 1)
}

fn pairs(address: SocketAddr, load: &Load) -> std::io::Result<()> {
    // A node without a leader refuses; asked without a pause it would do nothing else.
    std::thread::sleep(PAIR_PAUSE);
    let mut connection = BlockingConnection::open(address, PATIENCE)?;
    let name = format!("flapping:{address}");
    while !load.stopped.load(Ordering::Relaxed) {
        let reply = connection.ask(&[b"LOCK.ACQUIRE", name.as_bytes(), b"1000"])?;
        if let Some(fence) = resp::integers(&reply).next().filter(|_| reply.first() == Some(&b'*')) {
            load.grants.fetch_add(1, Ordering::Relaxed);
            connection.ask(&[b"LOCK.RELEASE", name.as_bytes(), fence.to_string().as_bytes()])?;
        }
        std::thread::sleep(PAIR_PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_salt_gives_the_same_number_of_the_range() {
        for salt in 0..1_000 {
            assert!((3..=8).contains(&between(salt, 3, 8)));
            assert_eq!(between(salt, 3, 8), between(salt, 3, 8));
        }
        assert!((0..100).any(|salt| between(salt, 3, 8) != between(0, 3, 8)));
    }
}
