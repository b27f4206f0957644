//! The closed-loop generator: many connections, one thread, non-blocking sockets.
//!
//! A [`Client`] writes requests and checks replies; the generator moves the bytes. One thread, one read and one write a request (or a
//! batch of them): load and servers share the machine's cores, so what the load costs is taken from what is measured.

use crate::latencies::Latencies;
use crate::resp;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Longer than any wait a healthy target makes.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const SCRATCH_BYTES: usize = 64 * 1024;

/// What was measured in one turn.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    /// Units of work done: pairs, renewals, commands.
    pub(crate) done: u64,
    /// From asking for the lock to having it, or whatever the part says its latency is.
    pub(crate) latencies: Latencies,
    /// A second latency of the same work, such as a release.
    pub(crate) second: Latencies,
    pub(crate) wall: Duration,
}

impl Tally {
    pub(crate) fn absorb(&mut self, other: &Tally) {
        self.done += other.done;
        self.latencies.absorb(&other.latencies);
        self.second.absorb(&other.second);
        self.wall += other.wall;
    }

    pub(crate) fn per_s(&self) -> f64 {
        self.done as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// What a client does after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// More replies are expected.
    AwaitReply,
    /// The client must send another request before it may stop: it holds a lock.
    MustContinue,
    /// The client may stop here if the turn is over.
    MayStop,
}

pub(crate) trait Client {
    /// The length of the first answer in `bytes`, if it is whole.
    fn answer_len(bytes: &[u8]) -> Option<usize> {
        resp::reply_len(bytes)
    }
    /// Writes the next request.
    fn ask(&mut self, now: Instant, out: &mut Vec<u8>);
    /// Checks one reply. A wrong one ends the run: figures of refused commands mean nothing.
    fn take(&mut self, reply: &[u8], now: Instant, tally: &mut Tally) -> Result<NextStep, String>;
}

struct Connection<C> {
    client: C,
    stream: TcpStream,
    address: SocketAddr,
    unsent: Vec<u8>,
    received: Vec<u8>,
    is_idle: bool,
}

pub(crate) struct LoadGenerator<C> {
    poll: Poll,
    events: Events,
    scratch: Vec<u8>,
    connections: Vec<Connection<C>>,
}

impl<C: Client> LoadGenerator<C> {
    /// One connection a client, spread over the addresses in turn.
    pub(crate) fn connect(addresses: &[SocketAddr], clients: Vec<C>) -> Result<LoadGenerator<C>, String> {
        let poll = Poll::new().map_err(|error| format!("no epoll: {error}"))?;
        let mut connections = Vec::with_capacity(clients.len());
        for (number, client) in clients.into_iter().enumerate() {
            let address = addresses[number % addresses.len()];
            let stream = std::net::TcpStream::connect(address)
                .and_then(|stream| {
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                    Ok(stream)
                })
                .map_err(|error| format!("cannot connect to {address}: {error}"))?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry()
                .register(&mut stream, Token(number), Interest::READABLE | Interest::WRITABLE)
                .map_err(|error| format!("cannot watch a socket: {error}"))?;
            connections.push(Connection {
                client,
                stream,
                address,
                unsent: Vec::with_capacity(512),
                received: Vec::with_capacity(512),
                is_idle: true,
            });
        }
        let events = Events::with_capacity(1024);
        Ok(LoadGenerator { poll, events, scratch: vec![0; SCRATCH_BYTES], connections })
    }

    #[cfg(test)]
    fn clients(&self) -> impl Iterator<Item = &C> {
        self.connections.iter().map(|connection| &connection.client)
    }

    /// Every client asks, again and again, until `length` has passed and each has come to rest.
    pub(crate) fn turn(&mut self, length: Duration) -> Result<Tally, String> {
        let mut tally = Tally::default();
        let began = Instant::now();
        for connection in &mut self.connections {
            connection.is_idle = false;
            connection.ask(began)?;
        }
        let mut busy = self.connections.len();
        while busy > 0 {
            self.poll.poll(&mut self.events, Some(SILENCE_MAX)).map_err(|error| format!("epoll: {error}"))?;
            if self.events.is_empty() {
                return Err(self.silence());
            }
            for event in &self.events {
                let connection = &mut self.connections[event.token().0];
                if event.is_writable() && !connection.unsent.is_empty() {
                    connection.send()?;
                }
                if !event.is_readable() {
                    continue;
                }
                let was_idle = connection.is_idle;
                let is_over = began.elapsed() >= length;
                connection.receive(&mut self.scratch, is_over, &mut tally)?;
                busy -= usize::from(connection.is_idle && !was_idle);
            }
        }
        tally.wall = began.elapsed();
        Ok(tally)
    }

    fn silence(&self) -> String {
        let waiting = self.connections.iter().filter(|connection| !connection.is_idle);
        let addresses: std::collections::BTreeSet<String> =
            waiting.map(|connection| connection.address.to_string()).collect();
        format!("no answer for {} s from {addresses:?}", SILENCE_MAX.as_secs())
    }
}

impl<C: Client> Connection<C> {
    fn ask(&mut self, now: Instant) -> Result<(), String> {
        self.client.ask(now, &mut self.unsent);
        self.send()
    }

    fn send(&mut self) -> Result<(), String> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.stream.write(&self.unsent[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("{}: {error}", self.address)),
            }
        }
        self.unsent.drain(..sent);
        Ok(())
    }

    /// Edge-triggered: reads until there is less than was asked for.
    fn receive(&mut self, scratch: &mut [u8], is_over: bool, tally: &mut Tally) -> Result<(), String> {
        loop {
            let count = match self.stream.read(scratch) {
                Ok(0) => return Err(format!("{} closed a connection", self.address)),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(format!("{}: {error}", self.address)),
            };
            self.judge(&scratch[..count], is_over, tally)?;
            if count < scratch.len() {
                return Ok(());
            }
        }
    }

    fn judge(&mut self, bytes: &[u8], is_over: bool, tally: &mut Tally) -> Result<(), String> {
        let now = Instant::now();
        // Most replies come whole: only a torn one is copied.
        let whole;
        let mut rest = if self.received.is_empty() {
            bytes
        } else {
            self.received.extend_from_slice(bytes);
            whole = std::mem::take(&mut self.received);
            &whole
        };
        let mut then = NextStep::AwaitReply;
        while let Some(len) = C::answer_len(rest) {
            then = self.client.take(&rest[..len], now, tally)?;
            rest = &rest[len..];
        }
        self.received.extend_from_slice(rest);
        match then {
            NextStep::AwaitReply => Ok(()),
            NextStep::MayStop if is_over => {
                self.is_idle = true;
                Ok(())
            }
            NextStep::MustContinue | NextStep::MayStop => self.ask(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Asks `+`s by the batch; every second batch may be the last.
    struct Asker {
        batch: usize,
        answered: usize,
    }

    impl Client for Asker {
        fn ask(&mut self, _now: Instant, out: &mut Vec<u8>) {
            out.extend(std::iter::repeat_n(b'+', self.batch));
        }

        fn take(&mut self, reply: &[u8], _now: Instant, tally: &mut Tally) -> Result<NextStep, String> {
            if resp::is_error(reply) {
                return Err(resp::shown(reply));
            }
            self.answered += 1;
            tally.done += 1;
            Ok(match self.answered % (2 * self.batch) {
                0 => NextStep::MayStop,
                some if some == self.batch => NextStep::MustContinue,
                _ => NextStep::AwaitReply,
            })
        }
    }

    /// Answers each byte with a reply torn in two writes.
    fn echo(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                stream.set_nodelay(true).expect("an option");
                std::thread::spawn(move || {
                    let mut asked = [0; 64];
                    while let Ok(count @ 1..) = stream.read(&mut asked) {
                        let replies = answer.repeat(count);
                        let (head, tail) = replies.split_at(replies.len() / 2 + 1);
                        if stream.write_all(head).and_then(|()| stream.write_all(tail)).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    #[test]
    fn every_client_ends_its_turn_at_rest_and_every_reply_is_counted() {
        let address = echo(b"*2\r\n:1\r\n$2\r\nok\r\n");
        let clients = (0..5).map(|_| Asker { batch: 3, answered: 0 }).collect();
        let mut generator = LoadGenerator::connect(&[address], clients).expect("connected");
        let tally = generator.turn(Duration::from_millis(30)).expect("a turn");
        let counted: usize = generator.clients().map(|client| client.answered).sum();
        assert_eq!(counted as u64, tally.done);
        assert!(tally.done >= 30);
        assert!(generator.clients().all(|client| client.answered.is_multiple_of(6) && client.answered > 0));
        assert!(generator.turn(Duration::from_millis(1)).expect("a second turn").done >= 30);
    }

    #[test]
    fn a_refusal_ends_the_turn() {
        let address = echo(b"-ERR no\r\n");
        let mut generator =
            LoadGenerator::connect(&[address], vec![Asker { batch: 1, answered: 0 }]).expect("connected");
        assert_eq!(generator.turn(Duration::from_millis(5)).err(), Some("-ERR no".to_string()));
    }
}
