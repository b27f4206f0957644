//! The deterministic lock machine. Everything Tier 2 promises happens here; the simulator runs it too.
//!
//! [`Machine::apply`] and [`Machine::apply_entry`] never wait, and give the same state and the same answers for the same
//! entries. The one way to fail is an entry of another release ([`EntryError`]): nothing of it is applied, and the node stops.
//! Out of the state comes nothing that depends on a clock, on chance, on addresses or on the order of a hash table.
//!
//! # Layout
//!
//! - `command.rs`, `codec.rs`, `entry.rs`: what is applied, and its bytes; `request.rs`: from a client's words to it
//! - `lock.rs`, `waiter.rs`, `session.rs`: the records; `slab.rs`, `list.rs`: where they live
//! - `acquire.rs`, `multi.rs`, `release.rs`, `renew.rs`, `session.rs`, `expire.rs`: one transition each
//! - `queue.rs`: standing in line, and leaving; `serve.rs`: what a free lock does next
//! - `redis.rs`, `keyspace.rs`, `undo.rs`: Redis's commands and scripts on the lock table; `members.rs`: those of the Redlock
//!   listeners; `blocked.rs`: `BLPOP` and its like waiting; `at_once.rs`: lock
//!   commands in a transaction; `noted.rs`: who read what and what changed, for client tracking
//! - `deadlines.rs`: what ends when; `deadlock.rs`: circles of waiting sessions; `dedup.rs`: a retried proposal is applied once; `origins.rs`:
//!   the nodes it knows
//! - `marks.rs`: the high-water marks of `FENCE.*`
//! - `settings.rs`, `behind.rs`: the replicated settings, and which Redis the members have behind them
//! - `sweep.rs`: bulk ends, spread over entries
//! - `memory.rs`: what the state takes in bytes, and `max-memory`
//! - `snapshot.rs`, `restore.rs`: the state as bytes, written between applies; `invariants.rs`: what must always hold
//!
//! # Caveats
//!
//! - [`Limits`] decide answers: all nodes of a cluster must run with the same ones.
//! - How far one entry may move the clock is the stamping leader's business: the machine takes what the stamp says.
//! - A session that waits for a lock of its own is not a circle: another thread of the same client may release it.

mod acquire;
mod at_once;
pub mod behind;
mod blocked;
mod bytes;
pub(crate) mod codec;
pub mod command;
pub mod conditional;
mod deadlines;
mod deadlock;
mod dedup;
pub mod effects;
pub mod entry;
mod expire;
mod invariants;
mod keys_walk;
mod keyspace;
mod limits;
mod list;
mod lock;
pub mod marks;
mod members;
mod memory;
mod multi;
mod noted;
mod origins;
#[cfg(feature = "scripts")]
pub(crate) mod overlay;
mod query;
mod queue;
mod redis;
mod release;
mod renew;
pub mod request;
mod restore;
mod serve;
mod session;
pub mod settings;
mod slab;
mod snapshot;
mod stats;
mod sweep;
mod undo;
mod waiter;
pub mod work;

use crate::event::{Event, EventKind};
use crate::grammar::errors;
use crate::keyspace::Value;
use crate::limits::{ENTRY_REPLIES_BYTES_MAX, LOGGED_REPLY_BYTES_MAX};
use crate::mutants::{on, Mutant};
use crate::reply::Reply;
use crate::script::Scripts;
use crate::types::{Fence, Origin, RequestId, SessionId, Stamp, FENCE_BOUND, OWNER_BYTES_MAX};
use ::bytes::Bytes;
pub use at_once::check_in_transaction;
use blocked::Blocked;
pub use command::{Command, Db, Watched, Words};
use deadlines::Deadlines;
use dedup::{Dedup, Seen};
pub use entry::{check_command, entry_stamp, EntryBuilder, EntryError, ENTRY_VERSION};
pub use keys_walk::KeysWalk;
#[cfg(feature = "scripts")]
pub(crate) use keyspace::Clash;
pub use limits::Limits;
use list::List;
use lock::{Lock, Names};
use members::Grants;
pub use noted::Noted;
pub use origins::{Fate, OriginState};
pub use redis::is_read;
use redis::Caller;
pub use restore::{Checker, RestoreError, Restorer};
use rustc_hash::FxBuildHasher;
use session::Session;
use slab::Slab;
use stats::Counters;
pub use stats::Stats;
use std::collections::VecDeque;
use sweep::Sweep;
use waiter::{QueuedOwners, Seat, Waiter};

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
    pub noted: Vec<Noted>,
    /// Large values that are no more. To drop them takes a while, so the owner may do it elsewhere.
    pub garbage: Vec<Value>,
}

impl Applied {
    pub fn clear(&mut self) {
        self.replies.clear();
        self.events.clear();
        self.published.clear();
        self.noted.clear();
        self.garbage.clear();
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
}

impl Wanted {
    pub const ALL: Wanted = Wanted { events: true, messages: true, keys: true };
}

/// A look at the state that changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query<'a> {
    Info {
        db: Db,
        resource: &'a [u8],
    },
    Queue {
        db: Db,
        resource: &'a [u8],
    },
    Scan {
        db: Db,
        cursor: u64,
        pattern: Option<&'a [u8]>,
        count: u64,
    },
    Session {
        id: SessionId,
    },
    /// The high-water mark of `FENCE.GET`.
    Mark {
        db: Db,
        resource: &'a [u8],
    },
    /// All replicated settings, as [`settings::Settings::write`] writes them.
    Settings,
    /// One of them, as text.
    Setting(settings::Setting),
}

/// No fence runs ahead of this wall time (the year 2112), which leaves the other half of the fences to the counters.
const WALL_US_MAX: u64 = FENCE_BOUND / 2;
/// The logical clock stops here, so that a hostile stamp cannot make times overflow.
const LOGICAL_MS_MAX: u64 = 1 << 60;

type HashMap<K, V> = hashbrown::HashMap<K, V, FxBuildHasher>;

/// The state of all locks, sessions and queues.
pub struct Machine {
    /// The newest stamp: term, logical time, wall time. None of the three ever falls. The wall time serves fences alone.
    clock: Stamp,
    /// The wall time of the newest entry as its leader stamped it; it may fall. Absolute times in commands are read
    /// against it, so that one leader with a wrong clock does no lasting harm.
    entry_wall_us: u64,
    /// At least the last fence of every record that was forgotten.
    floor: Fence,
    event_seq: u64,
    counters: Counters,

    locks: Slab<Lock>,
    /// Free locks in the order they became so, oldest first.
    idle: List,
    seats: Slab<Seat>,
    waiters: Slab<Waiter>,
    sessions: Slab<Session>,
    dedup: Dedup,
    /// What keys hold that are no strings, by the lock's slot. Persistent: a copy costs nothing.
    values: imbl::OrdMap<u32, Value>,
    /// When a collection was last changed in place, by the lock's slot: the number of the event. For `WATCH`.
    versions: imbl::OrdMap<u32, u64>,
    /// Which Redlock members have granted a key, by the lock's slot.
    grants: imbl::OrdMap<u32, Grants>,
    scripts: Scripts,
    blocked: Blocked,
    /// Worked out from the records: what they take in bytes.
    memory: memory::Memory,
    settings: settings::Settings,
    sweep: Sweep,
    marks: marks::Marks,

    // Worked out from the above.
    names: Names,
    queued_owners: QueuedOwners,
    requests: HashMap<RequestId, u32>,
    session_ids: HashMap<SessionId, u32>,
    deadlines: Deadlines,

    /// The instant that is being worked off: the clock, or an earlier deadline of which it is the turn.
    instant_ms: u64,
    /// Locks that became free or got a new head of their queue. Empty between commands.
    to_serve: VecDeque<u32>,
    /// What the entry that is being applied may still do of work that many commands can cause.
    blocked_tries_left: usize,
    session_ends_left: usize,
    deadlock_steps_left: usize,
    work: work::Work,
    snapshot: Option<snapshot::Progress>,

    // Not state.
    reply_room: RepliesLeft,
    /// The request that is being executed.
    acting: Option<RequestId>,
    limits: Limits,
    wanted: Wanted,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::new()
    }
}

impl Machine {
    #[must_use]
    pub fn new() -> Machine {
        Machine::with_limits(Limits::default())
    }

    #[must_use]
    pub fn with_limits(limits: Limits) -> Machine {
        Machine {
            clock: Stamp::default(),
            entry_wall_us: 0,
            floor: Fence(0),
            event_seq: 0,
            counters: Counters::default(),
            locks: Slab::default(),
            idle: List::EMPTY,
            seats: Slab::default(),
            waiters: Slab::default(),
            sessions: Slab::default(),
            dedup: Dedup::default(),
            values: imbl::OrdMap::new(),
            versions: imbl::OrdMap::new(),
            grants: imbl::OrdMap::new(),
            scripts: Scripts::default(),
            blocked: Blocked::default(),
            memory: memory::Memory::default(),
            settings: settings::Settings::default(),
            sweep: Sweep::default(),
            marks: marks::Marks::default(),
            names: Names::default(),
            queued_owners: QueuedOwners::default(),
            requests: HashMap::default(),
            session_ids: HashMap::default(),
            deadlines: Deadlines::default(),
            instant_ms: 0,
            to_serve: VecDeque::new(),
            blocked_tries_left: 0,
            session_ends_left: 0,
            deadlock_steps_left: 0,
            work: work::Work::default(),
            snapshot: None,
            reply_room: RepliesLeft::default(),
            acting: None,
            limits,
            wanted: Wanted::default(),
        }
    }

    /// Whether events are collected. Their `seq` rises either way.
    pub fn set_watched(&mut self, watched: bool) {
        self.wanted.events = watched;
    }

    /// What is collected besides replies.
    pub fn set_wanted(&mut self, wanted: Wanted) {
        self.wanted = wanted;
    }

    #[must_use]
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The replicated clock.
    #[must_use]
    pub fn logical_ms(&self) -> u64 {
        self.clock.logical_ms
    }

    /// The newest stamp applied: a new leader goes on from it.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.clock
    }

    /// When, on the logical clock, an entry is needed next: a lock, wait or session ends then, or more of a bulk end is left
    /// to do. The leader proposes `Expire` then.
    #[must_use]
    pub fn next_deadline_ms(&self) -> Option<u64> {
        match self.sweep.is_over() && !self.blocked.has_ready() {
            true => self.next_end_ms(),
            false => Some(self.clock.logical_ms),
        }
    }

    fn next_end_ms(&self) -> Option<u64> {
        let lock_or_wait = self.deadlines.next().map(|(at_ms, _, _)| at_ms);
        [lock_or_wait, self.blocked.next_deadline_ms()].into_iter().flatten().min()
    }

    /// Whether an entry with this stamp would first end something, or would let blocked clients try that an earlier entry had no
    /// more room for: not what a script has seen. So an `Expire` goes first.
    #[must_use]
    pub fn has_due(&self, stamp: Stamp) -> bool {
        let now_ms = self.clock_after(stamp).logical_ms;
        self.blocked.has_ready() || self.next_end_ms().is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// The clock that an entry with this stamp is applied at.
    pub(crate) fn clock_after(&self, stamp: Stamp) -> Stamp {
        if stamp.term < self.clock.term {
            return self.clock;
        }
        Stamp {
            term: stamp.term,
            logical_ms: self.clock.logical_ms.max(stamp.logical_ms.min(LOGICAL_MS_MAX)),
            wall_us: self.clock.wall_us.max(stamp.wall_us.min(WALL_US_MAX)),
        }
    }

    /// The wall clock that absolute times are read against in an entry with this stamp.
    pub(crate) fn entry_wall_us_after(&self, stamp: Stamp) -> u64 {
        match stamp.term >= self.clock.term && stamp.logical_ms >= self.clock.logical_ms {
            true => stamp.wall_us.min(WALL_US_MAX),
            false => self.entry_wall_us,
        }
    }

    /// Since when the oldest record of a free lock has been idle. `Expire` forgets it once that is long enough ago.
    #[must_use]
    pub fn oldest_idle_ms(&self) -> Option<u64> {
        self.locks.get(self.idle.head).map(|lock| lock.at_ms)
    }

    /// Applies one command. Replies and events are appended to `out`.
    pub fn apply(&mut self, stamp: Stamp, id: Option<RequestId>, command: Command<'_>, out: &mut Applied) {
        self.begin(stamp, out);
        self.run(id, command, out);
        self.finish(out);
    }

    /// When the commands of an entry are through: some of what bulk ends have left.
    fn finish(&mut self, out: &mut Applied) {
        self.sweep_some(out);
        self.serve_blocked(out);
        self.check_after_apply();
    }

    /// Moves the clock by the rules of stamps, and ends what is due.
    fn begin(&mut self, stamp: Stamp, out: &mut Applied) {
        self.entry_wall_us = self.entry_wall_us_after(stamp);
        self.clock = self.clock_after(stamp);
        self.work.begin_entry();
        self.blocked_tries_left = self.limits.due_per_entry_max;
        self.session_ends_left = self.limits.session_ends_per_entry_max;
        self.deadlock_steps_left = self.limits.deadlock_steps_per_entry_max;
        self.reply_room = RepliesLeft::default();
        self.end_due(out);
        self.end_due_blocked(out);
    }

    fn run(&mut self, id: Option<RequestId>, command: Command<'_>, out: &mut Applied) {
        if self.admit(id, &command, out) {
            self.execute(id, command, out);
        }
    }

    /// Whether a request is to be executed now. One met before gets its remembered answer, if it has one.
    fn admit(&mut self, id: Option<RequestId>, command: &Command<'_>, out: &mut Applied) -> bool {
        if let Command::OriginStart { origin } = command {
            // A new start's own first word would otherwise be taken for one of a start that is no more.
            self.dedup.start(*origin, self.limits.origins_max);
        }
        let Some(id) = id else { return true };
        match self.dedup.look(id, self.limits.origins_max) {
            // Still queued: the grant will answer.
            Seen::New => !self.is_waiting(id),
            Seen::Before(_) if on(Mutant::RepliesNotRemembered) => true,
            Seen::Before(reply) => {
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

    fn execute(&mut self, id: Option<RequestId>, command: Command<'_>, out: &mut Applied) {
        self.acting = id;
        self.work.begin_command(match &command {
            // One key is compared and written: bounded by its bytes.
            Command::Effects(_) | Command::Conditional(_) => u64::MAX,
            _ => work::WORK_PER_COMMAND_MAX,
        });
        self.reply_room.command = LOGGED_REPLY_BYTES_MAX;
        let reply = match command {
            Command::Acquire { db, resource, ttl_ms, wait_ms, owner, session } => {
                let terms = acquire::Terms { id, ttl_ms, wait_ms, owner, session };
                self.acquire(db, resource, &terms, out)
            }
            Command::MAcquire { db, resources, ttl_ms, wait_ms, owner, session } => {
                let terms = acquire::Terms { id, ttl_ms, wait_ms, owner, session };
                self.acquire_many(db, &resources, &terms, out)
            }
            Command::Release { db, resource, fence } => Some(self.release(db, resource, fence, out)),
            Command::MRelease { db, pairs } => Some(self.release_many(db, &pairs, out)),
            Command::ForceRelease { db, resource } => Some(self.force_release(db, resource, out)),
            Command::Renew { db, resource, fence, ttl_ms } => {
                Some(self.renew(db, resource, fence, ttl_ms, out))
            }
            Command::SessionOpen { id, ttl_ms, label } => Some(self.session_open(id, ttl_ms, label, out)),
            Command::SessionKeepAlive { id } => Some(self.session_keep_alive(id, out)),
            Command::SessionClose { id } => Some(self.session_close(id, out)),
            Command::SessionsTouch { ids } => Some(self.sessions_touch(&ids, out)),
            Command::SessionsOrphan { ids, grace_ms } => Some(self.sessions_orphan(&ids, grace_ms, out)),
            Command::Cancel { request } => Some(self.cancel(request, out)),
            Command::Expire { idle_ms } => Some(self.expire(idle_ms)),
            Command::OriginStart { origin } => Some(self.origin_start(origin, out)),
            Command::OriginGone { origin } => Some(self.origin_gone(origin, out)),
            Command::Settings(command) => Some(self.change_settings(command)),
            Command::FenceCheck { db, resource, fence } => Some(self.fence_check(db, resource, fence)),
            Command::FenceCall { db, resp, resource, fence, argv } => {
                Some(self.fence_call(Caller { db, resp, member: None }, resource, fence, &argv, out))
            }
            Command::Redis { db, resp, member, argv } => {
                self.redis(id, Caller { db, resp, member }, &argv, out)
            }
            Command::Transaction { db, resp, member, watched, commands } => {
                Some(self.transaction(Caller { db, resp, member }, &watched, &commands, out))
            }
            Command::Conditional(conditional) => Some(self.conditional(&conditional, out)),
            Command::Effects(effects) => Some(self.effects(effects, out)),
        };
        if let Some(reply) = reply {
            self.answer(id, reply, out);
        }
        self.serve_all(out);
        self.serve_blocked(out);
        self.forget_for_room();
        self.acting = None;
    }

    /// Sends a reply off and remembers it.
    fn answer(&mut self, id: Option<RequestId>, reply: Reply, out: &mut Applied) {
        if matches!(reply, Reply::Nil | Reply::Refused(_) | Reply::Error(_)) {
            self.counters.refusals += 1;
        }
        let Some(id) = id else { return };
        // Large replies come from reads inside scripts; to keep them all would be to keep the state many times.
        let forgotten = redis::is_large(&reply).then(|| errors::reply_forgotten().into());
        let kept = forgotten.as_ref().unwrap_or(&reply);
        let max_memory = self.max_memory_bytes();
        self.dedup.remember(id, kept, self.limits.remembered_per_origin_max, max_memory);
        out.replies.push((id, reply));
    }

    fn acknowledge(&mut self, origin: Origin, acked_below: u64) {
        self.dedup.acknowledge(origin, acked_below, self.limits.origins_max);
    }

    /// Whether this start of a node is the one whose commands are taken. A node that finds itself taken for lost must draw a
    /// new incarnation and announce it.
    #[must_use]
    pub fn is_live(&self, origin: Origin) -> bool {
        self.dedup.is_live(origin)
    }

    /// A node came up anew: what its earlier starts left in queues goes.
    fn origin_start(&mut self, origin: Origin, out: &mut Applied) -> Reply {
        // The table has been told on admission. An announcement that comes late, after a newer one, changes nothing.
        if self.is_live(origin) {
            self.begin_dropping(out);
        }
        Reply::OK
    }

    fn origin_gone(&mut self, origin: Origin, out: &mut Applied) -> Reply {
        self.dedup.lose(origin);
        self.settings.behind.forget(origin.node);
        self.begin_dropping(out);
        Reply::OK
    }

    /// Tells watchers. The number rises whether anybody watches or not.
    fn emit(&mut self, kind: EventKind, slot: u32, owner: EventOwner, out: &mut Applied) {
        self.event_seq += 1;
        if self.wanted.keys {
            self.note_event(kind, slot, out);
        }
        if !self.wanted.events {
            return;
        }
        let lock = &self.locks[slot];
        let owner = match owner {
            EventOwner::Holder => lock.owner(),
            EventOwner::Waiter(waiter) => &self.waiters[waiter].owner,
        };
        out.events.push(Event {
            kind,
            db: lock.db(),
            resource: Bytes::copy_from_slice(lock.name()),
            fence: lock.fence,
            // The owner of a plain key is its value: of a long one, watchers see the beginning.
            owner: Bytes::copy_from_slice(&owner[..owner.len().min(OWNER_BYTES_MAX)]),
            seq: self.event_seq,
        });
    }
}

/// Bytes of replies that may still be given.
#[derive(Clone, Copy, Debug)]
struct RepliesLeft {
    /// By the command, transaction or script that is being executed.
    command: usize,
    /// By all commands of the entry.
    entry: usize,
}

impl Default for RepliesLeft {
    fn default() -> RepliesLeft {
        RepliesLeft { command: LOGGED_REPLY_BYTES_MAX, entry: ENTRY_REPLIES_BYTES_MAX }
    }
}

/// Whom an event names.
enum EventOwner {
    Holder,
    Waiter(u32),
}
