//! Who listens at this node, as numbers: apply collects nothing that nobody wants.

use redfence_core::machine::Wanted;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counted by the [`super::Hub`] and the [`super::Tracker`]; looked at before every turn of the raft thread.
#[derive(Debug, Default)]
pub struct Demand {
    /// Subscriptions that may see lock events.
    pub(super) lock_watchers: AtomicUsize,
    /// Subscriptions of any kind.
    pub(super) subscriptions: AtomicUsize,
    /// Clients that are told of locks they lose, and subscriptions that may see losses.
    pub(super) loss_watchers: AtomicUsize,
    /// Clients that track keys.
    pub(super) trackers: AtomicUsize,
}

impl Demand {
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        let any = |count: &AtomicUsize| count.load(Ordering::SeqCst) > 0;
        Wanted {
            events: any(&self.lock_watchers),
            messages: any(&self.subscriptions),
            keys: any(&self.trackers),
            losses: any(&self.loss_watchers),
        }
    }
}
