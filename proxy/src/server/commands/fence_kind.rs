//! `FENCE.CHECK` and `FENCE.CALL` whose marks live in the upstream Redis: the cluster is asked first whether the fence is that of
//! one of several holders, which orders nothing. That Redis cannot know.
//!
//! Asked only where somebody has held a lock in another mode than exclusive since this node runs: all others pass as before. A node that
//! does not reach the cluster does not know, and lets it pass: marks in that Redis work without a quorum.
//!
//! `LOCK.CONVERT` of a name that belongs to Tier 1 is asked about likewise: locks of Tier 1 are not converted, those that were taken with
//! `TIER CORRECTNESS` are.

use crate::node_api::OwnedQuery;
use crate::server::context::CommandContext;
use crate::server::net::in_flight::{AfterReply, AwaitedReply, IfAbandoned, InFlight, Source};
use crate::server::stats::CommandKind;
use bytes::Bytes;
use redfence_core::grammar::{errors, Request};
use redfence_core::machine::GrantState;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::{Fence, Reason};

/// What became of the question.
#[derive(Debug)]
pub(super) enum FenceLook {
    /// The command is run again when it is answered.
    UnderWay,
    Refused(Refusal),
    /// The command may be carried out.
    Known,
}

/// What the cluster is asked about a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceQuestion {
    pub resource: Bytes,
    pub fence: Fence,
    pub about: FenceAbout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceAbout {
    /// Whether it may guard writes.
    Kind,
    /// What became of its grant.
    Grant,
}

/// What the cluster says of a fence.
#[derive(Debug)]
pub struct FenceAnswer {
    pub question: FenceQuestion,
    pub reply: Reply,
}

impl CommandContext {
    pub(super) fn look_at_fence(&mut self, request: &Request<'_>) -> FenceLook {
        let (resource, fence) = if let Request::FenceCheck(check) = request {
            (check.resource, check.fence)
        } else if let Request::FenceCall(call) = request {
            (call.resource, call.fence)
        } else {
            return FenceLook::Known;
        };
        let resource = Bytes::copy_from_slice(resource);
        let question = FenceQuestion { resource, fence, about: FenceAbout::Kind };
        if let Some(reply) = self.fence_answer_to(&question) {
            let Reply::Error(refusal) = reply else { return FenceLook::Known };
            return match refusal.code() {
                "MODE" => FenceLook::Refused(refusal),
                _ => FenceLook::Known,
            };
        }
        if !self.server.tier2.status().knows_several {
            return FenceLook::Known;
        }
        let query = OwnedQuery::FenceKind { db: self.client.db, resource: question.resource.clone(), fence };
        self.ask_about_fence(query, question)
    }

    /// Whether Tier 2 knows the grant that is to be converted.
    pub(super) fn look_at_converted(&mut self, request: &Request<'_>) -> FenceLook {
        let Request::Convert(convert) = request else { return FenceLook::Known };
        let (resource, fence) = (Bytes::copy_from_slice(convert.resource), convert.fence);
        let question = FenceQuestion { resource, fence, about: FenceAbout::Grant };
        if let Some(reply) = self.fence_answer_to(&question) {
            let is_unknown =
                matches!(GrantState::read(&reply), Some(GrantState::Ended { reason: Reason::NotOwner, .. }));
            return if is_unknown { FenceLook::Refused(errors::tier_kinds_here()) } else { FenceLook::Known };
        }
        let query =
            OwnedQuery::GrantByFence { db: self.client.db, resource: question.resource.clone(), fence };
        self.ask_about_fence(query, question)
    }

    /// Another command may have come to be refused before the one that asked was run again.
    fn fence_answer_to(&mut self, question: &FenceQuestion) -> Option<Reply> {
        let answer = self.client.fence_answer.take().filter(|answer| answer.question == *question);
        answer.map(|answer| answer.reply)
    }

    fn ask_about_fence(&mut self, query: OwnedQuery, question: FenceQuestion) -> FenceLook {
        if !self.can_join(InFlight::Alone) {
            return FenceLook::UnderWay;
        }
        let pending = self.server.tier2.query(query);
        self.await_call(InFlight::Alone, Source::Tier2(pending), false, IfAbandoned::Nothing);
        if let Some(AwaitedReply::Call(call)) = self.replies.awaited.back_mut() {
            // It is part of a command that is answered and counted later.
            call.muted = true;
            call.command = CommandKind::Other;
            call.after_reply = AfterReply::FenceLooked(question);
        }
        FenceLook::UnderWay
    }
}
