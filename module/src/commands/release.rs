//! `LOCK.RELEASE`

use super::{check_tier, CommandContext, CommandOutcome};
use crate::events;
use crate::ffi::Name;
use crate::info::{count, Counter};
use crate::record::{EndOutcome, LockKeys};
use crate::waiters;
use redfence_core::event::EventKind;
use redfence_core::grammar::release::Release;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Fence;

pub(crate) fn run(call: &CommandContext<'_>, request: &Release<'_>) -> Result<CommandOutcome, Refusal> {
    check_tier(request.tier)?;
    release(call, call.argv[1].name(), request.fence).map(CommandOutcome::from)
}

/// Ends one grant, and gives the lock to whoever is next, in one step.
pub(super) fn release(call: &CommandContext<'_>, name: Name<'_>, fence: Fence) -> Result<Reply, Refusal> {
    let lock = LockKeys::new(name)?;
    let reply = match lock.end(call.ctx, fence, call.now)? {
        EndOutcome::Now(hold) => {
            count(Counter::Released);
            events::publish(call.ctx, EventKind::Released, lock.resource(), (&hold).into());
            Reply::Released
        }
        EndOutcome::Before(reason) => {
            count(Counter::Refused);
            Reply::Refused(reason)
        }
    };
    waiters::serve(call.ctx, lock.resource(), call.now);
    Ok(reply)
}
