//! Distributes the feed of Tier 2's apply to subscribers and tracking clients. One task.

use super::{Hub, LossWatch, Tracker};
use crate::node_api::apply_feed::{FeedItem, FeedReceiver};
use bytes::Bytes;
use redfence_core::event::{channel, event_to_json, loss_to_json, lost_channel, Event};
use redfence_core::machine::Loss;
use redfence_core::types::Tier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const ITEMS_PER_TURN: usize = 256;

/// Runs until the node has stopped. `events_lost` counts how often the feed was full and items of it were lost.
pub async fn publish_feed(
    mut feed: FeedReceiver,
    hub: Arc<Hub>,
    tracker: Arc<Tracker>,
    losses: Arc<LossWatch>,
    events_lost: Arc<AtomicU64>,
) {
    while let Some(batch) = feed.next().await {
        for (at, item) in batch.into_iter().enumerate() {
            // One entry can end thousands of locks: its listeners get the time to take what there is.
            if at % ITEMS_PER_TURN == ITEMS_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
            match item {
                FeedItem::Event(event) => publish_event(&hub, &event),
                FeedItem::Published { channel, message } => {
                    hub.publish(&channel, &message);
                }
                FeedItem::Ended(loss) => {
                    publish_loss(&hub, &loss);
                    losses.ended(&loss);
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

/// The feed is Tier 2's, and so is every event in it.
fn publish_event(hub: &Hub, event: &Event) {
    let json = event_to_json(event, Tier::Correctness);
    hub.publish_from_machine(&Bytes::from(channel(&event.resource)), &Bytes::from(json));
}

/// For RESP2 clients, which get no pushes.
fn publish_loss(hub: &Hub, loss: &Loss) {
    let Some(cause) = loss.cause else { return };
    let json = loss_to_json("lock-lost", &loss.resource, loss.fence, cause.as_str(), loss.successor);
    hub.publish(&Bytes::from(lost_channel(&loss.resource)), &Bytes::from(json));
}
