//! Doubly linked lists through slots: push, unlink and walk, all in constant time a step, and part of the state as they are.

use crate::machine::log::bytes::{put_varint, Reader};
use crate::machine::store::slab::{Image, Slab};
use crate::machine::store::slot::Slot;
use std::fmt;

/// A record's neighbours in the one list it may be in.
pub(crate) struct Links<T> {
    pub(crate) prev: Slot<T>,
    pub(crate) next: Slot<T>,
}

impl<T> Links<T> {
    pub(crate) const UNLINKED: Links<T> = Links { prev: Slot::NONE, next: Slot::NONE };
}

/// The head, tail and length of a list through records of a slab.
pub(crate) struct List<T> {
    pub(crate) head: Slot<T>,
    pub(crate) tail: Slot<T>,
    pub(crate) len: u32,
}

impl<T> List<T> {
    pub(crate) const EMPTY: List<T> = List { head: Slot::NONE, tail: Slot::NONE, len: 0 };

    pub(crate) fn push_back(&mut self, slab: &mut Slab<T>, slot: Slot<T>)
    where
        T: Image + Linked,
    {
        *slab.edit(slot).links_mut() = Links { prev: self.tail, next: Slot::NONE };
        if self.tail.is_none() {
            self.head = slot;
        } else {
            slab.edit(self.tail).links_mut().next = slot;
        }
        self.tail = slot;
        self.len += 1;
    }

    pub(crate) fn push_front(&mut self, slab: &mut Slab<T>, slot: Slot<T>)
    where
        T: Image + Linked,
    {
        *slab.edit(slot).links_mut() = Links { prev: Slot::NONE, next: self.head };
        if self.head.is_none() {
            self.tail = slot;
        } else {
            slab.edit(self.head).links_mut().prev = slot;
        }
        self.head = slot;
        self.len += 1;
    }

    pub(crate) fn unlink(&mut self, slab: &mut Slab<T>, slot: Slot<T>)
    where
        T: Image + Linked,
    {
        let Links { prev, next } = std::mem::replace(slab.edit(slot).links_mut(), Links::UNLINKED);
        if prev.is_none() {
            self.head = next;
        } else {
            slab.edit(prev).links_mut().next = next;
        }
        if next.is_none() {
            self.tail = prev;
        } else {
            slab.edit(next).links_mut().prev = prev;
        }
        self.len -= 1;
    }

    pub(crate) fn first(self) -> Option<Slot<T>> {
        self.head.is_some().then_some(self.head)
    }

    /// The slots from first to last.
    pub(crate) fn walk(self, slab: &Slab<T>) -> impl Iterator<Item = Slot<T>> + '_
    where
        T: Image + Linked,
    {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let slot = at;
            if slot.is_none() {
                return None;
            }
            at = slab[slot].links().next;
            Some(slot)
        })
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        self.head.write(out);
        self.tail.write(out);
        put_varint(out, u64::from(self.len));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<List<T>> {
        Some(List { head: Slot::read(reader)?, tail: Slot::read(reader)?, len: reader.varint_u32()? })
    }
}

pub(crate) trait Linked: Sized {
    fn links(&self) -> Links<Self>;
    fn links_mut(&mut self) -> &mut Links<Self>;
}

impl<T> Links<T> {
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        self.prev.write(out);
        self.next.write(out);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Links<T>> {
        Some(Links { prev: Slot::read(reader)?, next: Slot::read(reader)? })
    }
}

// Derived, these would ask the same of `T`.
impl<T> Clone for Links<T> {
    fn clone(&self) -> Links<T> {
        *self
    }
}

impl<T> Copy for Links<T> {}

impl<T> PartialEq for Links<T> {
    fn eq(&self, other: &Links<T>) -> bool {
        (self.prev, self.next) == (other.prev, other.next)
    }
}

impl<T> fmt::Debug for Links<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("prev", &self.prev).field("next", &self.next).finish()
    }
}

impl<T> Clone for List<T> {
    fn clone(&self) -> List<T> {
        *self
    }
}

impl<T> Copy for List<T> {}

impl<T> PartialEq for List<T> {
    fn eq(&self, other: &List<T>) -> bool {
        (self.head, self.tail, self.len) == (other.head, other.tail, other.len)
    }
}

impl<T> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let List { head, tail, len } = self;
        f.debug_struct("List").field("head", head).field("tail", tail).field("len", len).finish()
    }
}
