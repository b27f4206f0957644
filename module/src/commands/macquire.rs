//! `LOCK.MACQUIRE`

use super::{check_options, Answer, Call};
use crate::ffi::OwnedString;
use crate::info::{count, Counter};
use crate::lines::Wish;
use crate::record::owner::Owner;
use crate::record::{Freedom, Lock};
use crate::{multi, waiters};
use bytes::Bytes;
use redfence_core::grammar::macquire::MAcquire;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &Call<'_>, request: &MAcquire<'_>) -> Result<Answer, Refusal> {
    check_options(&request.options)?;
    if all_to_be_had(call, request)? {
        let mut owner = Owner::new(request.options.owner);
        let owner = owner.settle();
        let grants = multi::take_all(call.ctx, &request.resources, owner, request.ttl_ms, call.now)?;
        return Ok(multi::granted(&grants).into());
    }
    let wait_ms = request.options.wait_ms.unwrap_or(0);
    if wait_ms == 0 || !call.ctx.may_block() {
        count(Counter::Taken);
        return Ok(Reply::Nil.into());
    }
    let wish = Wish {
        db: call.ctx.db(),
        resources: request.resources.iter().map(|name| Bytes::copy_from_slice(name)).collect(),
        multi: true,
        owner: Bytes::copy_from_slice(Owner::new(request.options.owner).settle()),
    };
    waiters::wait(call.ctx, wish, request.ttl_ms, wait_ms)
}

/// Whether every lock is free with nobody in line before us, or the owner's already (a retry). An error of any of them comes before
/// anything is taken.
fn all_to_be_had(call: &Call<'_>, request: &MAcquire<'_>) -> Result<bool, Refusal> {
    let mut all = true;
    for resource in &request.resources {
        let somebody_is_before = waiters::somebody_is_before(call.ctx, resource, call.now);
        let name = OwnedString::new(resource);
        all &= match Lock::new(name.name())?.freedom(call.ctx, request.options.owner)? {
            Freedom::Free => !somebody_is_before,
            Freedom::Yours => true,
            Freedom::HeldUntil(_) => false,
        };
    }
    Ok(all)
}
