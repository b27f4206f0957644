//! What applying entries has counted for metrics. No state: each node keeps its own, nothing reads it back, and it starts empty.

use crate::types::LossCause;

/// Upper bounds of the buckets of hold times, in microseconds. One more bucket holds what is longer.
pub const HOLD_BOUNDS_US: [u64; 17] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    600_000_000,
    3_600_000_000,
];

/// Counts since its owner last took them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Holds that ended, by how long they were held: one count for each of [`HOLD_BOUNDS_US`], and one for longer ones.
    pub holds: [u64; HOLD_BOUNDS_US.len() + 1],
    /// All of these times together.
    pub held_us: u64,
    /// Waiters that were granted what they waited for.
    pub served: u64,
    /// Grants that their holder did not end, by release or by closing its session, by cause: in the order of [`LossCause::ALL`].
    pub losses: [u64; LossCause::ALL.len()],
}

impl Tally {
    #[inline]
    pub(crate) fn held(&mut self, us: u64, loss: Option<LossCause>) {
        // Most holds are short.
        let bucket = match us <= HOLD_BOUNDS_US[0] {
            true => 0,
            false => HOLD_BOUNDS_US.partition_point(|bound_us| *bound_us < us),
        };
        self.holds[bucket] += 1;
        self.held_us = self.held_us.wrapping_add(us);
        if let Some(cause) = loss {
            self.losses[cause as usize] += 1;
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Tally::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::log::command::OfUser;
    use crate::machine::{Applied, Command, Machine};
    use crate::types::{SessionId, Stamp, UserTag};

    #[test]
    fn a_hold_falls_into_the_bucket_of_its_time() {
        let mut tally = Tally::default();
        tally.held(1_000, None);
        tally.held(1_001, Some(LossCause::Wounded));
        tally.held(u64::MAX, None);
        assert_eq!((tally.holds[0], tally.holds[1], tally.holds[HOLD_BOUNDS_US.len()]), (1, 1, 1));
        assert_eq!(tally.losses[LossCause::Wounded as usize], 1);
        assert_eq!(LossCause::ALL[LossCause::Wounded as usize], LossCause::Wounded);
    }

    #[test]
    fn expiries_are_losses_and_served_waiters_are_counted() {
        let (mut machine, mut out) = (Machine::new(), Applied::default());
        let mut at = |ms: u64, owner: &'static [u8], command: Option<Command<'_>>| {
            let stamp = Stamp { term: 1, logical_ms: ms, wall_us: 1_700_000_000_000_000 + 1_000 * ms };
            let acquire =
                Command::Acquire { db: 0, resource: b"a", ttl_ms: 100, wait_ms: 1_000, owner, session: None };
            machine.apply(stamp, None, command.unwrap_or(acquire), &mut out);
        };
        at(1, b"first", None);
        at(2, b"second", None);
        at(150, b"", Some(Command::Expire { idle_ms: 1_000 }));
        let tally = out.tally;
        assert_eq!((tally.served, tally.losses[LossCause::Expired as usize]), (1, 1));
        assert_eq!(tally.holds.iter().sum::<u64>(), 1);
        assert!(tally.held_us >= 100_000, "{}", tally.held_us);
    }

    #[test]
    fn a_session_closed_by_its_client_lost_nothing() {
        let ended = |end: Option<Command<'_>>, at_ms: u64| {
            let (mut machine, mut out) = (Machine::new(), Applied::default());
            let id = SessionId(7);
            let acquire = |resource, session| Command::Acquire {
                db: 0,
                resource,
                ttl_ms: 0,
                wait_ms: 0,
                owner: b"owner",
                session,
            };
            let commands = [
                (1, Command::SessionOpen { id, ttl_ms: 1_000, label: b"" }),
                (2, acquire(b"a", Some(id))),
                (3, acquire(b"b", Some(id))),
                (at_ms, end.unwrap_or(Command::Expire { idle_ms: 1_000 })),
            ];
            for (ms, command) in commands {
                let stamp = Stamp { term: 1, logical_ms: ms, wall_us: 1_700_000_000_000_000 + 1_000 * ms };
                machine.apply(stamp, None, command, &mut out);
            }
            assert_eq!(out.tally.holds.iter().sum::<u64>(), 2);
            out.tally.losses[LossCause::SessionEnded as usize]
        };
        let close = || Command::SessionClose { id: SessionId(7), any_user: false };
        assert_eq!(ended(Some(close()), 10), 0, "its client was done");
        assert_eq!(ended(None, 5_000), 2, "it died");
        let by_operator =
            OfUser { user: UserTag(5), command: Command::SessionClose { id: SessionId(7), any_user: true } };
        let by_operator = Command::OfUser(Box::new(by_operator));
        assert_eq!(ended(Some(by_operator), 10), 2, "somebody else ended it");
    }
}
