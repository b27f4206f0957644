//! Looking at locks: LOCK.INFO, LOCK.QUEUE, LOCK.SCAN.

use std::collections::BTreeSet;
use std::time::Duration;

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::Client;
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect};

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        info_of_a_lock_never_taken,
        info_of_a_held_lock,
        info_of_a_released_lock_keeps_the_fence,
        info_counts_waiters,
        info_changes_nothing,
        queue_of_nobody_is_empty,
        queue_lists_owners_in_order,
        queue_tells_how_long_they_wait,
        scan_finds_held_locks,
        scan_leaves_out_free_locks,
        scan_in_small_steps_finds_all,
        scan_matches_by_glob,
        scan_shows_no_side_keys,
        scan_with_no_match_ends,
    ],
}

fn info_of_a_lock_never_taken(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let info = client.info(&name);
    assert_eq!(info.resource, name.as_bytes());
    assert_eq!(info.tier, context.tier());
    assert_eq!((info.state.as_str(), info.fence, info.waiters), ("free", 0, 0));
}

fn info_of_a_held_lock(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire_as(&name, 30_000, "me");
    let info = client.info(&name);
    assert_eq!(info.resource, name.as_bytes());
    assert_eq!(info.tier, context.tier());
    assert_eq!((info.state.as_str(), info.fence), ("held", grant.fence));
    assert_eq!((info.owner.as_deref(), info.session.as_deref()), (Some("me"), None));
    assert!((1..=30_000).contains(&info.ttl_ms.unwrap()));
    assert_eq!(info.waiters, 0);
}

fn info_of_a_released_lock_keeps_the_fence(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 30_000);
    client.release(&name, grant.fence);
    let info = client.info(&name);
    assert_eq!((info.state.as_str(), info.fence), ("free", grant.fence));
}

fn info_counts_waiters(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    holder.acquire(&name, 60_000);
    let mut waiters: Vec<Client> = Vec::new();
    for count in 1..=3 {
        let mut waiter = context.client();
        waiter.start_waiting(&name, 1_000, 60_000, &format!("waiter-{count}"));
        holder.await_waiters(&name, count);
        waiters.push(waiter);
    }
}

fn info_changes_nothing(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 30_000);
    for _ in 0..10 {
        assert_eq!(client.info(&name).fence, grant.fence);
    }
    client.release(&name, grant.fence);
}

fn queue_of_nobody_is_empty(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    assert_eq!(ask!(client, "LOCK.QUEUE", &name), Value::Array(vec![]));
    client.acquire(&name, 30_000);
    assert_eq!(ask!(client, "LOCK.QUEUE", &name), Value::Array(vec![]), "the holder is not in line");
}

fn queue_lists_owners_in_order(context: &Context) {
    let mut holder = context.client();
    let name = context.name("lock");
    holder.acquire(&name, 60_000);
    let owners = ["zoe", "adam", "mia"];
    let mut waiters: Vec<Client> = Vec::new();
    for (place, owner) in owners.iter().enumerate() {
        let mut waiter = context.client();
        waiter.start_waiting(&name, 1_000, 60_000, owner);
        holder.await_waiters(&name, place as i64 + 1);
        waiters.push(waiter);
    }
    assert_eq!(holder.queue(&name), owners);
}

fn queue_tells_how_long_they_wait(context: &Context) {
    let (mut holder, mut waiter) = (context.client(), context.client());
    let name = context.name("lock");
    holder.acquire(&name, 60_000);
    waiter.start_waiting(&name, 1_000, 60_000, "waiter");
    holder.await_waiters(&name, 1);
    std::thread::sleep(Duration::from_millis(120));
    let queue = expect::queue(&ask!(holder, "LOCK.QUEUE", &name));
    assert!((100..20_000).contains(&queue[0].1), "waited {} ms", queue[0].1);
}

/// All names a full scan shows. Other cases use the same server, so it is always narrowed by a pattern.
fn scan(client: &mut Client, pattern: &str, count: u64) -> BTreeSet<String> {
    let (mut cursor, mut found, mut steps) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let reply = ask!(client, "LOCK.SCAN", &cursor, "MATCH", pattern, "COUNT", count);
        let (next, names) = expect::scanned(&reply);
        found.extend(names);
        if next == "0" {
            return found;
        }
        cursor = next;
        steps += 1;
        assert!(steps < 100_000, "a scan must come to its end");
    }
}

fn scan_finds_held_locks(context: &Context) {
    let mut client = context.client();
    let base = context.name("scan");
    let names: BTreeSet<String> = (0..5).map(|number| format!("{base}:{number}")).collect();
    for name in &names {
        client.acquire(name, 60_000);
    }
    assert_eq!(scan(&mut client, &format!("{base}:*"), 1_000), names);
}

fn scan_leaves_out_free_locks(context: &Context) {
    let mut client = context.client();
    let base = context.name("scan");
    let (held, released, expired) = (format!("{base}:h"), format!("{base}:r"), format!("{base}:e"));
    client.acquire(&held, 60_000);
    let grant = client.acquire(&released, 60_000);
    client.release(&released, grant.fence);
    client.acquire_and_expire(&expired);
    assert_eq!(scan(&mut client, &format!("{base}:*"), 1_000), BTreeSet::from([held]));
}

fn scan_in_small_steps_finds_all(context: &Context) {
    let mut client = context.client();
    let base = context.name("scan");
    let names: BTreeSet<String> = (0..40).map(|number| format!("{base}:{number}")).collect();
    for name in &names {
        client.acquire(name, 60_000);
    }
    assert_eq!(scan(&mut client, &format!("{base}:*"), 7), names, "what is held all along is shown");
}

fn scan_matches_by_glob(context: &Context) {
    let mut client = context.client();
    let base = context.name("scan");
    for suffix in ["a1", "a2", "b1", "ab1"] {
        client.acquire(&format!("{base}:{suffix}"), 60_000);
    }
    let mut matched = |pattern: &str| -> Vec<String> {
        let found = scan(&mut client, &format!("{base}:{pattern}"), 1_000);
        found.iter().map(|name| name[base.len() + 1..].to_owned()).collect()
    };
    assert_eq!(matched("a?"), ["a1", "a2"]);
    assert_eq!(matched("[ab]1"), ["a1", "b1"]);
    assert_eq!(matched("[^a]1"), ["b1"]);
    assert_eq!(matched("*1"), ["a1", "ab1", "b1"]);
    assert_eq!(matched("\\a1"), ["a1"]);
    assert_eq!(matched("a1"), ["a1"]);
}

fn scan_shows_no_side_keys(context: &Context) {
    let mut client = context.client();
    let base = context.name("scan");
    let grant = client.acquire(&base, 60_000);
    let mut waiter = context.client();
    waiter.start_waiting(&base, 1_000, 60_000, "waiter");
    client.await_waiters(&base, 1);
    assert_eq!(scan(&mut client, &format!("*{base}*"), 1_000), BTreeSet::from([base.clone()]));
    client.release(&base, grant.fence);
}

fn scan_with_no_match_ends(context: &Context) {
    let mut client = context.client();
    let base = context.name("nothing-is-called-this");
    assert!(scan(&mut client, &base, 10).is_empty());
    let reply = ask!(client, "LOCK.SCAN", 0);
    expect::scanned(&reply);
}
