//! What happens, and when: one heap, ordered by time and then by the order of planning, so that a seed repeats a run.

use redfence::node_api::{Input, NodeId, PeerMessage};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What can happen to a host, and beside it whatever the user of the kernel plans. `life` tells a host's starts apart:
/// what was meant for an earlier one is dropped.
#[derive(Debug)]
pub enum SimEvent<U> {
    Deliver {
        from: NodeId,
        to: NodeId,
        message: PeerMessage,
    },
    Turn {
        host: NodeId,
        life: u64,
    },
    Wake {
        host: NodeId,
        life: u64,
    },
    Synced {
        host: NodeId,
        life: u64,
    },
    SnapshotOp {
        host: NodeId,
        life: u64,
    },
    /// A client's request reaches a node, on a connection to that start of it.
    Request {
        host: NodeId,
        life: u64,
        input: Input,
    },
    Other(U),
}

/// A number for the fingerprint of a run: different for events that differ. Those of hosts have 1 to 6 in the lowest byte.
pub trait Mark {
    fn mark(&self) -> u64;
}

impl<U: Mark> Mark for SimEvent<U> {
    fn mark(&self) -> u64 {
        match self {
            SimEvent::Deliver { from, to, .. } => 1 | from << 8 | to << 16,
            SimEvent::Turn { host, life } => 2 | host << 8 | life << 16,
            SimEvent::Wake { host, life } => 3 | host << 8 | life << 16,
            SimEvent::Synced { host, life } => 4 | host << 8 | life << 16,
            SimEvent::SnapshotOp { host, life } => 5 | host << 8 | life << 16,
            SimEvent::Request { host, life, .. } => 6 | host << 8 | life << 16,
            SimEvent::Other(event) => event.mark(),
        }
    }
}

pub struct Agenda<U> {
    /// When, in which order it was planned, and where it lies.
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    planned: Vec<Option<SimEvent<U>>>,
    /// Places in `planned` that are free again.
    free: Vec<u32>,
    next: u64,
    /// A fingerprint of everything that happened: equal for equal runs.
    pub trace: u64,
    pub happened: u64,
}

impl<U> Default for Agenda<U> {
    fn default() -> Agenda<U> {
        Agenda {
            heap: BinaryHeap::new(),
            planned: Vec::new(),
            free: Vec::new(),
            next: 0,
            trace: 0,
            happened: 0,
        }
    }
}

impl<U: Mark> Agenda<U> {
    pub fn plan(&mut self, at_us: u64, event: SimEvent<U>) {
        self.next += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.planned[place as usize] = Some(event);
                place
            }
            None => {
                self.planned.push(Some(event));
                self.planned.len() as u32 - 1
            }
        };
        self.heap.push(Reverse((at_us, self.next, place)));
    }

    /// The next that happens at or before `end_us`.
    pub fn next(&mut self, end_us: u64) -> Option<(u64, SimEvent<U>)> {
        let Reverse((at_us, _, place)) = *self.heap.peek()?;
        if at_us > end_us {
            return None;
        }
        self.heap.pop();
        let event = self.planned[place as usize].take().expect("planned once");
        self.free.push(place);
        self.note(at_us);
        self.note(event.mark());
        self.happened += 1;
        Some((at_us, event))
    }

    /// Adds to the fingerprint.
    pub fn note(&mut self, value: u64) {
        self.trace = (self.trace ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }
}
