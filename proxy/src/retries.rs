//! Trying again in the background, where a client is gone and nobody is left to retry: for how long, how often, how much at a time.
//!
//! Used to release grants that no client knows of (`server`, `tier1`). Both limits only cost patience: a lock whose release is
//! given up ends with its ttl.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Nobody is tried for longer, whatever the ttl of the lock.
const FOR_MAX: Duration = Duration::from_secs(600);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// What all that is being tried again may hold in memory.
const BYTES_MAX: usize = 4 << 20;
/// A task and its state, without names.
const TASK_BYTES: usize = 512;

static BYTES_IN_USE: AtomicUsize = AtomicUsize::new(0);

/// The retries of one task.
#[derive(Debug)]
pub struct Retries {
    until: Instant,
    pause: Duration,
    name_bytes: usize,
    /// Counted in [`BYTES_IN_USE`]: 0 before the first retry.
    bytes: usize,
}

impl Retries {
    /// Within the ttl of the lock that is to be released. 0: it has no end of its own.
    #[must_use]
    pub fn within(ttl_ms: u64, name_bytes: usize) -> Retries {
        let for_at_most = match ttl_ms {
            0 => FOR_MAX,
            ttl_ms => Duration::from_millis(ttl_ms).min(FOR_MAX),
        };
        Retries { until: Instant::now() + for_at_most, pause: PAUSE_MIN, name_bytes, bytes: 0 }
    }

    /// Waits until it is time for the next try. False: give up.
    pub async fn pause(&mut self) -> bool {
        if Instant::now() + self.pause > self.until || !self.has_room() {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        true
    }

    fn has_room(&mut self) -> bool {
        if self.bytes > 0 {
            return true;
        }
        let bytes = TASK_BYTES + self.name_bytes;
        let took = BYTES_IN_USE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |in_use| {
            Some(in_use + bytes).filter(|sum| *sum <= BYTES_MAX)
        });
        if took.is_ok() {
            self.bytes = bytes;
        }
        took.is_ok()
    }
}

impl Drop for Retries {
    fn drop(&mut self) {
        BYTES_IN_USE.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn they_end_with_the_ttl() {
        let mut retries = Retries::within(600_000, 10);
        assert!(retries.pause().await);
        retries.until = Instant::now();
        assert!(!retries.pause().await);
        assert!(!Retries::within(50, 10).pause().await);
    }

    #[tokio::test]
    async fn they_take_a_bounded_amount_of_memory_and_give_it_back() {
        let half = BYTES_MAX / 2 - TASK_BYTES;
        let mut large = [Retries::within(0, half), Retries::within(0, half), Retries::within(0, half)];
        let mut got = 0;
        for retries in &mut large {
            got += usize::from(retries.pause().await);
        }
        assert!((1..=2).contains(&got), "{got} of three: the other test has a little of the room");
        drop(large);
        assert!(Retries::within(0, half).pause().await, "there is room again");
    }
}
