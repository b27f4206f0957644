//! A node as a real process on free ports, and a client that sees every byte.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

pub mod admin;
pub mod tls;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const PATIENCE: Duration = Duration::from_secs(10);

/// A port that was free a moment ago.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Polls until `done`, or fails.
#[track_caller]
pub fn await_that(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn redfence(folder: &TempDir, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redfence"));
    command.arg("serve").args(flags).current_dir(folder.path()).stdin(Stdio::null());
    command
}

/// A process that ends with its owner.
pub struct Process {
    pub child: Child,
    log: PathBuf,
}

impl Process {
    pub fn start(mut command: Command, folder: &TempDir, name: &str) -> Process {
        let log = folder.path().join(format!("{name}.log"));
        let output = File::create(&log).unwrap();
        let child = command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap();
        Process { child, log }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    #[track_caller]
    pub fn await_exit(&mut self) -> ExitStatus {
        let mut status = None;
        await_that("the process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Resident memory in KiB.
    pub fn memory_kib(&self) -> u64 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A single node that serves.
pub struct Node {
    pub address: SocketAddr,
    pub process: Process,
    pub folder: TempDir,
}

impl Node {
    pub fn start(flags: &[&str]) -> Node {
        Node::start_by(|_| {}, flags)
    }

    /// `prepare` may change how the process is started.
    pub fn start_by(prepare: impl Fn(&mut Command), flags: &[&str]) -> Node {
        Node::try_start(prepare, flags).unwrap_or_else(|log| panic!("the node does not serve: {log}"))
    }

    fn try_start(prepare: impl Fn(&mut Command), flags: &[&str]) -> Result<Node, String> {
        let mut last = String::new();
        // A free port may be taken before the node has it: then another is tried.
        for _ in 0..3 {
            let folder = TempDir::with_prefix("redfence-proxy-").unwrap();
            let address = free_address();
            let text = address.to_string();
            let mut command = redfence(&folder, &["--listen", &text]);
            command.args(flags);
            prepare(&mut command);
            let mut process = Process::start(command, &folder, "node");
            let deadline = Instant::now() + PATIENCE;
            loop {
                if process.log().contains(" ready ") || process.log().contains("\"ready\"") {
                    return Ok(Node { address, process, folder });
                }
                if process.child.try_wait().unwrap().is_some() || Instant::now() > deadline {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            last = process.log();
            if !last.contains("in use") {
                break;
            }
        }
        Err(last)
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// The same node on the same data, after its process has ended.
    pub fn start_again(mut self, flags: &[&str]) -> Node {
        let text = self.address.to_string();
        let mut command = redfence(&self.folder, &["--listen", &text]);
        command.args(flags);
        self.process = Process::start(command, &self.folder, "node-again");
        await_that("the node serves again", || self.process.log().contains(" ready "));
        self
    }
}

/// Several nodes of one cluster, each a process of its own. Killing and starting them again is in the `tests` crate; this is for
/// what a client sees through different nodes.
pub fn start_cluster(count: usize, flags: &[&str]) -> Vec<Node> {
    start_nodes_by(count, flags, |_| true)
}

/// The same where a client must log in first.
pub fn start_nodes_by(count: usize, flags: &[&str], login: impl Fn(&mut Client) -> bool) -> Vec<Node> {
    for _ in 0..3 {
        let peers: Vec<SocketAddr> = (0..count).map(|_| free_address()).collect();
        let members: Vec<String> =
            peers.iter().enumerate().map(|(at, peer)| format!("{}={peer}", at + 1)).collect();
        let members = members.join(",");
        let nodes: Vec<Node> = peers
            .iter()
            .enumerate()
            .map_while(|(at, peer)| {
                let (id, peer) = ((at + 1).to_string(), peer.to_string());
                let mut all = vec!["--id", &id, "--peer-listen", &peer, "--cluster", &members];
                all.extend_from_slice(flags);
                Node::try_start(|_| {}, &all).ok()
            })
            .collect();
        // A peer port may have been taken in between: then all is tried again.
        if nodes.len() == count {
            for node in &nodes {
                let mut client = node.connect();
                assert!(login(&mut client));
                await_that("the cluster has a leader", || client.ask(&["SET", "ready?", "1"]) == "OK");
            }
            return nodes;
        }
    }
    panic!("the cluster does not start");
}

/// A plain Redis 7, without the module.
pub struct Redis {
    pub address: std::net::SocketAddr,
    process: Option<Process>,
    folder: TempDir,
}

impl Redis {
    pub fn start() -> Redis {
        let mut redis = Redis { address: free_address(), process: None, folder: TempDir::new().unwrap() };
        redis.launch();
        redis
    }

    pub fn launch(&mut self) {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &self.address.port().to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
        ]);
        command.arg(self.folder.path());
        self.process = Some(Process::start(command, &self.folder, "redis"));
        let address = self.address;
        await_that("Redis answers", || {
            std::net::TcpStream::connect(address).is_ok() && Client::connect(address).ask(&["PING"]) == "PONG"
        });
    }

    pub fn stop(&mut self) {
        self.process = None;
    }

    /// `STOP` makes it as busy as can be, `CONT` ends that.
    pub fn signal(&self, name: &str) {
        self.process.as_ref().expect("it runs").signal(name);
    }
}

/// A node with a Redis of its own behind it.
pub fn behind(flags: &[&str]) -> (Redis, Node) {
    behind_by(|_| {}, flags)
}

/// `prepare` may change how the node's process is started.
pub fn behind_by(prepare: impl Fn(&mut Command), flags: &[&str]) -> (Redis, Node) {
    let redis = Redis::start();
    let address = redis.address.to_string();
    let mut all = vec!["--redis", &address];
    all.extend_from_slice(flags);
    let node = Node::start_by(prepare, &all);
    (redis, node)
}

/// A client that sends bytes and reads bytes.
pub struct Client {
    pub stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream, received: Vec::new() }
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn send(&mut self, words: &[&str]) {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.send_words(&words);
    }

    pub fn send_words(&mut self, words: &[&[u8]]) {
        self.send_bytes(&command(words));
    }

    /// One command and its reply, shown as text: `OK`, `(1, "ok")`, `-ERR …`, `nil`, `{a: 1}`, `>(…)`.
    #[track_caller]
    pub fn ask(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.receive()
    }

    /// Commands one after the other, each a line of words; their replies.
    #[track_caller]
    pub fn ask_all(&mut self, lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| self.ask(&line.split(' ').collect::<Vec<_>>())).collect()
    }

    /// The same, sent at once.
    #[track_caller]
    pub fn pipeline(&mut self, lines: &[&str]) -> Vec<String> {
        let words = lines.iter().map(|line| line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        let frames: Vec<u8> = words.flat_map(|words| command(&words)).collect();
        self.send_bytes(&frames);
        lines.iter().map(|_| self.receive()).collect()
    }

    #[track_caller]
    pub fn receive(&mut self) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut at = 0;
            if let Some(text) = show(&self.received, &mut at) {
                self.received.drain(..at);
                return text;
            }
            assert!(Instant::now() < deadline, "no reply in time");
            let mut piece = [0; 65_536];
            match self.stream.read(&mut piece) {
                Ok(0) => return "(closed)".to_string(),
                Ok(count) => self.received.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return "(closed)".to_string()
                }
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    /// Whether nothing comes for this long.
    pub fn hears_nothing_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let mut piece = [0; 4096];
        let silent = self.received.is_empty()
            && matches!(self.stream.read(&mut piece), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        silent
    }

    /// The fence of a grant.
    #[track_caller]
    pub fn acquire(&mut self, words: &[&str]) -> u64 {
        let mut all = vec!["LOCK.ACQUIRE"];
        all.extend_from_slice(words);
        let reply = self.ask(&all);
        fence_of(&reply)
    }
}

/// The fence in `(fence, ttl)`.
#[track_caller]
pub fn fence_of(reply: &str) -> u64 {
    let fence =
        reply.strip_prefix('(').and_then(|rest| rest.split(',').next()).and_then(|text| text.parse().ok());
    fence.unwrap_or_else(|| panic!("no grant: {reply}"))
}

pub fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        frame.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        frame.extend_from_slice(word);
        frame.extend_from_slice(b"\r\n");
    }
    frame
}

/// One reply as text; `None` where it is not whole.
pub fn show(bytes: &[u8], at: &mut usize) -> Option<String> {
    let rest = bytes.get(*at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let line = String::from_utf8_lossy(&rest[..end]).into_owned();
    *at += end + 2;
    let (kind, text) = line.split_at(1);
    let items = |at: &mut usize, count: usize| -> Option<String> {
        let items: Option<Vec<String>> = (0..count).map(|_| show(bytes, at)).collect();
        Some(items?.join(", "))
    };
    Some(match kind {
        "+" => text.to_string(),
        "-" => line,
        ":" | "," | "#" | "(" => text.to_string(),
        "_" => "nil".to_string(),
        "$" | "=" if text == "-1" => "nil".to_string(),
        "*" if text == "-1" => "nil-array".to_string(),
        "$" | "=" => {
            let len: usize = text.parse().unwrap();
            let value = bytes.get(*at..*at + len + 2)?;
            *at += len + 2;
            format!("\"{}\"", value[..len].escape_ascii())
        }
        "*" | "~" => format!("({})", items(at, text.parse().unwrap())?),
        ">" => format!(">({})", items(at, text.parse().unwrap())?),
        "%" => format!("{{{}}}", items(at, 2 * text.parse::<usize>().unwrap())?),
        _ => panic!("not RESP: {line}"),
    })
}
