//! Does the faults: draws one, injects it, keeps it up for a while, heals it, and demands that all nodes serve again.
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

use super::board::Board;
use super::faults::{Injected, Kind};
use super::ground::Ground;
use super::settings::Settings;
use crate::cluster::{Cluster, Options};
use crate::process::poll_until;
use crate::rng::Rng;

/// Generous: the bound tells working from broken, the report says how long it took.
const SERVES_WITHIN: Duration = Duration::from_secs(30);

pub struct Nemesis {
    pub cluster: Cluster,
    pub ground: Ground,
    board: Arc<Board>,
    rng: Rng,
    kinds: Vec<Kind>,
    pause_ms_max: u64,
    pub injected: Vec<Injected>,
    next_id: u64,
}

/// A fault that could not be done or healed: the run cannot go on.
pub type Done = Result<(), String>;

impl Nemesis {
    pub fn new(settings: &Settings, ground: Ground, board: Arc<Board>) -> Nemesis {
        // Small snapshots, so that they are made and sent all the time; short deadlines, so that clients look elsewhere.
        let mut options = Options::nodes(settings.nodes)
            .flag("--snapshot-entries", "2000")
            .flag("--log-keep-entries", "500")
            .flag("--deadline-ms", "1200");
        options.hosts = ground.hosts();
        if ground.network.is_some() {
            options = options.flag("--protected-mode", "no");
        }
        let cluster = Cluster::start(&options);
        for node in &cluster.nodes {
            board.show(node.id, node.address);
        }
        let kinds = settings.faults.iter().copied().filter(|kind| kind.can_be_done(&ground)).collect();
        Nemesis {
            cluster,
            ground,
            board,
            rng: Rng::new(settings.seed),
            kinds,
            pause_ms_max: settings.pause_ms_max,
            injected: Vec::new(),
            next_id: settings.nodes as u64 + 1,
        }
    }

    /// Faults until the time is up, everything healed at the end.
    pub fn rage(&mut self, duration: Duration) -> Done {
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

    /// Every kind once, in a drawn order: even a short run sees most of them.
    fn shuffled(&mut self) -> Vec<Kind> {
        let mut kinds = self.kinds.clone();
        for at in (1..kinds.len()).rev() {
            kinds.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        kinds
    }

    fn one(&mut self, kind: Kind) -> Done {
        let leader = self.leader()?;
        let followers = self.cluster.followers(leader);
        let follower = self.rng.pick(&followers).copied().unwrap_or(leader);
        let from_ns = self.board.now_ns();
        let node = match kind {
            Kind::KillLeader => self.kill(&[leader]),
            Kind::KillFollower => self.kill(&[follower]),
            Kind::KillMajority => self.kill_majority(leader),
            Kind::KillAll => self.kill_all(),
            Kind::PauseLeader => self.pause(leader, 50, 400),
            Kind::PauseFollower => self.pause(follower, 50, 1_500),
            Kind::PauseLong => self.pause(leader, 1_500, 4_000),
            Kind::Transfer => self.transfer(leader, follower),
            Kind::CutClients => self.cut_clients(),
            Kind::Storm => self.storm(leader),
            Kind::Replace => self.replace(leader, follower),
            Kind::IsolateLeader => self.isolate(leader),
            Kind::IsolateFollower => self.isolate(follower),
            Kind::DeafLeader => self.one_way(leader, true),
            Kind::MuteLeader => self.one_way(leader, false),
            Kind::Split => self.split(leader),
            Kind::Bridge => self.bridge(leader),
            Kind::Flap => self.flap(leader),
            Kind::SlowSync => self.slow_sync(leader, follower),
            Kind::FailSync => self.failing_call(leader, follower, "fdatasync", "error=EIO"),
            Kind::FullDisk => self.failing_call(leader, follower, "pwrite64", "error=ENOSPC"),
            Kind::PowerCutOne => self.power_cut_one(leader, follower),
            Kind::PowerCutAll => self.power_cut(self.ids()),
            Kind::WallClock => self.wall_clock(leader, follower),
            Kind::OtherClock => self.other_clock(leader, follower),
        }
        .map_err(|error| format!("{}: {error}", kind.name()))?;
        let healed_ns = self.board.now_ns();
        let served_ns =
            self.all_serve(healed_ns).map_err(|error| format!("after {}: {error}", kind.name()))?;
        let fault = Injected { kind, node, from_ns, healed_ns, served_ns };
        println!("{}", fault.line());
        self.injected.push(fault);
        Ok(())
    }

    /// All nodes at once, by kill -9, and back on their data.
    pub fn restart_everything(&mut self) -> Done {
        self.kill_all().map(drop)
    }

    /// Waits until clients of every node get locks again; answers when they all had.
    pub fn all_serve(&mut self, since_ns: u64) -> Result<u64, String> {
        let served = self.board.grants_everywhere_since(since_ns, SERVES_WITHIN);
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

    /// Where the node runs, as the ground counts.
    fn host(&self, id: u64) -> usize {
        self.ground.index(&self.cluster.node(id).host)
    }

    /// Mostly the leader: it is where most can go wrong.
    fn either(&mut self, leader: u64, follower: u64) -> u64 {
        if self.rng.per_mille(600) {
            leader
        } else {
            follower
        }
    }

    /// A while, within which clients may lose their connections, too.
    fn wait_ms(&mut self, low: u64, high: u64) {
        let wait = Duration::from_millis(self.rng.between(low, high));
        if self.rng.per_mille(100) {
            std::thread::sleep(wait / 2);
            self.board.cut(0);
            std::thread::sleep(wait / 2);
        } else {
            std::thread::sleep(wait);
        }
    }
}

impl Injected {
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
