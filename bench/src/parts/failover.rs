//! The leader fails, twenty times over in each of three ways: how long nobody gets a lock. Default settings everywhere.
//!
//! A few clients take and release locks without a pause, each on a node of its own; one whose node is gone, refuses, or does not answer
//! in time goes to the next. The gap is the longest time between two grants of any of them around the fault.

use crate::connection::BlockingConnection;
use crate::etcd::{EtcdClient, EtcdMethod};
use crate::load_generator::Tally;
use crate::options::Options;
use crate::report::{progress, Findings};
use crate::resp;
use crate::servers::etcd::Etcd;
use crate::servers::redfence::Cluster;
use crate::servers::site::Site;
use crate::servers::Process;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TIMES: usize = 20;
const TIMES_QUICK: usize = 2;
const NODES: usize = 3;
const CLIENTS: usize = 6;
/// Before a fault all is well for this long, and after it grants must have come for this long.
const CALM: Duration = Duration::from_millis(700);
const GAP_MAX: Duration = Duration::from_secs(20);
/// A client that gets no answer asks another node. etcd's own limit is seven seconds; this is kinder to it.
const PATIENCE: Duration = Duration::from_millis(300);
const PART: &str = "failover";

/// What happens to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// SIGKILL: its sockets are closed at once.
    Killed,
    /// SIGSTOP: its sockets stay open, and nobody answers.
    Stopped,
    /// The cable of its host is pulled: packets are lost.
    Cut,
}

impl Fault {
    const ALL: [Fault; 3] = [Fault::Killed, Fault::Stopped, Fault::Cut];

    fn name(self) -> &'static str {
        match self {
            Fault::Killed => "killed",
            Fault::Stopped => "stopped",
            Fault::Cut => "cut off",
        }
    }

    /// The longest median gap asked for, in milliseconds.
    fn goal_ms(self) -> f64 {
        match self {
            Fault::Killed => 60.0,
            Fault::Stopped | Fault::Cut => 600.0,
        }
    }

    /// Nodes have hosts of their own only where it needs them: that takes rights.
    fn site(self) -> Result<Site, String> {
        match self {
            Fault::Killed | Fault::Stopped => Ok(Site::Together),
            Fault::Cut => Site::hosts(NODES),
        }
    }
}

/// What the two systems have in common here.
trait Servers {
    fn await_leader(&self) -> Result<usize, String>;
    fn process(&mut self, at: usize) -> &mut Process;
    fn site(&self) -> &Site;
    fn restart(&mut self, at: usize) -> Result<(), String>;

    fn hurt(&mut self, at: usize, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Killed => self.process(at).kill(),
            Fault::Stopped => self.process(at).pause(true),
            Fault::Cut => self.site().set_cable(at, false)?,
        }
        Ok(())
    }

    fn heal(&mut self, at: usize, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Killed => self.restart(at)?,
            Fault::Stopped => self.process(at).pause(false),
            Fault::Cut => self.site().set_cable(at, true)?,
        }
        Ok(())
    }
}

impl Servers for Cluster {
    fn await_leader(&self) -> Result<usize, String> {
        Cluster::await_leader(self)
    }

    fn process(&mut self, at: usize) -> &mut Process {
        &mut self.nodes[at].process
    }

    fn site(&self) -> &Site {
        &self.site
    }

    fn restart(&mut self, at: usize) -> Result<(), String> {
        Cluster::restart(self, at)
    }
}

impl Servers for Etcd {
    fn await_leader(&self) -> Result<usize, String> {
        Etcd::await_leader(self)
    }

    fn process(&mut self, at: usize) -> &mut Process {
        &mut self.processes[at]
    }

    fn site(&self) -> &Site {
        &self.site
    }

    fn restart(&mut self, at: usize) -> Result<(), String> {
        Etcd::restart(self, at)
    }
}

/// Grants of all clients since the last look.
#[derive(Clone, Default)]
struct Grants(Arc<Mutex<Vec<Instant>>>);

impl Grants {
    fn note(&self) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(Instant::now());
    }

    fn forget(&self) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
    }

    /// Until grants have come for a while again; then the longest time between two.
    fn await_gap(&self, hurt_at: Instant) -> Result<Duration, String> {
        while hurt_at.elapsed() < GAP_MAX {
            std::thread::sleep(Duration::from_millis(20));
            let seen = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
            if let Some(gap) = gap_once_calm(&seen, hurt_at, Instant::now()) {
                return Ok(gap);
            }
        }
        Err(format!("no grant for {} s after a fault", GAP_MAX.as_secs()))
    }
}

/// The longest time between two grants around the fault, once they have come steadily for [`CALM`] after it.
fn gap_once_calm(grants: &[Instant], hurt_at: Instant, now: Instant) -> Option<Duration> {
    let mut sorted = grants.to_vec();
    sorted.sort_unstable();
    let around = sorted.windows(2).filter(|pair| pair[1] > hurt_at);
    let (gap, ended_at) = around.map(|pair| (pair[1] - pair[0], pair[1])).max()?;
    let last = *sorted.last()?;
    let is_calm = now > ended_at + CALM && now - last < CALM / 2 && now > hurt_at + 2 * CALM;
    is_calm.then_some(gap)
}

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let mut findings = Findings::default();
    let times = if options.quick { TIMES_QUICK } else { TIMES };
    for fault in Fault::ALL {
        println!("\nfailover: the leader is {}, {times} times", fault.name());
        let ours = match redfence(options, fault, times) {
            // Without the rights to set up hosts, the other faults still count.
            Err(reason) if fault == Fault::Cut => {
                eprintln!("  left out: {reason}");
                continue;
            }
            found => found?,
        };
        let median = tell(&mut findings, &format!("tier 2, 3 nodes, leader {}", fault.name()), ours);
        let goal = format!("failover gap of tier 2, leader {}, median of {times}, ms", fault.name());
        findings.goal_at_most(&goal, Some(median), fault.goal_ms());
        match etcd(options, fault, times) {
            Ok(theirs) => {
                tell(&mut findings, &format!("etcd, 3 nodes, leader {}", fault.name()), theirs);
            }
            Err(reason) => eprintln!("  etcd is left out: {reason}"),
        }
    }
    Ok(findings)
}

/// The gaps of as many faults.
fn gaps(
    servers: &mut impl Servers,
    grants: &Grants,
    fault: Fault,
    times: usize,
) -> Result<Vec<Duration>, String> {
    let mut gaps = Vec::new();
    for time in 1..=times {
        progress(&format!("failover: {} {time} of {times}", fault.name()));
        let leader = servers.await_leader()?;
        std::thread::sleep(CALM);
        grants.forget();
        std::thread::sleep(CALM / 4);
        let hurt_at = Instant::now();
        servers.hurt(leader, fault)?;
        let gap = grants.await_gap(hurt_at);
        servers.heal(leader, fault)?;
        gaps.push(gap?);
    }
    progress("");
    Ok(gaps)
}

fn tell(findings: &mut Findings, who: &str, mut gaps: Vec<Duration>) -> f64 {
    gaps.sort_unstable();
    let ms = |at: usize| gaps[at].as_secs_f64() * 1e3;
    let median = (ms((gaps.len() - 1) / 2) + ms(gaps.len() / 2)) / 2.0;
    findings.figure(PART, &format!("{who}, shortest gap"), ms(0), "ms");
    findings.figure(PART, &format!("{who}, median gap"), median, "ms");
    findings.figure(PART, &format!("{who}, longest gap"), ms(gaps.len() - 1), "ms");
    median
}

fn redfence(options: &Options, fault: Fault, times: usize) -> Result<Vec<Duration>, String> {
    let mut cluster = Cluster::start_at(&options.redfence()?, NODES, &[], fault.site()?)?;
    let (grants, stop) = (Grants::default(), Arc::new(AtomicBool::new(false)));
    let addresses = cluster.addresses();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (addresses, grants, stop) = (addresses.clone(), grants.clone(), Arc::clone(&stop));
            std::thread::spawn(move || pairs_until(&addresses, number, &grants, &stop))
        })
        .collect();
    let found = gaps(&mut cluster, &grants, fault, times);
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        let _ = client.join();
    }
    found
}

/// One client with a blocking socket.
fn pairs_until(addresses: &[SocketAddr], number: usize, grants: &Grants, stop: &AtomicBool) {
    let mut at = number;
    let mut attempt = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let address = addresses[at % addresses.len()];
        if pairs_on(address, number, &mut attempt, grants, stop).is_err() {
            at += 1;
            // A node that is not there answers at once; asking it without a pause would only take the others' time.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn pairs_on(
    address: SocketAddr,
    number: usize,
    attempt: &mut u64,
    grants: &Grants,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let mut connection = BlockingConnection::open(address, PATIENCE)?;
    while !stop.load(Ordering::Relaxed) {
        *attempt += 1;
        // A new name each time: whatever became of the last attempt is in nobody's way.
        let name = format!("failover:{number}:{attempt}");
        let reply = connection.ask(&[b"LOCK.ACQUIRE", name.as_bytes(), b"10000"])?;
        let fence = resp::integers(&reply).next().filter(|_| reply.first() == Some(&b'*'));
        let Some(fence) = fence else { return Err(std::io::Error::other(resp::shown(&reply))) };
        grants.note();
        connection.ask(&[b"LOCK.RELEASE", name.as_bytes(), fence.to_string().as_bytes()])?;
    }
    Ok(())
}

fn etcd(options: &Options, fault: Fault, times: usize) -> Result<Vec<Duration>, String> {
    let mut etcd = Etcd::start_at(&options.etcd(), fault.site()?)?;
    let (grants, stop) = (Grants::default(), Arc::new(AtomicBool::new(false)));
    let addresses = etcd.addresses.clone();
    let load = {
        let (grants, stop) = (grants.clone(), Arc::clone(&stop));
        std::thread::spawn(move || etcd_clients(&addresses, &grants, &stop))
    };
    let found = gaps(&mut etcd, &grants, fault, times);
    stop.store(true, Ordering::Relaxed);
    let _ = load.join();
    found
}

fn etcd_clients(addresses: &[SocketAddr], grants: &Grants, stop: &Arc<AtomicBool>) {
    let Ok(runtime) = crate::etcd::runtime() else { return };
    runtime.block_on(async {
        let mut running = tokio::task::JoinSet::new();
        for number in 0..CLIENTS {
            let (addresses, grants, stop) = (addresses.to_vec(), grants.clone(), Arc::clone(stop));
            running.spawn(async move {
                let mut at = number;
                while !stop.load(Ordering::Relaxed) {
                    let _ = etcd_pairs(addresses[at % addresses.len()], number, &grants, &stop).await;
                    at += 1;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
        }
        while running.join_next().await.is_some() {}
    });
}

async fn etcd_pairs(
    address: SocketAddr,
    number: usize,
    grants: &Grants,
    stop: &AtomicBool,
) -> Result<(), String> {
    let patient = |_| "no answer in time".to_string();
    let connecting = async {
        let channel = crate::etcd::channel(address).await?;
        EtcdClient::new(channel, EtcdMethod::Transaction, number).await
    };
    let mut client = tokio::time::timeout(PATIENCE, connecting).await.map_err(patient)??;
    while !stop.load(Ordering::Relaxed) {
        client.rename();
        let mut tally = Tally::default();
        let noted = || grants.note();
        tokio::time::timeout(PATIENCE, client.pair_by_transaction(&mut tally, noted))
            .await
            .map_err(patient)??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_the_longest_pause_around_the_fault() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        // A pause before the fault does not count; the one around it does.
        let mut grants = vec![at(0), at(500), at(990), at(1_400)];
        grants.extend((1..200).map(|step| at(1_400 + step * 10)));
        let now = at(3_395);
        assert_eq!(gap_once_calm(&grants, at(1_000), now), Some(Duration::from_millis(410)));
        // Not yet calm.
        assert_eq!(gap_once_calm(&grants[..8], at(1_000), at(1_450)), None);
        // Grants have stopped again.
        assert_eq!(gap_once_calm(&grants, at(1_000), at(9_000)), None);
        assert_eq!(gap_once_calm(&[], at(1_000), now), None);
    }
}
