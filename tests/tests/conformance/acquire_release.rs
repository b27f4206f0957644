//! Taking a lock and giving it back.

use redfence_tests::ask;
use redfence_tests::backend::{Abilities, Context};
use redfence_tests::expect;

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        free_lock_is_granted,
        second_is_refused,
        released_lock_can_be_taken_again,
        every_grant_has_a_new_fence,
        locks_do_not_touch_each_other,
        released_by_another_connection,
        command_names_are_case_insensitive,
        options_come_in_any_order_and_case,
        wait_zero_is_a_try,
        without_owner_each_attempt_is_its_own,
        names_are_binary_safe,
        owners_are_binary_safe,
        names_that_look_like_options,
        names_with_braces,
    ],
}

fn free_lock_is_granted(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 30_000);
    expect::ttl_told(grant.ttl_ms, 30_000);
    client.release(&name, grant.fence);
    assert_eq!(client.info(&name).state, "free");
}

fn second_is_refused(context: &Context) {
    let (mut first, mut second) = (context.client(), context.client());
    let name = context.name("lock");
    let grant = first.acquire(&name, 30_000);
    second.is_refused(&name, 30_000);
    first.is_refused(&name, 30_000);
    assert_eq!(second.info(&name).fence, grant.fence, "a refusal uses no fence");
}

fn released_lock_can_be_taken_again(context: &Context) {
    let (mut first, mut second) = (context.client(), context.client());
    let name = context.name("lock");
    let grant = first.acquire(&name, 30_000);
    first.release(&name, grant.fence);
    let again = second.acquire(&name, 30_000);
    assert!(again.fence > grant.fence);
    first.is_refused(&name, 30_000);
}

fn every_grant_has_a_new_fence(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut last = 0;
    for _ in 0..50 {
        let grant = client.acquire(&name, 30_000);
        assert!(grant.fence > last, "fence {} after {last}", grant.fence);
        last = grant.fence;
        client.release(&name, grant.fence);
    }
}

fn locks_do_not_touch_each_other(context: &Context) {
    let mut client = context.client();
    let (one, other) = (context.name("one"), context.name("other"));
    let first = client.acquire(&one, 30_000);
    let second = client.acquire(&other, 30_000);
    client.release(&one, first.fence);
    client.is_refused(&other, 30_000);
    client.release(&other, second.fence);
}

fn released_by_another_connection(context: &Context) {
    let (mut holder, mut other) = (context.client(), context.client());
    let name = context.name("lock");
    let grant = holder.acquire(&name, 30_000);
    drop(holder);
    // Without a session a lock outlives its connection: the fence alone gives it back.
    other.is_refused(&name, 30_000);
    other.release(&name, grant.fence);
}

fn command_names_are_case_insensitive(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = expect::granted(&ask!(client, "lock.acquire", &name, 30_000));
    expect::released(&ask!(client, "Lock.Release", &name, grant.fence));
}

fn options_come_in_any_order_and_case(context: &Context) {
    let mut client = context.client();
    let tier = context.tier();
    let orders: [[&str; 6]; 3] = [
        ["WAIT", "10", "OWNER", "me", "TIER", tier],
        ["tier", tier, "wait", "10", "owner", "me"],
        ["Owner", "me", "Tier", tier, "Wait", "10"],
    ];
    for options in orders {
        let name = context.name("lock");
        let mut command = redfence_tests::words!["LOCK.ACQUIRE", &name, 30_000].to_vec();
        command.extend(options.map(|word| word.as_bytes().to_vec()));
        expect::granted(&client.ask(&command));
        assert_eq!(client.info(&name).owner.as_deref(), Some("me"));
    }
    let name = context.name("lower");
    let lower = tier.to_ascii_lowercase();
    let grant = expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "TIER", &lower));
    expect::released(&ask!(client, "LOCK.RELEASE", &name, grant.fence, "TIER", &lower));
}

fn wait_zero_is_a_try(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire(&name, 30_000);
    assert_eq!(ask!(client, "LOCK.ACQUIRE", &name, 30_000, "WAIT", 0), context.protocol().nil());
    assert_eq!(client.info(&name).waiters, 0);
}

fn without_owner_each_attempt_is_its_own(context: &Context) {
    let mut client = context.client();
    let (one, other) = (context.name("one"), context.name("other"));
    client.acquire(&one, 30_000);
    client.acquire(&other, 30_000);
    client.is_refused(&one, 30_000);
    let (one, other) = (client.info(&one).owner, client.info(&other).owner);
    assert!(one.is_some() && other.is_some());
    assert_ne!(one, other, "an owner made up by the server names one attempt");
}

fn names_are_binary_safe(context: &Context) {
    let mut client = context.client();
    let mut name = context.name("binary").into_bytes();
    name.extend_from_slice(b"\0\r\n\xff\xfe {}*?[\\\"'");
    let mut sibling = name.clone();
    sibling.push(0);
    let grant = expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000));
    expect::granted(&ask!(client, "LOCK.ACQUIRE", &sibling, 30_000));
    assert_eq!(ask!(client, "LOCK.ACQUIRE", &name, 30_000), context.protocol().nil());
    let info = expect::info(&ask!(client, "LOCK.INFO", &name), context.protocol());
    assert_eq!((info.resource, info.fence), (name.clone(), grant.fence));
    expect::released(&ask!(client, "LOCK.RELEASE", &name, grant.fence));
}

fn owners_are_binary_safe(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let owner: &[u8] = b"\0 1 h\r\n\xff\xfe ";
    let first = expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "OWNER", owner));
    let reply = ask!(client, "LOCK.INFO", &name);
    let pairs = expect::pairs(&reply, context.protocol());
    assert_eq!(pairs[4].1.bytes(), owner);
    let retry = expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "OWNER", owner));
    assert_eq!(retry.fence, first.fence);
    expect::released(&ask!(client, "LOCK.RELEASE", &name, first.fence));
}

fn names_that_look_like_options(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "OWNER", "TIER"));
    assert_eq!(client.info(&name).owner.as_deref(), Some("TIER"));
    let name = context.name("lock");
    expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "OWNER", "WAIT", "WAIT", 5));
    assert_eq!(client.info(&name).owner.as_deref(), Some("WAIT"));
}

fn names_with_braces(context: &Context) {
    let mut client = context.client();
    let base = context.name("braces");
    for shape in ["{%}", "a{%}b", "%}", "{%", "{}%", "%{}", "}%{", "{{%}}", "%"] {
        let name = shape.replace('%', &base);
        let first = client.acquire(&name, 30_000);
        client.is_refused(&name, 30_000);
        client.release(&name, first.fence);
        client.release_is_refused(&name, first.fence, "already_released");
        assert!(client.acquire(&name, 30_000).fence > first.fence, "{name}");
    }
}
