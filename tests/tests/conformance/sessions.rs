//! Sessions (Tier 2): all locks of a session die with it, in one step, and their waiters are served.

use std::time::{Duration, Instant};

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect, words};

use crate::topic::cases;

cases! {
    Abilities::CORRECTNESS => [
        open_answers_an_id,
        locks_are_bound_to_their_session,
        close_releases_all_and_counts_them,
        close_serves_the_waiters,
        a_closed_session_is_gone,
        keepalive_answers_the_ttl,
        info_is_a_map,
        an_idle_session_dies,
        keepalives_keep_it_alive,
        any_command_on_its_connection_keeps_it_alive,
        being_blocked_keeps_it_alive,
        ttl_zero_lives_as_long_as_the_session,
        ttl_zero_needs_a_session,
        a_lock_of_a_session_can_end_before_it,
        a_dropped_connection_ends_its_session,
        keepalive_from_elsewhere_saves_it_after_a_drop,
        a_dead_session_cannot_acquire,
        a_dead_sessions_waiter_is_not_granted,
        multi_locks_are_bound_too,
    ],
}

fn open(client: &mut Client, ttl_ms: u64) -> String {
    let id = ask!(client, "LOCK.SESSION", "OPEN", ttl_ms).text();
    assert!(!id.is_empty());
    id
}

fn acquire_in(client: &mut Client, name: &str, ttl_ms: u64, session: &str) -> expect::Grant {
    expect::granted(&ask!(client, "LOCK.ACQUIRE", name, ttl_ms, "SESSION", session))
}

/// Asks about a session through a connection that is not its own, which does not keep it alive.
fn await_end(watcher: &mut Client, session: &str) {
    let ended = poll_until(REPLY_WITHIN, || match ask!(watcher, "LOCK.SESSION", "INFO", session) {
        reply if reply.is_error() => {
            expect::error(&reply, "NOSESSION");
            true
        }
        _ => {
            std::thread::sleep(Duration::from_millis(20));
            false
        }
    });
    assert!(ended, "the session should have ended");
}

fn open_answers_an_id(context: &Context) {
    let mut client = context.client();
    let (one, other) = (open(&mut client, 30_000), open(&mut client, 30_000));
    assert_ne!(one, other);
    let named = ask!(client, "LOCK.SESSION", "OPEN", 30_000, "NAME", "worker 7").text();
    assert_ne!(named, one);
}

fn locks_are_bound_to_their_session(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let session = open(&mut client, 30_000);
    let grant = acquire_in(&mut client, &name, 20_000, &session);
    let info = client.info(&name);
    assert_eq!((info.fence, info.session.as_deref()), (grant.fence, Some(session.as_str())));
    client.release(&name, grant.fence);
}

fn close_releases_all_and_counts_them(context: &Context) {
    let mut client = context.client();
    let session = open(&mut client, 30_000);
    let names: Vec<String> = (0..3).map(|_| context.name("lock")).collect();
    let grants: Vec<_> = names.iter().map(|name| acquire_in(&mut client, name, 20_000, &session)).collect();
    client.release(&names[2], grants[2].fence);
    assert_eq!(ask!(client, "LOCK.SESSION", "CLOSE", &session), Value::Integer(2));
    for name in &names {
        assert_eq!(client.info(name).state, "free");
    }
    client.release_is_refused(&names[0], grants[0].fence, "expired");
}

fn close_serves_the_waiters(context: &Context) {
    let (mut client, mut waiter) = (context.client(), context.client());
    let name = context.name("lock");
    let session = open(&mut client, 30_000);
    let grant = acquire_in(&mut client, &name, 0, &session);
    waiter.start_waiting(&name, 30_000, 30_000, "waiter");
    client.await_waiters(&name, 1);
    assert_eq!(ask!(client, "LOCK.SESSION", "CLOSE", &session), Value::Integer(1));
    assert!(waiter.receive_grant().fence > grant.fence);
}

fn a_closed_session_is_gone(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let session = open(&mut client, 30_000);
    assert_eq!(ask!(client, "LOCK.SESSION", "CLOSE", &session), Value::Integer(0));
    for verb in ["CLOSE", "KEEPALIVE", "INFO"] {
        expect::error(&ask!(client, "LOCK.SESSION", verb, &session), "NOSESSION");
    }
    expect::error(&ask!(client, "LOCK.ACQUIRE", &name, 1_000, "SESSION", &session), "NOSESSION");
    assert_eq!(client.info(&name).fence, 0);
}

fn keepalive_answers_the_ttl(context: &Context) {
    let mut client = context.client();
    let session = open(&mut client, 12_345);
    assert_eq!(ask!(client, "LOCK.SESSION", "KEEPALIVE", &session), Value::Integer(12_345));
}

fn info_is_a_map(context: &Context) {
    let mut client = context.client();
    let session = ask!(client, "LOCK.SESSION", "OPEN", 30_000, "NAME", "label").text();
    acquire_in(&mut client, &context.name("lock"), 0, &session);
    let reply = ask!(client, "LOCK.SESSION", "INFO", &session);
    let pairs = expect::pairs(&reply, context.protocol());
    assert!(!pairs.is_empty(), "{reply:?}");
    assert!(
        pairs.iter().any(|(_, value)| *value == Value::bulk(&session)),
        "it names the session: {reply:?}"
    );
    assert!(pairs.iter().any(|(_, value)| *value == Value::bulk("label")), "it shows the label: {reply:?}");
}

fn an_idle_session_dies(context: &Context) {
    let (mut client, mut watcher) = (context.client(), context.client());
    let name = context.name("lock");
    let session = open(&mut client, 2_000);
    acquire_in(&mut client, &name, 0, &session);
    // The connection stays open but says nothing: a frozen client must lose its session.
    watcher.await_free(&name);
    await_end(&mut watcher, &session);
}

fn keepalives_keep_it_alive(context: &Context) {
    let (mut client, mut other) = (context.client(), context.client());
    let name = context.name("lock");
    let session = open(&mut client, 4_000);
    let grant = acquire_in(&mut client, &name, 0, &session);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(5_000) {
        assert_eq!(ask!(other, "LOCK.SESSION", "KEEPALIVE", &session), Value::Integer(4_000));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(other.info(&name).fence, grant.fence);
    other.release(&name, grant.fence);
}

fn any_command_on_its_connection_keeps_it_alive(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let session = open(&mut client, 4_000);
    let grant = acquire_in(&mut client, &name, 0, &session);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(5_000) {
        assert_eq!(client.info(&name).state, "held");
        std::thread::sleep(Duration::from_millis(100));
    }
    client.release(&name, grant.fence);
}

fn being_blocked_keeps_it_alive(context: &Context) {
    let (mut holder, mut client) = (context.client(), context.client());
    let (taken, mine) = (context.name("taken"), context.name("mine"));
    let grant = holder.acquire(&taken, 60_000);
    let session = open(&mut client, 3_000);
    acquire_in(&mut client, &mine, 0, &session);
    client.send(&words!["LOCK.ACQUIRE", &taken, 0, "WAIT", 30_000, "SESSION", &session]);
    std::thread::sleep(Duration::from_millis(4_500));
    assert_eq!(holder.info(&mine).state, "held", "blocked in a WAIT is alive");
    holder.release(&taken, grant.fence);
    client.receive_grant();
}

fn ttl_zero_lives_as_long_as_the_session(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let session = open(&mut client, 30_000);
    let grant = acquire_in(&mut client, &name, 0, &session);
    assert_eq!(grant.ttl_ms, 0);
    assert_eq!(client.info(&name).ttl_ms, Some(-1), "bound to its session alone");
    assert_eq!(ask!(client, "LOCK.SESSION", "CLOSE", &session), Value::Integer(1));
    assert_eq!(client.info(&name).state, "free");
}

fn ttl_zero_needs_a_session(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    expect::error(&ask!(client, "LOCK.ACQUIRE", &name, 0), "ERR");
    expect::error(&ask!(client, "LOCK.MACQUIRE", 1, &name, 0), "ERR");
    let session = open(&mut client, 30_000);
    let grant = acquire_in(&mut client, &name, 20_000, &session);
    expect::error(&ask!(client, "LOCK.RENEW", &name, grant.fence, 0), "ERR");
}

fn a_lock_of_a_session_can_end_before_it(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let session = open(&mut client, 30_000);
    let grant = acquire_in(&mut client, &name, 20_000, &session);
    client.expire(&name, grant.fence);
    client.release_is_refused(&name, grant.fence, "expired");
    assert_eq!(ask!(client, "LOCK.SESSION", "CLOSE", &session), Value::Integer(0));
}

fn a_dropped_connection_ends_its_session(context: &Context) {
    let (mut client, mut watcher) = (context.client(), context.client());
    let name = context.name("lock");
    let session = open(&mut client, 60_000);
    acquire_in(&mut client, &name, 0, &session);
    let start = Instant::now();
    drop(client);
    watcher.await_free(&name);
    assert!(start.elapsed() < Duration::from_secs(20), "ended {:?} after the drop", start.elapsed());
    await_end(&mut watcher, &session);
}

fn keepalive_from_elsewhere_saves_it_after_a_drop(context: &Context) {
    // A busy machine may not let us say anything for the whole grace time: then the session has to end, and it is tried again.
    let saved = (0..10).any(|_| is_saved_after_a_drop(context));
    assert!(saved, "ten times in a row no keep-alive was sent within the grace time");
}

/// False: no keep-alive could be sent in time.
fn is_saved_after_a_drop(context: &Context) -> bool {
    const GRACE: Duration = Duration::from_millis(500);
    let (mut client, mut other) = (context.client(), context.client());
    let name = context.name("lock");
    let session = open(&mut client, 60_000);
    let grant = acquire_in(&mut client, &name, 0, &session);
    let start = Instant::now();
    let mut heard = start;
    drop(client);
    while start.elapsed() < Duration::from_millis(1_200) {
        let reply = ask!(other, "LOCK.SESSION", "KEEPALIVE", &session);
        if reply.is_error() && heard.elapsed() > GRACE / 2 {
            expect::error(&reply, "NOSESSION");
            return false;
        }
        assert_eq!(reply, Value::Integer(60_000), "{:?} after the last one", heard.elapsed());
        heard = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(other.info(&name).fence, grant.fence);
    assert_eq!(ask!(other, "LOCK.SESSION", "CLOSE", &session), Value::Integer(1));
    true
}

fn a_dead_session_cannot_acquire(context: &Context) {
    let (mut client, mut other) = (context.client(), context.client());
    let name = context.name("lock");
    let session = open(&mut client, 200);
    await_end(&mut other, &session);
    expect::error(&ask!(client, "LOCK.ACQUIRE", &name, 1_000, "SESSION", &session), "NOSESSION");
    expect::error(&ask!(client, "LOCK.MACQUIRE", 1, &name, 0, "SESSION", &session), "NOSESSION");
    assert_eq!(other.info(&name).fence, 0);
}

fn a_dead_sessions_waiter_is_not_granted(context: &Context) {
    let (mut holder, mut opener, mut waiter) = (context.client(), context.client(), context.client());
    let name = context.name("lock");
    let grant = holder.acquire(&name, 60_000);
    let session = open(&mut opener, 60_000);
    // The wait stands on another connection than the session's own.
    waiter.send(&words!["LOCK.ACQUIRE", &name, 0, "WAIT", 30_000, "SESSION", &session]);
    holder.await_waiters(&name, 1);
    ask!(holder, "LOCK.SESSION", "CLOSE", &session).integer();
    expect::error(&waiter.receive(), "NOSESSION");
    assert_eq!(holder.info(&name).waiters, 0);
    holder.release(&name, grant.fence);
    assert_eq!(holder.info(&name).state, "free");
}

fn multi_locks_are_bound_too(context: &Context) {
    let mut client = context.client();
    let (one, other) = (context.name("one"), context.name("other"));
    let session = open(&mut client, 30_000);
    let reply = ask!(client, "LOCK.MACQUIRE", 2, &one, &other, 0, "SESSION", &session);
    let (_, ttl_ms) = expect::multi_granted(&reply, 2);
    assert_eq!(ttl_ms, 0);
    assert_eq!(client.info(&one).session.as_deref(), Some(session.as_str()));
    assert_eq!(ask!(client, "LOCK.SESSION", "CLOSE", &session), Value::Integer(2));
    assert_eq!(client.info(&other).state, "free");
}
