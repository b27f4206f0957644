//! The `tls-accept` thread: the TLS handshakes of clients and of whoever asks the admin address.
//!
//! Anybody who reaches a port can ask for a handshake, which costs a signature and a key exchange: milliseconds with a large RSA key.
//! So handshakes have a thread of their own, and commands never wait for a stranger's. The thread takes at most half of a core,
//! counted by its own CPU clock ([`CpuBudget`]): that is thousands of handshakes a second with ECDSA, a hundred with RSA of 4,096 bits.
//!
//! Whoever has sent something waits for a turn ([`Turns`]). Networks have turns one after the other, so a flood from one of them
//! delays the others little; handshakes that have begun take every other turn, so that they also end; within a network the newest is
//! first, because under a flood the oldest has given up. Waiting costs nothing, and whoever is silent does not wait for a turn.
//!
//! After its handshake a connection moves to the threads of the clients.

use super::acceptor::BUFFERED_BYTES_MAX;
use super::stream::WithoutWaiting;
use rustix::time::{clock_gettime, ClockId};
use rustls::{ServerConfig, ServerConnection};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, Notify};

/// Handshakes that wait for a turn, in each of the two queues. One more takes the place of the oldest of the network with the most.
const WAITING_MAX: usize = 4_096;
/// Connections on their way to the thread.
const JOBS_MAX: usize = 1_024;
/// The thread's part of a core: one of so many.
const CORE_PARTS: u32 = 2;
/// CPU time that may be taken at once after a quiet time.
const BURST: Duration = Duration::from_millis(100);
/// Reads before a first message is looked at. The second finds out whether the other side has gone: then it costs nothing more.
const FIRST_READS: usize = 2;

/// A connection whose handshake is done, between two threads.
pub(super) struct Done {
    pub(super) socket: std::net::TcpStream,
    pub(super) connection: ServerConnection,
}

struct Job {
    socket: std::net::TcpStream,
    network: IpAddr,
    config: Arc<ServerConfig>,
    done: oneshot::Sender<io::Result<Done>>,
}

/// The thread, as others see it. It ends with this.
#[derive(Debug)]
pub(super) struct Handshakes {
    jobs: mpsc::Sender<Job>,
}

impl Handshakes {
    pub(super) fn start() -> io::Result<Handshakes> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (jobs, receiver) = mpsc::channel(JOBS_MAX);
        std::thread::Builder::new()
            .name("tls-accept".to_string())
            .spawn(move || runtime.block_on(serve(receiver)))?;
        Ok(Handshakes { jobs })
    }

    /// Does one handshake. It ends where nobody waits for it any more. `network`: who shares turns with whom.
    pub(super) async fn run(
        &self,
        socket: TcpStream,
        network: IpAddr,
        config: Arc<ServerConfig>,
    ) -> io::Result<Done> {
        let (done, outcome) = oneshot::channel();
        let job = Job { socket: socket.into_std()?, network, config, done };
        self.jobs.send(job).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        outcome.await.map_err(|_| io::ErrorKind::BrokenPipe)?
    }
}

async fn serve(mut jobs: mpsc::Receiver<Job>) {
    let turns = Arc::new(Turns::default());
    tokio::spawn(keep_giving(Arc::clone(&turns)));
    while let Some(job) = jobs.recv().await {
        let turns = Arc::clone(&turns);
        tokio::spawn(async move {
            let Job { socket, network, config, mut done } = job;
            let outcome = tokio::select! {
                outcome = handshake(socket, network, config, &turns) => outcome,
                () = done.closed() => return,
            };
            // Fails where nobody waits any more.
            let _ = done.send(outcome);
        });
    }
}

async fn handshake(
    socket: std::net::TcpStream,
    network: IpAddr,
    config: Arc<ServerConfig>,
    turns: &Turns,
) -> io::Result<Done> {
    let socket = TcpStream::from_std(socket)?;
    let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
    connection.set_buffer_limit(Some(BUFFERED_BYTES_MAX));
    let mut has_begun = false;
    while connection.is_handshaking() {
        socket.readable().await?;
        let turn = turns.wait(network, has_begun).await?;
        let outcome = go_on(&mut connection, &socket, has_begun);
        drop(turn);
        if outcome.is_err() {
            // An alert that says why, if there is room for it.
            let _ = connection.write_tls(&mut WithoutWaiting(&socket));
        }
        outcome?;
        while connection.wants_write() {
            has_begun = true;
            match connection.write_tls(&mut WithoutWaiting(&socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Done { socket: socket.into_std()?, connection })
}

/// Takes what has come.
fn go_on(connection: &mut ServerConnection, socket: &TcpStream, has_begun: bool) -> io::Result<()> {
    for _ in 0..if has_begun { 1 } else { FIRST_READS } {
        match connection.read_tls(&mut WithoutWaiting(socket)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    connection.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(())
}

/// Gives turns one after the other, within the budget, for ever.
async fn keep_giving(turns: Arc<Turns>) {
    let mut budget = CpuBudget::new(Instant::now(), cpu_time());
    loop {
        while let Some(wait) = budget.wait(Instant::now(), cpu_time()) {
            tokio::time::sleep(wait).await;
        }
        let next = turns.queues().next();
        let Some(waiting) = next else {
            turns.arrived.notified().await;
            continue;
        };
        let (turn, ended) = oneshot::channel();
        if waiting.send(Turn { _ended: turn }).is_ok() {
            // An error: the turn was dropped, which is how it ends.
            let _ = ended.await;
        }
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// A token bucket of CPU time.
struct CpuBudget {
    /// What may be taken, and what was taken too much.
    left: Duration,
    owed: Duration,
    counted: Instant,
    used: Duration,
}

impl CpuBudget {
    fn new(now: Instant, used: Duration) -> CpuBudget {
        CpuBudget { left: BURST, owed: Duration::ZERO, counted: now, used }
    }

    /// How long to wait before anything more is done; `None`: not at all. `used`: CPU time since the start.
    fn wait(&mut self, now: Instant, used: Duration) -> Option<Duration> {
        let given = self.left + now.saturating_duration_since(self.counted) / CORE_PARTS;
        let taken = self.owed + used.saturating_sub(self.used);
        (self.counted, self.used) = (now, used);
        self.left = given.saturating_sub(taken).min(BURST);
        self.owed = taken.saturating_sub(given);
        self.left.is_zero().then(|| (self.owed * CORE_PARTS).max(Duration::from_millis(1)))
    }
}

/// While it lives nobody else has a turn.
struct Turn {
    _ended: oneshot::Sender<()>,
}

#[derive(Default)]
struct Turns {
    queues: Mutex<Queues<oneshot::Sender<Turn>>>,
    arrived: Notify,
}

impl Turns {
    fn queues(&self) -> MutexGuard<'_, Queues<oneshot::Sender<Turn>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn wait(&self, network: IpAddr, has_begun: bool) -> io::Result<Turn> {
        let (waiting, turn) = oneshot::channel();
        self.queues().of(has_begun).push(network, waiting);
        self.arrived.notify_one();
        turn.await.map_err(|_| io::Error::other("too many handshakes wait"))
    }
}

/// Who has not begun, and who has.
struct Queues<T> {
    new: Queue<T>,
    begun: Queue<T>,
    last_had_begun: bool,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Queues { new: Queue::default(), begun: Queue::default(), last_had_begun: false }
    }
}

impl<T> Queues<T> {
    fn of(&mut self, has_begun: bool) -> &mut Queue<T> {
        match has_begun {
            true => &mut self.begun,
            false => &mut self.new,
        }
    }

    fn next(&mut self) -> Option<T> {
        let begun = !self.last_had_begun;
        self.last_had_begun = begun;
        self.of(begun).pop().or_else(|| self.of(!begun).pop())
    }
}

struct Queue<T> {
    by_network: BTreeMap<IpAddr, VecDeque<T>>,
    len: usize,
    /// Which network had the last turn.
    last: Option<IpAddr>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { by_network: BTreeMap::new(), len: 0, last: None }
    }
}

impl<T> Queue<T> {
    fn push(&mut self, network: IpAddr, waiting: T) {
        if self.len >= WAITING_MAX {
            let longest = self.by_network.iter().max_by_key(|(_, queue)| queue.len()).map(|(key, _)| *key);
            if let Some(longest) = longest {
                self.take(longest, VecDeque::pop_front);
            }
        }
        self.by_network.entry(network).or_default().push_back(waiting);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<T> {
        let behind = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.by_network.range((behind, Bound::Unbounded)).next();
        let network = *next.or_else(|| self.by_network.iter().next())?.0;
        self.last = Some(network);
        self.take(network, VecDeque::pop_back)
    }

    fn take(&mut self, network: IpAddr, pop: impl FnOnce(&mut VecDeque<T>) -> Option<T>) -> Option<T> {
        let queue = self.by_network.get_mut(&network)?;
        let taken = pop(queue);
        self.len -= usize::from(taken.is_some());
        if queue.is_empty() {
            self.by_network.remove(&network);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn half_of_a_core_is_taken_whatever_one_handshake_costs() {
        for cost in [Duration::from_micros(150), Duration::from_millis(7), Duration::from_millis(300)] {
            let start = Instant::now();
            let (mut now, mut used) = (start, Duration::ZERO);
            let mut budget = CpuBudget::new(now, used);
            while now < start + Duration::from_secs(20) {
                match budget.wait(now, used) {
                    Some(wait) => now += wait,
                    None => (now, used) = (now + cost, used + cost),
                }
            }
            assert!(used >= Duration::from_millis(9_500), "{used:?} at {cost:?}");
            assert!(used <= Duration::from_secs(10) + BURST + cost * 2, "{used:?} at {cost:?}");
        }
    }

    #[test]
    fn a_quiet_time_allows_a_burst_and_no_more() {
        let now = Instant::now();
        let mut budget = CpuBudget::new(now, Duration::ZERO);
        let later = now + Duration::from_secs(3_600);
        assert_eq!(budget.wait(later, Duration::ZERO), None);
        assert_eq!(budget.wait(later, BURST / 2), None);
        assert!(budget.wait(later, BURST * 2).is_some_and(|wait| wait >= BURST));
    }

    #[test]
    fn a_flood_of_one_network_delays_the_others_by_one_turn() {
        let mut queue = Queue::default();
        for _ in 0..3 * WAITING_MAX {
            queue.push(network(5), "flood");
        }
        assert_eq!(queue.len, WAITING_MAX, "it is bounded");
        queue.push(network(1), "one");
        queue.push(network(9), "another");
        let served: Vec<_> = std::iter::from_fn(|| queue.pop()).take(4).collect();
        assert!(served.contains(&"one") && served.contains(&"another"), "{served:?}");
    }

    #[test]
    fn within_a_network_the_newest_is_first_and_the_oldest_goes() {
        let mut queue = Queue::default();
        for number in 0..=WAITING_MAX {
            queue.push(network(1), number);
        }
        assert_eq!(queue.pop(), Some(WAITING_MAX));
        let last = std::iter::from_fn(|| queue.pop()).last();
        assert_eq!(last, Some(1), "the oldest had to go");
        assert!(queue.len == 0 && queue.by_network.is_empty());
    }

    #[test]
    fn who_has_begun_has_every_other_turn() {
        let mut queues = Queues::default();
        for _ in 0..10 {
            queues.of(false).push(network(1), "new");
        }
        for _ in 0..3 {
            queues.of(true).push(network(1), "begun");
        }
        let served: Vec<_> = std::iter::from_fn(|| queues.next()).take(6).collect();
        assert_eq!(served.iter().filter(|who| **who == "begun").count(), 3);
        assert_eq!(std::iter::from_fn(|| queues.next()).count(), 7);
    }
}
