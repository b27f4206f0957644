//! Who waits: one [`Waiter`] an owner that asked, one [`Seat`] a queue it stands in. A waiter of `LOCK.ACQUIRE` has one seat,
//! one of `LOCK.MACQUIRE` a seat for each resource, all taken in the same instant.

use crate::machine::log::bytes::{put_bytes, put_varint, Hash64, Reader};
use crate::machine::snapshot::write::kind;
use crate::machine::store::deadlines::NEVER;
use crate::machine::store::list::{put_slot, slot, Linked, Links};
use crate::machine::store::slab::{Image, Slab};
use crate::types::{Origin, RequestId, MULTI_RESOURCES_MAX, OWNER_BYTES_MAX};
use hashbrown::HashTable;
use smallvec::SmallVec;

/// A place in one lock's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) lock: u32,
    pub(crate) waiter: u32,
    links: Links,
}

impl Seat {
    pub(crate) fn new(lock: u32, waiter: u32) -> Seat {
        Seat { lock, waiter, links: Links::ALONE }
    }
}

impl Linked for Seat {
    fn links(&self) -> Links {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Image for Seat {
    const KIND: u8 = kind::SEAT;

    fn write(&self, out: &mut Vec<u8>) {
        put_slot(out, self.lock);
        put_slot(out, self.waiter);
        self.links.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Seat> {
        Some(Seat { lock: slot(reader)?, waiter: slot(reader)?, links: Links::read(reader)? })
    }
}

/// One request that hangs on a waiter. A retry of a queued owner adds one; the grant answers them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) id: Option<RequestId>,
    /// When this request's own WAIT runs out.
    pub(crate) deadline_ms: u64,
    pub(crate) form: Form,
}

/// How the grant is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `[fence, ttl]`
    One,
    /// `[[fence, …], ttl]`: for each resource in the order asked, its place in the canonical order.
    Many(Box<[u8]>),
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) owner: Box<[u8]>,
    /// Never empty, in the order they came.
    pub(crate) requests: SmallVec<[Pending; 1]>,
    /// In the canonical order of the resources' names.
    pub(crate) seats: SmallVec<[u32; 4]>,
    /// `NONE` where it has none.
    pub(crate) session: u32,
    /// In the session's list.
    links: Links,
    pub(crate) ttl_ms: u64,
    pub(crate) since_ms: u64,
}

impl Form {
    /// Bytes of the order it keeps.
    pub(crate) fn len(&self) -> usize {
        match self {
            Form::One => 0,
            Form::Many(order) => order.len(),
        }
    }
}

impl Waiter {
    pub(crate) fn new(owner: &[u8], session: u32, ttl_ms: u64, since_ms: u64, first: Pending) -> Waiter {
        Waiter {
            owner: owner.into(),
            requests: SmallVec::from_iter([first]),
            seats: SmallVec::new(),
            session,
            links: Links::ALONE,
            ttl_ms,
            since_ms,
        }
    }

    /// When the next of its requests gives up.
    pub(crate) fn next_deadline_ms(&self) -> u64 {
        self.requests.iter().map(|request| request.deadline_ms).min().unwrap_or(NEVER)
    }

    /// Whether one of its requests still has time.
    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        self.requests.iter().any(|request| request.deadline_ms > now_ms)
    }
}

impl Linked for Waiter {
    fn links(&self) -> Links {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Image for Waiter {
    const KIND: u8 = kind::WAITER;

    fn write(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.owner);
        put_slot(out, self.session);
        self.links.write(out);
        put_varint(out, self.ttl_ms);
        put_varint(out, self.since_ms);
        put_varint(out, self.seats.len() as u64);
        self.seats.iter().for_each(|seat| put_slot(out, *seat));
        put_varint(out, self.requests.len() as u64);
        self.requests.iter().for_each(|request| request.write(out));
    }

    fn read(reader: &mut Reader<'_>) -> Option<Waiter> {
        let owner = reader.bytes()?;
        if owner.is_empty() || owner.len() > OWNER_BYTES_MAX {
            return None;
        }
        let session = slot(reader)?;
        let links = Links::read(reader)?;
        let (ttl_ms, since_ms) = (reader.varint()?, reader.varint()?);
        let mut seats = SmallVec::new();
        for _ in 0..reader.varint()? {
            if seats.len() == MULTI_RESOURCES_MAX {
                return None;
            }
            seats.push(slot(reader)?);
        }
        let mut requests = SmallVec::new();
        for _ in 0..reader.varint()? {
            requests.push(Pending::read(reader, seats.len())?);
        }
        if seats.is_empty() || requests.is_empty() {
            return None;
        }
        Some(Waiter { owner: owner.into(), requests, seats, session, links, ttl_ms, since_ms })
    }
}

impl Pending {
    fn write(&self, out: &mut Vec<u8>) {
        match self.id {
            None => out.push(0),
            Some(id) => {
                out.push(1);
                put_request_id(out, id);
            }
        }
        put_varint(out, self.deadline_ms);
        match &self.form {
            Form::One => out.push(0),
            Form::Many(order) => {
                out.push(1);
                put_bytes(out, order);
            }
        }
    }

    fn read(reader: &mut Reader<'_>, seats: usize) -> Option<Pending> {
        let id = if reader.flag()? { Some(request_id(reader)?) } else { None };
        let deadline_ms = reader.varint()?;
        let form = if reader.flag()? {
            let order = reader.bytes()?;
            if order.len() != seats || order.iter().any(|place| usize::from(*place) >= seats) {
                return None;
            }
            Form::Many(order.into())
        } else if seats == 1 {
            Form::One
        } else {
            return None;
        };
        Some(Pending { id, deadline_ms, form })
    }
}

pub(crate) fn put_request_id(out: &mut Vec<u8>, id: RequestId) {
    put_origin(out, id.origin);
    put_varint(out, id.seq);
}

pub(crate) fn request_id(reader: &mut Reader<'_>) -> Option<RequestId> {
    Some(RequestId { origin: origin(reader)?, seq: reader.varint()? })
}

pub(crate) fn put_origin(out: &mut Vec<u8>, origin: Origin) {
    put_varint(out, origin.node);
    out.extend_from_slice(&origin.incarnation.to_le_bytes());
}

pub(crate) fn origin(reader: &mut Reader<'_>) -> Option<Origin> {
    Some(Origin { node: reader.varint()?, incarnation: reader.u64_fixed()? })
}

/// (lock, owner) → seat: how a retry finds the place it already has. Never iterated.
#[derive(Default)]
pub(crate) struct QueuedOwners {
    seats: HashTable<u32>,
}

fn seat_hash(lock: u32, owner: &[u8]) -> u64 {
    let mut hash = Hash64::new(u64::from(lock));
    hash.write(owner);
    hash.finish()
}

impl QueuedOwners {
    pub(crate) fn find(
        &self,
        seats: &Slab<Seat>,
        waiters: &Slab<Waiter>,
        lock: u32,
        owner: &[u8],
    ) -> Option<u32> {
        let same = |seat: &u32| seats[*seat].lock == lock && *waiters[seats[*seat].waiter].owner == *owner;
        self.seats.find(seat_hash(lock, owner), same).copied()
    }

    pub(crate) fn insert(&mut self, seats: &Slab<Seat>, waiters: &Slab<Waiter>, seat: u32) {
        let hash = |seat: &u32| seat_hash(seats[*seat].lock, &waiters[seats[*seat].waiter].owner);
        self.seats.insert_unique(hash(&seat), seat, hash);
    }

    /// Call before the seat goes.
    pub(crate) fn remove(&mut self, seats: &Slab<Seat>, waiters: &Slab<Waiter>, seat: u32) {
        let hash = |seat: &u32| seat_hash(seats[*seat].lock, &waiters[seats[*seat].waiter].owner);
        if let Ok(entry) = self.seats.find_entry(hash(&seat), |other| *other == seat) {
            entry.remove();
        }
        if self.seats.capacity() > 1024 && self.seats.len() < self.seats.capacity() / 8 {
            self.seats.shrink_to(self.seats.len() * 2, hash);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.seats.len()
    }
}
