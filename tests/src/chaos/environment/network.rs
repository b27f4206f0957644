//! One network namespace for each host, all on one bridge; clients stay outside, on the bridge's own address.
//!
//! A cut drops packets silently at the receiving end, by their source: nobody is told, connections hang, as when a
//! switch fails. Cut at one end it is one-way, at both ends complete.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::run;
use crate::process::{poll_until, Process};

const BRIDGE: &str = "chaos-bridge";

pub struct Network {
    /// A process that does nothing but keep its namespace.
    keepers: Vec<Process>,
}

impl Network {
    pub fn set_up(hosts: usize, folder: &Path) -> Result<Network, String> {
        run(&["ip", "link", "add", BRIDGE, "type", "bridge"])?;
        run(&["ip", "addr", "add", "10.255.77.254/24", "dev", BRIDGE])?;
        run(&["ip", "link", "set", BRIDGE, "up"])?;
        let mut network = Network { keepers: Vec::new() };
        for at in 0..hosts {
            network.add_host(at, folder)?;
        }
        Ok(network)
    }

    fn add_host(&mut self, at: usize, folder: &Path) -> Result<(), String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "infinity"]);
        let keeper = Process::start("namespace", command, &folder.join(format!("host-{at}.log")))?;
        let pid = keeper.pid();
        let own = std::fs::read_link("/proc/self/ns/net").map_err(|error| error.to_string())?;
        let apart = || std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|theirs| theirs != own);
        if !poll_until(Duration::from_secs(5), apart) {
            return Err("unshare made no network namespace".into());
        }
        self.keepers.push(keeper);
        let outside = format!("chaos-{at}");
        run(&[
            "ip",
            "link",
            "add",
            &outside,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            &pid.to_string(),
        ])?;
        run(&["ip", "link", "set", &outside, "master", BRIDGE, "up"])?;
        self.inside(at, &["ip", "link", "set", "lo", "up"])?;
        self.inside(at, &["ip", "addr", "add", &format!("{}/24", self.ip(at)), "dev", "eth0"])?;
        self.inside(at, &["ip", "link", "set", "eth0", "up"])?;
        // A device that is down: whatever is sent there is gone.
        self.inside(at, &["ip", "link", "add", "nowhere", "type", "ifb"])?;
        self.inside(at, &["tc", "qdisc", "add", "dev", "eth0", "clsact"])
    }

    pub fn ip(&self, at: usize) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 255, 77, 1 + at as u8))
    }

    pub fn prefix(&self, at: usize) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/proc/{}/ns/net", self.keepers[at].pid())]
    }

    /// Nothing that `from` sends reaches `to` any more.
    pub fn cut(&self, from: usize, to: usize) -> Result<(), String> {
        let (rank, source) = (rank(from), format!("{}/32", self.ip(from)));
        let filter = ["tc", "filter", "add", "dev", "eth0", "ingress", "protocol", "ip", "prio", &rank];
        let drops = [
            "u32", "match", "ip", "src", &source, "action", "mirred", "egress", "redirect", "dev", "nowhere",
        ];
        self.inside(to, &[&filter[..], &drops[..]].concat())
    }

    pub fn mend(&self, from: usize, to: usize) -> Result<(), String> {
        let rank = rank(from);
        self.inside(to, &["tc", "filter", "del", "dev", "eth0", "ingress", "protocol", "ip", "prio", &rank])
    }

    fn inside(&self, at: usize, words: &[&str]) -> Result<(), String> {
        let prefix = self.prefix(at);
        let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
        run(&[&prefix[..], words].concat())
    }
}

/// Each source has a rank of its own, by which its filter is found again.
fn rank(from: usize) -> String {
    (10 + from).to_string()
}
