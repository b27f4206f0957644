//! `LOCK.FORCERELEASE`

use super::{check_tier, CommandContext, CommandOutcome};
use crate::events;
use crate::info::{count, Counter};
use crate::record::LockKeys;
use crate::waiters;
use redfence_core::event::EventKind;
use redfence_core::grammar::errors::shown;
use redfence_core::grammar::forcerelease::ForceRelease;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &CommandContext<'_>, request: &ForceRelease<'_>) -> Result<CommandOutcome, Refusal> {
    check_tier(request.tier)?;
    let lock = LockKeys::new(call.argv[1].name())?;
    if let Some(fence) = request.fence {
        let view = lock.view(call.ctx)?;
        if view.owner.is_none() || view.fence != fence {
            return Ok(Reply::Int(0).into());
        }
    }
    let Some((fence, owner)) = lock.end_by_force(call.ctx, call.now)? else {
        return Ok(Reply::Int(0).into());
    };
    count(Counter::Released);
    call.ctx.log_notice(&format!(
        "LOCK.FORCERELEASE took '{}' from owner '{}', fence {fence}",
        shown(request.resource),
        shown(&owner)
    ));
    events::publish(call.ctx, EventKind::Released, request.resource, fence, &owner);
    waiters::serve(call.ctx, request.resource, call.now);
    Ok(Reply::Int(1).into())
}
