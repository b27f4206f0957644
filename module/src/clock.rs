//! The only place that asks a clock.
//!
//! Redis's expiries and the fences go by the wall clock; how long a client has waited goes by the monotonic one, so that a
//! step of the wall clock neither ends nor stretches a WAIT.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The wall clock at the start of a command: microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    pub(crate) wall_us: u64,
}

impl Now {
    pub(crate) fn read() -> Now {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { wall_us: since.as_micros() as u64 }
    }

    pub(crate) fn wall_ms(self) -> u64 {
        self.wall_us / 1000
    }
}

/// Milliseconds since the module first asked. Never steps back.
pub(crate) fn steady_ms() -> u64 {
    steady_us() / 1000
}

pub(crate) fn steady_us() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64
}
