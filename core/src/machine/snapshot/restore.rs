//! A machine out of the pieces of a snapshot. What comes in is not believed: every piece carries a checksum, every record is
//! checked as it is read, and the whole is held against the invariants before it is handed out.

use crate::keyspace::stream::Builder;
use crate::limits::{SNAPSHOT_PIECE_BYTES_MAX, SNAPSHOT_RECORD_BYTES_MAX};
use crate::machine::digest::full::RecordSum;
use crate::machine::digest::Digests;
use crate::machine::keys::blocked::{Blocked, Ready, Waiting};
use crate::machine::keys::members::Grants;
use crate::machine::log::bytes::Reader;
use crate::machine::requests::dedup::Dedup;
use crate::machine::snapshot::invariants::Violation;
use crate::machine::snapshot::write::{counts_at, kind};
use crate::machine::stats::{count, Counters};
use crate::machine::store::deadlines::Timer;
use crate::machine::store::list::List;
use crate::machine::store::slab::{Image, Slab};
use crate::machine::sweep::Sweep;
use crate::machine::version::{read_format_byte, ClusterVersion, FormatError, VersionRange};
use crate::machine::{Limits, LockSlot, Machine, Slot, LOGICAL_MS_MAX, WALL_US_MAX};
use crate::script::scripts::sha1;
use crate::types::{Fence, Stamp, UserTag, VALUE_BYTES_MAX};
use std::fmt;

/// Why a snapshot cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// A piece is shorter than any can be, or its checksum is wrong.
    Damaged,
    /// Written in a format this release does not read.
    Format(FormatError),
    /// A piece is missing, doubled or out of order.
    Order,
    /// The checksum is right and the content is not.
    Malformed,
    /// The last piece has not come.
    Unfinished,
    /// The records contradict each other.
    Inconsistent(Violation),
    /// What was read does not have the digest that was written.
    Digest,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Damaged => f.write_str("a piece of the snapshot is damaged"),
            RestoreError::Format(error) => write!(f, "the snapshot cannot be read: {error}"),
            RestoreError::Order => f.write_str("a piece of the snapshot is missing, doubled or out of order"),
            RestoreError::Malformed => f.write_str("the snapshot's content is malformed"),
            RestoreError::Unfinished => f.write_str("the snapshot's last piece is missing"),
            RestoreError::Inconsistent(violation) => {
                write!(f, "the snapshot contradicts itself: {violation}")
            }
            RestoreError::Digest => {
                f.write_str("the state does not have the digest the snapshot was written with")
            }
        }
    }
}

impl std::error::Error for RestoreError {}

/// Takes pieces in their order and makes a machine of them.
pub struct Restorer {
    machine: Machine,
    reader: PieceReader,
    failed: Option<RestoreError>,
}

impl Default for Restorer {
    fn default() -> Restorer {
        Restorer::new(Limits::default())
    }
}

impl Restorer {
    #[must_use]
    pub fn new(limits: Limits) -> Restorer {
        Restorer { machine: Machine::with_limits(limits), reader: PieceReader::default(), failed: None }
    }

    /// For a node that can run these versions: see [`Machine::set_versions`].
    #[must_use]
    pub fn for_versions(known: VersionRange) -> Restorer {
        let mut restorer = Restorer::default();
        restorer.machine.set_versions(known);
        restorer.reader.known = known;
        restorer
    }

    /// Takes the next piece. After an error nothing more is taken.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), RestoreError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let machine = &mut self.machine;
        let taken = self.reader.take(piece, |records, kind, content| records.keep(machine, kind, content));
        self.failed = taken.clone().err();
        taken
    }

    /// The machine, equal to the original in every respect.
    pub fn finish(mut self) -> Result<Machine, RestoreError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.reader.complete {
            return Err(RestoreError::Unfinished);
        }
        // The names come first: what the index is built from must be sound before it is.
        self.machine.check_records().map_err(RestoreError::Inconsistent)?;
        self.machine.rebuild_indexes();
        self.machine.check_invariants().map_err(RestoreError::Inconsistent)?;
        // Of the state that was made, not of the bytes it was made from.
        if self.machine.full_digest() != self.reader.records.digest {
            return Err(RestoreError::Digest);
        }
        if crate::mutant!(SnapshotWithoutReplies) {
            self.machine.dedup = Dedup::default();
        }
        if crate::mutant!(MarksForgotten) {
            self.machine.marks = crate::machine::marks::Marks::default();
        }
        Ok(self.machine)
    }
}

/// Reads a snapshot back without keeping it: every piece has its size, checksum and place, every record can be read, none is
/// missing. Needs no more memory than the largest collection. For whoever stores a snapshot, before the log behind it goes.
pub struct Checker {
    /// Takes nothing but the head and what is remembered of nodes, which is bounded.
    scratch: Machine,
    reader: PieceReader,
}

impl Default for Checker {
    fn default() -> Checker {
        let records = Records { checks_only: true, ..Records::default() };
        // Whoever restores it says whether it can run that version.
        let reader = PieceReader { records, known: VersionRange::ANY, ..PieceReader::default() };
        Checker { scratch: Machine::new(), reader }
    }
}

impl Checker {
    /// Takes the next piece.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), RestoreError> {
        let scratch = &mut self.scratch;
        self.reader.take(piece, |records, kind, content| records.keep(scratch, kind, content))
    }

    /// Whether it was a whole snapshot.
    pub fn finish(self) -> Result<(), RestoreError> {
        match self.reader.complete {
            true if self.reader.records.sum.value() != self.reader.records.digest => {
                Err(RestoreError::Digest)
            }
            true => Ok(()),
            false => Err(RestoreError::Unfinished),
        }
    }
}

/// Puts the pieces' bytes together again and cuts them into records.
#[derive(Default)]
struct PieceReader {
    known: VersionRange,
    pieces: u32,
    /// The beginning of a record whose rest is in the next piece.
    rest: Vec<u8>,
    records: Records,
    complete: bool,
}

/// What is known between two records.
#[derive(Default)]
struct Records {
    /// Of the first piece; all have the same.
    version: Option<ClusterVersion>,
    /// Records are read and dropped.
    checks_only: bool,
    has_head: bool,
    has_end: bool,
    /// Locks, queue entries, waiters, sessions, holders.
    counts: [u64; 5],
    /// A collection whose elements have not all come.
    value: Option<(LockSlot, Builder)>,
    /// Over the records so far, and what the last one says it must come to.
    sum: RecordSum,
    digest: u64,
}

impl PieceReader {
    fn take(
        &mut self,
        piece: &[u8],
        keep: impl FnMut(&mut Records, u8, &[u8]) -> Option<()>,
    ) -> Result<(), RestoreError> {
        let (body, crc) = piece.split_last_chunk::<4>().ok_or(RestoreError::Damaged)?;
        if piece.len() > SNAPSHOT_PIECE_BYTES_MAX || crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return Err(RestoreError::Damaged);
        }
        let mut reader = Reader::new(body);
        let format = reader.u8().ok_or(RestoreError::Damaged)?;
        let version = read_format_byte(format, self.known).map_err(RestoreError::Format)?;
        if self.complete || reader.u32_fixed() != Some(self.pieces) {
            return Err(RestoreError::Order);
        }
        if *self.records.version.get_or_insert(version) != version {
            return Err(RestoreError::Malformed);
        }
        self.pieces += 1;
        self.read_records(reader.rest(), keep).ok_or(RestoreError::Malformed)?;
        self.complete = self.records.has_end;
        Ok(())
    }

    fn read_records(
        &mut self,
        content: &[u8],
        mut keep: impl FnMut(&mut Records, u8, &[u8]) -> Option<()>,
    ) -> Option<()> {
        let mut joined = std::mem::take(&mut self.rest);
        let bytes = match joined.is_empty() {
            true => content,
            false => {
                joined.extend_from_slice(content);
                &joined
            }
        };
        let mut reader = Reader::new(bytes);
        loop {
            let at_record = reader.clone();
            let (Some(kind), Some(length)) = (reader.u8(), reader.u32_fixed()) else {
                self.rest = at_record.rest().to_vec();
                break;
            };
            if length as usize > SNAPSHOT_RECORD_BYTES_MAX || self.records.has_end {
                return None;
            }
            let Some(record) = reader.take(length as usize) else {
                self.rest = at_record.rest().to_vec();
                break;
            };
            keep(&mut self.records, kind, record)?;
        }
        // Behind the last record nothing may come.
        (!self.records.has_end || self.rest.is_empty()).then_some(())
    }
}

impl Records {
    /// Takes one record into the machine.
    fn keep(&mut self, machine: &mut Machine, kind: u8, content: &[u8]) -> Option<()> {
        let mut reader = Reader::new(content);
        let reader = &mut reader;
        let limits = machine.limits;
        if self.has_head == (kind == kind::HEAD) || (self.value.is_some() != (kind == kind::ELEMENTS)) {
            return None;
        }
        if self.checks_only {
            self.sum.add(kind, content);
        }
        match kind {
            kind::HEAD => {
                self.has_head = true;
                machine.upgrade.version = self.version?;
                read_head(machine, reader)?;
            }
            kind::COUNTERS => machine.counters = Counters::read(reader)?,
            kind::ORIGIN => machine.dedup.read_origin(reader, limits.origins_max)?,
            kind::REPLIES => machine.dedup.read_replies(reader, limits.remembered_per_origin_max)?,
            kind::LOCK => self.read_record(0, &mut machine.locks, reader)?,
            kind::QUEUE_ENTRY => self.read_record(1, &mut machine.queue_entries, reader)?,
            kind::WAITER => self.read_record(2, &mut machine.waiters, reader)?,
            kind::SESSION => self.read_record(3, &mut machine.sessions, reader)?,
            kind::HOLDER => self.read_record(4, &mut machine.holders, reader)?,
            kind::ATTACHED => {
                let slot = Slot::new(reader.varint_u32()?);
                let value = reader.bytes().filter(|value| (1..=VALUE_BYTES_MAX).contains(&value.len()))?;
                if !self.checks_only {
                    machine.attached.insert(slot, value.into()).is_none().then_some(())?;
                }
            }
            kind::BLOCKED if self.checks_only => drop(Waiting::read(reader)?),
            kind::BLOCKED => machine.blocked.read(reader, limits.waiters_max)?,
            kind::READY if self.checks_only => drop(Ready::read(reader)?),
            kind::READY => machine.blocked.read_ready(reader)?,
            kind::VALUE => {
                let slot = Slot::new(reader.varint_u32()?);
                let (form, len) = (reader.u8()?, usize::try_from(reader.varint()?).ok()?);
                self.value = Some((slot, Builder::new(form, len)?));
            }
            kind::ELEMENTS => return self.read_elements(machine, content),
            kind::VERSION => {
                let (slot, version) = (Slot::new(reader.varint_u32()?), reader.varint()?);
                if !self.checks_only {
                    machine.versions.insert(slot, version).is_none().then_some(())?;
                }
            }
            kind::GRANTS => {
                let slot = Slot::new(reader.varint_u32()?);
                let grants = Grants::read(reader)?;
                if !self.checks_only {
                    machine.grants.insert(slot, grants).is_none().then_some(())?;
                }
            }
            kind::MARK if self.checks_only => drop(crate::machine::locks::marks::read_mark(reader)?),
            kind::MARK => machine.marks.restore(crate::machine::locks::marks::read_mark(reader)?)?,
            kind::SCRIPT => {
                let body = reader.take(content.len())?;
                if !self.checks_only {
                    machine.scripts.insert(sha1(body), body);
                }
            }
            kind::END => {
                for count in &self.counts[..counts_at(self.version?)] {
                    (reader.varint()? == *count).then_some(())?;
                }
                self.digest = reader.u64_fixed()?;
                self.has_end = true;
            }
            _ => return None,
        }
        reader.is_empty().then_some(())
    }

    fn read_elements(&mut self, machine: &mut Machine, content: &[u8]) -> Option<()> {
        let (slot, mut builder) = self.value.take()?;
        builder.read(content)?;
        if !builder.is_done() {
            self.value = Some((slot, builder));
            return Some(());
        }
        if self.checks_only {
            return Some(());
        }
        machine.values.insert(slot, builder.finish()).is_none().then_some(())
    }

    fn read_record<T: Image>(
        &mut self,
        at: usize,
        slab: &mut Slab<T>,
        reader: &mut Reader<'_>,
    ) -> Option<()> {
        let slot = Slot::new(reader.varint_u32()?);
        let record = T::read(reader)?;
        self.counts[at] += 1;
        match self.checks_only {
            true => Some(()),
            false => slab.insert_at(slot, record),
        }
    }
}

fn read_head(machine: &mut Machine, reader: &mut Reader<'_>) -> Option<()> {
    machine.clock = Stamp { term: reader.varint()?, logical_ms: reader.varint()?, wall_us: reader.varint()? };
    machine.entry_wall_us = reader.varint()?;
    machine.instant_ms = machine.clock.logical_ms;
    machine.floor = Fence(reader.varint()?);
    machine.event_seq = count(reader)?;
    machine.idle = List::read(reader)?;
    machine.sweep = Sweep::read(reader)?;
    machine.blocked = Blocked::counting_from(count(reader)?);
    machine.settings = crate::machine::settings::Settings::read(reader)?;
    machine.marks.read_floor(reader, machine.upgrade.version)?;
    machine.upgrade.hold = reader.flag()?;
    if machine.cluster_version() >= 2 {
        machine.sessions_opened = count(reader)?;
    }
    #[cfg(feature = "next-version")]
    if machine.cluster_version() >= 3 {
        machine.next_count = reader.varint()?;
    }
    machine.digests = Digests::read(reader)?;
    let clock = machine.clock;
    let in_range = clock.logical_ms <= LOGICAL_MS_MAX && clock.wall_us <= WALL_US_MAX;
    (in_range && machine.entry_wall_us <= clock.wall_us).then_some(())
}

impl Machine {
    /// Restores a machine from all pieces at once.
    pub fn restore<B: AsRef<[u8]>>(pieces: impl IntoIterator<Item = B>) -> Result<Machine, RestoreError> {
        let mut restorer = Restorer::default();
        for piece in pieces {
            restorer.push(piece.as_ref())?;
        }
        restorer.finish()
    }

    /// Everything that is worked out from the records.
    pub(crate) fn rebuild_indexes(&mut self) {
        self.memory = self.weigh_records();
        for slot in self.locks.slots() {
            let Some(lock) = self.locks.get(slot) else { continue };
            if lock.is_held() {
                self.deadlines.set_lock(lock.db(), slot, lock.deadline_ms());
            }
            self.names.insert(&self.locks, slot);
        }
        for (slot, waiter) in self.waiters.iter() {
            self.deadlines.set(Timer::Waiter(slot), waiter.next_deadline_ms());
            for id in waiter.requests.iter().filter_map(|request| request.id) {
                self.requests.insert(id, slot);
            }
        }
        for (slot, holder) in self.holders.iter() {
            self.deadlines.set(Timer::Holder(slot), holder.deadline_ms);
            self.holder_index.insert(&self.holders, slot);
        }
        self.recount_databases();
        for slot in self.waiters.slots() {
            let Some(waiter) = self.waiters.get(slot) else { continue };
            let (session, queue_entries) = (waiter.session, waiter.queue_entries.len() as u32);
            if self.sessions.get(session).is_some() {
                self.sessions.edit(session).queue_entries += queue_entries;
            }
        }
        for (slot, _) in self.queue_entries.iter() {
            self.queued_owners.insert(&self.queue_entries, &self.waiters, slot);
        }
        for (slot, session) in self.sessions.iter() {
            if session.user != UserTag::DEFAULT {
                *self.sessions_of.entry(session.user).or_default() += 1;
            }
            self.session_ids.insert(session.id, slot);
            self.deadlines.set(Timer::Session(slot), session.deadline_ms);
        }
    }
}
