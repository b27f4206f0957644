//! What the rest of the proxy sees of Tier 2: [`Tier2Handle`], cheap to clone, and its other end, the shell's [`NodeEndpoint`].
//!
//! A connection's task encodes a command, calls [`Tier2Handle::submit`] and awaits the reply. Dropping the future of a command
//! that may wait in a lock queue cancels the wait (the client disconnected). The handle knows nothing of Raft.

pub(super) mod deadlines;
pub mod inbox;

use crate::client_memory::{counted_bytes, Account};
use crate::events::Demand;
use crate::metrics::{NodeMetrics, Queue};
use crate::node_api::apply_feed::{self, FeedItem, FeedReceiver, FeedSender};
use crate::node_api::{
    AdminActs, AdminRequest, ClientKeyAccess, ClusterStatus, ConnectionId, Input, NodeId, Outputs,
    OwnedQuery, PeerMessage, PeerSink, Read, Role, Submit, Ticket, WakeFilter,
};
pub use crate::tier2::handle::inbox::{InboxFill, TrackingCaller};
use crate::tier2::handle::inbox::{InboxItem, NodeInbox, PushError, ReplyTo, RequestKind};
use crate::tier2::refusals;
use crate::tier2::seq_map::SeqMap;
use bytes::Bytes;
use deadlines::Sweeper;
use redfence_core::limits::REQUEST_BYTES_MAX;
use redfence_core::machine::Wanted;
use redfence_core::reply::Reply;
use redfence_core::types::SessionId;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// Time-out of a request, unless configured otherwise.
pub const TIMEOUT_MS_DEFAULT: u64 = 5_000;

#[derive(Clone, Debug)]
pub struct Tier2Handle {
    shared: Arc<HandleShared>,
}

/// Reported sessions that are not there, until somebody asks for them.
const ABSENT_SESSIONS_MAX: usize = 65_536;

#[derive(Debug)]
pub(super) struct HandleShared {
    pub(super) inbox: NodeInbox,
    /// Who waits for an answer of the node. The raft thread locks it twice a turn, a sweep only where that thread is stuck.
    pub(super) waiting: Mutex<ReplyTable>,
    pub(super) sweeper: Sweeper,
    status: Mutex<Arc<ClusterStatus>>,
    /// As in the status: asked for every answer.
    routing_version: AtomicU64,
    /// As in the status: asked for every command.
    is_quarantined: AtomicBool,
    /// The last entry applied.
    entry_index: AtomicU64,
    demand: Arc<Demand>,
    absent_sessions: Mutex<Vec<SessionId>>,
    metrics: Arc<NodeMetrics>,
    /// Until somebody takes it.
    news: Mutex<Option<FeedReceiver>>,
    next_ticket: AtomicU64,
    timeout_ms: u64,
}

/// Makes both ends. The shell's thread keeps the [`NodeEndpoint`].
#[must_use]
pub fn connect(timeout_ms: u64) -> (Tier2Handle, NodeEndpoint) {
    let (news, receiver) = apply_feed::channel();
    let shared = Arc::new(HandleShared {
        inbox: NodeInbox::default(),
        waiting: Mutex::default(),
        sweeper: Sweeper::default(),
        status: Mutex::default(),
        routing_version: AtomicU64::new(0),
        is_quarantined: AtomicBool::new(false),
        entry_index: AtomicU64::new(0),
        demand: Arc::default(),
        absent_sessions: Mutex::default(),
        metrics: Arc::default(),
        news: Mutex::new(Some(receiver)),
        next_ticket: AtomicU64::new(1),
        timeout_ms,
    });
    let endpoint =
        NodeEndpoint { shared: Arc::clone(&shared), taken: Vec::new(), wanted: Wanted::default(), news };
    (Tier2Handle { shared }, endpoint)
}

impl Tier2Handle {
    /// Sends an encoded command to the log. `wait_ms` is the command's own `WAIT`, 0 for all others.
    pub fn submit(&self, blob: Bytes, wait_ms: u64) -> PendingReply {
        self.submit_for(0, None, None, None, blob, wait_ms)
    }

    /// The same on behalf of a client: what came by one connection is applied in the order it was submitted. `caller`: where it
    /// tracks keys. `account`: where its reply may be large. `admin_acts`: filled before the reply is there.
    pub fn submit_for(
        &self,
        connection: ConnectionId,
        caller: Option<TrackingCaller>,
        account: Option<Arc<Account>>,
        admin_acts: Option<Arc<AdminActs>>,
        blob: Bytes,
        wait_ms: u64,
    ) -> PendingReply {
        if blob.len() > REQUEST_BYTES_MAX {
            return PendingReply::answered(refusals::too_large(blob.len()));
        }
        let timeout_ms = self.shared.timeout_ms;
        let input = |ticket| Input::Submit(Submit { ticket, connection, blob, timeout_ms, wait_ms });
        let kind = if wait_ms > 0 { RequestKind::Wait } else { RequestKind::Command };
        self.ask(kind, wait_ms, caller, account, admin_acts, input)
    }

    /// A linearizable read of the state.
    pub fn query(&self, query: OwnedQuery) -> PendingReply {
        self.read(query, None)
    }

    /// The same on behalf of a client. Where that client has too many unread replies the query comes back: [`NodeAnswer::Deferred`].
    pub fn query_for(&self, account: &Arc<Account>, query: OwnedQuery) -> PendingReply {
        self.read(query, Some(Arc::clone(account)))
    }

    fn read(&self, query: OwnedQuery, account: Option<Arc<Account>>) -> PendingReply {
        let timeout_ms = self.shared.timeout_ms;
        let reply_to = account.clone();
        let input = |ticket| Input::Read(Read { ticket, query, timeout_ms, account });
        self.ask(RequestKind::Read, 0, None, reply_to, None, input)
    }

    /// Membership and leadership. Answered when the change is seen to be done.
    pub fn admin(&self, request: AdminRequest) -> PendingReply {
        let timeout_ms = self.shared.timeout_ms;
        self.ask(RequestKind::Admin, 0, None, None, None, |ticket| Input::Admin {
            ticket,
            request,
            timeout_ms,
        })
    }

    /// Connections of these sessions were active, or are blocked in a WAIT. Call about five times a second with all of
    /// them, not once per command. False: the queue was full; report them again with the next batch.
    pub fn touch_sessions(&self, ids: Vec<SessionId>) -> bool {
        ids.is_empty() || self.shared.inbox.push_client((Input::SessionsTouched(ids), None)).is_ok()
    }

    /// The same at once, of sessions that may end before the next batch. Call at a bounded rate. False: the queue was full.
    #[must_use]
    pub fn touch_sessions_at_once(&self, ids: Vec<SessionId>) -> bool {
        self.shared.inbox.push_client((Input::SessionsInHurry(ids), None)).is_ok()
    }

    /// Of the sessions that were reported since the last call those that are not there: they have ended, or are being opened.
    #[must_use]
    pub fn take_absent_sessions(&self) -> Vec<SessionId> {
        std::mem::take(&mut *self.shared.absent_sessions.lock().expect("mutex poisoned"))
    }

    /// The connections that opened these sessions are closed.
    pub fn orphan_sessions(&self, ids: Vec<SessionId>, grace_ms: u64, heard_index: u64) {
        if !ids.is_empty() {
            self.shared.inbox.push_report(Input::SessionsOrphaned { ids, grace_ms, heard_index });
        }
    }

    /// What `LOCK.CLUSTER INFO` and `NODES` show. Never waits, also without quorum.
    #[must_use]
    pub fn status(&self) -> Arc<ClusterStatus> {
        Arc::clone(&self.shared.status.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Of the routes in force, as far as this node has applied: at least as far as every answer it has given.
    #[must_use]
    pub fn routing_version(&self) -> u64 {
        self.shared.routing_version.load(Ordering::Acquire)
    }

    /// This node differs from a majority of the others, and serves nothing.
    #[must_use]
    pub fn is_quarantined(&self) -> bool {
        self.shared.is_quarantined.load(Ordering::Relaxed)
    }

    /// The last entry that this node has applied: that of every answer it has given, or a later one.
    #[must_use]
    pub fn entry_index(&self) -> u64 {
        self.shared.entry_index.load(Ordering::Acquire)
    }

    /// How long a request waits for its outcome before it is answered `UNAVAILABLE` or `INDETERMINATE`.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.shared.timeout_ms)
    }

    /// Counts of subscribers and tracking clients. From the moment a count rises, everything applied later is in the feed.
    #[must_use]
    pub fn demand(&self) -> &Arc<Demand> {
        &self.shared.demand
    }

    /// What the threads of the node measure.
    #[must_use]
    pub fn metrics(&self) -> &Arc<NodeMetrics> {
        &self.shared.metrics
    }

    /// How much of the node's inbox is used.
    #[must_use]
    pub fn inbox_fill(&self) -> InboxFill {
        self.shared.inbox.fill()
    }

    /// The feed of this node's apply. There is one receiver: later calls return `None`.
    #[must_use]
    pub fn take_apply_feed(&self) -> Option<FeedReceiver> {
        self.shared.news.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// For the transport: a message of a peer. False: dropped because the queue was full.
    pub fn push_peer(&self, input: Input) -> bool {
        let is_taken = self.shared.inbox.push_peer(input);
        if !is_taken {
            self.shared.metrics.queue_full(Queue::PeerMessages).increment();
        }
        is_taken
    }

    /// For the log writer, the snapshot writer and the shutdown: always taken.
    pub fn push_report(&self, input: Input) -> bool {
        self.shared.inbox.push_report(input)
    }

    /// Answers what is overdue while the node's thread is stuck. To be called every [`deadlines::SWEEP_EVERY`], by
    /// another thread. False: the node has stopped, and it need not be called again.
    pub fn sweep(&self) -> bool {
        deadlines::sweep(&self.shared)
    }

    fn ask(
        &self,
        kind: RequestKind,
        wait_ms: u64,
        caller: Option<TrackingCaller>,
        account: Option<Arc<Account>>,
        admin_acts: Option<Arc<AdminActs>>,
        input: impl FnOnce(Ticket) -> Input,
    ) -> PendingReply {
        let ticket = self.shared.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let cancel = (kind == RequestKind::Wait).then(|| self.shared.clone());
        let deadline = self.shared.sweeper.deadline(kind, self.shared.timeout_ms, wait_ms);
        let reply_to = ReplyTo { reply: sender, caller, account, admin_acts, deadline };
        match self.shared.inbox.push_client((input(ticket), Some(reply_to))) {
            Ok(()) => PendingReply { receiver, ticket, cancel },
            Err((why, (_, reply_to))) => {
                let reply = match why {
                    PushError::Full => {
                        self.shared.metrics.queue_full(Queue::Requests).increment();
                        refusals::queue_full()
                    }
                    PushError::Closed => refusals::stopping(),
                };
                // The receiver is in our hands: sending cannot fail.
                let _ = reply_to
                    .expect("a client request has a receiver")
                    .reply
                    .send(NodeAnswer::uncounted(reply));
                PendingReply { receiver, ticket, cancel: None }
            }
        }
    }
}

/// The outcome of a request.
#[derive(Debug)]
pub enum NodeAnswer {
    /// `counted`: bytes of it added to the memory account of its client, which the receiver must subtract.
    Reply { reply: Reply, counted: usize },
    /// A read that was not answered because the client has too many unread replies; to be submitted again.
    Deferred(Box<OwnedQuery>),
}

impl NodeAnswer {
    /// A reply that is not accounted to a client.
    #[must_use]
    pub fn uncounted(reply: Reply) -> NodeAnswer {
        NodeAnswer::Reply { reply, counted: 0 }
    }
}

/// The future reply of a request. Dropping it before the reply cancels a command that may wait in a lock queue.
#[derive(Debug)]
pub struct PendingReply {
    receiver: oneshot::Receiver<NodeAnswer>,
    ticket: Ticket,
    cancel: Option<Arc<HandleShared>>,
}

impl PendingReply {
    /// An answer that was there at once.
    pub(crate) fn answered(reply: Reply) -> PendingReply {
        let (sender, receiver) = oneshot::channel();
        // The receiver is in our hands: sending cannot fail.
        let _ = sender.send(NodeAnswer::uncounted(reply));
        PendingReply { receiver, ticket: 0, cancel: None }
    }

    /// Cancels a wait and still returns its reply: what it was served with, or nil.
    #[must_use]
    pub fn withdraw(mut self) -> PendingReply {
        if let Some(shared) = self.cancel.take() {
            shared.inbox.push_report(Input::Withdraw { ticket: self.ticket });
        }
        self
    }
}

impl PendingReply {
    pub fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<NodeAnswer> {
        let answer = match Pin::new(&mut self.receiver).poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(answer) => answer,
        };
        self.cancel = None;
        // The node's thread is gone: the outcome is unknown.
        Poll::Ready(answer.unwrap_or_else(|_| NodeAnswer::uncounted(refusals::indeterminate())))
    }
}

/// For those without an account, whose reads are never deferred.
impl Future for PendingReply {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        self.poll_answer(context).map(|answer| match answer {
            NodeAnswer::Reply { reply, .. } => reply,
            NodeAnswer::Deferred(_) => refusals::queue_full(),
        })
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let Some(shared) = self.cancel.take() {
            shared.inbox.push_report(Input::Cancel { ticket: self.ticket });
        }
    }
}

/// The node thread's end of the handle: collects inputs, and delivers replies, events and status.
#[derive(Debug)]
pub struct NodeEndpoint {
    shared: Arc<HandleShared>,
    taken: Vec<InboxItem>,
    wanted: Wanted,
    news: FeedSender,
}

impl NodeEndpoint {
    #[must_use]
    pub fn metrics(&self) -> &Arc<NodeMetrics> {
        &self.shared.metrics
    }

    /// Takes all inputs there are into `inputs`; sleeps up to `timeout` until an input passes the wake-up filter.
    pub fn collect(&mut self, timeout: Duration, wake_filter: WakeFilter, inputs: &mut Vec<Input>) {
        let mut taken = std::mem::take(&mut self.taken);
        self.shared.inbox.take(timeout, wake_filter, &mut taken);
        self.shared.sweeper.turn_begins();
        let mut waiting = self.shared.waiting.lock().expect("mutex poisoned");
        for (input, reply_to) in taken.drain(..) {
            if let (Some(ticket), Some(reply_to)) = (ticket_of(&input), reply_to) {
                let earlier = waiting.insert(ticket, reply_to);
                assert!(earlier.is_none(), "ticket {ticket} is used twice");
            }
            if let Input::Cancel { ticket } = &input {
                waiting.remove(*ticket);
            }
            inputs.push(input);
        }
        drop(waiting);
        self.taken = taken;
        // After the inbox: a client that subscribes and then submits a command must receive the events of that command.
        let wanted = self.shared.demand.wanted();
        if wanted != self.wanted {
            self.wanted = wanted;
            inputs.push(Input::Wanted(wanted));
        }
    }

    /// Hands out replies, events and status, and takes them out of `outputs`.
    pub fn deliver(&mut self, outputs: &mut Outputs) {
        self.shared.entry_index.store(outputs.entry_index, Ordering::Release);
        if let Some(status) = outputs.status.take() {
            self.shared.is_quarantined.store(status.role == Role::Quarantined, Ordering::Relaxed);
            self.shared.routing_version.store(status.routing_version, Ordering::Release);
            *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(status);
        }
        // Computed before the replies are sent, because sending removes the requests; passed on after them.
        let shared = Arc::clone(&self.shared);
        let mut waiting = shared.waiting.lock().expect("mutex poisoned");
        let news = feed_items(&waiting, outputs);
        if !outputs.absent_sessions.is_empty() {
            let mut absent = self.shared.absent_sessions.lock().expect("mutex poisoned");
            absent.append(&mut outputs.absent_sessions);
            // Nobody may ask. One that is left out is reported again.
            absent.truncate(ABSENT_SESSIONS_MAX);
        }
        for (ticket, act) in outputs.admin_acts.drain(..) {
            if let Some(acts) = waiting.get(ticket).and_then(|reply_to| reply_to.admin_acts.as_ref()) {
                acts.add(act);
            }
        }
        for (ticket, reply) in outputs.replies.drain(..) {
            if let Some(reply_to) = waiting.remove(ticket) {
                // Fails if the client is gone.
                let answer = counted(&reply_to, reply);
                let _ = reply_to.reply.send(answer);
            }
        }
        for (ticket, query) in outputs.deferred.drain(..) {
            if let Some(reply_to) = waiting.remove(ticket) {
                let _ = reply_to.reply.send(NodeAnswer::Deferred(Box::new(query)));
            }
        }
        drop(waiting);
        self.news.tell(news);
    }

    /// The node has stopped. Requests still in the inbox never reached it; the outcome of those it had taken is unknown.
    pub fn close(mut self) {
        self.shared.inbox.close();
        let mut taken = std::mem::take(&mut self.taken);
        self.shared.inbox.take(Duration::ZERO, WakeFilter::default(), &mut taken);
        for (_, reply_to) in taken {
            if let Some(reply_to) = reply_to {
                let _ = reply_to.reply.send(NodeAnswer::uncounted(refusals::stopping()));
            }
        }
        let waiting = std::mem::take(&mut *self.shared.waiting.lock().expect("mutex poisoned"));
        for reply_to in waiting.into_values() {
            let _ = reply_to.reply.send(NodeAnswer::uncounted(refusals::indeterminate()));
        }
    }
}

type ReplyTable = SeqMap<ReplyTo>;

/// Counts a reply to its client's account. The node itself has done so for reads.
fn counted(reply_to: &ReplyTo, reply: Reply) -> NodeAnswer {
    let Some(account) = &reply_to.account else { return NodeAnswer::uncounted(reply) };
    let counted = counted_bytes(&reply);
    if reply_to.deadline.kind != RequestKind::Read && !account.add_reply(counted) {
        // Its connection is being closed: free the memory at once.
        return NodeAnswer::uncounted(refusals::indeterminate());
    }
    NodeAnswer::Reply { reply, counted }
}

fn feed_items(waiting: &ReplyTable, outputs: &mut Outputs) -> Vec<FeedItem> {
    let missed = std::mem::take(&mut outputs.missed).then_some(FeedItem::Missed);
    let events = outputs.events.drain(..).map(FeedItem::Event);
    let losses = outputs.losses.drain(..).map(FeedItem::Ended);
    let published = outputs.published.drain(..);
    let published = published.map(|(channel, message)| FeedItem::Published { channel, message });
    let key_accesses =
        outputs.key_accesses.drain(..).filter_map(|key_accesses| feed_item_of_access(waiting, key_accesses));
    missed.into_iter().chain(events).chain(losses).chain(published).chain(key_accesses).collect()
}

fn feed_item_of_access(waiting: &ReplyTable, key_accesses: ClientKeyAccess) -> Option<FeedItem> {
    let caller = |ticket: Ticket| waiting.get(ticket).and_then(|reply_to| reply_to.caller);
    match key_accesses {
        ClientKeyAccess::Read { by, key } => {
            let reader = caller(by).filter(|caller| caller.keeps_reads)?;
            Some(FeedItem::Read { client: reader.client, key })
        }
        ClientKeyAccess::Changed { by, key } => {
            Some(FeedItem::Changed { by: by.and_then(caller).map(|caller| caller.client), key })
        }
        ClientKeyAccess::Flushed => Some(FeedItem::Flushed),
    }
}

fn ticket_of(input: &Input) -> Option<Ticket> {
    match input {
        Input::Submit(submit) => Some(submit.ticket),
        Input::Read(read) => Some(read.ticket),
        Input::Admin { ticket, .. } => Some(*ticket),
        Input::Cancel { .. }
        | Input::Withdraw { .. }
        | Input::SessionsTouched(_)
        | Input::SessionsInHurry(_)
        | Input::SessionsOrphaned { .. }
        | Input::Wanted(_)
        | Input::Users(_)
        | Input::Peer { .. }
        | Input::Unreachable(_)
        | Input::Refused(_)
        | Input::Persisted { .. }
        | Input::PersistFailed { .. }
        | Input::SnapshotProgress { .. }
        | Input::SnapshotStored(_)
        | Input::SnapshotFailed { .. }
        | Input::Shutdown
        | Input::Wake => None,
        #[cfg(any(debug_assertions, feature = "mutants"))]
        Input::Diverge(_) => None,
    }
}

impl PeerSink for Tier2Handle {
    fn message(&self, from: NodeId, message: PeerMessage) -> bool {
        self.push_peer(Input::Peer { from, message })
    }

    fn unreachable(&self, id: NodeId) {
        self.push_report(Input::Unreachable(id));
    }

    fn refused(&self, id: NodeId) {
        self.push_report(Input::Refused(id));
    }

    fn dropped(&self, id: NodeId) {
        self.shared.metrics.queue_full(Queue::PeerSends).increment();
        self.unreachable(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(endpoint: &mut NodeEndpoint) -> Vec<Input> {
        let mut inputs = Vec::new();
        endpoint.collect(Duration::ZERO, WakeFilter::default(), &mut inputs);
        inputs
    }

    #[tokio::test]
    async fn a_reply_finds_its_request() {
        let (handle, mut endpoint) = connect(TIMEOUT_MS_DEFAULT);
        let pending = handle.submit(Bytes::from_static(b"x"), 0);
        let inputs = collected(&mut endpoint);
        let Input::Submit(submit) = &inputs[0] else { panic!("not a submit: {inputs:?}") };
        let mut outputs = Outputs::default();
        outputs.replies.push((submit.ticket, Reply::Int(7)));
        endpoint.deliver(&mut outputs);
        assert_eq!(pending.await, Reply::Int(7));
    }

    #[tokio::test]
    async fn only_a_waiting_command_is_cancelled_when_dropped() {
        let (handle, mut endpoint) = connect(TIMEOUT_MS_DEFAULT);
        drop(handle.submit(Bytes::from_static(b"try"), 0));
        drop(handle.submit(Bytes::from_static(b"wait"), 10));
        let cancels =
            collected(&mut endpoint).iter().filter(|input| matches!(input, Input::Cancel { .. })).count();
        assert_eq!(cancels, 1);
    }

    #[tokio::test]
    async fn a_stopped_node_says_what_it_knows() {
        let (handle, mut endpoint) = connect(TIMEOUT_MS_DEFAULT);
        let taken = handle.submit(Bytes::from_static(b"taken"), 0);
        collected(&mut endpoint);
        let untouched = handle.submit(Bytes::from_static(b"untouched"), 0);
        endpoint.close();
        assert_eq!(taken.await, refusals::indeterminate());
        assert_eq!(untouched.await, refusals::stopping());
        assert_eq!(handle.submit(Bytes::new(), 0).await, refusals::stopping());
    }
}
