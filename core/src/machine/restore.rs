//! A machine out of the pieces of a snapshot. What comes in is not believed: every piece carries a checksum, every record is
//! checked as it is read, and the whole is held against the invariants before it is handed out.

use super::blocked::Blocked;
use super::bytes::Reader;
use super::deadlines::Kind;
use super::dedup::Dedup;
use super::invariants::Violation;
use super::list::List;
use super::members::Grants;
use super::slab::{Image, Slab};
use super::snapshot::{section, SNAPSHOT_VERSION};
use super::stats::{count, Counters};
use super::{Limits, Machine, LOGICAL_MS_MAX, WALL_US_MAX};
use crate::keyspace::codec;
use crate::script::scripts::sha1;
use crate::types::{Fence, Stamp};
use std::fmt;

/// Why a snapshot cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// A piece is shorter than any can be, or its checksum is wrong.
    Damaged,
    /// Written by a version this one does not read.
    Version(u8),
    /// A piece is missing, doubled or out of order.
    Order,
    /// The checksum is right and the content is not.
    Malformed,
    /// The last piece has not come.
    Unfinished,
    /// The records contradict each other.
    Inconsistent(Violation),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Damaged => f.write_str("a piece of the snapshot is damaged"),
            RestoreError::Version(version) => write!(f, "snapshot version {version} is not known"),
            RestoreError::Order => f.write_str("a piece of the snapshot is missing, doubled or out of order"),
            RestoreError::Malformed => f.write_str("the snapshot's content is malformed"),
            RestoreError::Unfinished => f.write_str("the snapshot's last piece is missing"),
            RestoreError::Inconsistent(violation) => {
                write!(f, "the snapshot contradicts itself: {violation}")
            }
        }
    }
}

impl std::error::Error for RestoreError {}

/// Takes pieces in their order and makes a machine of them.
pub struct Restorer {
    machine: Machine,
    pieces: u32,
    complete: bool,
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
        Restorer { machine: Machine::with_limits(limits), pieces: 0, complete: false, failed: None }
    }

    /// Takes the next piece. After an error nothing more is taken.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), RestoreError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let taken = self.take(piece);
        self.failed = taken.clone().err();
        taken
    }

    /// Whether the last piece has come.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The machine, equal to the original in every respect.
    pub fn finish(mut self) -> Result<Machine, RestoreError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.complete {
            return Err(RestoreError::Unfinished);
        }
        // The names come first: what the index is built from must be sound before it is.
        self.machine.check_records().map_err(RestoreError::Inconsistent)?;
        self.machine.rebuild_indexes();
        self.machine.check_invariants().map_err(RestoreError::Inconsistent)?;
        if crate::mutants::on(crate::mutants::Mutant::SnapshotWithoutReplies) {
            self.machine.dedup = Dedup::default();
        }
        Ok(self.machine)
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), RestoreError> {
        let (body, crc) = piece.split_last_chunk::<4>().ok_or(RestoreError::Damaged)?;
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return Err(RestoreError::Damaged);
        }
        let mut reader = Reader::new(body);
        let version = reader.u8().ok_or(RestoreError::Damaged)?;
        if version != SNAPSHOT_VERSION {
            return Err(RestoreError::Version(version));
        }
        if self.complete || reader.u32_fixed() != Some(self.pieces) {
            return Err(RestoreError::Order);
        }
        if self.pieces == 0 {
            self.read_head(&mut reader).ok_or(RestoreError::Malformed)?;
        }
        while !reader.is_empty() {
            self.read_section(&mut reader).ok_or(RestoreError::Malformed)?;
        }
        self.pieces += 1;
        Ok(())
    }

    fn read_head(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        if reader.u8()? != section::HEAD {
            return None;
        }
        let machine = &mut self.machine;
        machine.clock =
            Stamp { term: reader.varint()?, logical_ms: reader.varint()?, wall_us: reader.varint()? };
        machine.instant_ms = machine.clock.logical_ms;
        machine.floor = Fence(reader.varint()?);
        machine.event_seq = count(reader)?;
        machine.settings = super::settings::Settings::read(reader)?;
        machine.counters = Counters::read(reader)?;
        machine.idle = List::read(reader)?;
        let limits = machine.limits;
        machine.dedup = Dedup::read(reader, limits.origins_max, limits.remembered_per_origin_max)?;
        machine.blocked = Blocked::read(reader, limits.waiters_max)?;
        (machine.clock.logical_ms <= LOGICAL_MS_MAX && machine.clock.wall_us <= WALL_US_MAX).then_some(())
    }

    fn read_section(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        if self.complete {
            return None;
        }
        let machine = &mut self.machine;
        match reader.u8()? {
            section::LOCKS => read_records(&mut machine.locks, reader),
            section::SEATS => read_records(&mut machine.seats, reader),
            section::WAITERS => read_records(&mut machine.waiters, reader),
            section::SESSIONS => read_records(&mut machine.sessions, reader),
            section::VALUES => {
                let slot = reader.varint_u32()?;
                let value = codec::read(reader.bytes()?)?;
                machine.values.insert(slot, value).is_none().then_some(())
            }
            section::GRANTS => {
                let slot = reader.varint_u32()?;
                machine.grants.insert(slot, Grants::read(reader)?).is_none().then_some(())
            }
            section::SCRIPTS => {
                let body = reader.bytes()?;
                machine.scripts.insert(sha1(body), body);
                Some(())
            }
            section::END => {
                let counts =
                    [machine.locks.len(), machine.seats.len(), machine.waiters.len(), machine.sessions.len()];
                for count in counts {
                    if reader.varint()? != count as u64 {
                        return None;
                    }
                }
                self.complete = true;
                Some(())
            }
            _ => None,
        }
    }
}

fn read_records<T: Image>(slab: &mut Slab<T>, reader: &mut Reader<'_>) -> Option<()> {
    for _ in 0..reader.varint()? {
        let slot = reader.varint_u32()?;
        let record = T::read(reader)?;
        slab.insert_at(slot, record)?;
    }
    Some(())
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
    fn rebuild_indexes(&mut self) {
        for slot in 0..self.locks.end() {
            let Some(lock) = self.locks.get(slot) else { continue };
            if lock.is_held() {
                self.deadlines.set(Kind::Lock, slot, lock.at_ms);
            }
            self.names.insert(&self.locks, slot);
        }
        for (slot, waiter) in self.waiters.iter() {
            self.deadlines.set(Kind::Waiter, slot, waiter.next_deadline_ms());
            for id in waiter.requests.iter().filter_map(|request| request.id) {
                self.requests.insert(id, slot);
            }
        }
        for (slot, _) in self.seats.iter() {
            self.queued_owners.insert(&self.seats, &self.waiters, slot);
        }
        for (slot, session) in self.sessions.iter() {
            self.session_ids.insert(session.id, slot);
            self.deadlines.set(Kind::Session, slot, session.deadline_ms);
        }
    }
}
