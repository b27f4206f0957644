//! Why a release or a renewal is refused: what the server remembers of the last grant.

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::expect::FENCE_BOUND;
use redfence_tests::{ask, expect};

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        never_taken_is_not_owner,
        wrong_fence_is_not_owner,
        second_release_is_already_released,
        after_expiry_is_expired,
        renew_after_expiry_is_expired,
        older_fence_is_not_owner,
        ended_fence_keeps_its_reason_while_another_holds,
        expired_fence_keeps_its_reason_until_the_next_end,
        older_fence_is_not_owner_once_the_next_has_expired,
        a_refusal_changes_nothing,
        an_expired_lock_is_expired_for_ever,
        release_after_expiry_and_handover_is_expired,
    ],
}

fn never_taken_is_not_owner(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    for fence in [1, 42, FENCE_BOUND - 1] {
        client.release_is_refused(&name, fence, "not_owner");
    }
}

fn wrong_fence_is_not_owner(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 30_000);
    for fence in [1, grant.fence - 1, grant.fence + 1, FENCE_BOUND - 1] {
        client.release_is_refused(&name, fence, "not_owner");
    }
    client.release(&name, grant.fence);
}

fn second_release_is_already_released(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 30_000);
    client.release(&name, grant.fence);
    client.release_is_refused(&name, grant.fence, "already_released");
    client.release_is_refused(&name, grant.fence, "already_released");
    client.release_is_refused(&name, grant.fence - 1, "not_owner");
}

fn after_expiry_is_expired(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let fence = client.acquire_and_expire(&name);
    client.release_is_refused(&name, fence, "expired");
}

fn renew_after_expiry_is_expired(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let fence = client.acquire_and_expire(&name);
    client.renew_is_refused(&name, fence, 30_000, "expired");
    assert_eq!(client.info(&name).state, "free", "an expired lock is not brought back");
}

fn older_fence_is_not_owner(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let first = client.acquire(&name, 30_000);
    client.release(&name, first.fence);
    let second = client.acquire(&name, 30_000);
    client.release(&name, second.fence);
    client.release_is_refused(&name, first.fence, "not_owner");
    client.release_is_refused(&name, second.fence, "already_released");
}

fn ended_fence_keeps_its_reason_while_another_holds(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let first = client.acquire(&name, 30_000);
    client.release(&name, first.fence);
    let second = client.acquire(&name, 30_000);
    // The holder's grant has not ended: the last that did is still the first one.
    client.release_is_refused(&name, first.fence, "already_released");
    client.renew_is_refused(&name, first.fence, 30_000, "already_released");
    client.release(&name, second.fence);
    client.release_is_refused(&name, first.fence, "not_owner");
}

fn expired_fence_keeps_its_reason_until_the_next_end(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let first = client.acquire_and_expire(&name);
    client.release_is_refused(&name, first, "expired");
    let second = client.acquire(&name, 30_000);
    client.release_is_refused(&name, first, "expired");
    client.release(&name, second.fence);
    client.release_is_refused(&name, first, "not_owner");
}

fn older_fence_is_not_owner_once_the_next_has_expired(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let released = client.acquire(&name, 30_000).fence;
    client.release(&name, released);
    let expired = client.acquire_and_expire(&name);
    client.release_is_refused(&name, released, "not_owner");
    client.renew_is_refused(&name, released, 30_000, "not_owner");
    client.release_is_refused(&name, expired, "expired");
    let last = client.acquire_and_expire(&name);
    client.release_is_refused(&name, expired, "not_owner");
    client.release_is_refused(&name, last, "expired");
}

fn a_refusal_changes_nothing(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire_as(&name, 30_000, "me");
    expect::refused(&ask!(client, "LOCK.RELEASE", &name, grant.fence + 5), "not_owner");
    let info = client.info(&name);
    assert_eq!((info.state.as_str(), info.fence, info.owner.as_deref()), ("held", grant.fence, Some("me")));
}

fn an_expired_lock_is_expired_for_ever(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let fence = client.acquire_and_expire(&name);
    for _ in 0..3 {
        client.release_is_refused(&name, fence, "expired");
        client.renew_is_refused(&name, fence, 100, "expired");
    }
    assert_eq!(client.info(&name).fence, fence);
}

fn release_after_expiry_and_handover_is_expired(context: &Context) {
    let (mut holder, mut waiter) = (context.client(), context.client());
    let name = context.name("lock");
    let first = holder.acquire(&name, 60_000);
    waiter.start_waiting(&name, 30_000, 20_000, "waiter");
    holder.await_waiters(&name, 1);
    holder.end_soon(&name, first.fence, 100);
    let second = waiter.receive_grant();
    assert!(second.fence > first.fence);
    holder.release_is_refused(&name, first.fence, "expired");
    waiter.release(&name, second.fence);
}
