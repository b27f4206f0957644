//! Counters, gauges and histograms. One relaxed addition for a count, two for an observation; no lock, no allocation.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds for what takes microseconds to seconds.
pub const LATENCY_BOUNDS_US: &[u64] = &[
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000,
];
/// Upper bounds for what takes milliseconds to an hour.
pub const LONG_BOUNDS_US: &[u64] = &redfence_core::machine::tally::HOLD_BOUNDS_US;

const BUCKETS_MAX: usize = 18;

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn increment(&self) {
        self.add(1);
    }

    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Times, counted in fixed buckets.
#[derive(Debug)]
pub struct Histogram {
    bounds_us: &'static [u64],
    /// One for each bound, and one for what is above the last.
    buckets: [AtomicU64; BUCKETS_MAX],
    sum_us: AtomicU64,
}

/// A histogram as it was at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub bounds_us: &'static [u64],
    /// Of each bucket alone.
    pub counts: Vec<u64>,
    pub sum_us: u64,
}

impl Histogram {
    /// # Panics
    ///
    /// If there are more bounds than a histogram has buckets: a mistake in the program.
    #[must_use]
    pub const fn new(bounds_us: &'static [u64]) -> Histogram {
        assert!(bounds_us.len() < BUCKETS_MAX);
        Histogram {
            bounds_us,
            buckets: [const { AtomicU64::new(0) }; BUCKETS_MAX],
            sum_us: AtomicU64::new(0),
        }
    }

    #[inline]
    pub fn observe_us(&self, us: u64) {
        self.observe_many_us(us, 1);
    }

    /// So many that took the same time.
    #[inline]
    pub fn observe_many_us(&self, us: u64, count: u64) {
        let bucket = self.bounds_us.partition_point(|bound_us| *bound_us < us);
        self.buckets[bucket].fetch_add(count, Ordering::Relaxed);
        self.sum_us.fetch_add(us.wrapping_mul(count), Ordering::Relaxed);
    }

    /// Counts made elsewhere in buckets of the same bounds.
    pub fn add_counts(&self, counts: &[u64], sum_us: u64) {
        for (bucket, count) in self.buckets.iter().zip(counts) {
            if *count > 0 {
                bucket.fetch_add(*count, Ordering::Relaxed);
            }
        }
        self.sum_us.fetch_add(sum_us, Ordering::Relaxed);
    }

    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let buckets = &self.buckets[..=self.bounds_us.len()];
        Snapshot {
            bounds_us: self.bounds_us,
            counts: buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            sum_us: self.sum_us.load(Ordering::Relaxed),
        }
    }
}

impl Snapshot {
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds one with the same bounds.
    pub fn add(&mut self, other: &Snapshot) {
        if self.counts.is_empty() {
            *self = other.clone();
            return;
        }
        debug_assert_eq!(self.bounds_us, other.bounds_us);
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.sum_us = self.sum_us.wrapping_add(other.sum_us);
    }

    /// Leaves what was observed after an earlier snapshot of the same histogram.
    pub fn subtract(&mut self, earlier: &Snapshot) {
        for (count, before) in self.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        self.sum_us = self.sum_us.wrapping_sub(earlier.sum_us);
    }

    /// The upper bound of the bucket that holds the given share of all observations; 0 where there were none. What is above the last
    /// bound counts as twice that bound.
    #[must_use]
    pub fn percentile_us(&self, percent: u64) -> u64 {
        let mut left = (self.count() * percent).div_ceil(100);
        for (bucket, count) in self.counts.iter().enumerate() {
            if left <= *count && *count > 0 {
                let last_us = self.bounds_us.last().copied().unwrap_or(0);
                return self.bounds_us.get(bucket).copied().unwrap_or(2 * last_us);
            }
            left = left.saturating_sub(*count);
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_counts_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::new(LATENCY_BOUNDS_US);
        histogram.observe_us(50);
        histogram.observe_us(51);
        histogram.observe_many_us(u64::MAX / 4, 2);
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.counts.len(), LATENCY_BOUNDS_US.len() + 1);
        assert_eq!((snapshot.counts[0], snapshot.counts[1], snapshot.counts.last()), (1, 1, Some(&2)));
        assert_eq!(snapshot.count(), 4);
    }

    #[test]
    fn percentiles_are_upper_bounds() {
        let histogram = Histogram::new(LATENCY_BOUNDS_US);
        assert_eq!(histogram.snapshot().percentile_us(50), 0);
        (0..98).for_each(|_| histogram.observe_us(90));
        (0..2).for_each(|_| histogram.observe_us(4_000));
        let mut snapshot = histogram.snapshot();
        assert_eq!((snapshot.percentile_us(50), snapshot.percentile_us(99)), (100, 5_000));
        snapshot.add(&histogram.snapshot());
        assert_eq!(snapshot.count(), 200);
        let earlier = histogram.snapshot();
        histogram.observe_us(4_000);
        let mut since = histogram.snapshot();
        since.subtract(&earlier);
        assert_eq!((since.count(), since.percentile_us(99), since.sum_us), (1, 5_000, 4_000));
    }
}
