//! Records of waiting owners: one [`Waiter`] per owner, one [`QueueEntry`] per queue it is in. A waiter of `LOCK.ACQUIRE` has one
//! entry, a waiter of `LOCK.MACQUIRE` one per resource, all made in the same step.

use crate::machine::locks::holder::{put_kind, read_kind};
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::snapshot::write::kind;
use crate::machine::store::deadlines::NEVER;
use crate::machine::store::list::{Linked, Links};
use crate::machine::store::owner_table::OwnerTable;
use crate::machine::store::slab::{Image, Slab};
use crate::machine::{LockSlot, QueueEntrySlot, SessionSlot, Slot, WaiterSlot};
use crate::types::{
    has_passed, Fence, LockKind, Origin, OwnerIdentity, RequestId, UserTag, MULTI_RESOURCES_MAX,
    OWNER_BYTES_MAX, VALUE_BYTES_MAX,
};
use smallvec::SmallVec;

/// A place in one lock's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueEntry {
    pub(crate) lock: LockSlot,
    pub(crate) waiter: WaiterSlot,
    links: Links<QueueEntry>,
}

impl QueueEntry {
    pub(crate) fn new(lock: LockSlot, waiter: WaiterSlot) -> QueueEntry {
        QueueEntry { lock, waiter, links: Links::UNLINKED }
    }
}

impl Linked for QueueEntry {
    fn links(&self) -> Links<QueueEntry> {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links<QueueEntry> {
        &mut self.links
    }
}

impl Image for QueueEntry {
    const KIND: u8 = kind::QUEUE_ENTRY;

    fn write(&self, out: &mut Vec<u8>) {
        self.lock.write(out);
        self.waiter.write(out);
        self.links.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<QueueEntry> {
        Some(QueueEntry {
            lock: Slot::read(reader)?,
            waiter: Slot::read(reader)?,
            links: Links::read(reader)?,
        })
    }
}

/// One request of a waiter. A retry of a queued owner adds one; the grant answers all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedRequest {
    pub(crate) id: Option<RequestId>,
    /// When this request's own WAIT runs out.
    pub(crate) deadline_ms: u64,
    pub(crate) form: ReplyForm,
}

/// How the grant is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyForm {
    /// `[fence, ttl]`
    One,
    /// `[[fence, …], ttl]`: for each resource in the order asked, its place in the canonical order.
    Many(Box<[u8]>),
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) owner: Box<[u8]>,
    pub(crate) user: UserTag,
    /// Never empty, in the order they came.
    pub(crate) requests: SmallVec<[QueuedRequest; 1]>,
    /// In the canonical order of the resources' names.
    pub(crate) queue_entries: SmallVec<[QueueEntrySlot; 4]>,
    /// `NONE` where it has none.
    pub(crate) session: SessionSlot,
    /// In the session's list.
    links: Links<Waiter>,
    pub(crate) ttl_ms: u64,
    pub(crate) since_ms: u64,
    pub(crate) kind: LockKind,
    /// VALUE of the grant; empty where none was given.
    pub(crate) value: Box<[u8]>,
    /// The shared hold that it wants to turn into the exclusive one: see `convert.rs`. 0 for a waiter that holds nothing.
    pub(crate) converts: Fence,
}

impl ReplyForm {
    /// Bytes of the order it keeps.
    pub(crate) fn len(&self) -> usize {
        match self {
            ReplyForm::One => 0,
            ReplyForm::Many(order) => order.len(),
        }
    }
}

impl Waiter {
    pub(crate) fn new(
        asker: OwnerIdentity<'_>,
        session: SessionSlot,
        ttl_ms: u64,
        since_ms: u64,
        first: QueuedRequest,
    ) -> Waiter {
        Waiter {
            owner: asker.owner.into(),
            user: asker.user,
            requests: SmallVec::from_iter([first]),
            queue_entries: SmallVec::new(),
            session,
            links: Links::UNLINKED,
            ttl_ms,
            since_ms,
            kind: LockKind::Exclusive,
            value: Box::default(),
            converts: Fence(0),
        }
    }

    pub(crate) fn asker(&self) -> OwnerIdentity<'_> {
        OwnerIdentity { owner: &self.owner, user: self.user }
    }

    /// Of another kind than a plain exclusive lock: only since cluster version 2.
    pub(crate) fn of_kind(mut self, kind: LockKind, value: &[u8]) -> Waiter {
        (self.kind, self.value) = (kind, value.into());
        self
    }

    /// When the next of its requests gives up.
    pub(crate) fn next_deadline_ms(&self) -> u64 {
        self.requests.iter().map(|request| request.deadline_ms).min().unwrap_or(NEVER)
    }

    /// Whether one of its requests still has time.
    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        self.requests.iter().any(|request| !has_passed(request.deadline_ms, now_ms))
    }
}

impl Linked for Waiter {
    fn links(&self) -> Links<Waiter> {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links<Waiter> {
        &mut self.links
    }
}

/// In the number of a record's queue entries: the user's tag follows.
const USER_FLAG: u64 = 1 << 16;

impl Image for Waiter {
    const KIND: u8 = kind::WAITER;

    fn write(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.owner);
        self.session.write(out);
        self.links.write(out);
        put_varint(out, self.ttl_ms);
        put_varint(out, self.since_ms);
        match self.user {
            UserTag::DEFAULT => put_varint(out, self.queue_entries.len() as u64),
            UserTag(tag) => {
                put_varint(out, self.queue_entries.len() as u64 | USER_FLAG);
                out.extend_from_slice(&tag.to_le_bytes());
            }
        }
        self.queue_entries.iter().for_each(|entry| entry.write(out));
        put_varint(out, self.requests.len() as u64);
        self.requests.iter().for_each(|request| request.write(out));
        if self.kind != LockKind::Exclusive || !self.value.is_empty() || self.converts != Fence(0) {
            put_kind(out, self.kind);
            put_bytes(out, &self.value);
            put_varint(out, self.converts.0);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Waiter> {
        let owner = reader.bytes()?;
        if owner.is_empty() || owner.len() > OWNER_BYTES_MAX {
            return None;
        }
        let session = Slot::read(reader)?;
        let links = Links::read(reader)?;
        let (ttl_ms, since_ms) = (reader.varint()?, reader.varint()?);
        let bits = reader.varint()?;
        let user = if bits & USER_FLAG == 0 {
            UserTag::DEFAULT
        } else {
            UserTag(reader.u64_fixed().filter(|tag| *tag != UserTag::DEFAULT.0)?)
        };
        let mut queue_entries = SmallVec::new();
        for _ in 0..bits & !USER_FLAG {
            if queue_entries.len() == MULTI_RESOURCES_MAX {
                return None;
            }
            queue_entries.push(Slot::read(reader)?);
        }
        let mut requests = SmallVec::new();
        for _ in 0..reader.varint()? {
            requests.push(QueuedRequest::read(reader, queue_entries.len())?);
        }
        if queue_entries.is_empty() || requests.is_empty() {
            return None;
        }
        let (mut kind, mut value, mut converts) = (LockKind::Exclusive, &[][..], Fence(0));
        if !reader.is_empty() {
            kind = read_kind(reader).filter(|kind| kind.is_valid())?;
            value = reader.bytes().filter(|value| value.len() <= VALUE_BYTES_MAX)?;
            converts = Fence(reader.varint()?);
        }
        let (owner, value) = (owner.into(), value.into());
        Some(Waiter {
            owner,
            user,
            requests,
            queue_entries,
            session,
            links,
            ttl_ms,
            since_ms,
            kind,
            value,
            converts,
        })
    }
}

impl QueuedRequest {
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
            ReplyForm::One => out.push(0),
            ReplyForm::Many(order) => {
                out.push(1);
                put_bytes(out, order);
            }
        }
    }

    fn read(reader: &mut Reader<'_>, queue_entries: usize) -> Option<QueuedRequest> {
        let id = if reader.flag()? { Some(read_request_id(reader)?) } else { None };
        let deadline_ms = reader.varint()?;
        let form = if reader.flag()? {
            let order = reader.bytes()?;
            if order.len() != queue_entries || order.iter().any(|place| usize::from(*place) >= queue_entries)
            {
                return None;
            }
            ReplyForm::Many(order.into())
        } else if queue_entries == 1 {
            ReplyForm::One
        } else {
            return None;
        };
        Some(QueuedRequest { id, deadline_ms, form })
    }
}

pub(crate) fn put_request_id(out: &mut Vec<u8>, id: RequestId) {
    put_origin(out, id.origin);
    put_varint(out, id.seq);
}

pub(crate) fn read_request_id(reader: &mut Reader<'_>) -> Option<RequestId> {
    Some(RequestId { origin: read_origin(reader)?, seq: reader.varint()? })
}

pub(crate) fn put_origin(out: &mut Vec<u8>, origin: Origin) {
    put_varint(out, origin.node);
    out.extend_from_slice(&origin.incarnation.to_le_bytes());
}

pub(crate) fn read_origin(reader: &mut Reader<'_>) -> Option<Origin> {
    Some(Origin { node: reader.varint()?, incarnation: reader.u64_fixed()? })
}

/// Index (lock, owner, user) → queue entry, by which a retry finds its waiter.
#[derive(Default)]
pub(crate) struct QueuedOwners(OwnerTable<QueueEntry>);

/// Whose a queue entry is.
fn owned<'r>(
    queue_entries: &'r Slab<QueueEntry>,
    waiters: &'r Slab<Waiter>,
) -> impl Fn(QueueEntrySlot) -> (LockSlot, OwnerIdentity<'r>) {
    |entry| (queue_entries[entry].lock, waiters[queue_entries[entry].waiter].asker())
}

impl QueuedOwners {
    pub(crate) fn find(
        &self,
        queue_entries: &Slab<QueueEntry>,
        waiters: &Slab<Waiter>,
        lock: LockSlot,
        asker: OwnerIdentity<'_>,
    ) -> Option<QueueEntrySlot> {
        self.0.find(lock, asker, owned(queue_entries, waiters))
    }

    pub(crate) fn insert(
        &mut self,
        queue_entries: &Slab<QueueEntry>,
        waiters: &Slab<Waiter>,
        entry: QueueEntrySlot,
    ) {
        self.0.insert(entry, owned(queue_entries, waiters));
    }

    /// Call before the queue entry goes.
    pub(crate) fn remove(
        &mut self,
        queue_entries: &Slab<QueueEntry>,
        waiters: &Slab<Waiter>,
        entry: QueueEntrySlot,
    ) {
        self.0.remove(entry, owned(queue_entries, waiters));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
