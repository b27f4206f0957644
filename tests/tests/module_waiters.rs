//! A thousand waiters on one lock: some leave, some time out, some holders never give it back. Exactly one holder at a
//! time, order kept, nobody left without an answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use redfence_tests::client::{Client, SocketWire};
use redfence_tests::cluster::{self, Cluster};
use redfence_tests::expect;
use redfence_tests::process::{allow_open_files, poll_until};
use redfence_tests::redis::{Options, Redis};
use redfence_tests::resp::{Protocol, Value};
use redfence_tests::words;

const WAITERS: usize = 1_000;
const NAME: &str = "crowded";
/// The first holder never gives the lock back: once all stand in line, its ttl is cut to this, and its expiry must serve
/// the first of them.
const FIRST_TTL_MS: u64 = 200;
const SHORT_WAIT_MS: u64 = 1_000;
const SHORT_TTL_MS: u64 = 30;
const LONG_MS: u64 = 600_000;
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Gives the lock back when it has it.
    Releases,
    /// Never gives it back: its short ttl must serve the next.
    Expires,
    /// Asked to wait so briefly that it gives up before the first grant.
    TimesOut,
    /// Goes away while it stands in line.
    Leaves,
}

impl Role {
    fn of(number: usize) -> Role {
        match number % 20 {
            3 | 9 | 15 => Role::Leaves,
            6 | 13 => Role::TimesOut,
            18 => Role::Expires,
            _ => Role::Releases,
        }
    }

    fn ttl_ms(self) -> u64 {
        if self == Role::Expires {
            SHORT_TTL_MS
        } else {
            LONG_MS
        }
    }

    fn wait_ms(self) -> u64 {
        if self == Role::TimesOut {
            SHORT_WAIT_MS
        } else {
            LONG_MS
        }
    }
}

/// What one waiter saw. `from` and `until` bound the time it certainly held the lock.
#[derive(Debug)]
struct Hold {
    number: usize,
    fence: i64,
    from: Instant,
    until: Instant,
}

fn client(address: SocketAddr) -> Client {
    let wire = SocketWire::open(address, Protocol::Resp2).unwrap_or_else(|error| panic!("{error}"));
    Client::new(Box::new(wire), Protocol::Resp2)
}

/// Waiters are spread over `addresses`: one server, or the nodes of a cluster.
fn a_thousand_waiters(addresses: &[SocketAddr]) {
    allow_open_files(8_192);
    let mut watcher = client(addresses[0]);
    let first = watcher.acquire(NAME, LONG_MS);
    let mut waiters = queue_up(&mut watcher, addresses);
    let stayed: Vec<String> = expected_queue();
    // Those that time out or leave must be out of the line before the first grant.
    for (number, waiter) in waiters.iter_mut().enumerate() {
        if Role::of(number) == Role::Leaves {
            *waiter = None;
        }
    }
    let thinned = poll_until(ANSWER_WITHIN, || watcher.info(NAME).waiters <= stayed.len() as i64);
    assert!(thinned, "those that left are still in line");
    assert_eq!(watcher.queue(NAME), stayed, "the others keep their places");
    watcher.renew(NAME, first.fence, FIRST_TTL_MS);
    let (holds, late) = answers(waiters);
    check(holds, first.fence, stayed.len() - late);
    watcher.await_free(NAME);
    assert_eq!(watcher.info(NAME).waiters, 0);
    assert!(watcher.queue(NAME).is_empty());
}

fn owner(number: usize) -> String {
    format!("waiter-{number:04}")
}

/// One after the other, each seen in line before the next, so that the order is known.
fn queue_up(watcher: &mut Client, addresses: &[SocketAddr]) -> Vec<Option<Client>> {
    (0..WAITERS)
        .map(|number| {
            let role = Role::of(number);
            let mut waiter = client(addresses[number % addresses.len()]);
            waiter.send(&words![
                "LOCK.ACQUIRE",
                NAME,
                role.ttl_ms(),
                "WAIT",
                role.wait_ms(),
                "OWNER",
                owner(number)
            ]);
            let stands = poll_until(ANSWER_WITHIN, || watcher.queue(NAME).last() == Some(&owner(number)));
            assert!(stands, "waiter {number} never stood in line");
            Some(waiter)
        })
        .collect()
}

fn expected_queue() -> Vec<String> {
    (0..WAITERS)
        .filter(|number| matches!(Role::of(*number), Role::Releases | Role::Expires))
        .map(owner)
        .collect()
}

/// Every waiter that stayed gets exactly one answer; a thread each, as real clients are. Also how many were told nil, because their
/// short ttl was over before they could be told: on a busy machine that may happen.
fn answers(waiters: Vec<Option<Client>>) -> (Vec<Hold>, usize) {
    let (holds, late) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (number, waiter) in waiters.into_iter().enumerate() {
            let Some(mut waiter) = waiter else { continue };
            let (holds, late) = (&holds, &late);
            let body = move || match Role::of(number) {
                Role::TimesOut => {
                    let answer = waiter.try_receive(ANSWER_WITHIN);
                    assert_eq!(answer, Ok(Value::NullBulk), "waiter {number} asked to wait only briefly");
                }
                role => {
                    let answer = waiter.try_receive(ANSWER_WITHIN);
                    let from = Instant::now();
                    let answer =
                        answer.unwrap_or_else(|error| panic!("waiter {number} ({role:?}): {error:?}"));
                    if role == Role::Expires && answer == Value::NullBulk {
                        late.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                    let fence = expect::granted(&answer).fence;
                    let until = Instant::now();
                    holds.lock().unwrap().push(Hold { number, fence, from, until });
                    if role == Role::Releases {
                        waiter.release(NAME, fence);
                    }
                }
            };
            std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, body).expect("a thread");
        }
    });
    (holds.into_inner().unwrap(), late.into_inner())
}

fn check(mut holds: Vec<Hold>, first_fence: i64, expected: usize) {
    assert_eq!(holds.len(), expected, "every one that stayed was granted once");
    holds.sort_by_key(|hold| hold.fence);
    assert!(holds[0].fence > first_fence);
    for pair in holds.windows(2) {
        assert!(pair[0].fence < pair[1].fence, "one fence for two grants: {pair:?}");
        assert!(pair[0].number < pair[1].number, "out of turn: {pair:?}");
        assert!(pair[0].until <= pair[1].from, "two holders at a time: {pair:?}");
    }
}

#[test]
fn at_one_node_without_an_upstream_redis() {
    let cluster = Cluster::start(&cluster::Options::nodes(1).flag("--default-tier", "efficiency"));
    a_thousand_waiters(&[cluster.nodes[0].address]);
}

#[test]
fn across_three_nodes() {
    let cluster = Cluster::start(&cluster::Options::nodes(3));
    let addresses: Vec<SocketAddr> = cluster.nodes.iter().map(|node| node.address).collect();
    a_thousand_waiters(&addresses);
}

#[test]
fn at_the_module() {
    let server = Redis::start(&Options::with_module());
    a_thousand_waiters(&[server.address()]);
    // The crowd is gone and the server is whole.
    assert_eq!(server.ask(&["PING"]), Value::Simple(b"PONG".to_vec()));
}
