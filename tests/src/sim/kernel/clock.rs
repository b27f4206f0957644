//! The clocks of one simulated machine: a monotonic one whose rate may change, and a wall clock that jumps.

use redfence::node_api::Now;

/// Where simulated wall clocks begin: some day in 2026.
const WALL_START_US: i64 = 1_790_000_000_000_000;
const MILLION: u128 = 1_000_000;

#[derive(Clone, Debug)]
pub struct HostClock {
    /// At this true time …
    true_us: u64,
    /// … this clock showed so much, …
    local_us: u64,
    /// … and it has gone on at this rate since, in millionths of the true one.
    rate_ppm: u64,
    wall_offset_us: i64,
}

impl HostClock {
    #[must_use]
    pub fn new(now_us: u64, local_us: u64) -> HostClock {
        HostClock { true_us: now_us, local_us, rate_ppm: MILLION as u64, wall_offset_us: 0 }
    }

    fn local_us(&self, now_us: u64) -> u64 {
        let since_us = u128::from(now_us - self.true_us);
        self.local_us + (since_us * u128::from(self.rate_ppm) / MILLION) as u64
    }

    #[must_use]
    pub fn now(&self, now_us: u64) -> Now {
        let local_us = self.local_us(now_us);
        let wall_us = WALL_START_US + self.wall_offset_us + now_us as i64;
        Now { monotonic_us: local_us, wall_us: wall_us.max(0) as u64 }
    }

    pub fn set_rate(&mut self, now_us: u64, rate_ppm: u64) {
        self.local_us = self.local_us(now_us);
        self.true_us = now_us;
        self.rate_ppm = rate_ppm;
    }

    /// Whether it runs at the right rate.
    #[must_use]
    pub fn is_true(&self) -> bool {
        u128::from(self.rate_ppm) == MILLION
    }

    pub fn jump_wall(&mut self, offset_us: i64) {
        self.wall_offset_us = offset_us;
    }

    /// The true time at which this clock shows `at_us`, and at the earliest a little from now.
    #[must_use]
    pub fn true_time_us(&self, now_us: u64, at_us: u64) -> u64 {
        let left_us = u128::from(at_us.saturating_sub(self.local_us(now_us)));
        let true_left_us = (left_us * MILLION).div_ceil(u128::from(self.rate_ppm));
        now_us + (true_left_us as u64).max(200)
    }
}
