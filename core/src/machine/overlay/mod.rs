//! A keyspace over the machine that never changes it: where the leader runs scripts.
//!
//! Reads look at a private map of changed keys first, then at the machine. Writes go into the map. What a write answers
//! here is what it will answer when it is applied to the same state: the rules are those of `keys/adapter.rs` and
//! `keys/members.rs`, over one key's record at a time. Fences, events, queues and counters are apply's business.
//!
//! An overlay is thrown away after its run. Nothing has to be undone.
//!
//! # Layout
//!
//! - `mod.rs`: the overlay and its looks at keys; `writing.rs`: its changes
//! - `walking.rs`: `KEYS`, `SCAN`, `DBSIZE`, `FLUSHALL`, and the reading `LOCK.*` commands
//!
//! # Caveats
//!
//! - Where a run would need a record that the machine could only make by forgetting an idle one, or not at all, the whole
//!   run is over ([`Overlay::given_up`]): which records apply would forget is not worked out here. The same holds for every limit that
//!   depends on more than the keys a command names (memory, work, a member's flush): its refusal is never logged as a command's result,
//!   because apply does not look at these limits.
//! - A key that was flushed, is not swept yet and has waiters belongs to the first of them. What a run that met one came to must not be
//!   logged ([`Overlay::touched`] names such keys): they are ended and handed over first.

mod walking;
mod writing;

use crate::keyspace::table::Row;
use crate::keyspace::{errors, Clock, Deadline, Keys, Value, View};
use crate::machine::keys::adapter::{Clash, MEMBER_FLUSH_MAX};
use crate::machine::keys::members::Grants;
use crate::machine::log::command::Db;
use crate::machine::store::deadlines::NEVER;
use crate::machine::work::Work;
use crate::machine::{LockSlot, Machine};
use crate::reply::{Refusal, Reply};
use crate::types::{Fence, Member, SessionScope, Stamp};
use ::bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Keys with their databases.
type Places = Vec<(Db, Bytes)>;

/// Names by database.
type Names = BTreeMap<Db, BTreeSet<Bytes>>;

/// A key as the run has left it.
#[derive(Clone)]
struct Entry {
    /// `None`: the run ended it.
    holder: Option<Holder>,
    /// The fence it will have, for `LOCK.INFO`.
    fence: Fence,
}

#[derive(Clone)]
struct Holder {
    value: Value,
    at_ms: u64,
    grants: Option<Grants>,
}

/// What a run has changed. A copy costs nothing.
#[derive(Clone, Default)]
pub(crate) struct Changes {
    by_db: imbl::OrdMap<Db, imbl::OrdMap<Bytes, Entry>>,
    /// Databases of which nothing in the machine counts any more.
    flushed: imbl::OrdSet<Db>,
    all_flushed: bool,
    /// Bytes by which the state grows. A flush gives nothing back: its records go later.
    grown: i64,
}

/// Why a run is over: a limit that depends on more than the keys it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// No record is free.
    Records,
    /// `max-memory`.
    Memory,
    /// It did more than one logged command may.
    Work,
    /// A member's flush has too many records to look at.
    Flush,
}

/// What an entry will have taken of the limits when the next of its scripts is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Records that are made.
    pub records: usize,
    /// Keys that are written, and may be free afterwards.
    pub written: usize,
    /// Bytes by which the state grows.
    pub bytes: u64,
}

/// What a run depended on and did, key by key.
pub(crate) struct Looked {
    /// All keys.
    pub(crate) everything: bool,
    pub(crate) read: Places,
    pub(crate) written: Places,
    /// Flushed, not swept yet, and waited for.
    pub(crate) unswept: Places,
    pub(crate) taken: Taken,
}

/// The keyspace of one run.
pub(crate) struct Overlay<'m> {
    machine: &'m Machine,
    clock: Clock,
    /// When it is for whatever may have ended. Behind the clock only for reads: see [`Machine::query_later`].
    now_ms: u64,
    /// The wall clock that fences are made from, which never falls.
    fence_wall_us: u64,
    member: Option<Member>,
    hiding: bool,
    /// Those that `LOCK.INFO` shows.
    sessions: SessionScope,
    clash: Clash,
    changes: Changes,
    saved: Option<Changes>,
    /// By scripts before this one in the same entry.
    taken: Taken,
    serves_waiters: bool,
    work: Work,
    // What it looked at; reads have no `&mut`.
    given_up: Cell<Option<GivenUp>>,
    everything: Cell<bool>,
    read: RefCell<Names>,
    unswept: RefCell<Names>,
    written: Names,
    /// Keys among those written that have no record in the machine. What is taken back keeps its record until apply is through.
    new_records: usize,
}

/// A key that is there.
struct Seen<'a> {
    value: View<'a>,
    at_ms: u64,
    grants: Option<&'a Grants>,
}

impl<'m> Overlay<'m> {
    /// Over the state that an entry with this stamp will be applied to. Nothing may be due by then
    /// ([`Machine::has_due`]).
    pub(crate) fn new(machine: &'m Machine, stamp: Stamp) -> Overlay<'m> {
        let after = machine.clock_after(stamp);
        let clock = Clock { logical_ms: after.logical_ms, wall_us: machine.entry_wall_us_after(stamp) };
        Overlay::at(machine, clock, after.wall_us)
    }

    /// Over the machine's own state, `late_ms` after its newest stamp: for scripts that only read.
    pub(crate) fn for_read(machine: &'m Machine, late_ms: u64) -> Overlay<'m> {
        let clock = machine.key_clock();
        let wall_us = clock.wall_us.saturating_add(late_ms.saturating_mul(1000));
        let mut overlay = Overlay::at(machine, clock, wall_us);
        overlay.clock = Clock { logical_ms: clock.logical_ms.saturating_add(late_ms), wall_us };
        overlay
    }

    fn at(machine: &'m Machine, clock: Clock, fence_wall_us: u64) -> Overlay<'m> {
        Overlay {
            machine,
            clock,
            now_ms: clock.logical_ms,
            fence_wall_us,
            member: None,
            hiding: false,
            sessions: SessionScope::All,
            clash: Clash::None,
            changes: Changes::default(),
            saved: None,
            taken: Taken::default(),
            serves_waiters: false,
            work: Work::of_script(),
            given_up: Cell::new(None),
            everything: Cell::new(false),
            read: RefCell::default(),
            unswept: RefCell::default(),
            written: Names::default(),
            new_records: 0,
        }
    }

    /// For a Redlock member; what it has not granted is hidden from it if `hiding`.
    pub(crate) fn set_member(&mut self, member: Option<Member>, hiding: bool) {
        self.member = member;
        self.hiding = hiding;
    }

    /// The run is of a user with limited rights. Who it is is not known here, so no session is shown.
    pub(crate) fn hide_sessions(&mut self) {
        self.sessions = SessionScope::None;
    }

    pub(crate) fn clash(&self) -> Clash {
        self.clash
    }

    /// Behind scripts of the same entry that have taken so much.
    pub(crate) fn behind(mut self, taken: Taken) -> Overlay<'m> {
        self.taken = taken;
        self
    }

    /// Whether a command met a limit that apply does not look at. Its run must be given up: apply would do what was refused here.
    pub(crate) fn given_up(&self) -> Option<GivenUp> {
        self.given_up.get()
    }

    fn give_up(&self, why: GivenUp) {
        self.given_up.set(self.given_up.get().or(Some(why)));
    }

    /// It depends on this key.
    pub(crate) fn depend_on(&self, db: Db, key: &[u8]) {
        note(&mut self.read.borrow_mut(), db, key);
    }

    /// It depends on, or changes, more than keys.
    pub(crate) fn depend_on_everything(&self) {
        self.everything.set(true);
    }

    /// All it has changed so far, to go back to.
    pub(crate) fn changes(&self) -> Changes {
        self.changes.clone()
    }

    pub(crate) fn restore(&mut self, changes: Changes) {
        self.changes = changes;
    }

    pub(crate) fn serves_waiters(&self) -> bool {
        self.serves_waiters
    }

    pub(crate) fn machine(&self) -> &'m Machine {
        self.machine
    }

    pub(crate) fn touched(self) -> Looked {
        let flat = |names: Names| -> Places {
            names.into_iter().flat_map(|(db, names)| names.into_iter().map(move |name| (db, name))).collect()
        };
        let written = flat(self.written);
        let grown = self.changes.grown.max(0) as u64;
        Looked {
            everything: self.everything.get(),
            read: flat(self.read.into_inner()),
            unswept: flat(self.unswept.into_inner()),
            taken: Taken { records: self.new_records, written: written.len(), bytes: grown },
            written,
        }
    }

    /// Records that a walk over all keys looks at.
    pub(crate) fn records(&self) -> usize {
        self.machine.locks.len() + self.new_records
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn entry(&self, db: Db, key: &[u8]) -> Option<&Entry> {
        self.changes.by_db.get(&db)?.get(key)
    }

    fn machine_slot(&self, db: Db, key: &[u8]) -> Option<LockSlot> {
        self.machine.names.find(&self.machine.locks, db, key)
    }

    /// A key of the machine's that nothing has changed yet, whoever may see it.
    fn in_machine(&self, slot: LockSlot) -> Option<Seen<'_>> {
        let lock = &self.machine.locks[slot];
        let flushed = self.has_flushed(lock.db());
        (!flushed && self.machine.is_held_now(slot)).then(|| Seen {
            value: self.machine.key_view(slot),
            at_ms: self.machine.key_end_ms(slot),
            grants: self.machine.grants.get(&slot),
        })
    }

    /// Whether this run itself has flushed a database.
    fn has_flushed(&self, db: Db) -> bool {
        self.changes.all_flushed || self.changes.flushed.contains(&db)
    }

    /// A key that is held, whoever may see it.
    fn held(&self, db: Db, key: &[u8]) -> Option<Seen<'_>> {
        match self.entry(db, key) {
            Some(entry) => entry.holder.as_ref().map(Holder::seen),
            None => {
                let slot = self.machine_slot(db, key)?;
                if !self.has_flushed(db) && self.machine.is_unswept_and_awaited(slot) {
                    note(&mut self.unswept.borrow_mut(), db, key);
                }
                self.in_machine(slot)
            }
        }
    }

    fn is_granted_by(&self, member: Option<Member>, seen: &Seen<'_>) -> bool {
        match (member, seen.grants) {
            (Some(member), Some(grants)) => grants.is_live(member, self.now_ms()),
            (Some(_), None) | (None, _) => true,
        }
    }

    fn is_shown(&self, seen: &Seen<'_>) -> bool {
        !self.hiding || self.is_granted_by(self.member, seen)
    }

    /// A key that whoever runs may see.
    fn shown(&self, db: Db, key: &[u8]) -> Option<Seen<'_>> {
        self.depend_on(db, key);
        self.held(db, key).filter(|seen| self.is_shown(seen))
    }

    /// When a key ends: for the member that granted it, when its own grant does.
    fn ends_ms(&self, seen: &Seen<'_>) -> Option<u64> {
        let own_ms = || seen.grants?.live_until_ms(self.member?, self.now_ms());
        Some(own_ms().unwrap_or(seen.at_ms)).filter(|at_ms| *at_ms != NEVER)
    }

    /// Room for so many bytes more than it has taken so far, and others before it.
    fn room_beyond(&self, bytes: usize) -> Result<(), Refusal> {
        let taken = i64::try_from(self.taken.bytes).unwrap_or(i64::MAX);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.machine.room_for_change(taken.saturating_add(self.changes.grown).saturating_add(bytes))
    }

    fn is_awaited(&self, db: Db, key: &[u8]) -> bool {
        // What the run itself has freed is not meant: until it is through, nobody else gets it.
        self.entry(db, key).is_none() && self.machine.is_awaited(db, key)
    }
}

impl Holder {
    fn seen(&self) -> Seen<'_> {
        Seen { value: self.value.view(), at_ms: self.at_ms, grants: self.grants.as_ref() }
    }
}

/// Whether it was not there yet.
fn note(names: &mut Names, db: Db, key: &[u8]) -> bool {
    let names = names.entry(db).or_default();
    !names.contains(key) && names.insert(Bytes::copy_from_slice(key))
}

impl Keys for Overlay<'_> {
    fn charge(&self, units: u64) -> Result<(), Refusal> {
        self.work.charge(units).inspect_err(|_| self.give_up(GivenUp::Work))
    }

    fn charge_done(&self, units: u64) -> Result<(), Refusal> {
        self.work.charge_done(units).inspect_err(|_| self.give_up(GivenUp::Work))
    }

    fn check_flush(&self) -> Result<(), Refusal> {
        if self.member.is_some() && self.records() + self.taken.records > MEMBER_FLUSH_MAX {
            self.give_up(GivenUp::Flush);
            return Err(errors::MEMBER_FLUSH_TOO_LARGE);
        }
        Ok(())
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn value(&self, db: Db, key: &[u8]) -> Option<View<'_>> {
        self.shown(db, key).map(|seen| seen.value)
    }

    fn deadline_ms(&self, db: Db, key: &[u8]) -> Option<u64> {
        self.ends_ms(&self.shown(db, key)?)
    }

    fn is_vacant(&self, db: Db, key: &[u8]) -> bool {
        self.shown(db, key).is_none() && !self.is_awaited(db, key)
    }

    fn has_several(&self) -> bool {
        self.machine.has_several()
    }

    fn is_held_by_several(&self, db: Db, key: &[u8]) -> bool {
        self.depend_on(db, key);
        self.entry(db, key).is_none() && !self.has_flushed(db) && self.machine.is_held_by_several(db, key)
    }

    fn may_grow(&self, bytes: usize) -> bool {
        self.room_beyond(bytes).is_ok()
    }

    fn room_for(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.room_beyond(bytes).inspect_err(|_| self.give_up(GivenUp::Memory))
    }

    fn put(&mut self, db: Db, key: &[u8], value: Value, deadline: Deadline) -> Result<(), Refusal> {
        let at_ms = match deadline {
            Deadline::Keep => self.deadline_ms(db, key).unwrap_or(NEVER),
            Deadline::Never => NEVER,
            Deadline::At(at_ms) => at_ms,
        };
        self.write(db, key, value, at_ms)
    }

    fn edit(&mut self, db: Db, key: &[u8], edit: &mut dyn FnMut(&mut Value) -> bool) {
        if self.shown(db, key).is_some() {
            self.change(db, key, edit);
        }
    }

    fn remove(&mut self, db: Db, key: &[u8]) -> bool {
        self.shown(db, key).is_some() && self.take_away(db, key)
    }

    fn set_deadline(&mut self, db: Db, key: &[u8], deadline: Deadline) {
        let at_ms = match deadline {
            Deadline::Keep => return,
            Deadline::Never => NEVER,
            Deadline::At(at_ms) => at_ms,
        };
        // With nothing hidden a member also meets keys it has not granted: their time is not its to move.
        if self.shown(db, key).is_some_and(|seen| self.is_granted_by(self.member, &seen)) {
            let moved = self.set_end(db, key, at_ms);
            moved.expect("a member that sees a key has granted it already");
        }
    }

    fn count(&self, db: Db) -> usize {
        let mut count = 0;
        self.walk(Some(db), &mut |_, _, _| count += 1);
        count
    }

    fn scan(&self, db: Db, cursor: u64, count: usize, visit: &mut dyn FnMut(&[u8], View<'_>)) -> u64 {
        self.page(db, cursor, count, visit)
    }

    fn is_version_1(&self) -> bool {
        self.machine.cluster_version() < crate::machine::version::SECOND
    }

    fn flush(&mut self, db: Option<Db>) {
        self.everything.set(true);
        if self.member.is_none() {
            self.end_all(db);
            return;
        }
        let mut doomed = Vec::new();
        self.walk(db, &mut |db, key, _| doomed.push((db, Bytes::copy_from_slice(key))));
        for (db, key) in doomed {
            self.take_away(db, &key);
        }
    }

    /// Apply tells whoever listens.
    fn publish(&mut self, _channel: &[u8], _message: &[u8]) -> i64 {
        0
    }

    /// The recorder keeps what was read.
    fn note_read(&mut self, _row: &Row, _argv: &[&[u8]]) {}

    fn lock(&mut self, db: Db, argv: &[&[u8]]) -> Option<Reply> {
        Some(self.look(db, argv))
    }

    fn begin(&mut self) {
        self.clash = Clash::None;
        self.saved = Some(self.changes.clone());
    }

    fn commit(&mut self) {
        self.saved = None;
    }

    fn rollback(&mut self) {
        if let Some(saved) = self.saved.take() {
            self.changes = saved;
        }
    }
}
