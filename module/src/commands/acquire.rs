//! `LOCK.ACQUIRE`

use super::{check_options, CommandContext, CommandOutcome};
use crate::events::{self, EventGrant};
use crate::info::{count, Counter};
use crate::record::owner::Owner;
use crate::record::{AcquireOutcome, LockKeys, Terms};
use crate::wait_queues::WaitRequest;
use crate::waiters;
use bytes::Bytes;
use redfence_core::event::EventKind;
use redfence_core::grammar::acquire::Acquire;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &CommandContext<'_>, request: &Acquire<'_>) -> Result<CommandOutcome, Refusal> {
    check_options(&request.options)?;
    let ctx = call.ctx;
    let mut owner = Owner::new(request.options.owner);
    let lock = LockKeys::new(call.argv[1].name())?;
    let may_take = !waiters::somebody_is_before(ctx, request.resource, call.now);
    let terms = Terms { ttl_ms: request.ttl_ms, value: request.options.value.unwrap_or_default() };
    match lock.take(ctx, &mut owner, terms, may_take, call.now)? {
        AcquireOutcome::Granted(grant) => {
            count(Counter::Granted);
            let told = EventGrant { fence: grant.fence, owner: owner.settle(), value: terms.value };
            events::publish(ctx, EventKind::Acquired, request.resource, told);
            Ok(Reply::Granted { fence: grant.fence, ttl_ms: grant.ttl_ms }.into())
        }
        AcquireOutcome::Again(grant) => {
            count(Counter::GrantedAgain);
            if let Some(deadline_ms) = grant.deadline_ms {
                waiters::deadline_moved(ctx, request.resource, deadline_ms);
            }
            Ok(Reply::Granted { fence: grant.fence, ttl_ms: grant.ttl_ms }.into())
        }
        AcquireOutcome::Busy => wait_or_leave(call, request, &mut owner),
    }
}

fn wait_or_leave(
    call: &CommandContext<'_>,
    request: &Acquire<'_>,
    owner: &mut Owner<'_>,
) -> Result<CommandOutcome, Refusal> {
    let wait_ms = request.options.wait_ms.unwrap_or(0);
    if wait_ms == 0 || !call.ctx.may_block() {
        count(Counter::Taken);
        return Ok(Reply::Nil.into());
    }
    let wait_request = WaitRequest {
        db: call.ctx.db(),
        resources: vec![Bytes::copy_from_slice(request.resource)],
        multi: false,
        owner: Bytes::copy_from_slice(owner.settle()),
        value: Bytes::copy_from_slice(request.options.value.unwrap_or_default()),
    };
    waiters::wait(call.ctx, wait_request, request.ttl_ms, wait_ms)
}
