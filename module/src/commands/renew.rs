//! `LOCK.RENEW`

use super::{check_tier, CommandContext, CommandOutcome};
use crate::events;
use crate::info::{count, Counter};
use crate::record::{EndOutcome, LockKeys};
use crate::waiters;
use redfence_core::event::EventKind;
use redfence_core::grammar::renew::Renew;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &CommandContext<'_>, request: &Renew<'_>) -> Result<CommandOutcome, Refusal> {
    check_tier(request.tier)?;
    let lock = LockKeys::new(call.argv[1].name())?;
    match lock.renew(call.ctx, request.fence, request.ttl_ms, call.now)? {
        EndOutcome::Now(hold) => {
            count(Counter::Renewed);
            waiters::deadline_moved(call.ctx, request.resource, call.now.wall_ms() + request.ttl_ms);
            events::publish(call.ctx, EventKind::Renewed, request.resource, (&hold).into());
            Ok(Reply::Renewed { ttl_ms: request.ttl_ms }.into())
        }
        EndOutcome::Before(reason) => {
            count(Counter::Refused);
            Ok(Reply::Refused(reason).into())
        }
    }
}
