//! Says what goes wrong around the node: a disk that does not return, a clock that was set, a process that did not run, a queue that
//! is full. One line in the log and one metric each; the chapter about operations has a row for each line.
//!
//! [`TroubleWatch`] is called by the thread `deadlines`, which runs where the others are stuck; [`ClockWatch`] by the thread `raft`
//! before each turn.

use crate::clock::Now;
use crate::metrics::{NodeMetrics, Queue};

/// A log write that lasts this long is a stall.
pub(super) const DISK_STALL_US: u64 = 1_000_000;
/// A queue that stays full is logged this often.
const QUEUE_LINES_MS: u64 = 10_000;
/// The wall clock was set if it moved this much against the monotonic clock between two turns.
const CLOCK_STEP_US: u64 = 500_000;
/// The process did not run if the thread woke this much later than it wanted to.
const PAUSE_US: u64 = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct TroubleWatch {
    is_stalled: bool,
    queues: [FullQueue; Queue::ALL.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct FullQueue {
    seen: u64,
    logged_ms: Option<u64>,
}

impl TroubleWatch {
    pub(super) fn look(&mut self, metrics: &NodeMetrics, now_us: u64) {
        self.look_at_disk(metrics, now_us);
        for queue in Queue::ALL {
            self.look_at_queue(queue, metrics, now_us / 1_000);
        }
    }

    fn look_at_disk(&mut self, metrics: &NodeMetrics, now_us: u64) {
        let age_us = metrics.log_write_age_us(now_us);
        let is_stalled = age_us >= DISK_STALL_US;
        if is_stalled && !self.is_stalled {
            metrics.disk_stalls.increment();
            tracing::warn!(
                write_ms = age_us / 1_000,
                "the disk is stuck: a log write has not returned; this node acknowledges nothing until it does"
            );
        }
        if self.is_stalled && !is_stalled {
            tracing::warn!("the log write that was stuck has returned");
        }
        self.is_stalled = is_stalled;
    }

    fn look_at_queue(&mut self, queue: Queue, metrics: &NodeMetrics, now_ms: u64) {
        let refused = metrics.queue_full(queue).get();
        let state = &mut self.queues[queue as usize];
        let is_due = state.logged_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= QUEUE_LINES_MS);
        if refused > state.seen && is_due {
            let since = refused - state.seen;
            *state = FullQueue { seen: refused, logged_ms: Some(now_ms) };
            tracing::warn!(
                queue = queue.as_str(),
                refused = since,
                "a queue is full: requests of clients get UNAVAILABLE, messages of peers are sent again"
            );
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ClockWatch {
    /// The wall clock less the monotonic clock, at the last look.
    offset_us: Option<i64>,
}

impl ClockWatch {
    /// `wake_at_us`: when the thread wanted to run at the latest, counted from when it went to sleep.
    pub(super) fn look(&mut self, metrics: &NodeMetrics, now: Now, wake_at_us: u64) {
        let offset_us = now.wall_us as i64 - now.monotonic_us as i64;
        let step_us = offset_us - self.offset_us.replace(offset_us).unwrap_or(offset_us);
        if step_us.unsigned_abs() >= CLOCK_STEP_US {
            metrics.clock_steps.increment();
            tracing::warn!(
                step_ms = step_us / 1_000,
                "the wall clock was set: leases and waits are not affected, fences go on rising; check the time service"
            );
        }
        let late_us = now.monotonic_us.saturating_sub(wake_at_us);
        if late_us >= PAUSE_US {
            metrics.pauses.increment();
            tracing::warn!(
                late_ms = late_us / 1_000,
                "this process did not run for a while: the machine was suspended, or its CPU is overloaded"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_write_is_one_stall_however_long_it_lasts() {
        let (metrics, mut watch) = (NodeMetrics::default(), TroubleWatch::default());
        metrics.log_write_begins(1);
        for second in 0..5 {
            watch.look(&metrics, second * 1_000_000);
        }
        assert_eq!(metrics.disk_stalls.get(), 1);
        metrics.log_write_ends(6_000_000);
        watch.look(&metrics, 6_000_000);
        metrics.log_write_begins(7_000_000);
        watch.look(&metrics, 9_000_000);
        assert_eq!(metrics.disk_stalls.get(), 2);
    }

    #[test]
    fn a_step_of_the_wall_clock_and_a_pause_are_told_apart() {
        let (metrics, mut watch) = (NodeMetrics::default(), ClockWatch::default());
        let at = |monotonic_us, wall_us| Now { monotonic_us, wall_us };
        watch.look(&metrics, at(0, 50_000_000), 0);
        watch.look(&metrics, at(1_000, 50_001_000), 1_000);
        assert_eq!((metrics.clock_steps.get(), metrics.pauses.get()), (0, 0));
        watch.look(&metrics, at(2_000, 40_000_000), 2_000);
        watch.look(&metrics, at(3_000, 40_001_000), 3_000);
        assert_eq!((metrics.clock_steps.get(), metrics.pauses.get()), (1, 0));
        watch.look(&metrics, at(5_000_000, 44_998_000), 4_000);
        assert_eq!((metrics.clock_steps.get(), metrics.pauses.get()), (1, 1));
    }

    #[test]
    fn a_full_queue_has_one_line_in_a_while() {
        let (metrics, mut watch) = (NodeMetrics::default(), TroubleWatch::default());
        let logged = |watch: &TroubleWatch| watch.queues[Queue::Requests as usize].logged_ms;
        watch.look(&metrics, 0);
        assert_eq!(logged(&watch), None);
        metrics.queue_full(Queue::Requests).increment();
        watch.look(&metrics, 1_000_000);
        metrics.queue_full(Queue::Requests).increment();
        watch.look(&metrics, 2_000_000);
        assert_eq!(logged(&watch), Some(1_000));
        watch.look(&metrics, 12_000_000);
        assert_eq!(logged(&watch), Some(12_000));
    }
}
