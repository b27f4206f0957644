//! Replies of a client that reads slowly, kept within bounds. Part of [`ReplyQueue`].
//!
//! A connection may have many reads in flight. Where the replies made for it and not taken yet pass
//! [`redfence_core::limits::UNREAD_REPLIES_BYTES_MAX`] the node hands further reads back ([`NodeAnswer::Deferred`]), and goes on doing so, so that no
//! later read passes an earlier one. The connection waits until all of them are back; whenever the first of them becomes the
//! next to be answered, it asks again: for one, then for twice as many each time, until some are handed back again. No
//! further command is run meanwhile. The client gets every reply, in order, as fast as it reads.
//!
//! Replies of logged commands cannot be handed back: a client has at most [`LARGE_CALLS_MAX`] of them in flight that may be large.

use crate::client_memory::Account;
use crate::server::net::in_flight::{AwaitedReply, Source, PENDING_MAX};
use crate::server::net::replies::ReplyQueue;
use crate::tier2::handle::{NodeAnswer, Tier2Handle};
use redfence_core::limits::{CLIENT_BYTES_PER_NODE_MAX, LOGGED_REPLY_BYTES_MAX};
use std::sync::Arc;
use std::task::{Context, Poll};

/// Logged commands in flight whose replies may be large. One more waits until all before it are answered.
pub(in crate::server) const LARGE_CALLS_MAX: usize = 64;

const _: () = assert!(LARGE_CALLS_MAX * LOGGED_REPLY_BYTES_MAX < CLIENT_BYTES_PER_NODE_MAX);

#[derive(Debug, Default)]
pub(in crate::server) struct DeferredReads {
    /// Reads were handed back; others may be on their way.
    is_collecting: bool,
    /// Reads that were handed back and not asked again.
    deferred: usize,
    /// Asked again at once.
    window: usize,
}

impl DeferredReads {
    /// The next read was handed back.
    pub(in crate::server) fn begin(&mut self) {
        self.is_collecting = true;
        self.deferred += 1;
    }

    pub(in crate::server) fn is_under_way(&self) -> bool {
        self.is_collecting || self.deferred > 0
    }
}

impl ReplyQueue {
    /// The next reply is that of a deferred read. Whether it was asked again.
    pub(in crate::server) fn ask_deferred(
        &mut self,
        tier2: &Tier2Handle,
        account: &Arc<Account>,
        context: &mut Context<'_>,
    ) -> bool {
        if self.deferred_reads.is_collecting && !self.collect_deferred(account, context) {
            return false;
        }
        let deferred = self.awaited.iter_mut().filter_map(|item| match item {
            AwaitedReply::Call(call) => match &mut call.source {
                source @ Source::Deferred(_) => Some(source),
                Source::Tier2(_) | Source::Channel(_) | Source::Node(_) | Source::Answered { .. } => None,
            },
            AwaitedReply::Encoded(_)
            | AwaitedReply::OwnUpstream(_)
            | AwaitedReply::SharedUpstream(_)
            | AwaitedReply::Subscription(_) => None,
        });
        for source in deferred.take(self.deferred_reads.window) {
            // Replaced at once; a placeholder is needed only because the query moves out of it.
            let (_, placeholder) = tokio::sync::oneshot::channel();
            if let Source::Deferred(query) = std::mem::replace(source, Source::Channel(placeholder)) {
                *source = Source::Tier2(tier2.query_for(account, *query));
                self.deferred_reads.deferred -= 1;
            }
        }
        self.deferred_reads.window = (self.deferred_reads.window * 2).min(PENDING_MAX);
        true
    }

    /// Takes in all reads that are handed back. Whether none is on its way any more.
    fn collect_deferred(&mut self, account: &Account, context: &mut Context<'_>) -> bool {
        let calls = self.awaited.iter_mut().filter_map(|item| match item {
            AwaitedReply::Call(call) => Some(call),
            AwaitedReply::Encoded(_)
            | AwaitedReply::OwnUpstream(_)
            | AwaitedReply::SharedUpstream(_)
            | AwaitedReply::Subscription(_) => None,
        });
        for call in calls {
            if !matches!(call.source, Source::Tier2(_)) {
                continue;
            }
            match call.source.poll(context) {
                Poll::Pending => return false,
                Poll::Ready(NodeAnswer::Deferred(query)) => {
                    call.source = Source::Deferred(query);
                    self.deferred_reads.deferred += 1;
                }
                // Refused, or of a kind that is never handed back.
                Poll::Ready(NodeAnswer::Reply { reply, counted }) => {
                    call.source = Source::Answered { reply, counted };
                }
            }
        }
        account.resume_reads();
        self.deferred_reads.is_collecting = false;
        self.deferred_reads.window = 1;
        true
    }
}
