//! A Redis behind that Sentinels watch over: its master is killed, hangs, or is cut off from them, and Tier 1 goes on at the next one.
//! And a Redis at a fixed place, whose connections fall silent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redfence_tests::artifacts;
use redfence_tests::ask;
use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::cluster::{Cluster, Options as ClusterOptions};
use redfence_tests::process::{free_address, poll_until, Process};
use redfence_tests::redis::{Options, Redis};
use redfence_tests::resp::{encode, Connection, Protocol, ReceiveError, Value};
use redfence_tests::words;
use tempfile::TempDir;

/// The Sentinels take a second to miss the master, and a moment to promote another; a busy machine more.
const FAILOVER_WITHIN: Duration = Duration::from_secs(60);
const TTL_MS: u64 = 60_000;

struct Sentinels {
    addresses: Vec<String>,
    _processes: Vec<Process>,
    _folder: TempDir,
}

impl Sentinels {
    /// Three of them, which know each other and both replicas.
    fn start(master: &Redis) -> Sentinels {
        let folder = TempDir::with_prefix("redfence-sentinels-").expect("a temporary directory");
        let (mut addresses, mut processes) = (Vec::new(), Vec::new());
        for number in 1..=3 {
            let address = free_address();
            processes.push(start_sentinel(folder.path(), number, address.port(), master.address().port()));
            addresses.push(address.to_string());
        }
        for address in &addresses {
            let ready = poll_until(FAILOVER_WITHIN, || {
                let known = |field| master_field(address, field).unwrap_or_default();
                known("num-slaves") == "2" && known("num-other-sentinels") == "2"
            });
            assert!(ready, "Sentinel {address} does not know all others");
        }
        Sentinels { addresses, _processes: processes, _folder: folder }
    }
}

fn start_sentinel(folder: &Path, number: usize, port: u16, master: u16) -> Process {
    let file = folder.join(format!("sentinel{number}.conf"));
    let text = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n",
        folder.display()
    );
    std::fs::write(&file, text).expect("its configuration is written");
    let mut command = Command::new(artifacts::redis_server().expect("redis-server"));
    command.arg(&file).arg("--sentinel");
    Process::start("sentinel", command, &folder.join(format!("sentinel{number}.log"))).expect("a Sentinel")
}

/// What a Sentinel says of the master. `None` while it does not answer.
fn master_field(sentinel: &str, field: &str) -> Option<String> {
    let address = sentinel.parse().expect("an address");
    let mut connection = Connection::open(address).ok()?;
    let reply = connection.ask(&["SENTINEL", "MASTER", "main"], Duration::from_secs(2)).ok()?;
    let Value::Array(words) = reply else { return None };
    let at = words.iter().position(|word| *word == Value::Bulk(field.into()))?;
    words.get(at + 1).map(Value::text)
}

fn replica_of(master: &Redis, mut options: Options) -> Redis {
    options.settings.extend(["--replicaof".into(), "127.0.0.1".into(), master.address().port().to_string()]);
    let replica = Redis::start(&options);
    let synced = poll_until(FAILOVER_WITHIN, || {
        replica.ask(&["INFO", "replication"]).text().contains("master_link_status:up")
    });
    assert!(synced, "the replica does not follow");
    replica
}

/// Asked again where the connection is closed: a Redis that gets another role closes all of them.
fn read(redis: &Redis, args: &[&str]) -> Value {
    let mut answer = None;
    let is_answered = poll_until(FAILOVER_WITHIN, || {
        answer = redis.connect(Protocol::Resp2).ask(args, REPLY_WITHIN).ok();
        answer.is_some()
    });
    assert!(is_answered, "{args:?} is not answered\n{}", redis.log());
    answer.expect("an answer")
}

/// Asked again while nothing was done: Sentinels may name the old master once more when it comes back.
fn once_available(mut ask: impl FnMut() -> Value) -> Value {
    let mut answer = ask();
    let is_refused = |answer: &Value| matches!(answer, Value::Error(text) if text.starts_with("UNAVAILABLE"));
    poll_until(FAILOVER_WITHIN, || {
        if is_refused(&answer) {
            answer = ask();
        }
        !is_refused(&answer)
    });
    answer
}

fn is_master(redis: &Redis) -> bool {
    read(redis, &["ROLE"]).array()[0].text() == "master"
}

/// Takes and gives back locks until it is told to stop. Answers how many, and the longest time without one.
fn work(
    cluster: &Cluster,
    number: usize,
    stop: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<(u64, Duration)> {
    let (address, stop) = (cluster.node(1).address, Arc::clone(stop));
    std::thread::spawn(move || {
        let mut connection = Connection::open(address).expect("a connection");
        let name = format!("worker-{number}");
        let (mut count, mut last_fence, mut last, mut longest) = (0, 0, Instant::now(), Duration::ZERO);
        while !stop.load(Ordering::Relaxed) {
            let reply = connection.ask(&["LOCK.ACQUIRE", &name, "1000"], REPLY_WITHIN).expect("an answer");
            match &reply {
                Value::Array(words) => {
                    let fence = words[0].integer();
                    assert!(fence > last_fence, "{name}: fence {fence} after {last_fence}");
                    (last_fence, count) = (fence, count + 1);
                    (longest, last) = (longest.max(last.elapsed()), Instant::now());
                    let words = ["LOCK.RELEASE", &name, &fence.to_string()];
                    let _ = connection.ask(&words, REPLY_WITHIN).expect("an answer");
                }
                // A grant whose answer was lost.
                Value::NullBulk | Value::NullArray => {}
                Value::Error(code) => {
                    let known = ["UNAVAILABLE", "INDETERMINATE", "UNBLOCKED", "READONLY"];
                    assert!(known.iter().any(|known| code.starts_with(known)), "{code}");
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => panic!("{other:?}"),
            }
        }
        (count, longest)
    })
}

fn a_killed_master_is_followed(options: &Options) {
    let mut master = Redis::start(options);
    let replicas = [replica_of(&master, options.clone()), replica_of(&master, options.clone())];
    let sentinels = Sentinels::start(&master);
    // The first of the list does not answer.
    let list = format!("{},{}", free_address(), sentinels.addresses.join(","));
    let flags = ["--redis", &format!("redis-sentinel://{list}/main"), "--default-tier", "efficiency"];
    let cluster = Cluster::start(&ClusterOptions {
        nodes: 1,
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        ..ClusterOptions::default()
    });
    let mut client = cluster.node(1).client();
    let held = poll_until(FAILOVER_WITHIN, || {
        matches!(ask!(client, "LOCK.ACQUIRE", "held", 60_000), Value::Array(_))
    });
    assert!(held, "Tier 1 is not served");
    assert!(is_master(&master));

    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..4).map(|number| work(&cluster, number, &stop)).collect();
    let mut waiter = cluster.node(1).client();
    waiter.start_waiting("held", 1_000, 20_000, "waiter");
    std::thread::sleep(Duration::from_millis(500));
    master.kill();
    // Told, or served, or out of time: but answered.
    waiter.try_receive(FAILOVER_WITHIN).expect("an answer");
    let mut fence = 0;
    let goes_on = poll_until(FAILOVER_WITHIN, || match ask!(client, "LOCK.ACQUIRE", "next", TTL_MS) {
        Value::Array(words) => {
            fence = words[0].integer();
            true
        }
        _ => false,
    });
    assert!(goes_on, "Tier 1 has not come back");
    let new = replicas.iter().find(|replica| is_master(replica)).expect("one of them is the master now");
    assert_eq!(read(new, &["EXISTS", "next"]).integer(), 1, "the lock is not at the new master");

    // The old master comes back as a replica; nobody goes there.
    master.restart(options);
    let demoted = poll_until(FAILOVER_WITHIN, || !is_master(&master));
    assert!(demoted, "the Sentinels leave the old master as it is");
    let released = once_available(|| ask!(client, "LOCK.RELEASE", "next", fence));
    assert_eq!(released.array()[0].integer(), 1, "{released:?}");
    let again = once_available(|| ask!(client, "LOCK.ACQUIRE", "next", TTL_MS));
    assert!(again.array()[0].integer() > fence, "{again:?}");
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        let (count, longest) = worker.join().expect("a worker");
        println!("{count} locks, longest time without one {longest:?}");
        assert!(count > 0);
    }
}

#[test]
fn a_killed_master_is_followed_with_the_module() {
    a_killed_master_is_followed(&Options::with_module());
}

#[test]
fn a_killed_master_is_followed_with_the_lua_library() {
    a_killed_master_is_followed(&Options::plain());
}

/// A Sentinel that names the master it is told to, whatever the Redis servers say.
struct NamingSentinel {
    address: SocketAddr,
    named: Arc<Mutex<SocketAddr>>,
    asked: Arc<AtomicU64>,
}

impl NamingSentinel {
    fn start(master: SocketAddr) -> NamingSentinel {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port on loopback");
        let address = listener.local_addr().expect("it is bound");
        let sentinel = NamingSentinel { address, named: Arc::new(Mutex::new(master)), asked: Arc::default() };
        let (named, asked) = (Arc::clone(&sentinel.named), Arc::clone(&sentinel.asked));
        // Ends with the process.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (named, asked) = (Arc::clone(&named), Arc::clone(&asked));
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(1..) = stream.read(&mut buffer) {
                        asked.fetch_add(1, Ordering::Relaxed);
                        let master = *named.lock().expect("a master");
                        let answer = encode(&[master.ip().to_string(), master.port().to_string()]);
                        if stream.write_all(&answer).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        sentinel
    }

    fn name(&self, master: &Redis) {
        *self.named.lock().expect("a master") = master.address();
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn node_behind(redis: &str) -> Cluster {
    let flags = ["--redis", redis, "--default-tier", "efficiency"];
    Cluster::start(&ClusterOptions {
        nodes: 1,
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        ..ClusterOptions::default()
    })
}

fn node_watched_by(sentinel: &NamingSentinel) -> Cluster {
    node_behind(&format!("redis-sentinel://{}/main", sentinel.address))
}

/// Tries again, on new connections, until the lock is granted.
fn acquire_at_last(cluster: &Cluster, name: &str) {
    let mut last = None;
    let words = ["LOCK.ACQUIRE", name, "600000", "OWNER", name];
    let granted = poll_until(FAILOVER_WITHIN, || {
        last = cluster.node(1).ask(&words, REPLY_WITHIN);
        matches!(last, Some(Value::Array(_)))
    });
    assert!(granted, "Tier 1 has not come back: {last:?}");
}

fn await_outage(cluster: &Cluster) {
    let mut number = 0;
    let is_down = poll_until(FAILOVER_WITHIN, || {
        number += 1;
        let words = ["LOCK.ACQUIRE", &format!("outage-{number}"), "1"];
        let reply = cluster.node(1).ask(&words, Duration::from_secs(1));
        matches!(reply, Some(Value::Error(text)) if text.starts_with("UNAVAILABLE"))
    });
    assert!(is_down, "the node has not noticed");
}

fn is_told_that_nobody_knows(client: &mut Client) {
    let reply = client.try_receive(FAILOVER_WITHIN).expect("an answer");
    assert_eq!(reply.error_code(), "INDETERMINATE", "{reply:?}");
}

/// Whatever comes before.
fn is_disconnected(client: &mut Client) {
    let deadline = Instant::now() + FAILOVER_WITHIN;
    while Instant::now() < deadline {
        match client.try_receive(Duration::from_secs(1)) {
            Ok(_) | Err(ReceiveError::TimedOut) => {}
            Err(ReceiveError::Closed) => return,
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("its connection was not closed");
}

/// The Sentinels name another master, while the old one still believes to be one and is reached.
fn nothing_stays_at_the_old_master(options: &Options) {
    let old = Redis::start(options);
    let new = replica_of(&old, options.clone());
    let sentinel = NamingSentinel::start(old.address());
    let cluster = node_watched_by(&sentinel);
    acquire_at_last(&cluster, "held");
    let client = || cluster.node(1).client();
    let (mut waiter, mut blocked, mut monitor, mut idle) = (client(), client(), client(), client());
    waiter.start_waiting("held", 60_000, 600_000, "waiter");
    client().await_waiters("held", 1);
    // One connection of each kind that has been used and is kept.
    let reply = ask!(idle, "LOCK.ACQUIRE", "before", 600_000, "WAIT", 1_000);
    assert!(matches!(reply, Value::Array(_)), "{reply:?}");
    blocked.send(&words!["BLPOP", "list", "0"]);
    let blocks =
        poll_until(FAILOVER_WITHIN, || old.ask(&["INFO", "clients"]).text().contains("blocked_clients:2"));
    assert!(blocks, "two wait there: BLPOP, and the waiter");
    assert_eq!(ask!(monitor, "MONITOR"), Value::Simple(b"OK".to_vec()));

    assert_eq!(new.ask(&["REPLICAOF", "NO", "ONE"]), Value::Simple(b"OK".to_vec()));
    sentinel.name(&new);
    is_told_that_nobody_knows(&mut waiter);
    is_told_that_nobody_knows(&mut blocked);
    is_disconnected(&mut monitor);
    acquire_at_last(&cluster, "after");
    for number in 0..20 {
        let name = format!("fresh-{number}");
        let mut client = if number % 2 == 0 { client() } else { waiter };
        let reply = ask!(client, "LOCK.ACQUIRE", &name, 600_000, "WAIT", 1_000);
        assert!(matches!(reply, Value::Array(_)), "{reply:?}");
        assert_eq!(new.ask(&["EXISTS", &name]).integer(), 1, "{name} is not at the new master");
        assert_eq!(old.ask(&["EXISTS", &name]).integer(), 0, "{name} is at the old master");
        waiter = client;
    }
    assert!(is_master(&old), "nobody has told it");
}

#[test]
fn nothing_stays_at_the_old_master_with_the_module() {
    nothing_stays_at_the_old_master(&Options::with_module());
}

#[test]
fn nothing_stays_at_the_old_master_with_the_lua_library() {
    nothing_stays_at_the_old_master(&Options::plain());
}

/// It accepts connections, as its kernel does that for it, and says nothing.
#[test]
fn a_master_that_hangs_is_left() {
    let old = Redis::start(&Options::plain());
    let new = replica_of(&old, Options::plain());
    let sentinel = NamingSentinel::start(old.address());
    let cluster = node_watched_by(&sentinel);
    acquire_at_last(&cluster, "held");
    old.process().signal(libc::SIGSTOP);
    await_outage(&cluster);
    // It connects to the one that hangs, and gives it up, more than once.
    let before = sentinel.asked();
    let goes_on = poll_until(FAILOVER_WITHIN, || sentinel.asked() >= before + 3);
    assert!(goes_on, "the Sentinel was asked {} times", sentinel.asked() - before);
    assert_eq!(new.ask(&["REPLICAOF", "NO", "ONE"]), Value::Simple(b"OK".to_vec()));
    sentinel.name(&new);
    acquire_at_last(&cluster, "after");
    assert_eq!(new.ask(&["EXISTS", "after"]).integer(), 1);
    old.process().signal(libc::SIGCONT);
}

/// Passes bytes on. Connections that were there while it was silent stay silent for ever, as if the other end had forgotten them.
#[derive(Clone)]
struct ForgetfulRelay {
    address: SocketAddr,
    /// Odd while nothing passes; a connection passes bytes while it is what it was at first.
    age: Arc<AtomicU64>,
}

impl ForgetfulRelay {
    fn start(target: SocketAddr) -> ForgetfulRelay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port on loopback");
        let address = listener.local_addr().expect("it is bound");
        let relay = ForgetfulRelay { address, age: Arc::default() };
        let of_all = relay.clone();
        // Ends with the process.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(target) else { continue };
                let age = of_all.age.load(Ordering::SeqCst);
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                    let relay = of_all.clone();
                    std::thread::spawn(move || relay.pass_on(age, from, to));
                }
            }
        });
        relay
    }

    fn pass_on(&self, age: u64, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let passes = age.is_multiple_of(2) && self.age.load(Ordering::SeqCst) == age;
            if passes && to.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    }

    fn turn(&self) {
        self.age.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn connections_that_fell_silent_are_replaced() {
    let redis = Redis::start(&Options::plain());
    let relay = ForgetfulRelay::start(redis.address());
    let cluster = node_behind(&relay.address.to_string());
    acquire_at_last(&cluster, "held");
    // After so many small replies a client shares its connection with others.
    let mut sharing = cluster.node(1).client();
    for number in 0..100 {
        assert_eq!(ask!(sharing, "SET", format!("key-{number}"), "value"), Value::Simple(b"OK".to_vec()));
    }
    let mut listener = cluster.node(1).client();
    assert!(matches!(ask!(listener, "SUBSCRIBE", "news"), Value::Array(_)));

    relay.turn();
    await_outage(&cluster);
    relay.turn();
    acquire_at_last(&cluster, "after");
    sharing.send(&words!["SET", "key", "value"]);
    is_told_that_nobody_knows(&mut sharing);
    assert_eq!(ask!(sharing, "SET", "key", "value"), Value::Simple(b"OK".to_vec()));
    is_disconnected(&mut listener);
    let mut listener = cluster.node(1).client();
    let listens = poll_until(FAILOVER_WITHIN, || {
        listener = cluster.node(1).client();
        matches!(ask!(listener, "SUBSCRIBE", "news"), Value::Array(_))
    });
    assert!(listens, "nobody can subscribe");
    redis.ask(&["PUBLISH", "news", "text"]);
    assert!(matches!(listener.receive(), Value::Array(words) if words[2] == Value::bulk("text")));
}
