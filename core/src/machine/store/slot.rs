//! The number of a record in its slab. The type says in which slab.

use crate::machine::log::bytes::{put_varint, Reader};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// The number of a `T` in a [`super::slab::Slab`] of them. Four bytes; a link that points nowhere is [`Slot::NONE`].
pub(crate) struct Slot<T> {
    number: u32,
    record: PhantomData<fn() -> T>,
}

impl<T> Slot<T> {
    pub(crate) const NONE: Slot<T> = Slot::new(u32::MAX);

    pub(crate) const fn new(number: u32) -> Slot<T> {
        Slot { number, record: PhantomData }
    }

    #[inline]
    pub(crate) const fn number(self) -> u32 {
        self.number
    }

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self != Slot::NONE
    }

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self == Slot::NONE
    }

    /// The slot at which a walk goes on.
    pub(crate) fn next(self) -> Slot<T> {
        Slot::new(self.number + 1)
    }

    /// The slot a cursor names; one out of range is behind all records.
    pub(crate) fn from_cursor(cursor: u64) -> Slot<T> {
        u32::try_from(cursor).map_or(Slot::NONE, Slot::new)
    }

    /// With "none" as the shortest.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.number.wrapping_add(1)));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Slot<T>> {
        Some(Slot::new(reader.varint_u32()?.wrapping_sub(1)))
    }
}

impl<T> Clone for Slot<T> {
    #[inline]
    fn clone(&self) -> Slot<T> {
        *self
    }
}

impl<T> Copy for Slot<T> {}

impl<T> PartialEq for Slot<T> {
    #[inline]
    fn eq(&self, other: &Slot<T>) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Slot<T> {}

impl<T> PartialOrd for Slot<T> {
    #[inline]
    fn partial_cmp(&self, other: &Slot<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Slot<T> {
    #[inline]
    fn cmp(&self, other: &Slot<T>) -> Ordering {
        self.number.cmp(&other.number)
    }
}

impl<T> Hash for Slot<T> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

impl<T> fmt::Display for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}
