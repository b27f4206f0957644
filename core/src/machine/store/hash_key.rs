//! A secret for hash tables whose keys clients choose: without it nobody can name things that share a place, of which a table would
//! look at each in turn.
//!
//! It is another one in every process, so whatever goes by it must never be iterated: what a node answers does not depend on it.

use crate::machine::log::bytes::Hash64;
use crate::machine::log::command::Db;
use crate::machine::LockSlot;
use crate::types::OwnerIdentity;
use std::hash::{BuildHasher, Hasher, RandomState};

#[derive(Clone, Copy)]
pub(crate) struct HashKey(u64);

impl Default for HashKey {
    fn default() -> HashKey {
        HashKey(RandomState::new().build_hasher().finish())
    }
}

impl HashKey {
    #[inline]
    pub(crate) fn of_name(self, db: Db, name: &[u8]) -> u64 {
        Hash64::of_name(self.0 ^ u64::from(db), name)
    }

    pub(crate) fn of_owner(self, lock: LockSlot, asker: OwnerIdentity<'_>) -> u64 {
        let mut hash = Hash64::new(self.0 ^ u64::from(lock.number()) ^ asker.user.0);
        hash.write(asker.owner);
        hash.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::UserTag;
    use std::collections::BTreeSet;

    /// Under a key of 0 the first eight bytes let the product vanish, and with it the eight bytes behind them.
    fn chosen(number: u64) -> [u8; 16] {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&(0x9e37_79b9_7f4a_7c15_u64 ^ 0xd6e8_feb8_6659_fd93).to_le_bytes());
        name[8..].copy_from_slice(&number.to_le_bytes());
        name
    }

    fn distinct(hash: impl Fn(&[u8]) -> u64) -> usize {
        (0..1_000).map(|number| hash(&chosen(number))).collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn chosen_names_share_a_hash_only_where_the_key_is_known() {
        let (known, secret) = (HashKey(0), HashKey::default());
        assert_eq!(distinct(|name| known.of_name(0, name)), 1);
        assert_eq!(distinct(|name| secret.of_name(0, name)), 1_000);
    }

    #[test]
    fn chosen_owners_share_a_hash_only_where_the_key_is_known() {
        let owned = |key: HashKey, owner: &[u8]| {
            key.of_owner(LockSlot::new(0), OwnerIdentity { owner, user: UserTag::DEFAULT })
        };
        assert_eq!(distinct(|owner| owned(HashKey(UserTag::DEFAULT.0), owner)), 1);
        assert_eq!(distinct(|owner| owned(HashKey::default(), owner)), 1_000);
    }

    #[test]
    fn every_table_has_a_key_of_its_own() {
        let keys: BTreeSet<u64> = (0..100).map(|_| HashKey::default().0).collect();
        assert_eq!(keys.len(), 100);
    }
}
