//! What holders see on `__lost__:<resource>` when a lock of theirs ends without its release: it expired, was forced, or a plain client
//! deleted its key.
//!
//! A module of Redis can write to the client whose command it runs, and to no other: it cannot push. So all clients subscribe; to one
//! that speaks RESP3 the message is a push beside the replies of its other commands.
//!
//! # Caveats
//!
//! - An expiry is told when Redis ends the key, which is later than the ttl by up to about one cycle of its cron.
//! - A key that a plain client overwrites, and a flush, are not told: Redis names no key, or every `SET` of the server would pay.

use crate::clock::Now;
use crate::ffi::{Ctx, Name};
use crate::info::{self, Counter};
use crate::record::inspect;
use crate::{events, observers, waiters};
use redfence_core::event::{loss_to_json, lost_channel, EventKind};
use redfence_core::types::{Fence, LossCause};

pub(crate) fn publish(ctx: &Ctx, resource: &[u8], fence: Fence, cause: LossCause, successor: Option<Fence>) {
    if observers::somebody_listens() {
        let json = loss_to_json("lock-lost", resource, fence, cause.as_str(), successor);
        ctx.publish(&lost_channel(resource), json.as_bytes());
    }
}

/// The same, once the queue of the lock has been served: whoever holds it now is the successor.
pub(crate) fn publish_after_serving(ctx: &Ctx, resource: &[u8], fence: Fence, cause: LossCause) {
    if observers::somebody_listens() {
        publish(ctx, resource, fence, cause, inspect::successor_of(ctx, resource, fence));
    }
}

/// Redis has ended a key. Where it was a lock of ours, watchers and its holder hear of it.
pub(crate) fn on_key_expired(ctx: &Ctx, name: Name<'_>) {
    let resource = name.bytes();
    if !inspect::may_be_resource(resource) {
        return;
    }
    if let Some(hold) = inspect::expired_grant(ctx, resource, Now::read()) {
        info::count(Counter::Expired);
        events::publish(ctx, EventKind::Expired, resource, (&hold).into());
        // Where somebody waits, the next holder is known in a moment.
        if observers::somebody_listens() && !waiters::hold_back_loss(ctx, resource, hold.fence) {
            publish(ctx, resource, hold.fence, LossCause::Expired, None);
        }
    }
}

/// A key is gone, by a plain client's command or by eviction. Where it was a lock of ours, the timer records it and tells its holder.
pub(crate) fn on_key_gone(ctx: &Ctx, name: Name<'_>) {
    let resource = name.bytes();
    if observers::somebody_listens()
        && inspect::may_be_resource(resource)
        && inspect::is_recorded_as_held(ctx, resource)
        && !ctx.server_status().replica
    {
        waiters::note_deleted(ctx, resource);
    }
}
