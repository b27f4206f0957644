//! From Tier 2's apply to the listeners: one task that empties the queue of news.

use super::queue::publish_event;
use super::{EventQueue, Hub, Tracker};
use crate::node_api::apply_feed::{News, NewsReceiver};
use redfence_core::types::Tier;
use std::sync::Arc;

/// Runs until the node has stopped.
pub async fn spread(mut news: NewsReceiver, hub: Arc<Hub>, tracker: Arc<Tracker>, events: EventQueue) {
    while let Some(batch) = news.next().await {
        for news in batch {
            match news {
                News::Event(event) => publish_event(&hub, Tier::Correctness, &event),
                News::Published { channel, message } => {
                    hub.publish(&channel, &message);
                }
                News::Read { client, key } => tracker.read(client, &key),
                News::Changed { by, key } => tracker.changed(&key, by),
                News::Flushed => tracker.everything_changed(),
                News::Missed => {
                    events.count_lost(1);
                    hub.tell_missed();
                    tracker.everything_changed();
                }
            }
        }
        tokio::task::yield_now().await;
    }
}
