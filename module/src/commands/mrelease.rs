//! `LOCK.MRELEASE`

use super::release::release;
use super::{check_tier, CommandContext, CommandOutcome};
use redfence_core::grammar::mrelease::MRelease;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &CommandContext<'_>, request: &MRelease<'_>) -> Result<CommandOutcome, Refusal> {
    check_tier(request.tier)?;
    let mut replies = Vec::with_capacity(request.pairs.len());
    for (at, (_, fence)) in request.pairs.iter().enumerate() {
        // Pairs begin behind the command's name and the count. One that cannot be served does not stop the others.
        let reply = release(call, call.argv[2 + 2 * at].name(), *fence);
        replies.push(reply.unwrap_or_else(Reply::Error));
    }
    Ok(Reply::Array(replies).into())
}
