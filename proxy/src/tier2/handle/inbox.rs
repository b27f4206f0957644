//! The queue into the node's thread. Many producers, one consumer that takes everything at once.
//!
//! A producer wakes the consumer only when it sleeps, so that at load there is one wake-up per turn and not one per
//! request. Two limits, checked apart so that clients cannot crowd out raft: requests of clients beyond theirs are refused
//! (the handle answers `UNAVAILABLE`), messages of peers beyond theirs are dropped (raft repeats what it needs). What the
//! disk reports is never refused: each report answers a task the node itself has limited.

use crate::client_memory::Account;
use crate::node_api::{AdminActs, Input, WakeFilter};
use crate::tier2::handle::NodeAnswer;
use redfence_core::limits::{PEER_FRAME_BYTES_MAX, REQUEST_BYTES_MAX};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Requests of clients that may wait for the node's next turn.
pub const CLIENT_ITEMS_MAX: usize = 32_768;
/// Bytes of these requests.
pub const CLIENT_BYTES_MAX: usize = 64 << 20;
/// Messages of peers that may wait for the node's next turn.
pub const PEER_ITEMS_MAX: usize = 16_384;
/// Bytes of these messages.
pub const PEER_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(CLIENT_BYTES_MAX > 4 * REQUEST_BYTES_MAX && PEER_BYTES_MAX > 4 * PEER_FRAME_BYTES_MAX);

/// Where a reply goes, and for which client.
#[derive(Debug)]
pub struct ReplyTo {
    pub reply: oneshot::Sender<NodeAnswer>,
    pub caller: Option<TrackingCaller>,
    /// The client that the reply's memory is accounted to.
    pub account: Option<Arc<Account>>,
    /// Where it holds a script that is audited.
    pub admin_acts: Option<Arc<AdminActs>>,
    pub deadline: ReplyDeadline,
}

/// When a request must be answered even if the node's thread is stuck: see `deadlines.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyDeadline {
    /// In sweeps, while it is in the inbox.
    pub in_inbox: u64,
    /// From the moment the node has it; `u64::MAX` for one that may wait for ever.
    pub taken: u64,
    pub kind: RequestKind,
}

/// Decides what is reported for a request that the node has taken and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// It may have been applied.
    Command,
    /// The same; and it may be in a lock queue, from which it must be cancelled.
    Wait,
    /// It changes nothing.
    Read,
    Admin,
}

/// The client of a request, where its reads or changes of keys matter to client tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackingCaller {
    pub client: u64,
    /// It caches what it reads.
    pub keeps_reads: bool,
}

/// One input, and who wants its answer, if anybody.
pub type InboxItem = (Input, Option<ReplyTo>);

#[derive(Debug, Default)]
pub struct NodeInbox {
    state: Mutex<InboxState>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct InboxState {
    items: Vec<InboxItem>,
    clients: InboxUsage,
    peers: InboxUsage,
    /// What is queued, by what the wake-up filter distinguishes.
    requests: usize,
    durable: bool,
    urgent: bool,
    /// The filter of a sleeping consumer.
    asleep: Option<WakeFilter>,
    closed: bool,
}

/// How much of the inbox is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct InboxFill {
    pub clients: InboxUsage,
    pub peers: InboxUsage,
}

/// How much of the inbox one kind of sender uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct InboxUsage {
    pub items: usize,
    pub bytes: usize,
}

impl InboxUsage {
    /// Counts one more item if it fits.
    fn admit(&mut self, bytes: usize, items_max: usize, bytes_max: usize) -> bool {
        let fits = self.items < items_max && self.bytes + bytes <= bytes_max;
        if fits {
            self.items += 1;
            self.bytes += bytes;
        }
        fits
    }
}

impl InboxState {
    fn ends(&self, wake_filter: WakeFilter) -> bool {
        self.urgent || self.requests >= wake_filter.requests || (self.durable && wake_filter.durable)
    }
}

/// Why an item was not taken. The item is handed back, so that its sender can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    Full,
    Closed,
}

impl NodeInbox {
    /// A request of a client.
    #[allow(clippy::result_large_err)] // The item is handed back as it is; a box would cost every refusal an allocation.
    pub fn push_client(&self, item: InboxItem) -> Result<(), (PushError, InboxItem)> {
        let bytes = item.0.bytes();
        self.push(item, |state| state.clients.admit(bytes, CLIENT_ITEMS_MAX, CLIENT_BYTES_MAX))
    }

    /// A message of a peer. False: dropped.
    pub fn push_peer(&self, input: Input) -> bool {
        let bytes = input.bytes();
        self.push((input, None), |state| state.peers.admit(bytes, PEER_ITEMS_MAX, PEER_BYTES_MAX)).is_ok()
    }

    /// A report of the disk, a lost connection, or the end: always taken while the inbox is open.
    pub fn push_report(&self, input: Input) -> bool {
        self.push((input, None), |_| true).is_ok()
    }

    #[allow(clippy::result_large_err)] // The item is handed back as it is; a box would cost every refusal an allocation.
    fn push(
        &self,
        item: InboxItem,
        admit: impl FnOnce(&mut InboxState) -> bool,
    ) -> Result<(), (PushError, InboxItem)> {
        let mut state = self.lock();
        if state.closed {
            return Err((PushError::Closed, item));
        }
        if !admit(&mut state) {
            return Err((PushError::Full, item));
        }
        match &item.0 {
            Input::Submit(_) => state.requests += 1,
            Input::Persisted { .. } => state.durable = true,
            Input::Read(_)
            | Input::Cancel { .. }
            | Input::Withdraw { .. }
            | Input::SessionsTouched(_)
            | Input::SessionsInHurry(_)
            | Input::SessionsOrphaned { .. }
            | Input::Wanted(_)
            | Input::Users(_)
            | Input::Peer { .. }
            | Input::Unreachable(_)
            | Input::Refused(_)
            | Input::PersistFailed { .. }
            | Input::SnapshotProgress { .. }
            | Input::SnapshotStored(_)
            | Input::SnapshotFailed { .. }
            | Input::Admin { .. }
            | Input::Shutdown
            | Input::Wake => state.urgent = true,
            #[cfg(any(debug_assertions, feature = "mutants"))]
            Input::Diverge(_) => state.urgent = true,
        }
        state.items.push(item);
        let wakes = state.asleep.is_some_and(|wake_filter| state.ends(wake_filter));
        if wakes {
            state.asleep = None;
        }
        drop(state);
        if wakes {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Takes all there is; sleeps up to `timeout`, or until an input passes the wake-up filter, where there is nothing. `taken`
    /// must be empty: its memory is reused.
    pub fn take(&self, timeout: Duration, wake_filter: WakeFilter, taken: &mut Vec<InboxItem>) {
        debug_assert!(taken.is_empty());
        let mut state = self.lock();
        if !state.ends(wake_filter) && !state.closed && !timeout.is_zero() {
            state.asleep = Some(wake_filter);
            let waited = self
                .filled
                .wait_timeout_while(state, timeout, |state| state.asleep.is_some() && !state.closed);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.asleep = None;
        }
        std::mem::swap(&mut state.items, taken);
        state.clients = InboxUsage::default();
        state.peers = InboxUsage::default();
        (state.requests, state.durable, state.urgent) = (0, false, false);
    }

    /// Takes out the requests of clients that have been inside for too long: the node never sees them.
    pub fn take_overdue(&self, sweep: u64) -> Vec<ReplyTo> {
        let mut state = self.lock();
        let is_overdue = |item: &mut InboxItem| {
            item.1.as_ref().is_some_and(|reply_to| reply_to.deadline.in_inbox <= sweep)
        };
        let taken: Vec<InboxItem> = state.items.extract_if(.., is_overdue).collect();
        let bytes: usize = taken.iter().map(|(input, _)| input.bytes()).sum();
        state.clients.items = state.clients.items.saturating_sub(taken.len());
        state.clients.bytes = state.clients.bytes.saturating_sub(bytes);
        taken.into_iter().filter_map(|(_, reply_to)| reply_to).collect()
    }

    pub fn fill(&self) -> InboxFill {
        let state = self.lock();
        InboxFill { clients: state.clients, peers: state.peers }
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Nothing is taken from now on. What is still inside is handed out by the last `take`.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        // A panic between two pushes leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_api::Submit;
    use bytes::Bytes;

    #[test]
    fn clients_beyond_the_limit_are_refused_and_peers_are_not() {
        let inbox = NodeInbox::default();
        for _ in 0..CLIENT_ITEMS_MAX {
            assert!(inbox.push_client((Input::Wake, None)).is_ok());
        }
        let refused = inbox.push_client((Input::Wake, None)).map_err(|(why, _)| why);
        assert_eq!(refused, Err(PushError::Full));
        assert!(inbox.push_peer(Input::Wake));
        let mut taken = Vec::new();
        inbox.take(Duration::ZERO, WakeFilter::default(), &mut taken);
        assert_eq!(taken.len(), CLIENT_ITEMS_MAX + 1);
        assert!(inbox.push_client((Input::Wake, None)).is_ok());
    }

    #[test]
    fn bytes_are_counted_as_well_as_items() {
        let inbox = NodeInbox::default();
        let blob = Bytes::from(vec![0; REQUEST_BYTES_MAX]);
        let submit =
            || Submit { ticket: 1, connection: 0, blob: blob.clone(), timeout_ms: 1_000, wait_ms: 0 };
        for _ in 0..CLIENT_BYTES_MAX / REQUEST_BYTES_MAX {
            assert!(inbox.push_client((Input::Submit(submit()), None)).is_ok());
        }
        let refused = inbox.push_client((Input::Submit(submit()), None)).map_err(|(why, _)| why);
        assert_eq!(refused, Err(PushError::Full));
        assert!(inbox.push_client((Input::Wake, None)).is_ok(), "what has no bytes still fits");
        assert!(inbox.push_peer(Input::Wake), "clients do not crowd out peers");
        inbox.take(Duration::ZERO, WakeFilter::default(), &mut Vec::new());
        assert!(inbox.push_client((Input::Submit(submit()), None)).is_ok());
    }

    #[test]
    fn a_push_ends_the_sleep() {
        let inbox = std::sync::Arc::new(NodeInbox::default());
        let producer = std::sync::Arc::clone(&inbox);
        let thread = std::thread::spawn(move || producer.push_report(Input::Wake));
        let mut taken = Vec::new();
        inbox.take(Duration::from_secs(60), WakeFilter::default(), &mut taken);
        assert_eq!(taken.len(), 1);
        assert!(thread.join().expect("the producer does not panic"));
    }

    #[test]
    fn a_sleeper_is_not_woken_for_what_it_can_do_nothing_about() {
        let submit = |ticket| {
            let submit = Submit { ticket, connection: 0, blob: Bytes::new(), timeout_ms: 1_000, wait_ms: 0 };
            (Input::Submit(submit), None)
        };
        let inbox = NodeInbox::default();
        let wake_filter = WakeFilter { requests: 2, durable: false };
        let mut taken = Vec::new();
        assert!(inbox.push_report(Input::Persisted { number: 1 }));
        assert!(inbox.push_client(submit(1)).is_ok());
        let began = std::time::Instant::now();
        inbox.take(Duration::from_millis(20), wake_filter, &mut taken);
        assert!(
            began.elapsed() >= Duration::from_millis(20),
            "one request and a durable write end no such sleep"
        );
        assert_eq!(taken.len(), 2, "but they are handed out with it");
        taken.clear();
        assert!(inbox.push_client(submit(2)).is_ok());
        assert!(inbox.push_client(submit(3)).is_ok());
        inbox.take(Duration::from_secs(60), wake_filter, &mut taken);
        assert_eq!(taken.len(), 2, "two requests do");
        taken.clear();
        assert!(inbox.push_report(Input::Persisted { number: 2 }));
        inbox.take(Duration::from_secs(60), WakeFilter { requests: 2, durable: true }, &mut taken);
        assert_eq!(taken.len(), 1, "and so does a write that is waited for");
    }

    #[test]
    fn a_closed_inbox_hands_out_what_it_has_and_takes_no_more() {
        let inbox = NodeInbox::default();
        assert!(inbox.push_report(Input::Wake));
        inbox.close();
        assert!(!inbox.push_report(Input::Wake));
        let mut taken = Vec::new();
        inbox.take(Duration::from_secs(60), WakeFilter::default(), &mut taken);
        assert_eq!(taken.len(), 1);
    }
}
