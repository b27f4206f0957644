//! Grants that ended without a release, and are told once their queue was served: then the next holder is known.
//!
//! An expiry where somebody waits is held back until the queue was served, in this step or in the timer's next turn. A deletion by a plain
//! client is noted inside the notification, where nothing may be written; the timer records it in the companion, so that it is told once.

use super::timer::{rearm, TURN_MAX};
use super::{count, serve, with, IGNORING_CHANGES};
use crate::clock::Now;
use crate::ffi::{Ctx, OwnedString};
use crate::info::{self, Counter};
use crate::record::LockKeys;
use crate::wait_queues::LockKey;
use crate::{events, losses};
use bytes::Bytes;
use redfence_core::types::{Fence, LossCause};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// Beyond, an expiry is told without its successor, and a deletion when the lock is next taken.
const LOST_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct LostGrants {
    expired: Vec<(LockKey, Fence)>,
    deleted: BTreeSet<LockKey>,
}

impl LostGrants {
    pub(super) fn is_empty(&self) -> bool {
        self.expired.is_empty() && self.deleted.is_empty()
    }
}

/// A grant has expired. False where nobody waits for the lock: there is no successor to wait for.
pub(crate) fn hold_back_loss(ctx: &Ctx, resource: &[u8], fence: Fence) -> bool {
    let db = ctx.db();
    if count(db, resource) == 0 || with(|state| state.lost.expired.len() >= LOST_MAX) {
        return false;
    }
    let place = LockKey { db, resource: Bytes::copy_from_slice(resource) };
    with(|state| state.lost.expired.push((place, fence)));
    rearm(ctx);
    true
}

/// The queues of this db that had to be served are served.
pub(super) fn tell_expired(ctx: &Ctx, db: i32) {
    if with(|state| state.lost.expired.is_empty()) {
        return;
    }
    let lost: Vec<(LockKey, Fence)> =
        with(|state| state.lost.expired.extract_if(.., |(place, _)| place.db == db).collect());
    for (place, fence) in lost {
        losses::publish_after_serving(ctx, &place.resource, fence, LossCause::Expired);
    }
}

/// The same for every db: in the timer, whose db may be changed at will.
pub(super) fn tell_all_expired(ctx: &Ctx) {
    for (place, fence) in with(|state| std::mem::take(&mut state.lost.expired)) {
        ctx.select_db(place.db);
        losses::publish_after_serving(ctx, &place.resource, fence, LossCause::Expired);
    }
}

/// A plain client has deleted the key of a grant of ours.
pub(crate) fn note_deleted(ctx: &Ctx, resource: &[u8]) {
    if IGNORING_CHANGES.load(Relaxed) || with(|state| state.lost.deleted.len() >= LOST_MAX) {
        return;
    }
    let place = LockKey { db: ctx.db(), resource: Bytes::copy_from_slice(resource) };
    with(|state| state.lost.deleted.insert(place));
    rearm(ctx);
}

pub(super) fn record_deleted(ctx: &Ctx, now: Now) {
    for _ in 0..TURN_MAX {
        let Some(place) = with(|state| state.lost.deleted.pop_first()) else {
            return;
        };
        ctx.select_db(place.db);
        if !ctx.serves_slot_of(&place.resource) {
            continue;
        }
        let name = OwnedString::new(&place.resource);
        let recorded = LockKeys::new(name.name()).and_then(|lock| lock.record_deletion(ctx, now));
        // A key of another type, or a slot that no companion can share: no lock of ours.
        let Ok(Some(hold)) = recorded else { continue };
        info::count(Counter::Released);
        events::publish_taken(ctx, &place.resource, (&hold).into(), LossCause::Deleted);
        serve(ctx, &place.resource, now);
        losses::publish_after_serving(ctx, &place.resource, hold.fence, LossCause::Deleted);
    }
}
