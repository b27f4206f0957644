//! What the upstream Redis publishes, for the clients of this node that listen.
//!
//! One connection listens to all channels and patterns any client wants, and hands messages to the [`Hub`]; it is opened with the
//! first of them. Lock events of Tier 1 come this way, and everything else clients publish there. When it breaks, those who listen to
//! more than locks are disconnected, as that Redis would have done; subscriptions to locks go on and are made again. A connection that
//! is silent while that Redis answers others counts as broken. What that Redis refuses, and a message too large to pass on, concerns
//! those alone who have asked for it.

use super::stream::{within, UpstreamStream};
use super::upstream::{turns_away, Health, Upstream};
use crate::events::{is_about_locks, Hub, PubSubMessage, SubscriptionKind};
use crate::resp::encode;
use crate::resp::replies::{ReplyScanner, ScannedReply};
use bytes::Bytes;
use redis_protocol::resp2::decode;
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{oneshot, Notify};
use tokio::time::{Instant, MissedTickBehavior};

const RETRY_AFTER: Duration = Duration::from_millis(200);
/// How long bytes may take to leave.
const SEND_WITHIN: Duration = Duration::from_secs(5);
/// Something must come within this long: it is asked for a `PONG` as often.
const PING_EVERY: Duration = Duration::from_secs(10);
/// A larger message is passed on to nobody: those it was for are disconnected.
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Of such a message this much is kept, to see whom it was for.
const KEPT_HEAD_BYTES: usize = 64 * 1024;

/// Why a subscription was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSubscribed {
    /// The upstream Redis could not be asked.
    Unavailable(String),
    /// It has answered with this error.
    Refused(String),
}

type ConfirmSender = oneshot::Sender<Result<(), NotSubscribed>>;

enum SubscriptionChange {
    Subscribe { kind: SubscriptionKind, names: Vec<Bytes>, confirm: Option<ConfirmSender> },
    Unsubscribe { kind: SubscriptionKind, name: Bytes },
}

#[derive(Default)]
struct SubscriberState {
    /// How many clients want each.
    wanted: BTreeMap<(u8, Bytes), usize>,
    changes: VecDeque<SubscriptionChange>,
    connected: bool,
    reason: String,
}

pub struct UpstreamSubscriber {
    upstream: Arc<Upstream>,
    hub: Arc<Hub>,
    state: Mutex<SubscriberState>,
    changed: Notify,
}

impl std::fmt::Debug for UpstreamSubscriber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

fn rank(kind: SubscriptionKind) -> u8 {
    match kind {
        SubscriptionKind::Channel => 0,
        SubscriptionKind::Pattern => 1,
        SubscriptionKind::Shard => 2,
    }
}

impl UpstreamSubscriber {
    #[must_use]
    pub fn start(upstream: Arc<Upstream>, hub: Arc<Hub>) -> Arc<UpstreamSubscriber> {
        let subscriber =
            Arc::new(UpstreamSubscriber { upstream, hub, state: Mutex::default(), changed: Notify::new() });
        tokio::spawn(run(Arc::clone(&subscriber)));
        subscriber
    }

    fn state(&self) -> std::sync::MutexGuard<'_, SubscriberState> {
        self.state.lock().expect("mutex poisoned")
    }

    /// Confirmed once that Redis has confirmed; refused where it cannot be reached and more than locks is asked for.
    pub fn subscribe(
        &self,
        kind: SubscriptionKind,
        names: &[Bytes],
    ) -> oneshot::Receiver<Result<(), NotSubscribed>> {
        let (confirm, confirmed) = oneshot::channel();
        let mut state = self.state();
        for name in names {
            *state.wanted.entry((rank(kind), name.clone())).or_default() += 1;
        }
        let down = !state.connected && !state.reason.is_empty();
        if down {
            let about_locks = names.iter().all(|name| is_about_locks(name));
            let answer =
                if about_locks { Ok(()) } else { Err(NotSubscribed::Unavailable(state.reason.clone())) };
            // The receiver is in our hands: sending cannot fail.
            let _ = confirm.send(answer);
        } else {
            state.changes.push_back(SubscriptionChange::Subscribe {
                kind,
                names: names.to_vec(),
                confirm: Some(confirm),
            });
        }
        drop(state);
        self.changed.notify_one();
        confirmed
    }

    pub fn unsubscribe(&self, kind: SubscriptionKind, name: &Bytes) {
        let mut state = self.state();
        let key = (rank(kind), name.clone());
        let Some(count) = state.wanted.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            state.wanted.remove(&key);
            state.changes.push_back(SubscriptionChange::Unsubscribe { kind, name: name.clone() });
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Whether nobody wants anything. Whoever comes next is not refused for what was: a connection is tried.
    fn rests(&self) -> bool {
        let mut state = self.state();
        let rests = state.wanted.is_empty();
        if rests {
            state.changes.clear();
            state.reason.clear();
        }
        rests
    }

    /// The connection broke, or could not be made.
    fn lose(&self, error: &io::Error) {
        let mut state = self.state();
        let was_connected = std::mem::take(&mut state.connected);
        state.reason = format!("upstream Redis at {}: {error}", self.upstream.place);
        let reason = state.reason.clone();
        for change in std::mem::take(&mut state.changes) {
            if let SubscriptionChange::Subscribe { names, confirm: Some(confirm), .. } = change {
                let about_locks = names.iter().all(|name| is_about_locks(name));
                // The client may be gone: then nobody waits for it.
                let _ = confirm.send(if about_locks {
                    Ok(())
                } else {
                    Err(NotSubscribed::Unavailable(reason.clone()))
                });
            }
        }
        drop(state);
        if was_connected {
            self.hub.tell_missed();
        }
    }

    /// Everything wanted, as changes for a new connection. What was confirmed once goes first, each name by itself: one that is refused
    /// now takes no other with it. Then those who wait, as they asked.
    fn all_wanted(&self) -> Vec<SubscriptionChange> {
        let mut state = self.state();
        let mut waiting = Vec::new();
        let mut confirmed = state.wanted.clone();
        for change in std::mem::take(&mut state.changes) {
            let SubscriptionChange::Subscribe { kind, mut names, confirm } = change else { continue };
            // A client that is gone wants nothing any more.
            if confirm.as_ref().is_some_and(ConfirmSender::is_closed) {
                continue;
            }
            names.retain(|name| {
                let key = (rank(kind), name.clone());
                if let Some(count) = confirmed.get_mut(&key) {
                    *count = count.saturating_sub(1);
                }
                state.wanted.contains_key(&key)
            });
            waiting.push(SubscriptionChange::Subscribe { kind, names, confirm });
        }
        let confirmed = confirmed.into_iter().filter(|(_, count)| *count > 0);
        let mut changes: Vec<SubscriptionChange> = confirmed
            .map(|((rank, name), _)| SubscriptionChange::Subscribe {
                kind: SubscriptionKind::ALL[usize::from(rank)],
                names: vec![name],
                confirm: None,
            })
            .collect();
        changes.append(&mut waiting);
        changes
    }
}

async fn run(subscriber: Arc<UpstreamSubscriber>) {
    loop {
        while subscriber.rests() {
            subscriber.changed.notified().await;
        }
        let error = match serve_connection(&subscriber).await {
            Ok(()) => continue,
            Err(error) => error,
        };
        subscriber.lose(&error);
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

/// Serves one connection until it breaks, or until nobody wants anything any more.
async fn serve_connection(subscriber: &UpstreamSubscriber) -> io::Result<()> {
    let moves = subscriber.upstream.moves();
    subscriber.upstream.unless_moved(moves, listen(subscriber)).await
}

async fn listen(subscriber: &UpstreamSubscriber) -> io::Result<()> {
    let mut stream = subscriber.upstream.connect().await?;
    let mut greeting = Vec::new();
    let mut greetings = 0;
    if let Some(auth) = subscriber.upstream.auth_words() {
        encode::command(&mut greeting, &auth);
        greetings = 1;
    }
    within(SEND_WITHIN, "a login", stream.write_all(&greeting)).await?;
    {
        let mut state = subscriber.state();
        state.connected = true;
        state.reason.clear();
    }
    let mut connection = SubscriberConnection {
        stream,
        received: Vec::new(),
        scanned: 0,
        scanner: ReplyScanner::default(),
        is_too_large: false,
        awaiting: VecDeque::new(),
        greetings,
    };
    connection.carry_out(subscriber.all_wanted()).await?;
    let mut pings = tokio::time::interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Nothing has come since the last PING.
    let mut is_silent = false;
    loop {
        tokio::select! {
            () = subscriber.changed.notified() => {
                let changes: Vec<SubscriptionChange> = subscriber.state().changes.drain(..).collect();
                connection.carry_out(changes).await?;
                if subscriber.state().wanted.is_empty() {
                    subscriber.state().connected = false;
                    return Ok(());
                }
            }
            _ = pings.tick() => {
                // One that is busy answers nobody.
                let should_answer = matches!(subscriber.upstream.health(), Health::Up(_));
                if is_silent && should_answer {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to PING in time"));
                }
                is_silent = should_answer;
                connection.ping().await?;
            }
            received = connection.receive() => {
                received?;
                is_silent = false;
                connection.hand_out(&subscriber.hub)?;
            }
        }
    }
}

/// A command of ours without its whole answer.
enum AwaitedAnswer {
    /// Confirmations still to come, and whom they are for.
    Subscribe {
        missing: usize,
        confirm: Option<ConfirmSender>,
    },
    Unsubscribe,
    Ping,
}

struct SubscriberConnection {
    stream: UpstreamStream,
    received: Vec<u8>,
    scanned: usize,
    scanner: ReplyScanner,
    /// Of the message in flight only the head is kept.
    is_too_large: bool,
    awaiting: VecDeque<AwaitedAnswer>,
    /// Replies of our own greeting still to come.
    greetings: usize,
}

impl SubscriberConnection {
    async fn carry_out(&mut self, changes: Vec<SubscriptionChange>) -> io::Result<()> {
        let mut bytes = Vec::new();
        for change in changes {
            let (verb, names): (&'static str, Vec<Bytes>) = match change {
                SubscriptionChange::Subscribe { names, confirm, .. } if names.is_empty() => {
                    self.awaiting.push_back(AwaitedAnswer::Subscribe { missing: 0, confirm });
                    continue;
                }
                SubscriptionChange::Subscribe { kind, names, confirm } => {
                    self.awaiting.push_back(AwaitedAnswer::Subscribe { missing: names.len(), confirm });
                    (kind.subscribe_verbs().0, names)
                }
                SubscriptionChange::Unsubscribe { kind, name } => {
                    self.awaiting.push_back(AwaitedAnswer::Unsubscribe);
                    (kind.unsubscribe_verbs().0, vec![name])
                }
            };
            let mut words = vec![Bytes::from_static(verb.as_bytes())];
            words.extend(names);
            encode::command(&mut bytes, &words);
        }
        self.settle();
        within(SEND_WITHIN, "SUBSCRIBE", self.stream.write_all(&bytes)).await
    }

    async fn ping(&mut self) -> io::Result<()> {
        self.awaiting.push_back(AwaitedAnswer::Ping);
        let mut bytes = Vec::new();
        encode::command(&mut bytes, &["PING"]);
        within(SEND_WITHIN, "PING", self.stream.write_all(&bytes)).await
    }

    /// Reads some bytes. Safe to drop: nothing is lost.
    async fn receive(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.received).await? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            _ => Ok(()),
        }
    }

    fn hand_out(&mut self, hub: &Hub) -> io::Result<()> {
        let mut start = 0;
        loop {
            let scan = self.scanner.scan(&self.received[self.scanned..]);
            let (taken, outcome) = scan.map_err(|_| io::Error::other("it does not speak RESP"))?;
            self.scanned += taken;
            let Some(ScannedReply::Reply { is_error }) = outcome else { break };
            let frame = &self.received[start..self.scanned];
            let text = || String::from_utf8_lossy(&frame[..frame.len().min(200)]).trim_end().to_string();
            if std::mem::take(&mut self.is_too_large) || frame.len() > MESSAGE_BYTES_MAX {
                tell_of_too_large(frame, hub);
            } else if is_error && (self.greetings > 0 || turns_away(frame)) {
                return Err(io::Error::other(text()));
            } else if self.greetings > 0 {
                self.greetings -= 1;
            } else if is_error {
                let text = text();
                self.refuse_first(text.trim_start_matches('-'))?;
            } else if let Ok(Some((OwnedFrame::Array(items), _))) = decode::decode(frame) {
                self.act_on(items, hub);
            } else if frame == b"+PONG\r\n" {
                // As it answers where nothing is subscribed to.
                self.end_first();
            } else {
                return Err(io::Error::other(text()));
            }
            start = self.scanned;
        }
        self.received.drain(..start);
        self.scanned -= start;
        if self.received.len() > MESSAGE_BYTES_MAX || self.is_too_large {
            // All of it was looked at: what comes next is looked at behind the head.
            self.is_too_large = true;
            self.received.truncate(KEPT_HEAD_BYTES);
            self.received.shrink_to(2 * KEPT_HEAD_BYTES);
            self.scanned = self.received.len();
        }
        Ok(())
    }

    fn act_on(&mut self, items: Vec<OwnedFrame>, hub: &Hub) {
        let mut words = items.into_iter().map(|item| {
            if let OwnedFrame::BulkString(bytes) = item {
                Bytes::from(bytes)
            } else {
                Bytes::new()
            }
        });
        let mut word = || words.next().unwrap_or_default();
        match &word()[..] {
            kind @ (b"message" | b"smessage") => {
                let is_shard = kind == b"smessage";
                let (channel, payload) = (word(), word());
                let message =
                    PubSubMessage { pattern: None, is_shard, is_from_machine: false, channel, payload };
                hub.pass_on(&message);
            }
            b"pmessage" => {
                let (pattern, channel, payload) = (word(), word(), word());
                let message = PubSubMessage {
                    pattern: Some(pattern),
                    is_shard: false,
                    is_from_machine: false,
                    channel,
                    payload,
                };
                hub.pass_on(&message);
            }
            b"subscribe" | b"psubscribe" | b"ssubscribe" => {
                if let Some(AwaitedAnswer::Subscribe { missing, .. }) = self.awaiting.front_mut() {
                    *missing = missing.saturating_sub(1);
                }
                self.settle();
            }
            b"unsubscribe" | b"punsubscribe" | b"sunsubscribe" | b"pong" => self.end_first(),
            _ => {}
        }
    }

    /// The first of our commands has its answer.
    fn end_first(&mut self) {
        if matches!(self.awaiting.front(), Some(AwaitedAnswer::Unsubscribe | AwaitedAnswer::Ping)) {
            self.awaiting.pop_front();
        }
        self.settle();
    }

    /// The first of our commands was refused. Nobody else is concerned.
    fn refuse_first(&mut self, error: &str) -> io::Result<()> {
        match self.awaiting.pop_front() {
            Some(AwaitedAnswer::Subscribe { confirm: Some(confirm), .. }) => {
                // The client may be gone: then nobody waits for it.
                let _ = confirm.send(Err(NotSubscribed::Refused(error.to_string())));
            }
            Some(AwaitedAnswer::Subscribe { confirm: None, .. }) => {
                tracing::warn!(
                    error,
                    "the upstream Redis refuses a subscription that it had confirmed before"
                );
            }
            // A user without the right to PING is told so.
            Some(AwaitedAnswer::Unsubscribe | AwaitedAnswer::Ping) => {}
            None => return Err(io::Error::other(error.to_string())),
        }
        self.settle();
        Ok(())
    }

    /// Confirms those whose subscriptions are all made.
    fn settle(&mut self) {
        while let Some(AwaitedAnswer::Subscribe { missing: 0, confirm }) = self.awaiting.front_mut() {
            if let Some(confirm) = confirm.take() {
                // The client may be gone: then nobody waits for it.
                let _ = confirm.send(Ok(()));
            }
            self.awaiting.pop_front();
        }
    }
}

/// A message that is not passed on: whoever listens to its channel is disconnected.
fn tell_of_too_large(head: &[u8], hub: &Hub) {
    let mut words = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    // The count of words, then a length and the word for each. A name with a line break has another length than its line.
    let (kind, length, name) = (words.nth(2), words.next(), words.next());
    let kind = match kind {
        Some(b"message") => Some(SubscriptionKind::Channel),
        Some(b"pmessage") => Some(SubscriptionKind::Pattern),
        Some(b"smessage") => Some(SubscriptionKind::Shard),
        Some(_) | None => None,
    };
    let expected = name.map(|name| format!("${}", name.len()));
    match (kind, name) {
        (Some(kind), Some(name)) if length == expected.as_ref().map(String::as_bytes) => {
            hub.tell_missed_on(kind, name)
        }
        _ => hub.tell_missed(),
    }
}

impl Drop for SubscriberConnection {
    fn drop(&mut self) {
        for awaited in self.awaiting.drain(..) {
            if let AwaitedAnswer::Subscribe { confirm: Some(confirm), .. } = awaited {
                let _ = confirm.send(Err(NotSubscribed::Unavailable(
                    "the connection to the upstream Redis broke".into(),
                )));
            }
        }
    }
}
