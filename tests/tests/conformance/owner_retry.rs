//! OWNER names one attempt: asking again with it is a retry, never a second grant.

use std::time::Duration;

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::Client;

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        retry_gets_the_same_fence,
        retry_from_another_connection,
        retry_stretches_the_ttl,
        retry_never_shortens_the_ttl,
        another_owner_is_refused,
        retry_after_release_is_a_new_grant,
        retry_after_expiry_is_a_new_grant,
        retry_of_a_queued_one_keeps_its_place,
        retry_of_a_queued_one_leaves_one_in_the_queue,
        holders_retry_passes_the_queue,
        retry_with_wait_answers_at_once,
    ],
    Abilities::WIRE => [
        a_retry_that_runs_out_leaves_the_place_to_the_first,
        a_retry_keeps_the_place_of_the_first_that_ran_out,
        a_retry_that_disconnects_leaves_the_place_to_the_first,
    ],
}

fn retry_gets_the_same_fence(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let first = client.acquire_as(&name, 30_000, "me");
    for _ in 0..3 {
        assert_eq!(client.acquire_as(&name, 30_000, "me").fence, first.fence);
    }
    client.release(&name, first.fence);
    assert_eq!(client.info(&name).state, "free", "one release ends it, however often it was asked for");
}

fn retry_from_another_connection(context: &Context) {
    let (mut first, mut second) = (context.client(), context.client());
    let name = context.name("lock");
    let grant = first.acquire_as(&name, 30_000, "me");
    drop(first);
    assert_eq!(second.acquire_as(&name, 30_000, "me").fence, grant.fence);
}

fn retry_stretches_the_ttl(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire_as(&name, 5_000, "me");
    let retry = client.acquire_as(&name, 60_000, "me");
    redfence_tests::expect::ttl_told(retry.ttl_ms, 60_000);
    assert!(client.info(&name).ttl_ms.unwrap() > 5_000);
}

fn retry_never_shortens_the_ttl(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire_as(&name, 60_000, "me");
    let retry = client.acquire_as(&name, 1_000, "me");
    assert!((30_000..=60_000).contains(&retry.ttl_ms), "the reply tells what is left: {}", retry.ttl_ms);
    assert!(client.info(&name).ttl_ms.unwrap() > 30_000);
}

fn another_owner_is_refused(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire_as(&name, 30_000, "me");
    for other in ["m", "mee", "Me", "ME", "me "] {
        let reply = redfence_tests::ask!(client, "LOCK.ACQUIRE", &name, 30_000, "OWNER", other);
        assert_eq!(reply, context.protocol().nil(), "owner '{other}' is not 'me'");
    }
}

fn retry_after_release_is_a_new_grant(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let first = client.acquire_as(&name, 30_000, "me");
    client.release(&name, first.fence);
    assert!(client.acquire_as(&name, 30_000, "me").fence > first.fence);
}

fn retry_after_expiry_is_a_new_grant(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let first = client.acquire_as(&name, 60_000, "me");
    client.expire(&name, first.fence);
    assert!(client.acquire_as(&name, 30_000, "me").fence > first.fence);
}

fn retry_of_a_queued_one_keeps_its_place(context: &Context) {
    let name = context.name("lock");
    let mut holder = context.client();
    let grant = holder.acquire(&name, 60_000);
    let (mut first, mut second, mut again) = (context.client(), context.client(), context.client());
    first.start_waiting(&name, 30_000, 30_000, "first");
    holder.await_waiters(&name, 1);
    second.start_waiting(&name, 30_000, 30_000, "second");
    holder.await_waiters(&name, 2);
    again.start_waiting(&name, 30_000, 30_000, "first");
    // The retry may stand beside the first attempt for a moment, but never behind the second one.
    again.hears_nothing_for(Duration::from_millis(50));
    assert_eq!(holder.queue(&name).first().map(String::as_str), Some("first"));
    holder.release(&name, grant.fence);
    let served = again.receive_grant();
    assert!(served.fence > grant.fence);
    second.hears_nothing_for(Duration::from_millis(50));
    again.release(&name, served.fence);
    let last = second.receive_grant();
    assert!(last.fence > served.fence);
    second.release(&name, last.fence);
}

fn retry_of_a_queued_one_leaves_one_in_the_queue(context: &Context) {
    let name = context.name("lock");
    let (mut holder, mut one, mut again) = (context.client(), context.client(), context.client());
    let grant = holder.acquire(&name, 60_000);
    one.start_waiting(&name, 30_000, 30_000, "one");
    holder.await_waiters(&name, 1);
    again.start_waiting(&name, 30_000, 30_000, "one");
    again.hears_nothing_for(Duration::from_millis(80));
    assert_eq!(holder.queue(&name), ["one"], "an attempt stands in line once");
    holder.release(&name, grant.fence);
    let served = again.receive_grant();
    again.release(&name, served.fence);
    assert_eq!(holder.info(&name).state, "free", "the attempt was granted once");
    assert_eq!(holder.info(&name).fence, served.fence);
}

fn holders_retry_passes_the_queue(context: &Context) {
    let name = context.name("lock");
    let (mut holder, mut waiter) = (context.client(), context.client());
    let grant = holder.acquire_as(&name, 60_000, "holder");
    waiter.start_waiting(&name, 30_000, 30_000, "waiter");
    holder.await_waiters(&name, 1);
    assert_eq!(holder.acquire_as(&name, 60_000, "holder").fence, grant.fence);
    waiter.hears_nothing_for(Duration::from_millis(20));
    holder.release(&name, grant.fence);
    waiter.receive_grant();
}

fn retry_with_wait_answers_at_once(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire_as(&name, 30_000, "me");
    client.start_waiting(&name, 30_000, 3_600_000, "me");
    assert_eq!(client.receive_grant().fence, grant.fence);
    assert_eq!(client.info(&name).waiters, 0);
}

/// The attempt "one" waits before "two".
fn one_before_two(context: &Context, name: &str, one_waits_ms: u64) -> [Client; 3] {
    let (mut holder, mut one, mut two) = (context.client(), context.client(), context.client());
    holder.acquire_as(name, 60_000, "holder");
    one.start_waiting(name, 30_000, one_waits_ms, "one");
    holder.await_waiters(name, 1);
    two.start_waiting(name, 30_000, 30_000, "two");
    holder.await_waiters(name, 2);
    [holder, one, two]
}

/// The holder releases, and "one", which waits on `one`, is next.
fn one_is_served_first(name: &str, holder: &mut Client, one: &mut Client, two: &mut Client) {
    assert_eq!(holder.queue(name), ["one", "two"]);
    let held = holder.info(name).fence;
    holder.release(name, held);
    let served = one.receive_grant();
    assert_eq!(holder.info(name).owner.as_deref(), Some("one"));
    one.release(name, served.fence);
    let last = two.receive_grant();
    two.release(name, last.fence);
}

fn a_retry_that_runs_out_leaves_the_place_to_the_first(context: &Context) {
    let name = context.name("lock");
    let [mut holder, mut one, mut two] = one_before_two(context, &name, 30_000);
    let mut again = context.client();
    again.start_waiting(&name, 30_000, 100, "one");
    again.receive_nil();
    one_is_served_first(&name, &mut holder, &mut one, &mut two);
}

fn a_retry_keeps_the_place_of_the_first_that_ran_out(context: &Context) {
    let name = context.name("lock");
    let [mut holder, mut one, mut two] = one_before_two(context, &name, 3_000);
    let mut again = context.client();
    again.start_waiting(&name, 30_000, 30_000, "one");
    one.receive_nil();
    one_is_served_first(&name, &mut holder, &mut again, &mut two);
}

fn a_retry_that_disconnects_leaves_the_place_to_the_first(context: &Context) {
    let name = context.name("lock");
    let [mut holder, mut one, mut two] = one_before_two(context, &name, 30_000);
    let mut again = context.client();
    again.start_waiting(&name, 30_000, 30_000, "one");
    again.hears_nothing_for(Duration::from_millis(50));
    drop(again);
    one.hears_nothing_for(Duration::from_millis(50));
    one_is_served_first(&name, &mut holder, &mut one, &mut two);
}
