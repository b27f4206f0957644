//! The leader's logical clock: what it writes on entries.
//!
//! It adds up monotonic time while this node leads, starting from the last applied stamp. It may only ever run late: each
//! gap between two looks is capped, so that a leader that slept makes nobody's lock end early, and nothing is added while
//! another node leads.

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
            seen_ms: now.monotonic_ms(),
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
            leading.logical_ms = (leading.logical_ms + gap_ms.min(self.gap_ms_max)).max(applied_ms);
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
