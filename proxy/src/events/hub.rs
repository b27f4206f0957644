//! Subscriptions of this node's clients: channels and patterns to inboxes.
//!
//! A message is matched against the patterns in slices, and the lock is released between two of them ([`pattern_cost`]). Whoever
//! publishes one message after the other keeps their order for each subscriber.

mod pattern_cost;

use super::overflow::OverflowMark;
use super::Demand;
use crate::client_memory::Account;
use bytes::Bytes;
use pattern_cost::{PatternCursor, PatternLoad, STEPS_PER_SLICE};
use redfence_core::event::{CHANNEL_PREFIX, LOST_CHANNEL_PREFIX};
use redfence_core::glob;
use redfence_core::limits::READ_REPLY_BYTES_MAX;
use redfence_core::types::CHANNEL_BYTES_MAX;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll};
use tokio::sync::{mpsc, Semaphore};

pub use pattern_cost::{steps_max, PatternLimit, PATTERN_STEPS_PER_CLIENT_MAX};

/// Where clients that redirect their invalidations have them sent, as in Redis.
pub const INVALIDATE_CHANNEL: &[u8] = b"__redis__:invalidate";
/// Unread messages one subscriber may have. One more closes its connection. One command can end ten thousand locks at once: whoever
/// reads must be able to hear of each.
const INBOX_MESSAGES_MAX: usize = 65_536;
/// Bytes of them: what Redis grants a subscriber by default.
const INBOX_BYTES_MAX: usize = 32 * 1024 * 1024;
/// What a message takes besides its texts.
const MESSAGE_BYTES: usize = 128;
/// Bytes of different patterns that the clients of one node may listen to.
const PATTERN_BYTES_PER_NODE_MAX: usize = 4 * 1024 * 1024;

/// A channel's name, a pattern over names, or a shard channel: those are an upstream Redis's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubscriptionKind {
    Channel,
    Pattern,
    Shard,
}

impl SubscriptionKind {
    pub const ALL: [SubscriptionKind; 3] =
        [SubscriptionKind::Channel, SubscriptionKind::Pattern, SubscriptionKind::Shard];

    /// What a client says to begin, in capitals, and what it is told.
    #[must_use]
    pub fn subscribe_verbs(self) -> (&'static str, &'static str) {
        match self {
            SubscriptionKind::Channel => ("SUBSCRIBE", "subscribe"),
            SubscriptionKind::Pattern => ("PSUBSCRIBE", "psubscribe"),
            SubscriptionKind::Shard => ("SSUBSCRIBE", "ssubscribe"),
        }
    }

    /// The same to end it.
    #[must_use]
    pub fn unsubscribe_verbs(self) -> (&'static str, &'static str) {
        match self {
            SubscriptionKind::Channel => ("UNSUBSCRIBE", "unsubscribe"),
            SubscriptionKind::Pattern => ("PUNSUBSCRIBE", "punsubscribe"),
            SubscriptionKind::Shard => ("SUNSUBSCRIBE", "sunsubscribe"),
        }
    }
}

/// A message to a subscriber. `pattern` is set if a pattern subscription matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PubSubMessage {
    pub pattern: Option<Bytes>,
    /// Of a shard channel.
    pub is_shard: bool,
    /// A lock event of Tier 2, said by the machine itself: no client can have published it.
    pub is_from_machine: bool,
    pub channel: Bytes,
    pub payload: Bytes,
}

/// What a subscriber receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscriberDelivery {
    Message(PubSubMessage),
    /// A key cached by a client that redirects its invalidations to this one has changed; `None`: all keys.
    Invalidated(Option<Bytes>),
    /// Messages were lost: the connection to the upstream Redis broke, or the feed of this node's apply overflowed.
    Missed,
}

/// The receiving end of one subscriber.
#[derive(Debug)]
pub struct SubscriberInbox {
    receiver: mpsc::Receiver<QueuedDelivery>,
    listener: Subscriber,
}

/// A delivery in the inbox.
#[derive(Debug)]
struct QueuedDelivery {
    delivery: SubscriberDelivery,
    bytes: usize,
    /// Its share of the bytes that all receivers have in common.
    share: usize,
}

impl SubscriberInbox {
    /// An inbox with no subscriptions yet. A client has one at most.
    #[must_use]
    pub fn open(account: Arc<Account>) -> SubscriberInbox {
        let (sender, receiver) = mpsc::channel(INBOX_MESSAGES_MAX);
        let listener = Subscriber {
            client: account.client,
            sender,
            overflowed: OverflowMark::default(),
            bytes: Arc::default(),
            account,
        };
        SubscriberInbox { receiver, listener }
    }

    /// Whether a delivery was dropped because the inbox was full.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.listener.overflowed.is_set()
    }

    /// Instead of [`SubscriberInbox::poll`], where its client has no room for more: wakes when the inbox overflows.
    pub fn poll_overflow(&self, context: &Context<'_>) {
        self.listener.overflowed.wake_when_set(context);
    }

    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<SubscriberDelivery>> {
        self.receiver.poll_recv(context).map(|queued| {
            let QueuedDelivery { delivery, bytes, share } = queued?;
            self.listener.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.listener.account.take_message(share);
            Some(delivery)
        })
    }
}

#[derive(Clone, Debug)]
struct Subscriber {
    client: u64,
    sender: mpsc::Sender<QueuedDelivery>,
    overflowed: OverflowMark,
    /// Of all messages in its inbox.
    bytes: Arc<AtomicUsize>,
    account: Arc<Account>,
}

/// Who listens to one pattern, which is numbered in the order of coming.
#[derive(Debug, Default)]
struct PatternListeners {
    number: u64,
    subscribers: Vec<Subscriber>,
}

#[derive(Debug, Default)]
struct SubscriptionTable {
    channels: HashMap<Bytes, Vec<Subscriber>>,
    /// In order, so that a message can be matched from behind any of them on.
    patterns: BTreeMap<Bytes, PatternListeners>,
    /// The number of the pattern that comes next.
    next_pattern: u64,
    pattern_load: PatternLoad,
    shards: HashMap<Bytes, Vec<Subscriber>>,
}

/// A message on its way to its subscribers.
#[derive(Debug)]
pub struct Publication {
    message: PubSubMessage,
    cursor: PatternCursor,
    is_begun: bool,
    receivers: usize,
}

impl Publication {
    #[must_use]
    pub fn new(channel: Bytes, payload: Bytes) -> Publication {
        let message =
            PubSubMessage { pattern: None, is_shard: false, is_from_machine: false, channel, payload };
        Publication { message, cursor: PatternCursor::default(), is_begun: false, receivers: 0 }
    }

    /// The same for a lock event that the machine itself says.
    #[must_use]
    pub fn from_machine(channel: Bytes, payload: Bytes) -> Publication {
        let mut publication = Publication::new(channel, payload);
        publication.message.is_from_machine = true;
        publication
    }

    /// What it has cost so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.cursor.steps
    }
}

/// How many a message would reach, and what it took to count them: as much as to deliver it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverCount {
    pub receivers: usize,
    pub steps: u64,
}

/// All listeners of this node.
#[derive(Debug)]
pub struct Hub {
    table: RwLock<SubscriptionTable>,
    /// Only one list of all channels is made at a time: it may take as much memory as they do.
    channel_lists: Semaphore,
    /// Without subscribers, apply collects no events and messages.
    demand: Arc<Demand>,
}

impl Hub {
    /// `demand` is where listeners are counted.
    #[must_use]
    pub fn new(demand: Arc<Demand>) -> Hub {
        Hub { table: RwLock::default(), channel_lists: Semaphore::new(1), demand }
    }

    /// Sends an invalidation to one client, if it subscribes to the invalidation channel, as in Redis.
    pub fn invalidate_at(&self, client: u64, key: Option<Bytes>) {
        let table = self.table.read().expect("lock poisoned");
        let listeners = table.channels.get(INVALIDATE_CHANNEL).map_or(&[][..], Vec::as_slice);
        if let Some(listener) = listeners.iter().find(|listener| listener.client == client) {
            let bytes = key.as_ref().map_or(0, Bytes::len);
            listener.deliver(SubscriberDelivery::Invalidated(key), bytes, bytes);
        }
    }

    /// Whether any subscription may match lock events.
    #[must_use]
    pub fn is_watching_locks(&self) -> bool {
        self.demand.wanted().events
    }

    /// From its return on, the inbox gets whatever is published or applied.
    pub fn subscribe(&self, inbox: &SubscriberInbox, kind: SubscriptionKind, name: &Bytes) {
        let listener = inbox.listener.clone();
        let mut table = self.table.write().expect("lock poisoned");
        if kind == SubscriptionKind::Pattern && !table.patterns.contains_key(name) {
            table.pattern_load.add(name);
        }
        let listeners = table.listeners_or_default(kind, name);
        if listeners.iter().any(|known| known.client == inbox.listener.client) {
            return;
        }
        listeners.push(listener);
        self.demand.subscriptions.fetch_add(1, Ordering::SeqCst);
        if may_see(CHANNEL_PREFIX, kind, name) {
            self.demand.lock_watchers.fetch_add(1, Ordering::SeqCst);
        }
        if may_see(LOST_CHANNEL_PREFIX, kind, name) {
            self.demand.loss_watchers.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether the patterns of all clients of this node leave room for these: every message is matched against each of them.
    pub fn check_room_for_patterns(&self, patterns: &[Bytes]) -> Result<(), PatternLimit> {
        let table = self.table.read().expect("lock poisoned");
        let mut more = PatternLoad::default();
        patterns.iter().filter(|name| !table.patterns.contains_key(*name)).for_each(|name| more.add(name));
        table.pattern_load.check_room_for(&more)
    }

    pub fn unsubscribe(&self, inbox: &SubscriberInbox, kind: SubscriptionKind, name: &[u8]) {
        let mut table = self.table.write().expect("lock poisoned");
        let Some(listeners) = table.listeners_mut(kind, name) else {
            return;
        };
        let before = listeners.len();
        listeners.retain(|known| known.client != inbox.listener.client);
        let removed = before > listeners.len();
        if listeners.is_empty() {
            table.remove(kind, name);
        }
        if removed {
            self.demand.subscriptions.fetch_sub(1, Ordering::SeqCst);
            if may_see(CHANNEL_PREFIX, kind, name) {
                self.demand.lock_watchers.fetch_sub(1, Ordering::SeqCst);
            }
            if may_see(LOST_CHANNEL_PREFIX, kind, name) {
                self.demand.loss_watchers.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// How many a message on this channel would reach.
    #[must_use]
    pub fn receivers_of(&self, channel: &[u8]) -> ReceiverCount {
        self.count(channel, <[Subscriber]>::len)
    }

    /// How many of [`Hub::receivers_of`] an upstream Redis does not count: to it all listeners of one name here are one. A channel
    /// whose name is longer than those of this node is not matched against patterns.
    #[must_use]
    pub fn receivers_unknown_to_upstream(&self, channel: &[u8]) -> ReceiverCount {
        match channel.len() <= CHANNEL_BYTES_MAX {
            true => self.count(channel, |listeners| listeners.len().saturating_sub(1)),
            false => ReceiverCount { receivers: self.listeners_of(channel).saturating_sub(1), steps: 0 },
        }
    }

    /// Whether [`Hub::receivers_unknown_to_upstream`] may be more than none, without looking for long.
    #[must_use]
    pub fn may_have_receivers_unknown_to_upstream(&self, channel: &[u8]) -> bool {
        let table = self.table.read().expect("lock poisoned");
        !table.patterns.is_empty() || table.channels.get(channel).is_some_and(|listeners| listeners.len() > 1)
    }

    fn count(&self, channel: &[u8], of: impl Fn(&[Subscriber]) -> usize) -> ReceiverCount {
        let table = self.table.read().expect("lock poisoned");
        let mut receivers = table.channels.get(channel).map_or(0, |listeners| of(listeners));
        drop(table);
        let mut cursor = PatternCursor::default();
        let mut slice = || {
            let table = self.table.read().expect("lock poisoned");
            table.visit_matches(channel, &mut cursor, |_, listeners| receivers += of(listeners))
        };
        while !slice() {}
        ReceiverCount { receivers, steps: cursor.steps }
    }

    /// Delivers a message to all subscribers; returns how many there were. Never waits.
    pub fn publish(&self, channel: &Bytes, payload: &Bytes) -> usize {
        let mut publication = Publication::new(channel.clone(), payload.clone());
        while !self.publish_slice(&mut publication) {}
        publication.receivers
    }

    /// Delivers a message to some of its subscribers. False: there may be more, and no other message of the same publisher may come
    /// first.
    pub fn publish_slice(&self, publication: &mut Publication) -> bool {
        let table = self.table.read().expect("lock poisoned");
        let Publication { message, cursor, is_begun, receivers } = publication;
        if !std::mem::replace(is_begun, true) {
            *receivers += table.deliver_to_channel(message);
        }
        table.visit_matches(&message.channel, cursor, |pattern, listeners| {
            let message = PubSubMessage { pattern: Some(pattern.clone()), ..message.clone() };
            *receivers += deliver_to(listeners, &message);
        })
    }

    /// A message from the upstream Redis, which has matched the patterns itself.
    pub fn pass_on(&self, message: &PubSubMessage) {
        let table = self.table.read().expect("lock poisoned");
        match &message.pattern {
            None if message.is_shard => {
                deliver_to(table.shards.get(&message.channel).map_or(&[][..], Vec::as_slice), message)
            }
            None => table.deliver_to_channel(message),
            Some(pattern) => table.deliver_to_pattern(pattern, message),
        };
    }

    /// The feed of this node's apply has a gap: notifies all subscribers.
    pub fn tell_all_missed(&self) {
        let table = self.table.read().expect("lock poisoned");
        let of_patterns = table.patterns.values().map(|pattern| &pattern.subscribers);
        let lists = table.channels.values().chain(of_patterns).chain(table.shards.values());
        lists.flatten().for_each(|listener| listener.deliver(SubscriberDelivery::Missed, 0, 0));
    }

    /// The upstream Redis is gone: notifies subscribers of anything but lock events.
    pub fn tell_missed(&self) {
        let table = self.table.read().expect("lock poisoned");
        let channels = table.channels.iter().filter(|(name, _)| !is_about_locks(name));
        let patterns = table.patterns.iter().map(|(name, pattern)| (name, &pattern.subscribers));
        let patterns = patterns.filter(|(name, _)| !is_about_locks(name));
        for listener in channels.chain(patterns).chain(&table.shards).flat_map(|(_, listeners)| listeners) {
            listener.deliver(SubscriberDelivery::Missed, 0, 0);
        }
    }

    /// A message of the upstream Redis could not be passed on: notifies those who listen to this name.
    pub fn tell_missed_on(&self, kind: SubscriptionKind, name: &[u8]) {
        let mut table = self.table.write().expect("lock poisoned");
        for listener in table.listeners_mut(kind, name).into_iter().flatten() {
            listener.deliver(SubscriberDelivery::Missed, 0, 0);
        }
    }

    /// `PUBSUB CHANNELS`: channels with listeners. `None` where they are too many for a reply. Others get their turn in between: a
    /// costly pattern takes a millisecond for each channel.
    pub async fn channels(&self, pattern: Option<&[u8]>) -> Option<Vec<Bytes>> {
        let _one_at_a_time = self.channel_lists.acquire().await.expect("never closed");
        let mut names = self.channel_names();
        if let Some(pattern) = pattern {
            let all = std::mem::take(&mut names);
            let mut steps = 0;
            for name in all {
                steps += 1;
                if glob::matches_counted(pattern, &name, &mut steps) {
                    names.push(name);
                }
                if steps >= STEPS_PER_SLICE {
                    steps = 0;
                    tokio::task::yield_now().await;
                }
            }
        }
        if names.iter().map(|name| name.len() + 16).sum::<usize>() > READ_REPLY_BYTES_MAX {
            return None;
        }
        names.sort();
        Some(names)
    }

    fn channel_names(&self) -> Vec<Bytes> {
        self.table.read().expect("lock poisoned").channels.keys().cloned().collect()
    }

    #[must_use]
    pub fn channel_count(&self) -> usize {
        self.table.read().expect("lock poisoned").channels.len()
    }

    /// `PUBSUB NUMSUB`: how many listen to one channel.
    #[must_use]
    pub fn listeners_of(&self, channel: &[u8]) -> usize {
        self.table.read().expect("lock poisoned").channels.get(channel).map_or(0, Vec::len)
    }

    /// `PUBSUB NUMPAT`: how many patterns are listened to.
    #[must_use]
    pub fn pattern_count(&self) -> usize {
        self.table.read().expect("lock poisoned").patterns.len()
    }
}

impl Subscriber {
    /// `bytes` are shared with other receivers; `share` is this one's part of them.
    fn deliver(&self, delivery: SubscriberDelivery, bytes: usize, share: usize) {
        let (bytes, share) = (bytes + MESSAGE_BYTES, share + MESSAGE_BYTES);
        let fits = self.bytes.load(Ordering::Relaxed) + bytes <= INBOX_BYTES_MAX;
        if !fits || !self.account.add_message(share) {
            self.overflowed.set();
            // It may have nothing else to wake it. One whose inbox is full has.
            let _ = self.sender.try_send(QueuedDelivery {
                delivery: SubscriberDelivery::Missed,
                bytes: 0,
                share: 0,
            });
            return;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.sender.try_send(QueuedDelivery { delivery, bytes, share }).is_err() {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.account.take_message(share);
            self.overflowed.set();
        }
    }
}

fn deliver_to(listeners: &[Subscriber], message: &PubSubMessage) -> usize {
    let bytes = message.channel.len() + message.payload.len();
    let share = bytes / listeners.len().max(1);
    for listener in listeners {
        listener.deliver(SubscriberDelivery::Message(message.clone()), bytes, share);
    }
    listeners.len()
}

impl SubscriptionTable {
    fn deliver_to_channel(&self, message: &PubSubMessage) -> usize {
        deliver_to(self.channels.get(&message.channel).map_or(&[][..], Vec::as_slice), message)
    }

    fn deliver_to_pattern(&self, pattern: &Bytes, message: &PubSubMessage) -> usize {
        deliver_to(self.patterns.get(pattern).map_or(&[][..], |pattern| &pattern.subscribers), message)
    }

    fn listeners_mut(&mut self, kind: SubscriptionKind, name: &[u8]) -> Option<&mut Vec<Subscriber>> {
        match kind {
            SubscriptionKind::Channel => self.channels.get_mut(name),
            SubscriptionKind::Pattern => self.patterns.get_mut(name).map(|pattern| &mut pattern.subscribers),
            SubscriptionKind::Shard => self.shards.get_mut(name),
        }
    }

    fn listeners_or_default(&mut self, kind: SubscriptionKind, name: &Bytes) -> &mut Vec<Subscriber> {
        match kind {
            SubscriptionKind::Channel => self.channels.entry(name.clone()).or_default(),
            SubscriptionKind::Pattern => {
                let pattern = self.patterns.entry(name.clone()).or_insert_with(|| {
                    self.next_pattern += 1;
                    PatternListeners { number: self.next_pattern, subscribers: Vec::new() }
                });
                &mut pattern.subscribers
            }
            SubscriptionKind::Shard => self.shards.entry(name.clone()).or_default(),
        }
    }

    /// A name that has listeners no more.
    fn remove(&mut self, kind: SubscriptionKind, name: &[u8]) {
        match kind {
            SubscriptionKind::Channel => drop(self.channels.remove(name)),
            SubscriptionKind::Pattern => {
                self.patterns.remove(name);
                self.pattern_load.take(name);
            }
            SubscriptionKind::Shard => drop(self.shards.remove(name)),
        }
    }
}

/// Whether a subscription is to lock events, or to lost locks, alone.
#[must_use]
pub fn is_about_locks(name: &[u8]) -> bool {
    name.starts_with(CHANNEL_PREFIX) || name.starts_with(LOST_CHANNEL_PREFIX)
}

/// Whether a subscription could match a channel with this prefix. A pattern that begins with a wildcard might.
fn may_see(prefix: &[u8], kind: SubscriptionKind, name: &[u8]) -> bool {
    match kind {
        SubscriptionKind::Shard => false,
        SubscriptionKind::Channel => name.starts_with(prefix),
        SubscriptionKind::Pattern => {
            let plain = name.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(name.len());
            let shared = plain.min(prefix.len());
            name[..shared] == prefix[..shared]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_memory::ClientMemory;
    use crate::clock::Clock;
    use std::future::Future;
    use std::sync::atomic::AtomicBool;
    use std::task::Waker;

    fn inbox() -> SubscriberInbox {
        SubscriberInbox::open(ClientMemory::new(Clock::start()).open(1))
    }

    fn next(inbox: &mut SubscriberInbox) -> Option<SubscriberDelivery> {
        match inbox.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(delivery) => delivery,
            Poll::Pending => None,
        }
    }

    #[test]
    fn delivers_by_channel_and_by_pattern() {
        let hub = Hub::new(Arc::default());
        let mut inbox = inbox();
        let channel = Bytes::from_static(b"__lock__:a");
        hub.subscribe(&inbox, SubscriptionKind::Channel, &channel);
        hub.subscribe(&inbox, SubscriptionKind::Channel, &channel);
        hub.subscribe(&inbox, SubscriptionKind::Pattern, &Bytes::from_static(b"__lock__:*"));
        assert_eq!(hub.publish(&channel, &Bytes::from_static(b"m")), 2);
        let mut next_pattern = || match next(&mut inbox).unwrap() {
            SubscriberDelivery::Message(message) => message.pattern,
            other => panic!("no message: {other:?}"),
        };
        assert_eq!(next_pattern(), None);
        assert_eq!(next_pattern(), Some(Bytes::from_static(b"__lock__:*")));
        assert!(hub.is_watching_locks());
        hub.unsubscribe(&inbox, SubscriptionKind::Channel, &channel);
        hub.unsubscribe(&inbox, SubscriptionKind::Pattern, b"__lock__:*");
        assert!(!hub.is_watching_locks());
        assert_eq!(hub.publish(&channel, &Bytes::from_static(b"m")), 0);
    }

    #[test]
    fn a_listener_that_does_not_read_is_marked_and_holds_up_nobody() {
        let hub = Hub::new(Arc::default());
        let inbox = inbox();
        let channel = Bytes::from_static(b"c");
        hub.subscribe(&inbox, SubscriptionKind::Channel, &channel);
        for _ in 0..INBOX_MESSAGES_MAX {
            hub.publish(&channel, &channel);
        }
        assert!(!inbox.overflowed());
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        inbox.poll_overflow(&Context::from_waker(&Waker::from(Arc::clone(&woken))));
        hub.publish(&channel, &channel);
        assert!(inbox.overflowed());
        assert!(woken.0.load(Ordering::Relaxed), "also where it has no room for more");
    }

    struct Woken(AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_gap_in_the_feed_is_told_to_those_who_listen_to_locks_too() {
        let hub = Hub::new(Arc::default());
        let mut inbox = inbox();
        hub.subscribe(&inbox, SubscriptionKind::Channel, &Bytes::from_static(b"__lock__:a"));
        hub.tell_missed();
        assert_eq!(next(&mut inbox), None, "an upstream Redis has no events of Tier 2");
        hub.tell_all_missed();
        assert_eq!(next(&mut inbox), Some(SubscriberDelivery::Missed));
    }

    #[test]
    fn bytes_of_messages_are_bounded_as_well_as_their_number() {
        let memory = ClientMemory::new(Clock::start());
        let hub = Hub::new(Arc::default());
        let mut inboxes = [SubscriberInbox::open(memory.open(1)), SubscriberInbox::open(memory.open(2))];
        let channel = Bytes::from_static(b"c");
        inboxes.iter().for_each(|inbox| hub.subscribe(inbox, SubscriptionKind::Channel, &channel));
        let payload = Bytes::from(vec![b'm'; INBOX_BYTES_MAX / 4 - MESSAGE_BYTES - 1]);
        for _ in 0..4 {
            hub.publish(&channel, &payload);
        }
        assert!(!inboxes[0].overflowed() && !inboxes[1].overflowed());
        assert!(memory.total_bytes() < INBOX_BYTES_MAX + 16 * MESSAGE_BYTES, "they share the bytes");
        assert!(next(&mut inboxes[1]).is_some());
        hub.publish(&channel, &channel);
        assert!(
            inboxes[0].overflowed() && !inboxes[1].overflowed(),
            "one byte more, and only for who has not read"
        );
        for inbox in &mut inboxes {
            while next(inbox).is_some() {}
        }
        assert_eq!(memory.total_bytes(), 0);
    }

    #[test]
    fn only_patterns_that_may_match_a_lock_count() {
        for (name, expected) in
            [("*", true), ("__lock__:*", true), ("__l?ck*", true), ("foo*", false), ("__lo", false)]
        {
            assert_eq!(
                may_see(CHANNEL_PREFIX, SubscriptionKind::Pattern, name.as_bytes()),
                expected || name == "__lo",
                "{name}"
            );
        }
        assert!(!may_see(CHANNEL_PREFIX, SubscriptionKind::Channel, b"news"));
        assert!(may_see(LOST_CHANNEL_PREFIX, SubscriptionKind::Pattern, b"__lo*"));
        assert!(!may_see(LOST_CHANNEL_PREFIX, SubscriptionKind::Pattern, b"__lock__:*"));
    }

    fn texts(inbox: &mut SubscriberInbox) -> Vec<(Option<Bytes>, Bytes)> {
        let message = || match next(inbox)? {
            SubscriberDelivery::Message(message) => Some((message.pattern, message.payload)),
            other => panic!("no message: {other:?}"),
        };
        std::iter::from_fn(message).collect()
    }

    /// `*???…000`: against a channel of all bytes it takes more steps than a slice has.
    fn costly_pattern(number: usize) -> Bytes {
        Bytes::from(format!("*{}{number:03}", "?".repeat(400)))
    }

    fn costly_channel() -> Bytes {
        (0..CHANNEL_BYTES_MAX - 3).map(|at| at as u8).chain(*b"002").collect()
    }

    #[test]
    fn the_lock_is_released_between_costly_patterns() {
        let hub = Hub::new(Arc::default());
        let mut inbox = inbox();
        let channel = costly_channel();
        (0..5).for_each(|number| hub.subscribe(&inbox, SubscriptionKind::Pattern, &costly_pattern(number)));
        hub.subscribe(&inbox, SubscriptionKind::Channel, &channel);
        let mut publication = Publication::new(channel.clone(), Bytes::from_static(b"1"));
        let (mut slices, mut steps) = (1, 0);
        while !hub.publish_slice(&mut publication) {
            let most = STEPS_PER_SLICE + steps_max(&costly_pattern(0));
            assert!(publication.steps() - steps <= most, "{} steps in a slice", publication.steps() - steps);
            steps = publication.steps();
            // Whoever changes the table in between does not lose or repeat a message for others.
            if slices == 1 {
                assert!(hub.table.try_write().is_ok());
                hub.unsubscribe(&inbox, SubscriptionKind::Pattern, &costly_pattern(0));
                hub.subscribe(&inbox, SubscriptionKind::Pattern, &Bytes::from_static(b"!*"));
            }
            slices += 1;
        }
        assert!(slices >= 5, "{slices} slices");
        assert_eq!(publication.receivers, 2);
        assert_eq!(hub.receivers_of(&channel).receivers, 2);
        assert_eq!(hub.publish(&channel, &Bytes::from_static(b"2")), 2);
        let of = |text: &'static [u8]| {
            let text = Bytes::from_static(text);
            [(None, text.clone()), (Some(costly_pattern(2)), text)]
        };
        assert_eq!(
            texts(&mut inbox),
            [of(b"1"), of(b"2")].concat(),
            "in the order in which they were published"
        );
    }

    #[test]
    fn a_message_ends_although_patterns_go_on_coming() {
        let hub = Hub::new(Arc::default());
        let mut inbox = inbox();
        let channel = costly_channel();
        (0..3).for_each(|number| hub.subscribe(&inbox, SubscriptionKind::Pattern, &costly_pattern(number)));
        let mut publication = Publication::new(channel.clone(), Bytes::from_static(b"1"));
        let mut slices = 1;
        while !hub.publish_slice(&mut publication) {
            // Always one more behind the last.
            hub.subscribe(&inbox, SubscriptionKind::Pattern, &costly_pattern(slices + 2));
            slices += 1;
            assert!(slices < 10, "it does not end");
        }
        assert_eq!(texts(&mut inbox), [(Some(costly_pattern(2)), Bytes::from_static(b"1"))]);
    }

    #[test]
    fn usual_patterns_are_matched_in_one_slice() {
        let hub = Hub::new(Arc::default());
        let inbox = inbox();
        for number in 0..1_000 {
            hub.subscribe(&inbox, SubscriptionKind::Pattern, &Bytes::from(format!("news.{number}.*")));
        }
        let mut publication = Publication::new(Bytes::from_static(b"news.7.a"), Bytes::new());
        assert!(hub.publish_slice(&mut publication));
        assert_eq!(publication.receivers, 1);
    }

    #[test]
    fn patterns_that_cost_too_much_have_no_room() {
        let hub = Hub::new(Arc::default());
        let inbox = inbox();
        let fits = |number| hub.check_room_for_patterns(&[costly_pattern(number)]);
        let mut count = 0;
        while fits(count).is_ok() {
            hub.subscribe(&inbox, SubscriptionKind::Pattern, &costly_pattern(count));
            count += 1;
        }
        assert_eq!(fits(count), Err(PatternLimit::Steps));
        assert_eq!(fits(0), Ok(()), "one more listener of the same costs nothing");
        assert_eq!(hub.check_room_for_patterns(&[Bytes::from_static(b"__lock__:*")]), Ok(()));
        hub.unsubscribe(&inbox, SubscriptionKind::Pattern, &costly_pattern(0));
        assert_eq!(fits(count), Ok(()));
    }

    /// The lock is not held while names are matched: between two polls another can change the table.
    #[test]
    fn names_of_channels_are_matched_without_the_lock() {
        let hub = Hub::new(Arc::default());
        let inbox = inbox();
        let name = |number: usize| {
            let bytes = (0..CHANNEL_BYTES_MAX - 3).map(|at| at as u8);
            bytes.chain(format!("{number:03}").into_bytes()).collect::<Bytes>()
        };
        (0..8).for_each(|number| hub.subscribe(&inbox, SubscriptionKind::Channel, &name(number)));
        let pattern = costly_pattern(2);
        let mut names = Box::pin(hub.channels(Some(&pattern)));
        let mut context = Context::from_waker(Waker::noop());
        let mut polls = 1;
        let found = loop {
            match names.as_mut().poll(&mut context) {
                Poll::Ready(found) => break found,
                Poll::Pending => assert!(hub.table.try_write().is_ok()),
            }
            polls += 1;
        };
        assert!(polls >= 8, "{polls} polls");
        assert_eq!(found, Some(vec![name(2)]));
    }
}
