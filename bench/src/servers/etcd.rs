//! Three etcd servers with their default settings: every write is synced to disk.

use super::site::Site;
use super::{free_port_list, temporary_directory, Process, STARTS_WITHIN};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NODES: usize = 3;

pub(crate) struct Etcd {
    pub(crate) processes: Vec<Process>,
    pub(crate) addresses: Vec<SocketAddr>,
    peers: Vec<SocketAddr>,
    directory: tempfile::TempDir,
    program: PathBuf,
    pub(crate) site: Site,
}

impl Etcd {
    pub(crate) fn start(program: &Path) -> Result<Etcd, String> {
        Etcd::start_at(program, Site::Together)
    }

    pub(crate) fn start_at(program: &Path, site: Site) -> Result<Etcd, String> {
        let ports = free_port_list(2 * NODES)?;
        let addresses: Vec<SocketAddr> =
            ports.iter().enumerate().map(|(at, port)| site.address(at % NODES, *port)).collect();
        let (clients, peers) = addresses.split_at(NODES);
        let mut etcd = Etcd {
            processes: Vec::new(),
            addresses: clients.to_vec(),
            peers: peers.to_vec(),
            directory: temporary_directory()?,
            program: program.to_path_buf(),
            site,
        };
        for at in 0..NODES {
            let process = etcd.launch(at)?;
            etcd.processes.push(process);
        }
        etcd.await_leader()?;
        Ok(etcd)
    }

    fn launch(&self, at: usize) -> Result<Process, String> {
        let url = |address: &SocketAddr| format!("http://{address}");
        let advertised =
            self.peers.iter().map(|peer| self.site.advertised(*peer)).collect::<Result<Vec<_>, _>>()?;
        let members: Vec<String> =
            advertised.iter().enumerate().map(|(at, peer)| format!("n{at}={}", url(peer))).collect();
        let mut command = self.site.command(at, &self.program);
        command.args(["--name", &format!("n{at}"), "--log-level", "error", "--initial-cluster-state", "new"]);
        command.arg("--data-dir").arg(self.directory.path().join(format!("node{at}")));
        command.args(["--initial-cluster", &members.join(",")]);
        for (flag, address) in [
            ("--listen-client-urls", &self.addresses[at]),
            ("--advertise-client-urls", &self.addresses[at]),
            ("--listen-peer-urls", &self.peers[at]),
            ("--initial-advertise-peer-urls", &advertised[at]),
        ] {
            command.args([flag, &url(address)]);
        }
        Process::start(&mut command, &self.directory.path().join(format!("log{at}")))
    }

    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::id).collect()
    }

    /// Starts a node again that was killed; its data is where it was.
    pub(crate) fn restart(&mut self, at: usize) -> Result<(), String> {
        self.processes[at] = self.launch(at)?;
        Ok(())
    }

    /// The leader's place, once all agree.
    pub(crate) fn await_leader(&self) -> Result<usize, String> {
        let deadline = Instant::now() + STARTS_WITHIN;
        while Instant::now() < deadline {
            let named: Vec<Option<(u64, u64)>> =
                self.addresses.iter().map(|address| crate::etcd::member_and_leader(*address)).collect();
            let leaders: Vec<u64> = named.iter().flatten().map(|(_, leader)| *leader).collect();
            let agree = leaders.len() == named.len() && leaders.windows(2).all(|pair| pair[0] == pair[1]);
            let found = named.iter().position(
                |named| matches!(named, Some((member, leader)) if member == leader && *leader != 0),
            );
            if let (true, Some(at)) = (agree, found) {
                return Ok(at);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("etcd has no leader after {} s", STARTS_WITHIN.as_secs()))
    }
}
