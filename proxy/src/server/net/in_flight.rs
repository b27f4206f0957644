//! Replies that are awaited, in the order of their commands.
//!
//! A connection may have many commands in flight, as long as all are of the same kind ([`InFlight`]): within a kind, whoever serves
//! the commands keeps their order. A command of another kind waits until nothing is in flight, so that a client which pipelines
//! "write the data, release the lock" never has the second overtake the first.

use crate::events::{GrantKey, SubscriptionKind};
use crate::metrics::ServedBy;
use crate::node_api::{AdminActs, OwnedQuery};
use crate::server::access::audit::{self, AuditDraft};
use crate::server::client::transaction::LockInTransaction;
use crate::server::client::unblock::UnblockWith;
use crate::server::commands::fence_kind::FenceQuestion;
use crate::server::commands::transaction::AnsweredHere;
use crate::server::stats::CommandKind;
use crate::server::upstream::reply_edit::ReplyEdit;
use crate::server::ServerState;
use crate::tier1::subscriber::NotSubscribed;
use crate::tier2::handle::{NodeAnswer, PendingReply};
use bytes::Bytes;
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, SessionId, UserTag};
use smallvec::SmallVec;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// Commands one connection may have in flight. No more are read until some are answered.
pub const PENDING_MAX: usize = 1024;

/// Which kind of command is in flight, and who keeps the order among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlight {
    /// Nothing is in flight.
    #[default]
    Nothing,
    /// Writes of Tier 2: applied in the order they were submitted.
    Tier2,
    /// Reads of Tier 2: answered in the order they were asked.
    Reads,
    /// The client's own connection to the upstream Redis.
    OwnUpstream,
    /// A connection to it that clients share.
    SharedUpstream,
    /// A command that nothing may follow until it is answered, such as one that may wait.
    Alone,
}

#[derive(Debug)]
pub enum AwaitedReply {
    /// Bytes of replies that stand behind others.
    Encoded(Vec<u8>),
    Call(AwaitedCall),
    /// The next reply on the own connection.
    OwnUpstream(UpstreamCall),
    /// The next replies on the shared connection.
    SharedUpstream(SharedUpstreamCalls),
    /// Confirmations of `SUBSCRIBE`, once the upstream Redis has confirmed.
    Subscription(AwaitedSubscription),
}

impl AwaitedReply {
    /// Whether the upstream Redis decides the answer.
    #[must_use]
    pub fn is_asked_of_upstream(&self) -> bool {
        match self {
            AwaitedReply::OwnUpstream(_) | AwaitedReply::SharedUpstream(_) => true,
            AwaitedReply::Call(call) => matches!(call.source, Source::Channel(_)),
            AwaitedReply::Encoded(_) | AwaitedReply::Subscription(_) => false,
        }
    }
}

/// A reply from Tier 2 or from a wait in Lua.
#[derive(Debug)]
pub struct AwaitedCall {
    pub source: Source,
    pub command: CommandKind,
    /// The command may wait: the client's end of the connection is its end.
    pub waits: bool,
    /// Who serves it was decided by routes: a grant is told only if those in force decide the same.
    pub is_routed: bool,
    /// The client wants no reply.
    pub muted: bool,
    /// When it began, for its latency.
    pub began_us: u64,
    pub if_abandoned: IfAbandoned,
    pub after_reply: AfterReply,
    /// What is kept of the command until it is answered, here and in tables of the node.
    pub kept_bytes: usize,
    /// An administrative act, to be written down with its outcome.
    pub audit: Option<Box<AuditDraft>>,
    /// What its scripts do, where there is an audit log.
    pub admin_acts: Option<Arc<AdminActs>>,
    /// Tells a task that waits in Lua to leave the queue.
    pub withdraw: Option<oneshot::Sender<()>>,
    /// Another client has ended its wait.
    pub unblocked: Option<UnblockWith>,
}

/// How the answer changes the state of its client.
#[derive(Debug)]
pub enum AfterReply {
    Nothing,
    /// `LOCK.SESSION OPEN` and `CLOSE`.
    Session(SessionStep),
    /// The answer has the tokens of these keys; the client sees `OK`.
    Watch {
        db: u32,
        keys: Vec<Bytes>,
    },
    /// A command that may be granted locks: if the client loses them it is told. Holds the command, and whose it is.
    Granted {
        blob: Bytes,
        /// What the table of losses keeps of it until it is answered.
        attempts_bytes: usize,
        user: UserTag,
    },
    /// The same of one lock, and nobody is told yet. Its name is the first of those asked for.
    GrantedOne {
        db: u32,
        /// It may end with a session.
        in_session: bool,
        /// The fence that it takes the place of.
        converts: Option<Fence>,
        user: UserTag,
    },
    /// `LOCK.RELEASE` or `LOCK.MRELEASE` of so many grants that the client was told of.
    Released {
        count: usize,
    },
    /// The same of these, while it is told of losses.
    ReleasedWatched(SmallVec<[GrantKey; 1]>),
    /// `LOCK.RENEW` of this grant.
    Renewed(GrantKey),
    /// `LOCK.NOTIFY ON`.
    Notified {
        before: NotifyState,
    },
    /// `LOCK.NOTIFY ON SESSION`: what the session holds, of which the client is told from now on.
    SessionLocks {
        id: SessionId,
        before: NotifyState,
    },
    /// What the next command, which is run again, must know of its fence.
    FenceLooked(FenceQuestion),
    /// `LOCK.EXPLAIN` of a client that may not see every name.
    Explained,
    /// The reply in place of an answer that is no error: only this node knows it (receivers of a `PUBLISH`).
    Say(Reply),
    Transaction(Box<TransactionAsked>),
}

/// A transaction with a `SELECT` of a database at each of these places, and without the commands at others, which did not go to the log.
#[derive(Debug)]
pub struct TransactionAsked {
    pub selects: Vec<(usize, u32)>,
    pub answered_here: Vec<(usize, AnsweredHere)>,
    pub locks: Vec<LockInTransaction>,
    /// What the table of losses keeps of it until it is answered.
    pub attempts_bytes: usize,
    pub user: UserTag,
}

impl AfterReply {
    /// What is kept of the command.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let key_bytes = |key: &GrantKey| key.resource.len() + size_of::<GrantKey>();
        match self {
            AfterReply::Granted { blob, attempts_bytes, .. } => blob.len() + attempts_bytes,
            AfterReply::ReleasedWatched(keys) => keys.iter().map(key_bytes).sum(),
            AfterReply::Renewed(key) => key_bytes(key),
            AfterReply::Watch { keys, .. } => keys.iter().map(|key| key.len() + size_of::<Bytes>()).sum(),
            AfterReply::Transaction(asked) => asked.bytes(),
            AfterReply::Nothing
            | AfterReply::Session(_)
            | AfterReply::GrantedOne { .. }
            | AfterReply::Released { .. }
            | AfterReply::Notified { .. }
            | AfterReply::SessionLocks { .. }
            | AfterReply::FenceLooked(_)
            | AfterReply::Explained
            | AfterReply::Say(_) => 0,
        }
    }
}

impl TransactionAsked {
    /// What it takes in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let locks: usize = self.locks.iter().map(LockInTransaction::bytes).sum();
        let here: usize = self.answered_here.iter().map(|(_, answer)| answer.bytes()).sum();
        locks + here + self.selects.len() * size_of::<(usize, u32)>() + self.attempts_bytes
    }
}

/// What a client was told of before a command, to go back to where it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyState {
    Off,
    On,
    /// With the session that the command names.
    OnWithSession,
}

/// What an answer means for the sessions of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStep {
    /// Kept alive from the moment it was asked for; forgotten where it was certainly refused. Where the outcome is not known it may be
    /// there, and ends with the connection.
    Opens(SessionId),
    /// Forgotten once it is gone for certain. `NOSESSION` may mean that it is another user's.
    Closes(SessionId),
}

impl SessionStep {
    /// The session this connection has no more to do with, now that the answer is known.
    #[must_use]
    pub fn forgets(self, answer: &Reply) -> Option<SessionId> {
        let refused = if let Reply::Error(refusal) = answer { Some(refusal.code()) } else { None };
        match (self, refused) {
            (SessionStep::Opens(_), None | Some("INDETERMINATE")) => None,
            (SessionStep::Opens(id), Some(_)) => Some(id),
            (SessionStep::Closes(_), Some(_)) => None,
            (SessionStep::Closes(id), None) => Some(id),
        }
    }
}

#[derive(Debug)]
pub enum Source {
    Tier2(PendingReply),
    Channel(oneshot::Receiver<Reply>),
    /// A task of this node, which asks no Redis.
    Node(oneshot::Receiver<Reply>),
    /// A read that was handed back, because the client has too many unread replies. Asked again when it is the first.
    Deferred(Box<OwnedQuery>),
    /// An answer that is not told yet: of a read behind a deferred one, or of a command whose routes may have changed.
    Answered {
        reply: Reply,
        counted: usize,
    },
}

/// Clean-up where the client disconnects before the answer comes.
#[derive(Debug)]
pub enum IfAbandoned {
    /// Dropping the source is enough.
    Nothing,
    /// An acquire of Tier 2 whose owner was made up here: such a grant is released. Holds the command.
    ReleaseGrant(Bytes),
    /// A transaction with acquires whose owners the machine makes up: the same.
    ReleaseGrantsOf(Vec<LockInTransaction>),
    /// `BLPOP` or one like it: items popped for a client that is gone are restored. Holds the command.
    RestoreItems { db: u32, argv: Vec<Bytes> },
}

impl IfAbandoned {
    /// What is kept for the case.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            IfAbandoned::Nothing => 0,
            IfAbandoned::ReleaseGrant(blob) => blob.len(),
            IfAbandoned::ReleaseGrantsOf(locks) => locks.iter().map(LockInTransaction::bytes).sum(),
            IfAbandoned::RestoreItems { argv, .. } => argv.iter().map(Bytes::len).sum(),
        }
    }
}

#[derive(Debug, Default)]
pub struct UpstreamCall {
    pub waits: bool,
    pub muted: bool,
    /// How to count the reply, if it is one of ours.
    pub operation: Option<CommandKind>,
    /// Answered by the Lua library: an error may mean that the library is gone.
    pub by_lua: bool,
    pub began_us: u64,
    /// What is added to an integer above 0: receivers of a `PUBLISH` that the upstream Redis does not know of.
    pub added: usize,
    /// Where the reply does not pass as it is.
    pub edit: Option<Box<ReplyEdit>>,
    /// What is undone where the reply is an error.
    pub if_refused: IfRefused,
    /// An administrative act, to be written down with its outcome.
    pub audit: Option<Box<AuditDraft>>,
}

/// What the client's state has of a command that the upstream Redis may refuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfRefused {
    #[default]
    Nothing,
    /// `MONITOR`
    StopMonitoring,
    /// `CLIENT TRACKING ON` of a client that did not track.
    StopTracking,
}

impl UpstreamCall {
    /// The reply will not come, or nobody sees it.
    pub fn abandon(&mut self, server: &ServerState) {
        if let (Some(draft), Some(audit)) = (self.audit.take(), &server.access.audit) {
            audit.finish(*draft, audit::UNKNOWN);
        }
    }

    /// Nobody looks at its reply.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let is_passed = self.edit.is_none() && self.added == 0;
        self.operation.is_none() && !self.by_lua && is_passed && self.audit.is_none()
    }
}

/// As many commands alike, one behind the other.
#[derive(Debug)]
pub struct SharedUpstreamCalls {
    pub count: u32,
    pub call: UpstreamCall,
}

#[derive(Debug)]
pub struct AwaitedSubscription {
    pub kind: SubscriptionKind,
    pub names: Vec<Bytes>,
    /// Those the client did not listen to before, each once.
    pub new_names: Vec<Bytes>,
    pub confirmed: oneshot::Receiver<Result<(), NotSubscribed>>,
}

impl AwaitedCall {
    /// Leaves the queue it stands in. The answer is still to come: nothing, or what was granted before.
    pub fn end_wait(&mut self, with: UnblockWith) {
        self.unblocked = Some(with);
        if let Some(withdraw) = self.withdraw.take() {
            // Its task has an answer already, if it does not listen any more.
            let _ = withdraw.send(());
        }
        let source = std::mem::replace(&mut self.source, Source::Answered { reply: Reply::Nil, counted: 0 });
        self.source = match source {
            Source::Tier2(pending) => Source::Tier2(pending.withdraw()),
            other
            @ (Source::Channel(_) | Source::Node(_) | Source::Deferred(_) | Source::Answered { .. }) => other,
        };
    }

    /// Whether the client's end of the connection is the end of the command too.
    #[must_use]
    pub fn dies_with_client(&self) -> bool {
        self.waits
            || matches!(self.if_abandoned, IfAbandoned::ReleaseGrant(_) | IfAbandoned::ReleaseGrantsOf(_))
    }

    /// The client is gone.
    pub fn abandon(self, server: &ServerState) {
        if let (Some(draft), Some(audit)) = (self.audit, &server.access.audit) {
            audit.finish(*draft, audit::UNKNOWN);
        }
        let (source, waits) = match self.source {
            Source::Answered { reply, .. } => (Source::Tier2(PendingReply::answered(reply)), false),
            source @ (Source::Tier2(_) | Source::Channel(_) | Source::Node(_) | Source::Deferred(_)) => {
                (source, self.waits)
            }
        };
        match (self.if_abandoned, source) {
            (IfAbandoned::ReleaseGrant(blob), Source::Tier2(pending)) => {
                crate::server::release_orphaned_grant::start(server.tier2.clone(), blob, pending, waits);
            }
            (IfAbandoned::RestoreItems { db, argv }, Source::Tier2(pending)) => {
                crate::server::restore_popped_items::start(server.tier2.clone(), db, argv, pending);
            }
            (IfAbandoned::ReleaseGrantsOf(locks), Source::Tier2(pending)) => {
                crate::server::release_orphaned_grant::start_of_transaction(
                    server.tier2.clone(),
                    locks,
                    pending,
                );
            }
            (
                IfAbandoned::Nothing
                | IfAbandoned::ReleaseGrant(_)
                | IfAbandoned::ReleaseGrantsOf(_)
                | IfAbandoned::RestoreItems { .. },
                _,
            ) => {}
        }
    }
}

impl Source {
    /// Who serves it.
    #[must_use]
    pub fn served_by(&self) -> ServedBy {
        match self {
            Source::Channel(_) => ServedBy::Upstream,
            Source::Tier2(_) | Source::Node(_) | Source::Deferred(_) | Source::Answered { .. } => {
                ServedBy::Cluster
            }
        }
    }

    /// A deferred read stays pending until it is asked again.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<NodeAnswer> {
        match self {
            Source::Tier2(pending) => pending.poll_answer(context),
            Source::Channel(receiver) | Source::Node(receiver) => {
                Pin::new(receiver).poll(context).map(|answer| {
                    NodeAnswer::uncounted(answer.unwrap_or_else(|_| crate::tier2::refusals::indeterminate()))
                })
            }
            Source::Deferred(_) => Poll::Pending,
            Source::Answered { reply, counted } => {
                let reply = std::mem::replace(reply, Reply::Nil);
                Poll::Ready(NodeAnswer::Reply { reply, counted: *counted })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::reply::Refusal;

    #[test]
    fn a_session_is_forgotten_only_where_it_is_certain() {
        let (opens, closes) = (SessionStep::Opens(SessionId(1)), SessionStep::Closes(SessionId(1)));
        let error = |text: &'static str| Reply::Error(Refusal::new(text));
        assert_eq!(opens.forgets(&Reply::Bulk(Bytes::new())), None);
        assert_eq!(opens.forgets(&error("INDETERMINATE it may be there")), None);
        assert_eq!(opens.forgets(&error("UNAVAILABLE no")), Some(SessionId(1)));
        assert_eq!(closes.forgets(&Reply::Int(3)), Some(SessionId(1)));
        for refusal in ["INDETERMINATE x", "UNAVAILABLE x", "NOSESSION it may be another user's"] {
            assert_eq!(closes.forgets(&error(refusal)), None, "{refusal}");
        }
    }
}
