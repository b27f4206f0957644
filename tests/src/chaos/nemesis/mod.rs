//! Fault injection: chooses a fault, injects it, keeps it for a while, heals it, and requires that all nodes serve again.
//!
//! # Layout
//!
//! - `processes`: kills, pauses, leadership, membership, clients' connections
//! - `links`: partitions, one way or both, whole or flapping
//! - `machines`: disks, power, clocks

mod links;
mod machines;
mod processes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::environment::Environment;
use super::faults::{FaultKind, InjectedFault};
use super::run_state::RunState;
use super::settings::Settings;
use crate::cluster::{Cluster, Options};
use crate::process::poll_until;
use crate::rng::Rng;

/// Generous: the bound tells working from broken, the report says how long it took.
const SERVES_WITHIN: Duration = Duration::from_secs(30);

pub struct Nemesis {
    pub cluster: Cluster,
    pub environment: Environment,
    run_state: Arc<RunState>,
    rng: Rng,
    kinds: Vec<FaultKind>,
    pause_ms_max: u64,
    pub injected: Vec<InjectedFault>,
    next_id: u64,
}

/// An error means that a fault could not be injected or healed: the run cannot go on.
pub type FaultResult = Result<(), String>;

impl Nemesis {
    pub fn new(settings: &Settings, environment: Environment, run_state: Arc<RunState>) -> Nemesis {
        // Small snapshots, so that they are made and sent all the time; short deadlines, so that clients look elsewhere.
        let mut options = Options::nodes(settings.nodes)
            .flag("--snapshot-entries", "2000")
            .flag("--log-keep-entries", "500")
            .flag("--deadline-ms", "1200");
        options.hosts = environment.hosts();
        if environment.network.is_some() {
            options = options.flag("--protected-mode", "no").with_peer_secret();
        }
        let cluster = Cluster::start(&options);
        for node in &cluster.nodes {
            run_state.add_node(node.id, node.address);
        }
        let kinds = settings.faults.iter().copied().filter(|kind| kind.is_supported(&environment)).collect();
        Nemesis {
            cluster,
            environment,
            run_state,
            rng: Rng::new(settings.seed),
            kinds,
            pause_ms_max: settings.pause_ms_max,
            injected: Vec::new(),
            next_id: settings.nodes as u64 + 1,
        }
    }

    /// Faults until the time is up, everything healed at the end.
    pub fn inject_faults(&mut self, duration: Duration) -> FaultResult {
        let end = Instant::now() + duration;
        let mut deck = Vec::new();
        while Instant::now() < end && !self.kinds.is_empty() {
            self.wait_ms(self.pause_ms_max / 6, self.pause_ms_max);
            if deck.is_empty() {
                deck = self.shuffled();
            }
            let kind = deck.pop().expect("there are kinds of faults");
            self.one(kind)?;
        }
        Ok(())
    }

    /// Every kind once, in random order: even a short run sees most of them.
    fn shuffled(&mut self) -> Vec<FaultKind> {
        let mut kinds = self.kinds.clone();
        for at in (1..kinds.len()).rev() {
            kinds.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        kinds
    }

    fn one(&mut self, kind: FaultKind) -> FaultResult {
        let leader = self.leader()?;
        let followers = self.cluster.followers(leader);
        let follower = self.rng.pick(&followers).copied().unwrap_or(leader);
        let from_ns = self.run_state.now_ns();
        let node = match kind {
            FaultKind::KillLeader => self.kill(&[leader]),
            FaultKind::KillFollower => self.kill(&[follower]),
            FaultKind::KillMajority => self.kill_majority(leader),
            FaultKind::KillAll => self.kill_all(),
            FaultKind::PauseLeader => self.pause(leader, 50, 400),
            FaultKind::PauseFollower => self.pause(follower, 50, 1_500),
            FaultKind::PauseLong => self.pause(leader, 1_500, 4_000),
            FaultKind::Transfer => self.transfer(leader, follower),
            FaultKind::CutClients => self.cut_clients(),
            FaultKind::Storm => self.storm(leader),
            FaultKind::Replace => self.replace(leader, follower),
            FaultKind::IsolateLeader => self.isolate(leader),
            FaultKind::IsolateFollower => self.isolate(follower),
            FaultKind::DeafLeader => self.one_way(leader, true),
            FaultKind::MuteLeader => self.one_way(leader, false),
            FaultKind::Split => self.split(leader),
            FaultKind::Bridge => self.bridge(leader),
            FaultKind::Flap => self.flap(leader),
            FaultKind::SlowSync => self.slow_sync(leader, follower),
            FaultKind::FailSync => self.failing_call(leader, follower, "fdatasync", "error=EIO"),
            FaultKind::FullDisk => self.failing_call(leader, follower, "pwrite64", "error=ENOSPC"),
            FaultKind::PowerCutOne => self.power_cut_one(leader, follower),
            FaultKind::PowerCutAll => self.power_cut(self.ids()),
            FaultKind::WallClock => self.wall_clock(leader, follower),
            FaultKind::OtherClock => self.other_clock(leader, follower),
        }
        .map_err(|error| format!("{}: {error}", kind.name()))?;
        let healed_ns = self.run_state.now_ns();
        let served_ns =
            self.all_serve(healed_ns).map_err(|error| format!("after {}: {error}", kind.name()))?;
        let fault = InjectedFault { kind, node, from_ns, healed_ns, served_ns };
        println!("{}", fault.line());
        self.injected.push(fault);
        Ok(())
    }

    /// All nodes at once, by kill -9, and back on their data.
    pub fn restart_everything(&mut self) -> FaultResult {
        self.kill_all().map(drop)
    }

    /// Waits until clients of every node get locks again; returns when all had.
    pub fn all_serve(&mut self, since_ns: u64) -> Result<u64, String> {
        let served = self.run_state.grants_everywhere_since(since_ns, SERVES_WITHIN);
        if let Some(node) = self.cluster.nodes.iter().find(|node| node.process().exit_status().is_some()) {
            return Err(format!("node {} ended by itself\n{}", node.id, node.process().log_tail()));
        }
        served.ok_or_else(|| format!("some node served nobody for {SERVES_WITHIN:?}\n{}", self.cluster.log()))
    }

    /// Panics the nodes have logged, which nothing else need have noticed.
    pub fn panics(&self) -> Vec<String> {
        let logs = self.cluster.nodes.iter().filter(|node| node.runs()).map(|node| node.process().log());
        let lines = logs.flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>());
        lines.filter(|line| line.contains("panicked at")).take(5).collect()
    }

    fn leader(&self) -> Result<u64, String> {
        let mut leader = None;
        poll_until(SERVES_WITHIN, || {
            leader = self.cluster.agreed_leader();
            leader.is_some()
        });
        leader.ok_or_else(|| format!("no leader for {SERVES_WITHIN:?}\n{}", self.cluster.log()))
    }

    fn ids(&self) -> Vec<u64> {
        self.cluster.nodes.iter().map(|node| node.id).collect()
    }

    /// The index of the node's host in the environment.
    fn host(&self, id: u64) -> usize {
        self.environment.index(&self.cluster.node(id).host)
    }

    /// Mostly the leader: it is where most can go wrong.
    fn either(&mut self, leader: u64, follower: u64) -> u64 {
        if self.rng.per_mille(600) {
            leader
        } else {
            follower
        }
    }

    /// Sleeps for a random time; now and then all client connections are cut halfway.
    fn wait_ms(&mut self, low: u64, high: u64) {
        let wait = Duration::from_millis(self.rng.between(low, high));
        if self.rng.per_mille(100) {
            std::thread::sleep(wait / 2);
            self.run_state.cut(0);
            std::thread::sleep(wait / 2);
        } else {
            std::thread::sleep(wait);
        }
    }
}

impl InjectedFault {
    fn line(&self) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        format!(
            "{:9.1} s  {:<17} node {:<3} {:6.0} ms, all served {:5.0} ms later",
            ms(self.from_ns) / 1e3,
            self.kind.name(),
            self.node,
            ms(self.healed_ns - self.from_ns),
            ms(self.served_ns - self.healed_ns)
        )
    }
}
