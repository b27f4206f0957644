//! What a key may hold.

use super::fields::Fields;
use super::sorted::Sorted;
use bytes::Bytes;
use imbl::Vector;

/// A key's value. A copy is cheap whatever its size: bytes are shared and the large forms are persistent trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value of a plain lock is its owner.
    Str(Bytes),
    Hash(Fields<Bytes>),
    List(Box<Vector<Bytes>>),
    Set(Fields<()>),
    ZSet(Box<Sorted>),
}

impl Value {
    #[must_use]
    pub fn str(bytes: &[u8]) -> Value {
        Value::Str(Bytes::copy_from_slice(bytes))
    }

    /// The word `TYPE` answers.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Str(_) => "string",
            Value::Hash(_) => "hash",
            Value::List(_) => "list",
            Value::Set(_) => "set",
            Value::ZSet(_) => "zset",
        }
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
