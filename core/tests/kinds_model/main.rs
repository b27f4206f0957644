//! Every kind of lock against a small model, written apart from the machine: a list of holds and a list of waiters for each name, and
//! the contract's rules. Random work, the same on every run; a failure names its seed.
//!
//! Each session keeps to one name, so that no circles over several names arise: those are looked for in `kinds_properties.rs`.

mod model;
mod run;

use run::Run;

/// One run of random work. A panic says where machine and model differ.
fn play(run: &mut Run) {
    for step in 0..120 {
        if run.model.has_ties() {
            // Two ends in one millisecond: their order is the machine's own.
            return;
        }
        run.step();
        if step % 40 == 39 {
            run.restart();
        }
    }
}

#[test]
fn every_kind_does_what_the_model_says() {
    let seeds = std::env::var("KINDS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(400);
    for seed in 0..seeds {
        let mut run = Run::new(seed);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&mut run)));
        if let Err(panic) = checked {
            println!("seed {seed}:\n{}", run.steps.join("\n"));
            std::panic::resume_unwind(panic);
        }
    }
}

/// Bugs planted on purpose are found.
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_are_found() {
    use redfence_core::mutants::{choose, Mutant};
    for mutant in [
        Mutant::ReaderBesideWriter,
        Mutant::ReaderOvertakes,
        Mutant::UpgradeBesideReaders,
        Mutant::WoundKeepsFence,
        Mutant::YoungerWaits,
    ] {
        choose(Some(mutant));
        let found = (0..400).any(|seed| {
            let mut run = Run::new(seed);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&mut run))).is_err()
        });
        choose(None);
        assert!(found, "{mutant:?} was not found");
    }
}
