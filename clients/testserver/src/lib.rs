//! A server for tests: the real lock machine behind RESP2 and RESP3, in one process, with a clock that the test moves.
//!
//! `clients/TESTSERVER.md` is its manual. `redfence testserver` runs it as a process; a Rust test runs it inside itself:
//!
//! ```
//! use redfence_testserver::TestServer;
//! use std::time::Duration;
//!
//! let server = TestServer::start().expect("a free port on loopback");
//! println!("connect to {}", server.url());
//! server.advance(Duration::from_secs(31)); // whatever is due ends, in its order
//! assert_eq!(server.time(), Duration::from_secs(31));
//! ```
//!
//! # Layout
//!
//! - `wire`: bytes to words, replies to bytes
//! - `state`: the machine, its connections and its clock; below it the commands of clients, and who is told of a lost lock
//! - `front`: what a connection asks besides locks (`HELLO`, `PING`, `SUBSCRIBE` …)
//! - `control`: `TEST.*`

#![forbid(unsafe_code)]

mod control;
mod front;
mod state;
mod wire;

use state::State;
use std::io::{self, BufReader};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Connections at a time; one more is closed at once.
const CONNECTIONS_MAX: usize = 4096;
/// How long a client may leave its replies unread before it is disconnected.
const WRITE_WITHIN: Duration = Duration::from_secs(5);
/// How often a clock that runs by itself is looked at.
const TICK_EVERY: Duration = Duration::from_millis(2);

/// How the server is started.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A loopback address. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The clock runs by itself.
    pub real_time: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), real_time: false }
    }
}

/// A running server. It ends when this is dropped.
#[derive(Debug)]
pub struct TestServer {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
}

impl TestServer {
    /// A server on a free port of loopback whose clock stands still.
    ///
    /// # Errors
    ///
    /// Where no port is free.
    pub fn start() -> io::Result<TestServer> {
        TestServer::with_options(Options::default())
    }

    /// A server with options.
    ///
    /// # Errors
    ///
    /// Where the address is not of loopback, or cannot be listened on.
    pub fn with_options(options: Options) -> io::Result<TestServer> {
        if !options.listen.ip().is_loopback() {
            let text =
                format!("{} is not a loopback address, and a test server has no password", options.listen);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::new(options.real_time)));
        let accepting = Arc::clone(&state);
        std::thread::Builder::new()
            .name("testserver".into())
            .spawn(move || accept_all(&listener, &accepting))?;
        if options.real_time {
            let ticking = Arc::downgrade(&state);
            std::thread::Builder::new().name("testserver-clock".into()).spawn(move || {
                while let Some(state) = ticking.upgrade() {
                    let mut state = lock(&state);
                    if state.is_closed() {
                        return;
                    }
                    state.tick();
                    drop(state);
                    std::thread::sleep(TICK_EVERY);
                }
            })?;
        }
        Ok(TestServer { state, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same for a Redis client.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// `TEST.ADVANCE`: moves the clock ahead. Whatever is due on the way happens in its order.
    pub fn advance(&self, by: Duration) {
        self.lock().advance(whole_ms(by));
    }

    /// `TEST.TIME`: the clock, since the start.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.lock().now_ms())
    }

    /// `TEST.LOSE`: the holder of a lock loses it. False where nobody held it.
    pub fn lose(&self, resource: impl AsRef<[u8]>) -> bool {
        self.lock().lose(resource.as_ref())
    }

    /// `TEST.PARTITION`.
    pub fn partition(&self, partition: Partition) {
        self.lock().set_partition(partition);
    }

    /// `TEST.FAIL`: what happens to the next commands that need the log.
    pub fn fail(&self, fault: Fault, times: usize) {
        self.lock().add_faults(fault, times);
    }

    /// `TEST.DISCONNECT`: closes every connection. Answers how many there were.
    pub fn disconnect(&self) -> usize {
        self.lock().disconnect_all_but(None)
    }

    /// `TEST.RESET`: forgets locks, sessions, queues, marks and faults, and closes every connection.
    pub fn reset(&self) {
        self.lock().reset(None);
    }

    /// `TEST.CALLS`: how many commands of this name were acted on.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        self.lock().calls(command)
    }

    /// `TEST.STATS`.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.lock().stats()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.lock().close();
        // The accepting thread looks whether it is closed when somebody comes.
        drop(TcpStream::connect(self.address));
    }
}

/// What `TEST.STATS` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Open connections.
    pub connections: usize,
    /// Held locks.
    pub locks: u64,
    /// Places in queues.
    pub waiters: u64,
    /// Open sessions.
    pub sessions: u64,
    /// Channels and patterns, of all connections.
    pub subscriptions: usize,
    /// Commands that needed the log, since the start or the last reset.
    pub commands: u64,
}

/// What stands between the clients and the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partition {
    /// Nothing.
    #[default]
    Off,
    /// A node without quorum: `UNAVAILABLE`.
    NoQuorum,
    /// A cut cable: nothing is acted on, nothing is answered, nothing is closed.
    Silent,
}

/// What happens to one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It has no effect and is answered `UNAVAILABLE`.
    Unavailable,
    /// It is carried out and answered `INDETERMINATE`.
    Indeterminate,
    /// It is carried out, and its connection is closed instead of the reply.
    LostReply,
}

/// A panic while the state was locked is told where it happened; the others go on to their own ends.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn accept_all(listener: &TcpListener, state: &Arc<Mutex<State>>) {
    for stream in listener.incoming() {
        if lock(state).is_closed() {
            return;
        }
        let Ok(stream) = stream else { continue };
        let (_, written) = (stream.set_nodelay(true), stream.set_write_timeout(Some(WRITE_WITHIN)));
        let (Ok(()), Ok(reader)) = (written, stream.try_clone()) else { continue };
        let id = {
            let mut state = lock(state);
            if state.stats().connections >= CONNECTIONS_MAX {
                continue;
            }
            state.join(stream)
        };
        let served = Arc::clone(state);
        let started = std::thread::Builder::new()
            .name("testserver-client".into())
            .spawn(move || serve(id, reader, &served));
        if started.is_err() {
            lock(state).leave(id);
        }
    }
}

/// Reads commands until the client leaves.
fn serve(id: u64, stream: TcpStream, state: &Arc<Mutex<State>>) {
    let mut reader = BufReader::new(stream);
    loop {
        match wire::read_command(&mut reader) {
            Ok(Some(words)) if words.is_empty() => {}
            Ok(Some(words)) => {
                if !lock(state).submit(id, words) {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidData {
                    lock(state).protocol_error(id, &error.to_string());
                }
                break;
            }
        }
    }
    lock(state).leave(id);
    // What is written after this goes nowhere; what was written before arrives.
    let _ = reader.into_inner().shutdown(Shutdown::Both);
}
