//! From apply to the hub: a bounded queue that loses events rather than hold anybody up.

use super::Hub;
use bytes::Bytes;
use redfence_core::event::{channel, to_json, Event};
use redfence_core::types::Tier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Batches that may wait for the hub. One more is lost, and counted.
const BATCHES_MAX: usize = 8192;

/// The end apply holds. Cloned freely.
#[derive(Clone, Debug)]
pub struct EventQueue {
    sender: mpsc::Sender<(Tier, Vec<Event>)>,
    lost: Arc<AtomicU64>,
}

impl EventQueue {
    /// Starts the task that serves the hub. It ends when the last queue end is dropped.
    #[must_use]
    pub fn start(hub: Arc<Hub>) -> EventQueue {
        let (sender, mut receiver) = mpsc::channel::<(Tier, Vec<Event>)>(BATCHES_MAX);
        tokio::spawn(async move {
            while let Some((tier, events)) = receiver.recv().await {
                for event in events {
                    publish_event(&hub, tier, &event);
                }
            }
        });
        EventQueue { sender, lost: Arc::default() }
    }

    /// Never waits. What does not fit is lost.
    pub fn offer(&self, tier: Tier, events: Vec<Event>) {
        let count = events.len() as u64;
        if count > 0 && self.sender.try_send((tier, events)).is_err() {
            self.lost.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Events lost before they came here.
    pub fn count_lost(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

pub(super) fn publish_event(hub: &Hub, tier: Tier, event: &Event) {
    let json = to_json(event.kind, &event.resource, event.fence, &event.owner, tier, event.seq);
    hub.publish(&Bytes::from(channel(&event.resource)), &Bytes::from(json));
}
