//! Fault runs: a cluster of real processes, real clients over real sockets, faults chosen by a seed, every reply checked.
//!
//! Load, fault injection and checker run on a thread each. The load never stops while faults come and go; its history goes to
//! the checker in pieces ([`recorder`]). At the end everything is healed, all nodes must serve, locks taken before the first fault
//! must still be held, all nodes must show the same, and the report says what was done and what clients saw of it.
//!
//! # Layout
//!
//! - [`settings`]: the command line; [`run_state`]: state shared by load and faults
//! - [`clients`]: the load; [`connection`], [`replies`]: one connection of it; [`recorder`]: the history
//! - [`environment`]: networks, disks and clocks with faults; [`faults`], [`nemesis`]: the faults
//! - [`epoch_checker`]: the checker's thread; [`long_held_locks`]: locks held through all faults; [`replicas`]: equality of all disks
//! - [`tier1`]: crashes and power cuts of a Redis with the module
//! - [`report`], [`timeline`]: figures, and a picture
//!
//! # Caveats
//!
//! The seed fixes the order of faults and the requests of each client, not how threads interleave: the history of a failure
//! is kept, and its seed may have to be run more than once to reproduce it.

pub mod clients;
pub mod connection;
pub mod environment;
pub mod epoch_checker;
pub mod faults;
pub mod long_held_locks;
pub mod nemesis;
pub mod recorder;
pub mod replicas;
pub mod replies;
pub mod report;
pub mod run_state;
pub mod settings;
pub mod tier1;
pub mod timeline;

use std::sync::mpsc::sync_channel;
use std::sync::Arc;
use std::time::{Duration, Instant};

use environment::Environment;
use epoch_checker::CheckSummary;
use long_held_locks::LongHeldLocks;
use nemesis::Nemesis;
use report::Report;
use run_state::RunState;
use settings::Settings;

/// Finished epochs queued for the checker. When the queue is full, the load waits.
const EPOCHS_WAITING_MAX: usize = 4;
/// How long the load goes on after the last fault.
const CALM: Duration = Duration::from_secs(2);
/// Load without faults before the first one.
const WARM_UP: Duration = Duration::from_millis(1_500);

/// One run from start to end. Must be called before any other thread is started.
pub fn run(settings: &Settings) -> Report {
    let environment = Environment::set_up(settings.nodes);
    environment.note_missing();
    let run_state = Arc::new(RunState::default());
    let mut nemesis = Nemesis::new(settings, environment, Arc::clone(&run_state));
    let (sender, receiver) = sync_channel(EPOCHS_WAITING_MAX);
    let out = settings.out.clone();
    let checker = std::thread::spawn(move || CheckSummary::of(receiver, &out));
    let load = {
        let (settings, run_state) = (settings.clone(), Arc::clone(&run_state));
        std::thread::spawn(move || clients::run(&settings, run_state, sender))
    };
    let started = Instant::now();
    let faults_result = inject_faults(settings, &run_state, &mut nemesis);
    run_state.stop();
    let seen = load.join().expect("the load does not panic");
    let summary = checker.join().expect("the checker does not panic");
    let panics = nemesis.panics();
    let compared = faults_result
        .and_then(|()| long_held_locks::nothing_is_stuck(&nemesis.cluster))
        .and_then(|()| replicas::compare(&mut nemesis.cluster));
    if let Ok(line) = &compared {
        println!("{line}");
    }
    let mut failures: Vec<String> = compared.err().into_iter().collect();
    failures.extend(run_state.unexpected());
    failures.extend(panics);
    Report::new(settings, &nemesis, seen, summary, failures, started.elapsed())
}

fn inject_faults(settings: &Settings, run_state: &RunState, nemesis: &mut Nemesis) -> Result<(), String> {
    let long_held = LongHeldLocks::take(&nemesis.cluster)?;
    std::thread::sleep(WARM_UP);
    nemesis.all_serve(0)?;
    nemesis.inject_faults(settings.duration)?;
    std::thread::sleep(CALM);
    nemesis.all_serve(run_state.now_ns())?;
    // Once more from their disks alone: snapshots of everything that was built.
    nemesis.restart_everything()?;
    nemesis.all_serve(run_state.now_ns())?;
    long_held.are_held(&nemesis.cluster)?;
    long_held.are_the_same_everywhere(&nemesis.cluster)
}
