//! `LOCK.MACQUIRE`

use super::{check_options, Answer, Call};
use crate::ffi::OwnedString;
use crate::info::{count, Counter};
use crate::lines::Wish;
use crate::record::owner::Owner;
use crate::record::{Freedom, Lock, Taken};
use crate::{multi, waiters};
use bytes::Bytes;
use redfence_core::grammar::macquire::MAcquire;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Fence;

pub(crate) fn run(call: &Call<'_>, request: &MAcquire<'_>) -> Result<Answer, Refusal> {
    check_options(&request.options)?;
    if let Some(answer) = take_again(call, request)? {
        return Ok(answer);
    }
    if all_free(call, request)? {
        let mut owner = Owner::new(request.options.owner);
        let owner = owner.settle();
        let fences = multi::take_all(call.ctx, &request.resources, owner, request.ttl_ms, call.now)?;
        return Ok(multi::granted(&fences, request.ttl_ms).into());
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

/// Whether every lock is free, with nobody in line before us. An error of any of them comes before anything is taken.
fn all_free(call: &Call<'_>, request: &MAcquire<'_>) -> Result<bool, Refusal> {
    let mut free = true;
    for resource in &request.resources {
        free &= !waiters::somebody_is_before(call.ctx, resource, call.now);
        let name = OwnedString::new(resource);
        free &= Lock::new(name.name())?.freedom(call.ctx)? == Freedom::Free;
    }
    Ok(free)
}

/// A retry: the owner holds all of them already, and gets the same fences.
fn take_again(call: &Call<'_>, request: &MAcquire<'_>) -> Result<Option<Answer>, Refusal> {
    let Some(owner) = request.options.owner else {
        return Ok(None);
    };
    for resource in &request.resources {
        let name = OwnedString::new(resource);
        if !Lock::new(name.name())?.is_held_by(call.ctx, owner)? {
            return Ok(None);
        }
    }
    let mut fences = Vec::with_capacity(request.resources.len());
    let mut ttl_ms = u64::MAX;
    for resource in &request.resources {
        let name = OwnedString::new(resource);
        let mut owner = Owner::Given(owner);
        let taken = Lock::new(name.name())?.take(call.ctx, &mut owner, request.ttl_ms, false, call.now)?;
        let (fence, left_ms) = match taken {
            Taken::Granted(grant) | Taken::Again(grant) => (grant.fence, grant.ttl_ms),
            Taken::Busy => (Fence(0), 0),
        };
        fences.push(fence);
        ttl_ms = ttl_ms.min(left_ms);
        waiters::deadline_moved(call.ctx, resource, call.now.wall_ms() + left_ms);
    }
    count(Counter::GrantedAgain);
    Ok(Some(multi::granted(&fences, ttl_ms).into()))
}
