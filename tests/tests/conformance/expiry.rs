//! A lock ends by itself when its time is up, never before.

use std::time::{Duration, Instant};

use redfence_tests::backend::{Abilities, Context};

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        expired_lock_is_free,
        not_before_its_time,
        expired_lock_can_be_taken_with_a_higher_fence,
        ttl_left_falls,
        expiry_serves_the_queue_in_order,
        shortest_ttl,
        longest_ttl,
        a_chain_of_expiries_serves_all,
    ],
}

fn expired_lock_is_free(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 80);
    client.await_free(&name);
    let info = client.info(&name);
    assert_eq!((info.fence, info.waiters), (grant.fence, 0), "the last fence is still known");
}

fn not_before_its_time(context: &Context) {
    let (mut holder, mut other) = (context.client(), context.client());
    let name = context.name("lock");
    let start = Instant::now();
    holder.acquire(&name, 500);
    loop {
        // The clock is read before the question, so a grant cannot look earlier than it was.
        let asked_after = start.elapsed();
        let reply = redfence_tests::ask!(other, "LOCK.ACQUIRE", &name, 1_000);
        if reply != context.protocol().nil() {
            let answered_after = start.elapsed();
            redfence_tests::expect::granted(&reply);
            assert!(answered_after >= Duration::from_millis(495), "taken after {answered_after:?} of 500 ms");
            break;
        }
        assert!(asked_after < Duration::from_secs(15), "still held after {asked_after:?}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

fn expired_lock_can_be_taken_with_a_higher_fence(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let first = client.acquire(&name, 50);
    client.await_free(&name);
    assert!(client.acquire(&name, 10_000).fence > first.fence);
}

fn ttl_left_falls(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire(&name, 60_000);
    let before = client.info(&name).ttl_ms.unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let after = client.info(&name).ttl_ms.unwrap();
    assert!(before <= 60_000 && before - after >= 50, "ttl left {before}, 100 ms later {after}");
}

fn expiry_serves_the_queue_in_order(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    holder.acquire(&name, 1_000);
    let (mut first, mut second) = (context.client(), context.client());
    first.start_waiting(&name, 30_000, 30_000, "first");
    holder.await_waiters(&name, 1);
    second.start_waiting(&name, 30_000, 30_000, "second");
    let grant = first.receive_grant();
    second.hears_nothing_for(Duration::from_millis(80));
    first.release(&name, grant.fence);
    assert!(second.receive_grant().fence > grant.fence);
}

fn shortest_ttl(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 1);
    assert_eq!(grant.ttl_ms, 1);
    client.await_free(&name);
    assert!(client.acquire(&name, 10_000).fence > grant.fence);
}

fn longest_ttl(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 31_536_000_000);
    assert_eq!(grant.ttl_ms, 31_536_000_000);
    assert!(client.info(&name).ttl_ms.unwrap() > 31_535_000_000);
    assert_eq!(client.renew(&name, grant.fence, 31_536_000_000), 31_536_000_000);
    client.release(&name, grant.fence);
}

fn a_chain_of_expiries_serves_all(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let mut last = holder.acquire(&name, 1_000).fence;
    let mut waiters: Vec<_> = (0..5)
        .map(|number| {
            let mut waiter = context.client();
            waiter.start_waiting(&name, 60, 30_000, &format!("waiter-{number}"));
            holder.await_waiters(&name, number + 1);
            waiter
        })
        .collect();
    // Nobody ever releases: each one's expiry must serve the next.
    for waiter in &mut waiters {
        let grant = waiter.receive_grant();
        assert!(grant.fence > last);
        last = grant.fence;
    }
    holder.await_free(&name);
    holder.release_is_refused(&name, last, "expired");
}
