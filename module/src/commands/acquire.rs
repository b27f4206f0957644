//! `LOCK.ACQUIRE`

use super::{check_options, Answer, Call};
use crate::events;
use crate::info::{count, Counter};
use crate::lines::Wish;
use crate::record::companion::OwnerBytes;
use crate::record::{Lock, Taken};
use crate::waiters;
use bytes::Bytes;
use redfence_core::event::EventKind;
use redfence_core::grammar::acquire::Acquire;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &Call<'_>, request: &Acquire<'_>) -> Result<Answer, Refusal> {
    check_options(&request.options)?;
    let (ctx, owner) = (call.ctx, request.options.owner);
    let lock = Lock::new(call.argv[1].name())?;
    let may_take = !waiters::somebody_is_before(ctx, request.resource, call.now);
    let (taken, owner_taken) = lock.take(ctx, owner, request.ttl_ms, may_take, call.now)?;
    match taken {
        Taken::Granted(grant) => {
            count(Counter::Granted);
            events::publish(ctx, EventKind::Acquired, request.resource, grant.fence, owner_taken.bytes());
            Ok(Reply::Granted { fence: grant.fence, ttl_ms: grant.ttl_ms }.into())
        }
        Taken::Again(grant) => {
            count(Counter::GrantedAgain);
            if let Some(deadline_ms) = grant.deadline_ms {
                waiters::deadline_moved(ctx, request.resource, deadline_ms);
            }
            Ok(Reply::Granted { fence: grant.fence, ttl_ms: grant.ttl_ms }.into())
        }
        Taken::Busy => wait_or_leave(call, request),
    }
}

fn wait_or_leave(call: &Call<'_>, request: &Acquire<'_>) -> Result<Answer, Refusal> {
    let wait_ms = request.options.wait_ms.unwrap_or(0);
    if wait_ms == 0 || !call.ctx.may_block() {
        count(Counter::Taken);
        return Ok(Reply::Nil.into());
    }
    let wish = Wish {
        db: call.ctx.db(),
        resources: vec![Bytes::copy_from_slice(request.resource)],
        multi: false,
        owner: owner_of(request.options.owner),
    };
    waiters::wait(call.ctx, wish, request.ttl_ms, wait_ms)
}

pub(super) fn owner_of(given: Option<&[u8]>) -> Bytes {
    match given {
        Some(owner) => Bytes::copy_from_slice(owner),
        None => Bytes::copy_from_slice(OwnerBytes::random().bytes()),
    }
}
