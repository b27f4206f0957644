//! What happens in a world beside what happens to its hosts: clients, and faults.

use super::calls::CallNumber;
use super::kernel::agenda::Mark;
use redfence::node_api::{NodeId, Ticket};
use redfence_core::reply::Reply;

#[derive(Debug)]
pub enum WorldEvent {
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
    Fault,
    /// A step of the wider mix.
    Wider,
    /// A step of the mix of kinds.
    Kinds,
    /// A fault ends.
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

impl Mark for WorldEvent {
    fn mark(&self) -> u64 {
        match self {
            WorldEvent::Answer { ticket, .. } => 7 | ticket << 8,
            WorldEvent::HungUp { call } => 8 | call << 8,
            WorldEvent::ClientActs { client } => 9 | (*client as u64) << 8,
            WorldEvent::Touch { call } => 10 | call << 8,
            WorldEvent::Fault => 11,
            WorldEvent::Relief { .. } => 12,
            WorldEvent::Wider => 13,
            WorldEvent::Kinds => 14,
        }
    }
}
