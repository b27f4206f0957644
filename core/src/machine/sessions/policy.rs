//! Ages and policies of sessions: who may wait for whom, and who may take a lock from whom.
//!
//! - `wait-die`: a session waits only for younger ones; a wait for an older one is refused. Edges all lead from old to young, so no
//!   circle can arise among such sessions.
//! - `wound-wait`: an older session that is first in line takes the lock from younger holders of the same policy. It does so only
//!   where that gives it the lock; where somebody else is in the way too, nobody loses anything.
//!
//! The age is the order of opening, or a later one that the client asked for: nobody can make itself older. Owners without a
//! session take no part.
//!
//! # Caveats
//!
//! A look at a long queue counts as a search for circles does; where the entry has no steps left, the wait is let through. A look at many
//! holders counts too: where the entry has no steps left, nobody is wounded until the next end of a hold of that lock.

use crate::grammar::errors;
use crate::machine::locks::several::Hold;
use crate::machine::log::bytes::Reader;
use crate::machine::{LockSlot, Machine, QueueEntrySlot, SessionSlot};
use crate::mutant;
use crate::reply::Refusal;
use crate::types::SessionPolicy;

/// Smaller is older. Sessions from before cluster version 2 are the oldest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionAge {
    /// `AGE`, or the order of opening where that is larger.
    pub(crate) asked: u64,
    pub(crate) order: u64,
}

pub(crate) fn read_policy(reader: &mut Reader<'_>) -> Option<SessionPolicy> {
    Some(match reader.u8()? {
        0 => SessionPolicy::Detect,
        1 => SessionPolicy::WaitDie,
        2 => SessionPolicy::WoundWait,
        _ => return None,
    })
}

impl Machine {
    /// The age of a session that is opened now.
    pub(crate) fn next_session_age(&mut self, asked: u64) -> SessionAge {
        if self.cluster_version() < 2 {
            return SessionAge::default();
        }
        self.sessions_opened += 1;
        SessionAge { asked: asked.max(self.sessions_opened), order: self.sessions_opened }
    }

    /// Of no session: the youngest.
    pub(crate) fn age_of(&self, session: SessionSlot) -> SessionAge {
        let youngest = SessionAge { asked: u64::MAX, order: u64::MAX };
        self.sessions.get(session).map_or(youngest, |session| session.age)
    }

    fn policy_of(&self, session: SessionSlot) -> Option<SessionPolicy> {
        self.sessions.get(session).map(|session| session.policy)
    }

    /// Whether a session takes locks from younger ones.
    pub(crate) fn wounds(&self, session: SessionSlot) -> bool {
        self.policy_of(session) == Some(SessionPolicy::WoundWait)
    }

    /// Whether `session` may take this hold away.
    pub(crate) fn may_wound(&self, session: SessionSlot, hold: Hold) -> bool {
        let holder = self.session_of_hold(hold);
        self.wounds(session) && self.wounds(holder) && self.age_of(session) < self.age_of(holder)
    }

    /// Refuses a wait at the end of these queues for an older session, where the policy says so.
    pub(crate) fn refuse_older(&mut self, session: SessionSlot, slots: &[LockSlot]) -> Result<(), Refusal> {
        slots
            .iter()
            .try_for_each(|slot| self.refuse_older_behind(session, *slot, self.locks[*slot].queue.tail))
    }

    /// The same for a holder that would wait for the others alone.
    pub(crate) fn refuse_older_holders(
        &mut self,
        session: SessionSlot,
        slot: LockSlot,
    ) -> Result<(), Refusal> {
        self.refuse_older_behind(session, slot, QueueEntrySlot::NONE)
    }

    fn refuse_older_behind(
        &mut self,
        session: SessionSlot,
        slot: LockSlot,
        last: QueueEntrySlot,
    ) -> Result<(), Refusal> {
        if self.policy_of(session) != Some(SessionPolicy::WaitDie) || mutant!(YoungerWaits) {
            return Ok(());
        }
        let age = self.age_of(session);
        let mut steps = 0;
        let steps_max = self.limits.deadlock_steps_max.min(self.deadlock_steps_left);
        let ahead = self.sessions_ahead(slot, last).take(steps_max).inspect(|_| steps += 1);
        let older = ahead
            .map(|(_, other)| other)
            .find(|other| other.is_some() && *other != session && self.age_of(*other) < age);
        // Ids of other users' sessions are not told.
        let own = self.sessions[session].user;
        let older = older.map(|older| match self.sessions[older].user == own {
            true => format!("the older session {}", self.sessions[older].id),
            false => "an older session of another user".to_owned(),
        });
        self.deadlock_steps_left -= steps;
        match older {
            None => Ok(()),
            Some(older) => {
                self.counters.deadlocks += 1;
                Err(errors::would_wait_for_older(self.locks[slot].name(), &older))
            }
        }
    }
}
