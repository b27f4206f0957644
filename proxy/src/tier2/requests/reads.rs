//! Linearizable reads: many reads share one ReadIndex round; rounds that raft drops silently are retried.
//!
//! raft does not answer a ReadIndex while a new leader has committed nothing in its term, while there is no leader, and when a
//! message is lost. So every round has a time-out, a change of leader ends it, and each attempt has a unique request context:
//! the answer to an old attempt must not serve a later one.
//!
//! Reads are answered in the order they came: a client that pipelines two never sees the older state second. A turn answers so many
//! that their work stays below a limit; the rest waits for the next turn. `KEYS` goes in slices, some each turn, and is passed by others.

use crate::client_memory::{counted_bytes, Account};
use crate::node_api::{OwnedQuery, Read, Ticket};
use redfence_core::machine::{KeysWalk, Machine};
use redfence_core::mutant;
use redfence_core::reply::Reply;
use redfence_core::types::Origin;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Rounds under way at once. More reads wait, and share the next one.
const ROUNDS_MAX: usize = 4;
/// An unanswered round is asked again after at most so many times the configured time.
const RETRY_FACTOR_MAX: u64 = 16;
/// Slices of `KEYS` in one turn.
const SLICES_PER_TURN_MAX: usize = 4;
/// `KEYS` under way at once, each with the names it has found. More wait for their first slice.
const WALKS_MAX: usize = 8;

#[derive(Debug)]
struct WaitingRead {
    ticket: Ticket,
    query: OwnedQuery,
    deadline_ms: u64,
    account: Option<Arc<Account>>,
}

/// How long a read waits at most for the entry that ends a key whose time is over.
const END_WITHIN_MS: u64 = 100;

/// Reads that wait so. More are answered at once.
const HELD_MAX: usize = 256;

/// A read that would show a key whose time is over: the entry that ends it is under way. Later reads of the same client wait with it.
#[derive(Debug)]
struct HeldRead {
    read: ReadyRead,
    /// The logical time at which it was put aside.
    logical_ms: u64,
    /// When it is answered whatever the state is, by the node's own clock: another leader may count the key's time anew.
    until_ms: u64,
}

/// A read that may be answered now.
#[derive(Debug)]
pub(in crate::tier2) struct ReadyRead {
    pub(in crate::tier2) ticket: Ticket,
    pub(in crate::tier2) query: OwnedQuery,
    pub(in crate::tier2) account: Option<Arc<Account>>,
}

impl ReadyRead {
    /// Whether its client must read earlier replies first.
    pub(in crate::tier2) fn is_deferred(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.defers_read())
    }
}

#[derive(Debug)]
struct KeysScan {
    ticket: Ticket,
    keys: KeysWalk,
    account: Option<Arc<Account>>,
}

/// Accounts a reply to its client. If that connection is being closed, the reply is dropped and its memory freed at once.
pub(in crate::tier2) fn count_reply(account: Option<&Arc<Account>>, reply: Reply) -> Reply {
    match account {
        Some(account) if !account.add_reply(counted_bytes(&reply)) => crate::tier2::refusals::no_quorum(),
        Some(_) | None => reply,
    }
}

#[derive(Debug)]
struct ReadIndexRound {
    asked_ms: u64,
    /// Once known: the reads may be answered when this index is applied.
    index: Option<u64>,
    reads: VecDeque<WaitingRead>,
}

#[derive(Debug, Default)]
pub(in crate::tier2) struct Reads {
    waiting: VecDeque<WaitingRead>,
    rounds: BTreeMap<u64, ReadIndexRound>,
    next_round: u64,
    len: usize,
    /// Bytes of the queries that wait.
    bytes: usize,
    /// Reads that wait for the end of a key, in the order they came.
    held: VecDeque<HeldRead>,
    /// `KEYS` under way.
    walks: VecDeque<KeysScan>,
    /// How long a round may take before it is asked again, where that is more than the configured time: twice as long after every
    /// round that was not answered in time, or a leader farther away than that would never be heard.
    patience_ms: u64,
}

impl Reads {
    pub(in crate::tier2) fn len(&self) -> usize {
        self.len
    }

    pub(in crate::tier2) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(in crate::tier2) fn add(&mut self, read: Read, now_ms: u64) {
        self.bytes += read.query.bytes();
        let deadline_ms = now_ms.saturating_add(read.timeout_ms);
        self.waiting.push_back(WaitingRead {
            ticket: read.ticket,
            query: read.query,
            deadline_ms,
            account: read.account,
        });
        self.len += 1;
    }

    /// Opens a round for all waiting reads. Returns its request context for raft.
    pub(in crate::tier2) fn open_round(&mut self, origin: Origin, now_ms: u64) -> Option<Vec<u8>> {
        let under_way = self.rounds.values().filter(|round| round.index.is_none()).count();
        let one_name = mutant!(ReadNameReused);
        if self.waiting.is_empty() || under_way >= ROUNDS_MAX || (one_name && !self.rounds.is_empty()) {
            return None;
        }
        self.next_round = if one_name { 1 } else { self.next_round + 1 };
        let reads = self.waiting.drain(..).collect();
        self.rounds.insert(self.next_round, ReadIndexRound { asked_ms: now_ms, index: None, reads });
        Some(round_name(origin, self.next_round))
    }

    /// raft knows the index of a round.
    pub(in crate::tier2) fn confirmed(&mut self, origin: Origin, name: &[u8], index: u64, now_ms: u64) {
        let Some(number) = round_number(origin, name) else { return };
        if let Some(round) = self.rounds.get_mut(&number) {
            round.index = Some(index);
            if now_ms.saturating_sub(round.asked_ms) * 4 <= self.patience_ms {
                self.patience_ms /= 2;
            }
        }
    }

    /// The next read that may be answered from the state as of `applied`.
    pub(in crate::tier2) fn next_ready(&mut self, applied: u64) -> Option<ReadyRead> {
        loop {
            let mut first = self.rounds.first_entry()?;
            if first.get().index.is_none_or(|index| index > applied) {
                return None;
            }
            let Some(read) = first.get_mut().reads.pop_front() else {
                first.remove();
                continue;
            };
            if first.get().reads.is_empty() {
                first.remove();
            }
            self.len -= 1;
            self.bytes -= read.query.bytes();
            return Some(ReadyRead { ticket: read.ticket, query: read.query, account: read.account });
        }
    }

    /// Whether some may be answered.
    pub(in crate::tier2) fn has_ready(&self, applied: u64) -> bool {
        let first = self.rounds.first_key_value();
        first.is_some_and(|(_, round)| round.index.is_some_and(|index| index <= applied))
    }

    /// Puts a read aside until the end of a key is applied.
    pub(in crate::tier2) fn hold(&mut self, read: ReadyRead, logical_ms: u64, now_ms: u64) {
        self.len += 1;
        self.bytes += read.query.bytes();
        self.held.push_back(HeldRead { read, logical_ms, until_ms: now_ms + END_WITHIN_MS });
    }

    /// Whether another may be put aside.
    pub(in crate::tier2) fn may_hold(&self) -> bool {
        self.held.len() < HELD_MAX
    }

    /// Whether an earlier read of the same client is put aside: this one must not pass it.
    pub(in crate::tier2) fn is_behind_held(&self, read: &ReadyRead) -> bool {
        let same = |held: &HeldRead| match (&held.read.account, &read.account) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        self.held.iter().any(same)
    }

    /// The next read that need not wait any longer.
    pub(in crate::tier2) fn next_held(&mut self, machine: &Machine, now_ms: u64) -> Option<ReadyRead> {
        let is_over = |held: &HeldRead| {
            held.until_ms <= now_ms || !held.read.query.meets_ending(machine, held.logical_ms)
        };
        self.held.front().filter(|held| is_over(held))?;
        let read = self.held.pop_front()?.read;
        self.len -= 1;
        self.bytes -= read.query.bytes();
        Some(read)
    }

    pub(in crate::tier2) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// When the first of them is answered whatever the state is.
    pub(in crate::tier2) fn held_until_ms(&self) -> Option<u64> {
        self.held.front().map(|held| held.until_ms)
    }

    /// Whether a `KEYS` is under way.
    pub(in crate::tier2) fn has_walks(&self) -> bool {
        !self.walks.is_empty()
    }

    /// A `KEYS` that may be answered: from now on it goes in slices. Later reads of its client are deferred: they might all be `KEYS`.
    pub(in crate::tier2) fn begin_walk(
        &mut self,
        ticket: Ticket,
        keys: KeysWalk,
        account: Option<Arc<Account>>,
    ) {
        if let Some(account) = &account {
            account.defer_reads();
        }
        self.walks.push_back(KeysScan { ticket, keys, account });
        self.len += 1;
    }

    /// A few slices of the `KEYS` under way, once a turn.
    pub(in crate::tier2) fn walk(&mut self, machine: &Machine, out: &mut Vec<(Ticket, Reply)>) {
        for _ in 0..self.walks.len().min(SLICES_PER_TURN_MAX) {
            let Some(mut walk) = self.walks.pop_front() else { return };
            match walk.keys.step(machine) {
                Some(reply) => {
                    self.len -= 1;
                    out.push((walk.ticket, count_reply(walk.account.as_ref(), reply)));
                }
                // Behind those under way, before those that wait for their first slice.
                None => self.walks.insert(self.walks.len().min(WALKS_MAX - 1), walk),
            }
        }
    }

    /// The leader changed: what it has not confirmed will not be.
    pub(in crate::tier2) fn leader_changed(&mut self) {
        self.patience_ms = 0;
        if !mutant!(ReadNotAskedAgain) {
            self.reopen(|_| true);
        }
    }

    /// Rounds without an answer for too long are asked again.
    pub(in crate::tier2) fn retry_overdue(&mut self, now_ms: u64, retry_ms: u64) {
        let patience_ms = self.patience_ms.max(retry_ms);
        if self.reopen(|round| round.asked_ms + patience_ms <= now_ms) {
            self.patience_ms = (2 * patience_ms).min(RETRY_FACTOR_MAX * retry_ms);
        }
    }

    /// Says whether there were any.
    fn reopen(&mut self, lost: impl Fn(&ReadIndexRound) -> bool) -> bool {
        let is_lost = |round: &ReadIndexRound| round.index.is_none() && lost(round);
        let Some(first) = self.rounds.iter().find(|(_, round)| is_lost(round)).map(|(number, _)| *number)
        else {
            return false;
        };
        // Later rounds must not overtake it, so they are asked again with it.
        for round in self.rounds.split_off(&first).into_values().rev() {
            round.reads.into_iter().rev().for_each(|read| self.waiting.push_front(read));
        }
        true
    }

    /// Takes out the tickets whose deadline has passed.
    pub(in crate::tier2) fn overdue(&mut self, now_ms: u64) -> Vec<Ticket> {
        let mut late = Vec::new();
        let mut bytes = 0;
        let mut keep = |read: &WaitingRead| {
            let keep = read.deadline_ms > now_ms;
            if !keep {
                bytes += read.query.bytes();
                late.push(read.ticket);
            }
            keep
        };
        self.waiting.retain(&mut keep);
        self.rounds.values_mut().for_each(|round| round.reads.retain(&mut keep));
        self.rounds.retain(|_, round| !round.reads.is_empty());
        self.len -= late.len();
        self.bytes -= bytes;
        late
    }

    pub(in crate::tier2) fn drain(&mut self) -> Vec<Ticket> {
        let mut tickets: Vec<Ticket> = self.walks.drain(..).map(|walk| walk.ticket).collect();
        for held in self.held.drain(..) {
            self.bytes -= held.read.query.bytes();
            tickets.push(held.read.ticket);
        }
        self.len -= tickets.len();
        tickets.extend(self.overdue(u64::MAX));
        tickets
    }
}

fn round_name(origin: Origin, number: u64) -> Vec<u8> {
    [origin.node, origin.incarnation, number].iter().flat_map(|part| part.to_le_bytes()).collect()
}

fn round_number(origin: Origin, name: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(name.get(16..24)?.try_into().ok()?);
    (name == round_name(origin, number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::types::{SessionId, SessionScope};

    const ORIGIN: Origin = Origin { node: 1, incarnation: 9 };

    fn read(ticket: Ticket) -> Read {
        Read {
            ticket,
            query: OwnedQuery::Session { id: SessionId(1), sessions: SessionScope::All },
            timeout_ms: 5_000,
            account: None,
        }
    }

    fn ready(reads: &mut Reads, applied: u64) -> Vec<Ticket> {
        std::iter::from_fn(|| reads.next_ready(applied)).map(|read| read.ticket).collect()
    }

    #[test]
    fn many_reads_share_a_round_and_wait_for_its_index() {
        let mut reads = Reads::default();
        reads.add(read(1), 0);
        reads.add(read(2), 0);
        let name = reads.open_round(ORIGIN, 0).expect("two reads wait");
        assert_eq!(reads.open_round(ORIGIN, 0), None);
        reads.confirmed(ORIGIN, &name, 10, 0);
        assert!(ready(&mut reads, 9).is_empty());
        assert_eq!(ready(&mut reads, 10), [1, 2]);
        assert_eq!(reads.len(), 0);
    }

    #[test]
    fn a_late_answer_to_an_old_try_serves_nobody() {
        let mut reads = Reads::default();
        reads.add(read(1), 0);
        let first = reads.open_round(ORIGIN, 0).expect("a read waits");
        reads.retry_overdue(150, 150);
        let second = reads.open_round(ORIGIN, 150).expect("it waits again");
        assert_ne!(first, second);
        reads.confirmed(ORIGIN, &first, 1, 0);
        assert!(ready(&mut reads, 100).is_empty());
        reads.confirmed(ORIGIN, &second, 5, 0);
        assert_eq!(ready(&mut reads, 5), [1]);
    }

    #[test]
    fn a_leader_far_away_is_heard_in_the_end() {
        let (mut reads, mut now_ms) = (Reads::default(), 0);
        let mut ask_until_answered = |reads: &mut Reads, ticket| {
            reads.add(read(ticket), now_ms);
            for tries in 1.. {
                let name = reads.open_round(ORIGIN, now_ms).expect("a read waits");
                // The answer takes 500 ms. Until then the node looks every 10 ms.
                let answer_ms = now_ms + 500;
                while now_ms < answer_ms && reads.waiting.is_empty() {
                    now_ms += 10;
                    reads.retry_overdue(now_ms, 150);
                }
                reads.confirmed(ORIGIN, &name, 1, now_ms);
                if ready(reads, 1) == [ticket] {
                    return tries;
                }
            }
            unreachable!("it asks for ever")
        };
        assert_eq!(ask_until_answered(&mut reads, 1), 3, "150 ms, 300 ms, 600 ms");
        assert_eq!(ask_until_answered(&mut reads, 2), 1, "it has learned how long that takes");
        // The leader is near again.
        for ticket in 3..9 {
            reads.add(read(ticket), now_ms);
            let name = reads.open_round(ORIGIN, now_ms).expect("a read waits");
            reads.confirmed(ORIGIN, &name, 1, now_ms + 1);
            assert_eq!(ready(&mut reads, 1), [ticket]);
        }
        reads.add(read(9), now_ms);
        reads.open_round(ORIGIN, now_ms).expect("a read waits");
        reads.retry_overdue(now_ms + 150, 150);
        assert!(reads.open_round(ORIGIN, now_ms + 150).is_some(), "asked again after the configured time");
    }

    #[test]
    fn reads_are_answered_in_the_order_they_came() {
        let mut reads = Reads::default();
        reads.add(read(1), 0);
        let first = reads.open_round(ORIGIN, 0).expect("a read waits");
        reads.add(read(2), 100);
        let second = reads.open_round(ORIGIN, 100).expect("a read waits");
        reads.confirmed(ORIGIN, &second, 5, 0);
        assert!(ready(&mut reads, 10).is_empty(), "the first has no answer yet");
        reads.confirmed(ORIGIN, &first, 5, 0);
        assert_eq!(ready(&mut reads, 10), [1, 2]);

        reads.add(read(3), 200);
        reads.open_round(ORIGIN, 200).expect("a read waits");
        reads.add(read(4), 300);
        let later = reads.open_round(ORIGIN, 300).expect("a read waits");
        reads.confirmed(ORIGIN, &later, 6, 0);
        reads.retry_overdue(350, 150);
        assert!(ready(&mut reads, 10).is_empty(), "it waits for the one before it");
        let again = reads.open_round(ORIGIN, 350).expect("both wait");
        reads.confirmed(ORIGIN, &again, 7, 0);
        assert_eq!(ready(&mut reads, 10), [3, 4]);
    }

    #[test]
    fn an_answer_for_another_start_of_the_node_is_none() {
        let mut reads = Reads::default();
        reads.add(read(1), 0);
        let name = reads.open_round(ORIGIN, 0).expect("a read waits");
        reads.confirmed(Origin { node: 1, incarnation: 8 }, &name, 1, 0);
        assert!(ready(&mut reads, 100).is_empty());
    }

    #[test]
    fn a_deadline_ends_a_read_in_every_phase() {
        let mut reads = Reads::default();
        reads.add(read(1), 0);
        reads.open_round(ORIGIN, 0).expect("a read waits");
        reads.add(read(2), 0);
        let mut late = reads.overdue(5_000);
        late.sort_unstable();
        assert_eq!(late, [1, 2]);
        assert_eq!(reads.len(), 0);
    }
}
