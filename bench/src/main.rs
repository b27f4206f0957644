//! The same lock work against Redfence and what a user would pick instead, in one run.
//!
//! `redfence-bench PART`, or `all`. Every part starts the servers it needs on free ports and stops them again.
//!
//! # Layout
//!
//! - [`options`]: the command line
//! - [`load_generator`]: the closed-loop load over raw sockets; [`connection`]: one request at a time; [`resp`]: RESP; [`latencies`]:
//!   histograms
//! - [`work`]: its workloads; [`zookeeper`] and [`etcd`] the same for those
//! - [`servers`]: what is measured, as processes; [`target`]: a load against some of them, in turns
//! - [`parts`]: the measurements, one file each; [`machine`] prints its own results
//! - [`report`], [`plot`]: tables, JSON, goals, SVG
//!
//! # Caveats
//!
//! Load and servers share the machine. Ratios within one run are what counts; figures of two runs are not to be compared.

mod connection;
mod etcd;
mod latencies;
mod load_generator;
mod machine;
mod options;
mod parts;
mod plot;
mod report;
mod resp;
mod servers;
mod target;
mod work;
mod zookeeper;

use clap::Parser;
use options::{Cli, Options, Part};
use report::{Findings, RunConditions};
use std::process::ExitCode;

fn main() -> ExitCode {
    let Cli { part, options } = Cli::parse();
    match run(part, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("redfence-bench: {line}");
            ExitCode::FAILURE
        }
    }
}

fn run(part: Part, options: &Options) -> Result<(), String> {
    let name = part.name();
    let setting = RunConditions::now(name, options);
    let mut findings = Findings::default();
    let mut failure = None;
    for part in part.steps() {
        let name = part.name();
        match measure(part, options) {
            Ok(found) => findings.absorb(found),
            // The others are still worth their time.
            Err(reason) => {
                eprintln!("{name} is left out: {reason}");
                failure.get_or_insert(format!("{name}: {reason}"));
            }
        }
    }
    if findings.rows.is_empty() && findings.figures.is_empty() {
        return failure.map_or(Ok(()), Err);
    }
    println!("\n{}", report::goals_table(&findings.goals));
    report::write(&options.results, name, &setting, &findings)?;
    failure.map_or(Ok(()), Err)
}

fn measure(part: Part, options: &Options) -> Result<Findings, String> {
    match part {
        Part::Machine => {
            // On a thread of its own, because it asserts what it finds.
            let ended = std::thread::spawn(machine::run).join();
            ended.map(|()| Findings::default()).map_err(|_| "the lock machine did what it must not".into())
        }
        Part::Tier1 => parts::tier1::run(options),
        Part::Passthrough => parts::passthrough::run(options),
        Part::Locks => parts::locks::run(options),
        Part::Failover => parts::failover::run(options),
        Part::Losses => parts::losses::run(options),
        Part::Upkeep => parts::upkeep::run(options),
        Part::Secured => parts::secured::run(options),
        Part::Held => parts::held_locks::run(options),
        Part::Apart => parts::apart::run(options),
        Part::Disk => parts::disk::run(options),
        Part::Flapping => parts::flapping::run(options),
        Part::Versus => parts::versus::run(options),
        Part::All => unreachable!("its steps are the others"),
    }
}
