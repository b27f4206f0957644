//! The clocks of the Raft node, and the only place in the proxy that asks for the time of day.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The only clocks the node sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, from any starting point.
    pub monotonic_us: u64,
    /// Since 1970. Serves fences alone.
    pub wall_us: u64,
}

impl Now {
    #[must_use]
    pub fn monotonic_ms(&self) -> u64 {
        self.monotonic_us / 1_000
    }
}

/// How much CPU time the node's thread has used. Asked while scripts run, and where work is cut into slices.
pub trait CpuClock: Send {
    fn thread_us(&mut self) -> u64;
}

/// Cheap to copy; all copies share one starting point.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    #[must_use]
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    #[must_use]
    pub fn now(&self) -> Now {
        Now { monotonic_us: self.monotonic_us(), wall_us: wall_us() }
    }

    /// For measuring how long something took.
    #[must_use]
    pub fn monotonic_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    #[must_use]
    pub fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// CPU time of the thread that asks.
#[derive(Clone, Copy, Debug)]
pub struct ThreadCpu;

impl CpuClock for ThreadCpu {
    fn thread_us(&mut self) -> u64 {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        u64::try_from(used.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(used.tv_nsec).unwrap_or(0) / 1_000
    }
}

/// Microseconds since 1970; 0 on a machine whose clock stands before that.
#[must_use]
pub fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
