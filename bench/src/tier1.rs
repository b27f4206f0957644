//! `redfence-bench tier1 [path of libredfence_module.so]`: lock pairs on one Redis, side by side in one run.
//!
//! Three ways to take a lock and give it back, in turns of a tenth of a second so that all see the same weather: `SET NX PX` with a
//! compare-and-delete script, the same with a fencing counter in the script, and `LOCK.ACQUIRE`/`LOCK.RELEASE` of the module. 32 clients, one request in flight each,
//! driven by one thread; every client cycles through names of its own, so no lock is contended.
//! Starts a redis-server of its own on a free port, without persistence.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CLIENTS: usize = 32;
const NAMES_PER_CLIENT: usize = 500;
const TURNS: usize = 60;
const TURNS_TO_WARM_UP: usize = 5;
const TURN: Duration = Duration::from_millis(100);
const TTL_MS: &str = "30000";

const COMPARE_AND_DELETE: &str =
    "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const FENCED: &str = "if redis.call('set',KEYS[1],ARGV[1],'NX','PX',ARGV[2]) then return redis.call('incr',KEYS[2]) else return false end";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    SetNx,
    Fenced,
    Module,
}

const WAYS: [Way; 3] = [Way::SetNx, Way::Fenced, Way::Module];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::SetNx => "set_nx_and_script",
            Way::Fenced => "fenced_script",
            Way::Module => "module",
        }
    }
}

/// What one way has done so far.
#[derive(Default)]
struct Tally {
    pairs: u64,
    wall_us: f64,
    /// Processor time the server spent, which other programs on the machine disturb less than the clock.
    cpu_us: f64,
    latencies_us: Vec<u32>,
}

impl Tally {
    fn pairs_per_s(&self) -> f64 {
        self.pairs as f64 / self.wall_us * 1e6
    }

    fn cpu_us_per_pair(&self) -> f64 {
        self.cpu_us / self.pairs as f64
    }
}

pub(crate) fn run(options: &crate::options::Options) -> Result<(), String> {
    let module = options.module()?.to_string_lossy().into_owned();
    let server = Server::start(&module);
    let mut control = server.connect();
    let scripts = [COMPARE_AND_DELETE, FENCED].map(|script| load_script(&mut control, script));
    let mut clients =
        WAYS.map(|_| (0..CLIENTS).map(|number| Client::new(&server, number)).collect::<Vec<_>>());
    let mut tallies: [Tally; 3] = Default::default();
    for turn in 0..TURNS_TO_WARM_UP + TURNS {
        for (at, way) in WAYS.into_iter().enumerate() {
            let mut tally = Tally::default();
            let (cpu_before_us, started) = (server.cpu_us(), Instant::now());
            one_turn(&mut clients[at], way, &scripts, &mut tally);
            if turn >= TURNS_TO_WARM_UP {
                tallies[at].wall_us += started.elapsed().as_secs_f64() * 1e6;
                tallies[at].cpu_us += server.cpu_us() - cpu_before_us;
                tallies[at].pairs += tally.pairs;
                tallies[at].latencies_us.extend(tally.latencies_us);
            }
        }
    }
    for (way, tally) in WAYS.into_iter().zip(&mut tallies) {
        report(way, tally);
    }
    let [set_nx, fenced, module] = &tallies;
    compare("set_nx_and_script", module, set_nx, "1.0");
    compare("fenced_script", module, fenced, "1.1");
    Ok(())
}

fn report(way: Way, tally: &mut Tally) {
    tally.latencies_us.sort_unstable();
    let at = |per_mille: usize| {
        let last = tally.latencies_us.len().saturating_sub(1);
        tally.latencies_us.get(last * per_mille / 1000).copied().unwrap_or(0)
    };
    println!(
        "tier1 {}: {:.0} pairs/s; server {:.2} us a pair; one command p50 {} us, p99 {} us, p99.9 {} us",
        way.name(),
        tally.pairs_per_s(),
        tally.cpu_us_per_pair(),
        at(500),
        at(990),
        at(999)
    );
}

fn compare(name: &str, ours: &Tally, theirs: &Tally, goal: &str) {
    println!(
        "tier1 module / {name}: {:.2} x pairs/s (goal {goal}), {:.2} x pairs per second of the server's processor",
        ours.pairs_per_s() / theirs.pairs_per_s(),
        theirs.cpu_us_per_pair() / ours.cpu_us_per_pair()
    );
}

/// Which half of a pair a client waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Acquire,
    Release,
}

struct Client {
    stream: TcpStream,
    number: usize,
    pair: usize,
    half: Half,
    sent_at: Instant,
    request: Vec<u8>,
    reply: Vec<u8>,
}

fn one_turn(clients: &mut [Client], way: Way, scripts: &[String; 2], tally: &mut Tally) {
    let started = Instant::now();
    for client in clients.iter_mut() {
        client.send(way, scripts, 0);
    }
    let mut polled: Vec<libc::pollfd> = clients
        .iter()
        .map(|client| libc::pollfd { fd: client.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let mut in_flight = clients.len();
    while in_flight > 0 {
        // SAFETY: the array is live and as long as said.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 5_000) };
        assert!(ready > 0, "Redis answers within five seconds");
        for (client, poll) in clients.iter_mut().zip(&mut polled) {
            if poll.revents == 0 || !client.receive() {
                continue;
            }
            tally.latencies_us.push(client.sent_at.elapsed().as_micros() as u32);
            let fence = client.check_reply(way);
            client.half = match client.half {
                Half::Acquire => Half::Release,
                Half::Release => {
                    tally.pairs += 1;
                    client.pair += 1;
                    Half::Acquire
                }
            };
            if client.half == Half::Acquire && started.elapsed() >= TURN {
                in_flight -= 1;
                poll.fd = -1;
            } else {
                client.send(way, scripts, fence);
            }
        }
    }
}

impl Client {
    fn new(server: &Server, number: usize) -> Client {
        Client {
            stream: server.connect(),
            number,
            pair: 0,
            half: Half::Acquire,
            sent_at: Instant::now(),
            request: Vec::with_capacity(256),
            reply: Vec::with_capacity(256),
        }
    }

    fn send(&mut self, way: Way, [compare_and_delete, fenced]: &[String; 2], fence: u64) {
        let name = format!("{}:{}:{}", way.name(), self.number, self.pair % NAMES_PER_CLIENT);
        // As long as a UUID, and unique to the attempt.
        let owner = format!("{:08x}-0000-4000-8000-{:015}", self.number, self.pair);
        let fence = fence.to_string();
        let counter = format!("counter:{name}");
        let words: &[&str] = match (way, self.half) {
            (Way::SetNx, Half::Acquire) => &["SET", &name, &owner, "NX", "PX", TTL_MS],
            (Way::Fenced, Half::Acquire) => &["EVALSHA", fenced, "2", &name, &counter, &owner, TTL_MS],
            (Way::SetNx | Way::Fenced, Half::Release) => &["EVALSHA", compare_and_delete, "1", &name, &owner],
            (Way::Module, Half::Acquire) => &["LOCK.ACQUIRE", &name, TTL_MS, "OWNER", &owner],
            (Way::Module, Half::Release) => &["LOCK.RELEASE", &name, &fence],
        };
        self.request.clear();
        encode(words, &mut self.request);
        self.sent_at = Instant::now();
        self.stream.write_all(&self.request).expect("Redis reads requests");
        self.reply.clear();
    }

    /// Whether the reply is complete.
    fn receive(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let len = self.stream.read(&mut chunk).expect("Redis sends replies");
        assert!(len > 0, "Redis keeps the connection");
        self.reply.extend_from_slice(&chunk[..len]);
        let expected_lines = match self.reply.first() {
            Some(b'*') if self.half == Half::Acquire => 3,
            Some(b'*') => 4,
            Some(_) | None => 1,
        };
        self.reply.iter().filter(|byte| **byte == b'\n').count() >= expected_lines
    }

    /// Every acquire must be granted and every release accepted, or the figures mean nothing. Answers the module's fence.
    fn check_reply(&self, way: Way) -> u64 {
        let text = String::from_utf8_lossy(&self.reply);
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or("");
        match (way, self.half) {
            (Way::SetNx, Half::Acquire) => assert_eq!(first, "+OK"),
            (Way::Fenced, Half::Acquire) => assert!(first.starts_with(':'), "{text}"),
            (Way::SetNx | Way::Fenced, Half::Release) => assert_eq!(first, ":1"),
            (Way::Module, Half::Acquire) => {
                let fence = lines
                    .next()
                    .and_then(|line| line.strip_prefix(':'))
                    .and_then(|digits| digits.parse().ok());
                return fence.unwrap_or_else(|| panic!("not granted: {text}"));
            }
            (Way::Module, Half::Release) => assert_eq!(lines.next(), Some(":1"), "{text}"),
        }
        0
    }
}

fn encode(words: &[&str], into: &mut Vec<u8>) {
    let _ = write!(into, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(into, "${}\r\n{word}\r\n", word.len());
    }
}

fn load_script(control: &mut TcpStream, script: &str) -> String {
    let mut request = Vec::new();
    encode(&["SCRIPT", "LOAD", script], &mut request);
    control.write_all(&request).expect("Redis reads requests");
    let mut reply = [0; 256];
    let len = control.read(&mut reply).expect("Redis sends replies");
    let text = String::from_utf8_lossy(&reply[..len]).into_owned();
    text.split("\r\n").nth(1).unwrap_or_else(|| panic!("no digest in {text}")).to_owned()
}

/// A redis-server of our own, stopped on drop.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(module: &str) -> Server {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let port = TcpListener::bind("127.0.0.1:0")
                .and_then(|probe| probe.local_addr())
                .expect("a free port")
                .port();
            let process = Command::new("redis-server")
                .args([
                    "--port",
                    &port.to_string(),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ])
                .args(["--loadmodule", module])
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server can be started");
            let mut server = Server { process, port };
            while Instant::now() < deadline && matches!(server.process.try_wait(), Ok(None)) {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return server;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(Instant::now() < deadline, "redis-server with {module} does not start");
        }
    }

    /// Time its main thread has run so far.
    fn cpu_us(&self) -> f64 {
        let id = self.process.id();
        let stat = std::fs::read_to_string(format!("/proc/{id}/task/{id}/schedstat")).unwrap_or_default();
        stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e3
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("Redis accepts");
        stream.set_nodelay(true).expect("a socket option");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
