//! Several locks at once: all or nothing, in one canonical order, waiting ones too.

use std::time::Duration;

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::Client;
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect, words};

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        all_are_granted,
        fences_come_in_the_order_asked,
        one_taken_refuses_all,
        nothing_is_kept_after_a_refusal,
        each_can_be_released_alone,
        mrelease_answers_each_pair,
        mrelease_of_wrong_fences_tells_each_reason,
        retry_with_the_same_owner,
        what_the_owner_holds_already_counts,
        waits_until_all_are_free,
        waiting_holds_nothing,
        waiting_times_out_and_leaves_every_queue,
        crossed_multi_locks_do_not_deadlock,
        free_lock_with_a_multi_waiter_at_its_head_is_not_taken,
        disconnected_multi_waiter_leaves_every_queue,
        a_name_twice_is_an_error,
        count_of_one,
        largest_count,
        expiry_of_one_part_ends_that_part_alone,
    ],
}

/// All resources share a hash tag, so that the case also holds where keys have slots.
fn names(context: &Context, count: usize) -> Vec<String> {
    let tag = context.name("multi");
    (0..count).map(|number| format!("{{{tag}}}{number}")).collect()
}

fn macquire(names: &[String], ttl_ms: u64, options: &[&str]) -> Vec<Vec<u8>> {
    let mut command = words!["LOCK.MACQUIRE", names.len()].to_vec();
    command.extend(names.iter().map(|name| name.as_bytes().to_vec()));
    command.push(ttl_ms.to_string().into_bytes());
    command.extend(options.iter().map(|word| word.as_bytes().to_vec()));
    command
}

fn take(client: &mut Client, names: &[String], ttl_ms: u64, options: &[&str]) -> Vec<i64> {
    let (fences, ttl) = expect::multi_granted(&client.ask(&macquire(names, ttl_ms, options)), names.len());
    expect::ttl_told(ttl, ttl_ms);
    fences
}

fn all_are_granted(context: &Context) {
    let mut client = context.client();
    let names = names(context, 3);
    let fences = take(&mut client, &names, 30_000, &["OWNER", "me"]);
    for (name, fence) in names.iter().zip(&fences) {
        let info = client.info(name);
        assert_eq!((info.state.as_str(), info.fence, info.owner.as_deref()), ("held", *fence, Some("me")));
        client.is_refused(name, 1_000);
    }
}

fn fences_come_in_the_order_asked(context: &Context) {
    let mut client = context.client();
    let mut names = names(context, 4);
    names.reverse();
    let fences = take(&mut client, &names, 30_000, &[]);
    for (name, fence) in names.iter().zip(&fences) {
        assert_eq!(client.info(name).fence, *fence, "{name}");
        client.release(name, *fence);
    }
}

fn one_taken_refuses_all(context: &Context) {
    let mut client = context.client();
    let names = names(context, 3);
    client.acquire(&names[1], 30_000);
    assert_eq!(client.ask(&macquire(&names, 30_000, &[])), context.protocol().nil());
}

fn nothing_is_kept_after_a_refusal(context: &Context) {
    let mut client = context.client();
    let names = names(context, 3);
    client.acquire(&names[2], 30_000);
    assert_eq!(client.ask(&macquire(&names, 30_000, &[])), context.protocol().nil());
    for name in &names[..2] {
        let info = client.info(name);
        assert_eq!((info.state.as_str(), info.fence, info.waiters), ("free", 0, 0), "{name}");
    }
}

fn each_can_be_released_alone(context: &Context) {
    let mut client = context.client();
    let names = names(context, 2);
    let fences = take(&mut client, &names, 30_000, &[]);
    client.release(&names[0], fences[0]);
    assert_eq!(client.info(&names[0]).state, "free");
    assert_eq!(client.info(&names[1]).state, "held");
    client.renew(&names[1], fences[1], 30_000);
}

fn mrelease_answers_each_pair(context: &Context) {
    let mut client = context.client();
    let names = names(context, 2);
    let fences = take(&mut client, &names, 30_000, &[]);
    let reply = ask!(client, "LOCK.MRELEASE", 2, &names[0], fences[0], &names[1], fences[1]);
    let ok = Value::Array(vec![Value::Integer(1), Value::bulk("ok")]);
    assert_eq!(reply, Value::Array(vec![ok.clone(), ok]));
    assert_eq!(client.info(&names[0]).state, "free");
    assert_eq!(client.info(&names[1]).state, "free");
}

fn mrelease_of_wrong_fences_tells_each_reason(context: &Context) {
    let mut client = context.client();
    let names = names(context, 4);
    let fences = take(&mut client, &names[..2], 30_000, &[]);
    let brief = client.acquire_and_expire(&names[2]);
    client.release(&names[1], fences[1]);
    let command = words![
        "LOCK.MRELEASE",
        4,
        &names[0],
        fences[0],
        &names[1],
        fences[1],
        &names[2],
        brief,
        &names[3],
        7
    ];
    let reply = client.ask(&command);
    let expected = [(1, "ok"), (0, "already_released"), (0, "expired"), (0, "not_owner")]
        .map(|(done, reason)| Value::Array(vec![Value::Integer(done), Value::bulk(reason)]));
    assert_eq!(reply, Value::Array(expected.to_vec()));
}

fn retry_with_the_same_owner(context: &Context) {
    let mut client = context.client();
    let names = names(context, 3);
    let first = take(&mut client, &names, 30_000, &["OWNER", "me"]);
    let retry = take(&mut client, &names, 30_000, &["OWNER", "me"]);
    assert_eq!(first, retry);
}

fn what_the_owner_holds_already_counts(context: &Context) {
    let mut client = context.client();
    let names = names(context, 3);
    let held = client.acquire_as(&names[1], 30_000, "me").fence;
    let fences = take(&mut client, &names, 30_000, &["OWNER", "me"]);
    assert_eq!(fences[1], held, "a lock of one's own keeps its fence");
    for (name, fence) in names.iter().zip(&fences) {
        client.release(name, *fence);
    }
}

fn waits_until_all_are_free(context: &Context) {
    let (mut holder, mut waiter) = (context.client(), context.client());
    let names = names(context, 2);
    let fences = [holder.acquire(&names[0], 60_000).fence, holder.acquire(&names[1], 60_000).fence];
    waiter.send(&macquire(&names, 30_000, &["WAIT", "30000", "OWNER", "multi"]));
    holder.await_waiters(&names[0], 1);
    holder.await_waiters(&names[1], 1);
    holder.release(&names[0], fences[0]);
    waiter.hears_nothing_for(Duration::from_millis(50));
    holder.release(&names[1], fences[1]);
    let (granted, ttl_ms) = expect::multi_granted(&waiter.receive(), 2);
    expect::ttl_told(ttl_ms, 30_000);
    assert!(granted[0] > fences[0] && granted[1] > fences[1]);
    for (name, fence) in names.iter().zip(&granted) {
        let info = holder.info(name);
        assert_eq!((info.owner.as_deref(), info.fence, info.waiters), (Some("multi"), *fence, 0));
    }
}

fn waiting_holds_nothing(context: &Context) {
    let (mut holder, mut waiter) = (context.client(), context.client());
    let names = names(context, 2);
    let held = holder.acquire(&names[1], 60_000).fence;
    waiter.send(&macquire(&names, 30_000, &["WAIT", "30000", "OWNER", "multi"]));
    holder.await_waiters(&names[1], 1);
    let info = holder.info(&names[0]);
    assert_eq!((info.state.as_str(), info.waiters), ("free", 1), "no part is held before all are");
    holder.release(&names[1], held);
    expect::multi_granted(&waiter.receive(), 2);
}

fn waiting_times_out_and_leaves_every_queue(context: &Context) {
    let mut client = context.client();
    let names = names(context, 3);
    client.acquire(&names[1], 60_000);
    assert_eq!(client.ask(&macquire(&names, 30_000, &["WAIT", "80"])), context.protocol().nil());
    for name in &names {
        assert_eq!(client.info(name).waiters, 0, "{name}");
    }
    client.acquire(&names[0], 1_000);
}

fn crossed_multi_locks_do_not_deadlock(context: &Context) {
    let names = names(context, 2);
    let reversed: Vec<String> = names.iter().rev().cloned().collect();
    let mut pairs: Vec<(Client, &[String])> = (0..4)
        .map(|number| (context.client(), if number % 2 == 0 { &names[..] } else { &reversed[..] }))
        .collect();
    for _ in 0..5 {
        for (client, order) in &mut pairs {
            client.send(&macquire(order, 30_000, &["WAIT", "20000"]));
        }
        let mut waiting: Vec<usize> = (0..pairs.len()).collect();
        while !waiting.is_empty() {
            let mut served = None;
            for (at, index) in waiting.iter().enumerate() {
                if let Ok(reply) = pairs[*index].0.try_receive(Duration::from_millis(5)) {
                    let (fences, _) = expect::multi_granted(&reply, 2);
                    assert!(served.replace((at, fences)).is_none(), "two hold the same locks");
                }
            }
            if let Some((at, fences)) = served {
                let (client, order) = &mut pairs[waiting.remove(at)];
                let reply = ask!(client, "LOCK.MRELEASE", 2, &order[0], fences[0], &order[1], fences[1]);
                reply.array().iter().for_each(expect::released);
            }
        }
    }
}

fn free_lock_with_a_multi_waiter_at_its_head_is_not_taken(context: &Context) {
    let (mut holder, mut multi, mut single) = (context.client(), context.client(), context.client());
    let names = names(context, 2);
    let held = holder.acquire(&names[1], 60_000).fence;
    multi.send(&macquire(&names, 30_000, &["WAIT", "30000", "OWNER", "multi"]));
    holder.await_waiters(&names[0], 1);
    // names[0] is free, but somebody stands in line for it: strictly first come, first served.
    single.is_refused(&names[0], 30_000);
    single.start_waiting(&names[0], 30_000, 30_000, "single");
    holder.await_waiters(&names[0], 2);
    holder.release(&names[1], held);
    let (fences, _) = expect::multi_granted(&multi.receive(), 2);
    single.hears_nothing_for(Duration::from_millis(30));
    multi.release(&names[0], fences[0]);
    assert!(single.receive_grant().fence > fences[0]);
}

fn disconnected_multi_waiter_leaves_every_queue(context: &Context) {
    let (mut holder, mut multi) = (context.client(), context.client());
    let names = names(context, 2);
    holder.acquire(&names[1], 60_000);
    multi.send(&macquire(&names, 30_000, &["WAIT", "30000"]));
    holder.await_waiters(&names[0], 1);
    drop(multi);
    holder.await_waiters(&names[0], 0);
    holder.await_waiters(&names[1], 0);
    holder.acquire(&names[0], 1_000);
}

fn a_name_twice_is_an_error(context: &Context) {
    let mut client = context.client();
    let names = names(context, 2);
    let twice = [names[0].clone(), names[1].clone(), names[0].clone()];
    expect::error(&client.ask(&macquire(&twice, 30_000, &[])), "ERR");
    assert_eq!(client.info(&names[0]).state, "free");
    assert_eq!(client.info(&names[1]).fence, 0);
}

fn count_of_one(context: &Context) {
    let mut client = context.client();
    let names = names(context, 1);
    let fences = take(&mut client, &names, 30_000, &[]);
    client.is_refused(&names[0], 1_000);
    let reply = ask!(client, "LOCK.MRELEASE", 1, &names[0], fences[0]);
    assert_eq!(reply.array().len(), 1);
    expect::released(&reply.array()[0]);
}

fn largest_count(context: &Context) {
    let mut client = context.client();
    let names = names(context, 256);
    let fences = take(&mut client, &names, 30_000, &[]);
    let mut command = words!["LOCK.MRELEASE", 256].to_vec();
    for (name, fence) in names.iter().zip(&fences) {
        command.extend(words![name, *fence]);
    }
    let reply = client.ask(&command);
    assert_eq!(reply.array().len(), 256);
    reply.array().iter().for_each(expect::released);
}

fn expiry_of_one_part_ends_that_part_alone(context: &Context) {
    let mut client = context.client();
    let names = names(context, 2);
    let fences = take(&mut client, &names, 30_000, &[]);
    client.expire(&names[0], fences[0]);
    assert_eq!(client.info(&names[1]).state, "held");
    client.release(&names[1], fences[1]);
    client.release_is_refused(&names[0], fences[0], "expired");
}
