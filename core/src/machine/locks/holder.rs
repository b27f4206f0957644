//! Holders of locks in another mode than exclusive: one record each, with its own fence, owner, lease and session. An exclusive
//! holder is part of its lock's record (`lock.rs`).

use crate::machine::locks::lock::GrantedTime;
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::snapshot::write::kind;
use crate::machine::store::list::{Linked, Links};
use crate::machine::store::owner_table::OwnerTable;
use crate::machine::store::slab::{Image, Slab};
use crate::machine::{HolderSlot, LockSlot, SessionSlot, Slot};
use crate::types::{Fence, LockKind, LockMode, OwnerIdentity, UserTag, VALUE_BYTES_MAX};
use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) lock: LockSlot,
    pub(crate) fence: Fence,
    pub(crate) owner: Box<[u8]>,
    pub(crate) user: UserTag,
    /// Empty where none was given.
    pub(crate) value: Box<[u8]>,
    /// Shared, or so many permits.
    pub(crate) kind: LockKind,
    pub(crate) since_ms: u64,
    pub(crate) deadline_ms: u64,
    pub(crate) granted: GrantedTime,
    /// `NONE` where it has none.
    pub(crate) session: SessionSlot,
    /// In the session's list.
    pub(crate) links: Links<Holder>,
}

impl Holder {
    pub(crate) fn asker(&self) -> OwnerIdentity<'_> {
        OwnerIdentity { owner: &self.owner, user: self.user }
    }
}

impl Linked for Holder {
    fn links(&self) -> Links<Holder> {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links<Holder> {
        &mut self.links
    }
}

impl Image for Holder {
    const KIND: u8 = kind::HOLDER;

    fn write(&self, out: &mut Vec<u8>) {
        self.lock.write(out);
        put_varint(out, self.fence.0);
        put_bytes(out, &self.owner);
        put_varint(out, self.user.0);
        put_bytes(out, &self.value);
        put_kind(out, self.kind);
        put_varint(out, self.since_ms);
        put_varint(out, self.deadline_ms.wrapping_add(1));
        self.granted.write(out);
        self.session.write(out);
        self.links.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Holder> {
        let (lock, fence) = (Slot::read(reader)?, Fence(reader.varint()?));
        let (owner, user, value) = (reader.bytes()?, UserTag(reader.varint()?), reader.bytes()?);
        let kind = read_kind(reader).filter(|kind| *kind != LockKind::Exclusive)?;
        if value.len() > VALUE_BYTES_MAX {
            return None;
        }
        Some(Holder {
            lock,
            fence,
            owner: owner.into(),
            user,
            value: value.into(),
            kind,
            since_ms: reader.varint()?,
            deadline_ms: reader.varint()?.wrapping_sub(1),
            granted: GrantedTime::read(reader)?,
            session: Slot::read(reader)?,
            links: Links::read(reader)?,
        })
    }
}

/// A kind of lock, in commands and in snapshots.
pub(crate) fn put_kind(out: &mut Vec<u8>, kind: LockKind) {
    match kind {
        LockKind::Exclusive => out.push(0),
        LockKind::Shared => out.push(1),
        LockKind::Permits { count, max } => {
            out.push(2);
            put_varint(out, u64::from(count));
            put_varint(out, u64::from(max));
        }
    }
}

pub(crate) fn read_kind(reader: &mut Reader<'_>) -> Option<LockKind> {
    Some(match reader.u8()? {
        0 => LockKind::Exclusive,
        1 => LockKind::Shared,
        2 => LockKind::Permits { count: reader.varint_u32()?, max: reader.varint_u32()? },
        _ => return None,
    })
}

/// Finds holders by their lock and fence, which is also the order of their grants, and by their lock and owner. Worked out from
/// the records.
#[derive(Default)]
pub(crate) struct HolderIndex {
    by_fence: BTreeMap<(LockSlot, Fence), HolderSlot>,
    by_owner: OwnerTable<Holder>,
    counts: HolderCounts,
}

/// How many holders there are besides exclusive ones, and of how many locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HolderCounts {
    pub(crate) locks: u64,
    by_mode: [u64; 3],
}

impl HolderCounts {
    pub(crate) fn of_mode(&self, mode: LockMode) -> u64 {
        self.by_mode[mode as usize]
    }
}

/// Whose a holder is.
fn owned<'r>(holders: &'r Slab<Holder>) -> impl Fn(HolderSlot) -> (LockSlot, OwnerIdentity<'r>) {
    |slot| (holders[slot].lock, holders[slot].asker())
}

impl HolderIndex {
    pub(crate) fn len(&self) -> usize {
        self.by_fence.len()
    }

    pub(crate) fn counts(&self) -> HolderCounts {
        self.counts
    }

    pub(crate) fn with_fence(&self, lock: LockSlot, fence: Fence) -> Option<HolderSlot> {
        self.by_fence.get(&(lock, fence)).copied()
    }

    pub(crate) fn of_owner(
        &self,
        holders: &Slab<Holder>,
        lock: LockSlot,
        asker: OwnerIdentity<'_>,
    ) -> Option<HolderSlot> {
        self.by_owner.find(lock, asker, owned(holders))
    }

    /// The holders of a lock, oldest first.
    pub(crate) fn of_lock(&self, lock: LockSlot) -> impl DoubleEndedIterator<Item = HolderSlot> + '_ {
        self.by_fence.range((lock, Fence(0))..=(lock, Fence(u64::MAX))).map(|(_, slot)| *slot)
    }

    /// False where another holder of that lock has the same fence.
    pub(crate) fn insert(&mut self, holders: &Slab<Holder>, slot: HolderSlot) -> bool {
        let holder = &holders[slot];
        let is_first = self.of_lock(holder.lock).next().is_none();
        self.counts.locks += u64::from(is_first);
        self.counts.by_mode[holder.kind.mode() as usize] += 1;
        self.by_owner.insert(slot, owned(holders));
        self.by_fence.insert((holder.lock, holder.fence), slot).is_none()
    }

    /// Call before the record goes.
    pub(crate) fn remove(&mut self, holders: &Slab<Holder>, slot: HolderSlot) {
        let holder = &holders[slot];
        self.by_fence.remove(&(holder.lock, holder.fence));
        let was_last = self.of_lock(holder.lock).next().is_none();
        self.counts.locks -= u64::from(was_last);
        self.counts.by_mode[holder.kind.mode() as usize] -= 1;
        self.by_owner.remove(slot, owned(holders));
    }
}
