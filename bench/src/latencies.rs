//! How long things took: a histogram with a fixed size, whatever is counted.
//!
//! Buckets grow with their value (64 to each power of two), so a percentile is at most 1.6 % off. Filled by the clients of every part, read
//! by the report.

use std::time::Duration;

const PRECISION_BITS: u32 = 6;
const SUB_BUCKETS: usize = 1 << PRECISION_BITS;
/// Enough for 64-bit nanoseconds.
const BUCKETS: usize = (64 - PRECISION_BITS as usize + 1) * SUB_BUCKETS;

#[derive(Clone)]
pub(crate) struct Latencies {
    counts: Vec<u64>,
    total: u64,
    longest_ns: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { counts: vec![0; BUCKETS], total: 0, longest_ns: 0 }
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.longest_ns = self.longest_ns.max(ns);
    }

    pub(crate) fn absorb(&mut self, other: &Latencies) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.total
    }

    pub(crate) fn longest_us(&self) -> f64 {
        self.longest_ns as f64 / 1e3
    }

    /// The value below which this share of all lies; 0 where nothing was recorded.
    pub(crate) fn quantile_us(&self, share: f64) -> f64 {
        let rank = ((self.total as f64 * share).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle_ns(at).min(self.longest_ns as f64) / 1e3;
            }
        }
        0.0
    }
}

fn bucket(ns: u64) -> usize {
    let magnitude = 63 - (ns | 1).leading_zeros();
    if magnitude < PRECISION_BITS {
        return ns as usize;
    }
    let shift = magnitude - PRECISION_BITS;
    let row = shift as usize + 1;
    row * SUB_BUCKETS + (ns >> shift) as usize - SUB_BUCKETS
}

fn middle_ns(bucket: usize) -> f64 {
    let (row, column) = (bucket / SUB_BUCKETS, bucket % SUB_BUCKETS);
    if row == 0 {
        return column as f64;
    }
    let width = (1u64 << (row - 1)) as f64;
    (SUB_BUCKETS + column) as f64 * width + (width - 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_two_percent() {
        let mut latencies = Latencies::default();
        for us in 1..=10_000u64 {
            latencies.record(Duration::from_micros(us));
        }
        for (share, expected_us) in [(0.5, 5_000.0), (0.99, 9_900.0), (0.001, 10.0), (1.0, 10_000.0)] {
            let found = latencies.quantile_us(share);
            assert!((found - expected_us).abs() <= expected_us * 0.02, "{share}: {found} for {expected_us}");
        }
        assert_eq!(latencies.longest_us(), 10_000.0);
    }

    #[test]
    fn small_and_huge_values_have_buckets() {
        for ns in [0, 1, 63, 64, 65, 127, 128, 1_000_000_007, u64::MAX] {
            let middle = middle_ns(bucket(ns));
            assert!((middle - ns as f64).abs() <= ns as f64 / 64.0, "{ns}: {middle}");
        }
    }

    #[test]
    fn merged_histograms_count_both() {
        let (mut one, mut other) = (Latencies::default(), Latencies::default());
        one.record(Duration::from_millis(1));
        other.record(Duration::from_millis(100));
        one.absorb(&other);
        assert_eq!(one.count(), 2);
        assert!(one.quantile_us(0.5) < 1_100.0 && one.quantile_us(0.51) > 90_000.0);
    }

    #[test]
    fn nothing_recorded_is_zero() {
        assert_eq!(Latencies::default().quantile_us(0.99), 0.0);
    }
}
