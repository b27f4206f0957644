//! Looks at the state: `LOCK.INFO`, `LOCK.QUEUE`, `LOCK.SCAN`, `LOCK.SESSION INFO`. Nothing here changes anything, and
//! nothing past its deadline is shown as if it lived, even where its end has not been worked off yet.

use crate::glob;
use crate::grammar::errors;
use crate::machine::history::PastHold;
use crate::machine::locks::lock::Lock;
use crate::machine::locks::several::Hold;
use crate::machine::queue::waiter::Waiter;
use crate::machine::sessions::session::Session;
use crate::machine::settings;
use crate::machine::store::deadlines::NEVER;
use crate::machine::version;
use crate::machine::{Db, LockSlot, Machine, SessionSlot};
use crate::reply::{LockInfo, Reply};
use crate::types::{
    has_passed, Fence, Member, OwnerIdentity, Reason, SessionId, SessionScope, Tier, SCAN_COUNT_MAX,
};
use ::bytes::Bytes;

/// A page ends early where its names are long.
const SCAN_PAGE_BYTES: usize = 512 * 1024;
/// Records one `LOCK.SCAN` looks at: idle ones lie between held ones.
const SCAN_RECORDS_MAX: usize = 10_000;
/// The same at cluster version 1, for each name it may answer.
const SCAN_SLOTS_PER_NAME: usize = 16;
/// Work after which a `LOCK.SCAN` answers what it has: in steps of the pattern, of which a record costs as much as a few.
const SCAN_STEPS_MAX: u64 = 8_000_000;
const STEPS_PER_RECORD: u64 = 32;

/// Sessions of one page, and records it looks at.
const SESSIONS_PAGE_MAX: u64 = 1_000;
const SESSION_RECORDS_MAX: usize = 10_000;

/// A look at the state that changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query<'a> {
    Info {
        db: Db,
        resource: &'a [u8],
        /// A session beyond these is shown as none.
        sessions: SessionScope,
    },
    Queue {
        db: Db,
        resource: &'a [u8],
    },
    Explain {
        db: Db,
        resource: &'a [u8],
        sessions: SessionScope,
    },
    /// What became of one grant. Any holder is found, however many there are: `LOCK.INFO` shows the first of them.
    Grant {
        db: Db,
        resource: &'a [u8],
        by: GrantOf<'a>,
    },
    /// Whether a fence may guard writes: `MODE` where it is that of one of several holders. For marks that live elsewhere.
    FenceKind {
        db: Db,
        resource: &'a [u8],
        fence: Fence,
    },
    /// What a session holds, for `LOCK.NOTIFY ON SESSION`.
    SessionLocks {
        id: SessionId,
        sessions: SessionScope,
    },
    Scan {
        db: Db,
        cursor: u64,
        pattern: Option<&'a [u8]>,
        count: u64,
    },
    Session {
        id: SessionId,
        sessions: SessionScope,
    },
    /// The high-water mark of `FENCE.GET`.
    Mark {
        db: Db,
        resource: &'a [u8],
    },
    /// The names most waited for lately: what this node has seen, not state.
    Contention {
        count: usize,
    },
    /// How the last holds of a name ended: what this node has seen, not state.
    Past {
        db: Db,
        resource: &'a [u8],
    },
    /// Sessions, by pages.
    Sessions {
        cursor: u64,
        count: u64,
        sessions: SessionScope,
    },
    /// All replicated settings, as [`settings::Settings::write`] writes them.
    Settings,
    /// One of them, as text.
    Setting(settings::Setting),
}

/// Which grant of a lock is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantOf<'a> {
    Fence(Fence),
    Owner(OwnerIdentity<'a>),
}

/// What [`Query::Grant`] finds, as the node reads it out of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantState {
    /// It stands. `lease_ms`: how long it was last granted or renewed for; of one without an end of its own, the ttl of its
    /// session; 0 where it has neither.
    Held { fence: Fence, lease_ms: u64 },
    /// It does not. `successor`: the oldest holder by now.
    Ended { reason: Reason, successor: Option<Fence> },
    /// A plain command ended it. Known since cluster version 2, of the grant that ended last.
    Deleted { successor: Option<Fence> },
}

/// How [`GrantState::Deleted`] is told.
const DELETED: &str = "deleted";

impl GrantState {
    fn to_reply(self) -> Reply {
        let ended = |how, successor: Option<Fence>| {
            Reply::Array(vec![how, successor.map_or(Reply::Nil, |fence| Reply::Int(fence.0 as i64))])
        };
        match self {
            GrantState::Held { fence, lease_ms } => Reply::Granted { fence, ttl_ms: lease_ms },
            GrantState::Ended { reason, successor } => ended(Reply::Refused(reason), successor),
            GrantState::Deleted { successor } => ended(Reply::Text(DELETED), successor),
        }
    }

    /// `None`: the state could not be asked.
    #[must_use]
    pub fn read(reply: &Reply) -> Option<GrantState> {
        if let Reply::Granted { fence, ttl_ms } = reply {
            return Some(GrantState::Held { fence: *fence, lease_ms: *ttl_ms });
        }
        let Reply::Array(parts) = reply else { return None };
        let fence = |fence: i64| Some(Fence(fence as u64));
        match parts[..] {
            [Reply::Refused(reason), Reply::Nil] => Some(GrantState::Ended { reason, successor: None }),
            [Reply::Refused(reason), Reply::Int(by)] => {
                Some(GrantState::Ended { reason, successor: fence(by) })
            }
            [Reply::Text(DELETED), Reply::Nil] => Some(GrantState::Deleted { successor: None }),
            [Reply::Text(DELETED), Reply::Int(by)] => Some(GrantState::Deleted { successor: fence(by) }),
            _ => None,
        }
    }
}

impl Machine {
    #[must_use]
    pub fn query(&self, query: Query<'_>) -> Reply {
        self.query_later(query, 0)
    }

    /// The same, asked `late_ms` after the newest stamp: with no entry in between the clock stands still, and times left and
    /// waited would too. Only what is shown of them moves; whether something lives is decided by the log alone.
    #[must_use]
    pub fn query_later(&self, query: Query<'_>, late_ms: u64) -> Reply {
        match query {
            Query::Info { db, resource, sessions } => self.info(db, resource, sessions, late_ms),
            Query::Queue { db, resource } => self.queue(db, resource, late_ms),
            Query::Explain { db, resource, sessions } => self.explain(db, resource, sessions, late_ms),
            Query::Grant { db, resource, by } => self.grant_state(db, resource, by).to_reply(),
            Query::FenceKind { db, resource, fence } => match self.is_fence_of_several(db, resource, fence) {
                true => errors::fence_of_several(fence.0).into(),
                false => Reply::OK,
            },
            Query::SessionLocks { id, sessions } => self.session_locks(id, sessions),
            Query::Scan { db, cursor, pattern, count } => self.scan(db, cursor, pattern, count),
            Query::Session { id, sessions } => self.session_info(id, sessions, late_ms),
            Query::Mark { db, resource } => self.mark_of(db, resource),
            Query::Contention { count } => self.contention(count),
            Query::Past { db, resource } => self.past(db, resource),
            Query::Sessions { cursor, count, sessions } => {
                self.session_page(cursor, count, sessions, late_ms)
            }
            Query::Settings => {
                let mut bytes = Vec::new();
                self.settings.write(&mut bytes);
                Reply::Bulk(bytes.into())
            }
            Query::Setting(name) => Reply::Bulk(self.settings.get(name).into()),
        }
    }

    fn info(&self, db: Db, name: &[u8], sessions: SessionScope, late_ms: u64) -> Reply {
        let mut info = LockInfo {
            resource: Bytes::copy_from_slice(name),
            tier: Tier::Correctness,
            held: false,
            fence: crate::types::Fence(0),
            owner: None,
            session: None,
            ttl_ms: None,
            waiters: 0,
            holders: Some(Vec::new()),
        };
        if let Some(slot) = self.names.find(&self.locks, db, name) {
            let lock = &self.locks[slot];
            info.fence = lock.fence;
            info.waiters = match self.next_due_ms() {
                Some(at_ms) if at_ms <= self.clock.logical_ms => self.live_waiters(lock).count() as u64,
                Some(_) | None => u64::from(lock.queue.len),
            };
            let holders = self.holder_infos(slot, sessions, late_ms);
            if let Some(oldest) = holders.first() {
                info.held = true;
                info.owner = Some(oldest.owner.clone());
                info.session = oldest.session;
                info.ttl_ms = Some(oldest.ttl_ms);
            }
            info.holders = Some(holders);
        }
        Reply::Info(Box::new(info))
    }

    fn queue(&self, db: Db, name: &[u8], late_ms: u64) -> Reply {
        let Some(slot) = self.names.find(&self.locks, db, name) else { return Reply::Array(Vec::new()) };
        let row = |waiter: &Waiter| {
            let waited_ms = self.clock.logical_ms - waiter.since_ms + late_ms;
            Reply::Array(vec![Reply::bulk(&waiter.owner), Reply::Int(waited_ms as i64)])
        };
        Reply::Array(self.live_waiters(&self.locks[slot]).map(row).collect())
    }

    /// The cursor is the number of the next slot to look at. A lock keeps its slot as long as it has a record, so one that
    /// is held from the first call to the last is shown exactly once, on whichever node the calls are answered.
    fn scan(&self, db: Db, cursor: u64, pattern: Option<&[u8]>, count: u64) -> Reply {
        let count = count.clamp(1, SCAN_COUNT_MAX) as usize;
        let from = LockSlot::from_cursor(cursor);
        // In a transaction the reply is logged.
        let records_max = match self.cluster_version() < version::SECOND {
            true => count * SCAN_SLOTS_PER_NAME,
            false => SCAN_RECORDS_MAX,
        };
        let mut names = Vec::new();
        let (mut next, mut steps, mut bytes) = (0, 0, 0);
        for (looked, (slot, lock)) in self.locks.iter_from(from).enumerate() {
            let is_full = names.len() == count || bytes >= SCAN_PAGE_BYTES;
            if is_full || looked == records_max || steps > SCAN_STEPS_MAX {
                next = slot.number();
                break;
            }
            steps += STEPS_PER_RECORD;
            let shown = lock.db() == db
                && self.is_held_now(slot)
                && pattern.is_none_or(|pattern| glob::matches_counted(pattern, lock.name(), &mut steps));
            if shown {
                bytes += lock.name().len();
                names.push(Reply::bulk(lock.name()));
            }
        }
        self.work.count(steps / STEPS_PER_RECORD);
        Reply::Array(vec![Reply::bulk(next.to_string()), Reply::Array(names)])
    }

    fn session_info(&self, id: SessionId, sessions: SessionScope, late_ms: u64) -> Reply {
        let found = self.session_ids.get(&id).map(|slot| &self.sessions[*slot]);
        let is_shown =
            |session: &&Session| sessions.includes(session.user) && !self.has_passed(session.deadline_ms);
        let Some(session) = found.filter(is_shown) else {
            return errors::no_session().into();
        };
        let name = if session.label.is_empty() { Reply::Nil } else { Reply::bulk(&session.label) };
        let left_ms = (session.deadline_ms - self.clock.logical_ms).saturating_sub(late_ms);
        Reply::Map(vec![
            (Reply::Text("id"), Reply::bulk(session.id.to_string())),
            (Reply::Text("name"), name),
            (Reply::Text("ttl"), Reply::Int(session.ttl_ms as i64)),
            (Reply::Text("left"), Reply::Int(left_ms as i64)),
            (Reply::Text("locks"), Reply::Int(i64::from(session.locks.len + session.holders.len))),
            (Reply::Text("waiters"), Reply::Int(i64::from(session.waiters.len))),
            (Reply::Text("policy"), Reply::Text(session.policy.as_str())),
            (Reply::Text("age"), Reply::Int(session.age.asked as i64)),
        ])
    }

    fn grant_state(&self, db: Db, name: &[u8], by: GrantOf<'_>) -> GrantState {
        let Some(slot) = self.names.find(&self.locks, db, name) else {
            return GrantState::Ended { reason: Reason::NotOwner, successor: None };
        };
        let hold = match by {
            GrantOf::Fence(fence) => self.hold_with_fence(slot, fence),
            GrantOf::Owner(asker) => self.hold_of_owner(slot, asker),
        };
        let standing = hold.filter(|hold| self.held_until_ms(db, name, self.fence_of(*hold)).is_some());
        if let Some(hold) = standing {
            return GrantState::Held { fence: self.fence_of(hold), lease_ms: self.lease_of(hold) };
        }
        let reason = match by {
            GrantOf::Fence(fence) => self.reason_against(db, name, fence),
            GrantOf::Owner(_) => Reason::NotOwner,
        };
        let lock = &self.locks[slot];
        let successor = match lock.is_several() {
            _ if !self.is_held_now(slot) => None,
            true => self.oldest_holder(slot).map(|holder| self.holders[holder].fence),
            false => Some(lock.fence),
        };
        match by {
            GrantOf::Fence(fence) if lock.was_deleted(fence) => GrantState::Deleted { successor },
            GrantOf::Fence(_) | GrantOf::Owner(_) => GrantState::Ended { reason, successor },
        }
    }

    /// Whether anybody holds a lock in another mode than exclusive.
    #[must_use]
    pub fn knows_several(&self) -> bool {
        self.has_several()
    }

    /// How long a hold lasts without a renewal: its own time, or that of its session.
    fn lease_of(&self, hold: Hold) -> u64 {
        let own_ms = match hold {
            Hold::Exclusive(slot) => self.locks[slot].granted_ms(),
            Hold::Several(holder) => {
                let holder = &self.holders[holder];
                (holder.deadline_ms != NEVER).then(|| holder.granted.ms())
            }
        };
        let session_ms = self.sessions.get(self.session_of_hold(hold)).map(|session| session.ttl_ms);
        own_ms.into_iter().chain(session_ms).min().unwrap_or(0)
    }

    /// The last endings of a name, newest first.
    fn past(&self, db: Db, name: &[u8]) -> Reply {
        let slot = self.names.find(&self.locks, db, name);
        let past = slot.map(|slot| self.history.past_of(slot)).unwrap_or_default();
        let row = |past: &PastHold| {
            Reply::Map(vec![
                (Reply::Text("fence"), Reply::Int(past.fence.0 as i64)),
                (Reply::Text("ended"), Reply::Text(past.ending.as_str())),
                (Reply::Text("at_ms"), Reply::Int(past.at_ms as i64)),
            ])
        };
        Reply::Array(past.iter().map(row).collect())
    }

    /// `[cursor, [session, …]]`, as [`Machine::scan`] does it for locks.
    fn session_page(&self, cursor: u64, count: u64, sessions: SessionScope, late_ms: u64) -> Reply {
        let count = count.clamp(1, SESSIONS_PAGE_MAX) as usize;
        let (mut rows, mut next) = (Vec::new(), 0);
        for (looked, (slot, session)) in self.sessions.iter_from(SessionSlot::from_cursor(cursor)).enumerate()
        {
            if rows.len() == count || looked == SESSION_RECORDS_MAX {
                next = slot.number();
                break;
            }
            if sessions.includes(session.user) && !self.has_passed(session.deadline_ms) {
                rows.push(self.session_row(slot, session, sessions, late_ms));
            }
        }
        Reply::Array(vec![Reply::bulk(next.to_string()), Reply::Array(rows)])
    }

    fn session_row(&self, slot: SessionSlot, session: &Session, scope: SessionScope, late_ms: u64) -> Reply {
        let left_ms = (session.deadline_ms - self.clock.logical_ms).saturating_sub(late_ms);
        let label = if session.label.is_empty() { Reply::Nil } else { Reply::bulk(&session.label) };
        let waits_for = self.first_wait(scope, slot);
        let waits_for = waits_for.map_or(Reply::Nil, |(_, lock)| Reply::bulk(self.locks[lock].name()));
        Reply::Map(vec![
            (Reply::Text("id"), Reply::bulk(session.id.to_string())),
            (Reply::Text("user"), Reply::Int(session.user.0 as i64)),
            (Reply::Text("name"), label),
            (Reply::Text("left"), Reply::Int(left_ms as i64)),
            (Reply::Text("locks"), Reply::Int(i64::from(session.locks.len + session.holders.len))),
            (Reply::Text("policy"), Reply::Text(session.policy.as_str())),
            (Reply::Text("waits_for"), waits_for),
        ])
    }

    /// When, on the logical clock, a grant ends that still stands; `u64::MAX` where it has no end of its own.
    #[must_use]
    pub fn held_until_ms(&self, db: Db, name: &[u8], fence: Fence) -> Option<u64> {
        let slot = self.names.find(&self.locks, db, name)?;
        let lock = &self.locks[slot];
        if lock.is_several() {
            let holder = self.holder_index.with_fence(slot, fence)?;
            let stands = !self.is_flushed(lock) && self.is_live_holder(holder);
            return stands.then_some(self.holders[holder].deadline_ms);
        }
        (lock.fence == fence && self.is_held_now(slot)).then_some(lock.deadline_ms())
    }

    /// Why a fence is not, or no longer, the holder's: what a release by it would be told now.
    #[must_use]
    pub fn reason_against(&self, db: Db, name: &[u8], fence: Fence) -> Reason {
        let Some(slot) = self.names.find(&self.locks, db, name) else { return Reason::NotOwner };
        // Its end is due, and in no entry yet.
        if self.hold_with_fence(slot, fence).is_some() {
            return Reason::Expired;
        }
        self.locks[slot].reason_against(fence)
    }

    pub(crate) fn is_held_now(&self, slot: LockSlot) -> bool {
        let lock = &self.locks[slot];
        if lock.is_several() {
            return !self.is_flushed(lock) && self.oldest_holder(slot).is_some();
        }
        lock.is_held()
            && !self.has_passed(lock.deadline_ms())
            && self.lives(lock.session())
            && !self.is_flushed(lock)
    }

    /// Whether a key that is held by the log has ended by this time of the logical clock: its end is in an entry that is not applied yet.
    #[must_use]
    pub fn is_ending(&self, member: Option<Member>, db: Db, key: &[u8], logical_ms: u64) -> bool {
        let Some(slot) = self.names.find(&self.locks, db, key) else { return false };
        // Of several holders the oldest one shows.
        let several = self.locks[slot].is_several().then(|| self.oldest_holder(slot)).flatten();
        let hold = several.map_or(Hold::Exclusive(slot), Hold::Several);
        let session_ends_ms =
            self.sessions.get(self.session_of_hold(hold)).map(|session| session.deadline_ms);
        self.is_held_now(slot)
            && (has_passed(self.ends_for(member, slot), logical_ms)
                || session_ends_ms.is_some_and(|at_ms| has_passed(at_ms, logical_ms)))
    }

    /// Whether a session, if any, is still alive.
    fn lives(&self, session: SessionSlot) -> bool {
        self.sessions.get(session).is_none_or(|session| !self.has_passed(session.deadline_ms))
    }

    pub(crate) fn live_waiters<'a>(&'a self, lock: &'a Lock) -> impl Iterator<Item = &'a Waiter> + 'a {
        let waiters =
            lock.queue.walk(&self.queue_entries).map(|entry| &self.waiters[self.queue_entries[entry].waiter]);
        let dropping = self.sweep.drops_waiters();
        let is_lost = move |waiter: &Waiter| {
            dropping && waiter.requests.iter().all(|pending| pending.id.is_some_and(|id| self.is_lost(id)))
        };
        waiters.filter(move |waiter| {
            waiter.is_live(self.clock.logical_ms) && self.lives(waiter.session) && !is_lost(waiter)
        })
    }
}
