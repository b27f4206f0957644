//! Questions asked from outside a lock's own command: by events, by `LOCK.SCAN`. Nothing is changed.

use super::companion::{self, GrantState};
use super::names;
use crate::clock::Now;
use crate::ffi::{Ctx, Key, KeyType, OwnedString};
use redfence_core::types::{Fence, RESOURCE_BYTES_MAX};

/// The grant of `resource` that its key's expiry has just ended, for the event. Reads alone: we are inside a notification.
pub(crate) fn expired_grant(ctx: &Ctx, resource: &[u8], now: Now) -> Option<(Fence, Vec<u8>)> {
    let name = names::side_key(names::COMPANION, resource).ok()?;
    let mut side = Key::open_to_read(ctx, name.name())?;
    let seen = companion::parse(side.bytes())?;
    (seen.state == GrantState::Held && seen.deadline_ms != 0 && seen.deadline_ms <= now.wall_ms())
        .then(|| (seen.fence, seen.owner.to_vec()))
}

/// Whether the lock of this companion is held by a grant of ours: for `LOCK.SCAN`.
pub(crate) fn is_held(ctx: &Ctx, companion_key: &[u8], resource: &[u8]) -> bool {
    let (side, name) = (OwnedString::new(companion_key), OwnedString::new(resource));
    let Some(mut key) = Key::open_to_read(ctx, name.name()) else {
        return false;
    };
    let Some(mut side) = Key::open_to_read(ctx, side.name()) else {
        return false;
    };
    companion::parse(side.bytes()).is_some_and(|seen| {
        seen.state == GrantState::Held && key.kind() == KeyType::String && key.bytes() == seen.owner
    })
}

/// The last fence issued for a resource, 0 if none is known. For events.
pub(crate) fn last_fence(ctx: &Ctx, resource: &[u8]) -> Fence {
    let Ok(name) = names::side_key(names::COMPANION, resource) else {
        return Fence(0);
    };
    Key::open_to_read(ctx, name.name())
        .and_then(|mut side| companion::parse(side.bytes()).map(|seen| seen.fence))
        .unwrap_or_default()
}

/// Keys that cannot be a lock of ours: too long, empty, or side keys themselves.
pub(crate) fn may_be_resource(key: &[u8]) -> bool {
    (1..=RESOURCE_BYTES_MAX).contains(&key.len()) && names::resource_of(key).is_none()
}
