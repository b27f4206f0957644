//! The module's settings, `CONFIG GET redfence.*`. The table that names them is in `lib.rs`.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// How long the companion outlives the lock it belongs to.
pub(crate) static COMPANION_RETENTION_MS: AtomicI64 = AtomicI64::new(COMPANION_RETENTION_MS_DEFAULT);
pub(crate) const COMPANION_RETENTION_MS_DEFAULT: i64 = 600_000;
/// Shorter, and a release right after the lock's end would find no record of it.
pub(crate) const COMPANION_RETENTION_MS_MIN: i64 = 1_000;

/// How long a high-water mark of `FENCE.*` is kept after it last rose; 0 is for ever.
pub(crate) static MARK_RETENTION_MS: AtomicI64 = AtomicI64::new(0);

/// A year: no retention needs more, and sums of times stay far from their limits.
pub(crate) const RETENTION_MS_MAX: i64 = 365 * 24 * 3600 * 1000;

/// Whether changes are published on `__lock__:<resource>`.
pub(crate) static EVENTS: AtomicBool = AtomicBool::new(true);

pub(crate) fn companion_retention_ms() -> u64 {
    COMPANION_RETENTION_MS.load(Ordering::Relaxed) as u64
}

pub(crate) fn mark_retention_ms() -> Option<u64> {
    match MARK_RETENTION_MS.load(Ordering::Relaxed) {
        0 => None,
        ms => Some(ms as u64),
    }
}

pub(crate) fn events() -> bool {
    EVENTS.load(Ordering::Relaxed)
}
