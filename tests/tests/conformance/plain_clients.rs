//! Unchanged Redis lock clients and LOCK.* exclude each other on the same name, in both directions.

use std::time::{Duration, Instant};

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect};

use crate::topic::cases;

cases! {
    Abilities::PLAIN_KEYS => [
        set_nx_excludes_acquire,
        acquire_excludes_set_nx,
        get_shows_the_owner,
        compare_and_delete_releases_a_lock,
        compare_and_delete_spares_anothers_lock,
        compare_and_pexpire_renews_a_lock,
        deleting_the_key_serves_a_waiter,
        a_plain_holders_expiry_serves_a_waiter,
        compare_and_delete_serves_a_waiter,
        a_plain_lock_has_no_fence_to_release,
        fences_grow_across_plain_holders,
        released_lock_is_free_for_set_nx,
        expired_lock_is_free_for_set_nx,
        a_key_without_ttl_is_held_for_ever,
        the_owner_of_a_plain_lock_can_adopt_it,
        force_release_takes_a_plain_lock_away,
        a_lock_overwritten_by_another_has_expired_for_its_holder,
        scan_shows_a_lock_taken_over_by_a_plain_client,
    ],
    Abilities::PLAIN_KEYS.and(Abilities::EFFICIENCY) => [a_key_of_another_type_is_wrongtype],
    Abilities::TRANSACTIONS => [in_a_transaction, waiting_in_a_transaction_does_not_block, in_a_script],
}

/// What redis-py, redlock and most others send to unlock.
const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const COMPARE_AND_PEXPIRE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

fn ok() -> Value {
    Value::Simple(b"OK".to_vec())
}

fn set_nx(client: &mut Client, name: &str, value: &str, ttl_ms: u64) -> Value {
    ask!(client, "SET", name, value, "NX", "PX", ttl_ms)
}

fn compare_and_delete(client: &mut Client, name: &str, value: &str) -> i64 {
    ask!(client, "EVAL", COMPARE_AND_DELETE, 1, name, value).integer()
}

fn set_nx_excludes_acquire(context: &Context) {
    let (mut plain, mut client) = (context.client(), context.client());
    let name = context.name("lock");
    assert_eq!(set_nx(&mut plain, &name, "plain", 30_000), ok());
    client.is_refused(&name, 30_000);
    let info = client.info(&name);
    assert_eq!((info.state.as_str(), info.owner.as_deref()), ("held", Some("plain")));
    assert!((1..=30_000).contains(&info.ttl_ms.unwrap()));
    assert_eq!(compare_and_delete(&mut plain, &name, "plain"), 1);
    client.acquire(&name, 30_000);
}

fn acquire_excludes_set_nx(context: &Context) {
    let (mut plain, mut client) = (context.client(), context.client());
    let name = context.name("lock");
    let grant = client.acquire(&name, 30_000);
    assert_eq!(set_nx(&mut plain, &name, "plain", 30_000), context.protocol().nil());
    client.release(&name, grant.fence);
    assert_eq!(set_nx(&mut plain, &name, "plain", 30_000), ok());
}

fn a_lock_overwritten_by_another_has_expired_for_its_holder(context: &Context) {
    let (mut plain, mut client) = (context.client(), context.client());
    let name = context.name("lock");
    let grant = client.acquire_as(&name, 30_000, "me");
    assert_eq!(ask!(plain, "SET", &name, "other", "PX", 30_000), ok());
    client.release_is_refused(&name, grant.fence, "expired");
    client.renew_is_refused(&name, grant.fence, 30_000, "expired");
    assert_eq!(ask!(plain, "GET", &name), Value::bulk("other"));
    let name = context.name("deleted");
    let grant = client.acquire_as(&name, 30_000, "me");
    assert_eq!(ask!(plain, "DEL", &name).integer(), 1);
    client.release_is_refused(&name, grant.fence, "already_released");
}

fn get_shows_the_owner(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire_as(&name, 30_000, "me");
    assert_eq!(ask!(client, "GET", &name), Value::bulk("me"));
    let left = ask!(client, "PTTL", &name).integer();
    assert!((1..=30_000).contains(&left), "PTTL {left}");
}

fn compare_and_delete_releases_a_lock(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire_as(&name, 30_000, "me");
    assert_eq!(compare_and_delete(&mut client, &name, "me"), 1);
    assert_eq!(client.info(&name).state, "free");
    client.release_is_refused(&name, grant.fence, "already_released");
    assert!(client.acquire(&name, 30_000).fence > grant.fence);
}

fn compare_and_delete_spares_anothers_lock(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire_as(&name, 30_000, "me");
    assert_eq!(compare_and_delete(&mut client, &name, "other"), 0);
    client.release(&name, grant.fence);
}

fn compare_and_pexpire_renews_a_lock(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire_as(&name, 5_000, "me");
    let reply = ask!(client, "EVAL", COMPARE_AND_PEXPIRE, 1, &name, "me", 60_000);
    assert_eq!(reply, Value::Integer(1));
    let info = client.info(&name);
    assert_eq!(info.fence, grant.fence, "a renewal keeps the fence");
    assert!(info.ttl_ms.unwrap() > 5_000);
    client.release(&name, grant.fence);
}

fn deleting_the_key_serves_a_waiter(context: &Context) {
    let (mut holder, mut waiter) = (context.client(), context.client());
    let name = context.name("lock");
    let grant = holder.acquire(&name, 60_000);
    waiter.start_waiting(&name, 30_000, 30_000, "waiter");
    holder.await_waiters(&name, 1);
    assert_eq!(ask!(holder, "DEL", &name), Value::Integer(1));
    assert!(waiter.receive_grant().fence > grant.fence);
}

fn a_plain_holders_expiry_serves_a_waiter(context: &Context) {
    let (mut plain, mut waiter) = (context.client(), context.client());
    let name = context.name("lock");
    assert_eq!(set_nx(&mut plain, &name, "plain", 300), ok());
    let start = Instant::now();
    waiter.start_waiting(&name, 30_000, 30_000, "waiter");
    waiter.receive_grant();
    assert!(start.elapsed() < Duration::from_secs(20), "served {:?} after a ttl of 300 ms", start.elapsed());
    assert_eq!(ask!(plain, "GET", &name), Value::bulk("waiter"));
}

fn compare_and_delete_serves_a_waiter(context: &Context) {
    let (mut plain, mut waiter) = (context.client(), context.client());
    let name = context.name("lock");
    assert_eq!(set_nx(&mut plain, &name, "plain", 60_000), ok());
    waiter.start_waiting(&name, 30_000, 30_000, "waiter");
    plain.await_waiters(&name, 1);
    assert_eq!(compare_and_delete(&mut plain, &name, "plain"), 1);
    waiter.receive_grant();
    assert_eq!(set_nx(&mut plain, &name, "plain", 1_000), context.protocol().nil());
}

fn a_plain_lock_has_no_fence_to_release(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire_as(&name, 30_000, "me");
    assert_eq!(compare_and_delete(&mut client, &name, "me"), 1);
    assert_eq!(set_nx(&mut client, &name, "plain", 30_000), ok());
    for fence in [1, grant.fence - 1, grant.fence + 1_000_000_000] {
        client.release_is_refused(&name, fence, "not_owner");
        client.renew_is_refused(&name, fence, 60_000, "not_owner");
    }
    assert_eq!(ask!(client, "GET", &name), Value::bulk("plain"), "nobody released a plain client's lock");
}

fn fences_grow_across_plain_holders(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut last = 0;
    for _ in 0..5 {
        let grant = client.acquire_as(&name, 30_000, "me");
        assert!(grant.fence > last);
        last = grant.fence;
        assert_eq!(compare_and_delete(&mut client, &name, "me"), 1);
        assert_eq!(set_nx(&mut client, &name, "plain", 30_000), ok());
        assert!(client.info(&name).fence >= last);
        assert_eq!(compare_and_delete(&mut client, &name, "plain"), 1);
    }
}

fn released_lock_is_free_for_set_nx(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 30_000);
    client.release(&name, grant.fence);
    assert_eq!(ask!(client, "EXISTS", &name), Value::Integer(0));
    assert_eq!(set_nx(&mut client, &name, "plain", 30_000), ok());
}

fn expired_lock_is_free_for_set_nx(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let fence = client.acquire(&name, 60_000).fence;
    client.end_soon(&name, fence, 80);
    let taken = poll_until(REPLY_WITHIN, || set_nx(&mut client, &name, "plain", 30_000) == ok());
    assert!(taken);
    client.is_refused(&name, 30_000);
}

fn a_key_without_ttl_is_held_for_ever(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    assert_eq!(ask!(client, "SETNX", &name, "plain"), Value::Integer(1));
    client.is_refused(&name, 30_000);
    assert_eq!(client.info(&name).ttl_ms, Some(-1));
    assert_eq!(ask!(client, "DEL", &name), Value::Integer(1));
    client.acquire(&name, 30_000);
}

fn the_owner_of_a_plain_lock_can_adopt_it(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    assert_eq!(set_nx(&mut client, &name, "me", 30_000), ok());
    let grant = client.acquire_as(&name, 30_000, "me");
    assert_eq!(client.acquire_as(&name, 30_000, "me").fence, grant.fence);
    client.release(&name, grant.fence);
    assert_eq!(ask!(client, "EXISTS", &name), Value::Integer(0));
}

fn force_release_takes_a_plain_lock_away(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    assert_eq!(set_nx(&mut client, &name, "plain", 30_000), ok());
    assert_eq!(ask!(client, "LOCK.FORCERELEASE", &name), Value::Integer(1));
    assert_eq!(ask!(client, "EXISTS", &name), Value::Integer(0));
}

fn scan_shows_a_lock_taken_over_by_a_plain_client(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire_as(&name, 30_000, "me");
    assert_eq!(compare_and_delete(&mut client, &name, "me"), 1);
    assert_eq!(set_nx(&mut client, &name, "plain", 30_000), ok());
    let (_, names) = expect::scanned(&ask!(client, "LOCK.SCAN", 0, "MATCH", &name, "COUNT", 10_000));
    assert!(names.len() <= 1, "no name twice in one step: {names:?}");
}

fn a_key_of_another_type_is_wrongtype(context: &Context) {
    let mut client = context.client();
    let name = context.name("list");
    assert_eq!(ask!(client, "RPUSH", &name, "item"), Value::Integer(1));
    let text = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let replies = [
        ask!(client, "LOCK.ACQUIRE", &name, 30_000),
        ask!(client, "LOCK.ACQUIRE", &name, 30_000, "WAIT", 1_000),
        ask!(client, "LOCK.RELEASE", &name, 7),
        ask!(client, "LOCK.RENEW", &name, 7, 1_000),
        ask!(client, "LOCK.INFO", &name),
        ask!(client, "LOCK.FORCERELEASE", &name),
        ask!(client, "LOCK.MACQUIRE", 1, &name, 30_000),
    ];
    for reply in replies {
        assert_eq!(reply, Value::Error(text.into()));
    }
    assert_eq!(ask!(client, "LLEN", &name), Value::Integer(1), "the list is as it was");
    // Among others it is a lock that is not the client's.
    let (one, two) = (context.name("one"), context.name("two"));
    let fences = [&one, &two].map(|name| client.acquire(name, 30_000).fence);
    let reply = ask!(client, "LOCK.MRELEASE", 3, &one, fences[0], &name, 5, &two, fences[1]);
    let row =
        |number: i64, reason: &str| Value::Array(vec![Value::Integer(number), Value::Bulk(reason.into())]);
    assert_eq!(reply, Value::Array(vec![row(1, "ok"), row(0, "not_owner"), row(1, "ok")]));
    assert_eq!(ask!(client, "LLEN", &name), Value::Integer(1), "the list is as it was");
}

fn in_a_transaction(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    assert_eq!(ask!(client, "MULTI"), ok());
    let queued = Value::Simple(b"QUEUED".to_vec());
    assert_eq!(ask!(client, "LOCK.ACQUIRE", &name, 30_000), queued);
    assert_eq!(ask!(client, "LOCK.ACQUIRE", &name, 30_000), queued);
    assert_eq!(ask!(client, "LOCK.INFO", &name), queued);
    let reply = ask!(client, "EXEC");
    let replies = reply.array();
    let grant = expect::granted(&replies[0]);
    assert_eq!(replies[1], context.protocol().nil());
    assert_eq!(expect::info(&replies[2], context.protocol()).fence, grant.fence);
    client.release(&name, grant.fence);
}

fn waiting_in_a_transaction_does_not_block(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.acquire(&name, 30_000);
    ask!(client, "MULTI");
    ask!(client, "LOCK.ACQUIRE", &name, 30_000, "WAIT", 3_600_000);
    // As BLPOP inside MULTI: what cannot be had at once is not had.
    assert_eq!(ask!(client, "EXEC"), Value::Array(vec![context.protocol().nil()]));
    assert_eq!(client.info(&name).waiters, 0);
}

fn in_a_script(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'WAIT', '3600000')";
    if context.tier() == "CORRECTNESS" {
        // Its scripts run before anything is logged: what they write must be plain keys.
        let refused = ask!(client, "EVAL", script, 1, &name, 30_000);
        expect::error_naming(&refused, "ERR", "LOCK.ACQUIRE");
        return assert_eq!(client.info(&name).state, "free");
    }
    let grant = expect::granted(&ask!(client, "EVAL", script, 1, &name, 30_000));
    assert_eq!(ask!(client, "EVAL", script, 1, &name, 30_000), context.protocol().nil());
    client.release(&name, grant.fence);
}
