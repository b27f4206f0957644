//! The command line, and where the programs are.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// The same lock work against Redfence and what a user would pick instead, in one run.
#[derive(Debug, Parser)]
#[command(name = "redfence-bench", max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) part: Part,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Part {
    /// Everything
    All,
    /// The lock machine alone, on one core
    Machine,
    /// Lock pairs on one Redis: plain, fenced, by the module
    Tier1,
    /// Ordinary pipelined traffic through a proxy and without it
    Passthrough,
    /// Lock pairs, a hot lock, renewals, sessions and multi-locks, against Redis, etcd and ZooKeeper
    Locks,
    /// The leader killed, stopped and cut off, twenty times each: how long nobody gets a lock, and etcd beside it
    Failover,
    /// How soon a holder is told that its lock was taken by force
    Losses,
    /// Lock pairs with encryption between the nodes and without; TLS for clients beside plain connections and beside Redis's own
    Secured,
    /// Memory and throughput with up to a million held locks; snapshots under load
    Held,
    /// Lock pairs where nodes are apart (a delay between them) and where a disk is slow, and etcd beside it
    Apart,
    /// A rolling restart, a rolling upgrade (--other names the program of the release before) and backups, under load; not part of all
    Upkeep,
    /// fdatasync of the same disk
    Disk,
    /// An hour of connections between the nodes that are closed, refused and held up: elections of --bin, and of --other beside it; not part
    /// of all
    Flapping,
    /// Two builds of Redfence side by side (--bin and --other); not part of all
    Versus,
}

impl Part {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Part::All => "all",
            Part::Machine => "machine",
            Part::Tier1 => "tier1",
            Part::Passthrough => "passthrough",
            Part::Locks => "locks",
            Part::Failover => "failover",
            Part::Losses => "losses",
            Part::Secured => "secured",
            Part::Held => "held",
            Part::Apart => "apart",
            Part::Upkeep => "upkeep",
            Part::Disk => "disk",
            Part::Flapping => "flapping",
            Part::Versus => "versus",
        }
    }

    /// What is run for it, in this order.
    pub(crate) fn steps(self) -> Vec<Part> {
        match self {
            Part::All => {
                use Part::{
                    Apart, Disk, Failover, Held, Locks, Losses, Machine, Passthrough, Secured, Tier1,
                };
                vec![Machine, Disk, Tier1, Passthrough, Locks, Losses, Secured, Apart, Failover, Held]
            }
            Part::Machine
            | Part::Tier1
            | Part::Passthrough
            | Part::Locks
            | Part::Failover
            | Part::Losses
            | Part::Secured
            | Part::Held
            | Part::Apart
            | Part::Upkeep
            | Part::Disk
            | Part::Flapping
            | Part::Versus => vec![self],
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Short turns: to see that everything runs, not for figures
    #[arg(long, global = true)]
    pub(crate) quick: bool,
    /// versus, passthrough: with so many clients alone
    #[arg(long, global = true, value_name = "NUMBER")]
    pub(crate) clients: Option<usize>,
    /// The redfence program [default: beside this one]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) bin: Option<PathBuf>,
    /// Another redfence program to compare with
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) other: Option<PathBuf>,
    /// The Redis module [default: beside this program]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) module: Option<PathBuf>,
    /// The etcd program to compare with [default: that of the system]. Where another is named, the system's has rows beside it
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) etcd: Option<PathBuf>,
    /// Where results are written
    #[arg(long, global = true, value_name = "DIR", default_value = "bench/results")]
    pub(crate) results: PathBuf,
}

/// Found on the path.
const SYSTEM_ETCD: &str = "etcd";

impl Options {
    pub(crate) fn redfence(&self) -> Result<PathBuf, String> {
        let found = self.bin.clone().or_else(|| beside_this_program("redfence"));
        found.ok_or_else(|| {
            "no redfence program: `cargo build --release -p redfence`, or name it with --bin".into()
        })
    }

    pub(crate) fn module(&self) -> Result<PathBuf, String> {
        let found = self.module.clone().or_else(|| beside_this_program("libredfence_module.so"));
        let hint =
            "no libredfence_module.so: `cargo build --release -p redfence-module`, or name it with --module";
        found.ok_or_else(|| hint.into())
    }

    pub(crate) fn etcd(&self) -> PathBuf {
        self.etcd.clone().unwrap_or_else(|| SYSTEM_ETCD.into())
    }

    /// The etcd of the system, where another is compared with first.
    pub(crate) fn other_etcd(&self) -> Option<PathBuf> {
        self.etcd.as_ref().map(|_| SYSTEM_ETCD.into())
    }

    /// How often every target gets its turn.
    pub(crate) fn turns(&self, full: usize) -> usize {
        if self.quick {
            full.min(2)
        } else {
            full
        }
    }

    pub(crate) fn turn_length(&self, full: Duration) -> Duration {
        if self.quick {
            full.min(Duration::from_millis(250))
        } else {
            full
        }
    }
}

/// Where `cargo build` puts both.
fn beside_this_program(name: &str) -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.parent()?.join(name);
    path.exists().then_some(path)
}
