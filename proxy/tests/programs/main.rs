//! The programs beside the server, as an operator or a script runs them: what they print, and their exit codes.

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod elect;
mod locks;
mod run;
mod watch;

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::Node;

/// Longer than any ttl of these tests, on a busy machine.
const END_WITHIN: Duration = Duration::from_secs(40);

/// The program with the address of a node.
fn program(addresses: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redfence"));
    command.args(args).env("REDFENCE_ADDR", addresses).env_remove("REDFENCE_PASSWORD").stdin(Stdio::null());
    command
}

fn output(addresses: &str, args: &[&str]) -> Output {
    program(addresses, args).output().expect("redfence runs")
}

/// What it prints where it succeeds.
#[track_caller]
fn succeeds(addresses: &str, args: &[&str]) -> String {
    let output = output(addresses, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The exit code and the one line where it fails.
#[track_caller]
fn fails(addresses: &str, args: &[&str]) -> (i32, String) {
    let output = output(addresses, args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("redfence: ")).collect();
    assert_eq!(lines.len(), 1, "{args:?}: {text}");
    (output.status.code().expect("an exit code"), lines[0].to_owned())
}

fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect()
}

/// A program in the background, which ends with its owner.
struct Background(Child);

impl Background {
    fn start(mut command: Command) -> Background {
        Background(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("redfence runs"))
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Exit code and standard error.
    #[track_caller]
    fn await_exit(&mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + END_WITHIN;
        let status = loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut text = String::new();
        self.0.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
        (status.code(), text)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn address(node: &Node) -> String {
    node.address.to_string()
}
