//! The module as a citizen of Redis: replicas, ACLs, databases, cluster slots, memory limits, reloads, and waiters that
//! the server itself throws out. What every backend shares is in the conformance suite.

use std::time::Duration;

use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::process::poll_until;
use redfence_tests::redis::{Options, Redis};
use redfence_tests::resp::{ReceiveError, Value};
use redfence_tests::tier1::Tier1;
use redfence_tests::{ask, expect, words};

const LONG_MS: u64 = 600_000;

fn start() -> Redis {
    Redis::start(&Options::with_module())
}

fn client(server: &Redis) -> Client {
    Tier1::Module.client(server)
}

fn ok(reply: &Value) {
    assert_eq!(*reply, Value::Simple(b"OK".to_vec()));
}

/// A waiter that stands in line, seen by `watcher`.
fn waiter(server: &Redis, watcher: &mut Client, name: &str, owner: &str) -> Client {
    let before = watcher.info(name).waiters;
    let mut waiter = client(server);
    waiter.start_waiting(name, LONG_MS, LONG_MS, owner);
    watcher.await_waiters(name, before + 1);
    waiter
}

#[test]
fn a_replica_answers_reads_and_refuses_writes() {
    let (master, replica) = (start(), start());
    ok(&replica.ask(&["REPLICAOF", "127.0.0.1", &master.address().port().to_string()]));
    let mut holder = client(&master);
    let grant = holder.acquire_as("lock", LONG_MS, "holder");
    let arrived = poll_until(REPLY_WITHIN, || replica.ask(&["GET", "lock"]) == Value::bulk("holder"));
    assert!(arrived, "{}", replica.log());
    let mut reader = client(&replica);
    let info = reader.info("lock");
    assert_eq!((info.fence, info.owner.as_deref()), (grant.fence, Some("holder")));
    assert!(reader.queue("lock").is_empty());
    expect::scanned(&ask!(reader, "LOCK.SCAN", 0));
    for command in [
        words!["LOCK.ACQUIRE", "other", 1_000].to_vec(),
        words!["LOCK.RELEASE", "lock", grant.fence].to_vec(),
        words!["LOCK.RENEW", "lock", grant.fence, 1_000].to_vec(),
        words!["LOCK.FORCERELEASE", "lock"].to_vec(),
        words!["LOCK.MACQUIRE", 1, "other", 1_000].to_vec(),
        words!["FENCE.CHECK", "other", 7].to_vec(),
    ] {
        expect::error(&reader.ask(&command), "READONLY");
    }
    // The very same moment on both, whenever the replica heard of it.
    assert_eq!(master.ask(&["PEXPIRETIME", "lock"]), replica.ask(&["PEXPIRETIME", "lock"]));
    holder.release("lock", grant.fence);
    assert!(poll_until(REPLY_WITHIN, || reader.info("lock").state == "free"));
    assert_eq!(reader.info("lock").fence, grant.fence);
}

#[test]
fn what_is_written_to_the_log_is_effects() {
    let options = Options::with_module().set("appendonly", "yes").set("appendfsync", "always");
    let mut server = Redis::start(&options);
    let mut holder = client(&server);
    let kept = holder.acquire_as("kept", LONG_MS, "holder");
    let ended = holder.acquire("ended", LONG_MS);
    holder.renew("kept", kept.fence, LONG_MS);
    holder.release("ended", ended.fence);
    let mut next = waiter(&server, &mut holder, "kept", "next");
    holder.release("kept", kept.fence);
    let handed = next.receive_grant();
    let folder = server.folder().join("appendonlydir");
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&bytes).to_ascii_uppercase();
        assert!(
            !text.contains("LOCK.") && !text.contains("FENCE."),
            "a command was logged as it was sent:\n{text}"
        );
    }
    drop((holder, next));
    server.kill();
    // A plain Redis without the module reads it back: nothing in it is ours but keys.
    server.restart(&Options::plain().set("appendonly", "yes"));
    assert_eq!(server.ask(&["GET", "kept"]), Value::bulk("next"));
    assert_eq!(server.ask(&["EXISTS", "ended"]), Value::Integer(0));
    server.kill();
    server.restart(&options);
    let mut reader = client(&server);
    assert_eq!(reader.info("kept").fence, handed.fence);
    reader.release("kept", handed.fence);
}

#[test]
fn flushes_and_renames_serve_waiters() {
    let server = start();
    for (round, command) in
        [vec!["FLUSHALL"], vec!["FLUSHDB"], vec!["RENAME", "lock", "elsewhere"], vec!["UNLINK", "lock"]]
            .into_iter()
            .enumerate()
    {
        let mut holder = client(&server);
        let first = holder.acquire("lock", LONG_MS);
        let mut next = waiter(&server, &mut holder, "lock", &format!("next-{round}"));
        let reply = server.ask(&command);
        assert!(!reply.is_error(), "{command:?} answered {reply:?}");
        let grant = next.receive_grant();
        assert!(grant.fence > first.fence, "after {command:?}");
        next.release("lock", grant.fence);
    }
}

#[test]
fn a_reload_under_waiters_makes_no_second_holder() {
    let server = start();
    let mut holder = client(&server);
    let first = holder.acquire_as("lock", LONG_MS, "holder");
    let mut next = waiter(&server, &mut holder, "lock", "next");
    ok(&server.ask(&["DEBUG", "RELOAD"]));
    // For a moment the key was gone; it is back, and so is its holder.
    next.hears_nothing_for(Duration::from_millis(300));
    let info = holder.info("lock");
    assert_eq!((info.fence, info.owner.as_deref(), info.waiters), (first.fence, Some("holder"), 1));
    holder.release("lock", first.fence);
    next.receive_grant();
}

#[test]
fn databases_are_apart() {
    let server = start();
    let (mut zero, mut one) = (client(&server), client(&server));
    ok(&ask!(one, "SELECT", 1));
    let in_zero = zero.acquire("lock", LONG_MS);
    let in_one = one.acquire("lock", LONG_MS);
    let mut next = client(&server);
    ok(&ask!(next, "SELECT", 1));
    next.start_waiting("lock", LONG_MS, LONG_MS, "next");
    one.await_waiters("lock", 1);
    assert_eq!(zero.info("lock").waiters, 0);
    zero.release("lock", in_zero.fence);
    next.hears_nothing_for(Duration::from_millis(50));
    one.release("lock", in_one.fence);
    next.receive_grant();
    assert_eq!(zero.info("lock").state, "free");
}

#[test]
fn key_patterns_of_acls_hold() {
    let server = start();
    ok(&server.ask(&["ACL", "SETUSER", "limited", "on", ">secret", "~mine:*", "&*", "+@all"]));
    let mut limited = client(&server);
    ok(&ask!(limited, "AUTH", "limited", "secret"));
    let grant = limited.acquire("mine:1", LONG_MS);
    limited.release("mine:1", grant.fence);
    let reply = ask!(limited, "LOCK.MACQUIRE", 2, "mine:1", "mine:2", LONG_MS);
    expect::multi_granted(&reply, 2);
    for command in [
        words!["LOCK.ACQUIRE", "other", 1_000].to_vec(),
        words!["LOCK.RELEASE", "other", 7].to_vec(),
        words!["LOCK.INFO", "other"].to_vec(),
        words!["LOCK.MACQUIRE", 2, "mine:3", "other", 1_000].to_vec(),
        words!["LOCK.MRELEASE", 2, "mine:3", 7, "other", 7].to_vec(),
        words!["FENCE.CHECK", "other", 7].to_vec(),
    ] {
        expect::error(&limited.ask(&command), "NOPERM");
    }
    // The command inside must be allowed as well, not only the fence around it.
    assert!(ask!(limited, "FENCE.CALL", "mine:1", 7, "SET", "other", "x").is_error());
    assert_eq!(server.ask(&["EXISTS", "other"]), Value::Integer(0));
}

#[test]
fn force_release_is_dangerous() {
    let server = start();
    let reply = server.ask(&["COMMAND", "INFO", "LOCK.FORCERELEASE"]);
    let entry = reply.array()[0].array();
    assert!(entry[2].array().contains(&Value::Simple(b"admin".to_vec())), "{reply:?}");
    // Redis 7.0 knows no categories for commands of modules; there it is denied by name.
    let knows_categories = !entry[6].array().is_empty();
    let denied = if knows_categories { "-@dangerous" } else { "-lock.forcerelease" };
    ok(&server.ask(&["ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all", denied]));
    let mut worker = client(&server);
    ok(&ask!(worker, "AUTH", "worker", "secret"));
    worker.acquire("lock", LONG_MS);
    expect::error(&ask!(worker, "LOCK.FORCERELEASE", "lock"), "NOPERM");
    assert_eq!(client(&server).info("lock").state, "held");
}

#[test]
fn where_the_keys_are() {
    let server = start();
    let keys = |command: &[&str]| -> Vec<String> {
        let reply = server.ask(&[&["COMMAND", "GETKEYS"], command].concat());
        reply.array().iter().map(Value::text).collect()
    };
    assert_eq!(keys(&["LOCK.RENEW", "a", "7", "1000"]), ["a"]);
    assert_eq!(keys(&["LOCK.MACQUIRE", "2", "a", "b", "1000", "OWNER", "me"]), ["a", "b"]);
    assert_eq!(keys(&["LOCK.MRELEASE", "2", "a", "7", "b", "8"]), ["a", "b"]);
    assert_eq!(keys(&["FENCE.CHECK", "a", "7"]), ["a"]);
}

#[test]
fn a_waiter_thrown_out_by_the_server_leaves_the_line() {
    let server = start();
    let mut holder = client(&server);
    let first = holder.acquire("lock", LONG_MS);
    for command in ["KILL", "UNBLOCK"] {
        let mut victim = client(&server);
        let id = ask!(victim, "CLIENT", "ID").integer().to_string();
        victim.start_waiting("lock", LONG_MS, LONG_MS, "victim");
        holder.await_waiters("lock", 1);
        let reply = match command {
            "KILL" => server.ask(&["CLIENT", "KILL", "ID", &id]),
            _ => server.ask(&["CLIENT", "UNBLOCK", &id]),
        };
        if command == "UNBLOCK" && reply == Value::Integer(0) {
            // A module may decline to be unblocked by hand; the waiter then simply goes on waiting.
            drop(victim);
        } else {
            match victim.try_receive(REPLY_WITHIN) {
                Err(ReceiveError::Closed) | Ok(Value::NullBulk | Value::Error(_)) => {}
                other => panic!("{command}: the victim got {other:?}"),
            }
        }
        holder.await_waiters("lock", 0);
    }
    holder.release("lock", first.fence);
    assert_eq!(holder.info("lock").state, "free");
}

#[test]
fn waiters_of_a_master_that_becomes_a_replica_are_answered() {
    let (master, other) = (start(), start());
    let mut holder = client(&other);
    holder.acquire("lock", LONG_MS);
    let mut next = waiter(&other, &mut holder, "lock", "next");
    ok(&other.ask(&["REPLICAOF", "127.0.0.1", &master.address().port().to_string()]));
    match next.try_receive(REPLY_WITHIN) {
        Ok(Value::Error(_)) | Err(ReceiveError::Closed) => {}
        answer => panic!("a waiter on a replica can never be served, but it got {answer:?}"),
    }
}

#[test]
fn short_of_memory_only_releases_go_on() {
    let server = start();
    let mut holder = client(&server);
    let grant = holder.acquire("lock", LONG_MS);
    ok(&server.ask(&["CONFIG", "SET", "maxmemory", "1"]));
    expect::error(&ask!(holder, "LOCK.ACQUIRE", "other", LONG_MS), "OOM");
    assert_eq!(holder.info("lock").fence, grant.fence);
    assert_eq!(holder.renew("lock", grant.fence, LONG_MS), LONG_MS as i64);
    holder.release("lock", grant.fence);
}

#[test]
fn slots_of_a_cluster() {
    let server = Redis::start(&Options::with_module().set("cluster-enabled", "yes"));
    ok(&server.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]));
    assert!(poll_until(REPLY_WITHIN, || !server.ask(&["SET", "probe", "x"]).is_error()), "{}", server.log());
    let mut holder = client(&server);
    for name in ["plain", "{tag}name", "open{brace"] {
        let grant = holder.acquire(name, LONG_MS);
        let mut next = waiter(&server, &mut holder, name, "next");
        holder.release(name, grant.fence);
        let grant = next.receive_grant();
        assert_eq!(ask!(holder, "FENCE.CHECK", name, grant.fence), Value::Integer(1));
    }
    expect::error(&ask!(holder, "LOCK.MACQUIRE", 2, "a", "b", LONG_MS), "CROSSSLOT");
    let reply = ask!(holder, "LOCK.MACQUIRE", 2, "{t}a", "{t}b", LONG_MS);
    expect::multi_granted(&reply, 2);
    // No side key of these names can lie in their slots.
    for name in ["stray}brace", "{}empty"] {
        expect::error(&ask!(holder, "LOCK.ACQUIRE", name, LONG_MS), "CROSSSLOT");
    }
}

#[test]
fn eviction_of_a_held_key_serves_waiters() {
    let server = start();
    let mut holder = client(&server);
    let first = holder.acquire("lock", LONG_MS);
    let mut next = waiter(&server, &mut holder, "lock", "next");
    ok(&server.ask(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]));
    // Everything with a ttl goes, the lock among it; then there is room again.
    ok(&server.ask(&["CONFIG", "SET", "maxmemory", "1"]));
    let _ = server.ask(&["SET", "anything", "x"]);
    ok(&server.ask(&["CONFIG", "SET", "maxmemory", "0"]));
    assert!(next.receive_grant().fence > first.fence);
}
