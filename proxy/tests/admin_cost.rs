//! What dashboards cost beside served locks. Prints figures; run by hand on a quiet machine:
//! `cargo test --release -p redfence --test admin_cost -- --ignored --nocapture`

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{await_that, free_address, Client, Node, PATIENCE};

const LOCKS: usize = 1_000_000;
const BATCH: usize = 1_000;
const DASHBOARDS: usize = 100;
const MEASURED: Duration = Duration::from_secs(10);

fn start() -> (Node, SocketAddr) {
    let admin = free_address();
    let node = Node::start(&["--admin", &admin.to_string(), "--log", "error,redfence=info"]);
    await_that("it serves", || get(admin, "/ready").ends_with("ready\n"));
    (node, admin)
}

fn request(admin: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE * 3)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n").unwrap();
    stream
}

fn get(admin: SocketAddr, path: &str) -> String {
    let mut text = String::new();
    request(admin, path).read_to_string(&mut text).unwrap();
    text
}

fn json(admin: SocketAddr, path: &str) -> serde_json::Value {
    let text = get(admin, path);
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|_| panic!("{path}: {text}"))
}

/// Takes and gives back a lock until told to stop: how many, and the longest operation.
fn serve_locks(client: &mut Client, stop: &AtomicBool) -> (u64, Duration) {
    let (mut count, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let granted = client.ask(&["LOCK.ACQUIRE", "beside", "60000"]);
        longest = longest.max(begun.elapsed());
        let fence = granted.trim_matches(['(', ')']).split(',').next().unwrap().to_owned();
        let begun = Instant::now();
        client.ask(&["LOCK.RELEASE", "beside", &fence]);
        longest = longest.max(begun.elapsed());
        count += 2;
    }
    (count, longest)
}

/// The same while `work` runs.
fn beside<T>(node: &Node, work: impl FnOnce() -> T) -> (T, u64, Duration) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let locks = scope.spawn(|| serve_locks(&mut node.connect(), &stop));
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let (count, longest) = locks.join().unwrap();
        (done, count, longest)
    })
}

#[test]
#[ignore = "a million locks: prints figures"]
fn a_search_over_a_million_locks_beside_served_locks() {
    let (node, admin) = start();
    let mut client = node.connect();
    for batch in 0..LOCKS / BATCH {
        for number in 0..BATCH {
            client.send(&["LOCK.ACQUIRE", &format!("held:{:07}", batch * BATCH + number), "3600000"]);
        }
        (0..BATCH).for_each(|_| drop(client.receive()));
    }
    let ((), count, longest) = beside(&node, || std::thread::sleep(MEASURED));
    println!("no search: {count} operations, the longest took {longest:?}");
    let ((requests, slowest, found), count, longest) = beside(&node, || {
        let (mut cursor, mut requests, mut slowest, mut found) = ("0".to_owned(), 0, Duration::ZERO, 0);
        loop {
            let begun = Instant::now();
            let page = json(admin, &format!("/api/v1/locks?match=held:*99999&cursor={cursor}"));
            slowest = slowest.max(begun.elapsed());
            requests += 1;
            found += page["locks"].as_array().unwrap().len();
            cursor = page["cursor"].as_str().unwrap().to_owned();
            if cursor == "0" {
                return (requests, slowest, found);
            }
        }
    });
    assert_eq!(found, LOCKS / 100_000);
    println!(
        "search for 10 of a million: {requests} requests, the slowest took {slowest:?}; beside it {count} operations, the longest took {longest:?}"
    );
    for sort in ["waiters", "age", "ttl"] {
        let path = format!("/api/v1/locks?sort={sort}&count=100");
        let ((took, looked_at), count, longest) = beside(&node, || {
            let begun = Instant::now();
            let page = json(admin, &path);
            (begun.elapsed(), page["looked_at"].clone())
        });
        println!(
            "sorted by {sort}: {took:?} for {looked_at} locks; beside it {count} operations, the longest took {longest:?}"
        );
    }
}

/// CPU time of the node so far, in ticks of 10 ms.
fn cpu_ticks(node: &Node) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.process.child.id())).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
#[ignore = "half a minute: prints figures"]
fn the_cost_of_a_hundred_open_dashboards() {
    let (node, admin) = start();
    let measure = |what: &str| {
        let before = cpu_ticks(&node);
        let (polls, count, longest) = beside(&node, || {
            let (begun, mut polls) = (Instant::now(), 0);
            // A dashboard asks for its overview every five seconds.
            while begun.elapsed() < MEASURED {
                if what != "none" {
                    json(admin, "/api/v1/overview");
                    polls += 1;
                }
                std::thread::sleep(Duration::from_millis(5_000 / DASHBOARDS as u64));
            }
            polls
        });
        let per_operation_us = (cpu_ticks(&node) - before) as f64 * 10_000.0 / count as f64;
        println!(
            "{what} dashboards: {count} operations in {MEASURED:?}, the longest took {longest:?}; {per_operation_us:.0} µs of CPU each; {polls} overviews"
        );
    };
    measure("none");
    let streams: Vec<TcpStream> = (0..DASHBOARDS).map(|_| request(admin, "/api/v1/events")).collect();
    let readers: Vec<_> = streams
        .iter()
        .map(|stream| {
            let mut stream = stream.try_clone().unwrap();
            std::thread::spawn(move || {
                let mut scratch = vec![0; 64 << 10];
                let mut bytes = 0_usize;
                while let Ok(count @ 1..) = stream.read(&mut scratch) {
                    bytes += count;
                }
                bytes
            })
        })
        .collect();
    measure("100");
    for stream in &streams {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    let bytes: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    println!("events sent to 100 streams: {} MB", bytes / 1_000_000);
    assert!(bytes > 0);
}
