//! One resource: its holder, the fence last issued, how the grant before ended, and the queue. Only this file knows what a
//! holder is made of; a grant brings one into being ([`Lock::hold`]), an end takes it away ([`Lock::end`]).
//!
//! A holder is an owner's bytes, an optional deadline and an optional session. None of the three is tied to
//! `LOCK.ACQUIRE`: any command that brings a key to life may call `hold`.

use crate::keyspace::KEY_BYTES_MAX;
use crate::machine::log::bytes::{put_bytes, put_varint, Hash64, Reader};
use crate::machine::log::command::Db;
use crate::machine::snapshot::write::kind;
use crate::machine::store::deadlines::NEVER;
use crate::machine::store::list::{put_slot, slot, Linked, Links, List};
use crate::machine::store::slab::{Image, Slab, NONE};
use crate::types::{Fence, Reason};
use hashbrown::HashTable;

/// What a record is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Somebody holds it.
    Held,
    /// Free, but not for the taking: a multi-lock that waits for another of its resources stands first in line.
    Awaited,
    /// Free, kept for its last fence; in the idle list.
    Idle,
}

/// How the last grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// There was none, or its record was forgotten.
    Unknown,
    Released,
    Expired,
}

/// Room for an owner that a free lock keeps for the next one. More is given back: it would count for nothing.
const OWNER_BYTES_KEPT: usize = 64;

/// 80 bytes; name and owner share one allocation.
pub(crate) struct Lock {
    /// The name, then the owner. Behind a free lock's name stand the bytes of its last owner, which mean nothing.
    text: Box<[u8]>,
    /// Last issued, 0 if none; the holder's while held.
    pub(crate) fence: Fence,
    /// Of the grant that ended last.
    ended_fence: Fence,
    /// Held: when it ends. Idle: since when.
    pub(crate) at_ms: u64,
    db: u16,
    /// Of its database, while held: see `sweep.rs`.
    epoch: u16,
    /// The holder's session, or `NONE`.
    pub(crate) session: u32,
    /// In the session's list while held, in the idle list while idle.
    links: Links,
    /// Seats, first in line first.
    pub(crate) queue: List,
    name_len: u32,
    pub(crate) phase: Phase,
    ended: Ended,
}

impl Lock {
    /// A record nobody holds yet.
    pub(crate) fn new(db: Db, name: &[u8]) -> Lock {
        Lock {
            text: name.into(),
            fence: Fence(0),
            ended_fence: Fence(0),
            at_ms: NEVER,
            db: db as u16,
            epoch: 0,
            session: NONE,
            links: Links::ALONE,
            queue: List::EMPTY,
            name_len: name.len() as u32,
            phase: Phase::Awaited,
            ended: Ended::Unknown,
        }
    }

    pub(crate) fn db(&self) -> Db {
        Db::from(self.db)
    }

    pub(crate) fn epoch(&self) -> u16 {
        self.epoch
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.text[..self.name_len as usize]
    }

    pub(crate) fn is_held(&self) -> bool {
        match self.phase {
            Phase::Held => true,
            Phase::Awaited | Phase::Idle => false,
        }
    }

    /// The holder's owner; of a free lock, nothing.
    pub(crate) fn owner(&self) -> &[u8] {
        if self.is_held() {
            &self.text[self.name_len as usize..]
        } else {
            &[]
        }
    }

    /// Brings a holder into being. Lists and deadlines are the caller's business.
    pub(crate) fn hold(&mut self, fence: Fence, owner: &[u8], deadline_ms: u64, session: u32, epoch: u16) {
        let name_len = self.name_len as usize;
        if self.text.len() == name_len + owner.len() {
            self.text[name_len..].copy_from_slice(owner);
        } else {
            let mut text = Vec::with_capacity(name_len + owner.len());
            text.extend_from_slice(self.name());
            text.extend_from_slice(owner);
            self.text = text.into_boxed_slice();
        }
        self.fence = fence;
        self.at_ms = deadline_ms;
        self.session = session;
        self.epoch = epoch;
        self.phase = Phase::Held;
    }

    /// Takes the holder away and remembers how.
    pub(crate) fn end(&mut self, how: Ended) {
        self.ended_fence = self.fence;
        self.ended = how;
        self.at_ms = NEVER;
        self.session = NONE;
        self.epoch = 0;
        self.phase = Phase::Awaited;
        let name_len = self.name_len as usize;
        if self.text.len() > name_len + OWNER_BYTES_KEPT {
            self.text = self.text[..name_len].into();
        }
    }

    /// The holder and the memory of the last one, to be put back by [`Lock::put_back`].
    pub(crate) fn before(&self) -> Before {
        Before {
            text: self.text.clone(),
            fence: self.fence,
            ended_fence: self.ended_fence,
            at_ms: self.at_ms,
            session: self.session,
            epoch: self.epoch,
            phase: self.phase,
            ended: self.ended,
        }
    }

    /// As if nothing had happened since. Lists and deadlines are the caller's business.
    pub(crate) fn put_back(&mut self, before: Before) {
        self.text = before.text;
        self.fence = before.fence;
        self.ended_fence = before.ended_fence;
        self.at_ms = before.at_ms;
        self.session = before.session;
        self.epoch = before.epoch;
        self.phase = before.phase;
        self.ended = before.ended;
    }

    /// Why this fence is not, or no longer, the holder's.
    pub(crate) fn reason_against(&self, fence: Fence) -> Reason {
        if fence != self.ended_fence {
            return Reason::NotOwner;
        }
        match self.ended {
            Ended::Unknown => Reason::NotOwner,
            Ended::Released => Reason::AlreadyReleased,
            Ended::Expired => Reason::Expired,
        }
    }
}

/// What a script that runs over may have changed of a lock.
pub(crate) struct Before {
    text: Box<[u8]>,
    fence: Fence,
    ended_fence: Fence,
    pub(crate) at_ms: u64,
    pub(crate) session: u32,
    epoch: u16,
    pub(crate) phase: Phase,
    ended: Ended,
}

impl Linked for Lock {
    fn links(&self) -> Links {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Image for Lock {
    const KIND: u8 = kind::LOCK;

    fn write(&self, out: &mut Vec<u8>) {
        let phase = match self.phase {
            Phase::Held => 0u8,
            Phase::Awaited => 1,
            Phase::Idle => 2,
        };
        let ended = match self.ended {
            Ended::Unknown => 0u8,
            Ended::Released => 1,
            Ended::Expired => 2,
        };
        out.push(phase << 4 | ended);
        put_varint(out, u64::from(self.db));
        put_varint(out, u64::from(self.epoch));
        put_bytes(out, self.name());
        put_bytes(out, self.owner());
        put_varint(out, self.fence.0);
        put_varint(out, self.ended_fence.0);
        put_varint(out, self.at_ms.wrapping_add(1));
        put_slot(out, self.session);
        self.links.write(out);
        self.queue.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Lock> {
        let tag = reader.u8()?;
        let phase = match tag >> 4 {
            0 => Phase::Held,
            1 => Phase::Awaited,
            2 => Phase::Idle,
            _ => return None,
        };
        let ended = match tag & 15 {
            0 => Ended::Unknown,
            1 => Ended::Released,
            2 => Ended::Expired,
            _ => return None,
        };
        let db = u16::try_from(reader.varint()?).ok()?;
        let epoch = u16::try_from(reader.varint()?).ok()?;
        let name = reader.bytes()?;
        let owner = reader.bytes()?;
        if name.len() > KEY_BYTES_MAX || (phase != Phase::Held && !owner.is_empty()) {
            return None;
        }
        Some(Lock {
            text: [name, owner].concat().into_boxed_slice(),
            name_len: name.len() as u32,
            db,
            epoch,
            phase,
            ended,
            fence: Fence(reader.varint()?),
            ended_fence: Fence(reader.varint()?),
            at_ms: reader.varint()?.wrapping_sub(1),
            session: slot(reader)?,
            links: Links::read(reader)?,
            queue: List::read(reader)?,
        })
    }
}

const SHARDS: usize = 256;

/// (db, name) → slot. Many small tables instead of one, so that growing never takes long. Never iterated.
pub(crate) struct Names {
    shards: Box<[HashTable<u32>]>,
}

impl Default for Names {
    fn default() -> Names {
        Names { shards: (0..SHARDS).map(|_| HashTable::new()).collect() }
    }
}

#[inline]
fn name_hash(db: Db, name: &[u8]) -> u64 {
    let mut hash = Hash64::new(u64::from(db));
    hash.write(name);
    hash.finish()
}

/// The table itself uses the lowest and the seven highest bits.
fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

impl Names {
    #[inline]
    pub(crate) fn find(&self, locks: &Slab<Lock>, db: Db, name: &[u8]) -> Option<u32> {
        let hash = name_hash(db, name);
        let same = |slot: &u32| {
            let lock = &locks[*slot];
            lock.db() == db && lock.name() == name
        };
        self.shards[shard_of(hash)].find(hash, same).copied()
    }

    pub(crate) fn insert(&mut self, locks: &Slab<Lock>, slot: u32) {
        let rehash = |slot: &u32| name_hash(locks[*slot].db(), locks[*slot].name());
        let hash = rehash(&slot);
        self.shards[shard_of(hash)].insert_unique(hash, slot, rehash);
    }

    /// Call before the record goes.
    pub(crate) fn remove(&mut self, locks: &Slab<Lock>, slot: u32) {
        let rehash = |slot: &u32| name_hash(locks[*slot].db(), locks[*slot].name());
        let hash = rehash(&slot);
        let shard = &mut self.shards[shard_of(hash)];
        if let Ok(entry) = shard.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
            shard.shrink_to(shard.len() * 2, rehash);
        }
    }
}
