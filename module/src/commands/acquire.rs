//! `LOCK.ACQUIRE`

use super::{check_options, Answer, Call};
use crate::events;
use crate::info::{count, Counter};
use crate::lines::Wish;
use crate::record::owner::Owner;
use crate::record::{Lock, Taken};
use crate::waiters;
use bytes::Bytes;
use redfence_core::event::EventKind;
use redfence_core::grammar::acquire::Acquire;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &Call<'_>, request: &Acquire<'_>) -> Result<Answer, Refusal> {
    check_options(&request.options)?;
    let ctx = call.ctx;
    let mut owner = Owner::new(request.options.owner);
    let lock = Lock::new(call.argv[1].name())?;
    let may_take = !waiters::somebody_is_before(ctx, request.resource, call.now);
    match lock.take(ctx, &mut owner, request.ttl_ms, may_take, call.now)? {
        Taken::Granted(grant) => {
            count(Counter::Granted);
            events::publish(ctx, EventKind::Acquired, request.resource, grant.fence, owner.settle());
            Ok(Reply::Granted { fence: grant.fence, ttl_ms: grant.ttl_ms }.into())
        }
        Taken::Again(grant) => {
            count(Counter::GrantedAgain);
            if let Some(deadline_ms) = grant.deadline_ms {
                waiters::deadline_moved(ctx, request.resource, deadline_ms);
            }
            Ok(Reply::Granted { fence: grant.fence, ttl_ms: grant.ttl_ms }.into())
        }
        Taken::Busy => wait_or_leave(call, request, &mut owner),
    }
}

fn wait_or_leave(call: &Call<'_>, request: &Acquire<'_>, owner: &mut Owner<'_>) -> Result<Answer, Refusal> {
    let wait_ms = request.options.wait_ms.unwrap_or(0);
    if wait_ms == 0 || !call.ctx.may_block() {
        count(Counter::Taken);
        return Ok(Reply::Nil.into());
    }
    let wish = Wish {
        db: call.ctx.db(),
        resources: vec![Bytes::copy_from_slice(request.resource)],
        multi: false,
        owner: Bytes::copy_from_slice(owner.settle()),
    };
    waiters::wait(call.ctx, wish, request.ttl_ms, wait_ms)
}
