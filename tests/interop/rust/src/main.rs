//! Lock libraries for Rust, unmodified, against a cluster of Redfence. `../README.md` is the contract with the driver.
//!
//! # Layout
//!
//! - `locker`: what the common checks need of a library; `redis_rs`, `fred_rs`, `rslock_rs` fit each library to it
//! - `checks`, `workers`, `failover`: the common checks
//! - `trial`: one library on trial, and what the server says about a lock

mod checks;
mod failover;
mod fred_rs;
mod locker;
mod redis_rs;
mod rslock_rs;
mod trial;
mod workers;

use locker::{Check, Library};
use std::time::{Duration, Instant};
use trial::Trial;

const CHECK_S_MAX: u64 = 45;

fn libraries() -> Vec<Library> {
    vec![
        redis_rs::library("redis-resp2"),
        redis_rs::library("redis-resp3"),
        fred_rs::library(),
        rslock_rs::library(false),
        rslock_rs::library(true),
    ]
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => {
            for library in libraries() {
                println!("{}{}", library.id, if library.masters { "\tredlock" } else { "" });
            }
        }
        ["check", id] => match libraries().into_iter().find(|library| library.id == id) {
            Some(library) => run_all(library).await,
            None => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: redfence-interop list | check <id>");
    std::process::exit(2);
}

async fn run_all(library: Library) {
    let own = library.own.clone();
    let trial = Trial::new(library);
    for check in checks::COMMON.iter().copied().chain(own).chain(failover::COMMON.iter().copied()) {
        run(&trial, check).await;
    }
}

async fn run(trial: &Trial, check: Check) {
    let start = Instant::now();
    // In a task of its own: a library's panic is a failed check, not the end of the run.
    let work = tokio::spawn((check.body)(trial.clone()));
    let outcome = match tokio::time::timeout(Duration::from_secs(CHECK_S_MAX), work).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(locker::Fault::Other(panic.to_string())),
        Err(_) => Err(locker::Fault::Other(format!("did not end within {CHECK_S_MAX} s"))),
    };
    let detail = match &outcome {
        Ok(()) => format!("{} ms", start.elapsed().as_millis()),
        Err(fault) => fault.to_string(),
    };
    let library = &trial.library;
    let line = serde_json::json!({
        "library": library.name, "version": version(library.name), "variant": library.variant, "check": check.name,
        "ok": outcome.is_ok(), "detail": detail,
    });
    println!("{line}");
}

/// The version linked into this program, from the lock file it was built with.
fn version(name: &str) -> &'static str {
    include_str!("../Cargo.lock")
        .split("[[package]]")
        .filter_map(|package| package.split_once(&format!("name = \"{name}\"\nversion = \"")))
        .find_map(|(_, rest)| rest.split('"').next())
        .unwrap_or("?")
}
