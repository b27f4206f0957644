//! A map from a name to something, in an order every node agrees on. Carries hashes (`V` = the value) and sets (`V` = nothing).
//!
//! Small ones stand in a vector in the order they came, as Redis's listpacks do. Beyond [`SMALL_MAX`] entries they move into
//! a persistent tree ordered by name: a copy of it costs nothing, so a script's writes can be undone. They never move back,
//! and the snapshot says which of the two it was, because the order of iteration is part of what a script can see.

use crate::limits::ELEMENT_OVERHEAD_BYTES;
use bytes::Bytes;
use imbl::OrdMap;

/// Most entries of the small form. Redis's own limit is 128.
pub const SMALL_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldsForm<V: Clone> {
    Small(Vec<(Bytes, V)>),
    Large(OrdMap<Bytes, V>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields<V: Clone> {
    form: FieldsForm<V>,
    weight: usize,
}

/// What stands behind a name: its bytes with their overhead.
pub trait Weigh {
    fn weigh(&self) -> usize;
}

impl Weigh for Bytes {
    fn weigh(&self) -> usize {
        self.len() + ELEMENT_OVERHEAD_BYTES
    }
}

impl Weigh for () {
    fn weigh(&self) -> usize {
        0
    }
}

impl<V: Clone> Default for Fields<V> {
    fn default() -> Self {
        Fields { form: FieldsForm::Small(Vec::new()), weight: 0 }
    }
}

impl<V: Clone + Weigh> From<FieldsForm<V>> for Fields<V> {
    fn from(form: FieldsForm<V>) -> Fields<V> {
        let mut fields = Fields { form, weight: 0 };
        fields.weight = fields.iter().map(|(name, value)| name.weigh() + value.weigh()).sum();
        fields
    }
}

impl<V: Clone + Weigh> Fields<V> {
    #[must_use]
    pub fn form(&self) -> &FieldsForm<V> {
        &self.form
    }

    /// Bytes of all names and values, each with its overhead.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.weight
    }

    #[must_use]
    pub fn len(&self) -> usize {
        match &self.form {
            FieldsForm::Small(entries) => entries.len(),
            FieldsForm::Large(tree) => tree.len(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&V> {
        match &self.form {
            FieldsForm::Small(entries) => {
                entries.iter().find(|(have, _)| have == name).map(|(_, value)| value)
            }
            FieldsForm::Large(tree) => tree.get(name),
        }
    }

    /// Bytes that a look for this name compares at most: all names of a small form, those on the way down a tree.
    #[must_use]
    pub(super) fn compared_bytes(&self, name: &[u8]) -> usize {
        let compares = match &self.form {
            FieldsForm::Small(entries) => entries.len(),
            FieldsForm::Large(tree) => tree.len().checked_ilog2().unwrap_or(0) as usize + 1,
        };
        name.len() * compares
    }

    #[must_use]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.get(name).is_some()
    }

    /// Sets `name`; answers what was there before.
    pub fn insert(&mut self, name: &[u8], value: V) -> Option<V> {
        self.weight += value.weigh();
        let before = match &mut self.form {
            FieldsForm::Small(entries) => match entries.iter_mut().find(|(have, _)| have == name) {
                Some((_, slot)) => Some(std::mem::replace(slot, value)),
                None => {
                    entries.push((Bytes::copy_from_slice(name), value));
                    if entries.len() > SMALL_MAX {
                        self.form = FieldsForm::Large(std::mem::take(entries).into_iter().collect());
                    }
                    None
                }
            },
            FieldsForm::Large(tree) => match tree.get_mut(name) {
                Some(slot) => Some(std::mem::replace(slot, value)),
                None => tree.insert(Bytes::copy_from_slice(name), value),
            },
        };
        match &before {
            Some(before) => self.weight -= before.weigh(),
            None => self.weight += name.len() + ELEMENT_OVERHEAD_BYTES,
        }
        before
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<V> {
        let before = match &mut self.form {
            FieldsForm::Small(entries) => {
                let at = entries.iter().position(|(have, _)| have == name)?;
                entries.remove(at).1
            }
            FieldsForm::Large(tree) => tree.remove(name)?,
        };
        self.weight -= name.len() + ELEMENT_OVERHEAD_BYTES + before.weigh();
        Some(before)
    }

    /// Every entry: small ones in the order they came, large ones by name.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (&Bytes, &V)> + '_> {
        match &self.form {
            FieldsForm::Small(entries) => Box::new(entries.iter().map(|(name, value)| (name, value))),
            FieldsForm::Large(tree) => Box::new(tree.iter()),
        }
    }

    /// The `nth` name in the order of iteration.
    #[must_use]
    pub fn nth(&self, nth: usize) -> Option<&Bytes> {
        match &self.form {
            FieldsForm::Small(entries) => entries.get(nth).map(|(name, _)| name),
            FieldsForm::Large(tree) => tree.keys().nth(nth),
        }
    }

    /// Adds an entry behind all others, as a snapshot gives them. `None` where it is there already or out of order.
    pub(super) fn append(&mut self, name: Bytes, value: V) -> Option<()> {
        let weight = name.weigh() + value.weigh();
        match &mut self.form {
            FieldsForm::Small(entries) => {
                let doubled = entries.iter().any(|(have, _)| *have == name);
                (!doubled && entries.len() < SMALL_MAX).then(|| entries.push((name, value)))?;
            }
            FieldsForm::Large(tree) => {
                let in_order = tree.get_max().is_none_or(|(last, _)| *last < name);
                in_order.then(|| tree.insert(name, value))?;
            }
        }
        self.weight += weight;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order_of_arrival_while_small_and_sorts_when_large() {
        let mut fields = Fields::default();
        for name in ["b", "a", "c"] {
            assert_eq!(fields.insert(name.as_bytes(), Bytes::from("1")), None);
        }
        assert_eq!(fields.insert(b"a", Bytes::from("22")), Some(Bytes::from("1")));
        assert_eq!(fields.remove(b"b"), Some(Bytes::from("1")));
        let names: Vec<&[u8]> = fields.iter().map(|(name, _)| name.as_ref()).collect();
        assert_eq!(names, [b"a", b"c"]);
        for number in 0..SMALL_MAX {
            fields.insert(format!("{:04}", SMALL_MAX - number).as_bytes(), Bytes::new());
            assert_eq!(fields.weight(), Fields::from(fields.form().clone()).weight());
        }
        assert!(matches!(fields.form(), FieldsForm::Large(_)));
        assert_eq!(fields.len(), SMALL_MAX + 2);
        assert!(fields.iter().zip(fields.iter().skip(1)).all(|((left, _), (right, _))| left < right));
        assert_eq!(fields.get(b"a"), Some(&Bytes::from("22")));
        assert_eq!(fields.remove(b"a"), Some(Bytes::from("22")));
        assert!(!fields.contains(b"a"));
        assert_eq!(fields.weight(), Fields::from(fields.form().clone()).weight());
    }
}
