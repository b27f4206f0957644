//! The next fence of a resource.

use crate::clock::Now;
use redfence_core::reply::Refusal;
use redfence_core::types::{Fence, FENCE_BOUND};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The highest fence this process has issued: a resource whose companion is lost starts above it, whatever the clock did.
static FLOOR: AtomicU64 = AtomicU64::new(0);

/// The rule of both tiers: one above the last, never behind the clock; where no last one is known, above all this process issued.
pub(super) fn next(last: Option<Fence>, now: Now) -> Result<Fence, Refusal> {
    let floor = FLOOR.load(Relaxed);
    let last = last.unwrap_or(Fence(floor));
    if last.0 + 1 >= FENCE_BOUND {
        return Err(used_up());
    }
    let fence = Fence::next(last, now.wall_us);
    // A companion from the far future (somebody wrote it) concerns its own resource alone.
    if fence.0 <= now.wall_us + FLOOR_AHEAD_US_MAX {
        FLOOR.store(floor.max(fence.0), Relaxed);
    }
    Ok(fence)
}

/// How far ahead of the clock the floor may run: ten years, more than any clock that is merely wrong.
const FLOOR_AHEAD_US_MAX: u64 = 10 * 365 * 24 * 3600 * 1_000_000;

pub(super) fn used_up() -> Refusal {
    Refusal::new(
        "ERR the fences of this resource have reached 2^53; use another name, or delete its companion key",
    )
}
