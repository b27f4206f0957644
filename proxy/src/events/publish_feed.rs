//! Distributes the feed of Tier 2's apply to subscribers and tracking clients. One task.

use super::{Hub, Tracker};
use crate::node_api::apply_feed::{FeedItem, FeedReceiver};
use bytes::Bytes;
use redfence_core::event::{channel, to_json, Event};
use redfence_core::types::Tier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Runs until the node has stopped. `events_lost` counts how often the feed was full and items of it were lost.
pub async fn publish_feed(
    mut feed: FeedReceiver,
    hub: Arc<Hub>,
    tracker: Arc<Tracker>,
    events_lost: Arc<AtomicU64>,
) {
    while let Some(batch) = feed.next().await {
        for item in batch {
            match item {
                FeedItem::Event(event) => publish_event(&hub, &event),
                FeedItem::Published { channel, message } => {
                    hub.publish(&channel, &message);
                }
                FeedItem::Read { client, key } => tracker.read(client, &key),
                FeedItem::Changed { by, key } => tracker.changed(&key, by),
                FeedItem::Flushed => tracker.everything_changed(),
                FeedItem::Missed => {
                    events_lost.fetch_add(1, Ordering::Relaxed);
                    hub.tell_missed();
                    tracker.everything_changed();
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

/// The feed is Tier 2's, and so is every event in it.
fn publish_event(hub: &Hub, event: &Event) {
    let json = to_json(event.kind, &event.resource, event.fence, &event.owner, Tier::Correctness, event.seq);
    hub.publish(&Bytes::from(channel(&event.resource)), &Bytes::from(json));
}
