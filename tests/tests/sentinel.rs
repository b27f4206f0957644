//! A Redis behind that three Sentinels watch over: its master is killed under load, and Tier 1 goes on at the next one.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redfence_tests::artifacts;
use redfence_tests::ask;
use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::cluster::{Cluster, Options as ClusterOptions};
use redfence_tests::process::{free_address, poll_until, Process};
use redfence_tests::redis::{Options, Redis};
use redfence_tests::resp::{Connection, Value};
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

fn is_master(redis: &Redis) -> bool {
    redis.ask(&["ROLE"]).array()[0].text() == "master"
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
    assert_eq!(new.ask(&["EXISTS", "next"]).integer(), 1, "the lock is not at the new master");

    // The old master comes back as a replica; nobody goes there.
    master.restart(options);
    let demoted = poll_until(FAILOVER_WITHIN, || !is_master(&master));
    assert!(demoted, "the Sentinels leave the old master as it is");
    client.release("next", fence);
    let again = client.acquire("next", TTL_MS).fence;
    assert!(again > fence);
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
