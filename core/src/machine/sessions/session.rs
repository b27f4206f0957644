//! Sessions: opened, kept alive, orphaned, closed, dead. All locks of a session end with it, in one step.
//!
//! A session belongs to the ACL user that opened it. For others it does not exist: ids are shown in errors and logs, so knowing one
//! proves nothing. Administrators may close any ([`Command::SessionClose`]) and see any ([`SessionScope::All`]), but they take no lock
//! under another user's session and do not keep it alive.
//!
//! [`Command::SessionClose`]: crate::machine::Command::SessionClose
//! [`SessionScope::All`]: crate::types::SessionScope::All

use crate::grammar::errors;
use crate::machine::locks::ending::Ending;
use crate::machine::locks::holder::Holder;
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::sessions::policy::{read_policy, SessionAge};
use crate::machine::snapshot::write::kind;
use crate::machine::store::deadlines::Timer;
use crate::machine::store::list::List;
use crate::machine::store::slab::Image;
use crate::machine::{version, Applied, Lock, Machine, SessionSlot, Waiter, WaiterSlot};
use crate::mutant;
use crate::reply::{Refusal, Reply};
use crate::types::{just_passed, Fence, SessionId, SessionPolicy, UserTag, LABEL_BYTES_MAX, TTL_MS_MAX};

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// Who opened it. Its locks and waiters are of the same user.
    pub(crate) user: UserTag,
    /// Empty where none was given.
    pub(crate) label: Box<[u8]>,
    pub(crate) ttl_ms: u64,
    /// By the last keep-alive, or by the grace time after the connection that opened it went.
    pub(crate) deadline_ms: u64,
    /// The connection that opened it is closed. Touches count no more: they were on their way when it was closed. Only a
    /// keep-alive by another connection takes the session over.
    pub(crate) orphaned: bool,
    /// The entry in which somebody else than the connection that opened it last kept it alive, from cluster version 2 on; 0: none.
    pub(crate) kept_index: u64,
    /// Locks it holds, in the order of their grants.
    pub(crate) locks: List<Lock>,
    /// Its holds of locks in other modes than exclusive, in the order of their grants.
    pub(crate) holders: List<Holder>,
    pub(crate) policy: SessionPolicy,
    /// How old it counts for the policies; smaller is older.
    pub(crate) age: SessionAge,
    /// Its waiters, in the order they came.
    pub(crate) waiters: List<Waiter>,
    /// Places its waiters have in queues. Worked out from them.
    pub(crate) queue_entries: u32,
}

/// In the byte of flags of a record.
const ORPHANED_FLAG: u8 = 1;
/// The user's tag follows.
const USER_FLAG: u8 = 2;

impl Image for Session {
    const KIND: u8 = kind::SESSION;

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.0.to_le_bytes());
        put_bytes(out, &self.label);
        put_varint(out, self.ttl_ms);
        put_varint(out, self.deadline_ms);
        let orphaned_flag = if self.orphaned { ORPHANED_FLAG } else { 0 };
        match self.user {
            UserTag::DEFAULT => out.push(orphaned_flag),
            UserTag(tag) => {
                out.push(orphaned_flag | USER_FLAG);
                out.extend_from_slice(&tag.to_le_bytes());
            }
        }
        self.locks.write(out);
        self.waiters.write(out);
        if self.policy != SessionPolicy::Detect
            || self.age != SessionAge::default()
            || self.holders != List::EMPTY
            || self.kept_index != 0
        {
            self.holders.write(out);
            out.push(self.policy as u8);
            put_varint(out, self.age.asked);
            put_varint(out, self.age.order);
            put_varint(out, self.kept_index);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Session> {
        let id = SessionId(reader.u64_fixed()?);
        let label = reader.bytes()?;
        if label.len() > LABEL_BYTES_MAX {
            return None;
        }
        let (ttl_ms, deadline_ms) = (reader.varint()?, reader.varint()?);
        let flags = reader.u8().filter(|flags| flags & !(ORPHANED_FLAG | USER_FLAG) == 0)?;
        let user = if flags & USER_FLAG == 0 {
            UserTag::DEFAULT
        } else {
            UserTag(reader.u64_fixed().filter(|tag| *tag != UserTag::DEFAULT.0)?)
        };
        let mut session = Session {
            id,
            user,
            label: label.into(),
            ttl_ms,
            deadline_ms,
            orphaned: flags & ORPHANED_FLAG != 0,
            kept_index: 0,
            locks: List::read(reader)?,
            waiters: List::read(reader)?,
            holders: List::EMPTY,
            policy: SessionPolicy::Detect,
            age: SessionAge::default(),
            queue_entries: 0,
        };
        if !reader.is_empty() {
            session.holders = List::read(reader)?;
            session.policy = read_policy(reader)?;
            session.age = SessionAge { asked: reader.varint()?, order: reader.varint()? };
            session.kept_index = reader.varint()?;
        }
        Some(session)
    }
}

impl Machine {
    /// An id that is taken by a live session is refused: the node draws another.
    pub(crate) fn session_open(
        &mut self,
        id: SessionId,
        ttl_ms: u64,
        label: &[u8],
        (policy, age): (SessionPolicy, u64),
        out: &mut Applied,
    ) -> Reply {
        if ttl_ms == 0 || ttl_ms > TTL_MS_MAX {
            return errors::ttl_range().into();
        }
        if label.len() > LABEL_BYTES_MAX {
            return errors::label_length().into();
        }
        if self.live_session(id, out).is_some() || self.session_ids.contains_key(&id) {
            return errors::session_exists().into();
        }
        if self.sessions.len() >= self.limits.sessions_max {
            return errors::too_many_sessions(self.limits.sessions_max).into();
        }
        let user = self.acting_user;
        if let Err(refusal) = self.check_sessions_of(user).and_then(|()| self.room_for_session(label, user)) {
            return refusal.into();
        }
        let deadline_ms = self.deadline_after(ttl_ms);
        let (locks, waiters) = (List::EMPTY, List::EMPTY);
        let label = label.into();
        let (orphaned, kept_index, queue_entries) = (false, 0, 0);
        let (holders, age) = (List::EMPTY, self.next_session_age(age));
        let slot = self.sessions.insert(Session {
            id,
            user,
            label,
            ttl_ms,
            deadline_ms,
            orphaned,
            kept_index,
            locks,
            waiters,
            holders,
            policy,
            age,
            queue_entries,
        });
        self.memory.sessions += self.sessions[slot].weight();
        self.session_ids.insert(id, slot);
        if user != UserTag::DEFAULT {
            *self.sessions_of.entry(user).or_default() += 1;
        }
        self.deadlines.set(Timer::Session(slot), deadline_ms);
        Reply::bulk(id.to_string())
    }

    /// One user may not have all sessions there are. Without users all clients are `default`, who may.
    fn check_sessions_of(&self, user: UserTag) -> Result<(), Refusal> {
        let most = self.limits.sessions_max / 2;
        let is_full = self.sessions_of.get(&user).is_some_and(|count| *count >= most);
        match is_full && self.upgrade.version >= version::SECOND {
            true => Err(errors::too_many_sessions_of_user(most)),
            false => Ok(()),
        }
    }

    /// `own`: it came by the connection that opened the session, and is no more than any other command there: it may have been on its
    /// way when that was closed.
    pub(crate) fn session_keep_alive(&mut self, id: SessionId, own: bool, out: &mut Applied) -> Reply {
        match self.own_session(id, out) {
            Some(slot) if own => {
                self.touch_session(slot);
                Reply::Int(self.sessions[slot].ttl_ms as i64)
            }
            Some(slot) => {
                self.set_orphaned(slot, false);
                if self.upgrade.version >= version::SECOND {
                    // Behind every entry that was applied before this one.
                    self.sessions.edit(slot).kept_index = self.entry_index() + 1;
                }
                self.set_session_deadline(slot, self.deadline_after(self.sessions[slot].ttl_ms));
                Reply::Int(self.sessions[slot].ttl_ms as i64)
            }
            None => errors::no_session().into(),
        }
    }

    /// Nodes batch touches, so one may be applied after the command that says the connection is closed.
    pub(crate) fn sessions_touch(&mut self, ids: &[SessionId], out: &mut Applied) -> Reply {
        for id in ids {
            if let Some(slot) = self.live_session(*id, out) {
                self.touch_session(slot);
            }
        }
        Reply::OK
    }

    fn touch_session(&mut self, slot: SessionSlot) {
        if !self.sessions[slot].orphaned {
            self.set_session_deadline(slot, self.deadline_after(self.sessions[slot].ttl_ms));
        }
    }

    /// Grace can only bring the end nearer. A keep-alive of somebody else sets it back to the full ttl, also one that came before this, if
    /// it was later than `heard_index`.
    pub(crate) fn sessions_orphan(
        &mut self,
        ids: &[SessionId],
        grace_ms: u64,
        heard_index: Option<u64>,
        out: &mut Applied,
    ) -> Reply {
        for id in ids {
            let live = self.live_session(*id, out);
            let is_taken_over =
                |slot: &SessionSlot| heard_index.is_some_and(|heard| self.sessions[*slot].kept_index > heard);
            if let Some(slot) = live.filter(|slot| !is_taken_over(slot)) {
                self.set_orphaned(slot, true);
                let grace_end_ms = match grace_ms {
                    0 => just_passed(self.clock.logical_ms),
                    grace_ms => self.clock.logical_ms.saturating_add(grace_ms),
                };
                self.set_session_deadline(slot, self.sessions[slot].deadline_ms.min(grace_end_ms));
                // Without any grace it is dead now, not only when the next entry comes.
                self.live_session(*id, out);
            }
        }
        Reply::OK
    }

    pub(crate) fn session_close(&mut self, id: SessionId, any_user: bool, out: &mut Applied) -> Reply {
        let found = if any_user { self.live_session(id, out) } else { self.own_session(id, out) };
        match found {
            Some(slot) => {
                let locks = self.sessions[slot].locks.len + self.sessions[slot].holders.len;
                if mutant!(ClosedSessionLives) {
                    return Reply::Int(i64::from(locks));
                }
                let is_orderly = self.sessions[slot].user == self.acting_user;
                let losses = out.tally.losses;
                self.end_session(slot, out);
                if is_orderly {
                    // Its own client ended it: nothing of it was lost.
                    out.tally.losses = losses;
                }
                if self.session_ids.contains_key(&id) {
                    // Too many for one entry: the rest is over as if its time were, and goes as that does.
                    self.set_session_deadline(slot, just_passed(self.clock.logical_ms));
                }
                Reply::Int(i64::from(locks))
            }
            None => errors::no_session().into(),
        }
    }

    /// The slot of a live session of the user whose command is applied.
    pub(crate) fn own_session(&mut self, id: SessionId, out: &mut Applied) -> Option<SessionSlot> {
        self.live_session(id, out).filter(|slot| self.sessions[*slot].user == self.acting_user)
    }

    /// The slot of a session that lives at this instant, whoever opened it. One that is due ends here.
    pub(crate) fn live_session(&mut self, id: SessionId, out: &mut Applied) -> Option<SessionSlot> {
        let slot = *self.session_ids.get(&id)?;
        if !self.has_passed(self.sessions[slot].deadline_ms) {
            return Some(slot);
        }
        self.end_session(slot, out);
        self.serve_all(out);
        None
    }

    /// Ends a session, as far as the entry may.
    fn end_session(&mut self, slot: SessionSlot, out: &mut Applied) {
        let mut ends = self.session_ends_left;
        self.end_session_part(slot, &mut ends, out);
        self.session_ends_left = ends;
    }

    /// Ends no more than `ends` waiters and locks of a session that is due; what is left stays due, and goes with a later entry or
    /// with whatever touches it. Waiters go first, so that none of them is granted what the session's own locks leave free.
    pub(crate) fn end_session_part(&mut self, slot: SessionSlot, ends: &mut usize, out: &mut Applied) {
        while let Some(waiter) = self.sessions[slot].waiters.first() {
            let Some(left) = ends.checked_sub(1) else { return };
            *ends = left;
            if mutant!(DeadSessionStaysInLine) {
                let mut waiters = self.sessions[slot].waiters;
                waiters.unlink(&mut self.waiters, waiter);
                let queue_entries = self.waiters[waiter].queue_entries.len() as u32;
                let record = self.sessions.edit(slot);
                (record.waiters, record.queue_entries) = (waiters, record.queue_entries - queue_entries);
                self.waiters.edit(waiter).session = SessionSlot::NONE;
                continue;
            }
            self.leave_with_session(waiter, out);
        }
        while let Some(lock) = self.sessions[slot].locks.first() {
            let Some(left) = ends.checked_sub(1) else { return };
            *ends = left;
            self.end_grant(lock, Ending::SessionEnded, out);
        }
        while let Some(holder) = self.sessions[slot].holders.first() {
            let Some(left) = ends.checked_sub(1) else { return };
            *ends = left;
            self.end_holder(holder, Ending::SessionEnded, out);
        }
        let Session { id, user, .. } = self.sessions[slot];
        self.session_ids.remove(&id);
        if let Some(count) = self.sessions_of.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.sessions_of.remove(&user);
            }
        }
        self.deadlines.clear(Timer::Session(slot));
        self.memory.sessions -= self.sessions[slot].weight();
        self.sessions.remove(slot);
    }

    /// A waiter whose session is over.
    pub(crate) fn leave_with_session(&mut self, waiter: WaiterSlot, out: &mut Applied) {
        let record = self.leave(waiter, out);
        // Whoever converts a hold loses that hold too, and hears so.
        let converts = record.converts != Fence(0);
        for pending in &record.requests {
            let reply = if converts { Reply::Nil } else { errors::no_session().into() };
            self.settle(pending, Some(reply), out);
        }
    }

    fn set_orphaned(&mut self, slot: SessionSlot, orphaned: bool) {
        if self.sessions[slot].orphaned != orphaned {
            self.sessions.edit(slot).orphaned = orphaned;
        }
    }

    fn set_session_deadline(&mut self, slot: SessionSlot, deadline_ms: u64) {
        if self.sessions[slot].deadline_ms != deadline_ms {
            self.sessions.edit(slot).deadline_ms = deadline_ms;
            self.deadlines.set(Timer::Session(slot), deadline_ms);
        }
    }
}
