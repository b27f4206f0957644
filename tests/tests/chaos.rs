//! Short fault runs for every run of the tests; longer ones by `make chaos`. Each is the `chaos` program as anybody would start
//! it, in a process of its own, because it moves into namespaces of its own.

use std::process::{Command, Output};
use std::sync::Mutex;

/// One at a time: each has a cluster and a hundred clients.
static TURN: Mutex<()> = Mutex::new(());

fn chaos(words: &[&str]) -> Output {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let out = tempfile::TempDir::with_prefix("redfence-chaos-report-").expect("a temporary directory");
    let program = redfence_tests::artifacts::redfence().unwrap_or_else(|missing| panic!("{missing}"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    command.args(words).arg("--out").arg(out.path()).arg("--bin").arg(program);
    let output = command.output().expect("chaos runs");
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(out.path().join("report.json").exists() && out.path().join("timeline.svg").exists());
    output
}

#[test]
fn every_kind_of_fault_once() {
    let output = chaos(&["--duration", "42", "--seed", "1", "--clients", "48", "--pause-ms", "400"]);
    assert!(output.status.success(), "see above");
}

/// Half unchanged Redlock clients, half LOCK.ACQUIRE, the same names, the leader killed every few seconds.
#[test]
fn a_mixed_fleet_never_has_two_holders() {
    let output = chaos(&["--preset", "mixed-fleet", "--duration", "15", "--seed", "2", "--clients", "48"]);
    assert!(output.status.success(), "see above");
}

/// A run that cannot fail proves nothing: a few forged answers among thousands must be found. (The checker's own tests know more.)
#[test]
fn a_forged_answer_is_found() {
    let output =
        chaos(&["--preset", "basic", "--duration", "1", "--clients", "48", "--sabotage", "plain-twice"]);
    assert_eq!(output.status.code(), Some(1), "it was not found");
    assert!(String::from_utf8_lossy(&output.stdout).contains("TwoHolders"), "it was found as something else");
}
