//! One client's connection: bytes in, commands run, replies out in order.
//!
//! One task a connection, no locks, no buffers while idle: reads go through a scratch buffer of the thread, and only what is not a
//! whole command is kept. [`Connection::poll`] turns until nothing moves: replies that have come, bytes of the Redis behind,
//! messages of channels, held commands, new bytes; then it writes all that has gathered at once.
//!
//! While the client waits for an answer its end of the connection is watched: a client that goes away leaves every queue it
//! stands in, and its sessions are orphaned (`Drop`). What a command does is in [`super::execute`].

use super::encode::Encoder;
use super::pending::{Call, Confirm, Lane, Pending, RedisCall, PENDING_MAX};
use super::request::{ProtocolError, RequestParser, Sender, Step, FRAME_BYTES_MAX};
use super::session::Client;
use super::Shared;
use crate::events::Delivery;
use crate::tier1::link::{self, Arrived, Down, Link};
use redfence_core::reply::{Refusal, Reply, Sink};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Bytes of replies a client may leave unread.
pub const UNREAD_BYTES_MAX: usize = 1024 * 1024;
/// Above this the Redis behind is not read from until the client has taken some.
const PASSING_BYTES_MAX: usize = 256 * 1024;
/// Bytes of further commands that are taken in while a client waits for an answer.
const HELD_BYTES_MAX: usize = 64 * 1024;
/// Buffers above this are given back once they are empty.
const KEPT_BYTES_MAX: usize = 16 * 1024;
const SCRATCH_BYTES: usize = 64 * 1024;
/// Turns before other tasks get theirs.
const TURNS_MAX: usize = 64;
/// How long the Redis behind may take to answer a client that has closed its sending side.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_millis(200);
/// How often a client that has filled its share of held bytes is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// The connection ends. Nothing more is sent.
#[derive(Debug)]
pub struct End;

/// Whether a command was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Done,
    /// Not yet: commands on another lane come first.
    Stall,
    /// Done, and the connection ends once its replies are sent.
    Last,
}

/// A command that comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Large {
    ToRedis,
    /// It was answered with an error already; the rest of it is dropped.
    Dropped,
}

pub struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) client: Client,
    pub(super) pending: VecDeque<Pending>,
    pub(super) lane: Lane,
    pub(super) link: Option<Box<Link>>,
    stream: TcpStream,
    parser: RequestParser,
    sender: Sender,
    held: Vec<u8>,
    held_at: usize,
    out: Vec<u8>,
    out_at: usize,
    large: Option<Large>,
    stalled: bool,
    ending: bool,
    gone: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    #[must_use]
    pub fn new(shared: Arc<Shared>, stream: TcpStream, client: Client) -> Connection {
        let sender = shared.sender_for(&client);
        Connection {
            shared,
            client,
            pending: VecDeque::new(),
            lane: Lane::Free,
            link: None,
            stream,
            parser: RequestParser::default(),
            sender,
            held: Vec::new(),
            held_at: 0,
            out: Vec::new(),
            out_at: 0,
            large: None,
            stalled: false,
            ending: false,
            gone: false,
            timer: None,
        }
    }

    /// Serves the client until either side ends it.
    pub async fn run(mut self) {
        std::future::poll_fn(|context| self.poll(context)).await;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for _ in 0..TURNS_MAX {
            match self.turn(context) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(End) => return Poll::Ready(()),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks at everything once. `Ok(false)`: nothing moved, and everything will wake us.
    fn turn(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let mut moved = self.poll_link(context)?;
        moved |= self.poll_pending(context)?;
        moved |= self.poll_inbox(context)?;
        moved |= self.resume()?;
        moved |= self.poll_read(context)?;
        if !moved || self.out.len() - self.out_at > HELD_BYTES_MAX {
            self.poll_write(context)?;
            let all_sent = self.out.is_empty() && self.pending.is_empty();
            if all_sent && (self.ending || self.gone) {
                return Err(End);
            }
        }
        if !moved {
            moved = self.poll_timer(context)?;
        }
        Ok(moved)
    }

    // ---- replies ----

    /// Answers the command just run, behind whatever is under way.
    pub(super) fn reply(&mut self, reply: &Reply) {
        self.reply_with(|encoder| reply.render(encoder));
    }

    pub(super) fn reply_with(&mut self, write: impl FnOnce(&mut Encoder<'_>)) {
        if self.client.is_muted() {
            return;
        }
        let protocol = self.client.protocol;
        let out = match self.pending.back_mut() {
            None => &mut self.out,
            Some(Pending::Encoded(bytes)) => bytes,
            Some(Pending::Call(_) | Pending::Redis(_) | Pending::Confirm(_)) => {
                self.pending.push_back(Pending::Encoded(Vec::new()));
                match self.pending.back_mut() {
                    Some(Pending::Encoded(bytes)) => bytes,
                    _ => unreachable!("just pushed"),
                }
            }
        };
        write(&mut Encoder { out, protocol });
    }

    fn poll_pending(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let mut moved = false;
        while let Some(front) = self.pending.front_mut() {
            match front {
                Pending::Encoded(bytes) => {
                    self.out.append(bytes);
                    self.pending.pop_front();
                }
                Pending::Call(call) => {
                    let Poll::Ready(reply) = Pin::new(&mut call.source).poll(context) else { break };
                    let Some(Pending::Call(call)) = self.pending.pop_front() else { unreachable!("seen") };
                    self.finish_call(&call, &reply);
                }
                Pending::Confirm(confirm) => {
                    let Poll::Ready(confirmed) = Pin::new(&mut confirm.confirmed).poll(context) else {
                        break;
                    };
                    let Some(Pending::Confirm(confirm)) = self.pending.pop_front() else {
                        unreachable!("seen")
                    };
                    self.finish_confirm(
                        confirm,
                        confirmed.unwrap_or_else(|_| Err("it is shutting down".into())),
                    );
                }
                Pending::Redis(_) => break,
            }
            moved = true;
        }
        if self.pending.is_empty() && self.lane != Lane::Free {
            self.lane = Lane::Free;
            self.stalled = false;
            moved = true;
        }
        Ok(moved)
    }

    fn finish_call(&mut self, call: &Call, reply: &Reply) {
        self.shared.stats.count(reply, self.shared.now_us().saturating_sub(call.began_us));
        if call.waits {
            self.client.set_waiting(false);
        }
        if !call.muted {
            let protocol = self.client.protocol;
            reply.render(&mut Encoder { out: &mut self.out, protocol });
        }
    }

    fn finish_confirm(&mut self, confirm: Confirm, confirmed: Result<(), String>) {
        match confirmed {
            Ok(()) => self.confirm(confirm.kind, &confirm.names),
            Err(reason) => self.take_back_subscription(confirm, &reason),
        }
    }

    fn poll_inbox(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        if self.client.subscriptions.is_none()
            || self.pending.iter().any(|item| matches!(item, Pending::Confirm(_)))
        {
            return Ok(false);
        }
        if self.link.as_ref().is_some_and(|link| link.is_inside_reply()) {
            return Ok(false);
        }
        let mut moved = false;
        let protocol = self.client.protocol;
        while let Some(subscriptions) = &mut self.client.subscriptions {
            if subscriptions.inbox.overflowed() || self.out.len() - self.out_at > UNREAD_BYTES_MAX {
                tracing::info!(
                    client = self.client.card.id,
                    "a subscriber does not read its messages; it is disconnected"
                );
                return Err(End);
            }
            let Poll::Ready(Some(delivery)) = subscriptions.inbox.receiver.poll_recv(context) else { break };
            let Delivery::Message(message) = delivery else {
                // It missed messages of the Redis behind: it must know, as it would if that Redis had hung up.
                return Err(End);
            };
            let mut encoder = Encoder { out: &mut self.out, protocol };
            match &message.pattern {
                None => {
                    encoder.push(3);
                    encoder.bulk(b"message");
                }
                Some(pattern) => {
                    encoder.push(4);
                    encoder.bulk(b"pmessage");
                    encoder.bulk(pattern);
                }
            }
            encoder.bulk(&message.channel);
            encoder.bulk(&message.payload);
            moved = true;
        }
        Ok(moved)
    }

    // ---- the Redis behind ----

    /// The client's own connection to the Redis behind; opened when first needed.
    pub(super) fn link(&mut self) -> Option<&mut Link> {
        if self.link.is_none() {
            let upstream = self.shared.upstream.as_ref()?;
            self.link = Some(Box::new(Link::open(upstream, self.client.protocol, self.client.db)));
        }
        self.link.as_deref_mut()
    }

    fn poll_link(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let Some(link) = &mut self.link else { return Ok(false) };
        let mut moved = match link.poll_send(context) {
            Ok(moved) => moved,
            Err(down) => return self.lose_link(down).map(|()| true),
        };
        while self.out.len() - self.out_at < PASSING_BYTES_MAX {
            let muted = match self.pending.front() {
                Some(Pending::Redis(call)) => call.muted,
                None => false,
                Some(Pending::Encoded(_) | Pending::Call(_) | Pending::Confirm(_)) => break,
            };
            let Some(link) = &mut self.link else { break };
            let begins = !link.is_inside_reply();
            let start = self.out.len();
            match link.poll_reply(context, &mut self.out) {
                Poll::Pending => break,
                Poll::Ready(Ok(Arrived::Bytes)) => {}
                Poll::Ready(Ok(Arrived::Reply { .. })) => {
                    let Some(Pending::Redis(call)) = self.pending.pop_front() else {
                        // It said something nobody asked for, such as why it hangs up.
                        return Err(End);
                    };
                    if begins {
                        self.look_at_reply(&call, start);
                    }
                    if call.waits {
                        self.client.set_waiting(false);
                    }
                }
                Poll::Ready(Err(down)) => return self.lose_link(down).map(|()| true),
            }
            if muted {
                self.out.truncate(start);
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Counts a reply to one of our own commands; notices that the Lua library is gone.
    fn look_at_reply(&mut self, call: &RedisCall, start: usize) {
        let reply = &self.out[start..];
        if call.by_lua && crate::tier1::lua::says_library_is_gone(reply) {
            if let Some(upstream) = &self.shared.upstream {
                upstream.library_is_gone();
            }
            self.out.truncate(start);
            let refusal = Refusal::new("UNAVAILABLE the Lua library of the Redis behind this proxy was flushed and is being loaded again; nothing was done; retry");
            let protocol = self.client.protocol;
            Reply::Error(refusal).render(&mut Encoder { out: &mut self.out, protocol });
        } else if let Some(verdict) = call.verdict {
            let took_us = self.shared.now_us().saturating_sub(call.began_us);
            self.shared.stats.count_bytes(verdict, reply, took_us);
        }
    }

    /// The Redis behind is gone: answers what was under way there, truthfully.
    fn lose_link(&mut self, down: Down) -> Result<(), End> {
        self.link = None;
        if down.mid_reply || self.client.depends_on_link() {
            return Err(End);
        }
        if self.large == Some(Large::ToRedis) {
            self.large = Some(Large::Dropped);
        }
        let mut had_left = down.unanswered.into_iter();
        let protocol = self.client.protocol;
        for item in &mut self.pending {
            let Pending::Redis(call) = item else { continue };
            let mut bytes = Vec::new();
            if !call.muted {
                let refusal = link::refusal(&down.reason, had_left.next().unwrap_or(true));
                Reply::Error(refusal).render(&mut Encoder { out: &mut bytes, protocol });
            }
            *item = Pending::Encoded(bytes);
        }
        self.client.set_waiting(false);
        Ok(())
    }

    // ---- requests ----

    fn can_go_on(&self) -> bool {
        !self.ending
            && !self.gone
            && !self.stalled
            && self.lane != Lane::Alone
            && self.pending.len() < PENDING_MAX
            && self.link.as_ref().is_none_or(|link| link.unsent_bytes() < link::UNSENT_BYTES_MAX)
    }

    /// Goes on with commands that were held.
    fn resume(&mut self) -> Result<bool, End> {
        if self.held_at == self.held.len() || !self.can_go_on() {
            return Ok(false);
        }
        let held = std::mem::take(&mut self.held);
        let taken = self.process(&held[self.held_at..])?;
        self.held = held;
        self.held_at += taken;
        if self.held_at == self.held.len() {
            self.held_at = 0;
            self.held.clear();
            if self.held.capacity() > KEPT_BYTES_MAX {
                self.held = Vec::new();
            }
        } else if self.held_at > HELD_BYTES_MAX {
            self.held.drain(..self.held_at);
            self.held_at = 0;
        }
        Ok(taken > 0)
    }

    /// Runs whole commands from the front of `bytes`; answers how many bytes are dealt with.
    fn process(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let mut at = 0;
        while at < bytes.len() && self.can_go_on() {
            let step = match self.large {
                Some(large) => self.pass_piece(large, &bytes[at..]),
                None => self.run_one(&bytes[at..]),
            };
            match step {
                Ok(0) => break,
                Ok(taken) => at += taken,
                Err(ProtocolError(text)) => {
                    self.reply(&Reply::Error(Refusal::new(format!("ERR Protocol error: {text}"))));
                    self.ending = true;
                    return Ok(bytes.len());
                }
            }
            if self.out.len() - self.out_at > UNREAD_BYTES_MAX && !self.try_write_now()? {
                tracing::info!(
                    client = self.client.card.id,
                    "a client does not read its replies; it is disconnected"
                );
                return Err(End);
            }
        }
        Ok(if self.ending { bytes.len() } else { at })
    }

    /// Runs the command at the front of `frame`. 0: it is not whole, or must wait.
    fn run_one(&mut self, frame: &[u8]) -> Result<usize, ProtocolError> {
        let (flow, len) = match self.parser.parse(frame, self.sender)? {
            Step::Incomplete => return Ok(0),
            Step::Nothing { len } => (Flow::Done, len),
            Step::Command { len } => {
                let argv = words_at(frame, self.parser.words());
                (self.execute(&argv, Some(&frame[..len])), len)
            }
            Step::Inline { len } => {
                let words = self.parser.take_inline_words();
                let argv: SmallVec<[&[u8]; 16]> = words.iter().map(Vec::as_slice).collect();
                (self.execute(&argv, None), len)
            }
            Step::Large { seen } => return Ok(self.begin_large(&frame[..seen])),
        };
        self.parser.reset();
        match flow {
            Flow::Done => Ok(len),
            Flow::Stall => {
                self.stalled = true;
                Ok(0)
            }
            Flow::Last => {
                self.ending = true;
                Ok(len)
            }
        }
    }

    /// A command too large to hold, for the Redis behind: its first piece.
    fn begin_large(&mut self, head: &[u8]) -> usize {
        let argv = words_at(head, self.parser.words());
        match self.admit_large(&argv, self.parser.declared_words()) {
            Ok(Flow::Stall) => {
                self.stalled = true;
                self.parser.reset();
                return 0;
            }
            Ok(Flow::Done | Flow::Last) => {
                if let Some(link) = self.link() {
                    link.begin_stream(head);
                }
                self.large = Some(Large::ToRedis);
            }
            Err(refusal) => {
                self.reply(&Reply::Error(refusal));
                self.large = Some(Large::Dropped);
            }
        }
        head.len()
    }

    fn pass_piece(&mut self, large: Large, bytes: &[u8]) -> Result<usize, ProtocolError> {
        let (taken, whole) = self.parser.stream(bytes)?;
        if let (Large::ToRedis, Some(link)) = (large, &mut self.link) {
            link.stream(&bytes[..taken]);
            if whole {
                link.end_stream();
            }
        }
        if whole {
            self.large = None;
            self.parser.reset();
        }
        Ok(taken)
    }

    // ---- the socket ----

    fn poll_read(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let held = self.held.len() - self.held_at;
        let goes_on = self.can_go_on();
        if self.gone || self.ending {
            return self.watch_for_end(context).map(|()| false);
        }
        if !goes_on && held >= HELD_BYTES_MAX {
            return self.watch_for_end(context).map(|()| false);
        }
        debug_assert!(held <= FRAME_BYTES_MAX + 2 * SCRATCH_BYTES);
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Err(End),
            }
            let bytes = buffer.filled();
            if bytes.is_empty() {
                return self.client_is_gone().map(|()| true);
            }
            let taken = if held == 0 && goes_on { self.process(bytes)? } else { 0 };
            self.held.extend_from_slice(&bytes[taken..]);
            Ok(true)
        })
    }

    /// The client sends no more. What it waits for is pointless; what is about to be answered is still answered.
    fn client_is_gone(&mut self) -> Result<(), End> {
        self.gone = true;
        let pointless = self.pending.iter().any(|item| match item {
            Pending::Call(call) => call.dies_with_client(),
            Pending::Redis(call) => call.waits,
            Pending::Encoded(_) | Pending::Confirm(_) => false,
        });
        if pointless || self.client.subscription_count() > 0 {
            return Err(End);
        }
        self.timer = Some(Box::pin(tokio::time::sleep(LAST_ANSWERS_WITHIN)));
        Ok(())
    }

    /// No bytes are taken from the client now; only its end is of interest.
    fn watch_for_end(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        if self.gone {
            return Ok(());
        }
        let ready = std::pin::pin!(self.stream.ready(Interest::READABLE)).poll(context);
        if matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed()) {
            return Err(End);
        }
        if self.timer.is_none() {
            self.timer = Some(Box::pin(tokio::time::sleep(LOOK_EVERY)));
        }
        Ok(())
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let Some(timer) = &mut self.timer else { return Ok(false) };
        if timer.as_mut().poll(context).is_pending() {
            return Ok(false);
        }
        self.timer = None;
        // Only answers of the Redis behind are limited by time: Tier 2 has its own limit.
        if self.gone && self.pending.iter().any(|item| matches!(item, Pending::Redis(_))) {
            return Err(End);
        }
        Ok(!self.gone)
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        while self.out_at < self.out.len() {
            match Pin::new(&mut self.stream).poll_write(context, &self.out[self.out_at..]) {
                Poll::Pending => break,
                Poll::Ready(Ok(count)) if count > 0 => self.out_at += count,
                Poll::Ready(_) => return Err(End),
            }
        }
        self.tidy_out();
        Ok(())
    }

    /// Writes without waiting. Whether there is room again.
    fn try_write_now(&mut self) -> Result<bool, End> {
        while self.out_at < self.out.len() {
            match self.stream.try_write(&self.out[self.out_at..]) {
                Ok(count) if count > 0 => self.out_at += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => return Err(End),
            }
        }
        self.tidy_out();
        Ok(self.out.len() - self.out_at <= UNREAD_BYTES_MAX)
    }

    fn tidy_out(&mut self) {
        if self.out_at == self.out.len() {
            self.out.clear();
            self.out_at = 0;
            if self.out.capacity() > KEPT_BYTES_MAX {
                self.out = Vec::new();
            }
        } else if self.out_at > UNREAD_BYTES_MAX {
            self.out.drain(..self.out_at);
            self.out_at = 0;
        }
    }

    /// Authentication or the door decide what the parser lets through.
    pub(super) fn renew_limits(&mut self) {
        self.sender = self.shared.sender_for(&self.client);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for item in self.pending.drain(..) {
            if let Pending::Call(call) = item {
                call.abandon(&self.shared);
            }
        }
        self.drop_subscriptions();
        self.client.leave_sessions(&self.shared.keeper);
        self.shared.clients.leave(self.client.card.id);
    }
}

fn words_at<'a>(frame: &'a [u8], spans: &[super::request::Span]) -> SmallVec<[&'a [u8]; 16]> {
    spans.iter().map(|(start, len)| &frame[*start as usize..][..*len as usize]).collect()
}
