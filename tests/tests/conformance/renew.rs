//! Stretching the time of a lock that is still held.

use std::time::Duration;

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::{ask, expect};

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        answers_the_new_ttl,
        keeps_fence_and_owner,
        may_shorten,
        keeps_the_lock_alive,
        wrong_fence_is_refused,
        of_a_lock_never_taken_is_refused,
        of_a_released_lock_is_refused,
        does_not_serve_waiters,
    ],
}

fn answers_the_new_ttl(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 10_000);
    expect::ttl_told(client.renew(&name, grant.fence, 60_000), 60_000);
    let left = client.info(&name).ttl_ms.unwrap();
    assert!((30_000..=60_000).contains(&left), "ttl left {left}");
}

fn keeps_fence_and_owner(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire_as(&name, 10_000, "me");
    client.renew(&name, grant.fence, 20_000);
    let info = client.info(&name);
    assert_eq!((info.fence, info.owner.as_deref()), (grant.fence, Some("me")));
    client.release(&name, grant.fence);
}

fn may_shorten(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 600_000);
    client.expire(&name, grant.fence);
    client.release_is_refused(&name, grant.fence, "expired");
}

fn keeps_the_lock_alive(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 4_000);
    // Renewed well past its first ttl: what is left may never run out in between. A busy node may tell a little less than was asked.
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_millis(4_500) {
        let left_ms = client.renew(&name, grant.fence, 4_000);
        assert!((1..=4_000).contains(&left_ms), "{left_ms}");
        assert_eq!(client.info(&name).state, "held");
        std::thread::sleep(Duration::from_millis(100));
    }
    client.release(&name, grant.fence);
}

fn wrong_fence_is_refused(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 10_000);
    for wrong in [1, grant.fence - 1, grant.fence + 1, expect::FENCE_BOUND - 1] {
        client.renew_is_refused(&name, wrong, 600_000, "not_owner");
    }
    assert!(client.info(&name).ttl_ms.unwrap() <= 10_000, "a refused renewal changes nothing");
}

fn of_a_lock_never_taken_is_refused(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.renew_is_refused(&name, 7, 1_000, "not_owner");
    assert_eq!((client.info(&name).state.as_str(), client.info(&name).fence), ("free", 0));
}

fn of_a_released_lock_is_refused(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 10_000);
    client.release(&name, grant.fence);
    client.renew_is_refused(&name, grant.fence, 1_000, "already_released");
    assert_eq!(client.info(&name).state, "free");
}

fn does_not_serve_waiters(context: &Context) {
    let (mut holder, mut waiter) = (context.client(), context.client());
    let name = context.name("lock");
    let grant = holder.acquire(&name, 30_000);
    waiter.start_waiting(&name, 30_000, 30_000, "waiter");
    holder.await_waiters(&name, 1);
    holder.renew(&name, grant.fence, 30_000);
    waiter.hears_nothing_for(Duration::from_millis(50));
    assert_eq!(expect::queue(&ask!(holder, "LOCK.QUEUE", &name)).len(), 1);
    holder.release(&name, grant.fence);
    assert!(waiter.receive_grant().fence > grant.fence);
}
