//! `LOCK.RELEASE`, `LOCK.MRELEASE`, `LOCK.FORCERELEASE`, and the end of a grant in general.

use crate::machine::locks::ending::{EndCause, Ending};
use crate::machine::locks::multi::Several;
use crate::machine::log::command::Db;
use crate::machine::{Applied, EventOwner, LockSlot, Machine};
use crate::mutant;
use crate::reply::Reply;
use crate::types::{Fence, Reason};

/// Collections with more elements than this are handed out to be dropped elsewhere.
const GARBAGE_ELEMENTS_MIN: usize = 256;

impl Machine {
    /// The fence is what releases, never the name alone: a late retry cannot take a newer grant away.
    pub(crate) fn release(&mut self, db: Db, name: &[u8], fence: Fence, out: &mut Applied) -> Reply {
        let Some(slot) = self.find_fresh(db, name, out) else { return Reply::Refused(Reason::NotOwner) };
        let lock = &self.locks[slot];
        if lock.is_several() {
            let Some(holder) = self.holder_index.with_fence(slot, fence) else {
                return Reply::Refused(lock.reason_against(fence));
            };
            self.end_holder(holder, Ending::Released, out);
            return Reply::Released;
        }
        if !lock.is_held() || (lock.fence != fence && !mutant!(ReleaseByName)) {
            return Reply::Refused(lock.reason_against(fence));
        }
        self.end_grant(slot, Ending::Released, out);
        Reply::Released
    }

    /// Each by its own fence. Waiters are served when all have ended, so one that waits for several gets them at once.
    pub(crate) fn release_many(&mut self, db: Db, pairs: &[(&[u8], Fence)], out: &mut Applied) -> Reply {
        for (name, _) in pairs {
            self.find_fresh(db, name, out);
        }
        let replies: Several<Reply> =
            pairs.iter().map(|(name, fence)| self.release(db, name, *fence, out)).collect();
        Reply::Array(replies.into_vec())
    }

    pub(crate) fn force_release(&mut self, db: Db, name: &[u8], out: &mut Applied) -> Reply {
        match self.find_fresh(db, name, out) {
            Some(slot) if self.locks[slot].is_held() => {
                // Only its holder releases a lock: to the holder's own fence this is an expiry.
                self.end_all_holds(slot, Ending::Forced, out);
                Reply::Int(1)
            }
            Some(_) | None => Reply::Int(0),
        }
    }

    /// Of one holder alone.
    pub(crate) fn force_release_one(
        &mut self,
        db: Db,
        name: &[u8],
        fence: Fence,
        out: &mut Applied,
    ) -> Reply {
        let slot = self.find_fresh(db, name, out);
        match slot.and_then(|slot| self.hold_with_fence(slot, fence)) {
            Some(hold) => {
                self.end_hold(hold, Ending::Forced, out);
                Reply::Int(1)
            }
            None => Reply::Int(0),
        }
    }

    /// Ends a grant. The lock is served with the rest at the end of the command.
    pub(crate) fn end_grant(&mut self, slot: LockSlot, ending: Ending, out: &mut Applied) {
        let lock = &self.locks[slot];
        let (db, epoch, fence, session) = (lock.db(), lock.epoch(), lock.fence, lock.session());
        self.emit_end(ending, slot, EventOwner::Holder, out);
        self.history.note_hold(slot, fence, self.clock.wall_us, ending);
        out.tally.held(self.held_us_of_fence(fence), ending.loss());
        if session.is_some() {
            let mut locks = self.sessions[session].locks;
            locks.unlink(&mut self.locks, slot);
            self.sessions.edit(session).locks = locks;
        }
        self.deadlines.clear_lock(db, slot);
        self.sweep.count_ended(db, epoch);
        let last_end = ending.last_end(self.upgrade.version);
        self.change_lock(slot, |lock| lock.end(last_end));
        if !self.values.is_empty() {
            let value = self.take_value(slot);
            out.garbage.extend(value.filter(|value| value.view().elements() > GARBAGE_ELEMENTS_MIN));
        }
        if !self.versions.is_empty() {
            self.versions.remove(&slot);
        }
        if !self.grants.is_empty() {
            self.set_grants(slot, None);
        }
        if !self.attached.is_empty() {
            self.set_attached(slot, None);
        }
        self.counters.held -= 1;
        match ending.cause() {
            EndCause::Released => self.counters.releases += 1,
            EndCause::Expired => self.counters.expiries += 1,
        }
        self.to_serve.push_back(slot);
    }
}
