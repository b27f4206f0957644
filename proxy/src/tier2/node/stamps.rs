//! The leader's logical clock: what it writes on entries.
//!
//! It adds up monotonic time while this node leads, starting from the last applied stamp. It may only ever run late: each
//! gap between two looks is capped, so that a leader that slept makes nobody's lock end early, and nothing is added while
//! another node leads.
//!
//! It counts whole milliseconds. A leader counts those that began after it took the clock over, so that no change of leaders
//! adds the part of one that had passed already; within a term a stamp and a later one may lie up to a millisecond closer than
//! they say, which is why a deadline has passed only after its own millisecond ([`redfence_core::types::has_passed`]).

use crate::node_api::Now;
use redfence_core::mutant;
use redfence_core::types::Stamp;

#[derive(Debug, Default)]
pub(in crate::tier2) struct LogicalClock {
    gap_ms_max: u64,
    leading: Option<LeaderClock>,
}

#[derive(Debug)]
struct LeaderClock {
    term: u64,
    seen_ms: u64,
    logical_ms: u64,
    stamped_at_ms: u64,
    /// The last stamp's logical time.
    stamped_ms: Option<u64>,
}

impl LogicalClock {
    pub(in crate::tier2) fn new(gap_ms_max: u64) -> LogicalClock {
        LogicalClock { gap_ms_max, leading: None }
    }

    /// This node leads from now on. `applied_ms` is the machine's clock.
    pub(in crate::tier2) fn start(&mut self, now: Now, term: u64, applied_ms: u64) {
        let applied_ms = if mutant!(ClockOfOwnUptime) { now.monotonic_ms() } else { applied_ms };
        self.leading = Some(LeaderClock {
            term,
            seen_ms: next_whole_ms(now),
            logical_ms: applied_ms,
            stamped_at_ms: now.monotonic_ms(),
            stamped_ms: None,
        });
    }

    pub(in crate::tier2) fn stop(&mut self) {
        self.leading = None;
    }

    /// Looks at the clock. `applied_ms` pulls a new leader forward over what the last one still stamped.
    pub(in crate::tier2) fn observe(&mut self, now: Now, applied_ms: u64) {
        if let Some(leading) = &mut self.leading {
            let gap_ms = now.monotonic_ms().saturating_sub(leading.seen_ms);
            leading.seen_ms = leading.seen_ms.max(now.monotonic_ms());
            leading.logical_ms += gap_ms.min(self.gap_ms_max);
            if applied_ms > leading.logical_ms {
                leading.logical_ms = applied_ms;
                leading.seen_ms = leading.seen_ms.max(next_whole_ms(now));
            }
        }
    }

    /// The logical time as of the last look, while leading.
    pub(in crate::tier2) fn logical_ms(&self) -> Option<u64> {
        self.leading.as_ref().map(|leading| leading.logical_ms)
    }

    /// The last stamp given in this term.
    pub(in crate::tier2) fn stamped_ms(&self) -> Option<u64> {
        self.leading.as_ref()?.stamped_ms
    }

    /// How long ago the last stamp was given, while leading.
    pub(in crate::tier2) fn since_stamp_ms(&self, now: Now) -> Option<u64> {
        self.leading.as_ref().map(|leading| now.monotonic_ms().saturating_sub(leading.stamped_at_ms))
    }

    /// The stamp for an entry proposed now. Only while leading.
    pub(in crate::tier2) fn stamp(&mut self, now: Now) -> Option<Stamp> {
        let leading = self.leading.as_mut()?;
        leading.stamped_at_ms = now.monotonic_ms();
        leading.stamped_ms = Some(leading.logical_ms);
        Some(Stamp { term: leading.term, logical_ms: leading.logical_ms, wall_us: now.wall_us })
    }
}

/// Rounded up: time is counted from here.
fn next_whole_ms(now: Now) -> u64 {
    now.monotonic_us.div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redfence_core::machine::{Applied, Command, Machine};

    fn at(monotonic_ms: u64) -> Now {
        Now { monotonic_us: 1_000 * monotonic_ms, wall_us: 7 }
    }

    #[test]
    fn a_leader_that_slept_counts_one_gap_only() {
        let mut clock = LogicalClock::new(500);
        clock.start(at(1_000), 3, 40);
        clock.observe(at(1_100), 40);
        assert_eq!(clock.logical_ms(), Some(140));
        clock.observe(at(61_100), 40);
        assert_eq!(clock.logical_ms(), Some(640));
        let stamp = clock.stamp(at(61_100));
        assert_eq!(stamp, Some(Stamp { term: 3, logical_ms: 640, wall_us: 7 }));
    }

    #[test]
    fn it_starts_from_what_was_applied_and_follows_what_is_applied_later() {
        let mut clock = LogicalClock::new(500);
        clock.start(at(0), 1, 10_000);
        clock.observe(at(5), 20_000);
        assert_eq!(clock.logical_ms(), Some(20_000));
    }

    #[test]
    fn it_stands_still_while_another_leads() {
        let mut clock = LogicalClock::new(500);
        clock.observe(at(5), 20_000);
        assert_eq!(clock.logical_ms(), None);
        assert_eq!(clock.stamp(at(9)), None);
    }

    /// The leader of the moment, whose monotonic clock is ahead of true time by `ahead_us`, and the one replica it leads.
    struct Bench {
        clock: LogicalClock,
        machine: Machine,
        true_us: u64,
        ahead_us: u64,
        term: u64,
    }

    impl Bench {
        fn now(&self) -> Now {
            let monotonic_us = self.true_us + self.ahead_us;
            Now { monotonic_us, wall_us: 1_700_000_000_000_000 + self.true_us }
        }

        fn lead(&mut self, ahead_us: u64) {
            (self.term, self.ahead_us) = (self.term + 1, ahead_us);
            self.clock = LogicalClock::new(500);
            self.clock.start(self.now(), self.term, self.machine.logical_ms());
        }

        fn apply(&mut self, command: Command<'_>) {
            self.clock.observe(self.now(), self.machine.logical_ms());
            let stamp = self.clock.stamp(self.now()).expect("it leads");
            self.machine.apply(stamp, None, command, &mut Applied::default());
        }

        fn is_held(&self) -> bool {
            self.machine.stats().locks_held > 0
        }
    }

    proptest! {
        /// At whatever microsecond it was granted, by whichever clocks, over however many changes of leaders.
        #[test]
        fn no_lock_ends_before_its_ttl_has_fully_elapsed(
            ttl_ms in 1u64..30,
            offsets_us in (0u64..3_000, 0u64..3_000),
            step_us in 1u64..1_500,
            changes in prop::collection::vec((1u64..9_000, 0u64..3_000), 0..5),
        ) {
            let (granted_us, ahead_us) = offsets_us;
            let (clock, machine) = (LogicalClock::default(), Machine::new());
            let mut bench = Bench { clock, machine, true_us: 0, ahead_us: 0, term: 0 };
            bench.lead(ahead_us);
            bench.true_us = granted_us;
            let (resource, owner) = (&b"a"[..], &b"x"[..]);
            bench.apply(Command::Acquire { db: 0, resource, ttl_ms, wait_ms: 0, owner, session: None });
            prop_assert!(bench.is_held());
            let mut changed_us = granted_us;
            for (after_us, ahead_us) in changes {
                changed_us += after_us;
                while bench.true_us < changed_us && bench.is_held() {
                    bench.true_us = (bench.true_us + step_us).min(changed_us);
                    bench.apply(Command::Expire { idle_ms: 600_000 });
                }
                if bench.is_held() {
                    bench.lead(ahead_us);
                }
            }
            while bench.is_held() {
                bench.true_us += step_us;
                bench.apply(Command::Expire { idle_ms: 600_000 });
                prop_assert!(bench.true_us < changed_us + 1_000 * (ttl_ms + 3) + step_us, "it never ends");
            }
            prop_assert!(
                bench.true_us - granted_us >= 1_000 * ttl_ms,
                "{} us of {ttl_ms} ms", bench.true_us - granted_us
            );
        }
    }
}
