//! Commands that wait for a list or a sorted set to be filled: `BLPOP` and its relatives. State, like the queues of locks.
//!
//! First come, first served for each key. Whenever a list or a sorted set may have got something, those who wait for it try
//! their whole command again, oldest first; one that finds something is answered and leaves. An entry lets so many try; the rest
//! follows when the next one is through.

use crate::grammar::errors;
use crate::keyspace::WouldBlock;
use crate::machine::keys::redis::{CallContext, RunOutcome};
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::log::command::Db;
use crate::machine::log::fields::{put_argv, put_protocol, read_argv, read_protocol};
use crate::machine::queue::waiter::{put_request_id, read_request_id};
use crate::machine::snapshot::write::kind;
use crate::machine::store::slab::framed;
use crate::machine::work::WORK_PER_COMMAND_MAX;
use crate::machine::{version, Applied, Machine};
use crate::reply::{Refusal, Reply};
use crate::types::{RequestId, KEYS_PER_BLOCKED_MAX};
use ::bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Clients whose time is up are taken off so many keys by one entry, and off those of one client more.
const DUE_KEYS_PER_ENTRY: usize = 65_536;

/// Those who wait, by number. Persistent: a copy costs nothing.
pub(crate) type Waitings = imbl::OrdMap<u64, Arc<Waiting>>;

#[derive(Debug)]
pub(crate) struct Waiting {
    id: RequestId,
    caller: CallContext,
    pub(crate) argv: Vec<Bytes>,
    pub(crate) keys: Vec<Bytes>,
    /// `u64::MAX`: for ever.
    deadline_ms: u64,
}

#[derive(Clone, Default)]
pub(crate) struct Blocked {
    waiting: Waitings,
    weight: usize,
    next_number: u64,
    // Worked out from the above.
    by_key: BTreeMap<(Db, Bytes), BTreeSet<u64>>,
    by_deadline: BTreeSet<(u64, u64)>,
    by_id: BTreeMap<RequestId, u64>,
    /// Keys that may have got something. State: an entry that has let as many try as it may leaves the rest to the next.
    ready: VecDeque<Ready>,
}

/// A key that may have got something, and from which number on clients are still to try.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    place: (Db, Bytes),
    from: u64,
}

impl Blocked {
    /// Bytes of all that wait.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn has(&self, id: RequestId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        self.by_deadline.first().map(|(at_ms, _)| *at_ms)
    }

    #[cfg(feature = "scripts")]
    pub(crate) fn waits_for(&self, db: Db, key: &[u8]) -> bool {
        !self.waiting.is_empty() && self.by_key.contains_key(&(db, Bytes::copy_from_slice(key)))
    }

    pub(crate) fn note_ready(&mut self, db: Db, key: &[u8]) {
        if !self.waiting.is_empty() {
            self.ready.push_back(Ready { place: (db, Bytes::copy_from_slice(key)), from: 0 });
        }
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// The first client with this number or a higher one.
    pub(crate) fn next_from(&self, number: u64) -> Option<(u64, RequestId)> {
        self.waiting.range(number..).next().map(|(number, waiting)| (*number, waiting.id))
    }

    /// The node of this client is no more: nobody is left to reply to.
    pub(crate) fn drop_one(&mut self, number: u64) {
        self.remove(number);
    }

    pub(crate) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    pub(crate) fn truncate_ready(&mut self, len: usize) {
        self.ready.truncate(len);
    }

    fn insert(&mut self, number: u64, waiting: Waiting) {
        for key in &waiting.keys {
            self.by_key.entry((waiting.caller.db, key.clone())).or_default().insert(number);
        }
        if waiting.deadline_ms != u64::MAX {
            self.by_deadline.insert((waiting.deadline_ms, number));
        }
        self.by_id.insert(waiting.id, number);
        self.weight += waiting.weight();
        self.waiting.insert(number, Arc::new(waiting));
        self.next_number = self.next_number.max(number + 1);
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Waiting>> {
        let waiting = self.waiting.remove(&number)?;
        self.weight -= waiting.weight();
        for key in &waiting.keys {
            let place = (waiting.caller.db, key.clone());
            if let Some(numbers) = self.by_key.get_mut(&place) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.by_key.remove(&place);
                }
            }
        }
        self.by_deadline.remove(&(waiting.deadline_ms, number));
        self.by_id.remove(&waiting.id);
        Some(waiting)
    }

    /// Who waits for a key, from this number on.
    fn next_at(&self, place: &(Db, Bytes), from: u64) -> Option<(u64, Arc<Waiting>)> {
        let number = *self.by_key.get(place)?.range(from..).next()?;
        Some((number, self.waiting.get(&number)?.clone()))
    }

    pub(crate) fn waitings(&self) -> Waitings {
        self.waiting.clone()
    }

    /// Keys that may have got something, for whoever could not try yet.
    pub(crate) fn ready(&self) -> VecDeque<Ready> {
        self.ready.clone()
    }

    /// Takes one record of a snapshot in.
    pub(crate) fn read_ready(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        self.ready.push_back(Ready::read(reader)?);
        Some(())
    }

    /// An empty table that goes on counting where another stopped.
    pub(crate) fn counting_from(next_number: u64) -> Blocked {
        Blocked { next_number, ..Blocked::default() }
    }

    /// Takes one record of a snapshot in.
    pub(crate) fn read(&mut self, reader: &mut Reader<'_>, count_max: usize) -> Option<()> {
        let (number, waiting) = Waiting::read(reader)?;
        let fits = number < self.next_number && self.len() < count_max && !self.has(waiting.id);
        if !fits || self.waiting.contains_key(&number) {
            return None;
        }
        self.insert(number, waiting);
        Some(())
    }
}

impl Ready {
    /// As one record of a snapshot.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        framed(kind::READY, out, |out| {
            put_varint(out, u64::from(self.place.0));
            put_bytes(out, &self.place.1);
            put_varint(out, self.from);
        });
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Ready> {
        let place = (reader.varint_u32()?, Bytes::copy_from_slice(reader.bytes()?));
        Some(Ready { place, from: reader.varint()? })
    }
}

impl Waiting {
    /// As one record of a snapshot.
    pub(crate) fn write(&self, number: u64, out: &mut Vec<u8>) {
        framed(kind::BLOCKED, out, |out| {
            put_varint(out, number);
            put_request_id(out, self.id);
            let CallContext { db, resp, member } = self.caller;
            put_varint(out, u64::from(db));
            put_protocol(out, resp, member);
            put_varint(out, self.deadline_ms.wrapping_add(1));
            put_argv(out, &self.argv);
            put_argv(out, &self.keys);
        });
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<(u64, Waiting)> {
        let number = reader.varint()?;
        let id = read_request_id(reader)?;
        let (db, (resp, member)) = (reader.varint_u32()?, read_protocol(reader)?);
        let caller = CallContext { db, resp, member };
        let deadline_ms = reader.varint()?.wrapping_sub(1);
        let own = |words: crate::machine::log::command::Words<'_>| -> Vec<Bytes> {
            words.iter().map(|word| Bytes::copy_from_slice(word)).collect()
        };
        let (argv, keys) = (own(read_argv(reader)?), own(read_argv(reader)?));
        (!keys.is_empty()).then_some((number, Waiting { id, caller, argv, keys, deadline_ms }))
    }
}

impl Machine {
    pub(crate) fn block(
        &mut self,
        id: RequestId,
        caller: CallContext,
        argv: &[&[u8]],
        block: WouldBlock,
    ) -> Result<(), Refusal> {
        if self.blocked.len() >= self.limits.waiters_max || block.keys.len() > KEYS_PER_BLOCKED_MAX {
            return Err(errors::too_many_waiters(self.limits.waiters_max));
        }
        self.room_for_blocked(argv, &block.keys)?;
        let deadline_ms =
            block.timeout_ms.map_or(u64::MAX, |timeout_ms| self.clock.logical_ms.saturating_add(timeout_ms));
        let argv = argv.iter().map(|word| Bytes::copy_from_slice(word)).collect();
        let number = self.blocked.next_number;
        self.blocked.insert(number, Waiting { id, caller, argv, keys: block.keys, deadline_ms });
        Ok(())
    }

    /// Lets those try again who wait for a key that may have got something, as many as the entry still may.
    #[inline]
    pub(crate) fn serve_blocked(&mut self, out: &mut Applied) {
        if !self.blocked.ready.is_empty() || !self.to_serve.is_empty() {
            self.serve_all_blocked(out);
        }
    }

    #[inline(never)]
    fn serve_all_blocked(&mut self, out: &mut Applied) {
        while let Some(Ready { place, from }) = self.blocked.ready.pop_front() {
            let mut from = from;
            while let Some((number, waiting)) = self.blocked.next_at(&place, from) {
                if !self.has_key(place.0, &place.1) {
                    // Taken by those before: the others would find nothing, however many they are.
                    break;
                }
                let Some(left) = self.blocked_tries_left.checked_sub(1) else {
                    self.blocked.ready.push_front(Ready { place, from });
                    return self.serve_all(out);
                };
                self.blocked_tries_left = left;
                from = number + 1;
                self.try_blocked(number, &waiting, out);
            }
        }
        self.serve_all(out);
    }

    fn try_blocked(&mut self, number: u64, waiting: &Waiting, out: &mut Applied) {
        if self.sweep.drops_blocked() && self.is_lost(waiting.id) {
            self.blocked.remove(number);
            return;
        }
        if self.has_passed(waiting.deadline_ms) {
            self.time_out_blocked(number, out);
            return;
        }
        let argv: Vec<&[u8]> = waiting.argv.iter().map(|word| &word[..]).collect();
        self.work.begin_command(WORK_PER_COMMAND_MAX);
        let RunOutcome { mut reply, would_block, .. } = self.run_redis(waiting.caller, &argv, out);
        if would_block.is_none() {
            self.blocked.remove(number);
            self.answer(Some(waiting.id), &mut reply, out);
        }
    }

    /// Replies to those whose time is up, some with each entry.
    #[inline]
    pub(crate) fn end_due_blocked(&mut self, out: &mut Applied) {
        if !self.blocked.by_deadline.is_empty() {
            self.end_some_due_blocked(out);
        }
    }

    #[inline(never)]
    fn end_some_due_blocked(&mut self, out: &mut Applied) {
        let mut keys = 0;
        for _ in 0..self.limits.due_per_entry_max {
            let is_enough = keys >= DUE_KEYS_PER_ENTRY && self.upgrade.version >= version::SECOND;
            match self.blocked.by_deadline.first().copied() {
                Some((at_ms, number)) if !is_enough && self.has_passed(at_ms) => {
                    keys += self.time_out_blocked(number, out);
                }
                Some(_) | None => break,
            }
        }
    }

    /// Answers how many keys it waited for.
    fn time_out_blocked(&mut self, number: u64, out: &mut Applied) -> usize {
        let Some(waiting) = self.blocked.remove(number) else { return 0 };
        let is_lost = self.sweep.drops_blocked() && self.is_lost(waiting.id);
        if !is_lost {
            self.answer(Some(waiting.id), &mut Reply::NilArray, out);
        }
        waiting.keys.len()
    }

    pub(crate) fn cancel_blocked(&mut self, request: RequestId, out: &mut Applied) {
        if let Some(number) = self.blocked.by_id.get(&request).copied() {
            self.blocked.remove(number);
            self.answer(Some(request), &mut Reply::NilArray, out);
        }
    }
}
