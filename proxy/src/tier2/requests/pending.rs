//! Requests of this node's own clients, from submission to answer.
//!
//! A request is *unapplied* until this node has applied its entry; then it is answered, or, if it was queued behind a lock,
//! *placed*: it is in the log, and a later entry answers it. Unapplied requests are sent again when the leader changes, is
//! unreachable or silent: all of them, from the oldest on (go-back-N), so that they never change order, and always under the
//! same sequence number, which the machine applies once. Placed requests are never sent again.
//!
//! At the deadline, a request that never left this node was certainly not applied (`UNAVAILABLE`); one that did may have been
//! (`INDETERMINATE`). This is decided here and nowhere else.

#[cfg(test)]
mod tests;

use crate::node_api::{ConnectionId, Forwarded, Submit, Ticket, WAIT_FOREVER};
use crate::tier2::seq_map::SeqMap;
use bytes::Bytes;
use redfence_core::mutant;
use redfence_core::types::Origin;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// First delay before requests are sent again to an unreachable leader; doubles with every try.
const UNREACHED_MS_MIN: u64 = 50;
/// A time-out doubles this often.
const DOUBLINGS_MAX: u32 = 3;

#[derive(Debug)]
struct PendingRequest {
    /// `None`: a command of the node itself; nobody waits for its answer.
    ticket: Option<Ticket>,
    connection: ConnectionId,
    blob: Bytes,
    /// What it costs if it is a heavy one, 0 for all others: see `heavy.rs`.
    heavy_us: u64,
    submitted_ms: u64,
    deadline_ms: u64,
    /// The deadline once it is in a lock queue. 0: it never queues.
    queued_deadline_ms: u64,
    /// Its client is gone: cancel it if it is queued.
    withdrawn: bool,
    /// It left this node, or entered its own log, at least once.
    sent: bool,
}

impl PendingRequest {
    fn may_queue(&self) -> bool {
        self.queued_deadline_ms > 0
    }

    /// A command of the node itself that is never given up.
    fn is_lasting(&self) -> bool {
        self.ticket.is_none() && self.deadline_ms == u64::MAX
    }
}

#[derive(Debug)]
struct PlacedRequest {
    ticket: Ticket,
    blob: Bytes,
    deadline_ms: u64,
}

/// A request that the machine has answered.
#[derive(Debug)]
pub(in crate::tier2) struct AnsweredRequest {
    /// `None`: nobody waits for the answer.
    pub(in crate::tier2) ticket: Option<Ticket>,
    /// The connection it came by; 0 if it was queued behind a lock, or is the node's own.
    pub(in crate::tier2) connection: ConnectionId,
    pub(in crate::tier2) blob: Bytes,
    /// When it was submitted, if the entry with the answer is the one it was in itself.
    pub(in crate::tier2) submitted_ms: Option<u64>,
    pub(in crate::tier2) deadline_ms: u64,
}

/// What is known of a request that ends without a reply of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tier2) enum TimeoutOutcome {
    /// Certainly not applied.
    NeverSent,
    /// It may have been applied.
    Unknown,
}

/// What to do about a wait that is cancelled while its reply is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tier2) enum WithdrawOutcome {
    /// It never left this node, and never will.
    NeverSent,
    /// Cancel it in the log. Its reply comes from there.
    CancelInLog(u64),
    /// It is answered, or was never a wait.
    Unknown,
}

/// A request past its deadline.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tier2) struct OverdueRequest {
    pub(in crate::tier2) seq: u64,
    pub(in crate::tier2) ticket: Option<Ticket>,
    pub(in crate::tier2) verdict: TimeoutOutcome,
    /// It may be in a lock queue now or later: cancel it in the log.
    pub(in crate::tier2) cancel: bool,
}

/// When to send again to the same leader. One timer for all requests: the leader takes nothing behind a lost one.
#[derive(Debug, Default)]
struct ResendTimer {
    /// If nothing of ours is applied by this time, send again. `None`: nothing is in flight.
    silent_at_ms: Option<u64>,
    /// The leader was unreachable: send again from this time on.
    lost_at_ms: Option<u64>,
    went_back_ms: u64,
    /// In a row, without anything applied between them.
    tries: u32,
    progressed: bool,
}

#[derive(Debug)]
pub(in crate::tier2) struct PendingTable {
    origin: Origin,
    next_seq: u64,
    unapplied: SeqMap<PendingRequest>,
    unapplied_bytes: usize,
    /// What the heavy ones of `unapplied` cost together.
    heavy_us: u64,
    /// The highest number handed to the current leader (or to our own stage). Higher ones leave next.
    handed: u64,
    resending: ResendTimer,
    /// Those of `unapplied` that may be placed in a lock queue.
    may_queue: BTreeSet<u64>,
    placed: FxHashMap<u64, PlacedRequest>,
    /// Only of requests that may queue: those can be cancelled.
    seq_of_ticket: FxHashMap<Ticket, u64>,
}

impl PendingTable {
    pub(in crate::tier2) fn new(origin: Origin) -> PendingTable {
        PendingTable {
            origin,
            next_seq: 1,
            unapplied: SeqMap::default(),
            unapplied_bytes: 0,
            heavy_us: 0,
            handed: 0,
            resending: ResendTimer::default(),
            may_queue: BTreeSet::new(),
            placed: FxHashMap::default(),
            seq_of_ticket: FxHashMap::default(),
        }
    }

    pub(in crate::tier2) fn origin(&self) -> Origin {
        self.origin
    }

    pub(in crate::tier2) fn unapplied_len(&self) -> usize {
        self.unapplied.len()
    }

    pub(in crate::tier2) fn unapplied_bytes(&self) -> usize {
        self.unapplied_bytes
    }

    /// What the unapplied heavy commands cost together.
    pub(in crate::tier2) fn heavy_us(&self) -> u64 {
        self.heavy_us
    }

    pub(in crate::tier2) fn placed_len(&self) -> usize {
        self.placed.len()
    }

    /// Every number below this one is settled: the machine may forget its reply.
    pub(in crate::tier2) fn acked_below(&self) -> u64 {
        self.unapplied.first_key().unwrap_or(self.next_seq)
    }

    /// A client's command.
    pub(in crate::tier2) fn submit(&mut self, submit: Submit, now_ms: u64) -> u64 {
        self.submit_heavy(submit, 0, now_ms)
    }

    /// The same, of one that costs so much.
    pub(in crate::tier2) fn submit_heavy(&mut self, submit: Submit, heavy_us: u64, now_ms: u64) -> u64 {
        let times_out_ms = now_ms.saturating_add(submit.timeout_ms);
        let ends_ms = times_out_ms.saturating_add(submit.wait_ms);
        let (deadline_ms, queued_deadline_ms) = match submit.wait_ms {
            0 => (ends_ms, 0),
            WAIT_FOREVER => (times_out_ms, u64::MAX),
            _ => (ends_ms, ends_ms),
        };
        let Submit { ticket, connection, blob, .. } = submit;
        self.add(PendingRequest {
            ticket: Some(ticket),
            connection,
            blob,
            heavy_us,
            submitted_ms: now_ms,
            deadline_ms,
            queued_deadline_ms,
            withdrawn: false,
            sent: false,
        })
    }

    /// A command of the node itself. Given up at its deadline like any other; with none it is said until it is applied.
    pub(super) fn submit_own(&mut self, blob: Bytes, now_ms: u64, deadline_ms: u64) -> u64 {
        self.add(PendingRequest {
            ticket: None,
            connection: 0,
            blob,
            heavy_us: 0,
            submitted_ms: now_ms,
            deadline_ms,
            queued_deadline_ms: 0,
            withdrawn: false,
            sent: false,
        })
    }

    fn add(&mut self, request: PendingRequest) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.unapplied_bytes += request.blob.len();
        self.heavy_us += request.heavy_us;
        let ticket = request.ticket;
        let may_queue = request.may_queue();
        self.unapplied.insert(seq, request);
        if may_queue {
            self.may_queue.insert(seq);
            self.seq_of_ticket.extend(ticket.map(|ticket| (ticket, seq)));
        }
        seq
    }

    /// The leader changed: everything unapplied must be handed over again.
    pub(in crate::tier2) fn leader_changed(&mut self) {
        if mutant!(ResentUnderNewNumber) {
            self.may_queue.clear();
            for request in std::mem::take(&mut self.unapplied).into_values() {
                self.unapplied_bytes -= request.blob.len();
                self.heavy_us -= request.heavy_us;
                self.add_again(request);
            }
        }
        self.handed = 0;
        self.resending = ResendTimer::default();
    }

    /// The leader was unreachable: requests in flight to it are sent again soon.
    pub(in crate::tier2) fn leader_unreachable(&mut self, now_ms: u64) {
        let ResendTimer { went_back_ms, tries, .. } = self.resending;
        let soonest_ms = went_back_ms + (UNREACHED_MS_MIN << tries.min(DOUBLINGS_MAX));
        self.resending.lost_at_ms.get_or_insert(soonest_ms.max(now_ms));
    }

    /// Goes back to the oldest unapplied request where the leader was not reached, or applied nothing of ours within the time-out.
    pub(in crate::tier2) fn go_back_if_due(&mut self, now_ms: u64, resend_ms: u64) {
        let resending = &mut self.resending;
        let is_under_way = self.unapplied.first_key().is_some_and(|seq| seq <= self.handed);
        if !is_under_way {
            let went_back_ms = resending.went_back_ms;
            *resending = ResendTimer { went_back_ms, ..ResendTimer::default() };
            return;
        }
        if std::mem::take(&mut resending.progressed) {
            resending.tries = 0;
            resending.silent_at_ms = Some(now_ms.saturating_add(resend_ms));
        }
        let due_ms = resending.silent_at_ms.into_iter().chain(resending.lost_at_ms).min();
        if due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
            self.handed = 0;
            let tries = resending.tries + 1;
            let silent_at_ms = Some(now_ms.saturating_add(resend_ms << tries.min(DOUBLINGS_MAX)));
            *resending = ResendTimer { silent_at_ms, went_back_ms: now_ms, tries, ..ResendTimer::default() };
        }
    }

    /// Something was sent to the leader: starts the time-out, unless it is running already.
    pub(in crate::tier2) fn await_leader(&mut self, now_ms: u64, resend_ms: u64) {
        self.resending.silent_at_ms.get_or_insert(now_ms.saturating_add(resend_ms));
    }

    /// The next number to hand over; it counts as handed over from now on.
    pub(in crate::tier2) fn next_unsent(&mut self) -> Option<u64> {
        if self.handed + 1 >= self.next_seq {
            return None;
        }
        self.handed = self.unapplied.first_key_from(self.handed + 1)?;
        Some(self.handed)
    }

    /// The next request to leave for another node. From here on a time-out must report `INDETERMINATE`.
    pub(in crate::tier2) fn next_to_forward(&mut self) -> Option<Forwarded> {
        let seq = self.next_unsent()?;
        let request = self.unapplied.get_mut(seq)?;
        request.sent = true;
        Some(Forwarded { seq, connection: request.connection, blob: request.blob.clone() })
    }

    /// The unapplied request before this one; 0 where there is none.
    pub(in crate::tier2) fn unsettled_before(&self, seq: u64) -> u64 {
        self.unapplied.last_key_below(seq).unwrap_or(0)
    }

    /// The connection a request came by, and its bytes.
    pub(in crate::tier2) fn command(&self, seq: u64) -> Option<(ConnectionId, &Bytes)> {
        self.unapplied.get(seq).map(|request| (request.connection, &request.blob))
    }

    /// The unapplied requests of a connection.
    pub(in crate::tier2) fn unapplied_of(&self, connection: ConnectionId) -> impl Iterator<Item = &Bytes> {
        let of = self.unapplied.iter().filter(move |(_, request)| request.connection == connection);
        of.map(|(_, request)| &request.blob)
    }

    pub(in crate::tier2) fn blob(&self, seq: u64) -> Option<&Bytes> {
        self.unapplied.get(seq).map(|request| &request.blob)
    }

    /// It entered our own log. From here on a time-out must report `INDETERMINATE`.
    pub(in crate::tier2) fn mark_proposed(&mut self, seq: u64) {
        if let Some(request) = self.unapplied.get_mut(seq) {
            request.sent = true;
        }
    }

    /// The ticket of a request, if a client still waits for its reply.
    pub(in crate::tier2) fn ticket_of(&self, seq: u64) -> Option<Ticket> {
        match self.unapplied.get(seq) {
            Some(request) => request.ticket,
            None => self.placed.get(&seq).map(|placed| placed.ticket),
        }
    }

    /// Under a new number.
    fn add_again(&mut self, request: PendingRequest) {
        self.add(PendingRequest { withdrawn: false, sent: false, ..request });
    }

    /// The machine's answer, for whoever still waits for it.
    pub(in crate::tier2) fn answered(&mut self, seq: u64) -> Option<AnsweredRequest> {
        let done = match self.remove_unapplied(seq) {
            Some(request) => {
                self.resending.progressed = true;
                let PendingRequest { ticket, connection, blob, submitted_ms, deadline_ms, .. } = request;
                AnsweredRequest { ticket, connection, blob, submitted_ms: Some(submitted_ms), deadline_ms }
            }
            None => {
                let PlacedRequest { ticket, blob, deadline_ms } = self.placed.remove(&seq)?;
                AnsweredRequest { ticket: Some(ticket), connection: 0, blob, submitted_ms: None, deadline_ms }
            }
        };
        if let Some(ticket) = done.ticket {
            self.seq_of_ticket.remove(&ticket);
        }
        Some(done)
    }

    /// This node's apply has placed it in a lock queue: a later entry answers it. Returns whether it must be cancelled now, because
    /// its cancellation was applied before it.
    pub(in crate::tier2) fn queued(&mut self, seq: u64) -> bool {
        let Some(request) = self.remove_unapplied(seq) else { return false };
        self.resending.progressed = true;
        match request.ticket {
            Some(ticket) if request.may_queue() => {
                let (blob, deadline_ms) = (request.blob, request.queued_deadline_ms);
                self.placed.insert(seq, PlacedRequest { ticket, blob, deadline_ms });
            }
            Some(_) | None => {}
        }
        request.withdrawn
    }

    pub(in crate::tier2) fn submitted_ms(&self, seq: u64) -> Option<u64> {
        self.unapplied.get(seq).map(|request| request.submitted_ms)
    }

    pub(in crate::tier2) fn is_unapplied(&self, seq: u64) -> bool {
        self.unapplied.contains(seq)
    }

    /// Unapplied requests that the machine may have queued by now, lowest first.
    pub(in crate::tier2) fn may_be_queued(&self) -> Vec<u64> {
        self.may_queue.iter().copied().collect()
    }

    fn remove_unapplied(&mut self, seq: u64) -> Option<PendingRequest> {
        let request = self.unapplied.remove(seq)?;
        self.unapplied_bytes -= request.blob.len();
        self.heavy_us -= request.heavy_us;
        if request.may_queue() {
            self.may_queue.remove(&seq);
        }
        Some(request)
    }

    /// The client is gone. Returns the sequence number to cancel in the log, if that may be needed.
    pub(in crate::tier2) fn cancel(&mut self, ticket: Ticket) -> Option<u64> {
        let seq = self.seq_of_ticket.remove(&ticket)?;
        if self.placed.remove(&seq).is_some() {
            return Some(seq);
        }
        self.remove_unapplied(seq)?.sent.then_some(seq)
    }

    /// The client is gone, but what it is served with (a popped item) must not be lost.
    pub(in crate::tier2) fn withdraw(&mut self, ticket: Ticket) -> WithdrawOutcome {
        let Some(&seq) = self.seq_of_ticket.get(&ticket) else { return WithdrawOutcome::Unknown };
        match self.unapplied.get_mut(seq) {
            Some(request) if !request.sent => {
                self.remove_unapplied(seq);
                self.seq_of_ticket.remove(&ticket);
                return WithdrawOutcome::NeverSent;
            }
            Some(request) => request.withdrawn = true,
            None => {}
        }
        WithdrawOutcome::CancelInLog(seq)
    }

    /// Takes out everything whose deadline has passed.
    pub(in crate::tier2) fn overdue(&mut self, now_ms: u64) -> Vec<OverdueRequest> {
        let late: Vec<u64> = self
            .unapplied
            .iter()
            .filter(|(_, request)| request.deadline_ms <= now_ms && !request.is_lasting())
            .map(|(seq, _)| seq)
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

    fn give_up_unapplied(&mut self, seq: u64) -> Option<OverdueRequest> {
        let request = self.remove_unapplied(seq)?;
        if let Some(ticket) = request.ticket {
            self.seq_of_ticket.remove(&ticket);
        }
        let (verdict, cancel) = match request.sent {
            false => (TimeoutOutcome::NeverSent, false),
            true => (TimeoutOutcome::Unknown, request.may_queue()),
        };
        Some(OverdueRequest { seq, ticket: request.ticket, verdict, cancel })
    }

    fn give_up_placed(&mut self, seq: u64) -> Option<OverdueRequest> {
        let placed = self.placed.remove(&seq)?;
        self.seq_of_ticket.remove(&placed.ticket);
        Some(OverdueRequest {
            seq,
            ticket: Some(placed.ticket),
            verdict: TimeoutOutcome::Unknown,
            cancel: true,
        })
    }

    /// Everything, at the end of the node's life.
    pub(in crate::tier2) fn drain(&mut self) -> Vec<OverdueRequest> {
        self.overdue(u64::MAX)
    }

    /// Numbers of placed waits, lowest first.
    pub(in crate::tier2) fn placed_seqs(&self) -> Vec<u64> {
        let mut seqs: Vec<u64> = self.placed.keys().copied().collect();
        seqs.sort_unstable();
        seqs
    }

    /// What must be said, also if it may have been said before: under a new number.
    pub(in crate::tier2) fn say_again(&mut self, seq: u64) -> bool {
        if !self.unapplied.get(seq).is_some_and(PendingRequest::is_lasting) {
            return false;
        }
        self.remove_unapplied(seq).into_iter().for_each(|request| self.add_again(request));
        true
    }

    /// Nobody can say what became of it.
    pub(in crate::tier2) fn give_up(&mut self, seq: u64) -> Option<OverdueRequest> {
        match self.unapplied.contains(seq) {
            true => self.give_up_unapplied(seq),
            false => self.give_up_placed(seq),
        }
    }

    /// The cluster has declared this incarnation gone: nothing under the old origin will be applied any more, and this node has
    /// applied everything that was. Unapplied requests are submitted again under the new origin; placed waits were removed
    /// from their queues, and their tickets are returned.
    pub(in crate::tier2) fn restart_incarnation(&mut self, origin: Origin) -> Vec<Ticket> {
        let unapplied = std::mem::take(&mut self.unapplied);
        let placed = self.placed_seqs();
        let mut tickets: Vec<Ticket> =
            placed.iter().filter_map(|seq| self.placed.remove(seq)).map(|placed| placed.ticket).collect();
        *self = PendingTable::new(origin);
        for request in unapplied.into_values() {
            let Some(ticket) = request.ticket else {
                if request.is_lasting() {
                    self.add_again(request);
                }
                continue;
            };
            if request.withdrawn {
                tickets.push(ticket);
                continue;
            }
            self.add_again(request);
        }
        tickets
    }

    /// Unapplied requests that have left, lowest first.
    pub(in crate::tier2) fn sent_seqs(&self) -> Vec<u64> {
        let sent = self.unapplied.iter().filter(|(_, request)| request.sent);
        sent.map(|(seq, _)| seq).collect()
    }
}
