//! The `peer-accept` thread: accepts whoever dials the peer port, and greets.
//!
//! Anybody who reaches the port can ask for a handshake, which costs a signature and a key exchange, so handshakes have a thread of
//! their own: heartbeats and votes are read and written on the `peers` thread, and never wait for a stranger. Handshakes that begin
//! per second are limited too (`HandshakePace`), so strangers take a small part of one core. Beyond that they wait in the backlog
//! of the listener with everybody else, first come first served. A connection that has greeted goes to the `peers` thread.

use super::greeting::{self, GreetingError, Hello};
use super::link::tune;
use super::peer_stream::PeerStream;
use super::TransportShared;
use crate::node_api::wire::MEMBERS_MAX;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// From the first byte to the end of the greeting.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections from others that have greeted, two of each node. One more is closed.
const ACCEPTED_MAX: usize = 2 * MEMBERS_MAX;
/// Connections that have not greeted yet. One more takes the place of the oldest, so a crowd of silent strangers keeps no peer out.
const GREETING_MAX: usize = 128;
/// File descriptors of connections between nodes: those that others have dialled, and the two to each of them.
pub const FILES_MAX: u64 = (ACCEPTED_MAX + GREETING_MAX + 2 * MEMBERS_MAX) as u64;
/// Handshakes that begin in a second. A whole cluster that starts needs a dozen; one costs up to a millisecond (RSA).
pub(super) const HANDSHAKES_PER_SECOND: u32 = 200;
/// Handshakes that may begin at once after a quiet time.
pub(super) const HANDSHAKES_AT_ONCE: u32 = 64;
/// Greeted connections that the `peers` thread has not taken yet.
const GREETED_MAX: usize = 64;

/// A connection that has greeted, on its way to the `peers` thread.
pub(super) struct Greeted {
    pub(super) hello: Hello,
    stream: PeerStream<std::net::TcpStream>,
    pub(super) place: OwnedSemaphorePermit,
}

impl Greeted {
    /// On the thread that is to serve it.
    pub(super) fn into_stream(self) -> io::Result<(Hello, PeerStream, OwnedSemaphorePermit)> {
        let stream = self.stream.with_socket(TcpStream::from_std)?;
        Ok((self.hello, stream, self.place))
    }
}

/// Starts the thread. It ends, and the listener is closed, when the receiver is dropped.
pub(super) fn start(
    shared: Arc<TransportShared>,
    listener: std::net::TcpListener,
) -> io::Result<(mpsc::Receiver<Greeted>, JoinHandle<()>)> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (greeted, receiver) = mpsc::channel(GREETED_MAX);
    let thread = std::thread::Builder::new().name("peer-accept".to_string()).spawn(move || {
        runtime.block_on(async {
            match TcpListener::from_std(listener) {
                Ok(listener) => tokio::select! {
                    () = keep_accepting(shared, listener, greeted.clone()) => {}
                    () = greeted.closed() => {}
                },
                Err(e) => tracing::error!("cannot use the peer listener: {e}"),
            }
        });
    })?;
    Ok((receiver, thread))
}

/// Accepts until the runtime ends. Handshakes run concurrently; a slow or hostile one delays no other.
async fn keep_accepting(shared: Arc<TransportShared>, listener: TcpListener, greeted: mpsc::Sender<Greeted>) {
    let places = Arc::new(Semaphore::new(ACCEPTED_MAX));
    let mut greeting: VecDeque<AbortHandle> = VecDeque::with_capacity(GREETING_MAX);
    let mut pace = HandshakePace::new(Instant::now());
    loop {
        while let Some(wait) = pace.wait(Instant::now()) {
            sleep(wait).await;
        }
        match listener.accept().await {
            Ok((stream, from)) => {
                pace.begin();
                greeting.retain(|task| !task.is_finished());
                if greeting.len() >= GREETING_MAX {
                    if let Some(oldest) = greeting.pop_front() {
                        oldest.abort();
                    }
                }
                let (shared, places, greeted) = (shared.clone(), places.clone(), greeted.clone());
                let task = tokio::spawn(async move {
                    let Some((hello, stream)) = greet(&shared, stream, from).await else { return };
                    let Ok(place) = places.try_acquire_owned() else { return };
                    let Ok(stream) = stream.with_socket(TcpStream::into_std) else { return };
                    // Fails where the node stops.
                    let _ = greeted.send(Greeted { hello, stream, place }).await;
                });
                greeting.push_back(task.abort_handle());
            }
            Err(e) => {
                tracing::warn!("cannot accept a peer: {e}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn greet(shared: &TransportShared, stream: TcpStream, from: SocketAddr) -> Option<(Hello, PeerStream)> {
    if let Err(e) = tune(&stream) {
        tracing::debug!(%from, "peer connection gone: {e}");
        return None;
    }
    match timeout(GREETING_TIMEOUT, greeting::accept(stream, &shared.registry)).await {
        Ok(Ok(greeted)) => return Some(greeted),
        Ok(Err(GreetingError::Refused(refusal))) => shared.refused(from, &refusal.to_string()),
        Ok(Err(GreetingError::Io(e))) => tracing::debug!(%from, "peer gone during its greeting: {e}"),
        Err(_) => shared.refused(from, "no greeting in time"),
    }
    None
}

/// A token bucket: when the next handshake may begin.
pub(super) struct HandshakePace {
    /// In parts of a handshake, so that none is lost to rounding.
    tokens: Duration,
    counted: Instant,
}

/// What one handshake takes out.
const HANDSHAKE_EVERY: Duration = Duration::from_micros(1_000_000 / HANDSHAKES_PER_SECOND as u64);
const TOKENS_MAX: Duration =
    Duration::from_micros(1_000_000 / HANDSHAKES_PER_SECOND as u64 * HANDSHAKES_AT_ONCE as u64);

impl HandshakePace {
    pub(super) fn new(now: Instant) -> HandshakePace {
        HandshakePace { tokens: TOKENS_MAX, counted: now }
    }

    /// How long to wait before the next one may begin; `None`: now.
    pub(super) fn wait(&mut self, now: Instant) -> Option<Duration> {
        self.tokens = (self.tokens + now.saturating_duration_since(self.counted)).min(TOKENS_MAX);
        self.counted = now;
        HANDSHAKE_EVERY.checked_sub(self.tokens).filter(|wait| !wait.is_zero())
    }

    /// One begins.
    pub(super) fn begin(&mut self) {
        self.tokens = self.tokens.saturating_sub(HANDSHAKE_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handshakes that begin between two moments where there are always some to begin.
    fn begun(pace: &mut HandshakePace, from: Instant, time: Duration) -> u32 {
        let (mut now, mut count) = (from, 0);
        while now <= from + time {
            match pace.wait(now) {
                None => {
                    pace.begin();
                    count += 1;
                }
                Some(wait) => now += wait,
            }
        }
        count
    }

    #[test]
    fn a_burst_then_so_many_a_second() {
        let start = Instant::now();
        let mut pace = HandshakePace::new(start);
        assert_eq!(begun(&mut pace, start, Duration::ZERO), HANDSHAKES_AT_ONCE);
        let one_second = Duration::from_secs(1);
        assert_eq!(begun(&mut pace, start, one_second), HANDSHAKES_PER_SECOND);
        // Quiet for long: another burst, and no more than that.
        let later = start + Duration::from_secs(3_600);
        assert_eq!(begun(&mut pace, later, Duration::ZERO), HANDSHAKES_AT_ONCE);
    }
}
