//! A PostgreSQL row behind a lock: a short run for every run of the tests; longer by `make fenced-resource`.

use std::process::Command;

#[test]
fn no_stale_write_with_the_fence_and_corruption_without() {
    let program = redfence_tests::artifacts::redfence().unwrap_or_else(|missing| panic!("{missing}"));
    let output = Command::new(env!("CARGO_BIN_EXE_fenced"))
        .arg("6")
        .env("REDFENCE_BIN", program)
        .output()
        .expect("fenced runs");
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(2) {
        let why = String::from_utf8_lossy(&output.stderr);
        redfence_tests::left_out::or_fail(&format!("a PostgreSQL row behind a lock: {}", why.trim()));
        return;
    }
    assert!(output.status.success(), "see above");
}
