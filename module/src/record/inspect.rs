//! Questions asked from outside a lock's own command: by events, by `LOCK.SCAN`. Nothing is changed.

use super::companion::{self, GrantState};
use super::{names, EndedHold};
use crate::clock::Now;
use crate::ffi::{Ctx, Key, KeyType, OwnedString};
use redfence_core::types::{Fence, RESOURCE_BYTES_MAX};

/// The grant of `resource` that its key's expiry has just ended, for the event. Reads alone: we are inside a notification.
pub(crate) fn expired_grant(ctx: &Ctx, resource: &[u8], now: Now) -> Option<EndedHold> {
    let name = names::side_key(names::COMPANION, resource).ok()?;
    let mut side = Key::open_to_read(ctx, name.name())?;
    let seen = companion::parse(side.bytes())?;
    (seen.state == GrantState::Held && seen.deadline_ms != 0 && seen.deadline_ms <= now.wall_ms())
        .then(|| EndedHold::of(&seen))
}

/// Whether the companion of a key that is gone still says that it is held: a plain client deleted a lock of ours. Reads alone.
pub(crate) fn is_recorded_as_held(ctx: &Ctx, resource: &[u8]) -> bool {
    let Ok(name) = names::side_key(names::COMPANION, resource) else {
        return false;
    };
    Key::open_to_read(ctx, name.name()).is_some_and(|mut side| {
        companion::parse(side.bytes()).is_some_and(|seen| seen.state == GrantState::Held)
    })
}

/// The fence of whoever got the lock after `fence` and holds it now.
pub(crate) fn successor_of(ctx: &Ctx, resource: &[u8], fence: Fence) -> Option<Fence> {
    let name = names::side_key(names::COMPANION, resource).ok()?;
    let mut side = Key::open_to_read(ctx, name.name())?;
    let seen = companion::parse(side.bytes())?;
    (seen.state == GrantState::Held && seen.fence > fence).then_some(seen.fence)
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
