//! Fault runs: a cluster of real processes, real clients over real sockets, faults drawn from a seed, every answer checked.
//!
//! The load, the faults and the checker are a thread each. The load never stops while faults come and go; its history goes to
//! the checker in pieces ([`book`]). At the end everything is healed, all nodes must serve, locks taken before the first fault
//! must still be held, all nodes must show the same, and the report says what was done and what clients saw of it.
//!
//! # Layout
//!
//! - [`settings`]: the command line; [`board`]: what load and faults know of each other
//! - [`clients`]: the load; [`wire`], [`replies`]: one connection of it; [`book`]: what is written down
//! - [`ground`]: networks, disks and clocks that faults can be done to; [`faults`], [`nemesis`]: the faults
//! - [`verdict`]: the checker's thread; [`anchors`]: locks that must outlive everything; [`replicas`]: all disks hold the same
//! - [`tier1`]: crashes and power cuts of a Redis with the module
//! - [`report`], [`timeline`]: figures, and a picture
//!
//! # Caveats
//!
//! The seed fixes the order of faults and what each client wants, not how the machine's threads interleave: a failure is
//! kept as its history, and repeated by running its seed again, perhaps more than once.

pub mod anchors;
pub mod board;
pub mod book;
pub mod clients;
pub mod faults;
pub mod ground;
pub mod nemesis;
pub mod replicas;
pub mod replies;
pub mod report;
pub mod settings;
pub mod tier1;
pub mod timeline;
pub mod verdict;
pub mod wire;

use std::sync::mpsc::sync_channel;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anchors::Anchors;
use board::Board;
use ground::Ground;
use nemesis::Nemesis;
use report::Report;
use settings::Settings;
use verdict::Verdict;

/// Finished epochs that wait for the checker. One more, and the load waits.
const EPOCHS_WAITING_MAX: usize = 4;
/// The load goes on this long after the last fault, with nothing wrong.
const CALM: Duration = Duration::from_secs(2);
/// Before the first fault: the load gets going.
const WARM_UP: Duration = Duration::from_millis(1_500);

/// One run from start to end. Must be called before any other thread is started.
pub fn run(settings: &Settings) -> Report {
    let ground = Ground::lay(settings.nodes);
    for missing in &ground.missing {
        println!("left out: {missing}");
    }
    let board = Arc::new(Board::default());
    let mut nemesis = Nemesis::new(settings, ground, Arc::clone(&board));
    let (sender, receiver) = sync_channel(EPOCHS_WAITING_MAX);
    let out = settings.out.clone();
    let checker = std::thread::spawn(move || Verdict::of(receiver, &out));
    let load = {
        let (settings, board) = (settings.clone(), Arc::clone(&board));
        std::thread::spawn(move || clients::run(&settings, board, sender))
    };
    let started = Instant::now();
    let raged = rage(settings, &board, &mut nemesis);
    board.stop();
    let seen = load.join().expect("the load does not panic");
    let verdict = checker.join().expect("the checker does not panic");
    let panics = nemesis.panics();
    let compared = raged
        .and_then(|()| anchors::nothing_is_stuck(&nemesis.cluster))
        .and_then(|()| replicas::compare(&mut nemesis.cluster));
    if let Ok(line) = &compared {
        println!("{line}");
    }
    let mut failures: Vec<String> = compared.err().into_iter().collect();
    failures.extend(board.surprises());
    failures.extend(panics);
    Report::new(settings, &nemesis, seen, verdict, failures, started.elapsed())
}

fn rage(settings: &Settings, board: &Board, nemesis: &mut Nemesis) -> Result<(), String> {
    let anchors = Anchors::take(&nemesis.cluster)?;
    std::thread::sleep(WARM_UP);
    nemesis.all_serve(0)?;
    nemesis.rage(settings.duration)?;
    std::thread::sleep(CALM);
    nemesis.all_serve(board.now_ns())?;
    // Once more from their disks alone: snapshots of everything that was built.
    nemesis.restart_everything()?;
    nemesis.all_serve(board.now_ns())?;
    anchors.are_held(&nemesis.cluster)?;
    anchors.are_the_same_everywhere(&nemesis.cluster)
}
