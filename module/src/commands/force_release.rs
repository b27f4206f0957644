//! `LOCK.FORCERELEASE`

use super::{check_tier, CommandContext, CommandOutcome};
use crate::info::{count, Counter};
use crate::record::{ForcedEnd, LockKeys};
use crate::{events, losses, waiters};
use redfence_core::grammar::errors::shown;
use redfence_core::grammar::forcerelease::ForceRelease;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::LossCause;

pub(crate) fn run(call: &CommandContext<'_>, request: &ForceRelease<'_>) -> Result<CommandOutcome, Refusal> {
    check_tier(request.tier)?;
    let lock = LockKeys::new(call.argv[1].name())?;
    let Some(ForcedEnd { hold, was_ours }) = lock.end_by_force(call.ctx, request.fence, call.now)? else {
        return Ok(Reply::Int(0).into());
    };
    count(Counter::Released);
    call.ctx.log_notice(&format!(
        "LOCK.FORCERELEASE took '{}' from owner '{}', fence {}",
        shown(request.resource),
        shown(&hold.owner),
        hold.fence
    ));
    events::publish_taken(call.ctx, request.resource, (&hold).into(), LossCause::Forced);
    waiters::serve(call.ctx, request.resource, call.now);
    // A plain client's lock has no fence by which it could be missed.
    if was_ours {
        losses::publish_after_serving(call.ctx, request.resource, hold.fence, LossCause::Forced);
    }
    Ok(Reply::Int(1).into())
}
