//! `FENCE.CHECK` and `FENCE.CALL` whose marks live in the upstream Redis: the cluster is asked first whether the fence is that of
//! one of several holders, which orders nothing. That Redis cannot know.
//!
//! Asked only where somebody has held a lock in another mode than exclusive since this node runs: all others pass as before. A node that
//! does not reach the cluster does not know, and lets it pass: marks in that Redis work without a quorum.

use crate::node_api::OwnedQuery;
use crate::server::context::CommandContext;
use crate::server::net::in_flight::{AfterReply, AwaitedReply, IfAbandoned, InFlight, Source};
use crate::server::stats::CommandKind;
use bytes::Bytes;
use redfence_core::grammar::Request;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Fence;

/// What became of the question.
#[derive(Debug)]
pub(super) enum FenceLook {
    /// The command is run again when it is answered.
    UnderWay,
    Refused(Refusal),
    MayGuard,
}

/// What the cluster says of a fence.
#[derive(Debug)]
pub struct FenceAnswer {
    pub resource: Bytes,
    pub fence: Fence,
    pub reply: Reply,
}

impl FenceAnswer {
    fn is_for(&self, resource: &[u8], fence: Fence) -> bool {
        self.resource == resource && self.fence == fence
    }
}

impl CommandContext {
    pub(super) fn look_at_fence(&mut self, request: &Request<'_>) -> FenceLook {
        let (resource, fence) = if let Request::FenceCheck(check) = request {
            (check.resource, check.fence)
        } else if let Request::FenceCall(call) = request {
            (call.resource, call.fence)
        } else {
            return FenceLook::MayGuard;
        };
        // Another command may have come to be refused before it was run again.
        let answer = self.client.fence_answer.take().filter(|answer| answer.is_for(resource, fence));
        if let Some(answer) = answer {
            let Reply::Error(refusal) = answer.reply else { return FenceLook::MayGuard };
            return match refusal.code() {
                "MODE" => FenceLook::Refused(refusal),
                _ => FenceLook::MayGuard,
            };
        }
        if !self.server.tier2.status().knows_several {
            return FenceLook::MayGuard;
        }
        if !self.can_join(InFlight::Alone) {
            return FenceLook::UnderWay;
        }
        let resource = Bytes::copy_from_slice(resource);
        let query = OwnedQuery::FenceKind { db: self.client.db, resource: resource.clone(), fence };
        let pending = self.server.tier2.query(query);
        self.await_call(InFlight::Alone, Source::Tier2(pending), false, IfAbandoned::Nothing);
        if let Some(AwaitedReply::Call(call)) = self.replies.awaited.back_mut() {
            // It is part of a command that is answered and counted later.
            call.muted = true;
            call.command = CommandKind::Other;
            call.after_reply = AfterReply::FenceLooked { resource, fence };
        }
        FenceLook::UnderWay
    }
}
