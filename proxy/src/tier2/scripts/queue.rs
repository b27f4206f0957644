//! Scripts that wait for their turn, and what waits behind them on the same connection.

use crate::node_api::{ConnectionId, Forwarded, NodeId};
use crate::tier2::requests::pending::PendingTable;
use bytes::Bytes;
use redfence_core::types::Origin;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// What keeps its order: a connection of a node's client, or a command that came by none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::tier2) enum ConnectionKey {
    Connection(NodeId, ConnectionId),
    Alone(NodeId, u64),
}

impl ConnectionKey {
    pub(in crate::tier2) fn new(node: NodeId, connection: ConnectionId, seq: u64) -> ConnectionKey {
        match connection {
            0 => ConnectionKey::Alone(node, seq),
            connection => ConnectionKey::Connection(node, connection),
        }
    }
}

/// One command, whosever it is.
#[derive(Debug)]
pub(in crate::tier2) enum StagedCommand {
    /// Of this node's client: its bytes are with the pending request, so that what is given up meanwhile is not run.
    Own {
        seq: u64,
    },
    Forwarded {
        origin: Origin,
        acked_below: u64,
        command: Forwarded,
    },
}

impl StagedCommand {
    pub(super) fn is_own(&self) -> bool {
        match self {
            StagedCommand::Own { .. } => true,
            StagedCommand::Forwarded { .. } => false,
        }
    }

    pub(super) fn seq(&self) -> u64 {
        match self {
            StagedCommand::Own { seq } => *seq,
            StagedCommand::Forwarded { command, .. } => command.seq,
        }
    }

    /// Whose it is, and what that node has settled.
    pub(super) fn origin(&self, pending: &PendingTable) -> (Origin, u64) {
        match self {
            StagedCommand::Own { .. } => (pending.origin(), pending.acked_below()),
            StagedCommand::Forwarded { origin, acked_below, .. } => (*origin, *acked_below),
        }
    }

    pub(super) fn blob<'a>(&'a self, pending: &'a PendingTable) -> Option<&'a Bytes> {
        match self {
            StagedCommand::Own { seq } => pending.blob(*seq),
            StagedCommand::Forwarded { command, .. } => Some(&command.blob),
        }
    }

    /// What it adds to the bytes of the stage.
    fn bytes(&self) -> usize {
        match self {
            StagedCommand::Own { .. } => 0,
            StagedCommand::Forwarded { command, .. } => command.blob.len(),
        }
    }
}

#[derive(Debug)]
struct WaitingScript {
    key: ConnectionKey,
    script: StagedCommand,
    since_us: u64,
    /// Commands staged before it, its own connection's among them: it runs when those are applied. Counted from the beginning.
    staged_before: u64,
}

/// First come, first run.
#[derive(Debug, Default)]
pub(in crate::tier2) struct ScriptQueue {
    waiting: VecDeque<WaitingScript>,
    /// The number of the first one; they are counted in the order they came.
    first: u64,
    /// What came later by a connection with a waiting script.
    behind: FxHashMap<ConnectionKey, VecDeque<StagedCommand>>,
    commands: usize,
    bytes: usize,
}

impl ScriptQueue {
    /// Scripts, and commands behind them.
    pub(in crate::tier2) fn len(&self) -> usize {
        self.commands
    }

    pub(in crate::tier2) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a script of this connection waits.
    pub(in crate::tier2) fn holds(&self, key: ConnectionKey) -> bool {
        !self.waiting.is_empty() && self.behind.contains_key(&key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Since when the first one waits, if all that was staged before it is in the log.
    pub(super) fn ready_since_us(&self, proposed: u64) -> Option<u64> {
        let first = self.waiting.front().filter(|waiting| waiting.staged_before <= proposed);
        first.map(|waiting| waiting.since_us)
    }

    /// The number of the one that came last.
    pub(super) fn newest(&self) -> u64 {
        (self.first + self.waiting.len() as u64).saturating_sub(1)
    }

    /// The script at this place, if its number is at most `newest` and all that was staged before it is in the log.
    pub(super) fn get(&self, at: usize, newest: u64, proposed: u64) -> Option<&StagedCommand> {
        let waiting = self.waiting.get(at)?;
        let is_ready = self.first + at as u64 <= newest && waiting.staged_before <= proposed;
        is_ready.then_some(&waiting.script)
    }

    pub(in crate::tier2) fn push(
        &mut self,
        key: ConnectionKey,
        script: StagedCommand,
        now_us: u64,
        staged_before: u64,
    ) {
        self.commands += 1;
        self.bytes += script.bytes();
        self.behind.insert(key, VecDeque::new());
        self.waiting.push_back(WaitingScript { key, script, since_us: now_us, staged_before });
    }

    /// Puts a command behind the script of its connection. Only where [`ScriptQueue::holds`] says so.
    pub(in crate::tier2) fn push_behind(&mut self, key: ConnectionKey, command: StagedCommand) {
        self.commands += 1;
        self.bytes += command.bytes();
        self.behind.entry(key).or_default().push_back(command);
    }

    /// The first script is done with: what waited behind it.
    pub(in crate::tier2) fn pop(&mut self) -> VecDeque<StagedCommand> {
        let Some(done) = self.waiting.pop_front() else { return VecDeque::new() };
        self.first += 1;
        let behind = self.behind.remove(&done.key).unwrap_or_default();
        self.commands -= 1 + behind.len();
        self.bytes -= done.script.bytes() + behind.iter().map(StagedCommand::bytes).sum::<usize>();
        behind
    }
}
