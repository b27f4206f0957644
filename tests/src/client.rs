//! What a case holds: one client of one backend, with every reply checked for its shape.

use std::net::SocketAddr;
use std::time::Duration;

use crate::expect::{self, Grant, Info};
use crate::process::poll_until;
use crate::resp::{Connection, Protocol, ReceiveError, Value};

/// Long enough for a loaded machine; a reply that has not come by then never will.
pub const REPLY_WITHIN: Duration = Duration::from_secs(20);

/// A connection to a backend, whatever carries it.
pub trait Wire: Send {
    /// Sends without waiting for the reply: replies come in order.
    fn send(&mut self, args: &[Vec<u8>]);
    fn receive(&mut self, timeout: Duration) -> Result<Value, ReceiveError>;
    /// Bytes as they are. Only where there is a wire (`Abilities::WIRE`).
    fn send_raw(&mut self, _bytes: &[u8]) {
        panic!("this backend has no wire");
    }
}

/// A plain socket.
pub struct SocketWire(Connection);

impl SocketWire {
    pub fn open(address: SocketAddr, protocol: Protocol) -> Result<SocketWire, String> {
        Connection::open_with(address, protocol).map(SocketWire)
    }
}

impl Wire for SocketWire {
    fn send(&mut self, args: &[Vec<u8>]) {
        self.0.send(args).unwrap_or_else(|error| panic!("send: {error}"));
    }

    fn receive(&mut self, timeout: Duration) -> Result<Value, ReceiveError> {
        self.0.receive(timeout)
    }

    fn send_raw(&mut self, bytes: &[u8]) {
        // The server may close in the middle of hostile bytes; the reply then tells.
        let _ = self.0.send_raw(bytes);
    }
}

/// Anything that can be a word of a command.
pub trait Word {
    fn word(&self) -> Vec<u8>;
}

macro_rules! words_by_display {
    ($($kind:ty),*) => { $(impl Word for $kind {
        fn word(&self) -> Vec<u8> {
            self.to_string().into_bytes()
        }
    })* };
}
words_by_display!(str, String, i32, i64, u32, u64, usize);

impl Word for [u8] {
    fn word(&self) -> Vec<u8> {
        self.to_vec()
    }
}

impl<const N: usize> Word for [u8; N] {
    fn word(&self) -> Vec<u8> {
        self.to_vec()
    }
}

impl Word for Vec<u8> {
    fn word(&self) -> Vec<u8> {
        self.clone()
    }
}

impl<W: Word + ?Sized> Word for &W {
    fn word(&self) -> Vec<u8> {
        (*self).word()
    }
}

/// The words of a command, strings and numbers mixed: `words!["LOCK.ACQUIRE", &name, 1000]`.
#[macro_export]
macro_rules! words {
    ($($word:expr),* $(,)?) => { [$($crate::client::Word::word(&$word)),*] };
}

/// Sends a command and waits for its reply: `ask!(client, "LOCK.INFO", &name)`.
#[macro_export]
macro_rules! ask {
    ($client:expr, $($word:expr),* $(,)?) => { $client.ask(&$crate::words![$($word),*]) };
}

pub struct Client {
    wire: Box<dyn Wire>,
    protocol: Protocol,
}

impl Client {
    pub fn new(wire: Box<dyn Wire>, protocol: Protocol) -> Client {
        Client { wire, protocol }
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub fn ask(&mut self, args: &[Vec<u8>]) -> Value {
        self.wire.send(args);
        self.receive_after(args)
    }

    pub fn send(&mut self, args: &[Vec<u8>]) {
        self.wire.send(args);
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.wire.send_raw(bytes);
    }

    pub fn receive(&mut self) -> Value {
        self.receive_after(&[])
    }

    pub fn try_receive(&mut self, timeout: Duration) -> Result<Value, ReceiveError> {
        self.wire.receive(timeout)
    }

    /// Nothing comes within `time`: the client is blocked, or there is nothing to come.
    pub fn hears_nothing_for(&mut self, time: Duration) {
        match self.wire.receive(time) {
            Err(ReceiveError::TimedOut) => {}
            other => panic!("expected no reply yet, got {other:?}"),
        }
    }

    fn receive_after(&mut self, args: &[Vec<u8>]) -> Value {
        self.wire.receive(REPLY_WITHIN).unwrap_or_else(|error| {
            let words: Vec<String> = args.iter().map(|word| word.escape_ascii().to_string()).collect();
            panic!("no reply to [{}]: {error:?}", words.join(" "))
        })
    }

    // The commands most cases need, with the shape of their replies checked.

    pub fn acquire(&mut self, resource: &str, ttl_ms: u64) -> Grant {
        expect::granted(&ask!(self, "LOCK.ACQUIRE", resource, ttl_ms))
    }

    pub fn acquire_as(&mut self, resource: &str, ttl_ms: u64, owner: &str) -> Grant {
        expect::granted(&ask!(self, "LOCK.ACQUIRE", resource, ttl_ms, "OWNER", owner))
    }

    /// Takes the lock and lets its time run out: the fence it had. A short ttl is set by a renewal, because a grant that ends before
    /// a busy node can tell it is answered nil.
    pub fn acquire_and_expire(&mut self, resource: &str) -> i64 {
        let fence = self.acquire(resource, 60_000).fence;
        self.expire(resource, fence);
        fence
    }

    /// Shortens a held lock and waits until it has ended.
    pub fn expire(&mut self, resource: &str, fence: i64) {
        self.end_soon(resource, fence, 50);
        self.await_free(resource);
    }

    /// From now on the lock has so little time left. It may have ended by when the answer comes.
    pub fn end_soon(&mut self, resource: &str, fence: i64, ttl_ms: u64) {
        let reply = ask!(self, "LOCK.RENEW", resource, fence, ttl_ms);
        if reply.array().first() == Some(&Value::Integer(0)) {
            expect::refused(&reply, "expired");
        } else {
            let left_ms = expect::renewed(&reply);
            assert!((1..=ttl_ms as i64).contains(&left_ms), "renewed for {ttl_ms} ms, told {left_ms}");
        }
    }

    pub fn is_refused(&mut self, resource: &str, ttl_ms: u64) {
        assert_eq!(
            ask!(self, "LOCK.ACQUIRE", resource, ttl_ms),
            self.protocol.nil(),
            "the lock should be taken"
        );
    }

    /// Asks to wait and returns at once; the reply is for [`Client::receive`].
    pub fn start_waiting(&mut self, resource: &str, ttl_ms: u64, wait_ms: u64, owner: &str) {
        self.send(&words!["LOCK.ACQUIRE", resource, ttl_ms, "WAIT", wait_ms, "OWNER", owner]);
    }

    pub fn receive_grant(&mut self) -> Grant {
        expect::granted(&self.receive())
    }

    pub fn receive_nil(&mut self) {
        assert_eq!(self.receive(), self.protocol.nil());
    }

    pub fn release(&mut self, resource: &str, fence: i64) {
        expect::released(&ask!(self, "LOCK.RELEASE", resource, fence));
    }

    pub fn release_is_refused(&mut self, resource: &str, fence: i64, reason: &str) {
        expect::refused(&ask!(self, "LOCK.RELEASE", resource, fence), reason);
    }

    pub fn renew(&mut self, resource: &str, fence: i64, ttl_ms: u64) -> i64 {
        expect::renewed(&ask!(self, "LOCK.RENEW", resource, fence, ttl_ms))
    }

    pub fn renew_is_refused(&mut self, resource: &str, fence: i64, ttl_ms: u64, reason: &str) {
        expect::refused(&ask!(self, "LOCK.RENEW", resource, fence, ttl_ms), reason);
    }

    pub fn info(&mut self, resource: &str) -> Info {
        let reply = ask!(self, "LOCK.INFO", resource);
        expect::info(&reply, self.protocol)
    }

    /// The owners in `LOCK.QUEUE`, first in line first.
    pub fn queue(&mut self, resource: &str) -> Vec<String> {
        let reply = ask!(self, "LOCK.QUEUE", resource);
        expect::queue(&reply).into_iter().map(|(owner, _)| owner).collect()
    }

    /// Polls until this many wait: how a case knows that a waiter stands in line.
    pub fn await_waiters(&mut self, resource: &str, count: i64) {
        let mut seen = -1;
        let reached = poll_until(REPLY_WITHIN, || {
            seen = self.info(resource).waiters;
            seen == count
        });
        assert!(reached, "{resource}: expected {count} waiters, LOCK.INFO shows {seen}");
    }

    /// Polls until the lock is free, by expiry or by release.
    pub fn await_free(&mut self, resource: &str) {
        let mut seen = String::new();
        let reached = poll_until(REPLY_WITHIN, || {
            seen = self.info(resource).state;
            seen == "free"
        });
        assert!(reached, "{resource}: expected free, LOCK.INFO shows {seen}");
    }
}
