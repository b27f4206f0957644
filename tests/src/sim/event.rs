//! What can happen, and when: one heap, ordered by time and then by the order of planning, so that a seed repeats a run.

use super::calls::CallNumber;
use redfence::node_api::{Input, NodeId, PeerMessage, Ticket};
use redfence_core::reply::Reply;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// `life` tells a host's starts apart.
#[derive(Debug)]
pub enum Happening {
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
    /// A client's words reach a node, on a connection to that start of it.
    Request {
        host: NodeId,
        life: u64,
        input: Input,
    },
    /// A node's answer reaches a client.
    Answer {
        ticket: Ticket,
        reply: Reply,
    },
    /// The connection under a call broke, or its client lost patience.
    HungUp {
        call: CallNumber,
    },
    ClientActs {
        client: usize,
    },
    /// A connection that is blocked in a WAIT keeps its session alive.
    Touch {
        call: CallNumber,
    },
    Misfortune,
    /// A faults ends.
    Relief {
        what: Relief,
    },
}

#[derive(Clone, Copy, Debug)]
pub enum Relief {
    Start { host: NodeId, life: u64 },
    Resume { host: NodeId, life: u64 },
    HealNetwork,
    GoodDisk { host: NodeId },
    TrueRate { host: NodeId },
}

impl Happening {
    /// For the trace.
    fn mark(&self) -> u64 {
        match self {
            Happening::Deliver { from, to, .. } => 1 | from << 8 | to << 16,
            Happening::Turn { host, life } => 2 | host << 8 | life << 16,
            Happening::Wake { host, life } => 3 | host << 8 | life << 16,
            Happening::Synced { host, life } => 4 | host << 8 | life << 16,
            Happening::SnapshotOp { host, life } => 5 | host << 8 | life << 16,
            Happening::Request { host, life, .. } => 6 | host << 8 | life << 16,
            Happening::Answer { ticket, .. } => 7 | ticket << 8,
            Happening::HungUp { call } => 8 | call << 8,
            Happening::ClientActs { client } => 9 | (*client as u64) << 8,
            Happening::Touch { call } => 10 | call << 8,
            Happening::Misfortune => 11,
            Happening::Relief { .. } => 12,
        }
    }
}

#[derive(Default)]
pub struct Agenda {
    /// When, in which order it was planned, and where it lies.
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    planned: Vec<Option<Happening>>,
    /// Places in `planned` that are free again.
    free: Vec<u32>,
    next: u64,
    /// A fingerprint of everything that happened: equal for equal runs.
    pub trace: u64,
    pub happened: u64,
}

impl Agenda {
    pub fn plan(&mut self, at_us: u64, happening: Happening) {
        self.next += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.planned[place as usize] = Some(happening);
                place
            }
            None => {
                self.planned.push(Some(happening));
                self.planned.len() as u32 - 1
            }
        };
        self.heap.push(Reverse((at_us, self.next, place)));
    }

    /// The next that happens at or before `end_us`.
    pub fn next(&mut self, end_us: u64) -> Option<(u64, Happening)> {
        let Reverse((at_us, _, place)) = *self.heap.peek()?;
        if at_us > end_us {
            return None;
        }
        self.heap.pop();
        let happening = self.planned[place as usize].take().expect("planned once");
        self.free.push(place);
        self.note(at_us);
        self.note(happening.mark());
        self.happened += 1;
        Some((at_us, happening))
    }

    /// Adds to the fingerprint.
    pub fn note(&mut self, value: u64) {
        self.trace = (self.trace ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }
}
