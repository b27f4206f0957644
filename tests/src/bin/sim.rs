//! `sim`: runs the simulator over seeds and says what came of it.
//!
//! ```text
//! sim                      a thousand seeds
//! sim --seed 7             one seed, with everything that went wrong
//! sim --seed 7 --tell      the same, line by line
//! sim --seeds 0..10000     many, on all cores
//! sim --seeds 0..500 --twice   each two times: both runs must be the same
//! sim --mutants            every planted bug, and the first seed that finds it (build with --features mutants)
//! sim --mutants --only A,B those alone
//! ```

use redfence_tests::rng::Rng;
use redfence_tests::sim::plan::Plan;
use redfence_tests::sim::{run, Report};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Instant;

// Small records come and go all the time: a fifth less time than with the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Wanted {
    seeds: Range<u64>,
    threads: usize,
    /// Go on after a failure.
    all: bool,
    loud: bool,
    trace: bool,
    twice: bool,
    mutants: bool,
    /// Names of planted bugs; empty: all.
    only: Vec<String>,
}

fn wanted() -> Result<Wanted, String> {
    let mut wanted = Wanted {
        seeds: 0..1_000,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        all: false,
        loud: false,
        trace: false,
        twice: false,
        mutants: false,
        only: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--seed" => {
                let seed: u64 = value()?.parse().map_err(|_| "--seed needs a number".to_string())?;
                wanted.seeds = seed..seed + 1;
                wanted.loud = true;
            }
            "--seeds" => {
                let text = value()?;
                let ends = text
                    .split_once("..")
                    .and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
                let (low, high) = ends.ok_or_else(|| "--seeds needs a range such as 0..1000".to_string())?;
                wanted.seeds = low..high;
            }
            "--threads" => {
                wanted.threads = value()?.parse().map_err(|_| "--threads needs a number".to_string())?;
            }
            "--mutants" => wanted.mutants = true,
            "--only" => wanted.only = value()?.split(',').map(str::to_string).collect(),
            "--tell" => wanted.trace = true,
            "--twice" => wanted.twice = true,
            "--all" => wanted.all = true,
            _ => return Err(format!("unknown word {word}; see the head of tests/src/bin/sim.rs")),
        }
    }
    Ok(wanted)
}

#[derive(Default)]
struct Totals {
    runs: u64,
    failed: Vec<Report>,
    simulated_ms: u64,
    happened: u64,
    operations: u64,
    unknown: u64,
    grants: u64,
    entries: u64,
}

impl Totals {
    fn add(&mut self, report: Report) {
        self.runs += 1;
        self.simulated_ms += report.simulated_ms;
        self.happened += report.happened;
        self.operations += report.operations;
        self.unknown += report.unknown;
        self.grants += report.grants;
        self.entries += report.entries;
        if !report.failures.is_empty() {
            self.failed.push(report);
        }
    }
}

fn main() -> ExitCode {
    let wanted = match wanted() {
        Ok(wanted) => wanted,
        Err(text) => {
            eprintln!("sim: {text}");
            return ExitCode::from(2);
        }
    };
    if !wanted.loud {
        // Panics are failures like others, and are told of with their seed.
        std::panic::set_hook(Box::new(|_| {}));
    } else {
        println!("{:?}", Plan::of(wanted.seeds.start, &mut Rng::new(wanted.seeds.start)));
    }
    if wanted.mutants {
        return hunt_all(&wanted);
    }
    let start = Instant::now();
    let totals = Mutex::new(Totals::default());
    let next = AtomicU64::new(wanted.seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..wanted.threads {
            scope.spawn(|| loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                let mut stop = seed >= wanted.seeds.end;
                if !stop {
                    let mut report = run(seed, wanted.trace);
                    if wanted.twice && run(seed, false).trace != report.trace {
                        report.failures.push("the seed took two ways".to_string());
                    }
                    let mut totals = totals.lock().expect("no thread panics with it");
                    if !report.failures.is_empty() {
                        tell(&report, wanted.loud);
                        stop = !wanted.all;
                    }
                    totals.add(report);
                    if stop {
                        next.store(wanted.seeds.end, Ordering::Relaxed);
                    }
                }
                if stop {
                    return;
                }
            });
        }
    });
    let totals = totals.into_inner().expect("no thread panics with it");
    let took_s = start.elapsed().as_secs_f64();
    println!(
        "{} seeds, {} failed; {:.1} h simulated in {took_s:.1} s ({:.0} s a second); {} events, {} entries, {} operations ({} of unknown outcome), {} grants",
        totals.runs,
        totals.failed.len(),
        totals.simulated_ms as f64 / 3_600_000.0,
        totals.simulated_ms as f64 / 1_000.0 / took_s,
        totals.happened,
        totals.entries,
        totals.operations,
        totals.unknown,
        totals.grants,
    );
    match totals.failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

#[cfg(not(feature = "mutants"))]
fn hunt_all(_: &Wanted) -> ExitCode {
    eprintln!("sim: built without planted bugs; cargo run -p redfence-tests --features mutants --bin sim -- --mutants");
    ExitCode::from(2)
}

/// Hunts every planted bug, two at a time, and prints a table.
#[cfg(feature = "mutants")]
fn hunt_all(wanted: &Wanted) -> ExitCode {
    use redfence_tests::sim::mutants::{hunt, TABLE};
    let next = AtomicU64::new(0);
    let missed = AtomicU64::new(0);
    let named = |mutant: &_| wanted.only.is_empty() || wanted.only.contains(&format!("{mutant:?}"));
    let hunted: Vec<_> = TABLE.iter().filter(|(mutant, _, _)| named(mutant)).collect();
    println!("| planted bug | known as | found by seed | as |\n| --- | --- | --- | --- |");
    std::thread::scope(|scope| {
        for _ in 0..wanted.threads {
            scope.spawn(|| {
                while let Some((mutant, number, what)) =
                    hunted.get(next.fetch_add(1, Ordering::Relaxed) as usize)
                {
                    let known = if *number == 0 { "-".to_string() } else { number.to_string() };
                    match hunt(*mutant, wanted.seeds.clone()) {
                        Some(report) => {
                            let shown: String = report.failures[0].chars().take(120).collect();
                            println!("| {mutant:?}: {what} | {known} | {} | {shown} |", report.seed);
                        }
                        None => {
                            missed.fetch_add(1, Ordering::Relaxed);
                            println!("| {mutant:?}: {what} | {known} | NOT FOUND | |");
                        }
                    }
                }
            });
        }
    });
    let missed = missed.into_inner();
    println!("{} planted bugs, {missed} missed", hunted.len());
    match missed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn tell(report: &Report, loud: bool) {
    let shown = if loud { report.failures.len() } else { 1 };
    for failure in report.failures.iter().take(shown) {
        println!("seed {}: {failure}", report.seed);
    }
    println!("repeat: make sim SEED={}", report.seed);
}
