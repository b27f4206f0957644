//! The soak in its smallest size, so that it keeps working. The real one: `make soak`.

use redfence_tests::artifacts;
use redfence_tests::soak::{run, Settings};
use std::time::Duration;

#[test]
fn a_small_soak_serves_through_every_step_and_answers_nothing_wrong() {
    let settings = Settings {
        nodes: 3,
        held_locks: 500,
        sessions: 60,
        connections: 6,
        workers: 2,
        pipeline: 4,
        duration: Duration::ZERO,
        step: Duration::from_millis(400),
        // To itself: `make soak` upgrades from a release.
        upgrade_from: Some(artifacts::redfence().expect("the program under test")),
    };
    let report = run(&settings);
    println!("{report}");
    assert!(report.wrong.is_empty(), "{report}");
    assert!(report.total().served > 100 && report.looks >= 500, "{report}");
    assert!(report.notes.iter().any(|note| note.contains("RollingUpgrade")), "{report}");
}
