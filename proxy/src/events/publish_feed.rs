//! Distributes the feed of Tier 2's apply to subscribers and tracking clients. One task.

use super::{Hub, LossWatch, Publication, Tracker};
use crate::node_api::apply_feed::{FeedItem, FeedReceiver};
use bytes::Bytes;
use redfence_core::event::{channel, event_to_json, loss_to_json, lost_channel, Event};
use redfence_core::machine::Loss;
use redfence_core::types::Tier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Steps until others get their turn, and what an item counts for besides those of its message ([`Publication::steps`]).
const STEPS_PER_TURN: u64 = 64 * 1024;
const ITEM_STEPS: u64 = STEPS_PER_TURN / 256;

/// Runs until the node has stopped. `events_lost` counts how often the feed was full and items of it were lost.
pub async fn publish_feed(
    mut feed: FeedReceiver,
    hub: Arc<Hub>,
    tracker: Arc<Tracker>,
    losses: Arc<LossWatch>,
    events_lost: Arc<AtomicU64>,
) {
    while let Some(batch) = feed.next().await {
        let mut turn = Turn::default();
        for item in batch {
            // One entry can end thousands of locks: its listeners get the time to take what there is.
            turn.spend(ITEM_STEPS).await;
            match item {
                FeedItem::Event(event) => publish(&hub, publication_of_event(&event), &mut turn).await,
                FeedItem::Published { channel, message } => {
                    publish(&hub, Publication::new(channel, message), &mut turn).await;
                }
                FeedItem::Ended(loss) => {
                    // First: nobody is told to doubt a lock of which others hear meanwhile that it is lost.
                    losses.ended(&loss);
                    if let Some(publication) = publication_of_loss(&loss) {
                        publish(&hub, publication, &mut turn).await;
                    }
                }
                FeedItem::Read { client, key } => tracker.read(client, &key),
                FeedItem::Changed { by, key } => tracker.changed(&key, by),
                FeedItem::Flushed => tracker.everything_changed(),
                FeedItem::Missed => {
                    events_lost.fetch_add(1, Ordering::Relaxed);
                    hub.tell_all_missed();
                    tracker.everything_changed();
                    losses.missed();
                }
            }
        }
        tokio::task::yield_now().await;
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
    use crate::events::{SubscriberInbox, SubscriptionKind};
    use crate::node_api::apply_feed;
    use std::future::Future;
    use std::task::{Context, Waker};

    /// How often the feed gave others their turn, with this one listening to such a pattern.
    fn turns_given(pattern: &str, items: usize) -> usize {
        let demand = Arc::default();
        let (hub, losses) =
            (Arc::new(Hub::new(Arc::clone(&demand))), Arc::new(LossWatch::new(Arc::clone(&demand))));
        let tracker = Arc::new(Tracker::new(Arc::clone(&hub), demand));
        let inbox = SubscriberInbox::open(ClientMemory::new(Clock::start()).open(1));
        hub.subscribe(&inbox, SubscriptionKind::Pattern, &Bytes::copy_from_slice(pattern.as_bytes()));
        let channel: Bytes = (0..1_024).map(|at| at as u8).collect();
        let item = FeedItem::Published { channel, message: Bytes::from_static(b"m") };
        let (mut sender, receiver) = apply_feed::channel();
        sender.tell(vec![item; items]);
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
    fn costly_messages_give_others_their_turn_earlier() {
        let costly = format!("*{}ab", "?".repeat(60));
        let (usual, costly) = (turns_given("news.*", 200), turns_given(&costly, 200));
        assert_eq!(usual, 1, "at the end of the batch");
        assert!(costly >= 20, "{costly} turns");
        assert!(turns_given("news.*", 600) >= 3);
    }
}
