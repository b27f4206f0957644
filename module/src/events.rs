//! What watchers see on `__lock__:<resource>`: one JSON object a change. Published, never replicated.

use crate::clock::Now;
use crate::ffi::{Ctx, Name};
use crate::info::{self, Counter};
use crate::record::inspect;
use crate::{config, observers};
use redfence_core::event::{channel, to_json, EventKind};
use redfence_core::types::{Fence, Tier};
use std::cell::Cell;

thread_local! {
    static LAST_SEQ: Cell<u64> = const { Cell::new(0) };
}

/// Rises with every event of this process, and with the clock over restarts.
fn next_seq() -> u64 {
    LAST_SEQ.with(|last| {
        let seq = Now::read().wall_us.max(last.get() + 1);
        last.set(seq);
        seq
    })
}

/// Whether an event would reach anybody.
pub(crate) fn is_on() -> bool {
    config::events() && observers::somebody_listens()
}

pub(crate) fn publish(ctx: &Ctx, kind: EventKind, resource: &[u8], fence: Fence, owner: &[u8]) {
    if !is_on() {
        return;
    }
    let message = to_json(kind, resource, fence, owner, Tier::Efficiency, next_seq());
    ctx.publish(&channel(resource), message.as_bytes());
}

/// Redis has ended a key. Where it was a lock of ours, watchers hear of it.
pub(crate) fn on_key_expired(ctx: &Ctx, name: Name<'_>) {
    let resource = name.bytes();
    if inspect::may_be_resource(resource) {
        if let Some((fence, owner)) = inspect::expired_grant(ctx, resource, Now::read()) {
            info::count(Counter::Expired);
            publish(ctx, EventKind::Expired, resource, fence, &owner);
        }
    }
}
