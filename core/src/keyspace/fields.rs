//! A map from a name to something, in an order every node agrees on. Carries hashes (`V` = the value) and sets (`V` = nothing).
//!
//! Small ones stand in a vector in the order they came, as Redis's listpacks do. Beyond [`SMALL_MAX`] entries they move into
//! a persistent tree ordered by name: a copy of it costs nothing, so a script's writes can be undone. They never move back,
//! and the snapshot says which of the two it was, because the order of iteration is part of what a script can see.

use bytes::Bytes;
use imbl::OrdMap;

/// Most entries of the small form. Redis's own limit is 128.
pub const SMALL_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fields<V: Clone> {
    Small(Vec<(Bytes, V)>),
    Large(OrdMap<Bytes, V>),
}

impl<V: Clone> Default for Fields<V> {
    fn default() -> Self {
        Fields::Small(Vec::new())
    }
}

impl<V: Clone> Fields<V> {
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Fields::Small(entries) => entries.len(),
            Fields::Large(tree) => tree.len(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&V> {
        match self {
            Fields::Small(entries) => entries.iter().find(|(have, _)| have == name).map(|(_, value)| value),
            Fields::Large(tree) => tree.get(name),
        }
    }

    #[must_use]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.get(name).is_some()
    }

    /// Sets `name`; answers what was there before.
    pub fn insert(&mut self, name: &[u8], value: V) -> Option<V> {
        match self {
            Fields::Small(entries) => {
                if let Some((_, slot)) = entries.iter_mut().find(|(have, _)| have == name) {
                    return Some(std::mem::replace(slot, value));
                }
                entries.push((Bytes::copy_from_slice(name), value));
                if entries.len() > SMALL_MAX {
                    *self = Fields::Large(std::mem::take(entries).into_iter().collect());
                }
                None
            }
            Fields::Large(tree) => match tree.get_mut(name) {
                Some(slot) => Some(std::mem::replace(slot, value)),
                None => tree.insert(Bytes::copy_from_slice(name), value),
            },
        }
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<V> {
        match self {
            Fields::Small(entries) => {
                let at = entries.iter().position(|(have, _)| have == name)?;
                Some(entries.remove(at).1)
            }
            Fields::Large(tree) => tree.remove(name),
        }
    }

    /// Every entry: small ones in the order they came, large ones by name.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (&Bytes, &V)> + '_> {
        match self {
            Fields::Small(entries) => Box::new(entries.iter().map(|(name, value)| (name, value))),
            Fields::Large(tree) => Box::new(tree.iter()),
        }
    }

    /// The `nth` name in the order of iteration.
    #[must_use]
    pub fn nth(&self, nth: usize) -> Option<&Bytes> {
        match self {
            Fields::Small(entries) => entries.get(nth).map(|(name, _)| name),
            Fields::Large(tree) => tree.keys().nth(nth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order_of_arrival_while_small_and_sorts_when_large() {
        let mut fields = Fields::default();
        for name in ["b", "a", "c"] {
            assert_eq!(fields.insert(name.as_bytes(), 1), None);
        }
        assert_eq!(fields.insert(b"a", 2), Some(1));
        assert_eq!(fields.remove(b"b"), Some(1));
        let names: Vec<&[u8]> = fields.iter().map(|(name, _)| name.as_ref()).collect();
        assert_eq!(names, [b"a", b"c"]);
        for number in 0..SMALL_MAX {
            fields.insert(format!("{:04}", SMALL_MAX - number).as_bytes(), 0);
        }
        assert!(matches!(fields, Fields::Large(_)));
        assert_eq!(fields.len(), SMALL_MAX + 2);
        assert!(fields.iter().zip(fields.iter().skip(1)).all(|((left, _), (right, _))| left < right));
        assert_eq!(fields.get(b"a"), Some(&2));
        assert_eq!(fields.remove(b"a"), Some(2));
        assert!(!fields.contains(b"a"));
    }
}
