//! Requests of this node's own clients, from submission to answer.
//!
//! A request is *unapplied* until this node's own apply has met it; then it is answered, or, where it was queued behind a
//! lock, *placed*: in the log for good, and answered by a later entry. Unapplied ones are sent again when the leader changes
//! or stays silent, always under the same number: the machine applies a number once. Placed ones need no second sending.
//!
//! What may be said at the end of patience: a request that never left this node was certainly not applied (`UNAVAILABLE`);
//! one that did may have been (`INDETERMINATE`). Nobody else decides this.

use super::ports::{Submit, Ticket, WAIT_FOREVER};
use bytes::Bytes;
use redfence_core::mutants::{on, Mutant};
use redfence_core::types::Origin;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    /// Never left this node, nor entered its own log.
    Never,
    /// Left at least once. `due_ms`: when to send it again to the same leader.
    Sent { due_ms: u64, times: u32 },
}

#[derive(Debug)]
struct Request {
    /// `None`: a command of the node itself; nobody waits for its answer.
    ticket: Option<Ticket>,
    blob: Bytes,
    deadline_ms: u64,
    /// The deadline from the moment it stands in a queue of the machine. 0: it never does.
    queued_deadline_ms: u64,
    /// Its client is gone: it must not stay in the queue.
    withdrawn: bool,
    sending: Sending,
    /// Handed to the current leader (or to our own stage), and not due again.
    under_way: bool,
}

impl Request {
    fn may_queue(&self) -> bool {
        self.queued_deadline_ms > 0
    }
}

#[derive(Debug)]
struct Placed {
    ticket: Ticket,
    deadline_ms: u64,
}

/// Why a request ends without an answer of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GaveUp {
    /// Certainly not applied.
    NeverSent,
    /// Not known.
    Unknown,
}

/// What is to be done about a wait that is called off while its answer is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withdrawn {
    /// It never left this node, and never will.
    NeverSent,
    /// Call it off in the log. Its answer comes from there.
    CancelInLog(u64),
    /// It is answered, or was never a wait.
    Unknown,
}

/// A request whose patience ran out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overdue {
    pub(super) seq: u64,
    pub(super) ticket: Option<Ticket>,
    pub(super) verdict: GaveUp,
    /// It may stand in a queue, now or later: take it out again.
    pub(super) cancel: bool,
}

#[derive(Debug)]
pub(super) struct Pending {
    origin: Origin,
    next_seq: u64,
    unapplied: BTreeMap<u64, Request>,
    unapplied_bytes: usize,
    /// Numbers to be handed over next, lowest first. Some may be settled meanwhile.
    leaving: VecDeque<u64>,
    /// Those of `unapplied` that may come to stand in a queue.
    may_queue: BTreeSet<u64>,
    placed: FxHashMap<u64, Placed>,
    /// Only of requests that may queue: those can be cancelled.
    seq_of_ticket: FxHashMap<Ticket, u64>,
}

impl Pending {
    pub(super) fn new(origin: Origin) -> Pending {
        Pending {
            origin,
            next_seq: 1,
            unapplied: BTreeMap::new(),
            unapplied_bytes: 0,
            leaving: VecDeque::new(),
            may_queue: BTreeSet::new(),
            placed: FxHashMap::default(),
            seq_of_ticket: FxHashMap::default(),
        }
    }

    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    pub(super) fn unapplied_len(&self) -> usize {
        self.unapplied.len()
    }

    pub(super) fn unapplied_bytes(&self) -> usize {
        self.unapplied_bytes
    }

    pub(super) fn placed_len(&self) -> usize {
        self.placed.len()
    }

    /// Every number below this one is settled: the machine may forget its reply.
    pub(super) fn acked_below(&self) -> u64 {
        self.unapplied.first_key_value().map_or(self.next_seq, |(seq, _)| *seq)
    }

    /// A client's command.
    pub(super) fn submit(&mut self, submit: Submit, now_ms: u64) -> u64 {
        let patience_ends_ms = now_ms.saturating_add(submit.patience_ms);
        let ends_ms = patience_ends_ms.saturating_add(submit.wait_ms);
        let (deadline_ms, queued_deadline_ms) = match submit.wait_ms {
            0 => (ends_ms, 0),
            WAIT_FOREVER => (patience_ends_ms, u64::MAX),
            _ => (ends_ms, ends_ms),
        };
        self.add(Some(submit.ticket), submit.blob, deadline_ms, queued_deadline_ms)
    }

    /// A command of the node itself. Given up at its deadline like any other.
    pub(super) fn submit_own(&mut self, blob: Bytes, deadline_ms: u64) -> u64 {
        self.add(None, blob, deadline_ms, 0)
    }

    fn add(&mut self, ticket: Option<Ticket>, blob: Bytes, deadline_ms: u64, queued_deadline_ms: u64) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.unapplied_bytes += blob.len();
        let request = Request {
            ticket,
            blob,
            deadline_ms,
            queued_deadline_ms,
            withdrawn: false,
            sending: Sending::Never,
            under_way: false,
        };
        let may_queue = request.may_queue();
        self.unapplied.insert(seq, request);
        self.leaving.push_back(seq);
        if may_queue {
            self.may_queue.insert(seq);
            self.seq_of_ticket.extend(ticket.map(|ticket| (ticket, seq)));
        }
        seq
    }

    /// The leader changed: everything unapplied must be handed over again.
    pub(super) fn leader_changed(&mut self) {
        if on(Mutant::ResentUnderNewNumber) {
            self.may_queue.clear();
            for request in std::mem::take(&mut self.unapplied).into_values() {
                self.unapplied_bytes -= request.blob.len();
                self.add(request.ticket, request.blob, request.deadline_ms, request.queued_deadline_ms);
            }
        }
        self.unapplied.values_mut().for_each(|request| request.under_way = false);
        self.leaving = self.unapplied.keys().copied().collect();
    }

    /// What was sent to another node and is not applied within its time-out goes again.
    pub(super) fn resend_overdue(&mut self, now_ms: u64) {
        let mut overdue = false;
        for request in self.unapplied.values_mut() {
            if let Sending::Sent { due_ms, .. } = request.sending {
                if request.under_way && due_ms <= now_ms {
                    request.under_way = false;
                    overdue = true;
                }
            }
        }
        if overdue {
            let waiting = self.unapplied.iter().filter(|(_, request)| !request.under_way);
            self.leaving = waiting.map(|(seq, _)| *seq).collect();
        }
    }

    /// The next number to hand over; it counts as under way from now on.
    pub(super) fn next_leaving(&mut self) -> Option<u64> {
        while let Some(seq) = self.leaving.pop_front() {
            if let Some(request) = self.unapplied.get_mut(&seq).filter(|request| !request.under_way) {
                request.under_way = true;
                return Some(seq);
            }
        }
        None
    }

    pub(super) fn blob(&self, seq: u64) -> Option<&Bytes> {
        self.unapplied.get(&seq).map(|request| &request.blob)
    }

    /// It left this node for another. From here on its outcome is not ours to deny.
    pub(super) fn mark_forwarded(&mut self, seq: u64, now_ms: u64, resend_ms: u64) {
        if let Some(request) = self.unapplied.get_mut(&seq) {
            let times = match request.sending {
                Sending::Never => 0,
                Sending::Sent { times, .. } => times + 1,
            };
            let due_ms = now_ms.saturating_add(resend_ms << times.min(3));
            request.sending = Sending::Sent { due_ms, times };
        }
    }

    /// It entered our own log. It need not be sent again while we lead, and its outcome is not ours to deny.
    pub(super) fn mark_proposed(&mut self, seq: u64) {
        if let Some(request) = self.unapplied.get_mut(&seq) {
            request.sending = Sending::Sent { due_ms: u64::MAX, times: 0 };
        }
    }

    /// Whose request this is, if anybody still waits for its answer.
    pub(super) fn ticket_of(&self, seq: u64) -> Option<Ticket> {
        match self.unapplied.get(&seq) {
            Some(request) => request.ticket,
            None => self.placed.get(&seq).map(|placed| placed.ticket),
        }
    }

    /// The machine's answer. The ticket to hand it to, if anybody still waits.
    pub(super) fn answered(&mut self, seq: u64) -> Option<Ticket> {
        let ticket = match self.remove_unapplied(seq) {
            Some(request) => request.ticket,
            None => self.placed.remove(&seq).map(|placed| placed.ticket),
        };
        if let Some(ticket) = ticket {
            self.seq_of_ticket.remove(&ticket);
        }
        ticket
    }

    /// Our own apply has put it into a queue: the answer comes with a later entry. Whether it is to be called off: the word that
    /// did so may have overtaken it.
    pub(super) fn queued(&mut self, seq: u64) -> bool {
        let Some(request) = self.remove_unapplied(seq) else { return false };
        match request.ticket {
            Some(ticket) if request.may_queue() => {
                self.placed.insert(seq, Placed { ticket, deadline_ms: request.queued_deadline_ms });
            }
            Some(_) | None => {}
        }
        request.withdrawn
    }

    pub(super) fn is_unapplied(&self, seq: u64) -> bool {
        self.unapplied.contains_key(&seq)
    }

    /// Unapplied requests that the machine may have queued by now, lowest first.
    pub(super) fn may_be_queued(&self) -> Vec<u64> {
        self.may_queue.iter().copied().collect()
    }

    fn remove_unapplied(&mut self, seq: u64) -> Option<Request> {
        let request = self.unapplied.remove(&seq)?;
        self.unapplied_bytes -= request.blob.len();
        if request.may_queue() {
            self.may_queue.remove(&seq);
        }
        Some(request)
    }

    /// The client is gone. Answers the number to cancel in the log, where that may be needed.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> Option<u64> {
        let seq = self.seq_of_ticket.remove(&ticket)?;
        if self.placed.remove(&seq).is_some() {
            return Some(seq);
        }
        match self.remove_unapplied(seq)?.sending {
            Sending::Never => None,
            Sending::Sent { .. } => Some(seq),
        }
    }

    /// The client is gone, but what it is served with must not be lost.
    pub(super) fn withdraw(&mut self, ticket: Ticket) -> Withdrawn {
        let Some(&seq) = self.seq_of_ticket.get(&ticket) else { return Withdrawn::Unknown };
        match self.unapplied.get_mut(&seq) {
            Some(request) if request.sending == Sending::Never => {
                self.remove_unapplied(seq);
                self.seq_of_ticket.remove(&ticket);
                return Withdrawn::NeverSent;
            }
            Some(request) => request.withdrawn = true,
            None => {}
        }
        Withdrawn::CancelInLog(seq)
    }

    /// Takes out everything whose patience has run out.
    pub(super) fn overdue(&mut self, now_ms: u64) -> Vec<Overdue> {
        let late: Vec<u64> = self
            .unapplied
            .iter()
            .filter(|(_, request)| request.deadline_ms <= now_ms)
            .map(|(seq, _)| *seq)
            .collect();
        let mut given_up = Vec::with_capacity(late.len());
        for seq in late {
            given_up.extend(self.give_up_unapplied(seq));
        }
        let late: Vec<u64> = self
            .placed
            .iter()
            .filter(|(_, placed)| placed.deadline_ms <= now_ms)
            .map(|(seq, _)| *seq)
            .collect();
        for seq in late {
            given_up.extend(self.give_up_placed(seq));
        }
        // The placed ones came in hash order.
        given_up.sort_by_key(|overdue| overdue.seq);
        given_up
    }

    fn give_up_unapplied(&mut self, seq: u64) -> Option<Overdue> {
        let request = self.remove_unapplied(seq)?;
        if let Some(ticket) = request.ticket {
            self.seq_of_ticket.remove(&ticket);
        }
        let (verdict, cancel) = match request.sending {
            Sending::Never => (GaveUp::NeverSent, false),
            Sending::Sent { .. } => (GaveUp::Unknown, request.may_queue()),
        };
        Some(Overdue { seq, ticket: request.ticket, verdict, cancel })
    }

    fn give_up_placed(&mut self, seq: u64) -> Option<Overdue> {
        let placed = self.placed.remove(&seq)?;
        self.seq_of_ticket.remove(&placed.ticket);
        Some(Overdue { seq, ticket: Some(placed.ticket), verdict: GaveUp::Unknown, cancel: true })
    }

    /// Everything, at the end of the node's life.
    pub(super) fn drain(&mut self) -> Vec<Overdue> {
        self.overdue(u64::MAX)
    }

    /// Numbers of placed waits, lowest first.
    pub(super) fn placed_seqs(&self) -> Vec<u64> {
        let mut seqs: Vec<u64> = self.placed.keys().copied().collect();
        seqs.sort_unstable();
        seqs
    }

    /// Nobody can say what became of it.
    pub(super) fn give_up(&mut self, seq: u64) -> Option<Overdue> {
        match self.unapplied.contains_key(&seq) {
            true => self.give_up_unapplied(seq),
            false => self.give_up_placed(seq),
        }
    }

    /// The cluster has declared this start of the node gone: nothing under the old origin will be applied any more, and our
    /// own apply shows what was. What is unapplied begins anew under the new origin; placed waits have left their queues, and
    /// their tickets are handed back.
    pub(super) fn reborn(&mut self, origin: Origin) -> Vec<Ticket> {
        let unapplied = std::mem::take(&mut self.unapplied);
        let placed = self.placed_seqs();
        let mut tickets: Vec<Ticket> =
            placed.iter().filter_map(|seq| self.placed.remove(seq)).map(|placed| placed.ticket).collect();
        *self = Pending::new(origin);
        for request in unapplied.into_values() {
            let Some(ticket) = request.ticket else { continue };
            if request.withdrawn {
                tickets.push(ticket);
                continue;
            }
            self.add(Some(ticket), request.blob, request.deadline_ms, request.queued_deadline_ms);
        }
        tickets
    }

    /// Unapplied requests that have left, lowest first.
    pub(super) fn sent_seqs(&self) -> Vec<u64> {
        let sent = self.unapplied.iter().filter(|(_, request)| request.sending != Sending::Never);
        sent.map(|(seq, _)| *seq).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };

    fn submit(ticket: Ticket, wait_ms: u64) -> Submit {
        Submit { ticket, blob: Bytes::from_static(b"command"), patience_ms: 5_000, wait_ms }
    }

    #[test]
    fn what_never_left_was_certainly_not_applied() {
        let mut pending = Pending::new(ORIGIN);
        let kept = pending.submit(submit(1, 0), 0);
        let sent = pending.submit(submit(2, 0), 0);
        assert_eq!(pending.next_leaving(), Some(kept));
        pending.mark_forwarded(sent, 0, 500);
        let verdicts: Vec<_> =
            pending.overdue(5_000).into_iter().map(|late| (late.seq, late.verdict)).collect();
        assert_eq!(verdicts, [(kept, GaveUp::NeverSent), (sent, GaveUp::Unknown)]);
    }

    #[test]
    fn a_placed_wait_is_acknowledged_and_still_answered() {
        let mut pending = Pending::new(ORIGIN);
        let seq = pending.submit(submit(7, 1_000), 0);
        pending.mark_forwarded(seq, 0, 500);
        pending.queued(seq);
        assert_eq!(pending.acked_below(), seq + 1);
        assert!(pending.overdue(5_999).is_empty());
        assert_eq!(pending.answered(seq), Some(7));
        assert!(pending.overdue(u64::MAX).is_empty());
    }

    #[test]
    fn a_wait_without_end_ends_only_while_it_has_no_place() {
        let mut pending = Pending::new(ORIGIN);
        let placed = pending.submit(submit(1, WAIT_FOREVER), 0);
        let lost = pending.submit(submit(2, WAIT_FOREVER), 0);
        for seq in [placed, lost] {
            pending.mark_forwarded(seq, 0, 500);
        }
        pending.queued(placed);
        let late: Vec<u64> = pending.overdue(5_000).into_iter().map(|late| late.seq).collect();
        assert_eq!(late, [lost]);
        assert!(pending.overdue(u64::MAX - 1).is_empty());
        assert_eq!(pending.answered(placed), Some(1));
    }

    #[test]
    fn a_cancel_goes_to_the_log_only_if_the_request_may_be_there() {
        let mut pending = Pending::new(ORIGIN);
        pending.submit(submit(1, 1_000), 0);
        let sent = pending.submit(submit(2, 1_000), 0);
        pending.mark_forwarded(sent, 0, 500);
        assert_eq!(pending.cancel(1), None);
        assert_eq!(pending.cancel(2), Some(sent));
        assert_eq!(pending.cancel(3), None);
        assert_eq!(pending.unapplied_bytes(), 0);
    }

    #[test]
    fn a_withdrawn_wait_is_called_off_and_still_answered() {
        let mut pending = Pending::new(ORIGIN);
        pending.submit(submit(1, WAIT_FOREVER), 0);
        assert_eq!(pending.withdraw(1), Withdrawn::NeverSent);
        assert_eq!(pending.unapplied_len(), 0);

        let sent = pending.submit(submit(2, WAIT_FOREVER), 0);
        pending.mark_forwarded(sent, 0, 500);
        assert_eq!(pending.withdraw(2), Withdrawn::CancelInLog(sent));
        assert!(pending.queued(sent), "it came to stand in the queue after all");
        assert_eq!(pending.answered(sent), Some(2));
        assert_eq!(pending.withdraw(2), Withdrawn::Unknown);
    }

    #[test]
    fn silence_and_a_new_leader_both_send_again() {
        let mut pending = Pending::new(ORIGIN);
        let seq = pending.submit(submit(1, 0), 0);
        assert_eq!(pending.next_leaving(), Some(seq));
        pending.mark_forwarded(seq, 0, 500);
        assert_eq!(pending.next_leaving(), None);
        pending.resend_overdue(499);
        assert_eq!(pending.next_leaving(), None);
        pending.resend_overdue(500);
        assert_eq!(pending.next_leaving(), Some(seq));
        pending.mark_forwarded(seq, 500, 500);
        pending.resend_overdue(1_499);
        assert_eq!(pending.next_leaving(), None, "the second time-out is twice as long");
        pending.leader_changed();
        assert_eq!(pending.next_leaving(), Some(seq));
    }

    #[test]
    fn a_new_start_takes_over_what_was_not_applied() {
        let mut pending = Pending::new(ORIGIN);
        let placed = pending.submit(submit(1, 1_000), 0);
        pending.queued(placed);
        let unapplied = pending.submit(submit(2, 0), 0);
        pending.mark_forwarded(unapplied, 0, 500);
        assert_eq!(pending.reborn(Origin { node: 1, incarnation: 2 }), [1]);
        assert_eq!(pending.next_leaving(), Some(1));
        assert_eq!(pending.answered(1), Some(2));
    }
}
