//! The seeded simulator: real nodes (`tier2::Node`: raft driver, pending table, stamps, snapshots, membership, machine) on a
//! simulated network, simulated disks and clocks, with clients that take locks and misfortunes that befall everybody.
//!
//! One seed is one run: the same seed gives the same run to the last event. A run is a storm, then healing, then the
//! reckoning: everybody must be served again within a bound, all locks must be free in the end, all replicas equal, and
//! the history must be one that a correct service can have (see [`crate::checker`]).
//!
//! # Layout
//!
//! - [`kernel`]: hosts, network and agenda, for [`world`] and for [`cluster`], which tests drive step by step
//! - [`plan`]: what a seed draws; [`world`]: a run; [`event`]: what happens in it beside what happens to its hosts
//! - [`clients`], [`plain`], [`calls`], [`names`]: what clients do, ask and hear; [`faults`]: faults and operators
//! - `mutants`: bugs planted on purpose, and the seeds that find them (feature `mutants`)
//! - [`books`]: the log and the states, compared as they come; [`reckoning`]: what must hold in the end; `trace`: a run line by line
//! - [`wider`]: marks, absolute times, settings, pipelines, in some seeds
//! - [`kinds`]: readers, writers, permits, conversions and policies, in some seeds
//! - `upgrades`: two programs in one cluster, exchanged one by one
//!
//! # Caveats
//!
//! - The shell's threads, sockets and the log engine on real files are not here: those are for real processes.
//! - The transport's refusal of wiped disks is not here either, so no disk is wiped under an id that is still a member.

pub mod books;
pub mod calls;
pub mod clients;
pub mod cluster;
pub mod event;
pub mod faults;
pub mod kernel;
pub mod kinds;
#[cfg(feature = "mutants")]
pub mod mutants;
pub mod names;
pub mod plain;
pub mod plan;
pub mod reckoning;
mod trace;
pub mod upgrades;
pub mod wider;
pub mod world;

use crate::checker::ViolationKind;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// What one run came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seed: u64,
    /// Empty: all is well.
    pub failures: Vec<String>,
    pub kinds: Vec<ViolationKind>,
    pub trace: u64,
    pub simulated_ms: u64,
    pub happened: u64,
    pub operations: u64,
    pub unknown: u64,
    pub grants: u64,
    pub entries: u64,
}

/// Runs one seed, and tells of it line by line where that is wanted. A panic of the node is a failure like any other.
#[must_use]
pub fn run(seed: u64, trace: bool) -> Report {
    match catch_unwind(AssertUnwindSafe(|| reckoning::run(seed, trace))) {
        Ok(report) => report,
        Err(panic) => {
            let text = match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
                (Some(text), _) => text.clone(),
                (None, Some(text)) => (*text).to_string(),
                (None, None) => "a panic without words".to_string(),
            };
            Report { seed, failures: vec![format!("panic: {text}")], ..Report::default() }
        }
    }
}
