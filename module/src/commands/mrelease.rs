//! `LOCK.MRELEASE`

use super::release::release;
use super::{check_tier, CommandContext, CommandOutcome};
use crate::info::{count, Counter};
use redfence_core::grammar::mrelease::MRelease;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Reason;

pub(crate) fn run(call: &CommandContext<'_>, request: &MRelease<'_>) -> Result<CommandOutcome, Refusal> {
    check_tier(request.tier)?;
    let mut replies = Vec::with_capacity(request.pairs.len());
    for (at, (_, fence)) in request.pairs.iter().enumerate() {
        // Pairs begin behind the command's name and the count. One that cannot be served does not stop the others.
        let reply = release(call, call.argv[2 + 2 * at].name(), *fence);
        replies.push(reply.unwrap_or_else(refused));
    }
    Ok(Reply::Array(replies).into())
}

/// A key of another type is no lock that anybody owns.
fn refused(refusal: Refusal) -> Reply {
    if refusal.code() != "WRONGTYPE" {
        return Reply::Error(refusal);
    }
    count(Counter::Refused);
    Reply::Refused(Reason::NotOwner)
}
