//! A keyspace over the machine that never changes it: where the leader runs scripts.
//!
//! Reads look at a private map of changed keys first, then at the machine. Writes go into the map. What a write answers
//! here is what it will answer when it is applied to the same state: the rules are those of `keyspace.rs` and
//! `members.rs`, over one key's record at a time. Fences, events, queues and counters are apply's business.
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
//!   run is over ([`Overlay::full`]): which records apply would forget is not worked out here.

mod walking;
mod writing;

use super::command::Db;
use super::deadlines::NEVER;
use super::keyspace::{Clash, MEMBER_FLUSH_MAX};
use super::members::Grants;
use super::work::Work;
use super::Machine;
use crate::keyspace::table::Row;
use crate::keyspace::{errors, Clock, Deadline, Keys, Value, View};
use crate::reply::{Refusal, Reply};
use crate::types::{Fence, Member, Stamp};
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
    /// Keys among them that have no record in the machine.
    new_records: usize,
    /// Databases of which nothing in the machine counts any more.
    flushed: imbl::OrdSet<Db>,
    all_flushed: bool,
    /// Bytes by which values grew. What they shrank by is not counted against it.
    grown: usize,
}

/// What there was no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// `max-memory` is used up.
    Memory,
    /// There are as many records as there may be.
    Records,
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
    clash: Clash,
    changes: Changes,
    saved: Option<Changes>,
    full: Option<Full>,
    serves_waiters: bool,
    work: Work,
    overworked: Cell<bool>,
    // What it looked at; reads have no `&mut`.
    everything: Cell<bool>,
    read: RefCell<Names>,
    written: Names,
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
            clash: Clash::None,
            changes: Changes::default(),
            saved: None,
            full: None,
            serves_waiters: false,
            work: Work::of_script(),
            overworked: Cell::new(false),
            everything: Cell::new(false),
            read: RefCell::default(),
            written: Names::default(),
        }
    }

    /// For a Redlock member; what it has not granted is hidden from it if `hiding`.
    pub(crate) fn set_member(&mut self, member: Option<Member>, hiding: bool) {
        self.member = member;
        self.hiding = hiding;
    }

    pub(crate) fn clash(&self) -> Clash {
        self.clash
    }

    /// What a write found no room for. Its run must be given up.
    pub(crate) fn full(&self) -> Option<Full> {
        self.full
    }

    /// Whether it did more work than one logged command may. Its run must be given up: apply would do what was refused here.
    pub(crate) fn is_overworked(&self) -> bool {
        self.overworked.get()
    }

    /// All it has changed so far, to go back to.
    pub(crate) fn changes(&self) -> Changes {
        self.changes.clone()
    }

    pub(crate) fn restore(&mut self, changes: Changes) {
        self.changes = changes;
    }

    /// What the run does depends on this key, though it may never look at it.
    pub(crate) fn depend_on(&self, db: Db, key: &[u8]) {
        note(&mut self.read.borrow_mut(), db, key);
    }

    pub(crate) fn serves_waiters(&self) -> bool {
        self.serves_waiters
    }

    pub(crate) fn machine(&self) -> &'m Machine {
        self.machine
    }

    /// Whether it depends on all keys, and which it read and wrote.
    pub(crate) fn touched(self) -> (bool, Places, Places) {
        let flat = |names: Names| {
            names.into_iter().flat_map(|(db, names)| names.into_iter().map(move |name| (db, name))).collect()
        };
        (self.everything.get(), flat(self.read.into_inner()), flat(self.written))
    }

    /// Records that a walk over all keys looks at.
    pub(crate) fn records(&self) -> usize {
        self.machine.locks.len() + self.changes.new_records
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn entry(&self, db: Db, key: &[u8]) -> Option<&Entry> {
        self.changes.by_db.get(&db)?.get(key)
    }

    fn machine_slot(&self, db: Db, key: &[u8]) -> Option<u32> {
        self.machine.names.find(&self.machine.locks, db, key)
    }

    /// A key of the machine's that nothing has changed yet, whoever may see it.
    fn in_machine(&self, slot: u32) -> Option<Seen<'_>> {
        let lock = &self.machine.locks[slot];
        let flushed = self.changes.all_flushed || self.changes.flushed.contains(&lock.db());
        (!flushed && self.machine.is_held_now(lock)).then(|| Seen {
            value: self.machine.key_view(slot),
            at_ms: lock.at_ms,
            grants: self.machine.grants.get(&slot),
        })
    }

    /// A key that is held, whoever may see it.
    fn held(&self, db: Db, key: &[u8]) -> Option<Seen<'_>> {
        match self.entry(db, key) {
            Some(entry) => entry.holder.as_ref().map(Holder::seen),
            None => self.in_machine(self.machine_slot(db, key)?),
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
        note(&mut self.read.borrow_mut(), db, key);
        self.held(db, key).filter(|seen| self.is_shown(seen))
    }

    /// When a key ends: for the member that granted it, when its own grant does.
    fn ends_ms(&self, seen: &Seen<'_>) -> Option<u64> {
        let own_ms = || seen.grants?.until_ms(self.member?).filter(|until_ms| *until_ms > self.now_ms());
        Some(own_ms().unwrap_or(seen.at_ms)).filter(|at_ms| *at_ms != NEVER)
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

fn note(names: &mut Names, db: Db, key: &[u8]) {
    let names = names.entry(db).or_default();
    if !names.contains(key) {
        names.insert(Bytes::copy_from_slice(key));
    }
}

impl Keys for Overlay<'_> {
    fn charge(&self, units: u64) -> Result<(), Refusal> {
        self.work.charge(units).inspect_err(|_| self.overworked.set(true))
    }

    fn check_flush(&self) -> Result<(), Refusal> {
        match self.member.is_some() && self.machine.locks.end() as usize > MEMBER_FLUSH_MAX {
            true => Err(errors::MEMBER_FLUSH_TOO_LARGE),
            false => Ok(()),
        }
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

    fn may_grow(&self, bytes: usize) -> bool {
        self.machine.room_for(self.changes.grown.saturating_add(bytes)).is_ok()
    }

    fn room_for(&mut self, bytes: usize) -> Result<(), Refusal> {
        let room = self.machine.room_for(self.changes.grown.saturating_add(bytes));
        if room.is_err() {
            self.full = Some(Full::Memory);
        }
        room
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

    fn flush(&mut self, db: Option<Db>) {
        self.everything.set(true);
        if self.member.is_none() {
            self.end_all(db);
            return;
        }
        // How many records there will be when it is applied is not known exactly.
        if self.machine.locks.end() as usize + self.changes.new_records > MEMBER_FLUSH_MAX {
            self.full = Some(Full::Records);
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
