//! `make soak`: the design's day. Five nodes, half a million held locks, a hundred thousand sessions, load, faults, a rolling upgrade, rolling
//! restarts, backups, replaced nodes; then a report.
//!
//! ```text
//! soak                                an hour
//! soak --duration 600 --locks 50000 --sessions 10000 --connections 500 --workers 4 --nodes 3
//! soak --from FILE            begins with this program of a release before, for the rolling upgrade
//! ```

use redfence_tests::soak::{run, Settings};
use std::process::ExitCode;
use std::time::Duration;

fn settings() -> Result<Settings, String> {
    let mut settings = Settings::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next();
        if word == "--from" {
            settings.upgrade_from = Some(value.ok_or("--from needs a file")?.into());
            continue;
        }
        let value = value.and_then(|value| value.parse::<usize>().ok());
        let value = value.ok_or_else(|| format!("{word} needs a number"))?;
        match word.as_str() {
            "--duration" => settings.duration = Duration::from_secs(value as u64),
            "--step" => settings.step = Duration::from_secs(value as u64),
            "--nodes" => settings.nodes = value,
            "--locks" => settings.held_locks = value,
            "--sessions" => settings.sessions = value,
            "--connections" => settings.connections = value,
            "--workers" => settings.workers = value,
            "--pipeline" => settings.pipeline = value,
            _ => return Err(format!("unknown word {word}; see the head of tests/src/bin/soak.rs")),
        }
    }
    Ok(settings)
}

fn main() -> ExitCode {
    let settings = match settings() {
        Ok(settings) => settings,
        Err(text) => {
            eprintln!("soak: {text}");
            return ExitCode::from(2);
        }
    };
    println!("{settings:?}");
    let report = run(&settings);
    println!("{report}");
    match report.wrong.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
