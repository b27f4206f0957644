//! Delivers awaited replies: takes them in order as they come and encodes them for the client. Part of [`CommandContext`].

use crate::resp::encode::Encoder;
use crate::server::access::audit;
use crate::server::commands::explain::explained_to;
use crate::server::commands::fence_kind::FenceAnswer;
use crate::server::context::CommandContext;
use crate::server::net::connection::{Disconnect, UNREAD_BYTES_MAX};
use crate::server::net::in_flight::{
    AfterReply, AwaitedCall, AwaitedReply, AwaitedSubscription, InFlight, SessionStep, Source,
    TransactionAsked,
};
use crate::server::stats::Answered;
use crate::tier1::subscriber::NotSubscribed;
use crate::tier2::handle::NodeAnswer;
use crate::tls::stream::ClientStream;
use redfence_core::reply::Reply;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

impl CommandContext {
    /// Delivers what has come. `stream`: the client's socket, to see whether it is still there.
    pub(in crate::server) fn poll_awaited(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut ClientStream,
    ) -> Result<bool, Disconnect> {
        let mut moved = false;
        // Nothing more is taken for a client that has this much to read.
        while self.replies.unsent_bytes() <= UNREAD_BYTES_MAX {
            let Some(front) = self.replies.awaited.front_mut() else { break };
            match front {
                AwaitedReply::Encoded(bytes) => {
                    self.replies.encoded_bytes -= bytes.len();
                    self.replies.out.append(bytes);
                    self.replies.awaited.pop_front();
                }
                AwaitedReply::Call(AwaitedCall { source: Source::Deferred(_), .. }) => {
                    if !self.replies.ask_deferred(&self.server.tier2, &self.client.account, context) {
                        break;
                    }
                }
                AwaitedReply::Call(call) => {
                    if call.waits && stream.has_hung_up() {
                        // Before a grant is taken out for it: nobody would be left to have it.
                        return Err(Disconnect);
                    }
                    let unblocked = if call.waits { self.client.info.unblock.poll(context) } else { None };
                    if let Some(with) = unblocked {
                        call.end_wait(with);
                    }
                    match call.source.poll(context) {
                        Poll::Pending => break,
                        Poll::Ready(NodeAnswer::Deferred(query)) => {
                            call.source = Source::Deferred(query);
                            self.replies.deferred_reads.begin();
                        }
                        Poll::Ready(NodeAnswer::Reply { reply, counted }) => {
                            if call.is_routed && is_grant(&reply) {
                                match self.routes.still_hold(&self.server, &self.client.info) {
                                    Some(true) => {}
                                    holds => {
                                        // Where the connection ends it is given back.
                                        call.source = Source::Answered { reply, counted };
                                        return self.hold_answer(context, holds).map(|()| moved);
                                    }
                                }
                            }
                            let Some(AwaitedReply::Call(call)) = self.replies.awaited.pop_front() else {
                                unreachable!("seen")
                            };
                            self.client.account.take_reply(counted);
                            self.replies.kept_bytes -= call.kept_bytes;
                            self.finish_call(call, reply);
                        }
                    }
                }
                AwaitedReply::Subscription(confirm) => {
                    let Poll::Ready(confirmed) = Pin::new(&mut confirm.confirmed).poll(context) else {
                        break;
                    };
                    let Some(AwaitedReply::Subscription(confirm)) = self.replies.awaited.pop_front() else {
                        unreachable!("seen")
                    };
                    self.finish_confirm(
                        &confirm,
                        confirmed.unwrap_or_else(|_| {
                            Err(NotSubscribed::Unavailable("it is shutting down".into()))
                        }),
                    );
                }
                AwaitedReply::OwnUpstream(_) | AwaitedReply::SharedUpstream(_) => break,
            }
            moved = true;
        }
        if self.replies.awaited.is_empty() && self.replies.in_flight != InFlight::Nothing {
            self.replies.in_flight = InFlight::Nothing;
            self.replies.stalled = false;
            self.replies.large_calls = 0;
            self.leave_routes();
            moved = true;
        }
        Ok(moved)
    }

    /// The first answer was decided by routes that are in force no more (`Some`), or may be.
    fn hold_answer(&self, context: &Context<'_>, holds: Option<bool>) -> Result<(), Disconnect> {
        if holds.is_some() {
            tracing::info!(
                client = self.client.info.id,
                "closing client: its grant was decided by routes no longer in force"
            );
            return Err(Disconnect);
        }
        // Until this node follows the routes that its state has.
        let waker = context.waker().clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            waker.wake();
        });
        Ok(())
    }

    fn finish_call(&mut self, call: AwaitedCall, reply: Reply) {
        let reply = match call.unblocked {
            Some(with) => with.answer(reply),
            None => reply,
        };
        self.note_script_denials(&reply);
        if let (Some(draft), Some(audit)) = (call.audit, &self.server.access.audit) {
            let result = match (&call.after_reply, &reply) {
                (AfterReply::Transaction(_), Reply::Nil | Reply::NilArray) => audit::DISCARDED,
                _ => audit::result_of(&reply),
            };
            audit.finish(*draft, result);
        }
        let answered = Answered {
            command: call.command,
            by: call.source.served_by(),
            waits: call.waits,
            took_us: self.server.now_us().saturating_sub(call.began_us),
        };
        self.server.stats.count(answered, &reply);
        if call.waits {
            self.client.end_wait();
        }
        let shown = self.follow(call.after_reply, reply, !call.muted);
        if !call.muted {
            let protocol = self.client.protocol;
            shown.render(&mut Encoder { out: &mut self.replies.out, protocol });
            self.replies.reply_end = self.replies.out.len();
        }
    }

    /// Carries an answer over into the state of the client; gives back what the client is to see of it, if anything.
    fn follow(&mut self, then: AfterReply, reply: Reply, is_told: bool) -> Reply {
        match (then, reply) {
            (AfterReply::Session(step), reply) => {
                if let Some(sessions) = &self.client.sessions {
                    match (step, step.forgets(&reply)) {
                        (_, Some(id)) => sessions.forget(id),
                        (SessionStep::Opens(id), None) if !reply.is_error() => sessions.opened(id),
                        (SessionStep::Opens(_) | SessionStep::Closes(_), None) => {}
                    }
                }
                reply
            }
            (AfterReply::Granted { blob, user, .. }, reply) => {
                self.note_answered(&blob, user, reply.granted().filter(|_| is_told));
                reply
            }
            (AfterReply::GrantedOne { db, in_session, converts, user }, reply) => {
                let granted = reply.granted().filter(|_| is_told);
                self.note_answered_one(db, in_session, converts, user, granted);
                reply
            }
            (AfterReply::Released { count }, reply) => {
                self.client.told.released(count, reply.is_error());
                reply
            }
            (AfterReply::ReleasedWatched(keys), reply) => {
                self.note_released(&keys, &reply);
                reply
            }
            (AfterReply::Renewed(key), reply) => {
                self.note_renewed(&key, &reply);
                reply
            }
            (AfterReply::Notified { before }, reply) => self.notified(before, reply),
            (AfterReply::SessionLocks { id, before }, reply) => self.session_locks(id, before, reply),
            (AfterReply::FenceLooked(question), reply) => {
                self.client.fence_answer = Some(Box::new(FenceAnswer { question, reply }));
                Reply::Nil
            }
            (AfterReply::Explained, reply) => explained_to(&self.client.user, reply),
            (AfterReply::Say(said), reply) if !reply.is_error() => said,
            (AfterReply::Watch { db, keys }, Reply::Array(tokens)) => {
                self.client.watch(db, keys, &tokens);
                Reply::OK
            }
            (AfterReply::Transaction(transaction), Reply::Array(mut replies)) => {
                let TransactionAsked { selects, answered_here, locks, user, .. } = *transaction;
                self.note_transaction(&locks, user, &replies, is_told);
                for (at, answer) in answered_here {
                    let answer = self.answer_here(answer);
                    replies.insert(at.min(replies.len()), answer);
                }
                let moved = selects.iter().rev().find(|(at, _)| replies.get(*at) == Some(&Reply::OK));
                if let Some((_, db)) = moved {
                    self.set_database(*db);
                }
                Reply::Array(replies)
            }
            (AfterReply::Transaction(transaction), reply) => {
                self.note_transaction(&transaction.locks, transaction.user, &[], is_told);
                reply
            }
            (AfterReply::Nothing | AfterReply::Say(_) | AfterReply::Watch { .. }, reply) => reply,
        }
    }

    fn finish_confirm(&mut self, awaited: &AwaitedSubscription, confirmed: Result<(), NotSubscribed>) {
        match confirmed {
            Ok(()) => self.confirm(awaited.kind, &awaited.names),
            Err(reason) => self.refuse_subscription(awaited, reason),
        }
    }
}

/// Whether it tells the client that it has something now.
fn is_grant(reply: &Reply) -> bool {
    !reply.is_error() && !matches!(reply, Reply::Nil | Reply::NilArray)
}
