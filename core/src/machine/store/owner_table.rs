//! (lock, owner, user) → slot of a record. Many small tables instead of one, so that growing never takes long. Never iterated.

use crate::machine::store::hash_key::HashKey;
use crate::machine::store::slot::Slot;
use crate::machine::LockSlot;
use crate::types::OwnerIdentity;
use hashbrown::HashTable;

const SHARDS: usize = 256;

pub(crate) struct OwnerTable<T> {
    key: HashKey,
    shards: Box<[HashTable<Slot<T>>]>,
    len: usize,
}

impl<T> Default for OwnerTable<T> {
    fn default() -> OwnerTable<T> {
        let shards = (0..SHARDS).map(|_| HashTable::new()).collect();
        OwnerTable { key: HashKey::default(), shards, len: 0 }
    }
}

/// The table goes by the lowest and the seven highest bits.
fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

impl<T> OwnerTable<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The record of this owner at this lock. `owned`: whose a record is.
    pub(crate) fn find<'r>(
        &self,
        lock: LockSlot,
        asker: OwnerIdentity<'_>,
        owned: impl Fn(Slot<T>) -> (LockSlot, OwnerIdentity<'r>),
    ) -> Option<Slot<T>> {
        let hash = self.key.of_owner(lock, asker);
        let same = |slot: &Slot<T>| {
            let (other_lock, other) = owned(*slot);
            other_lock == lock && other == asker
        };
        self.shards[shard_of(hash)].find(hash, same).copied()
    }

    pub(crate) fn insert<'r>(
        &mut self,
        slot: Slot<T>,
        owned: impl Fn(Slot<T>) -> (LockSlot, OwnerIdentity<'r>),
    ) {
        let hash = hash_by(self.key, owned);
        let hash_of_it = hash(&slot);
        self.shards[shard_of(hash_of_it)].insert_unique(hash_of_it, slot, hash);
        self.len += 1;
    }

    /// Call before the record goes.
    pub(crate) fn remove<'r>(
        &mut self,
        slot: Slot<T>,
        owned: impl Fn(Slot<T>) -> (LockSlot, OwnerIdentity<'r>),
    ) {
        let hash = hash_by(self.key, owned);
        let hash_of_it = hash(&slot);
        let shard = &mut self.shards[shard_of(hash_of_it)];
        if let Ok(entry) = shard.find_entry(hash_of_it, |other| *other == slot) {
            entry.remove();
            self.len -= 1;
        }
        if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
            shard.shrink_to(shard.len() * 2, hash);
        }
    }
}

fn hash_by<'r, T>(
    key: HashKey,
    owned: impl Fn(Slot<T>) -> (LockSlot, OwnerIdentity<'r>),
) -> impl Fn(&Slot<T>) -> u64 {
    move |slot| {
        let (lock, owner) = owned(*slot);
        key.of_owner(lock, owner)
    }
}
