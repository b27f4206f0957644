//! The feed of a node: a subscription of its hub, handed on in batches. Exists while somebody listens.

use super::text::{self, LiveEvent, Made};
use super::Live;
use crate::client_memory::Account;
use crate::events::{SubscriberDelivery, SubscriberInbox, SubscriptionKind};
use crate::server::ServerState;
use bytes::Bytes;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Events in a batch and bytes of their texts, and how long the first of them waits for others. One more event is at most 16 KiB.
const BATCH_EVENTS_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 64 << 10;
const BATCH_EVERY: Duration = Duration::from_millis(50);
/// How long the feed outlives its last listener.
const LINGER: Duration = Duration::from_secs(2);
/// The feed's number as a subscriber: no client has it.
const FEED_CLIENT: u64 = u64::MAX;
const PATTERN: &[u8] = b"__lock__:*";

/// Events are numbered one after the other; a number that no batch has is an event that was lost.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) first: u64,
    pub(super) events: Vec<LiveEvent>,
    /// Events that were left out because they are too large, or that the feed itself has lost.
    pub(super) left_out: u64,
    bytes: usize,
}

impl Batch {
    /// The number of the first event behind it.
    pub(super) fn end(&self) -> u64 {
        self.first + self.events.len() as u64 + self.left_out
    }

    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.left_out == 0
    }

    fn is_full(&self) -> bool {
        self.events.len() >= BATCH_EVENTS_MAX || self.bytes >= BATCH_BYTES_MAX
    }
}

pub(super) struct Feed {
    server: Arc<ServerState>,
    live: Arc<Live>,
    inbox: SubscriberInbox,
    account: Arc<Account>,
    batch: Batch,
}

impl Feed {
    pub(super) fn open(server: Arc<ServerState>, live: Arc<Live>) -> Feed {
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

    pub(super) async fn run(mut self) {
        let mut flush_at = Instant::now();
        loop {
            let next = std::future::poll_fn(|context| self.inbox.poll(context));
            let was_empty = self.batch.is_empty();
            let until = if was_empty { Instant::now() + LINGER } else { flush_at };
            match tokio::time::timeout_at(until, next).await {
                Ok(Some(SubscriberDelivery::Message(message))) => {
                    let made = match message.is_from_machine {
                        true => text::of_machine(&message.channel, &message.payload),
                        // Without a Redis every lock is the machine's, and so is every event.
                        false if self.server.subscriber.is_none() => Made::NoEvent,
                        false => text::of_redis(&message.channel, &message.payload),
                    };
                    self.take(made);
                }
                Ok(Some(SubscriberDelivery::Missed)) => self.take(Made::TooLarge),
                Ok(Some(SubscriberDelivery::Invalidated(_))) => {}
                Ok(None) => self.reopen(),
                Err(_) if was_empty => {}
                Err(_) => self.flush(),
            }
            if self.batch.is_full() {
                self.flush();
            }
            if self.inbox.overflowed() {
                self.reopen();
            }
            if was_empty && !self.batch.is_empty() {
                flush_at = Instant::now() + BATCH_EVERY;
            }
            if self.ends() {
                return;
            }
        }
    }

    fn take(&mut self, made: Made) {
        match made {
            Made::Event(event) => {
                self.batch.bytes += event.text.len() + event.channel.len();
                self.batch.events.push(event);
            }
            Made::TooLarge => self.batch.left_out += 1,
            Made::NoEvent => {}
        }
    }

    fn flush(&mut self) {
        let next = Batch { first: self.batch.end(), ..Batch::default() };
        let batch = std::mem::replace(&mut self.batch, next);
        // Nobody listens: that is no error.
        let _ = self.live.sender.send(Arc::new(batch));
    }

    /// More came than the inbox holds: a new one.
    fn reopen(&mut self) {
        self.close();
        let batch = std::mem::take(&mut self.batch);
        *self = Feed::open(Arc::clone(&self.server), Arc::clone(&self.live));
        self.batch = batch;
        self.take(Made::TooLarge);
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
