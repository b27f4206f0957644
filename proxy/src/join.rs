//! `redfence join`: adds a new node to a running cluster, before or while it starts with `--join`.
//!
//! It asks once a second until a member has done it, for a minute. A directory that holds a node is left alone: that node was
//! added before, and perhaps removed on purpose since.

use crate::backup::connect;
use crate::cli::container::JoinArgs;
use crate::cli::output::{say, tell};
use crate::cli::reply::Reply;
use crate::cli::BackupArgs;
use crate::clock::Clock;
use std::time::Duration;

/// How long the cluster may be without a leader, or not be reached.
const RETRY_WITHIN_MS: u64 = 60_000;
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// What became of one try.
enum Outcome {
    Added,
    /// Worth another try.
    NotYet(String),
    Refused(String),
}

pub fn run(args: &JoinArgs) -> Result<(), String> {
    if args.data.join("IDENTITY").exists() {
        say(&format!("{} holds a node already: nothing to do", args.data.display()));
        return Ok(());
    }
    let member = member(args);
    let clock = Clock::start();
    loop {
        match add(args, &member) {
            Outcome::Added => {
                say(&format!("node {} is a member at {}; start it with --join", args.id, args.advertise));
                return Ok(());
            }
            Outcome::NotYet(line) if clock.monotonic_ms() < RETRY_WITHIN_MS => {
                tell(&format!("{line}; trying again"));
                std::thread::sleep(RETRY_EVERY);
            }
            Outcome::NotYet(line) | Outcome::Refused(line) => return Err(line),
        }
    }
}

/// The arguments of a connection, as the backup knows them.
fn member(args: &JoinArgs) -> BackupArgs {
    BackupArgs {
        command: None,
        from: Some(args.via.clone()),
        out: None,
        password_file: args.password_file.clone(),
        user: args.user.clone(),
        tls_ca: args.tls_ca.clone(),
        tls_name: args.tls_name.clone(),
        tls_cert: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
    }
}

fn add(args: &JoinArgs, member: &BackupArgs) -> Outcome {
    let words = ["LOCK.CLUSTER", "ADD", &args.id.to_string(), &args.advertise];
    match connect(member, &args.via).and_then(|mut connection| connection.ask(&words)) {
        Ok(Reply::Text(text)) if text == b"OK" => Outcome::Added,
        Ok(Reply::Error(line)) if line.starts_with("UNAVAILABLE") || line.starts_with("INDETERMINATE") => {
            Outcome::NotYet(line)
        }
        Ok(Reply::Error(line)) => Outcome::Refused(line),
        Ok(
            Reply::Nil | Reply::Text(_) | Reply::Int(_) | Reply::Array(_) | Reply::Map(_) | Reply::Push(_),
        ) => Outcome::Refused(format!("{} is no Redfence node", args.via)),
        Err(line) if line.contains(" refuses the ") => Outcome::Refused(line),
        Err(line) => Outcome::NotYet(line),
    }
}
