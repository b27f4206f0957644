//! A run told line by line, to find out how a failure came about: `sim --seed n --tell`.

use super::event::WorldEvent;
use super::kernel::agenda::SimEvent;
use super::world::World;
use redfence::node_api::PeerMessage;

impl World {
    pub(super) fn tell(&self, event: &SimEvent<WorldEvent>) {
        if !self.kernel.trace {
            return;
        }
        let what = match event {
            SimEvent::Deliver { from, to, message } => format!("{from} -> {to} {}", describe(message)),
            SimEvent::Turn { .. } | SimEvent::Wake { .. } => return,
            SimEvent::Other(event) => format!("{event:?}"),
            SimEvent::Synced { .. } | SimEvent::SnapshotOp { .. } | SimEvent::Request { .. } => {
                format!("{event:?}")
            }
        };
        println!("{:>10.3} {what}", self.kernel.now_us as f64 / 1_000.0);
    }

    /// What the log made of every lock; the whole history, in the order of its questions; how often each host had its turn.
    pub(super) fn tell_history(&self) {
        if self.kernel.trace {
            self.books.tell();
            let mut operations: Vec<_> = self.history.operations.iter().collect();
            operations.sort_by_key(|op| op.invoke_ns);
            operations.iter().for_each(|op| println!("{op:?}"));
            self.kernel.hosts.values().for_each(|host| println!("host {}: {} turns", host.id, host.turns));
        }
    }
}

fn describe(message: &PeerMessage) -> String {
    match message {
        PeerMessage::Raft(message) => format!(
            "{:?} term {} index {} of term {} commit {} entries {}{}",
            message.get_msg_type(),
            message.term,
            message.index,
            message.log_term,
            message.commit,
            message.entries.len(),
            if message.reject { " reject" } else { "" },
        ),
        PeerMessage::Forward(forward) => {
            format!("Forward of {:?}: {} commands", forward.origin, forward.commands.len())
        }
        PeerMessage::SnapshotChunk(chunk) => format!(
            "SnapshotChunk {} at {} of {}",
            chunk.transfer,
            chunk.offset,
            chunk.message.as_ref().map_or(0, |message| message.get_snapshot().get_metadata().index)
        ),
        PeerMessage::SnapshotAck(ack) => format!("{ack:?}"),
        PeerMessage::Admin { request, .. } => format!("{request:?}"),
        PeerMessage::NotMember { conf_index } => format!("NotMember as of {conf_index}"),
        PeerMessage::Progress(rows) => format!("Progress of {} members", rows.len()),
        PeerMessage::Versions { term, range, .. } => format!("can run {range}, to the leader of term {term}"),
    }
}
