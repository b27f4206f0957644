//! CPU time of scripts: one's own, by the thread's clock, and all together, by a token bucket over the monotonic clock.

use crate::node_api::CpuClock;
use redfence_core::script::CpuMeter;

/// Scripts get one part in so many of the leader's time.
const SHARE: u64 = 4;
/// What may be saved up while no script runs.
const SAVED_US_MAX: u64 = 20_000;

/// What all scripts together may use. A script may overdraw it: the next one then waits until that is made up for.
#[derive(Debug, Default)]
pub(in crate::tier2) struct Budget {
    /// The time at which everything used is made up for, at a rate of one in [`SHARE`].
    paid_at_us: u64,
}

impl Budget {
    pub(in crate::tier2) fn may_run(&self, now_us: u64) -> bool {
        self.free_at_us(now_us).is_none()
    }

    /// When the next script may run, if not now.
    pub(in crate::tier2) fn free_at_us(&self, now_us: u64) -> Option<u64> {
        let free_at_us = self.paid_at_us.saturating_sub(SHARE * SAVED_US_MAX);
        (free_at_us > now_us).then_some(free_at_us)
    }

    pub(in crate::tier2) fn spend(&mut self, now_us: u64, used_us: u64) {
        self.paid_at_us = self.paid_at_us.max(now_us) + SHARE * used_us;
    }
}

/// How long one run has taken so far.
pub(super) struct Meter<'a> {
    clock: &'a mut dyn CpuClock,
    began_us: u64,
}

impl Meter<'_> {
    pub(super) fn start(clock: &mut dyn CpuClock) -> Meter<'_> {
        let began_us = clock.thread_us();
        Meter { clock, began_us }
    }
}

impl CpuMeter for Meter<'_> {
    fn elapsed_us(&mut self) -> u64 {
        self.clock.thread_us().saturating_sub(self.began_us)
    }
}

/// A clock for simulations: every look at it takes a while, and nothing else does.
#[derive(Debug, Default)]
pub(in crate::tier2) struct CountedCpu {
    us: u64,
}

impl CpuClock for CountedCpu {
    fn thread_us(&mut self) -> u64 {
        self.us += 20;
        self.us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_get_a_quarter_of_the_time() {
        let mut budget = Budget::default();
        let (mut now_us, mut used_us) = (1_000_000_000, 0);
        let end_us = now_us + 10_000_000;
        while now_us < end_us {
            if budget.may_run(now_us) {
                budget.spend(now_us, 15_000);
                used_us += 15_000;
                now_us += 15_000;
            } else {
                now_us += 1_000;
            }
        }
        assert!((2_400_000..=2_600_000).contains(&used_us), "{used_us} of 10,000,000");
    }

    #[test]
    fn an_overdrawn_budget_says_when_it_is_free() {
        let mut budget = Budget::default();
        budget.spend(1_000_000, 30_000);
        let free_at_us = budget.free_at_us(1_000_000).expect("overdrawn");
        assert!(!budget.may_run(free_at_us - 1));
        assert!(budget.may_run(free_at_us));
    }
}
