//! Origin + sequence → reply, so that a proposal which was sent twice is applied once.
//!
//! Kept for each node's live start alone, from the lowest number that node still waits for on. A request that is still
//! queued has no reply yet; the machine knows it by its waiter.

use crate::limits::{REMEMBERED_BYTES_MAX, REMEMBERED_BYTES_PER_ORIGIN_MAX};
use crate::machine::log::bytes::{put_varint, Reader};
use crate::machine::log::reply_codec::{read_reply, write_reply};
use crate::machine::requests::origins::OriginState;
use crate::machine::snapshot::write::kind;
use crate::machine::store::slab::framed;
use crate::reply::Reply;
use crate::types::{Origin, RequestId};
use std::collections::{BTreeMap, VecDeque};

/// Earlier starts of one node that are remembered by number. Older ones have nothing left under way.
const PAST_MAX: usize = 16;
/// Replies share a record of a snapshot up to about this size.
const REPLIES_RECORD_BYTES: usize = 64 * 1024;

#[derive(Default)]
pub(crate) struct Dedup {
    nodes: BTreeMap<u64, Remembered>,
    /// Bytes of all replies.
    weight: usize,
}

/// What is known of one node.
struct Remembered {
    incarnation: u64,
    /// The starts before, newest last: what comes late from them must not bring them back.
    past: VecDeque<u64>,
    /// Lost for good: what this start of the node still sends is passed over.
    gone: bool,
    /// Everything lower is answered, the node says.
    acked_below: u64,
    /// The number of the first place in `replies`. Lower ones are acked or were dropped for want of room.
    first_seq: u64,
    replies: VecDeque<Option<Reply>>,
    /// Bytes of these replies.
    weight: usize,
}

/// What one place among the replies takes besides the reply's own bytes.
const PLACE_BYTES: usize = 48;

fn weigh(reply: Option<&Reply>) -> usize {
    PLACE_BYTES + reply.map_or(0, Reply::weight)
}

/// What a number means.
pub(crate) enum Seen {
    /// Never met: apply it.
    New,
    /// Applied before, with this answer.
    Before(Reply),
    /// Answered, and the node knows; or sent by a start of the node that is no more.
    Stale,
    /// So long ago that the reply was dropped.
    Forgotten,
    /// One node too many.
    NoRoom,
}

impl Dedup {
    /// What is known of a request. A node never met before is entered.
    pub(crate) fn look(&mut self, id: RequestId, nodes_max: usize) -> Seen {
        if let Some(node) = self.nodes.get(&id.origin.node) {
            return node.known(id);
        }
        self.enter(id.origin, nodes_max).map_or(Seen::NoRoom, |node| node.known(id))
    }

    /// What is known of a request.
    pub(crate) fn known(&self, id: RequestId) -> Seen {
        self.nodes.get(&id.origin.node).map_or(Seen::New, |node| node.known(id))
    }

    fn enter(&mut self, origin: Origin, nodes_max: usize) -> Option<&mut Remembered> {
        if !self.nodes.contains_key(&origin.node) && self.nodes.len() >= nodes_max {
            let gone = self.nodes.iter().find(|(_, node)| node.gone).map(|(id, _)| *id)?;
            let gone = self.nodes.remove(&gone);
            self.weight -= gone.map_or(0, |gone| gone.weight);
        }
        Some(self.nodes.entry(origin.node).or_insert_with(|| Remembered::new(origin.incarnation)))
    }

    /// Changes what is known of a node, and keeps count of the bytes.
    fn change(&mut self, node: u64, change: impl FnOnce(&mut Remembered)) {
        let Some(node) = self.nodes.get_mut(&node) else { return };
        let before = node.weight;
        change(node);
        self.weight = self.weight + node.weight - before;
    }

    /// `max_memory`: of the whole state. Replies take a quarter of it at most, those of one node an eighth.
    pub(crate) fn remember(&mut self, id: RequestId, reply: &Reply, replies_max: usize, max_memory: u64) {
        let share =
            |part: u64, most: usize| usize::try_from(max_memory / part).map_or(most, |share| share.min(most));
        let of_all = self.weight;
        self.change(id.origin.node, |node| {
            if node.gone || node.incarnation != id.origin.incarnation {
                return;
            }
            let weight_before = node.weight;
            let Some(at) = id.seq.checked_sub(node.first_seq) else { return };
            if at >= replies_max as u64 {
                node.drop_below(id.seq - (replies_max as u64 - 1));
            }
            let at = (id.seq - node.first_seq) as usize;
            while node.replies.len() < at {
                node.weight += weigh(None);
                node.replies.push_back(None);
            }
            node.weight += weigh(Some(reply));
            if at < node.replies.len() {
                node.weight -= weigh(node.replies[at].as_ref());
                node.replies[at] = Some(reply.clone());
            } else {
                // Put where it belongs at once: see `copy_to`.
                node.replies.push_back(None);
                let place = node.replies.back_mut().expect("it was just put there");
                // Nothing is there to drop.
                reply.copy_to(|reply| std::mem::forget(place.replace(reply)));
            }
            let left = share(4, REMEMBERED_BYTES_MAX).saturating_sub(of_all - weight_before);
            let bytes_max = share(8, REMEMBERED_BYTES_PER_ORIGIN_MAX).min(left);
            // The oldest go, but never the last: its node may ask for it any moment.
            while node.weight > bytes_max && node.replies.len() > 1 {
                node.drop_below(node.first_seq + 1);
            }
        });
    }

    /// Bytes of all remembered replies.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Whether that is what the replies weigh. Looked at while they are few: it is asked after every apply in debug builds.
    pub(crate) fn is_weighed(&self) -> bool {
        const FEW: usize = 1024;
        let count: usize = self.nodes.values().map(|node| node.replies.len()).sum();
        let replies = self.nodes.values().flat_map(|node| &node.replies);
        count > FEW || replies.map(|reply| weigh(reply.as_ref())).sum::<usize>() == self.weight
    }

    /// The node has every answer below `seq`.
    pub(crate) fn acknowledge(&mut self, origin: Origin, seq: u64, nodes_max: usize) {
        if self.enter(origin, nodes_max).is_none() {
            return;
        }
        self.change(origin.node, |node| {
            if !node.gone && node.incarnation == origin.incarnation && seq > node.acked_below {
                node.acked_below = seq;
                if seq > node.first_seq {
                    node.drop_below(seq);
                }
            }
        });
    }

    /// A node (re)started: what was remembered for its start before goes.
    pub(crate) fn start(&mut self, origin: Origin, nodes_max: usize) {
        if self.enter(origin, nodes_max).is_none() {
            return;
        }
        self.change(origin.node, |node| {
            if node.incarnation == origin.incarnation || node.past.contains(&origin.incarnation) {
                return;
            }
            let mut past = std::mem::take(&mut node.past);
            past.push_back(node.incarnation);
            if past.len() > PAST_MAX {
                past.pop_front();
            }
            *node = Remembered { past, ..Remembered::new(origin.incarnation) };
        });
    }

    /// This start of the node is lost for good.
    pub(crate) fn lose(&mut self, origin: Origin) {
        self.change(origin.node, |node| {
            if node.incarnation == origin.incarnation {
                let past = std::mem::take(&mut node.past);
                *node = Remembered { gone: true, past, ..Remembered::new(origin.incarnation) };
            }
        });
    }

    pub(crate) fn state(&self, node: u64) -> Option<OriginState> {
        let known = self.nodes.get(&node)?;
        let origin = Origin { node, incarnation: known.incarnation };
        Some(OriginState { origin, gone: known.gone })
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = OriginState> + '_ {
        self.nodes.keys().filter_map(|node| self.state(*node))
    }

    pub(crate) fn is_live(&self, origin: Origin) -> bool {
        self.nodes.get(&origin.node).is_some_and(|node| node.incarnation == origin.incarnation && !node.gone)
    }

    /// Another start of the node has taken its place, and it will not come back.
    pub(crate) fn is_past(&self, origin: Origin) -> bool {
        self.nodes.get(&origin.node).is_some_and(|node| node.past.contains(&origin.incarnation))
    }

    /// As records of a snapshot: one a node, each followed by those of its replies.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for (id, node) in &self.nodes {
            framed(kind::ORIGIN, out, |out| {
                put_varint(out, *id);
                out.extend_from_slice(&node.incarnation.to_le_bytes());
                put_varint(out, node.past.len() as u64);
                node.past.iter().for_each(|past| out.extend_from_slice(&past.to_le_bytes()));
                out.push(u8::from(node.gone));
                put_varint(out, node.acked_below);
                put_varint(out, node.first_seq);
            });
            let mut replies = node.replies.iter().peekable();
            while replies.peek().is_some() {
                framed(kind::REPLIES, out, |out| {
                    put_varint(out, *id);
                    let start = out.len();
                    while out.len() - start < REPLIES_RECORD_BYTES {
                        let Some(reply) = replies.next() else { break };
                        match reply {
                            None => out.push(0),
                            Some(reply) => {
                                out.push(1);
                                write_reply(reply, out);
                            }
                        }
                    }
                });
            }
        }
    }

    /// Takes a record of one node in.
    pub(crate) fn read_origin(&mut self, reader: &mut Reader<'_>, nodes_max: usize) -> Option<()> {
        let id = reader.varint()?;
        let mut node = Remembered::new(reader.u64_fixed()?);
        let past = reader.varint().filter(|count| *count <= PAST_MAX as u64)?;
        for _ in 0..past {
            node.past.push_back(reader.u64_fixed()?);
        }
        node.gone = reader.flag()?;
        node.acked_below = reader.varint()?;
        node.first_seq = reader.varint()?;
        let fits = node.first_seq >= node.acked_below && self.nodes.len() < nodes_max;
        (fits && self.nodes.insert(id, node).is_none()).then_some(())
    }

    /// Takes a record of some of a node's replies in, behind those it has.
    pub(crate) fn read_replies(&mut self, reader: &mut Reader<'_>, replies_max: usize) -> Option<()> {
        let node = self.nodes.get_mut(&reader.varint()?)?;
        while !reader.is_empty() {
            let reply = if reader.flag()? { Some(read_reply(reader)?) } else { None };
            node.weight += weigh(reply.as_ref());
            self.weight += weigh(reply.as_ref());
            node.replies.push_back(reply);
        }
        node.first_seq.checked_add(node.replies.len() as u64)?;
        (node.replies.len() <= replies_max).then_some(())
    }
}

impl Remembered {
    fn new(incarnation: u64) -> Remembered {
        let (past, replies) = (VecDeque::new(), VecDeque::new());
        Remembered { incarnation, past, gone: false, acked_below: 0, first_seq: 0, replies, weight: 0 }
    }

    fn known(&self, id: RequestId) -> Seen {
        if self.gone || self.incarnation != id.origin.incarnation || id.seq < self.acked_below {
            return Seen::Stale;
        }
        let Some(at) = id.seq.checked_sub(self.first_seq) else { return Seen::Forgotten };
        let known = usize::try_from(at).ok().and_then(|at| self.replies.get(at));
        match known {
            Some(Some(reply)) => Seen::Before(reply.clone()),
            Some(None) | None => Seen::New,
        }
    }

    fn drop_below(&mut self, seq: u64) {
        let count = (seq - self.first_seq).min(self.replies.len() as u64) as usize;
        for reply in self.replies.drain(..count) {
            self.weight -= weigh(reply.as_ref());
            if let Some(reply) = reply {
                reply.discard();
            }
        }
        self.first_seq = seq;
        if self.replies.capacity() > 1024 && self.replies.len() < self.replies.capacity() / 8 {
            self.replies.shrink_to(self.replies.len() * 2);
        }
    }
}
