//! A lock ends by itself when its time is up, never before.

use std::time::{Duration, Instant};

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::process::poll_until;

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

/// Each grant of the chain lasts so long.
const CHAIN_TTL_MS: u64 = 500;
/// The clocks of Redis count whole milliseconds.
const CLOCK_SLACK: Duration = Duration::from_millis(10);

fn expired_lock_is_free(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let fence = client.acquire_and_expire(&name);
    let info = client.info(&name);
    assert_eq!((info.fence, info.waiters), (fence, 0), "the last fence is still known");
}

fn not_before_its_time(context: &Context) {
    let (mut holder, mut other) = (context.client(), context.client());
    let name = context.name("lock");
    let start = Instant::now();
    // Long enough to be told of it on a busy machine.
    holder.acquire(&name, 2_000);
    loop {
        // The clock is read before the question, so a grant cannot look earlier than it was.
        let asked_after = start.elapsed();
        let reply = redfence_tests::ask!(other, "LOCK.ACQUIRE", &name, 60_000);
        if reply != context.protocol().nil() {
            let answered_after = start.elapsed();
            redfence_tests::expect::granted(&reply);
            assert!(answered_after >= Duration::from_millis(1_995), "taken after {answered_after:?} of 2 s");
            break;
        }
        assert!(asked_after < Duration::from_secs(25), "still held after {asked_after:?}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

fn expired_lock_can_be_taken_with_a_higher_fence(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let first = client.acquire_and_expire(&name);
    assert!(client.acquire(&name, 10_000).fence > first);
}

fn ttl_left_falls(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire(&name, 60_000);
    let before = client.info(&name).ttl_ms.unwrap();
    assert!(before <= 60_000);
    // A node that hears late of what the log says shows a little more for a while.
    let mut after = before;
    let fell = poll_until(REPLY_WITHIN, || {
        after = client.info(&name).ttl_ms.unwrap();
        before - after >= 50
    });
    assert!(fell, "ttl left {before}, and later {after}");
}

fn expiry_serves_the_queue_in_order(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let held = holder.acquire(&name, 60_000).fence;
    let (mut first, mut second) = (context.client(), context.client());
    first.start_waiting(&name, 30_000, 30_000, "first");
    holder.await_waiters(&name, 1);
    second.start_waiting(&name, 30_000, 30_000, "second");
    holder.await_waiters(&name, 2);
    holder.end_soon(&name, held, 100);
    let grant = first.receive_grant();
    second.hears_nothing_for(Duration::from_millis(80));
    first.release(&name, grant.fence);
    assert!(second.receive_grant().fence > grant.fence);
}

fn shortest_ttl(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    // It may have ended before the node could tell it.
    let reply = redfence_tests::ask!(client, "LOCK.ACQUIRE", &name, 1);
    let told = (reply != context.protocol().nil()).then(|| redfence_tests::expect::granted(&reply));
    assert!(told.as_ref().is_none_or(|grant| grant.ttl_ms == 1));
    client.await_free(&name);
    let last = client.info(&name).fence;
    assert!(last > 0 && told.is_none_or(|grant| grant.fence == last), "it was granted");
    assert!(client.acquire(&name, 10_000).fence > last);
}

fn longest_ttl(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 31_536_000_000);
    redfence_tests::expect::ttl_told(grant.ttl_ms, 31_536_000_000);
    assert!(client.info(&name).ttl_ms.unwrap() > 31_535_000_000);
    let renewed_ms = client.renew(&name, grant.fence, 31_536_000_000);
    redfence_tests::expect::ttl_told(renewed_ms, 31_536_000_000);
    client.release(&name, grant.fence);
}

fn a_chain_of_expiries_serves_all(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let held = holder.acquire(&name, 60_000).fence;
    let mut last = held;
    let mut waiters: Vec<_> = (0..5)
        .map(|number| {
            let mut waiter = context.client();
            waiter.start_waiting(&name, CHAIN_TTL_MS, 30_000, &format!("waiter-{number}"));
            holder.await_waiters(&name, number + 1);
            waiter
        })
        .collect();
    // Nobody ever releases: each one's expiry must serve the next.
    let start = Instant::now();
    holder.end_soon(&name, held, 100);
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let reply = waiter.receive();
        if reply == context.protocol().nil() {
            // A busy node could not tell it in time: its grant and all before it have ended.
            let ends = (number as u32 + 1) * Duration::from_millis(CHAIN_TTL_MS);
            assert!(start.elapsed() + CLOCK_SLACK >= ends, "nil after {:?}", start.elapsed());
        } else {
            let grant = redfence_tests::expect::granted(&reply);
            assert!(grant.fence > last);
            last = grant.fence;
        }
    }
    holder.await_free(&name);
    let all = 5 * Duration::from_millis(CHAIN_TTL_MS);
    assert!(start.elapsed() + CLOCK_SLACK >= all, "five grants cannot have lasted {:?}", start.elapsed());
    let last = holder.info(&name).fence;
    assert!(last > held);
    holder.release_is_refused(&name, last, "expired");
}
