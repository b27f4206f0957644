//! The circuit breaker: five failures in ten seconds open it; then one request at a time may probe.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const FAILURES: usize = 5;
const WITHIN: Duration = Duration::from_secs(10);
/// How long it stays open before the next probe.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// A probe that was dropped half-way does not keep the next one away for longer.
const PROBE_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Breaker {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    failures: VecDeque<Instant>,
    /// Since when it is open, or when the last probe failed.
    open_since: Option<Instant>,
    probing_since: Option<Instant>,
}

impl Breaker {
    /// Whether a request may be sent. Where the breaker is open, true makes it the probe.
    pub(crate) fn admit(&self, now: Instant) -> bool {
        let mut inner = self.lock();
        let Some(open_since) = inner.open_since else { return true };
        let is_probing = inner.probing_since.is_some_and(|since| now.duration_since(since) < PROBE_WITHIN);
        if is_probing || now.duration_since(open_since) < PROBE_EVERY {
            return false;
        }
        inner.probing_since = Some(now);
        true
    }

    pub(crate) fn succeeded(&self) {
        let mut inner = self.lock();
        if inner.open_since.is_some() || !inner.failures.is_empty() {
            *inner = Inner::default();
        }
    }

    pub(crate) fn failed(&self, now: Instant) {
        let mut inner = self.lock();
        inner.probing_since = None;
        while inner.failures.front().is_some_and(|at| now.duration_since(*at) > WITHIN) {
            inner.failures.pop_front();
        }
        inner.failures.push_back(now);
        if inner.failures.len() > FAILURES {
            inner.failures.pop_front();
        }
        if inner.failures.len() >= FAILURES || inner.open_since.is_some() {
            inner.open_since = Some(now);
        }
    }

    /// A request was answered neither way. Where it was the probe, the next one is due as after a failure.
    pub(crate) fn unanswered(&self, now: Instant) {
        let mut inner = self.lock();
        if inner.probing_since.take().is_some() {
            inner.open_since = Some(now);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn five_failures_in_ten_seconds_open_it_and_one_request_probes() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for n in 0..5 {
            assert!(breaker.admit(after(start, n * 100)));
            breaker.failed(after(start, n * 100));
        }
        assert!(!breaker.admit(after(start, 500)));
        assert!(breaker.admit(after(start, 1500)), "the probe");
        assert!(!breaker.admit(after(start, 1501)), "one at a time");
        breaker.failed(after(start, 1600));
        assert!(!breaker.admit(after(start, 1700)));
        assert!(breaker.admit(after(start, 2700)));
        breaker.succeeded();
        assert!(breaker.admit(after(start, 2701)));
    }

    #[test]
    fn failures_far_apart_do_not_open_it() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for n in 0..20 {
            breaker.failed(after(start, n * 3000));
            assert!(breaker.admit(after(start, n * 3000)));
        }
    }

    #[test]
    fn a_probe_that_was_not_answered_is_followed_by_the_next() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        (0..5).for_each(|_| breaker.failed(start));
        assert!(breaker.admit(after(start, 1100)));
        breaker.unanswered(after(start, 1200));
        assert!(!breaker.admit(after(start, 1300)));
        assert!(breaker.admit(after(start, 2300)));
    }

    #[test]
    fn a_probe_that_never_ended_does_not_keep_it_open_for_ever() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        (0..5).for_each(|_| breaker.failed(start));
        assert!(breaker.admit(after(start, 1100)));
        assert!(!breaker.admit(after(start, 5000)));
        assert!(breaker.admit(after(start, 12_000)));
    }
}
