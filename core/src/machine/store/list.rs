//! Doubly linked lists through slots: push, unlink and walk, all in constant time a step, and part of the state as they are.

use crate::machine::log::bytes::{put_varint, Reader};
use crate::machine::store::slab::{Image, Slab, NONE};

/// A record's neighbours in the one list it may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

impl Links {
    pub(crate) const ALONE: Links = Links { prev: NONE, next: NONE };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) len: u32,
}

impl List {
    pub(crate) const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };

    pub(crate) fn push_back<T: Image + Linked>(&mut self, slab: &mut Slab<T>, slot: u32) {
        *slab.edit(slot).links_mut() = Links { prev: self.tail, next: NONE };
        if self.tail == NONE {
            self.head = slot;
        } else {
            slab.edit(self.tail).links_mut().next = slot;
        }
        self.tail = slot;
        self.len += 1;
    }

    pub(crate) fn unlink<T: Image + Linked>(&mut self, slab: &mut Slab<T>, slot: u32) {
        let Links { prev, next } = std::mem::replace(slab.edit(slot).links_mut(), Links::ALONE);
        if prev == NONE {
            self.head = next;
        } else {
            slab.edit(prev).links_mut().next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            slab.edit(next).links_mut().prev = prev;
        }
        self.len -= 1;
    }

    pub(crate) fn first(self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The slots from first to last.
    pub(crate) fn walk<T: Image + Linked>(self, slab: &Slab<T>) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let slot = at;
            if slot == NONE {
                return None;
            }
            at = slab[slot].links().next;
            Some(slot)
        })
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        put_slot(out, self.head);
        put_slot(out, self.tail);
        put_varint(out, u64::from(self.len));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<List> {
        Some(List { head: slot(reader)?, tail: slot(reader)?, len: reader.varint_u32()? })
    }
}

pub(crate) trait Linked {
    fn links(&self) -> Links;
    fn links_mut(&mut self) -> &mut Links;
}

impl Links {
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        put_slot(out, self.prev);
        put_slot(out, self.next);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Links> {
        Some(Links { prev: slot(reader)?, next: slot(reader)? })
    }
}

/// A slot number, with "none" as the shortest.
pub(crate) fn put_slot(out: &mut Vec<u8>, slot: u32) {
    put_varint(out, u64::from(slot.wrapping_add(1)));
}

pub(crate) fn slot(reader: &mut Reader<'_>) -> Option<u32> {
    Some(reader.varint_u32()?.wrapping_sub(1))
}
