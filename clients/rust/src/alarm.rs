//! When the renewer looks next. Leases ask for a look from any thread, while it may be looking.

use crate::clock::Time;
use std::sync::atomic::{AtomicU64, Ordering};

const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Alarm {
    /// In microseconds, as the other.
    wakes_at: AtomicU64,
    /// The earliest look that was asked for and is still to come. A lease that is released before its first renewal leaves its look
    /// standing, or every acquire and release would wake the renewer for nothing.
    asked: AtomicU64,
}

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm { wakes_at: AtomicU64::new(0), asked: AtomicU64::new(NEVER) }
    }
}

impl Alarm {
    /// True where the renewer would wake up too late, and must be woken.
    pub(crate) fn ask(&self, at: Time) -> bool {
        // Asked first and read then, and the renewer the other way round: one of the two sees what the other did.
        self.asked.fetch_min(micros(at), Ordering::SeqCst);
        micros(at) < self.wakes_at.load(Ordering::SeqCst)
    }

    /// Before the leases are looked at: what was asked for until now is about to be done.
    pub(crate) fn begin_look(&self, now: Time) {
        let asked = self.asked.load(Ordering::SeqCst);
        if asked <= micros(now) {
            // Where it fails, an earlier one was asked for meanwhile, and stays.
            let _ = self.asked.compare_exchange(asked, NEVER, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// After it: the renewer wakes up then, or earlier where that was asked for.
    pub(crate) fn end_look(&self, at: Time) -> Time {
        self.wakes_at.store(micros(at), Ordering::SeqCst);
        let asked = self.asked.load(Ordering::SeqCst);
        if asked >= micros(at) {
            return at;
        }
        self.wakes_at.store(asked, Ordering::SeqCst);
        Time::from_micros(asked)
    }
}

fn micros(time: Time) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    #[test]
    fn a_lease_that_comes_while_the_renewer_looks_is_not_missed() {
        let alarm = Alarm::default();
        alarm.begin_look(at(1));
        // Behind the renewer's back: it wakes up now, and sees no reason to be woken.
        assert!(!alarm.ask(at(11)));
        assert_eq!(alarm.end_look(at(61)), at(11));
    }

    #[test]
    fn acquire_and_release_again_and_again_wake_the_renewer_once() {
        let alarm = Alarm::default();
        alarm.begin_look(at(0));
        assert_eq!(alarm.end_look(at(60)), at(60));
        assert!(alarm.ask(at(10)), "it would come too late");
        // The lease is gone when the renewer looks.
        alarm.begin_look(at(1));
        assert_eq!(alarm.end_look(at(61)), at(10));
        assert!((11..20).all(|first| !alarm.ask(at(first))));
        assert!(alarm.ask(at(9)), "earlier than any before");
    }

    #[test]
    fn what_was_asked_for_is_done_once() {
        let alarm = Alarm::default();
        alarm.ask(at(10));
        alarm.begin_look(at(10));
        assert_eq!(alarm.end_look(at(70)), at(70));
    }
}
