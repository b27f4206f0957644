//! The environment of the nodes: a network, disks and wall clocks into which faults can be injected, private to this process.
//!
//! As root the run enters namespaces of its own: interfaces, mounts and loop devices end with it, and
//! are invisible to the rest of the machine. What is not available is left out, and printed.
//!
//! # Layout
//!
//! - [`network`]: a namespace for each host, one-way silent drops between any two
//! - [`disks`]: a file system for each host whose unsynced data a power cut loses
//! - [`wall_clock`]: a preloaded library that shifts the time of day of a node

pub mod disks;
pub mod network;
pub mod wall_clock;

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::cluster::Host;
use crate::{inject, left_out};
use disks::Disks;
use network::Network;
use wall_clock::WallClocks;

pub struct Environment {
    pub network: Option<Network>,
    pub disks: Option<Disks>,
    pub clocks: Option<WallClocks>,
    pub has_strace: bool,
    pub has_time_namespaces: bool,
    /// What is not available, and why.
    pub missing: Vec<String>,
    hosts: Vec<Host>,
    // Last, so that it is dropped after everything inside it.
    folder: TempDir,
}

impl Environment {
    /// Must be called before any thread is started: a namespace is entered by one thread alone.
    pub fn set_up(hosts: usize) -> Environment {
        let folder = TempDir::with_prefix("redfence-chaos-").expect("a temporary directory");
        let mut missing = Vec::new();
        let mut keep = |what: &str, why: String| missing.push(format!("{what}: {why}"));
        let own = enter_namespaces();
        let network = own.clone().and_then(|()| Network::set_up(hosts, folder.path()));
        let network = network.map_err(|why| keep("no partitions", why)).ok();
        let disks = own.and_then(|()| Disks::set_up(hosts, folder.path()));
        let disks = disks.map_err(|why| keep("no power cuts", why)).ok();
        let strace = inject::available().map_err(|why| keep("no failing disks", why));
        let time =
            run(&["unshare", "-T", "--monotonic", "1", "true"]).map_err(|why| keep("no other clocks", why));
        let clocks =
            WallClocks::set_up(hosts, folder.path()).map_err(|why| keep("no clock shifts", why)).ok();
        let hosts = (0..hosts)
            .map(|at| {
                let mut host = Host::default();
                if let Some(network) = &network {
                    host.ip = network.ip(at);
                    host.prefix = network.prefix(at);
                }
                host.disk = disks.as_ref().map(|disks| disks.folder(at));
                host.environment = clocks.as_ref().map(|clocks| clocks.environment(at)).unwrap_or_default();
                host
            })
            .collect();
        let (has_strace, has_time_namespaces) = (strace.is_ok(), time.is_ok());
        Environment { network, disks, clocks, has_strace, has_time_namespaces, missing, hosts, folder }
    }

    pub fn note_missing(&self) {
        self.missing.iter().for_each(|missing| left_out::note(&format!("fault runs: {missing}")));
    }

    pub fn hosts(&self) -> Vec<Host> {
        self.hosts.clone()
    }

    /// A host is known by its disk, its address or its clock: whichever of them it has of its own.
    pub fn index(&self, host: &Host) -> usize {
        let same = |other: &Host| {
            (other.ip, &other.disk, &other.environment) == (host.ip, &host.disk, &host.environment)
        };
        self.hosts.iter().position(same).unwrap_or(0)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn enter_namespaces() -> Result<(), String> {
    // SAFETY: unshare takes one integer and no memory; no other thread runs yet.
    if unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) } != 0 {
        return Err(format!("namespaces of its own need root: {}", std::io::Error::last_os_error()));
    }
    run(&["mount", "--make-rprivate", "/"])?;
    run(&["ip", "link", "set", "lo", "up"])
}

/// Mounts of this thread alone, which end with it. Answers the words that start a program with the same mounts.
pub fn enter_own_mounts() -> Result<Vec<String>, String> {
    // SAFETY: unshare takes one integer and no memory. It takes this thread alone out of the mounts of the process.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(format!("mounts of its own need root: {}", std::io::Error::last_os_error()));
    }
    run(&["mount", "--make-rprivate", "/"])?;
    // SAFETY: gettid takes nothing and always succeeds.
    let thread = unsafe { libc::gettid() };
    let mounts = format!("--mount=/proc/{}/task/{thread}/ns/mnt", std::process::id());
    run(&["nsenter", &mounts, "true"])?;
    Ok(vec!["nsenter".to_owned(), mounts])
}

/// Runs a system program to its end. An error is a line with what it said.
pub fn run(words: &[&str]) -> Result<(), String> {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.map_err(|error| format!("{}: {error}", words[0]))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}
