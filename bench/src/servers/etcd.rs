//! Three etcd servers with their default settings: every write is synced to disk.

use super::{free_port_list, local, temporary_directory, Process, STARTS_WITHIN};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

const NODES: usize = 3;

pub(crate) struct Etcd {
    processes: Vec<Option<Process>>,
    pub(crate) addresses: Vec<SocketAddr>,
    peers: Vec<SocketAddr>,
    directory: tempfile::TempDir,
}

impl Etcd {
    pub(crate) fn start() -> Result<Etcd, String> {
        let ports = free_port_list(2 * NODES)?;
        let addresses: Vec<SocketAddr> = ports[..NODES].iter().map(|port| local(*port)).collect();
        let peers = ports[NODES..].iter().map(|port| local(*port)).collect();
        let mut etcd = Etcd { processes: Vec::new(), addresses, peers, directory: temporary_directory()? };
        for at in 0..NODES {
            let process = etcd.launch(at)?;
            etcd.processes.push(Some(process));
        }
        etcd.await_leader()?;
        Ok(etcd)
    }

    fn launch(&self, at: usize) -> Result<Process, String> {
        let url = |address: &SocketAddr| format!("http://{address}");
        let members: Vec<String> =
            self.peers.iter().enumerate().map(|(at, peer)| format!("n{at}={}", url(peer))).collect();
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("n{at}"), "--log-level", "error", "--initial-cluster-state", "new"]);
        command.arg("--data-dir").arg(self.directory.path().join(format!("node{at}")));
        command.args(["--initial-cluster", &members.join(",")]);
        for (flags, address) in [
            (["--listen-client-urls", "--advertise-client-urls"], &self.addresses[at]),
            (["--listen-peer-urls", "--initial-advertise-peer-urls"], &self.peers[at]),
        ] {
            for flag in flags {
                command.args([flag, &url(address)]);
            }
        }
        Process::start(&mut command, &self.directory.path().join(format!("log{at}")))
    }

    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.processes.iter().flatten().map(Process::id).collect()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, at: usize) {
        self.processes[at] = None;
    }

    pub(crate) fn restart(&mut self, at: usize) -> Result<(), String> {
        self.processes[at] = Some(self.launch(at)?);
        Ok(())
    }

    /// The leader's place, once all that run agree.
    pub(crate) fn await_leader(&self) -> Result<usize, String> {
        let deadline = Instant::now() + STARTS_WITHIN;
        while Instant::now() < deadline {
            let running = (0..NODES).filter(|at| self.processes[*at].is_some());
            let named: Vec<Option<(u64, u64)>> =
                running.map(|at| crate::etcd::member_and_leader(self.addresses[at])).collect();
            let leaders: Vec<u64> = named.iter().flatten().map(|(_, leader)| *leader).collect();
            let agree = leaders.len() == named.len() && leaders.windows(2).all(|pair| pair[0] == pair[1]);
            let running = (0..NODES).filter(|at| self.processes[*at].is_some());
            let found = running.zip(&named).find(
                |(_, named)| matches!(named, Some((member, leader)) if member == leader && *leader != 0),
            );
            if let (true, Some((at, _))) = (agree, found) {
                return Ok(at);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("etcd has no leader after {} s", STARTS_WITHIN.as_secs()))
    }
}
