//! Trying again in the background, where a client is gone and nobody is left to retry: for how long, how often, how much at a time.
//!
//! Used to release grants that no client knows of (`server`, `tier1`). A lock whose release is given up, or not accepted because
//! too many are under way, ends with its ttl.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Nobody is tried for longer, whatever the ttl of the lock.
const FOR_MAX: Duration = Duration::from_secs(600);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// What all that is being tried again, or may have to be, holds in memory.
const BYTES_MAX: usize = 16 << 20;
/// A task and its state, without names.
const TASK_BYTES: usize = 1024;

static BYTES_IN_USE: AtomicUsize = AtomicUsize::new(0);

/// The retries of one task.
#[derive(Debug)]
pub struct Retries {
    until: Instant,
    pause: Duration,
    /// Counted in `bytes_in_use`.
    bytes: usize,
    bytes_in_use: &'static AtomicUsize,
}

impl Retries {
    /// Within the ttl of the lock that is to be released; 0: it has no end of its own. `bytes`: all that the task keeps. They
    /// are counted from now on. `None`: there is no room, the task must not be started.
    #[must_use]
    pub fn accept(ttl_ms: u64, bytes: usize) -> Option<Retries> {
        Retries::accept_in(&BYTES_IN_USE, ttl_ms, bytes)
    }

    fn accept_in(bytes_in_use: &'static AtomicUsize, ttl_ms: u64, bytes: usize) -> Option<Retries> {
        let bytes = TASK_BYTES + bytes;
        let took = bytes_in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |in_use| {
            Some(in_use + bytes).filter(|sum| *sum <= BYTES_MAX)
        });
        if took.is_err() {
            tracing::debug!(
                limit = BYTES_MAX,
                "too many grants of disconnected clients to release: this one ends with its ttl"
            );
            return None;
        }
        let for_at_most = match ttl_ms {
            0 => FOR_MAX,
            ttl_ms => Duration::from_millis(ttl_ms).min(FOR_MAX),
        };
        Some(Retries { until: Instant::now() + for_at_most, pause: PAUSE_MIN, bytes, bytes_in_use })
    }

    /// Waits until it is time for the next try. False: give up.
    pub async fn pause(&mut self) -> bool {
        if Instant::now() + self.pause > self.until {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        true
    }
}

impl Drop for Retries {
    fn drop(&mut self) {
        self.bytes_in_use.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn they_end_with_the_ttl() {
        let mut retries = Retries::accept(600_000, 10).unwrap();
        assert!(retries.pause().await);
        retries.until = Instant::now();
        assert!(!retries.pause().await);
        assert!(!Retries::accept(50, 10).unwrap().pause().await);
    }

    #[test]
    fn their_bytes_are_counted_from_the_start_and_given_back() {
        static IN_USE: AtomicUsize = AtomicUsize::new(0);
        let accept = |bytes| Retries::accept_in(&IN_USE, 0, bytes);
        let half = BYTES_MAX / 2 - TASK_BYTES;
        let (first, second) = (accept(half), accept(half));
        assert!(first.is_some() && second.is_some());
        assert_eq!(IN_USE.load(Ordering::Relaxed), BYTES_MAX);
        assert!(accept(0).is_none(), "before anything was tried");
        drop(first);
        assert!(accept(half + 1).is_none() && accept(half).is_some());
        drop(second);
        assert_eq!(IN_USE.load(Ordering::Relaxed), 0);
    }
}
