//! The servers a client meets: a node, a cluster of three, a Redis with the module, a Redis with the Lua library.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const READY_WITHIN: Duration = Duration::from_secs(60);

/// A process that ends with its owner.
pub(crate) struct Process(Child);

impl Process {
    fn start(mut command: Command) -> Process {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Process(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    SingleNode,
    ThreeNodes,
    Module,
    Lua,
}

pub(crate) struct Servers {
    pub(crate) backend: Backend,
    folder: TempDir,
    peers: Vec<SocketAddr>,
    pub(crate) addresses: Vec<SocketAddr>,
    processes: Vec<Option<Process>>,
}

/// A file that a build of this repository makes, or the environment names.
fn artifact(variable: &str, name: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Some(PathBuf::from(path));
    }
    // target/debug/deps/test-…: two folders up.
    let test = std::env::current_exe().ok()?;
    Some(test.parent()?.parent()?.join(name)).filter(|path| path.is_file())
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port on loopback")
}

/// `None`, with a line that says why, where this machine lacks something. A failure where `CI=true`.
fn missing(what: &str) -> Option<Servers> {
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!is_ci, "nothing is left out where CI=true: {what}");
    eprintln!("left out: {what} is not there");
    if let Some(list) = std::env::var_os("REDFENCE_LEFT_OUT") {
        if let Ok(mut list) = std::fs::OpenOptions::new().create(true).append(true).open(list) {
            let _ = writeln!(list, "clients/rust: {what} is not there");
        }
    }
    None
}

impl Servers {
    pub(crate) fn start(backend: Backend) -> Option<Servers> {
        let folder = TempDir::with_prefix("redfence-client-").expect("a folder");
        let count = if backend == Backend::ThreeNodes { 3 } else { 1 };
        let mut servers = Servers {
            backend,
            folder,
            peers: (0..count).map(|_| free_address()).collect(),
            addresses: (0..count).map(|_| free_address()).collect(),
            processes: (0..count).map(|_| None).collect(),
        };
        match backend {
            Backend::SingleNode | Backend::ThreeNodes => {
                if artifact("REDFENCE_BIN", "redfence").is_none() {
                    return missing("the program redfence (cargo build -p redfence, or REDFENCE_BIN)");
                }
                (0..count).for_each(|node| servers.start_node(node));
            }
            Backend::Module => {
                let Some(module) = artifact("REDFENCE_MODULE", "libredfence_module.so") else {
                    return missing("the module (cargo build -p redfence-module, or REDFENCE_MODULE)");
                };
                if !servers.start_redis(Some(&module)) {
                    return missing("redis-server");
                }
            }
            Backend::Lua => {
                let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lua/redfence.lua");
                let Ok(library) = std::fs::read_to_string(library) else {
                    return missing("lua/redfence.lua");
                };
                if !servers.start_redis(None) {
                    return missing("redis-server");
                }
                servers.await_ready();
                let mut load = redis::cmd("FUNCTION");
                load.arg("LOAD").arg("REPLACE").arg(library);
                load.exec(&mut servers.connect(0)).expect("the library is taken");
            }
        }
        servers.await_ready();
        Some(servers)
    }

    pub(crate) fn connect(&self, node: usize) -> redis::Connection {
        let client = redis::Client::open(format!("redis://{}", self.addresses[node])).expect("an address");
        client.get_connection_with_timeout(Duration::from_secs(5)).expect("it listens")
    }

    pub(crate) fn start_node(&mut self, node: usize) {
        let mut command = Command::new(artifact("REDFENCE_BIN", "redfence").expect("looked for before"));
        command
            .current_dir(self.folder.path())
            .arg("serve")
            .args(["--listen", &self.addresses[node].to_string()]);
        command.args(["--data", &format!("node{node}")]);
        if self.peers.len() > 1 {
            let member = |(at, peer): (usize, &SocketAddr)| format!("{}={peer}", at + 1);
            let cluster: Vec<String> = self.peers.iter().enumerate().map(member).collect();
            command.args(["--id", &(node + 1).to_string(), "--cluster", &cluster.join(",")]);
            command.args(["--peer-listen", &self.peers[node].to_string()]);
        }
        self.processes[node] = Some(Process::start(command));
    }

    pub(crate) fn kill(&mut self, node: usize) {
        self.processes[node] = None;
    }

    /// Starts whatever was killed, and waits until all serve.
    pub(crate) fn restore(&mut self) {
        for node in 0..self.processes.len() {
            if self.processes[node].is_none() {
                self.start_node(node);
            }
        }
        self.await_ready();
    }

    fn start_redis(&mut self, module: Option<&Path>) -> bool {
        let mut command = Command::new("redis-server");
        command.current_dir(self.folder.path()).args([
            "--save",
            "",
            "--appendonly",
            "no",
            "--bind",
            "127.0.0.1",
        ]);
        command.args(["--port", &self.addresses[0].port().to_string()]);
        if let Some(module) = module {
            command.arg("--loadmodule").arg(module);
        }
        if Command::new("redis-server").arg("--version").output().is_err() {
            return false;
        }
        self.processes[0] = Some(Process::start(command));
        true
    }

    fn await_ready(&self) {
        let began = Instant::now();
        for node in 0..self.addresses.len() {
            while !self.is_ready(node) {
                assert!(began.elapsed() < READY_WITHIN, "{:?}: server {node} does not serve", self.backend);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn is_ready(&self, node: usize) -> bool {
        if TcpStream::connect(self.addresses[node]).is_err() {
            return false;
        }
        let client = redis::Client::open(format!("redis://{}", self.addresses[node])).expect("an address");
        let Ok(mut connection) = client.get_connection_with_timeout(Duration::from_secs(5)) else {
            return false;
        };
        match self.backend {
            Backend::SingleNode | Backend::ThreeNodes => {
                redis::cmd("LOCK.INFO").arg("ready").query::<redis::Value>(&mut connection).is_ok()
            }
            Backend::Module | Backend::Lua => redis::cmd("PING").exec(&mut connection).is_ok(),
        }
    }

    /// The node that leads, as a living one says.
    pub(crate) fn leader(&self) -> usize {
        for _ in 0..500 {
            for node in (0..self.processes.len()).filter(|node| self.processes[*node].is_some()) {
                let asked = redis::cmd("LOCK.CLUSTER").arg("INFO").query(&mut self.connect(node));
                let info: std::collections::HashMap<String, redis::Value> = asked.unwrap_or_default();
                match info.get("leader") {
                    Some(redis::Value::Int(leader)) if *leader > 0 => {
                        return usize::try_from(leader - 1).expect("a node of ours")
                    }
                    _ => {}
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("no leader");
    }
}
