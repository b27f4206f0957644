//! WAIT: first come, first served; hand-over in the same step; time-outs, disconnects and pipelines.

use std::time::{Duration, Instant};

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::Client;
use redfence_tests::{ask, expect, words};

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        free_lock_does_not_wait,
        the_shortest_wait_takes_a_free_lock,
        release_hands_over,
        expiry_hands_over,
        served_first_come_first_served,
        times_out_with_nil,
        a_wait_that_ran_out_leaves_the_queue,
        one_that_times_out_in_the_middle_is_passed_over,
        disconnected_waiter_leaves_the_queue,
        disconnected_waiter_is_not_granted,
        a_try_does_not_overtake_the_queue,
        others_are_not_held_up,
        commands_behind_a_blocked_one_wait,
        the_granted_ttl_starts_at_the_grant,
        waiters_on_two_locks_do_not_mix,
        handover_leaves_no_gap,
        one_release_serves_one_waiter,
    ],
}

const LONG_MS: u64 = 60_000;

/// Puts one more client into the queue and waits until it stands there.
fn queue_up(context: &Context, watcher: &mut Client, name: &str, owner: &str, place: i64) -> Client {
    let mut waiter = context.client();
    waiter.start_waiting(name, LONG_MS, LONG_MS, owner);
    watcher.await_waiters(name, place);
    waiter
}

fn free_lock_does_not_wait(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let start = Instant::now();
    client.start_waiting(&name, LONG_MS, 30_000, "me");
    expect::ttl_told(client.receive_grant().ttl_ms, LONG_MS);
    assert!(start.elapsed() < Duration::from_secs(20));
}

fn the_shortest_wait_takes_a_free_lock(context: &Context) {
    let mut client = context.client();
    for number in 0..5 {
        let (name, other) =
            (context.name(&format!("lock-{number}")), context.name(&format!("other-{number}")));
        client.start_waiting(&name, LONG_MS, 1, "me");
        client.receive_grant();
        let reply = ask!(client, "LOCK.MACQUIRE", 1, &other, LONG_MS, "WAIT", 1);
        assert_ne!(reply, context.protocol().nil(), "a free lock is taken, however short the wait");
    }
}

fn release_hands_over(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let grant = holder.acquire(&name, LONG_MS);
    let mut waiter = queue_up(context, &mut holder, &name, "waiter", 1);
    waiter.hears_nothing_for(Duration::from_millis(50));
    holder.release(&name, grant.fence);
    let next = waiter.receive_grant();
    assert!(next.fence > grant.fence);
    expect::ttl_told(next.ttl_ms, LONG_MS);
    let info = holder.info(&name);
    assert_eq!((info.owner.as_deref(), info.fence, info.waiters), (Some("waiter"), next.fence, 0));
}

fn expiry_hands_over(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let grant = holder.acquire(&name, LONG_MS);
    let mut waiter = queue_up(context, &mut holder, &name, "waiter", 1);
    let start = Instant::now();
    holder.end_soon(&name, grant.fence, 400);
    let next = waiter.receive_grant();
    assert!(next.fence > grant.fence);
    assert!(
        start.elapsed() > Duration::from_millis(300),
        "granted {:?} into a ttl of 400 ms",
        start.elapsed()
    );
    assert!(start.elapsed() < Duration::from_secs(20), "an expiry serves the next waiter by itself");
    assert_eq!(waiter.info(&name).owner.as_deref(), Some("waiter"));
}

fn served_first_come_first_served(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let mut last = holder.acquire(&name, LONG_MS).fence;
    let owners: Vec<String> = (0..8).map(|number| format!("waiter-{number}")).collect();
    let mut waiters: Vec<Client> = owners
        .iter()
        .enumerate()
        .map(|(place, owner)| queue_up(context, &mut holder, &name, owner, place as i64 + 1))
        .collect();
    assert_eq!(holder.queue(&name), owners);
    for waiter in &mut waiters {
        holder.release(&name, last);
        let grant = waiter.receive_grant();
        assert!(grant.fence > last);
        last = grant.fence;
    }
    holder.release(&name, last);
    assert_eq!(holder.info(&name).state, "free");
}

fn times_out_with_nil(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire(&name, LONG_MS);
    let start = Instant::now();
    client.start_waiting(&name, LONG_MS, 150, "late");
    client.receive_nil();
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(140), "gave up after {waited:?} of 150 ms");
    assert!(waited < Duration::from_secs(20), "gave up only after {waited:?}");
}

fn a_wait_that_ran_out_leaves_the_queue(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, LONG_MS);
    client.start_waiting(&name, LONG_MS, 60, "late");
    client.receive_nil();
    assert_eq!(client.info(&name).waiters, 0);
    client.release(&name, grant.fence);
    let info = client.info(&name);
    assert_eq!((info.state.as_str(), info.fence), ("free", grant.fence), "nobody is granted after giving up");
}

fn one_that_times_out_in_the_middle_is_passed_over(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let grant = holder.acquire(&name, LONG_MS);
    let mut first = queue_up(context, &mut holder, &name, "first", 1);
    let mut middle = context.client();
    middle.start_waiting(&name, LONG_MS, 1_000, "middle");
    holder.await_waiters(&name, 2);
    let mut last = queue_up(context, &mut holder, &name, "last", 3);
    middle.receive_nil();
    assert_eq!(holder.queue(&name), ["first", "last"]);
    holder.release(&name, grant.fence);
    let served = first.receive_grant();
    first.release(&name, served.fence);
    last.receive_grant();
}

fn disconnected_waiter_leaves_the_queue(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    holder.acquire(&name, LONG_MS);
    let leaver = queue_up(context, &mut holder, &name, "leaver", 1);
    drop(leaver);
    holder.await_waiters(&name, 0);
    assert!(holder.queue(&name).is_empty());
}

fn disconnected_waiter_is_not_granted(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let grant = holder.acquire(&name, LONG_MS);
    let leaver = queue_up(context, &mut holder, &name, "leaver", 1);
    let mut stayer = queue_up(context, &mut holder, &name, "stayer", 2);
    drop(leaver);
    holder.await_waiters(&name, 1);
    holder.release(&name, grant.fence);
    stayer.receive_grant();
    assert_eq!(holder.info(&name).owner.as_deref(), Some("stayer"));
}

fn a_try_does_not_overtake_the_queue(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let grant = holder.acquire(&name, LONG_MS);
    let mut waiter = queue_up(context, &mut holder, &name, "waiter", 1);
    // Release and try in one packet: the waiter has the lock before the try is looked at.
    holder.send(&words!["LOCK.RELEASE", &name, grant.fence]);
    holder.send(&words!["LOCK.ACQUIRE", &name, LONG_MS]);
    redfence_tests::expect::released(&holder.receive());
    holder.receive_nil();
    waiter.receive_grant();
}

fn others_are_not_held_up(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    holder.acquire(&name, LONG_MS);
    let _waiter = queue_up(context, &mut holder, &name, "waiter", 1);
    let mut other = context.client();
    let elsewhere = context.name("elsewhere");
    let start = Instant::now();
    let grant = other.acquire(&elsewhere, LONG_MS);
    other.release(&elsewhere, grant.fence);
    assert!(start.elapsed() < Duration::from_secs(20), "LONG_MS is more than that");
}

fn commands_behind_a_blocked_one_wait(context: &Context) {
    let mut holder = context.client();
    let (name, elsewhere) = (context.name("lock"), context.name("elsewhere"));
    let grant = holder.acquire(&name, LONG_MS);
    let mut waiter = context.client();
    waiter.start_waiting(&name, LONG_MS, LONG_MS, "waiter");
    waiter.send(&words!["LOCK.ACQUIRE", &elsewhere, LONG_MS, "OWNER", "behind"]);
    waiter.send(&words!["LOCK.INFO", &elsewhere]);
    holder.await_waiters(&name, 1);
    waiter.hears_nothing_for(Duration::from_millis(50));
    assert_eq!(holder.info(&elsewhere).state, "free", "what stands behind a blocked command has not run");
    holder.release(&name, grant.fence);
    waiter.receive_grant();
    let behind = waiter.receive_grant();
    let info = redfence_tests::expect::info(&waiter.receive(), context.protocol());
    assert_eq!((info.owner.as_deref(), info.fence), (Some("behind"), behind.fence));
}

fn the_granted_ttl_starts_at_the_grant(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let grant = holder.acquire(&name, LONG_MS);
    let mut waiter = context.client();
    waiter.start_waiting(&name, 10_000, LONG_MS, "waiter");
    holder.await_waiters(&name, 1);
    std::thread::sleep(Duration::from_millis(300));
    let released = Instant::now();
    holder.release(&name, grant.fence);
    // The time spent in line is not taken off; what a busy machine takes is.
    let told_ms = waiter.receive_grant().ttl_ms;
    let late_ms = released.elapsed().as_millis() as i64;
    assert!(
        told_ms <= 10_000 && told_ms + late_ms >= 10_000,
        "told {told_ms}, {late_ms} ms after the release"
    );
    let left = holder.info(&name).ttl_ms.unwrap();
    assert!((1..=10_000).contains(&left), "ttl left {left}");
}

fn waiters_on_two_locks_do_not_mix(context: &Context) {
    let mut holder = context.client();
    let (one, other) = (context.name("one"), context.name("other"));
    let first = holder.acquire(&one, LONG_MS);
    let second = holder.acquire(&other, LONG_MS);
    let mut at_one = queue_up(context, &mut holder, &one, "at-one", 1);
    let mut at_other = queue_up(context, &mut holder, &other, "at-other", 1);
    holder.release(&other, second.fence);
    at_other.receive_grant();
    at_one.hears_nothing_for(Duration::from_millis(30));
    holder.release(&one, first.fence);
    at_one.receive_grant();
}

fn handover_leaves_no_gap(context: &Context) {
    let (mut holder, mut watcher) = (context.client(), context.client());
    let name = context.name("lock");
    let grant = holder.acquire(&name, LONG_MS);
    let mut waiter = queue_up(context, &mut holder, &name, "waiter", 1);
    holder.release(&name, grant.fence);
    // The release has been answered, so from here on nobody may ever see the lock free.
    let info = watcher.info(&name);
    assert_eq!((info.state.as_str(), info.owner.as_deref()), ("held", Some("waiter")));
    watcher.is_refused(&name, LONG_MS);
    assert_eq!(waiter.receive_grant().fence, info.fence);
}

fn one_release_serves_one_waiter(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    let grant = holder.acquire(&name, LONG_MS);
    let mut first = queue_up(context, &mut holder, &name, "first", 1);
    let mut second = queue_up(context, &mut holder, &name, "second", 2);
    holder.release(&name, grant.fence);
    let served = first.receive_grant();
    second.hears_nothing_for(Duration::from_millis(80));
    assert_eq!(holder.info(&name).waiters, 1);
    // The fence that was already given back serves nobody.
    let reply = ask!(holder, "LOCK.RELEASE", &name, grant.fence);
    redfence_tests::expect::refused(&reply, "already_released");
    second.hears_nothing_for(Duration::from_millis(30));
    first.release(&name, served.fence);
    second.receive_grant();
}
