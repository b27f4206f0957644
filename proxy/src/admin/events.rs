//! Live events by server-sent events: one feed a node, however many dashboards are open, handed to all of them in batches through
//! a bounded queue: a stream wakes a few times a second, not at every event. A reader that is too slow loses events and is told
//! how many.
//!
//! The feed is a subscription of this node's hub. It exists while somebody listens.

use super::api::{json, ApiError, Given};
use super::caller::Caller;
use super::http::{self, Answer, Body};
use super::logins::LoginEnd;
use super::{Admin, Stage, WAITING};
use crate::acl::User;
use crate::client_memory::Account;
use crate::events::{SubscriberDelivery, SubscriberInbox, SubscriptionKind};
use crate::server::ServerState;
use bytes::Bytes;
use http_body_util::Either;
use hyper::body::Frame;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use redfence_core::event::CHANNEL_PREFIX;
use redfence_core::glob;
use redfence_core::types::PATTERN_BYTES_MAX;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{mpsc, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Streams at one time.
const STREAMS_MAX: usize = 256;
/// Events in a batch, and how long the first of them waits for others.
const BATCH_EVENTS_MAX: usize = 256;
const BATCH_EVERY: Duration = Duration::from_millis(50);
/// Batches that wait for the slowest stream. Beyond them it loses some.
const WAITING_BATCHES_MAX: usize = 16;
/// Events that one stream is sent in a second; others are counted as lost.
const EVENTS_PER_SECOND: u32 = 200;
/// Pieces of a stream that wait for its reader; a piece is what a stream takes of one batch.
const PIECES_MAX: usize = 4;
const PING_EVERY: Duration = Duration::from_secs(15);
/// How often a stream tells what was lost, and looks whether its user is as it was.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the feed outlives its last listener.
const LINGER: Duration = Duration::from_secs(2);
/// The feed's number as a subscriber: no client has it.
const FEED_CLIENT: u64 = u64::MAX;
const PATTERN: &[u8] = b"__lock__:*";

#[derive(Debug)]
struct LiveEvent {
    channel: Bytes,
    text: Vec<u8>,
}

/// Events are numbered one after the other; a number that no batch has is an event that was lost.
#[derive(Debug, Default)]
struct Batch {
    first: u64,
    events: Vec<LiveEvent>,
}

impl Batch {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}

/// All streams of this node.
#[derive(Debug)]
pub(super) struct Live {
    sender: broadcast::Sender<Arc<Batch>>,
    streams: Arc<Semaphore>,
    has_feed: Mutex<bool>,
}

impl Default for Live {
    fn default() -> Live {
        let (sender, _) = broadcast::channel(WAITING_BATCHES_MAX);
        Live { sender, streams: Arc::new(Semaphore::new(STREAMS_MAX)), has_feed: Mutex::new(false) }
    }
}

impl Live {
    /// What is published from now on. Starts the feed where there is none.
    fn listen(self: &Arc<Live>, server: &Arc<ServerState>) -> broadcast::Receiver<Arc<Batch>> {
        let mut has_feed = self.has_feed.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = self.sender.subscribe();
        if !std::mem::replace(&mut *has_feed, true) {
            // Subscribed before the answer is sent: nothing that happens later is missed.
            let feed = Feed::open(Arc::clone(server), Arc::clone(self));
            tokio::spawn(feed.run());
        }
        receiver
    }
}

struct Feed {
    server: Arc<ServerState>,
    live: Arc<Live>,
    inbox: SubscriberInbox,
    account: Arc<Account>,
    batch: Batch,
}

impl Feed {
    fn open(server: Arc<ServerState>, live: Arc<Live>) -> Feed {
        let account = server.memory.open(FEED_CLIENT);
        let inbox = SubscriberInbox::open(Arc::clone(&account));
        let pattern = Bytes::from_static(PATTERN);
        server.hub.subscribe(&inbox, SubscriptionKind::Pattern, &pattern);
        if let Some(subscriber) = &server.subscriber {
            // Whether the upstream Redis has confirmed is of no interest: until then its events are missing.
            drop(subscriber.subscribe(SubscriptionKind::Pattern, &[pattern]));
        }
        Feed { server, live, inbox, account, batch: Batch::default() }
    }

    async fn run(mut self) {
        let mut flush_at = Instant::now();
        loop {
            let next = std::future::poll_fn(|context| self.inbox.poll(context));
            let until = if self.batch.events.is_empty() { Instant::now() + LINGER } else { flush_at };
            match tokio::time::timeout_at(until, next).await {
                Ok(Some(SubscriberDelivery::Message(message))) => {
                    if self.batch.events.is_empty() {
                        flush_at = Instant::now() + BATCH_EVERY;
                    }
                    self.take(&message.channel, &message.payload);
                }
                Ok(Some(SubscriberDelivery::Missed)) => self.skip_one(),
                Ok(Some(SubscriberDelivery::Invalidated(_))) => {}
                Ok(None) => self.reopen(),
                Err(_) if self.batch.events.is_empty() => {}
                Err(_) => self.flush(),
            }
            if self.batch.events.len() >= BATCH_EVENTS_MAX {
                self.flush();
            }
            if self.inbox.overflowed() {
                self.reopen();
            }
            if self.ends() {
                return;
            }
        }
    }

    fn take(&mut self, channel: &Bytes, payload: &Bytes) {
        let Some(name) = channel.strip_prefix(CHANNEL_PREFIX) else { return };
        let Some(rest) = payload.strip_prefix(b"{") else { return };
        // The text is JSON of one line; the name of the resource is added in the two forms of this API.
        let mut text = b"event: lock\ndata: {\"name\":".to_vec();
        text.extend_from_slice(serde_json::Value::from(json::shown(name)).to_string().as_bytes());
        text.extend_from_slice(b",\"key\":\"");
        text.extend_from_slice(json::key(name).as_bytes());
        text.extend_from_slice(b"\",");
        text.extend(rest.iter().filter(|byte| !matches!(byte, b'\r' | b'\n')));
        text.extend_from_slice(b"\n\n");
        self.batch.events.push(LiveEvent { channel: channel.clone(), text });
    }

    fn flush(&mut self) {
        let next = Batch { first: self.batch.end(), events: Vec::new() };
        let batch = std::mem::replace(&mut self.batch, next);
        // Nobody listens: that is no error.
        let _ = self.live.sender.send(Arc::new(batch));
    }

    /// The feed itself lost something: everybody is told at once, by a batch without events.
    fn skip_one(&mut self) {
        self.flush();
        self.batch.first += 1;
        self.flush();
    }

    /// More came than the inbox holds: a new one.
    fn reopen(&mut self) {
        self.close();
        let batch = std::mem::take(&mut self.batch);
        *self = Feed::open(Arc::clone(&self.server), Arc::clone(&self.live));
        self.batch = batch;
        self.skip_one();
    }

    fn close(&self) {
        self.server.hub.unsubscribe(&self.inbox, SubscriptionKind::Pattern, PATTERN);
        if let Some(subscriber) = &self.server.subscriber {
            subscriber.unsubscribe(SubscriptionKind::Pattern, &Bytes::from_static(PATTERN));
        }
        self.account.leave();
    }

    /// Where nobody listens any more, the feed is over. Under the lock, so that whoever comes now starts another.
    fn ends(&self) -> bool {
        if self.live.sender.receiver_count() > 0 {
            return false;
        }
        let mut has_feed = self.live.has_feed.lock().unwrap_or_else(PoisonError::into_inner);
        if self.live.sender.receiver_count() > 0 {
            return false;
        }
        *has_feed = false;
        self.close();
        true
    }
}

/// `GET /api/v1/events`.
pub(super) fn answer(given: &Given<'_>) -> Result<Answer, ApiError> {
    let caller = given.caller()?;
    if !caller.may_run(&[b"SUBSCRIBE", b"__lock__:"]) {
        caller.check(&[b"SUBSCRIBE", b"__lock__:"])?;
    }
    let pattern = given.words.get("match").map(<[u8]>::to_vec);
    if pattern.as_ref().is_some_and(|pattern| pattern.len() > PATTERN_BYTES_MAX) {
        return Err(ApiError::bad("match has at most 1024 bytes"));
    }
    let live = &given.admin.live;
    let Ok(permit) = Arc::clone(&live.streams).try_acquire_owned() else {
        return Err(ApiError::unavailable("256 live streams are open at this node already; close some"));
    };
    let receiver = live.listen(&given.admin.server);
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let login = caller.login.clone();
    let stream = Stream::new(caller, pattern, sender);
    tokio::spawn(async move {
        tokio::select! {
            () = stream.run(receiver) => {}
            () = login_ends(login) => {}
        }
    });
    let events = EventStream { pieces, stage: Arc::clone(given.stage), _permit: permit };
    let mut answer: Response<Body> = Response::new(Either::Right(events));
    *answer.status_mut() = StatusCode::OK;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(http::NO_STORE));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    http::protect(headers);
    Ok(answer)
}

/// Never where nobody logged in.
async fn login_ends(login: Option<LoginEnd>) {
    match login {
        Some(login) => login.wait().await,
        None => std::future::pending().await,
    }
}

/// The body of such an answer.
#[derive(Debug)]
pub(super) struct EventStream {
    pieces: mpsc::Receiver<Bytes>,
    stage: Arc<Stage>,
    _permit: OwnedSemaphorePermit,
}

impl hyper::body::Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.pieces.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.stage.set(WAITING);
    }
}

/// What one dashboard listens to.
struct Stream {
    admin: Arc<Admin>,
    user: Arc<User>,
    generation: u64,
    pattern: Option<Vec<u8>>,
    sender: mpsc::Sender<Bytes>,
    /// Events that may still be sent in this second.
    left: u32,
    second: Instant,
    /// The number of the next event, once a batch has come.
    next: Option<u64>,
    lost: u64,
}

impl Stream {
    fn new(caller: Caller, pattern: Option<Vec<u8>>, sender: mpsc::Sender<Bytes>) -> Stream {
        Stream {
            generation: caller.admin.server.access.generation(),
            user: caller.user,
            admin: caller.admin,
            pattern,
            sender,
            left: EVENTS_PER_SECOND,
            second: Instant::now(),
            next: None,
            lost: 0,
        }
    }

    async fn run(mut self, mut receiver: broadcast::Receiver<Arc<Batch>>) {
        if self.sender.send(Bytes::from_static(b"retry: 3000\n: connected\n\n")).await.is_err() {
            return;
        }
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut pinged = Instant::now();
        loop {
            let mut piece = Vec::new();
            tokio::select! {
                event = receiver.recv() => match event {
                    Ok(batch) => self.take_batch(&batch, &mut piece),
                    // The next batch's number tells how many.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
                _ = looks.tick() => {
                    if !self.is_still_allowed() {
                        return;
                    }
                    if self.lost > 0 {
                        let lost = std::mem::take(&mut self.lost);
                        piece.extend_from_slice(format!("event: gap\ndata: {{\"lost\":{lost}}}\n\n").as_bytes());
                    }
                    if pinged.elapsed() >= PING_EVERY {
                        pinged = Instant::now();
                        piece.extend_from_slice(b": ping\n\n");
                    }
                }
                () = self.sender.closed() => return,
            }
            if !piece.is_empty() && self.sender.send(piece.into()).await.is_err() {
                return;
            }
        }
    }

    fn take_batch(&mut self, batch: &Batch, piece: &mut Vec<u8>) {
        self.lost += self.next.map_or(0, |next| batch.first.saturating_sub(next));
        self.next = Some(batch.end());
        if self.second.elapsed() >= Duration::from_secs(1) {
            self.second = Instant::now();
            self.left = EVENTS_PER_SECOND;
        }
        for (index, event) in batch.events.iter().enumerate() {
            if self.left == 0 {
                // Not looked at: some of them may not be for this stream.
                self.lost += (batch.events.len() - index) as u64;
                return;
            }
            if self.is_wanted(event) {
                self.left -= 1;
                piece.extend_from_slice(&event.text);
            }
        }
    }

    fn is_wanted(&self, event: &LiveEvent) -> bool {
        let name = &event.channel[CHANNEL_PREFIX.len()..];
        self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, name))
            && self.user.check(&[b"SUBSCRIBE", &event.channel], None).is_ok()
    }

    /// Whether the user exists as it did when the stream began, or by the same name where nobody logged in.
    fn is_still_allowed(&mut self) -> bool {
        let access = &self.admin.server.access;
        let generation = access.generation();
        if generation == self.generation {
            return true;
        }
        self.generation = generation;
        access.user(&self.user.name).is_some_and(|user| *user == *self.user)
    }
}
