//! One client's own connection to the upstream Redis. Commands go out as they came, replies come back byte for byte.
//!
//! Opened when first needed. Some commands are ours (the greeting, `SELECT`, a change of protocol): their replies are swallowed,
//! and an error among them ends the connection. Driven by `connection`, which decides when a reply may go to the client.

use super::stream::UpstreamStream;
use super::upstream::{self, Upstream};
use crate::resp::encode::{self, Protocol};
use crate::resp::replies::{ReplyScanner, ScannedReply};
use redfence_core::reply::Refusal;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of commands that may wait to be sent. Above it, no more are read from the client.
pub const UNSENT_BYTES_MAX: usize = 256 * 1024;
/// The largest push, or line of `MONITOR`, that is passed on.
const UNASKED_BYTES_MAX: usize = 8 * 1024 * 1024;
const SCRATCH_BYTES: usize = 64 * 1024;
/// A buffer larger than this is given back once it is empty.
const KEPT_BYTES_MAX: usize = 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// Whose reply comes next.
#[derive(Debug)]
enum ExpectedReply {
    /// Ours: not shown to the client.
    Ours,
    /// Ours: the number of this connection at that Redis. One that does not tell it does not matter.
    Number,
    /// The client's. The command had left us completely once `sent` reaches `end`.
    Client { end: u64 },
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<(UpstreamStream, OwnedSemaphorePermit)>> + Send>>;

type Moved = Pin<Box<dyn Future<Output = io::Error> + Send>>;

enum SocketState {
    Connecting(Connecting),
    Open(UpstreamStream),
}

pub struct OwnConnection {
    upstream: Arc<Upstream>,
    /// See [`Upstream::moves`].
    moves: u64,
    /// Wakes a client that waits for something else when the master moves.
    moved: Option<Moved>,
    state: SocketState,
    /// See [`Upstream::take_place`]. Before it is open, its place is with the attempt to connect.
    _place: Option<OwnedSemaphorePermit>,
    unsent: Vec<u8>,
    /// How much of `unsent` is gone already.
    unsent_at: usize,
    /// Bytes ever queued, and ever sent.
    queued: u64,
    sent: u64,
    expected: VecDeque<ExpectedReply>,
    received: Vec<u8>,
    received_at: usize,
    scanner: ReplyScanner,
    /// The reply in flight is for the client.
    passes: bool,
    /// How that Redis numbers this connection (`CLIENT ID`), for whoever wants to end a wait there. 0: not known.
    number: Arc<AtomicU64>,
    is_number_asked: bool,
    /// Something has come: it serves us.
    is_served: bool,
    /// It is in `MONITOR`: what nobody has asked for is for the client too.
    monitors: bool,
    /// What is in flight is a push, or a line of `MONITOR`. Kept until it is whole: a reply of ours may be sent before it.
    is_unasked: bool,
    unasked: Vec<u8>,
    swallowed: Vec<u8>,
}

impl std::fmt::Debug for OwnConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("queued", &self.queued).field("sent", &self.sent).finish_non_exhaustive()
    }
}

/// The connection is of no use any more.
#[derive(Debug)]
pub struct ConnectionLost {
    pub reason: String,
    /// For each of the client's commands without an answer: whether it had left us.
    pub unanswered: Vec<bool>,
    /// Part of a reply has gone to the client: its stream cannot be mended.
    pub mid_reply: bool,
}

/// What `poll_reply` brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyPart {
    /// A whole reply of the client's.
    Reply { is_error: bool },
    /// A part of a reply; more follows.
    Bytes,
    /// A whole push, or a line of `MONITOR`: it answers nothing.
    Unasked,
}

impl OwnConnection {
    /// Begins to connect, and queues the greeting.
    #[must_use]
    pub fn open(
        upstream: &Arc<Upstream>,
        protocol: Protocol,
        db: u32,
        number: Arc<AtomicU64>,
    ) -> OwnConnection {
        let moves = upstream.moves();
        let connecting_to = Arc::clone(upstream);
        let connecting = Box::pin(async move {
            let place = connecting_to.take_place()?;
            Ok((connecting_to.connect().await?, place))
        });
        let moved = upstream.may_move().then(|| {
            let upstream = Arc::clone(upstream);
            Box::pin(async move { upstream.moved_since(moves).await }) as Moved
        });
        let mut connection = OwnConnection {
            upstream: Arc::clone(upstream),
            moves,
            moved,
            state: SocketState::Connecting(connecting),
            _place: None,
            unsent: Vec::new(),
            unsent_at: 0,
            queued: 0,
            sent: 0,
            expected: VecDeque::new(),
            received: Vec::new(),
            received_at: 0,
            scanner: ReplyScanner::default(),
            passes: false,
            number,
            is_number_asked: false,
            is_served: false,
            monitors: false,
            is_unasked: false,
            unasked: Vec::new(),
            swallowed: Vec::new(),
        };
        if let Some(auth) = upstream.auth_words() {
            connection.send_ours(&auth);
        }
        if protocol == Protocol::Resp3 {
            connection.send_ours(&["HELLO", "3"]);
        }
        if db != 0 {
            connection.send_ours(&["SELECT", &db.to_string()]);
        }
        connection
    }

    /// A command of our own, whose reply is not shown.
    pub fn send_ours(&mut self, words: &[impl AsRef<[u8]>]) {
        self.compact();
        let before = self.unsent.len();
        encode::command(&mut self.unsent, words);
        self.queued += (self.unsent.len() - before) as u64;
        self.expected.push_back(ExpectedReply::Ours);
    }

    /// Before a command that may wait there. Not inside a transaction, which would queue it.
    pub fn ask_number(&mut self) {
        if !std::mem::replace(&mut self.is_number_asked, true) {
            self.send_ours(&["CLIENT", "ID"]);
            if let Some(expected) = self.expected.back_mut() {
                *expected = ExpectedReply::Number;
            }
        }
    }

    /// A command of the client's, whole.
    pub fn send(&mut self, frame: &[u8]) {
        self.queue(frame);
        self.expected.push_back(ExpectedReply::Client { end: self.queued });
    }

    /// A command of the client's, put together from words.
    pub fn send_words(&mut self, words: &[impl AsRef<[u8]>]) {
        self.compact();
        let before = self.unsent.len();
        encode::command(&mut self.unsent, words);
        self.queued += (self.unsent.len() - before) as u64;
        self.expected.push_back(ExpectedReply::Client { end: self.queued });
    }

    /// `MONITOR` was sent: behind its reply, whatever comes is for the client, unless it is refused.
    pub fn set_monitors(&mut self, monitors: bool) {
        self.monitors = monitors;
    }

    /// The first piece of a command of the client's that comes in pieces.
    pub fn begin_stream(&mut self, piece: &[u8]) {
        self.queue(piece);
        self.expected.push_back(ExpectedReply::Client { end: u64::MAX });
    }

    pub fn stream(&mut self, piece: &[u8]) {
        self.queue(piece);
    }

    pub fn end_stream(&mut self) {
        if let Some(ExpectedReply::Client { end }) = self.expected.back_mut() {
            *end = self.queued;
        }
    }

    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.unsent.len() - self.unsent_at
    }

    /// What it keeps in memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.unsent.capacity() + self.received.capacity() + self.unasked.capacity()
    }

    /// Part of a reply has gone to the client, and more of it must follow before anything else.
    #[must_use]
    pub fn is_inside_reply(&self) -> bool {
        self.scanner.is_inside() && self.passes
    }

    fn queue(&mut self, bytes: &[u8]) {
        self.compact();
        self.unsent.extend_from_slice(bytes);
        self.queued += bytes.len() as u64;
    }

    fn compact(&mut self) {
        if self.unsent_at == self.unsent.len() {
            self.unsent.clear();
            self.unsent_at = 0;
        } else if self.unsent_at > UNSENT_BYTES_MAX {
            self.unsent.drain(..self.unsent_at);
            self.unsent_at = 0;
        }
    }

    /// Sends what can be sent now. `Ok(true)` where something went out.
    pub fn poll_send(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionLost> {
        let has_moved = self.moved.as_mut().is_some_and(|moved| moved.as_mut().poll(context).is_ready());
        if has_moved || self.upstream.moves() != self.moves {
            return Err(self.down(upstream::moved().to_string()));
        }
        let mut moved = false;
        if let SocketState::Connecting(connecting) = &mut self.state {
            match connecting.as_mut().poll(context) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok((stream, place))) => {
                    self.state = SocketState::Open(stream);
                    self._place = Some(place);
                }
                Poll::Ready(Err(error)) => return Err(self.down(error.to_string())),
            }
            moved = true;
        }
        while self.unsent_at < self.unsent.len() {
            let SocketState::Open(stream) = &self.state else { return Ok(moved) };
            match stream.try_write(&self.unsent[self.unsent_at..]) {
                Ok(count) => {
                    self.unsent_at += count;
                    self.sent += count as u64;
                    moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match stream.poll_write_ready(context) {
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(error)) => return Err(self.down(error.to_string())),
                        Poll::Pending => return Ok(moved),
                    }
                }
                Err(error) => return Err(self.down(error.to_string())),
            }
        }
        self.compact();
        if self.unsent.capacity() > UNSENT_BYTES_MAX {
            self.unsent = Vec::new();
        }
        Ok(moved)
    }

    /// Passes bytes of replies into `out`, at most to the end of one reply of the client's.
    pub fn poll_reply(
        &mut self,
        context: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<Result<ReplyPart, ConnectionLost>> {
        loop {
            if self.received_at == self.received.len() {
                ready!(self.poll_receive(context))?;
            }
            let bytes = &self.received[self.received_at..];
            if !std::mem::replace(&mut self.is_served, true) && upstream::turns_away(bytes) {
                return Poll::Ready(Err(self.turned_away()));
            }
            if !self.scanner.is_inside() {
                self.is_unasked = bytes[0] == b'>' || (self.monitors && self.expected.is_empty());
                self.passes =
                    !self.is_unasked && matches!(self.expected.front(), Some(ExpectedReply::Client { .. }));
                self.swallowed.clear();
            }
            let Ok((taken, outcome)) = self.scanner.scan(bytes) else {
                return Poll::Ready(Err(self.down("it does not speak RESP".to_string())));
            };
            if self.passes {
                out.extend_from_slice(&bytes[..taken]);
            } else if self.is_unasked {
                self.unasked.extend_from_slice(&bytes[..taken]);
                if self.unasked.len() > UNASKED_BYTES_MAX {
                    return Poll::Ready(Err(self.down("a push larger than 8 MiB".to_string())));
                }
            } else if self.swallowed.len() < 256 {
                self.swallowed.extend_from_slice(&bytes[..taken.min(256)]);
            }
            self.received_at += taken;
            match outcome {
                None if self.passes => return Poll::Ready(Ok(ReplyPart::Bytes)),
                None => {}
                Some(ScannedReply::Push | ScannedReply::Reply { .. }) if self.is_unasked => {
                    out.append(&mut self.unasked);
                    self.unasked.shrink_to(KEPT_BYTES_MAX);
                    return Poll::Ready(Ok(ReplyPart::Unasked));
                }
                Some(ScannedReply::Push) => {}
                Some(ScannedReply::Reply { is_error }) => match self.expected.pop_front() {
                    Some(ExpectedReply::Client { .. }) => {
                        return Poll::Ready(Ok(ReplyPart::Reply { is_error }))
                    }
                    Some(ExpectedReply::Ours) if !is_error => {}
                    Some(ExpectedReply::Number) => {
                        self.number.store(number_in(&self.swallowed), Ordering::Relaxed)
                    }
                    Some(ExpectedReply::Ours) | None => {
                        let text = String::from_utf8_lossy(&self.swallowed).trim_end().to_string();
                        return Poll::Ready(Err(self.down(format!("it answered {text:?}"))));
                    }
                },
            }
        }
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectionLost>> {
        self.received.clear();
        self.received_at = 0;
        // Nothing is kept for an idle connection but a little room for small replies.
        self.received.shrink_to(KEPT_BYTES_MAX);
        let SocketState::Open(stream) = &mut self.state else { return Poll::Pending };
        let received = &mut self.received;
        let outcome = SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
            received.extend_from_slice(buffer.filled());
            Poll::Ready(io::Result::Ok(buffer.filled().len()))
        });
        match ready!(outcome) {
            Ok(0) => Poll::Ready(Err(self.down("it closed the connection".to_string()))),
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(self.down(error.to_string()))),
        }
    }

    /// It has as many clients as it may: it has read none of our commands, and hangs up.
    fn turned_away(&self) -> ConnectionLost {
        let mut lost = self.down(upstream::TURNED_AWAY.to_string());
        lost.unanswered.fill(false);
        lost
    }

    fn down(&self, reason: String) -> ConnectionLost {
        let unanswered = self.expected.iter().filter_map(|expected| match expected {
            ExpectedReply::Ours | ExpectedReply::Number => None,
            ExpectedReply::Client { end } => Some(self.sent >= *end),
        });
        ConnectionLost {
            unanswered: unanswered.collect(),
            mid_reply: self.is_inside_reply(),
            reason: format!("upstream Redis at {}: {reason}", self.upstream.place),
        }
    }
}

impl Drop for OwnConnection {
    fn drop(&mut self) {
        self.number.store(0, Ordering::Relaxed);
    }
}

/// The number of an integer reply; 0 where it is no such reply.
fn number_in(reply: &[u8]) -> u64 {
    let digits = reply.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b"\r\n")).unwrap_or_default();
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The reply to a client whose command was in flight when the connection went down.
#[must_use]
pub fn refusal(reason: &str, had_left: bool) -> Refusal {
    if had_left {
        Refusal::new(format!("INDETERMINATE {reason}; the command was sent, but its outcome is not known"))
    } else {
        Refusal::new(format!("UNAVAILABLE {reason}; nothing was done; retry"))
    }
}
