//! Watchers of this node: who listens to which channel, and the way a lock event takes to them.
//!
//! Apply never waits for a watcher. It puts its events and what was published into a bounded queue
//! ([`crate::node_api::apply_feed`]); one task ([`publish_feed()`]) turns them into messages and puts these into each
//! listener's bounded inbox ([`Hub`]). A full queue loses events (counted) and published messages (their listeners are
//! disconnected); a listener whose inbox is full is marked, and its connection ends: it learns that it missed something.
//!
//! [`Tracker`] tells clients that keep copies of keys what has changed; [`LossWatch`] tells holders of locks that they lost one.
//!
//! Every node applies the same log, so what is published through one node is heard at all of them, in the same order.

mod demand;
mod hub;
mod losses;
mod overflow;
mod publish_feed;
mod tracking;

pub use demand::Demand;
pub use hub::{
    is_about_locks, steps_max, Hub, PatternLimit, PubSubMessage, Publication, ReceiverCount,
    SubscriberDelivery, SubscriberInbox, SubscriptionKind, INVALIDATE_CHANNEL, PATTERN_STEPS_PER_CLIENT_MAX,
};
pub use losses::{Attempt, AttemptBy, GrantKey, LossInbox, LossNotice, LossWatch, NoticeKind, ToldGrant};
pub use publish_feed::{publish, publish_feed, Turn};
pub use tracking::{Invalidation, InvalidationInbox, Tracker, TrackingTerms};
