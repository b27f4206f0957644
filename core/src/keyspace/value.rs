//! What a key may hold.

use super::fields::Fields;
use super::list::List;
use super::sorted::Sorted;
use bytes::Bytes;

/// A key's value. A copy is cheap whatever its size: bytes are shared and the large forms are persistent trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value of a plain lock is its owner.
    Str(Bytes),
    Hash(Fields<Bytes>),
    List(Box<List>),
    Set(Fields<()>),
    ZSet(Box<Sorted>),
}

impl Value {
    #[must_use]
    pub fn str(bytes: &[u8]) -> Value {
        Value::Str(Bytes::copy_from_slice(bytes))
    }

    /// An emptied collection is a deleted key; an empty string is a value like any other.
    #[must_use]
    pub fn is_empty_collection(&self) -> bool {
        match self {
            Value::Str(_) => false,
            Value::Hash(fields) => fields.is_empty(),
            Value::List(items) => items.is_empty(),
            Value::Set(members) => members.is_empty(),
            Value::ZSet(members) => members.is_empty(),
        }
    }
}

/// A look at a value. Whoever keeps the keys need not keep strings as `Value`: a lock's owner is its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View<'a> {
    Str(&'a [u8]),
    Hash(&'a Fields<Bytes>),
    List(&'a List),
    Set(&'a Fields<()>),
    ZSet(&'a Sorted),
}

impl Value {
    #[must_use]
    pub fn view(&self) -> View<'_> {
        match self {
            Value::Str(bytes) => View::Str(bytes),
            Value::Hash(fields) => View::Hash(fields),
            Value::List(items) => View::List(items),
            Value::Set(members) => View::Set(members),
            Value::ZSet(members) => View::ZSet(members),
        }
    }
}

impl Value {
    /// Bytes it takes: of a string its own, of a collection those of its elements, each with its overhead.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.view().weight()
    }
}

impl View<'_> {
    /// As [`Value::weight`]. Known at any time, whatever the size.
    #[must_use]
    pub fn weight(self) -> usize {
        match self {
            View::Str(bytes) => bytes.len(),
            View::Hash(fields) => fields.weight(),
            View::List(items) => items.weight(),
            View::Set(members) => members.weight(),
            View::ZSet(members) => members.weight(),
        }
    }

    /// Elements of a collection; 1 for a string.
    #[must_use]
    pub fn elements(self) -> usize {
        match self {
            View::Str(_) => 1,
            View::Hash(fields) => fields.len(),
            View::List(items) => items.len(),
            View::Set(members) => members.len(),
            View::ZSet(members) => members.len(),
        }
    }

    /// The word `TYPE` answers.
    #[must_use]
    pub fn type_name(self) -> &'static str {
        match self {
            View::Str(_) => "string",
            View::Hash(_) => "hash",
            View::List(_) => "list",
            View::Set(_) => "set",
            View::ZSet(_) => "zset",
        }
    }

    #[must_use]
    pub fn to_value(self) -> Value {
        match self {
            View::Str(bytes) => Value::str(bytes),
            View::Hash(fields) => Value::Hash(fields.clone()),
            View::List(items) => Value::List(Box::new(items.clone())),
            View::Set(members) => Value::Set(members.clone()),
            View::ZSet(members) => Value::ZSet(Box::new(members.clone())),
        }
    }
}
