//! Three ZooKeeper servers as Debian ships them, with a disk each, synced at every write (its default).

use super::{free_port_list, local, temporary_directory, Process, STARTS_WITHIN};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// Where Debian's package puts it. Another place can be named.
const JAR: &str = "/usr/share/java/zookeeper.jar";
const JAR_VARIABLE: &str = "ZOOKEEPER_CLASSPATH";

pub(crate) struct ZooKeeper {
    processes: Vec<Process>,
    addresses: Vec<SocketAddr>,
    _directory: tempfile::TempDir,
}

impl ZooKeeper {
    pub(crate) fn start() -> Result<ZooKeeper, String> {
        let class_path = std::env::var(JAR_VARIABLE).unwrap_or_else(|_| JAR.to_string());
        if class_path == JAR && !Path::new(JAR).exists() {
            return Err(format!(
                "no {JAR} (Debian: apt-get install zookeeper), and {JAR_VARIABLE} is not set"
            ));
        }
        let directory = temporary_directory()?;
        let ports = free_port_list(3 * NODES)?;
        let mut processes = Vec::new();
        for at in 0..NODES {
            let home = directory.path().join(format!("node{}", at + 1));
            let write = |name: &str, text: String| {
                std::fs::write(home.join(name), text).map_err(|error| format!("cannot write {name}: {error}"))
            };
            std::fs::create_dir(&home).map_err(|error| format!("cannot make a directory: {error}"))?;
            write("myid", (at + 1).to_string())?;
            write("zoo.cfg", configuration(&home, &ports, at))?;
            let mut command = Command::new("java");
            command.args(["-Xmx1g", "-Dzookeeper.jmx.log4j.disable=true", "-cp", &class_path]);
            command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(home.join("zoo.cfg"));
            processes.push(Process::start(&mut command, &home.join("log"))?);
        }
        let addresses: Vec<SocketAddr> = ports[..NODES].iter().map(|port| local(*port)).collect();
        await_modes(&addresses)?;
        Ok(ZooKeeper { processes, addresses, _directory: directory })
    }

    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::id).collect()
    }

    pub(crate) fn leader(&self) -> Result<SocketAddr, String> {
        let found = self.addresses.iter().find(|address| mode(**address).as_deref() == Some("leader"));
        found.copied().ok_or_else(|| "ZooKeeper has no leader".into())
    }
}

fn configuration(home: &Path, ports: &[u16], at: usize) -> String {
    let mut text = format!(
        "tickTime=2000\ninitLimit=10\nsyncLimit=5\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n\
         leaderServes=yes\nclientPortAddress=127.0.0.1\ndataDir={}\nclientPort={}\n",
        home.display(),
        ports[at]
    );
    for node in 0..NODES {
        let (follow, elect) = (ports[NODES + node], ports[2 * NODES + node]);
        text.push_str(&format!("server.{}=127.0.0.1:{follow}:{elect}\n", node + 1));
    }
    text
}

/// Every node follows or leads.
fn await_modes(addresses: &[SocketAddr]) -> Result<(), String> {
    let deadline = Instant::now() + STARTS_WITHIN;
    while Instant::now() < deadline {
        if addresses.iter().all(|address| mode(*address).is_some()) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(format!("ZooKeeper is not ready after {} s", STARTS_WITHIN.as_secs()))
}

fn mode(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(b"srvr").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_string)
}
