//! Distributes the feed of Tier 2's apply to subscribers and tracking clients. One task.

use super::queue::publish_event;
use super::{EventQueue, Hub, Tracker};
use crate::node_api::apply_feed::{FeedItem, FeedReceiver};
use redfence_core::types::Tier;
use std::sync::Arc;

/// Runs until the node has stopped.
pub async fn publish_feed(mut news: FeedReceiver, hub: Arc<Hub>, tracker: Arc<Tracker>, events: EventQueue) {
    while let Some(batch) = news.next().await {
        for news in batch {
            match news {
                FeedItem::Event(event) => publish_event(&hub, Tier::Correctness, &event),
                FeedItem::Published { channel, message } => {
                    hub.publish(&channel, &message);
                }
                FeedItem::Read { client, key } => tracker.read(client, &key),
                FeedItem::Changed { by, key } => tracker.changed(&key, by),
                FeedItem::Flushed => tracker.everything_changed(),
                FeedItem::Missed => {
                    events.count_lost(1);
                    hub.tell_missed();
                    tracker.everything_changed();
                }
            }
        }
        tokio::task::yield_now().await;
    }
}
