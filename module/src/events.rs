//! What watchers see on `__lock__:<resource>`: one JSON object a change. Published, never replicated.

use crate::clock::Now;
use crate::ffi::Ctx;
use crate::record::EndedHold;
use crate::{config, observers};
use redfence_core::event::{channel, to_json, with_details, EventKind};
use redfence_core::types::{Fence, LockMode, LossCause, Tier};
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

/// The grant that an event is about.
#[derive(Clone, Copy)]
pub(crate) struct EventGrant<'a> {
    pub(crate) fence: Fence,
    pub(crate) owner: &'a [u8],
    /// Empty where it has none.
    pub(crate) value: &'a [u8],
}

impl<'a> From<&'a EndedHold> for EventGrant<'a> {
    fn from(hold: &'a EndedHold) -> EventGrant<'a> {
        EventGrant { fence: hold.fence, owner: &hold.owner, value: &hold.value }
    }
}

pub(crate) fn publish(ctx: &Ctx, kind: EventKind, resource: &[u8], grant: EventGrant<'_>) {
    publish_with_cause(ctx, kind, resource, grant, None);
}

/// A grant was ended by somebody else than its holder.
pub(crate) fn publish_taken(ctx: &Ctx, resource: &[u8], grant: EventGrant<'_>, cause: LossCause) {
    publish_with_cause(ctx, EventKind::Released, resource, grant, Some(cause));
}

fn publish_with_cause(
    ctx: &Ctx,
    kind: EventKind,
    resource: &[u8],
    grant: EventGrant<'_>,
    cause: Option<LossCause>,
) {
    if !is_on() {
        return;
    }
    let message = to_json(kind, resource, grant.fence, grant.owner, Tier::Efficiency, next_seq());
    let message = with_details(message, LockMode::Exclusive, grant.value, cause);
    ctx.publish(&channel(resource), message.as_bytes());
}
