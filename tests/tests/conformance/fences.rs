//! The fencing token: strictly increasing for each resource, a new one for every grant, never behind the clock.

use std::time::{SystemTime, UNIX_EPOCH};

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::Client;
use redfence_tests::expect::FENCE_BOUND;
use redfence_tests::{ask, expect};

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        grow_over_release_expiry_and_force,
        follow_the_clock,
        are_not_used_up_by_refusals,
        grow_under_contention,
        info_shows_the_last_issued,
        grow_through_handovers,
    ],
}

fn grow_over_release_expiry_and_force(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let first = client.acquire(&name, 60_000).fence;
    client.release(&name, first);
    let second = client.acquire_and_expire(&name);
    let third = client.acquire(&name, 60_000).fence;
    assert_eq!(ask!(client, "LOCK.FORCERELEASE", &name).integer(), 1);
    let fourth = client.acquire(&name, 60_000).fence;
    assert!(first < second && second < third && third < fourth, "{first} {second} {third} {fourth}");
}

fn follow_the_clock(context: &Context) {
    let now_us = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
    let mut client = context.client();
    let before = now_us();
    let fence = client.acquire(&context.name("lock"), 1_000).fence;
    let after = now_us();
    assert!(fence < FENCE_BOUND);
    // A brand-new name has no last fence: its first one is the clock's, give or take how coarsely it is read.
    let slack_us = 2_000_000;
    assert!(
        (before - slack_us..=after + slack_us).contains(&fence),
        "fence {fence}, clock {before} to {after}"
    );
}

fn are_not_used_up_by_refusals(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let fence = client.acquire(&name, 60_000).fence;
    for _ in 0..5 {
        client.is_refused(&name, 1_000);
    }
    assert_eq!(client.info(&name).fence, fence);
}

fn grow_under_contention(context: &Context) {
    let name = context.name("lock");
    let mut fences: Vec<i64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = context.client();
                    let mut last = 0;
                    (0..15).map(|_| take_once(&mut client, &name, &mut last)).collect::<Vec<i64>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a contender")).collect()
    });
    fences.sort_unstable();
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "a fence was issued twice");
    assert_eq!(fences.len(), 60);
}

fn take_once(client: &mut Client, name: &str, last: &mut i64) -> i64 {
    let grant = expect::granted(&ask!(client, "LOCK.ACQUIRE", name, 30_000, "WAIT", 20_000));
    assert!(grant.fence > *last, "one client sees its fences grow");
    *last = grant.fence;
    client.release(name, grant.fence);
    grant.fence
}

fn info_shows_the_last_issued(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut last = 0;
    for _ in 0..3 {
        assert_eq!(client.info(&name).fence, last);
        last = client.acquire(&name, 60_000).fence;
        assert_eq!(client.info(&name).fence, last);
        client.release(&name, last);
    }
}

fn grow_through_handovers(context: &Context) {
    let (mut one, mut other) = (context.client(), context.client());
    let name = context.name("lock");
    let mut last = one.acquire(&name, 60_000).fence;
    for turn in 0..6 {
        let (holder, waiter) = if turn % 2 == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
        waiter.start_waiting(&name, 60_000, 30_000, &format!("turn-{turn}"));
        holder.await_waiters(&name, 1);
        holder.release(&name, last);
        let next = waiter.receive_grant().fence;
        assert!(next > last);
        last = next;
    }
}
