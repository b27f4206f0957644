//! Distributes the feed of Tier 2's apply to subscribers and tracking clients. One task.
//!
//! Matching messages against patterns may take long, and any client can publish them: they wait in a queue of their own, so that holders
//! hear of lost locks and tracking clients of changed keys at once. The losses for subscribers (`__lost__:…`) wait in another, and go
//! first. Where a queue is full its items are lost, subscribers are told so, and nobody else is concerned.

use super::{Hub, LossWatch, Publication, Tracker};
use crate::node_api::apply_feed::{self, FeedItem, FeedReceiver, FeedSender};
use bytes::Bytes;
use redfence_core::event::{channel, event_to_json, loss_to_json, lost_channel, Event};
use redfence_core::machine::Loss;
use redfence_core::types::Tier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Steps until others get their turn, and what an item counts for besides those of its message ([`Publication::steps`]).
const STEPS_PER_TURN: u64 = 64 * 1024;
const ITEM_STEPS: u64 = STEPS_PER_TURN / 256;
/// How soon subscribers are told that items were lost, where nothing else comes.
const MISSED_AGAIN: Duration = Duration::from_millis(100);

/// Runs until the node has stopped. `events_lost` counts how often a queue was full and items of it were lost.
pub async fn publish_feed(
    feed: FeedReceiver,
    hub: Arc<Hub>,
    tracker: Arc<Tracker>,
    losses: Arc<LossWatch>,
    events_lost: Arc<AtomicU64>,
) {
    let (messages, waiting) = apply_feed::channel();
    let (lost, waiting_lost) = apply_feed::channel();
    let distributed = distribute(feed, ForSubscribers { messages, lost }, &tracker, &losses);
    tokio::join!(distributed, publish_waiting(waiting, waiting_lost, &hub, &events_lost));
}

/// The queues for subscribers.
struct ForSubscribers {
    messages: FeedSender,
    lost: FeedSender,
}

/// What takes no time, and the rest to the queues for subscribers.
async fn distribute(mut feed: FeedReceiver, mut to: ForSubscribers, tracker: &Tracker, losses: &LossWatch) {
    loop {
        let batch = match to.messages.owes_missed() || to.lost.owes_missed() {
            true => tokio::time::timeout(MISSED_AGAIN, feed.next()).await.unwrap_or(Some(Vec::new())),
            false => feed.next().await,
        };
        let Some(batch) = batch else { return };
        let mut turn = Turn::default();
        let (mut messages, mut lost) = (Vec::new(), Vec::new());
        for item in batch {
            // One entry can end thousands of locks: its listeners get the time to take what there is.
            turn.spend(ITEM_STEPS).await;
            match item {
                FeedItem::Event(_) | FeedItem::Published { .. } => messages.push(item),
                FeedItem::Ended(loss) => {
                    // First: nobody is told to doubt a lock of which others hear meanwhile that it is lost.
                    losses.ended(&loss);
                    if loss.cause.is_some() {
                        lost.push(FeedItem::Ended(loss));
                    }
                }
                FeedItem::Read { client, key } => tracker.read(client, &key),
                FeedItem::Changed { by, key } => tracker.changed(&key, by),
                FeedItem::Flushed => tracker.everything_changed(),
                FeedItem::Missed => {
                    tracker.everything_changed();
                    losses.missed();
                    // All subscribers are disconnected: nothing has to be told before that.
                    lost.push(FeedItem::Missed);
                }
            }
        }
        to.lost.tell(lost);
        to.messages.tell(messages);
        tokio::task::yield_now().await;
    }
}

async fn publish_waiting(
    mut messages: FeedReceiver,
    mut lost: FeedReceiver,
    hub: &Hub,
    events_lost: &AtomicU64,
) {
    loop {
        let (batch, gives_way) = tokio::select! {
            biased;
            Some(batch) = lost.next() => (batch, false),
            Some(batch) = messages.next() => (batch, true),
            else => return,
        };
        let mut turn = Turn::default();
        for item in batch {
            while let Some(first) = if gives_way { lost.try_next() } else { None } {
                for item in first {
                    publish_item(item, hub, events_lost, &mut turn).await;
                }
            }
            publish_item(item, hub, events_lost, &mut turn).await;
        }
        tokio::task::yield_now().await;
    }
}

async fn publish_item(item: FeedItem, hub: &Hub, events_lost: &AtomicU64, turn: &mut Turn) {
    turn.spend(ITEM_STEPS).await;
    match item {
        FeedItem::Event(event) => publish(hub, publication_of_event(&event), turn).await,
        FeedItem::Published { channel, message } => {
            publish(hub, Publication::new(channel, message), turn).await;
        }
        FeedItem::Ended(loss) => {
            if let Some(publication) = publication_of_loss(&loss) {
                publish(hub, publication, turn).await;
            }
        }
        FeedItem::Missed => {
            events_lost.fetch_add(1, Ordering::Relaxed);
            hub.tell_all_missed();
        }
        FeedItem::Read { .. } | FeedItem::Changed { .. } | FeedItem::Flushed => {}
    }
}

/// How much was done since others had their turn.
#[derive(Debug, Default)]
pub struct Turn {
    steps: u64,
}

impl Turn {
    async fn spend(&mut self, steps: u64) {
        self.steps += steps;
        if self.steps >= STEPS_PER_TURN {
            self.steps = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// To all subscribers, with turns for others in between. The next item waits until all subscribers have this one: that keeps the order.
pub async fn publish(hub: &Hub, mut publication: Publication, turn: &mut Turn) {
    loop {
        let before = publication.steps();
        let is_done = hub.publish_slice(&mut publication);
        turn.spend(publication.steps() - before).await;
        if is_done {
            return;
        }
    }
}

/// The feed is Tier 2's, and so is every event in it.
fn publication_of_event(event: &Event) -> Publication {
    let json = event_to_json(event, Tier::Correctness);
    Publication::from_machine(Bytes::from(channel(&event.resource)), Bytes::from(json))
}

/// For RESP2 clients, which get no pushes.
fn publication_of_loss(loss: &Loss) -> Option<Publication> {
    let cause = loss.cause?;
    let json = loss_to_json("lock-lost", &loss.resource, loss.fence, cause.as_str(), loss.successor);
    Some(Publication::new(Bytes::from(lost_channel(&loss.resource)), Bytes::from(json)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_memory::ClientMemory;
    use crate::clock::Clock;
    use crate::events::{Attempt, AttemptBy, GrantKey, SubscriberInbox, SubscriptionKind, ToldGrant};
    use redfence_core::types::{Fence, LockMode, LossCause, UserTag};
    use std::future::Future;
    use std::task::{Context, Waker};

    fn costly_pattern() -> String {
        format!("*{}ab", "?".repeat(60))
    }

    fn message() -> FeedItem {
        let channel = (0..1_024).map(|at| at as u8).collect();
        FeedItem::Published { channel, message: Bytes::from_static(b"m") }
    }

    /// What hears of the feed, with one that listens to such a pattern.
    fn listeners(pattern: &str) -> (Arc<Hub>, Arc<Tracker>, Arc<LossWatch>, SubscriberInbox) {
        let demand = Arc::default();
        let (hub, losses) =
            (Arc::new(Hub::new(Arc::clone(&demand))), Arc::new(LossWatch::new(Arc::clone(&demand))));
        let tracker = Arc::new(Tracker::new(Arc::clone(&hub), demand));
        let inbox = SubscriberInbox::open(ClientMemory::new(Clock::start()).open(1));
        hub.subscribe(&inbox, SubscriptionKind::Pattern, &Bytes::copy_from_slice(pattern.as_bytes()));
        (hub, tracker, losses, inbox)
    }

    /// How often the feed gave others their turn.
    fn turns_given(pattern: &str, items: usize) -> usize {
        let (hub, tracker, losses, _inbox) = listeners(pattern);
        let (mut sender, receiver) = apply_feed::channel();
        sender.tell(vec![message(); items]);
        drop(sender);
        let mut feed = Box::pin(publish_feed(receiver, hub, tracker, losses, Arc::default()));
        let mut context = Context::from_waker(Waker::noop());
        let mut turns = 0;
        while feed.as_mut().poll(&mut context).is_pending() {
            turns += 1;
        }
        turns
    }

    #[test]
    fn a_loss_does_not_wait_behind_messages() {
        let (hub, tracker, losses, _inbox) = listeners(&costly_pattern());
        let mut subscriber = SubscriberInbox::open(ClientMemory::new(Clock::start()).open(3));
        hub.subscribe(&subscriber, SubscriptionKind::Channel, &Bytes::from_static(b"__lost__:r"));
        let mut holder = losses.start(&ClientMemory::new(Clock::start()).open(2)).expect("not watched yet");
        let (db, resource, fence, user) = (0, Bytes::from_static(b"r"), Fence(5), UserTag::DEFAULT);
        let by = AttemptBy::Owner(Bytes::from_static(b"o"));
        let attempt = Attempt { db, resource: resource.clone(), by };
        losses.asks(2, &attempt);
        let key = GrantKey { db, resource: resource.clone(), fence };
        losses.granted(2, &attempt, ToldGrant { key, lease_ms: 100, in_session: false, user });
        losses.answered(2, &attempt);
        let loss = Loss {
            db,
            resource,
            fence,
            mode: LockMode::Exclusive,
            owner: Bytes::from_static(b"o"),
            session: None,
            cause: Some(LossCause::Forced),
            successor: None,
            user,
        };
        let (mut sender, receiver) = apply_feed::channel();
        sender.tell(vec![message(); 1_000]);
        sender.tell(vec![FeedItem::Ended(loss)]);
        let mut feed = Box::pin(publish_feed(receiver, hub, tracker, losses, Arc::default()));
        let mut context = Context::from_waker(Waker::noop());
        let mut turns = 0;
        while holder.poll(&mut context).is_pending() {
            assert!(feed.as_mut().poll(&mut context).is_pending());
            turns += 1;
        }
        assert!(turns <= 10, "after {turns} turns");
        while subscriber.poll(&mut context).is_pending() {
            assert!(feed.as_mut().poll(&mut context).is_pending());
            turns += 1;
        }
        assert!(turns <= 50, "after {turns} turns");
    }

    #[test]
    fn costly_messages_give_others_their_turn_earlier() {
        let (usual, costly) = (turns_given("news.*", 200), turns_given(&costly_pattern(), 200));
        assert!(usual <= 2, "{usual} turns: at the end of the batch, in both queues");
        assert!(costly >= 20, "{costly} turns");
        assert!(turns_given("news.*", 600) >= 3);
    }
}
