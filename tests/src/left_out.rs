//! What this machine cannot do (no root, no namespaces, no strace, no PostgreSQL): said where it is left out, and listed at the end of
//! `make test`, which names the file of that list in `REDFENCE_LEFT_OUT`.
//!
//! Where `CI=true` nothing that a test needs may be left out ([`or_fail`]); what only makes a fault run narrower may ([`note`]).

use std::fs::OpenOptions;
use std::io::Write;

/// Says what is left out and why, and goes on.
pub fn note(what: &str) {
    let line = what.lines().collect::<Vec<_>>().join("; ");
    eprintln!("left out: {line}");
    let Some(list) = std::env::var_os("REDFENCE_LEFT_OUT") else { return };
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&list)
        .and_then(|mut list| list.write_all(format!("{line}\n").as_bytes()));
    if let Err(error) = written {
        eprintln!("the list of what was left out cannot be written: {error}");
    }
}

/// A test cannot be run here. Panics where `CI=true`.
pub fn or_fail(what: &str) {
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!is_ci, "nothing is left out where CI=true: {what}");
    note(what);
}
