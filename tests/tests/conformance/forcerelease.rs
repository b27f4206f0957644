//! LOCK.FORCERELEASE: an operator takes a lock away.

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect};

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        held_lock_is_freed,
        free_lock_answers_zero,
        the_holder_has_lost_it,
        the_next_waiter_is_served,
        takes_a_tier,
    ],
}

fn held_lock_is_freed(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 60_000);
    assert_eq!(ask!(client, "LOCK.FORCERELEASE", &name), Value::Integer(1));
    assert_eq!(client.info(&name).state, "free");
    assert!(client.acquire(&name, 60_000).fence > grant.fence);
}

fn free_lock_answers_zero(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    assert_eq!(ask!(client, "LOCK.FORCERELEASE", &name), Value::Integer(0));
    let grant = client.acquire(&name, 60_000);
    client.release(&name, grant.fence);
    assert_eq!(ask!(client, "LOCK.FORCERELEASE", &name), Value::Integer(0));
}

fn the_holder_has_lost_it(context: &Context) {
    let (mut holder, mut operator) = (context.client(), context.client());
    let name = context.name("lock");
    let grant = holder.acquire(&name, 60_000);
    assert_eq!(ask!(operator, "LOCK.FORCERELEASE", &name), Value::Integer(1));
    holder.renew_is_refused(&name, grant.fence, 60_000, "expired");
    holder.release_is_refused(&name, grant.fence, "expired");
}

fn the_next_waiter_is_served(context: &Context) {
    let (mut holder, mut waiter, mut operator) = (context.client(), context.client(), context.client());
    let name = context.name("lock");
    let grant = holder.acquire(&name, 60_000);
    waiter.start_waiting(&name, 60_000, 60_000, "waiter");
    operator.await_waiters(&name, 1);
    assert_eq!(ask!(operator, "LOCK.FORCERELEASE", &name), Value::Integer(1));
    assert!(waiter.receive_grant().fence > grant.fence);
    holder.release_is_refused(&name, grant.fence, "expired");
}

fn takes_a_tier(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire(&name, 60_000);
    assert_eq!(ask!(client, "LOCK.FORCERELEASE", &name, "TIER", context.tier()), Value::Integer(1));
    expect::error(&ask!(client, "LOCK.FORCERELEASE", &name, "TIER", "best"), "ERR");
}
