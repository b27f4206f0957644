//! The section `redfence` of `INFO`.
//!
//! Counted in this process since it loaded the module: `locks_held` is grants less ends seen, so it misses locks made before, by Lua, or
//! ended by a plain client's `DEL`. `LOCK.SCAN` shows what is held.

use crate::waiters;
use std::cell::RefCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy)]
pub(crate) enum Counter {
    Granted,
    GrantedAgain,
    Released,
    Renewed,
    Expired,
    /// Nil at once: the lock was taken and the client would not, or could not, wait.
    Taken,
    /// Nil after a WAIT.
    GaveUp,
    Queued,
    /// Errors, and releases or renewals of a fence that is not the holder's.
    Refused,
    StaleFence,
}

const COUNTERS: usize = Counter::StaleFence as usize + 1;

/// Upper bounds in microseconds: powers of two up to about a minute.
const BUCKETS: usize = 27;

#[derive(Default)]
struct Histogram {
    buckets: [u64; BUCKETS],
}

impl Histogram {
    fn add(&mut self, us: u64) {
        let bucket = (64 - us.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
    }

    /// The upper bound of the bucket in which this share of all values lies; 0 where there are none.
    fn quantile_us(&self, per_mille: u64) -> u64 {
        let total: u64 = self.buckets.iter().sum();
        let rank = (total * per_mille).div_ceil(1000);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank && rank > 0 {
                return (1 << bucket) - 1;
            }
        }
        0
    }
}

/// Counted with plain loads and stores: only the main thread counts.
static COUNTS: [AtomicU64; COUNTERS] = [const { AtomicU64::new(0) }; COUNTERS];
static COMMANDS: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Figures {
    command_us: Histogram,
    wait_us: Histogram,
}

thread_local! {
    static FIGURES: RefCell<Figures> = RefCell::default();
}

pub(crate) fn count(counter: Counter) {
    bump(&COUNTS[counter as usize]);
}

/// One command in this many is timed: reading the clock is a good part of a command's cost.
const SAMPLE: u64 = 16;

/// Whether this command is one to time.
pub(crate) fn sampled() -> bool {
    bump(&COMMANDS) % SAMPLE == 1
}

fn bump(counter: &AtomicU64) -> u64 {
    let value = counter.load(Relaxed) + 1;
    counter.store(value, Relaxed);
    value
}

/// How long a command of ours took.
pub(crate) fn command_took(us: u64) {
    FIGURES.with(|figures| figures.borrow_mut().command_us.add(us));
}

/// How long a waiter had waited before it was granted.
pub(crate) fn waited(us: u64) {
    FIGURES.with(|figures| figures.borrow_mut().wait_us.add(us));
}

pub(crate) fn fields(mut add: impl FnMut(&CStr, u64)) {
    let waiters = waiters::clients_len() as u64;
    FIGURES.with(|figures| {
        let figures = figures.borrow();
        let of = |counter: Counter| COUNTS[counter as usize].load(Relaxed);
        let ended = of(Counter::Released) + of(Counter::Expired);
        add(c"locks_held", of(Counter::Granted).saturating_sub(ended));
        add(c"waiters", waiters);
        add(c"grants", of(Counter::Granted));
        add(c"grants_again", of(Counter::GrantedAgain));
        add(c"releases", of(Counter::Released));
        add(c"renewals", of(Counter::Renewed));
        add(c"expiries", of(Counter::Expired));
        add(c"queued", of(Counter::Queued));
        add(c"refusals", of(Counter::Refused) + of(Counter::Taken) + of(Counter::GaveUp));
        add(c"refusals_taken", of(Counter::Taken));
        add(c"refusals_gave_up", of(Counter::GaveUp));
        add(c"refusals_stale_fence", of(Counter::StaleFence));
        add(c"latency_command_us_p50", figures.command_us.quantile_us(500));
        add(c"latency_command_us_p99", figures.command_us.quantile_us(990));
        add(c"latency_wait_us_p50", figures.wait_us.quantile_us(500));
        add(c"latency_wait_us_p99", figures.wait_us.quantile_us(990));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_us(990), 0);
        (0..98).for_each(|_| histogram.add(3));
        histogram.add(100);
        histogram.add(u64::MAX);
        assert_eq!(histogram.quantile_us(500), 3);
        assert_eq!(histogram.quantile_us(990), 127);
        assert_eq!(histogram.quantile_us(1000), (1 << (BUCKETS - 1)) - 1);
        histogram.add(0);
        assert_eq!(histogram.buckets[0], 1);
    }
}
