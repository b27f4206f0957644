//! Where the nodes of a cluster run: side by side on loopback, each in a network namespace of its own, with a delay between them, or on a
//! slow disk. The same for every system that is compared.

use super::flapping::FlappingRelay;
use super::local;
use super::relay::Relay;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

pub(crate) enum Site {
    /// All on loopback.
    Together,
    /// Each on a host of its own, whose cable can be pulled.
    Hosts(Hosts),
    /// What nodes send each other takes this long, each way.
    Apart(Relays),
    /// Connections between nodes can be closed, refused and held up.
    Flapping(Mutex<Vec<FlappingRelay>>),
    /// Each sync of a file takes this much longer.
    SlowDisk(Duration),
}

impl Site {
    pub(crate) fn hosts(count: usize) -> Result<Site, String> {
        Hosts::set_up(count).map(Site::Hosts)
    }

    pub(crate) fn apart(delay: Duration) -> Site {
        Site::Apart(Relays { delay, running: Mutex::default() })
    }

    pub(crate) fn flapping() -> Site {
        Site::Flapping(Mutex::default())
    }

    /// Where a node listens.
    pub(crate) fn address(&self, at: usize, port: u16) -> SocketAddr {
        match self {
            Site::Hosts(hosts) => hosts.address(at, port),
            Site::Together | Site::Apart(_) | Site::Flapping(_) | Site::SlowDisk(_) => local(port),
        }
    }

    /// Where the other nodes reach it.
    pub(crate) fn advertised(&self, peer: SocketAddr) -> Result<SocketAddr, String> {
        match self {
            Site::Apart(relays) => relays.to(peer),
            Site::Flapping(relays) => flapping_relay_to(relays, peer),
            Site::Together | Site::Hosts(_) | Site::SlowDisk(_) => Ok(peer),
        }
    }

    pub(crate) fn is_loopback(&self) -> bool {
        !matches!(self, Site::Hosts(_))
    }

    /// Starts the program there, under the process id of the child.
    pub(crate) fn command(&self, at: usize, program: &Path) -> Command {
        match self {
            Site::Together | Site::Apart(_) | Site::Flapping(_) => Command::new(program),
            Site::Hosts(_) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &Hosts::namespace(at)]).arg(program);
                command
            }
            Site::SlowDisk(delay) => {
                let mut command = Command::new("strace");
                // Only the syncs are traced (--seccomp-bpf), and by a process beside the program, which stays our child (-D).
                let inject = format!("inject=fdatasync,fsync:delay_exit={}", delay.as_micros());
                command.args(["-D", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null"]);
                command.args(["-e", "trace=fdatasync,fsync", "-e", &inject]).arg(program);
                command
            }
        }
    }

    /// Pulls the cable of a host or plugs it in: packets are lost, and nobody is told.
    pub(crate) fn set_cable(&self, at: usize, plugged: bool) -> Result<(), String> {
        match self {
            Site::Hosts(_) => ip(&["link", "set", &Hosts::cable(at), if plugged { "up" } else { "down" }]),
            Site::Together | Site::Apart(_) | Site::Flapping(_) | Site::SlowDisk(_) => {
                Err("nodes on loopback have no cable".into())
            }
        }
    }
}

/// Network namespaces on one bridge; clients stay outside, at the bridge's own address.
pub(crate) struct Hosts {
    count: usize,
}

const BRIDGE: &str = "rfbench";

impl Hosts {
    fn set_up(count: usize) -> Result<Hosts, String> {
        // Dropped when a step fails, and so taken down.
        let hosts = Hosts { count };
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["addr", "add", "10.255.78.254/24", "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        for at in 0..count {
            let (namespace, cable) = (Hosts::namespace(at), Hosts::cable(at));
            let inside = |words: &[&str]| ip(&[&["-n", namespace.as_str()], words].concat());
            ip(&["netns", "add", &namespace])?;
            ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
            ip(&["link", "set", &cable, "master", BRIDGE, "up"])?;
            inside(&["link", "set", "lo", "up"])?;
            inside(&["addr", "add", &format!("{}/24", Hosts::ip(at)), "dev", "eth0"])?;
            inside(&["link", "set", "eth0", "up"])?;
        }
        Ok(hosts)
    }

    fn address(&self, at: usize, port: u16) -> SocketAddr {
        debug_assert!(at < self.count, "a host that was set up");
        SocketAddr::from((Hosts::ip(at), port))
    }

    fn ip(at: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 255, 78, at as u8 + 1)
    }

    fn namespace(at: usize) -> String {
        format!("{BRIDGE}-{at}")
    }

    fn cable(at: usize) -> String {
        format!("{BRIDGE}-v{at}")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for at in 0..self.count {
            // A namespace takes its end of the cable with it, and so the other end.
            let _ = ip(&["netns", "delete", &Hosts::namespace(at)]);
            let _ = ip(&["link", "delete", &Hosts::cable(at)]);
        }
        let _ = ip(&["link", "delete", BRIDGE]);
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let run = Command::new("ip").args(words).output().map_err(|error| format!("cannot run ip: {error}"))?;
    if run.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&run.stderr).trim()))
}

/// One for each node that others reach through it.
pub(crate) struct Relays {
    delay: Duration,
    running: Mutex<Vec<Relay>>,
}

impl Relays {
    fn to(&self, peer: SocketAddr) -> Result<SocketAddr, String> {
        let mut running = self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(relay) = running.iter().find(|relay| relay.to == peer) {
            return Ok(relay.address);
        }
        let relay = Relay::start(peer, self.delay)?;
        let address = relay.address;
        running.push(relay);
        Ok(address)
    }
}

fn flapping_relay_to(relays: &Mutex<Vec<FlappingRelay>>, peer: SocketAddr) -> Result<SocketAddr, String> {
    let mut relays = relays.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(relay) = relays.iter().find(|relay| relay.to == peer) {
        return Ok(relay.address);
    }
    let relay = FlappingRelay::start(peer)?;
    let address = relay.address;
    relays.push(relay);
    Ok(address)
}
