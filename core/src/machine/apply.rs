//! Applying entries: the clock moves, what is due ends, and each command is executed once and answered.

use super::keys::redis::{self, CallContext};
use super::locks::acquire::AcquireParams;
use super::locks::convert::ConvertParams;
use super::locks::ending::Ending;
use super::log::command::Command;
use super::requests::dedup::Seen;
use super::{work, HolderSlot, LockSlot, Machine, WaiterSlot};
use crate::event::{Event, EventKind};
use crate::grammar::errors;
use crate::keyspace::errors::ENTRY_TOO_MUCH_WORK;
use crate::keyspace::Value;
use crate::limits::{ENTRY_REPLIES_BYTES_MAX, LOGGED_REPLY_BYTES_MAX};
use crate::machine::keys::key_accesses::KeyAccess;
use crate::machine::tally::Tally;
use crate::mutant;
use crate::reply::Reply;
use crate::types::{
    Fence, LockKind, LockMode, LossCause, Origin, RequestId, SessionId, SessionPolicy, Stamp, UserTag,
    OWNER_BYTES_MAX,
};
use ::bytes::Bytes;
use smallvec::SmallVec;

/// What applying an entry brought about. Reused from entry to entry by its owner.
#[derive(Debug, Default)]
pub struct Applied {
    /// Answers that are due now. A queued acquire has none yet: its answer comes with a later entry.
    pub replies: Vec<(RequestId, Reply)>,
    /// Only filled while somebody watches.
    pub events: Vec<Event>,
    /// `PUBLISH`: channel and message, in order. Only filled while somebody listens.
    pub published: Vec<(Bytes, Bytes)>,
    /// Reads and changes of keys, in order. Only filled while somebody tracks keys.
    pub key_accesses: Vec<KeyAccess>,
    /// Administrative commands that scripts called, for the audit log. A script's own request is named, each command once.
    pub admin_acts: Vec<(RequestId, AdminAct)>,
    /// Large values that are no more. To drop them takes a while, so the owner may do it elsewhere.
    pub garbage: Vec<Value>,
    /// Grants that ended, in order. Only filled while somebody wants to hear of them.
    pub losses: Vec<Loss>,
    /// Adds up from entry to entry until its owner takes it.
    pub tally: Tally,
    /// Losses of each lock that has no successor yet, by their places.
    unsucceeded: super::HashMap<LockSlot, SmallVec<[usize; 2]>>,
}

/// A grant that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub db: u32,
    pub resource: Bytes,
    pub fence: Fence,
    /// `None`: its holder released it, or went on with it under another fence.
    pub cause: Option<LossCause>,
    pub session: Option<SessionId>,
    /// Whose it was.
    pub user: UserTag,
    pub owner: Bytes,
    pub mode: LockMode,
    /// The fence of who has the lock now, where the same step granted it again.
    pub successor: Option<Fence>,
}

impl Applied {
    /// Forgets all but the first so many losses.
    pub(crate) fn truncate_losses(&mut self, count: usize) {
        self.losses.truncate(count);
        self.unsucceeded.retain(|_, places| {
            places.retain(|at| *at < count);
            !places.is_empty()
        });
    }

    /// The tally with the rest.
    pub fn clear(&mut self) {
        self.tally = Tally::default();
        self.replies.clear();
        self.unsucceeded.clear();
        clear(&mut self.losses);
        clear(&mut self.events);
        clear(&mut self.published);
        clear(&mut self.key_accesses);
        clear(&mut self.admin_acts);
        clear(&mut self.garbage);
    }
}

/// For lists that are mostly empty: to clear even an empty one takes a call.
#[inline]
fn clear<T>(list: &mut Vec<T>) {
    if !list.is_empty() {
        list.clear();
    }
}

/// An administrative command that scripts may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminAct {
    FlushAll,
    FlushDb,
}

impl AdminAct {
    pub const ALL: [AdminAct; 2] = [AdminAct::FlushAll, AdminAct::FlushDb];

    /// As the audit log names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AdminAct::FlushAll => "flushall",
            AdminAct::FlushDb => "flushdb",
        }
    }

    /// The one of this name, whatever its case.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<AdminAct> {
        AdminAct::ALL.into_iter().find(|act| act.name().as_bytes().eq_ignore_ascii_case(name))
    }
}

/// What of an apply somebody wants to hear of. What nobody wants is not even collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Lock events.
    pub events: bool,
    /// What `PUBLISH` said.
    pub messages: bool,
    /// Reads and changes of keys.
    pub keys: bool,
    /// Ends of grants.
    pub losses: bool,
}

impl Wanted {
    pub const ALL: Wanted = Wanted { events: true, messages: true, keys: true, losses: true };
}

impl Machine {
    /// Applies one command. Replies and events are appended to `out`.
    pub fn apply(&mut self, stamp: Stamp, id: Option<RequestId>, command: Command<'_>, out: &mut Applied) {
        self.begin(stamp, out);
        self.run(id, &command, out);
        self.finish(out);
    }

    /// After the commands of an entry: continues bulk ends and serves blocked clients.
    pub(crate) fn finish(&mut self, out: &mut Applied) {
        self.sweep_some(out);
        self.serve_blocked(out);
        self.check_after_apply();
    }

    /// Advances the clock to the stamp and ends whatever is due.
    pub(crate) fn begin(&mut self, stamp: Stamp, out: &mut Applied) {
        self.entry_wall_us = self.entry_wall_us_after(stamp);
        self.clock = self.clock_after(stamp);
        self.work.begin_entry();
        self.blocked_tries_left = self.limits.due_per_entry_max;
        self.session_ends_left = self.limits.session_ends_per_entry_max;
        self.deadlock_steps_left = self.limits.deadlock_steps_per_entry_max;
        self.wound_steps_left.set(self.limits.wound_steps_per_entry_max);
        self.reply_room = RepliesLeft::default();
        out.unsucceeded.clear();
        self.end_due(out);
        self.end_due_blocked(out);
    }

    pub(crate) fn run(&mut self, id: Option<RequestId>, command: &Command<'_>, out: &mut Applied) {
        if self.admit(id, command, out) {
            self.execute(id, command, out);
        }
    }

    /// Whether a request is to be executed. A duplicate gets the remembered reply, if there is one.
    pub(crate) fn admit(&mut self, id: Option<RequestId>, command: &Command<'_>, out: &mut Applied) -> bool {
        if let Command::OriginStart { origin } = command {
            // Otherwise the first command of a new incarnation would count as one of an incarnation that is gone.
            self.dedup.start(*origin, self.limits.origins_max);
        }
        let Some(id) = id else { return true };
        match self.dedup.look(id, self.limits.origins_max) {
            // Still queued: the grant will answer.
            Seen::New => !self.is_waiting(id),
            Seen::Before(_) if mutant!(RepliesNotRemembered) => true,
            Seen::Before(reply) => {
                // Not part of the digest: it was when it was first given, and an entry that comes twice changes nothing.
                out.replies.push((id, reply));
                false
            }
            Seen::Stale => false,
            Seen::Forgotten => {
                if !self.is_waiting(id) {
                    out.replies.push((id, errors::reply_forgotten().into()));
                }
                false
            }
            Seen::NoRoom => {
                out.replies.push((id, errors::too_many_nodes(self.limits.origins_max).into()));
                false
            }
        }
    }

    pub(crate) fn execute(&mut self, id: Option<RequestId>, command: &Command<'_>, out: &mut Applied) {
        if let Command::OfUser(of_user) = command {
            self.acting_user = of_user.user;
            self.execute(id, &of_user.command, out);
            self.acting_user = UserTag::DEFAULT;
            return;
        }
        if self.has_overdue() && self.is_backlog_too_long(command) {
            self.answer(id, &mut ENTRY_TOO_MUCH_WORK.into(), out);
            return;
        }
        // Read where keys are tracked and by the effects of scripts alone; to write it down for each command is felt.
        let is_named = self.wanted.keys || matches!(command, Command::Effects(_));
        if is_named {
            self.acting = id;
        }
        self.work.begin_command(match command {
            // One key is compared and written: bounded by its bytes.
            Command::Effects(_) | Command::Conditional(_) => u64::MAX,
            Command::Acquire { .. }
            | Command::AcquireWith { .. }
            | Command::MAcquireShared { .. }
            | Command::Convert { .. }
            | Command::ForceReleaseOne { .. }
            | Command::SessionOpenWith { .. }
            | Command::Release { .. }
            | Command::Renew { .. }
            | Command::MAcquire { .. }
            | Command::MRelease { .. }
            | Command::ForceRelease { .. }
            | Command::SessionOpen { .. }
            | Command::SessionKeepAlive { .. }
            | Command::SessionClose { .. }
            | Command::SessionsTouch { .. }
            | Command::SessionsOrphan { .. }
            | Command::Cancel { .. }
            | Command::Expire { .. }
            | Command::OriginStart { .. }
            | Command::OriginGone { .. }
            | Command::Settings(_)
            | Command::Digest(_)
            | Command::FenceCheck { .. }
            | Command::FenceCall { .. }
            | Command::Redis { .. }
            | Command::Transaction { .. }
            | Command::Upgrade(_)
            | Command::OfUser(_) => work::WORK_PER_COMMAND_MAX,
            #[cfg(feature = "next-version")]
            Command::Next => work::WORK_PER_COMMAND_MAX,
        });
        self.reply_room.command = LOGGED_REPLY_BYTES_MAX;
        let user = self.acting_user;
        let reply = match *command {
            Command::Acquire { db, resource, ttl_ms, wait_ms, owner, session } => {
                let (kind, value) = (LockKind::Exclusive, &[][..]);
                let params = AcquireParams { id, ttl_ms, wait_ms, owner, user, session, kind, value };
                self.acquire(db, resource, &params, out)
            }
            Command::AcquireWith { db, resource, ttl_ms, wait_ms, owner, session, kind, value } => {
                let params = AcquireParams { id, ttl_ms, wait_ms, owner, user, session, kind, value };
                self.acquire(db, resource, &params, out)
            }
            Command::MAcquire { db, ref resources, ttl_ms, wait_ms, owner, session } => {
                let (kind, value) = (LockKind::Exclusive, &[][..]);
                let params = AcquireParams { id, ttl_ms, wait_ms, owner, user, session, kind, value };
                self.acquire_many(db, resources, &params, out)
            }
            Command::MAcquireShared { db, ref resources, ttl_ms, wait_ms, owner, session } => {
                let (kind, value) = (LockKind::Shared, &[][..]);
                let params = AcquireParams { id, ttl_ms, wait_ms, owner, user, session, kind, value };
                self.acquire_many(db, resources, &params, out)
            }
            Command::Convert { db, resource, fence, to, wait_ms } => {
                self.convert(&ConvertParams { id, db, resource, fence, to, wait_ms }, out)
            }
            Command::ForceReleaseOne { db, resource, fence } => {
                Some(self.force_release_one(db, resource, fence, out))
            }
            Command::Release { db, resource, fence } => Some(self.release(db, resource, fence, out)),
            Command::MRelease { db, ref pairs } => Some(self.release_many(db, pairs, out)),
            Command::ForceRelease { db, resource } => Some(self.force_release(db, resource, out)),
            Command::Renew { db, resource, fence, ttl_ms } => {
                Some(self.renew(db, resource, fence, ttl_ms, out))
            }
            Command::SessionOpen { id, ttl_ms, label } => {
                Some(self.session_open(id, ttl_ms, label, (SessionPolicy::Detect, 0), out))
            }
            Command::SessionOpenWith { id, ttl_ms, label, policy, age } => {
                Some(self.session_open(id, ttl_ms, label, (policy, age), out))
            }
            Command::SessionKeepAlive { id, own } => Some(self.session_keep_alive(id, own, out)),
            Command::SessionClose { id, any_user } => Some(self.session_close(id, any_user, out)),
            Command::SessionsTouch { ref ids } => Some(self.sessions_touch(ids, out)),
            Command::SessionsOrphan { ref ids, grace_ms, heard_index } => {
                Some(self.sessions_orphan(ids, grace_ms, heard_index, out))
            }
            Command::Cancel { request } => Some(self.cancel(request, out)),
            Command::Expire { idle_ms } => Some(self.expire(idle_ms)),
            Command::OriginStart { origin } => Some(self.origin_start(origin, out)),
            Command::OriginGone { origin } => Some(self.origin_gone(origin, out)),
            Command::Settings(ref command) => Some(self.change_settings(command)),
            Command::Upgrade(command) => Some(self.upgrade(command)),
            #[cfg(feature = "next-version")]
            Command::Next => {
                self.next_count += 1;
                Some(Reply::Int(self.next_count as i64))
            }
            Command::FenceCheck { db, resource, fence } => Some(self.fence_check(db, resource, fence)),
            Command::FenceCall { db, resp, resource, fence, ref argv } => {
                Some(self.fence_call(CallContext { db, resp, member: None }, resource, fence, argv, out))
            }
            Command::Redis { db, resp, member, ref argv } => {
                self.redis(id, CallContext { db, resp, member }, argv, out)
            }
            Command::Transaction { db, resp, member, ref watched, ref commands } => {
                Some(self.transaction(CallContext { db, resp, member }, watched, commands, out))
            }
            Command::Conditional(ref conditional) => Some(self.conditional(conditional, out)),
            Command::Effects(ref effects) => Some(self.effects(effects, out)),
            Command::Digest(command) => {
                self.digest_command(command);
                Some(Reply::OK)
            }
            Command::OfUser(_) => unreachable!("unwrapped above, and never nested"),
        };
        if let Some(mut reply) = reply {
            self.answer(id, &mut reply, out);
            reply.discard();
        }
        self.serve_all(out);
        self.serve_blocked(out);
        self.forget_for_room();
        if is_named {
            self.acting = None;
        }
    }

    /// Sends a reply off and remembers it. What is left of `reply` may be anything.
    pub(crate) fn answer(&mut self, id: Option<RequestId>, reply: &mut Reply, out: &mut Applied) {
        if matches!(reply, Reply::Nil | Reply::Refused(_) | Reply::Error(_)) {
            self.counters.refusals += 1;
        }
        let Some(id) = id else { return };
        self.digests.reply(id, reply);
        let (replies_max, max_memory) = (self.limits.remembered_per_origin_max, self.max_memory_bytes());
        if reply.is_small() {
            self.dedup.remember(id, reply, replies_max, max_memory);
            out.replies.push((id, Reply::Nil));
            let (_, place) = out.replies.last_mut().expect("it was just put there");
            reply.copy_to(|reply| put_over(place, reply));
            return;
        }
        // Large replies come from reads inside scripts; remembering them all would multiply the state.
        let forgotten =
            redis::is_large(reply, self.upgrade.version).then(|| errors::reply_forgotten().into());
        self.dedup.remember(id, forgotten.as_ref().unwrap_or(reply), replies_max, max_memory);
        out.replies.push((id, std::mem::replace(reply, Reply::Nil)));
    }

    pub(crate) fn acknowledge(&mut self, origin: Origin, acked_below: u64) {
        self.dedup.acknowledge(origin, acked_below, self.limits.origins_max);
    }

    /// Whether this start of a node is the one whose commands are taken. A node that finds itself taken for lost must draw a
    /// new incarnation and announce it.
    #[must_use]
    pub fn is_live(&self, origin: Origin) -> bool {
        self.dedup.is_live(origin)
    }

    /// A node has restarted: requests queued by its earlier incarnations are dropped.
    pub(crate) fn origin_start(&mut self, origin: Origin, out: &mut Applied) -> Reply {
        // The table has been told on admission. An announcement that comes late, after a newer one, changes nothing.
        if self.is_live(origin) {
            self.begin_dropping(out);
        }
        Reply::OK
    }

    pub(crate) fn origin_gone(&mut self, origin: Origin, out: &mut Applied) -> Reply {
        self.dedup.lose(origin);
        self.settings.behind.forget(origin.node);
        self.begin_dropping(out);
        Reply::OK
    }

    /// Tells watchers. The number rises whether anybody watches or not.
    #[inline]
    pub(crate) fn emit(&mut self, kind: EventKind, slot: LockSlot, owner: EventOwner, out: &mut Applied) {
        if kind == EventKind::Acquired && !out.unsucceeded.is_empty() {
            self.note_successor(slot, &owner, out);
        }
        self.emit_with(kind, None, slot, owner, out);
    }

    #[inline(never)]
    fn note_successor(&self, slot: LockSlot, owner: &EventOwner, out: &mut Applied) {
        let successor = self.fence_in_event(slot, owner);
        let lock = &self.locks[slot];
        for at in out.unsucceeded.remove(&slot).into_iter().flatten() {
            // The record may have been forgotten, and its slot given to another name.
            let loss = &mut out.losses[at];
            if loss.db == lock.db() && loss.resource == lock.name() {
                loss.successor = Some(successor);
            }
        }
    }

    /// Tells watchers of the end of a grant, and its holder, if that did not end it.
    #[inline]
    pub(crate) fn emit_end(&mut self, ending: Ending, slot: LockSlot, owner: EventOwner, out: &mut Applied) {
        let untold = mutant!(LossUntold) && matches!(owner, EventOwner::Several(_));
        if self.wanted.losses && !untold {
            self.note_loss(ending, slot, &owner, out);
        }
        self.emit_with(ending.event(), ending.loss(), slot, owner, out);
    }

    #[inline(never)]
    fn note_loss(&self, ending: Ending, slot: LockSlot, owner: &EventOwner, out: &mut Applied) {
        let lock = &self.locks[slot];
        let (session, user, name) = match *owner {
            EventOwner::Holder => (lock.session(), lock.user(), lock.owner()),
            EventOwner::Several(holder) => {
                let holder = &self.holders[holder];
                (holder.session, holder.user, &*holder.owner)
            }
            EventOwner::Waiter(waiter) => {
                let waiter = &self.waiters[waiter];
                (waiter.session, waiter.user, &*waiter.owner)
            }
        };
        if ending.loss().is_some() {
            out.unsucceeded.entry(slot).or_default().push(out.losses.len());
        }
        out.losses.push(Loss {
            db: lock.db(),
            resource: Bytes::copy_from_slice(lock.name()),
            fence: self.fence_in_event(slot, owner),
            cause: ending.loss(),
            session: self.sessions.get(session).map(|session| session.id),
            user,
            owner: Bytes::copy_from_slice(name),
            mode: lock.mode().unwrap_or(LockMode::Exclusive),
            successor: None,
        });
    }

    /// The grant's own, or the last issued where the event has none.
    #[inline]
    fn fence_in_event(&self, slot: LockSlot, owner: &EventOwner) -> Fence {
        match owner {
            EventOwner::Holder | EventOwner::Waiter(_) => self.locks[slot].fence,
            EventOwner::Several(holder) => self.holders[*holder].fence,
        }
    }

    #[inline]
    fn emit_with(
        &mut self,
        kind: EventKind,
        cause: Option<LossCause>,
        slot: LockSlot,
        owner: EventOwner,
        out: &mut Applied,
    ) {
        let fence = self.fence_in_event(slot, &owner);
        self.event_seq += 1;
        self.digests.event(kind, slot, fence);
        if self.wanted.keys || self.wanted.events {
            self.tell_event(kind, cause, slot, &owner, out);
        }
    }

    #[inline(never)]
    fn tell_event(
        &self,
        kind: EventKind,
        cause: Option<LossCause>,
        slot: LockSlot,
        owner: &EventOwner,
        out: &mut Applied,
    ) {
        if self.wanted.keys {
            self.note_event(kind, slot, out);
        }
        if !self.wanted.events {
            return;
        }
        let fence = self.fence_in_event(slot, owner);
        let lock = &self.locks[slot];
        let (owner, mode, value): (&[u8], _, &[u8]) = match *owner {
            EventOwner::Holder => {
                (lock.owner(), LockMode::Exclusive, self.attached.get(&slot).map_or(&[], |value| value))
            }
            EventOwner::Several(holder) => {
                let holder = &self.holders[holder];
                (&holder.owner, holder.kind.mode(), &holder.value)
            }
            EventOwner::Waiter(waiter) => {
                let waiter = &self.waiters[waiter];
                (&waiter.owner, waiter.kind.mode(), &[])
            }
        };
        out.events.push(Event {
            kind,
            db: lock.db(),
            resource: Bytes::copy_from_slice(lock.name()),
            fence,
            // The owner of a plain key is its value: of a long one, watchers see the beginning.
            owner: Bytes::copy_from_slice(&owner[..owner.len().min(OWNER_BYTES_MAX)]),
            seq: self.event_seq,
            mode,
            value: Bytes::copy_from_slice(value),
            cause,
        });
    }
}

/// Puts a reply where one is that has nothing to drop: `Nil`, which was put there to make the place.
#[inline]
fn put_over(place: &mut Reply, reply: Reply) {
    let before = std::mem::replace(place, reply);
    debug_assert!(matches!(before, Reply::Nil));
    std::mem::forget(before);
}

/// Bytes of replies that may still be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RepliesLeft {
    /// By the command, transaction or script that is being executed.
    pub(crate) command: usize,
    /// By all commands of the entry.
    pub(crate) entry: usize,
}

impl Default for RepliesLeft {
    fn default() -> RepliesLeft {
        RepliesLeft { command: LOGGED_REPLY_BYTES_MAX, entry: ENTRY_REPLIES_BYTES_MAX }
    }
}

/// Whom an event names.
pub(crate) enum EventOwner {
    Holder,
    /// One of several holders.
    Several(HolderSlot),
    Waiter(WaiterSlot),
}
