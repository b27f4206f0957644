//! The end of what is due, by the replicated clock alone.
//!
//! Every entry first works off what is due at its own stamp, up to a limit. What is left beyond the limit is ended by
//! whatever touches it ([`Machine::end_if_due`]), so nothing past its deadline is ever granted, renewed or shown as held.

use crate::machine::locks::ending::Ending;
use crate::machine::locks::lock::Phase;
use crate::machine::store::deadlines::{Timer, NEVER};
use crate::machine::{Applied, LockSlot, Machine};
use crate::reply::Reply;

impl Machine {
    /// Each at its own instant, as if the clock had moved in single steps: a waiter that still had time when the lock ended
    /// gets it, however far one entry moves the clock.
    pub(crate) fn end_due(&mut self, out: &mut Applied) {
        let mut ends = self.limits.due_per_entry_max;
        while ends > 0 {
            match self.deadlines.next() {
                Some((at_ms, timer)) if self.has_passed(at_ms) => {
                    self.instant_ms = at_ms;
                    self.end_one(timer, &mut ends, out);
                    ends = ends.saturating_sub(1);
                    self.serve_all(out);
                }
                Some(_) | None => break,
            }
        }
        self.instant_ms = self.clock.logical_ms;
    }

    fn end_one(&mut self, timer: Timer, ends: &mut usize, out: &mut Applied) {
        match timer {
            Timer::Lock(slot) => self.end_grant(slot, Ending::Expired, out),
            Timer::Holder(slot) => self.end_holder(slot, Ending::Expired, out),
            Timer::Session(slot) => self.end_session_part(slot, ends, out),
            Timer::Waiter(slot) => {
                let instant_ms = self.instant_ms;
                self.give_up_overdue(slot, |deadline_ms| deadline_ms <= instant_ms, out);
            }
        }
    }

    /// Ends the grant of a lock that was flushed, or whose time or session's time is over. Answers when that was, if it did.
    #[inline]
    pub(crate) fn end_if_due(&mut self, slot: LockSlot, out: &mut Applied) -> Option<u64> {
        let lock = &self.locks[slot];
        let (deadline_ms, session) = match lock.phase {
            Phase::Held { deadline_ms, session, .. } => (deadline_ms, session),
            Phase::Several { .. } => return self.end_due_holders(slot, out),
            Phase::Awaited | Phase::Idle { .. } => return None,
        };
        let session_ends_ms = self.sessions.get(session).map_or(NEVER, |session| session.deadline_ms);
        let (ended_ms, ending) = if self.is_flushed(lock) {
            (self.clock.logical_ms, Ending::Flushed)
        } else if self.has_passed(deadline_ms) {
            (deadline_ms, Ending::Expired)
        } else if self.has_passed(session_ends_ms) {
            (session_ends_ms, Ending::SessionEnded)
        } else {
            return None;
        };
        self.end_grant(slot, ending, out);
        Some(ended_ms)
    }

    /// The logged command. What is due has ended already, at the start of the entry; idle records are left.
    pub(crate) fn expire(&mut self, idle_ms: u64) -> Reply {
        for _ in 0..self.limits.idle_per_entry_max {
            match self.oldest_idle_ms() {
                Some(since_ms) if since_ms.saturating_add(idle_ms) <= self.clock.logical_ms => {
                    self.forget_oldest_idle(1);
                }
                Some(_) | None => break,
            }
        }
        self.fold_old_marks();
        Reply::OK
    }
}
