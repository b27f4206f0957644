//! `LOCK.MACQUIRE`

use super::{check_options, CommandContext, CommandOutcome};
use crate::ffi::OwnedString;
use crate::info::{count, Counter};
use crate::record::owner::Owner;
use crate::record::{Availability, LockKeys, Terms};
use crate::wait_queues::WaitRequest;
use crate::{multi, waiters};
use bytes::Bytes;
use redfence_core::grammar::macquire::MAcquire;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &CommandContext<'_>, request: &MAcquire<'_>) -> Result<CommandOutcome, Refusal> {
    check_options(&request.options)?;
    if all_to_be_had(call, request)? {
        let mut owner = Owner::new(request.options.owner);
        let owner = owner.settle();
        let terms = Terms { ttl_ms: request.ttl_ms, value: b"" };
        let grants = multi::take_all(call.ctx, &request.resources, owner, terms, call.now)?;
        return Ok(multi::granted(&grants).into());
    }
    let wait_ms = request.options.wait_ms.unwrap_or(0);
    if wait_ms == 0 || !call.ctx.may_block() {
        count(Counter::Taken);
        return Ok(Reply::Nil.into());
    }
    let wait_request = WaitRequest {
        db: call.ctx.db(),
        resources: request.resources.iter().map(|name| Bytes::copy_from_slice(name)).collect(),
        multi: true,
        owner: Bytes::copy_from_slice(Owner::new(request.options.owner).settle()),
        value: Bytes::new(),
    };
    waiters::wait(call.ctx, wait_request, request.ttl_ms, wait_ms)
}

/// Whether every lock is free with nobody in the queue before us, or the owner's already (a retry). An error of any of them comes before
/// anything is taken.
fn all_to_be_had(call: &CommandContext<'_>, request: &MAcquire<'_>) -> Result<bool, Refusal> {
    let mut all = true;
    for resource in &request.resources {
        let somebody_is_before = waiters::somebody_is_before(call.ctx, resource, call.now);
        let name = OwnedString::new(resource);
        all &= match LockKeys::new(name.name())?.availability(call.ctx, request.options.owner)? {
            Availability::Free => !somebody_is_before,
            Availability::OwnedByCaller => true,
            Availability::HeldUntil(_) => false,
        };
    }
    Ok(all)
}
