//! A collection as bytes in portions, for snapshots: a [`Writer`] gives it out element by element, a [`Builder`] takes it in again.
//! However large a collection is, neither ever holds more than one portion beside the collection itself.
//!
//! The form of a collection is written too: the order of iteration depends on it.

use super::codec::{put, ValueReader};
use super::fields::{Fields, Weigh};
use super::sorted::{Score, Sorted};
use super::value::Value;
use super::{fields, sorted};
use crate::limits::STRING_BYTES_MAX;
use bytes::Bytes;
use imbl::{OrdMap, OrdSet};
use std::ops::Bound::{Excluded, Unbounded};

mod form {
    pub(super) const LIST: u8 = 1;
    pub(super) const HASH_SMALL: u8 = 2;
    pub(super) const HASH_LARGE: u8 = 3;
    pub(super) const SET_SMALL: u8 = 4;
    pub(super) const SET_LARGE: u8 = 5;
    pub(super) const ZSET_SMALL: u8 = 6;
    pub(super) const ZSET_LARGE: u8 = 7;
}

/// Which collection it is and in which form. `None` for a string: those are not written in portions.
#[must_use]
pub fn form(value: &Value) -> Option<u8> {
    Some(match value {
        Value::Str(_) => return None,
        Value::List(_) => form::LIST,
        Value::Hash(fields) => match fields.form() {
            fields::FieldsForm::Small(_) => form::HASH_SMALL,
            fields::FieldsForm::Large(_) => form::HASH_LARGE,
        },
        Value::Set(members) => match members.form() {
            fields::FieldsForm::Small(_) => form::SET_SMALL,
            fields::FieldsForm::Large(_) => form::SET_LARGE,
        },
        Value::ZSet(members) => match members.form() {
            sorted::SortedForm::Small(_) => form::ZSET_SMALL,
            sorted::SortedForm::Large { .. } => form::ZSET_LARGE,
        },
    })
}

/// How many elements a collection has.
#[must_use]
pub fn len(value: &Value) -> usize {
    match value {
        Value::Str(_) => 1,
        Value::List(items) => items.len(),
        Value::Hash(fields) => fields.len(),
        Value::Set(members) => members.len(),
        Value::ZSet(members) => members.len(),
    }
}

/// Gives out a collection's elements. Holds a copy of it, which costs nothing.
pub struct Writer {
    value: Value,
    /// Elements written so far.
    written: usize,
    /// In a tree, the element written last.
    last: Option<(Score, Bytes)>,
}

impl Writer {
    #[must_use]
    pub fn new(value: Value) -> Writer {
        Writer { value, written: 0, last: None }
    }

    /// Whether all elements are written.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.written >= len(&self.value)
    }

    /// Appends elements until they take `bytes_max` bytes or more; at least one.
    pub fn write(&mut self, bytes_max: usize, out: &mut Vec<u8>) {
        let Writer { value, written, last } = self;
        let mut portion = Portion { start: out.len(), bytes_max, out, written };
        match value {
            Value::Str(bytes) => portion.put(|out| put(out, bytes)),
            Value::List(items) => {
                for item in items.focus().narrow(*portion.written..items.len()) {
                    if !portion.has_room() {
                        break;
                    }
                    portion.put(|out| put(out, item));
                }
            }
            Value::Hash(fields) => portion.put_fields(fields, last, |out, value| put(out, value)),
            Value::Set(members) => portion.put_fields(members, last, |_, ()| {}),
            Value::ZSet(members) => portion.put_sorted(members, last),
        }
    }
}

struct Portion<'a> {
    start: usize,
    bytes_max: usize,
    out: &'a mut Vec<u8>,
    written: &'a mut usize,
}

impl Portion<'_> {
    fn has_room(&self) -> bool {
        self.out.len() - self.start < self.bytes_max
    }

    fn put(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        put(self.out);
        *self.written += 1;
    }

    fn put_fields<V: Clone + Weigh>(
        &mut self,
        fields: &Fields<V>,
        last: &mut Option<(Score, Bytes)>,
        put_value: impl Fn(&mut Vec<u8>, &V),
    ) {
        let put_entry = |portion: &mut Self, name: &Bytes, value: &V| {
            portion.put(|out| {
                put(out, name);
                put_value(out, value);
            });
        };
        match fields.form() {
            fields::FieldsForm::Small(entries) => {
                while let Some((name, value)) = entries.get(*self.written).filter(|_| self.has_room()) {
                    put_entry(self, name, value);
                }
            }
            fields::FieldsForm::Large(tree) => {
                let from = last.take().map_or(Unbounded, |(_, name)| Excluded(name));
                for (name, value) in tree.range((from, Unbounded)) {
                    if !self.has_room() {
                        break;
                    }
                    put_entry(self, name, value);
                    *last = Some((Score(0.0), name.clone()));
                }
            }
        }
    }

    fn put_sorted(&mut self, members: &Sorted, last: &mut Option<(Score, Bytes)>) {
        let put_member = |portion: &mut Self, score: f64, member: &Bytes| {
            portion.put(|out| {
                out.extend_from_slice(&score.to_bits().to_le_bytes());
                put(out, member);
            });
        };
        match members.form() {
            sorted::SortedForm::Small(entries) => {
                while let Some((score, member)) = entries.get(*self.written).filter(|_| self.has_room()) {
                    put_member(self, score.0, member);
                }
            }
            sorted::SortedForm::Large { by_score, .. } => {
                let from = last.take().map_or(Unbounded, Excluded);
                for (score, member) in by_score.range((from, Unbounded)) {
                    if !self.has_room() {
                        break;
                    }
                    put_member(self, score.0, member);
                    *last = Some((*score, member.clone()));
                }
            }
        }
    }
}

/// Takes a collection's elements in again. What comes in is not believed.
pub struct Builder {
    value: Value,
    missing: usize,
}

impl Builder {
    /// `None` where there is no such form, or no element is to come.
    #[must_use]
    pub fn new(form: u8, len: usize) -> Option<Builder> {
        let sorted_large = || sorted::SortedForm::Large { by_score: OrdSet::new(), by_member: OrdMap::new() };
        let value = match form {
            form::LIST => Value::List(Box::default()),
            form::HASH_SMALL => Value::Hash(Fields::default()),
            form::HASH_LARGE => Value::Hash(fields::FieldsForm::Large(OrdMap::new()).into()),
            form::SET_SMALL => Value::Set(Fields::default()),
            form::SET_LARGE => Value::Set(fields::FieldsForm::Large(OrdMap::new()).into()),
            form::ZSET_SMALL => Value::ZSet(Box::default()),
            form::ZSET_LARGE => Value::ZSet(Box::new(sorted_large().into())),
            _ => return None,
        };
        (len > 0).then_some(Builder { value, missing: len })
    }

    /// Takes the elements of one portion. `None` where they are not such, out of order or too many.
    pub fn read(&mut self, portion: &[u8]) -> Option<()> {
        let mut reader = ValueReader(portion);
        while !reader.0.is_empty() {
            self.missing = self.missing.checked_sub(1)?;
            match &mut self.value {
                Value::Str(_) => return None,
                Value::List(items) => items.push_back(element(&mut reader)?),
                Value::Hash(fields) => {
                    let (name, value) = (element(&mut reader)?, element(&mut reader)?);
                    fields.append(name, value)?;
                }
                Value::Set(members) => members.append(element(&mut reader)?, ())?,
                Value::ZSet(members) => {
                    let score = reader.score()?;
                    members.append(score, element(&mut reader)?)?;
                }
            }
        }
        Some(())
    }

    #[must_use]
    pub fn is_done(&self) -> bool {
        self.missing == 0
    }

    /// The collection. Call when [`Builder::is_done`].
    #[must_use]
    pub fn finish(self) -> Value {
        self.value
    }
}

fn element(reader: &mut ValueReader<'_>) -> Option<Bytes> {
    reader.bytes().filter(|bytes| bytes.len() <= STRING_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize) -> Vec<Value> {
        let mut hash: Fields<Bytes> = Fields::default();
        let mut set: Fields<()> = Fields::default();
        let mut zset = Sorted::default();
        let mut list = super::super::list::List::default();
        for number in 0..count {
            let name = format!("name{}", number * 7919 % 1009);
            hash.insert(name.as_bytes(), Bytes::from("v".repeat(number % 97)));
            set.insert(name.as_bytes(), ());
            zset.insert(name.as_bytes(), (number % 13) as f64);
            list.push_back(Bytes::from(name));
        }
        vec![Value::Hash(hash), Value::Set(set), Value::ZSet(Box::new(zset)), Value::List(Box::new(list))]
    }

    #[test]
    fn a_collection_comes_back_from_portions_of_any_size() {
        for value in [1, 3, 128, 129, 1000].into_iter().flat_map(values) {
            for bytes_max in [1, 7, 100, 1 << 20] {
                let mut writer = Writer::new(value.clone());
                let mut builder = Builder::new(form(&value).unwrap(), len(&value)).unwrap();
                while !writer.is_done() {
                    assert!(!builder.is_done());
                    let mut portion = Vec::new();
                    writer.write(bytes_max, &mut portion);
                    assert!(!portion.is_empty() && portion.len() < bytes_max + 128);
                    builder.read(&portion).unwrap();
                }
                assert!(builder.is_done());
                assert_eq!(builder.finish(), value);
            }
        }
    }

    #[test]
    fn elements_that_are_doubled_too_many_or_none_are_refused() {
        for value in [3, 200].into_iter().flat_map(values) {
            let mut portion = Vec::new();
            Writer::new(value.clone()).write(1 << 20, &mut portion);
            let fresh = |len| Builder::new(form(&value).unwrap(), len).unwrap();
            assert_eq!(fresh(len(&value) - 1).read(&portion), None, "one too many");
            assert_eq!(fresh(len(&value)).read(&portion[..portion.len() - 1]), None, "cut");
            if !matches!(value, Value::List(_)) {
                let mut twice = fresh(2 * len(&value));
                twice.read(&portion).unwrap();
                assert_eq!(twice.read(&portion), None, "doubled");
            }
        }
        assert!(Builder::new(99, 1).is_none() && Builder::new(form::LIST, 0).is_none());
    }
}
