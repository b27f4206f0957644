//! The same lock work against Redfence and what a user would pick instead, in one run.
//!
//! `redfence-bench PART`, or `all`. Every part starts the servers it needs on free ports and stops them again.
//!
//! # Layout
//!
//! - [`options`]: the command line
//! - [`fleet`]: the closed-loop load over Redis's protocol; [`resp`] its words, [`latencies`] its clock
//! - [`servers`]: what is measured, as processes
//! - [`parts`]: the work, one file each; [`machine`] and [`tier1`] are older than the rest and print for themselves

// The parts that use the rest of the frame follow.
#![allow(dead_code)]

mod fleet;
mod latencies;
mod machine;
mod options;
mod parts;
mod resp;
mod servers;
mod tier1;

use clap::Parser;
use options::{Cli, Part};
use std::process::ExitCode;

fn main() -> ExitCode {
    let Cli { part, options } = Cli::parse();
    let outcome = match part {
        Part::Machine => {
            machine::run();
            Ok(())
        }
        Part::Tier1 => tier1::run(&options),
        Part::Passthrough => parts::passthrough::run(&options),
        Part::All => {
            machine::run();
            tier1::run(&options).and_then(|()| parts::passthrough::run(&options))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("redfence-bench: {line}");
            ExitCode::FAILURE
        }
    }
}
