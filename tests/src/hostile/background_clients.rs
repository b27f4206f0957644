//! BackgroundClients clients: one at each node, acquiring and releasing a lock of its own and, now and then, one that all share.
//!
//! They retry after UNAVAILABLE, INDETERMINATE and lost connections with the same OWNER, as a client should. An attack is
//! judged by the longest wait for a lock that nobody else wants.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::client::Word;
use crate::resp::{Connection, ReceiveError, Value};

const TTL_MS: u64 = 600_000;
const SHARED: &str = "background:shared";
/// Between two rounds: a steady load, not a flood.
const PAUSE: Duration = Duration::from_millis(4);
/// One round in so many is about the lock that all share.
const SHARED_EVERY: u64 = 5;
const REPLY_WITHIN: Duration = Duration::from_secs(8);

#[derive(Default)]
struct SharedState {
    stop: AtomicBool,
    pause: AtomicBool,
    dead: AtomicBool,
    resting: AtomicU64,
    /// Exclusion of the shared lock is checked. Off during a FLUSHALL.
    exclusive: AtomicBool,
    inside: AtomicI64,
    fence: AtomicI64,
    rounds: AtomicU64,
    /// Start of the current wait of each client.
    waiting: Mutex<Vec<Option<Instant>>>,
    longest: Mutex<Duration>,
    wrong: Mutex<Vec<String>>,
}

/// The set of background clients.
pub struct BackgroundClients {
    shared: Arc<SharedState>,
    threads: Vec<JoinHandle<()>>,
}

impl BackgroundClients {
    #[must_use]
    pub fn start(nodes: &[SocketAddr]) -> BackgroundClients {
        let shared = Arc::new(SharedState::default());
        shared.exclusive.store(true, Ordering::SeqCst);
        *shared.waiting.lock().expect("mutex poisoned") = vec![None; nodes.len()];
        let threads = nodes
            .iter()
            .enumerate()
            .map(|(number, address)| {
                let (shared, address) = (Arc::clone(&shared), *address);
                std::thread::spawn(move || {
                    BackgroundClient { shared, address, number, rounds: 0, connection: None }.work()
                })
            })
            .collect();
        BackgroundClients { shared, threads }
    }

    /// The longest wait since the last call, one under way counted as far as it has come; and the rounds done so far.
    pub fn longest_wait(&self) -> (Duration, u64) {
        let under_way = self.shared.waiting.lock().expect("mutex poisoned").clone();
        let under_way =
            under_way.into_iter().flatten().map(|since| since.elapsed()).max().unwrap_or_default();
        let done = std::mem::take(&mut *self.shared.longest.lock().expect("mutex poisoned"));
        (done.max(under_way), self.shared.rounds.load(Ordering::SeqCst))
    }

    /// Whether the shared lock is watched: a FLUSHALL takes it from its holder.
    pub fn watch_shared(&self, on: bool) {
        self.shared.exclusive.store(on, Ordering::SeqCst);
    }

    /// Abandons requests in flight: the nodes are dead.
    pub fn give_up(&self) {
        self.shared.dead.store(true, Ordering::SeqCst);
        self.pause();
    }

    /// Returns when no client has a request in flight, e.g. before all nodes are stopped.
    pub fn pause(&self) {
        self.shared.pause.store(true, Ordering::SeqCst);
        let all = self.threads.len() as u64;
        crate::process::poll_until(Duration::from_secs(60), || {
            self.shared.resting.load(Ordering::SeqCst) == all
        });
    }

    pub fn go_on(&self) {
        self.shared.pause.store(false, Ordering::SeqCst);
        crate::process::poll_until(Duration::from_secs(10), || {
            self.shared.resting.load(Ordering::SeqCst) == 0
        });
        self.longest_wait();
    }

    pub fn wrong(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.wrong.lock().expect("mutex poisoned"))
    }
}

impl Drop for BackgroundClients {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // A panic in there was printed where it happened.
            let _ = thread.join();
        }
    }
}

struct BackgroundClient {
    shared: Arc<SharedState>,
    address: SocketAddr,
    number: usize,
    rounds: u64,
    connection: Option<Connection>,
}

impl BackgroundClient {
    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::SeqCst)
    }

    fn work(mut self) {
        while !self.stopped() {
            if self.shared.pause.load(Ordering::SeqCst) {
                self.shared.resting.fetch_add(1, Ordering::SeqCst);
                while self.shared.pause.load(Ordering::SeqCst) && !self.stopped() {
                    std::thread::sleep(PAUSE);
                }
                self.shared.resting.fetch_sub(1, Ordering::SeqCst);
                self.connection = None;
                continue;
            }
            self.rounds += 1;
            match self.rounds % SHARED_EVERY {
                0 => self.shared_round(),
                _ => self.own_round(),
            }
            self.shared.rounds.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(PAUSE);
        }
    }

    fn own_round(&mut self) {
        let name = format!("background:{}", self.number);
        let began = Instant::now();
        self.shared.waiting.lock().expect("mutex poisoned")[self.number] = Some(began);
        let fence = self.acquire(&name, None);
        self.shared.waiting.lock().expect("mutex poisoned")[self.number] = None;
        if fence.is_some() {
            let mut longest = self.shared.longest.lock().expect("mutex poisoned");
            *longest = longest.max(began.elapsed());
        }
        if let Some(fence) = fence {
            self.release(&name, fence);
        }
    }

    fn shared_round(&mut self) {
        let Some(fence) = self.acquire(SHARED, Some(2_000)) else { return };
        let before = self.shared.inside.fetch_add(1, Ordering::SeqCst);
        let last = self.shared.fence.swap(fence, Ordering::SeqCst);
        if self.shared.exclusive.load(Ordering::SeqCst) {
            if before != 0 {
                self.wrong(format!("two hold {SHARED} at one time, the second under fence {fence}"));
            }
            if fence <= last {
                self.wrong(format!("{SHARED} was granted under {last}, then under {fence}"));
            }
        }
        std::thread::sleep(Duration::from_millis(1));
        self.shared.inside.fetch_sub(1, Ordering::SeqCst);
        self.release(SHARED, fence);
    }

    /// Asks until there is a certain answer. None: not granted in time, or the suite is over.
    fn acquire(&mut self, name: &str, wait_ms: Option<u64>) -> Option<i64> {
        let owner = format!("background-{}-{}-{}", std::process::id(), self.number, self.rounds);
        let mut words = vec!["LOCK.ACQUIRE".word(), name.word(), TTL_MS.word(), "OWNER".word(), owner.word()];
        if let Some(wait_ms) = wait_ms {
            words.extend(["WAIT".word(), wait_ms.word()]);
        }
        loop {
            match self.ask(&words) {
                Some(Value::Array(items)) => return Some(items[0].integer()),
                Some(Value::NullBulk) => return None,
                Some(Value::Error(line)) if is_transient(&line) => {}
                Some(other) => {
                    self.wrong(format!("LOCK.ACQUIRE {name}: {other:?}"));
                    return None;
                }
                None => {}
            }
            if self.stopped() || self.shared.dead.load(Ordering::SeqCst) {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn release(&mut self, name: &str, fence: i64) {
        loop {
            match self.ask(&["LOCK.RELEASE".word(), name.word(), fence.word()]) {
                Some(Value::Array(items)) => {
                    let told = items[1].text();
                    let lost = !["ok", "already_released"].contains(&told.as_str());
                    if lost && self.shared.exclusive.load(Ordering::SeqCst) {
                        self.wrong(format!("{name} was held under {fence}; its release answered {told}"));
                    }
                    return;
                }
                Some(Value::Error(line)) if is_transient(&line) => {}
                Some(other) => return self.wrong(format!("LOCK.RELEASE {name}: {other:?}")),
                None => {}
            }
            if self.stopped() || self.shared.dead.load(Ordering::SeqCst) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn ask(&mut self, words: &[Vec<u8>]) -> Option<Value> {
        if self.connection.is_none() {
            self.connection = Connection::open(self.address).ok();
        }
        let reply = self.connection.as_mut()?.ask(words, REPLY_WITHIN);
        if let Err(ReceiveError::Garbage(text)) = &reply {
            self.wrong(format!("a background client was answered {text}"));
        }
        if reply.is_err() {
            self.connection = None;
        }
        reply.ok()
    }

    fn wrong(&self, text: String) {
        let mut wrong = self.shared.wrong.lock().expect("mutex poisoned");
        if wrong.len() < 10 {
            wrong.push(text);
        }
    }
}

fn is_transient(line: &str) -> bool {
    line.starts_with("UNAVAILABLE") || line.starts_with("INDETERMINATE")
}
