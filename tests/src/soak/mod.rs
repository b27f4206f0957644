//! The design's day in small or in full (`make soak`): a cluster of real processes with many held locks and sessions, under as much load as the
//! machine gives, while nodes are upgraded, killed, paused, restarted one by one, backed up and replaced. Every answer is checked.
//!
//! # Layout
//!
//! - [`load`]: workers that take and release locks; [`sessions`]: sessions that are kept alive; [`held`]: locks held all along
//! - [`operator`]: what is done to the cluster meanwhile
//! - [`report`]: availability by the minute, errors by code, latency, memory
//!
//! # Caveats
//!
//! Clients and nodes share the machine, so latencies are those of a busy machine. Each worker has names of its own: mutual exclusion between
//! clients is what the fault runs check.

pub mod held;
pub mod load;
pub mod operator;
pub mod report;
pub mod sessions;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Options};
use crate::process::allow_open_files;
use report::Report;

/// How large a run is.
#[derive(Clone, Debug)]
pub struct Settings {
    pub nodes: usize,
    pub held_locks: usize,
    pub sessions: usize,
    /// Connections that the sessions are spread over.
    pub connections: usize,
    pub workers: usize,
    /// Requests a worker sends before it reads the answers.
    pub pipeline: usize,
    pub duration: Duration,
    /// How long one step of the operator and the calm after it take, at least.
    pub step: Duration,
    /// The program that the nodes begin with, of a release before: the first step is a rolling upgrade to the one under test.
    pub upgrade_from: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            nodes: 5,
            held_locks: 500_000,
            sessions: 100_000,
            connections: 2_000,
            workers: 8,
            pipeline: 32,
            duration: Duration::from_secs(3_600),
            step: Duration::from_secs(30),
            upgrade_from: None,
        }
    }
}

/// What all threads of a run share.
pub struct Shared {
    begun: Instant,
    stop: AtomicBool,
    /// Client addresses of the members.
    addresses: Mutex<Vec<std::net::SocketAddr>>,
    pub report: Mutex<Report>,
}

impl Shared {
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn minute(&self) -> usize {
        (self.begun.elapsed().as_secs() / 60) as usize
    }

    /// One of the members, another with every number.
    pub fn address(&self, number: usize) -> std::net::SocketAddr {
        let addresses = self.addresses.lock().expect("mutex poisoned");
        addresses[number % addresses.len()]
    }

    pub fn set_addresses(&self, cluster: &Cluster) {
        let members = cluster.nodes.iter().filter(|node| node.runs()).map(|node| node.address).collect();
        *self.addresses.lock().expect("mutex poisoned") = members;
    }

    pub fn report(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.report.lock().expect("mutex poisoned"));
    }

    /// An answer that a correct service cannot give.
    pub fn wrong(&self, text: String) {
        self.report(|report| report.wrong.push(text));
    }
}

/// Ends the other threads, also where the operator panics.
struct StopAtEnd<'a>(&'a Shared);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Runs it all; the report says what came of it.
pub fn run(settings: &Settings) -> Report {
    allow_open_files(settings.connections as u64 * 2 + 5_000);
    let programs = settings.upgrade_from.iter().cycle().take(settings.nodes).cloned().collect();
    let options = Options { programs, ..Options::nodes(settings.nodes) }.flag("--max-clients", "50000");
    let mut cluster = Cluster::start(&options);
    let shared = Arc::new(Shared {
        begun: Instant::now(),
        stop: AtomicBool::new(false),
        addresses: Mutex::default(),
        report: Mutex::default(),
    });
    shared.set_addresses(&cluster);
    let held = held::take(&shared, settings.held_locks);
    shared.report(|report| {
        report.notes.push(format!(
            "{} locks taken in {:.1} s",
            held.fences.len(),
            shared.begun.elapsed().as_secs_f64()
        ));
    });
    std::thread::scope(|scope| {
        for number in 0..settings.workers {
            let shared = &shared;
            scope.spawn(move || load::work(shared, number, settings.pipeline));
        }
        let (sessions_shared, held_shared, held) = (&shared, &shared, &held);
        scope.spawn(move || sessions::keep(sessions_shared, settings.sessions, settings.connections));
        scope.spawn(move || held.look_around(held_shared));
        let _stop = StopAtEnd(&shared);
        operator::work(&shared, &mut cluster, settings);
    });
    held.check_all(&shared);
    operator::note_memory(&shared, &cluster);
    let report = std::mem::take(&mut *shared.report.lock().expect("mutex poisoned"));
    report
}
