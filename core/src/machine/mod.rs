//! The deterministic lock machine. Everything Tier 2 promises happens here; the simulator runs it too.
//!
//! [`Machine::apply`] and [`Machine::apply_entry_at`] never wait, and give the same state and the same answers for the same
//! entries. The one way to fail is an entry of another release ([`EntryError`]): nothing of it is applied, and the node stops.
//! Out of the state comes nothing that depends on a clock, on chance, on addresses or on the order of a hash table.
//!
//! # Layout
//!
//! - `apply.rs`: one entry, one command at a time; `query.rs`, `explain.rs`: reads; `history.rs`: recent holds and waits, for them; `tally.rs`: counts for metrics
//! - `log/`: what an entry holds ([`command`]), its bytes, and the way from a client's request to it
//! - `locks/`: the record of a lock and its transitions; the high-water marks of `FENCE.*`
//! - `queue/`: waiters: joining and leaving a queue, serving the first of it
//! - `sessions/`: sessions, deadlocks between them, and the policies against those
//! - `keys/`: Redis's commands on the lock table, Redlock members, blocked clients, key accesses for client tracking
//! - `overlay/`: what a script sees and writes while it runs on the leader
//! - `digest/`: digests of answers and state, and the comparison of what the voters report
//! - `requests/`: a retried proposal is applied once; the nodes it comes from
//! - `settings/`: the replicated settings, and which upstream Redis the members have
//! - `store/`: slabs and lists, deadlines, memory in use against `max-memory`
//! - `snapshot/`: the state as bytes, restored and checked; `invariants.rs`: what must always hold
//! - `version.rs`: the cluster version: what this program can run, what the cluster runs, what each command needs
//! - `sweep.rs`: bulk ends spread over entries; `work.rs`: bounded work per command; `limits.rs`, `stats.rs`
//!
//! # Caveats
//!
//! - [`Limits`] decide answers: all nodes of a cluster must run with the same ones.
//! - How far one entry may move the clock is the stamping leader's business: the machine takes what the stamp says.
//! - A session that waits for a lock of its own is not a circle: another thread of the same client may release it.

mod apply;
mod cost;
pub mod digest;
mod explain;
mod history;
mod keys;
mod limits;
mod locks;
pub(crate) mod log;
#[cfg(feature = "scripts")]
pub(crate) mod overlay;
mod query;
mod queue;
mod requests;
mod sessions;
pub mod settings;
mod snapshot;
mod stats;
mod store;
mod sweep;
pub mod tally;
pub mod version;
pub mod work;

use crate::keyspace::Value;
use crate::script::Scripts;
use crate::types::{has_passed, passed_from_ms, Fence, RequestId, SessionId, Stamp, UserTag, FENCE_BOUND};
pub use apply::{AdminAct, Applied, Loss, Wanted};
use apply::{EventOwner, RepliesLeft};
pub use explain::CONTENDED_MAX;
#[cfg(feature = "scripts")]
pub(crate) use keys::adapter::Clash;
use keys::blocked::Blocked;
pub use keys::key_accesses::KeyAccess;
pub use keys::keys_walk::KeysWalk;
pub use keys::lock_commands::check_in_transaction;
use keys::members::Grants;
pub use keys::redis::is_read;
pub use limits::Limits;
use locks::holder::{Holder, HolderIndex};
use locks::lock::{Lock, Names};
pub use locks::marks;
pub use log::codec::put_user;
pub use log::command::{Command, Db, OfUser, Watched, Words};
pub use log::entry::{entry_stamp, EntryBuilder, EntryError};
pub use log::{command, conditional, effects, request};
pub use query::{GrantOf, GrantState, Query};
use queue::waiter::{QueueEntry, QueuedOwners, Waiter};
use requests::dedup::Dedup;
pub use requests::origins::{Fate, OriginState};
use rustc_hash::FxBuildHasher;
use sessions::session::Session;
pub use settings::upstream_identity;
pub use snapshot::refound::{Contents, OpenEndedLock, RefoundError, Refounded, FENCE_MARGIN_US};
pub use snapshot::restore::{Checker, RestoreError, Restorer};
use stats::Counters;
pub use stats::Stats;
use std::cell::Cell;
use std::collections::VecDeque;
use store::deadlines::Deadlines;
use store::list::List;
use store::memory;
use store::slab::Slab;
use store::slot::Slot;
use sweep::Sweep;

/// No fence runs ahead of this wall time (the year 2112), which leaves the other half of the fences to the counters.
const WALL_US_MAX: u64 = FENCE_BOUND / 2;
/// The logical clock stops here, so that a hostile stamp cannot make times overflow.
const LOGICAL_MS_MAX: u64 = 1 << 60;

type LockSlot = Slot<Lock>;
type QueueEntrySlot = Slot<QueueEntry>;
type WaiterSlot = Slot<Waiter>;
type SessionSlot = Slot<Session>;
type HolderSlot = Slot<Holder>;

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
    idle: List<Lock>,
    queue_entries: Slab<QueueEntry>,
    waiters: Slab<Waiter>,
    sessions: Slab<Session>,
    /// Sessions opened since cluster version 2: the age of the next.
    sessions_opened: u64,
    /// Holders of locks in other modes than exclusive.
    holders: Slab<Holder>,
    /// VALUE of exclusive grants that have one, by the lock's slot.
    attached: imbl::OrdMap<LockSlot, Box<[u8]>>,
    dedup: Dedup,
    /// What keys hold that are no strings, by the lock's slot. Persistent: a copy costs nothing.
    values: imbl::OrdMap<LockSlot, Value>,
    /// When a collection was last changed in place, by the lock's slot: the number of the event. For `WATCH`.
    versions: imbl::OrdMap<LockSlot, u64>,
    /// Which Redlock members have granted a key, by the lock's slot.
    grants: imbl::OrdMap<LockSlot, Grants>,
    scripts: Scripts,
    blocked: Blocked,
    /// Worked out from the records: what they take in bytes.
    memory: memory::Memory,
    settings: settings::Settings,
    upgrade: version::Upgrade,
    #[cfg(feature = "next-version")]
    next_count: u64,
    sweep: Sweep,
    marks: marks::Marks,
    digests: digest::Digests,

    // Worked out from the above.
    names: Names,
    queued_owners: QueuedOwners,
    holder_index: HolderIndex,
    requests: HashMap<RequestId, WaiterSlot>,
    session_ids: HashMap<SessionId, SessionSlot>,
    /// How many sessions a user has. Users without any, and `default`, are not in it.
    sessions_of: HashMap<UserTag, usize>,
    deadlines: Deadlines,

    /// The instant that is being worked off: the clock, or an earlier deadline of which it is the turn.
    instant_ms: u64,
    /// Locks that became free or got a new head of their queue. Empty between commands.
    to_serve: VecDeque<LockSlot>,
    /// What the entry that is being applied may still do of work that many commands can cause.
    blocked_tries_left: usize,
    session_ends_left: usize,
    deadlock_steps_left: usize,
    wound_steps_left: Cell<usize>,
    work: work::Work,
    snapshot: Option<snapshot::write::Progress>,

    // Not state.
    history: history::History,
    reply_room: RepliesLeft,
    /// The request that is being executed.
    acting: Option<RequestId>,
    /// The user of its client.
    acting_user: UserTag,
    limits: Limits,
    /// The cluster versions this node can run.
    known_versions: version::VersionRange,
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
            queue_entries: Slab::default(),
            waiters: Slab::default(),
            sessions: Slab::default(),
            sessions_opened: 0,
            holders: Slab::default(),
            attached: imbl::OrdMap::new(),
            dedup: Dedup::default(),
            values: imbl::OrdMap::new(),
            versions: imbl::OrdMap::new(),
            grants: imbl::OrdMap::new(),
            scripts: Scripts::default(),
            blocked: Blocked::default(),
            memory: memory::Memory::default(),
            settings: settings::Settings::default(),
            upgrade: version::Upgrade::default(),
            #[cfg(feature = "next-version")]
            next_count: 0,
            sweep: Sweep::default(),
            marks: marks::Marks::default(),
            digests: digest::Digests::default(),
            names: Names::default(),
            queued_owners: QueuedOwners::default(),
            holder_index: HolderIndex::default(),
            requests: HashMap::default(),
            session_ids: HashMap::default(),
            sessions_of: HashMap::default(),
            deadlines: Deadlines::default(),
            instant_ms: 0,
            to_serve: VecDeque::new(),
            blocked_tries_left: 0,
            session_ends_left: 0,
            deadlock_steps_left: 0,
            wound_steps_left: Cell::new(0),
            work: work::Work::default(),
            snapshot: None,
            history: history::History::default(),
            reply_room: RepliesLeft::default(),
            acting: None,
            acting_user: UserTag::DEFAULT,
            limits,
            known_versions: version::VersionRange::PROGRAM,
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

    /// When, on the logical clock, an entry is needed next: the deadline of a lock, wait or session has passed from then on, or
    /// more of a bulk end is left to do. The leader proposes `Expire` then.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        match self.sweep.is_over() && !self.blocked.has_ready() {
            true => self.next_end_ms(),
            false => Some(self.clock.logical_ms),
        }
    }

    /// Whether a deadline has passed by the replicated clock.
    #[inline]
    pub(crate) fn has_passed(&self, deadline_ms: u64) -> bool {
        has_passed(deadline_ms, self.clock.logical_ms)
    }

    /// The first millisecond at which the next deadline has passed.
    #[must_use]
    pub fn next_end_ms(&self) -> Option<u64> {
        let lock_or_wait = self.deadlines.next().map(|(at_ms, _)| at_ms);
        [lock_or_wait, self.blocked.next_deadline_ms()].into_iter().flatten().min().map(passed_from_ms)
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
            true if crate::mutant!(TimesByRatchet) => stamp.wall_us.max(self.clock.wall_us).min(WALL_US_MAX),
            true => stamp.wall_us.min(WALL_US_MAX),
            false => self.entry_wall_us,
        }
    }

    /// Since when the oldest record of a free lock has been idle. `Expire` forgets it once that is long enough ago.
    #[must_use]
    pub fn oldest_idle_ms(&self) -> Option<u64> {
        self.locks.get(self.idle.head).and_then(Lock::idle_since_ms)
    }
}
