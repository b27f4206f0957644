//! A list that knows its weight: reads go straight to the persistent vector inside, every change keeps count of the bytes.

use crate::limits::ELEMENT_OVERHEAD_BYTES;
use bytes::Bytes;
use imbl::Vector;
use std::ops::{Deref, Range};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    items: Vector<Bytes>,
    weight: usize,
}

fn weigh(item: &Bytes) -> usize {
    item.len() + ELEMENT_OVERHEAD_BYTES
}

impl Deref for List {
    type Target = Vector<Bytes>;

    fn deref(&self) -> &Vector<Bytes> {
        &self.items
    }
}

impl List {
    /// Bytes of all items, each with its overhead.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.weight
    }

    pub fn push_front(&mut self, item: Bytes) {
        self.weight += weigh(&item);
        self.items.push_front(item);
    }

    pub fn push_back(&mut self, item: Bytes) {
        self.weight += weigh(&item);
        self.items.push_back(item);
    }

    pub fn pop_front(&mut self) -> Option<Bytes> {
        let item = self.items.pop_front()?;
        self.weight -= weigh(&item);
        Some(item)
    }

    pub fn pop_back(&mut self) -> Option<Bytes> {
        let item = self.items.pop_back()?;
        self.weight -= weigh(&item);
        Some(item)
    }

    pub fn insert(&mut self, index: usize, item: Bytes) {
        self.weight += weigh(&item);
        self.items.insert(index, item);
    }

    /// Answers what was there before.
    pub fn set(&mut self, index: usize, item: Bytes) -> Bytes {
        self.weight += item.len();
        let before = self.items.set(index, item);
        self.weight -= before.len();
        before
    }

    pub fn remove(&mut self, index: usize) -> Bytes {
        let item = self.items.remove(index);
        self.weight -= weigh(&item);
        item
    }

    /// Keeps this span alone. Looks at whichever is less, what stays or what goes.
    pub fn keep(&mut self, span: Range<usize>) {
        let tail = self.items.split_off(span.end);
        let middle = self.items.split_off(span.start);
        let weight = |items: &Vector<Bytes>| items.iter().map(weigh).sum::<usize>();
        if middle.len() < tail.len() + self.items.len() {
            self.weight = weight(&middle);
        } else {
            self.weight -= weight(&tail) + weight(&self.items);
        }
        self.items = middle;
    }
}

impl From<Vector<Bytes>> for List {
    fn from(items: Vector<Bytes>) -> List {
        let weight = items.iter().map(weigh).sum();
        List { items, weight }
    }
}

impl FromIterator<Bytes> for List {
    fn from_iter<I: IntoIterator<Item = Bytes>>(items: I) -> List {
        items.into_iter().collect::<Vector<Bytes>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weight_follows_every_change() {
        let mut list = List::default();
        let item = |len: usize| Bytes::from(vec![b'x'; len]);
        for number in 0..1000 {
            match number % 7 {
                0..3 => list.push_back(item(number)),
                3 => list.push_front(item(number)),
                4 => list.insert(list.len() / 2, item(number)),
                5 => drop(list.set(list.len() / 3, item(number))),
                _ => drop((list.pop_front(), list.pop_back())),
            }
            assert_eq!(list.weight(), List::from(list.items.clone()).weight());
        }
        for span in [1..list.len() - 1, 10..20, 3..9, 6..6] {
            list.keep(span.clone());
            assert_eq!(list.len(), span.len());
            assert_eq!(list.weight(), List::from(list.items.clone()).weight());
        }
        assert_eq!(list.weight(), 0);
    }
}
