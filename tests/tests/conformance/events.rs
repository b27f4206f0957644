//! Watching: SUBSCRIBE and PSUBSCRIBE to `__lock__:<resource>`, one JSON object a message.

use std::time::{Duration, Instant};

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::resp::{Protocol, Value};
use redfence_tests::{ask, words};
use serde_json::Value as Json;

use crate::topic::cases;

/// Of the largest cluster among the backends.
const NODES_MAX: usize = 5;

cases! {
    Abilities::EVENTS => [
        acquired_and_released,
        renewed,
        expired,
        queued_and_handed_over,
        abandoned_by_time_out,
        abandoned_by_disconnect,
        forced_release_is_a_release,
        a_pattern_sees_all_its_locks,
        other_locks_are_not_heard,
        sequence_grows,
        names_are_escaped,
        a_refusal_is_no_event,
        a_retry_is_no_event,
        multi_locks_tell_each_resource,
        a_place_in_line_for_what_is_held_ends,
        unsubscribed_hears_no_more,
    ],
    Abilities::EVENTS.and(Abilities::PLAIN_KEYS) => [taking_over_a_plain_key_is_no_event],
    Abilities::EVENTS.and(Abilities::CORRECTNESS) => [a_sessions_end_is_told],
}

struct Watcher {
    client: Client,
}

impl Watcher {
    fn subscribe(context: &Context, verb: &str, channel: &str) -> Watcher {
        let mut client = context.client();
        client.send(&words![verb, channel]);
        let reply = client.receive();
        let expected = vec![Value::bulk(verb.to_ascii_lowercase()), Value::bulk(channel), Value::Integer(1)];
        assert_eq!(reply, pushed(context.protocol(), expected));
        Watcher { client }
    }

    fn of(context: &Context, name: &str) -> Watcher {
        Watcher::subscribe(context, "SUBSCRIBE", &format!("__lock__:{name}"))
    }

    /// The next message: its channel and its JSON.
    fn next(&mut self) -> (String, Json) {
        let reply = self.client.receive();
        let items = match (&reply, self.client.protocol()) {
            (Value::Array(items), Protocol::Resp2) | (Value::Push(items), Protocol::Resp3) => items,
            _ => panic!("expected a message as the protocol spells it, got {reply:?}"),
        };
        let (channel, payload) = match items.as_slice() {
            [kind, channel, payload] if *kind == Value::bulk("message") => (channel, payload),
            [kind, _, channel, payload] if *kind == Value::bulk("pmessage") => (channel, payload),
            _ => panic!("expected a message, got {reply:?}"),
        };
        let json: Json = serde_json::from_slice(payload.bytes())
            .unwrap_or_else(|error| panic!("{error} in {}", payload.bytes().escape_ascii()));
        let mut fields: Vec<&str> =
            json.as_object().expect("one object").keys().map(String::as_str).collect();
        fields.sort_unstable();
        // Where there is one.
        fields.retain(|field| !["cause", "mode", "value"].contains(field));
        assert_eq!(fields, ["event", "fence", "owner", "resource", "seq", "tier"], "{json}");
        assert!(json["fence"].is_u64() && json["seq"].is_u64(), "{json}");
        (channel.text(), json)
    }

    fn next_is(&mut self, event: &str, fence: i64, owner: &str) -> Json {
        let (_, json) = self.next();
        let seen = (json["event"].as_str(), json["fence"].as_i64(), json["owner"].as_str());
        assert_eq!(seen, (Some(event), Some(fence), Some(owner)), "{json}");
        json
    }

    fn hears_nothing(&mut self) {
        self.client.hears_nothing_for(Duration::from_millis(80));
    }
}

fn pushed(protocol: Protocol, items: Vec<Value>) -> Value {
    match protocol {
        Protocol::Resp2 => Value::Array(items),
        Protocol::Resp3 => Value::Push(items),
    }
}

fn acquired_and_released(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let grant = client.acquire_as(&name, 30_000, "me");
    let json = watcher.next_is("acquired", grant.fence, "me");
    assert_eq!(json["resource"].as_str(), Some(name.as_str()));
    assert_eq!(json["tier"].as_str(), Some(context.tier()));
    client.release(&name, grant.fence);
    watcher.next_is("released", grant.fence, "me");
    watcher.hears_nothing();
}

fn renewed(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let grant = client.acquire_as(&name, 30_000, "me");
    client.renew(&name, grant.fence, 60_000);
    watcher.next_is("acquired", grant.fence, "me");
    watcher.next_is("renewed", grant.fence, "me");
}

fn expired(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let first = client.acquire_as(&name, 60_000, "first");
    client.expire(&name, first.fence);
    // Who comes next finds the end of the first grant told before its own beginning.
    let second = client.acquire_as(&name, 30_000, "second");
    watcher.next_is("acquired", first.fence, "first");
    watcher.next_is("renewed", first.fence, "first");
    watcher.next_is("expired", first.fence, "first");
    watcher.next_is("acquired", second.fence, "second");
}

fn queued_and_handed_over(context: &Context) {
    let (mut holder, mut waiter) = (context.client(), context.client());
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let first = holder.acquire_as(&name, 60_000, "first");
    waiter.start_waiting(&name, 30_000, 30_000, "second");
    holder.await_waiters(&name, 1);
    holder.release(&name, first.fence);
    let second = waiter.receive_grant();
    watcher.next_is("acquired", first.fence, "first");
    watcher.next_is("queued", first.fence, "second");
    watcher.next_is("released", first.fence, "first");
    watcher.next_is("acquired", second.fence, "second");
    watcher.hears_nothing();
}

fn abandoned_by_time_out(context: &Context) {
    let (mut holder, mut waiter) = (context.client(), context.client());
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let first = holder.acquire_as(&name, 60_000, "first");
    waiter.start_waiting(&name, 30_000, 80, "late");
    waiter.receive_nil();
    watcher.next_is("acquired", first.fence, "first");
    watcher.next_is("queued", first.fence, "late");
    watcher.next_is("abandoned", first.fence, "late");
}

fn abandoned_by_disconnect(context: &Context) {
    let (mut holder, mut waiter) = (context.client(), context.client());
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let first = holder.acquire_as(&name, 60_000, "first");
    waiter.start_waiting(&name, 30_000, 60_000, "gone");
    holder.await_waiters(&name, 1);
    drop(waiter);
    holder.await_waiters(&name, 0);
    // A server that cannot see a client leave tells when it next serves the queue.
    holder.release(&name, first.fence);
    watcher.next_is("acquired", first.fence, "first");
    watcher.next_is("queued", first.fence, "gone");
    let mut told = [watcher.next().1, watcher.next().1]
        .map(|json| (json["event"].as_str().unwrap().to_owned(), json["owner"].as_str().unwrap().to_owned()));
    told.sort_unstable();
    assert_eq!(told, [("abandoned".into(), "gone".into()), ("released".into(), "first".into())]);
}

fn forced_release_is_a_release(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let grant = client.acquire_as(&name, 60_000, "me");
    ask!(client, "LOCK.FORCERELEASE", &name).integer();
    watcher.next_is("acquired", grant.fence, "me");
    watcher.next_is("released", grant.fence, "me");
}

fn a_pattern_sees_all_its_locks(context: &Context) {
    let mut client = context.client();
    let base = context.name("wallet");
    let mut watcher = Watcher::subscribe(context, "PSUBSCRIBE", &format!("__lock__:{base}:*"));
    for number in 0..3 {
        let name = format!("{base}:{number}");
        let grant = client.acquire(&name, 30_000);
        let (channel, json) = watcher.next();
        assert_eq!(channel, format!("__lock__:{name}"));
        assert_eq!(json["resource"].as_str(), Some(name.as_str()));
        assert_eq!(json["fence"].as_i64(), Some(grant.fence));
    }
}

fn other_locks_are_not_heard(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    client.acquire(&context.name("other"), 30_000);
    client.acquire(&format!("{name}2"), 30_000);
    watcher.hears_nothing();
    let grant = client.acquire_as(&name, 30_000, "me");
    watcher.next_is("acquired", grant.fence, "me");
}

fn sequence_grows(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    for _ in 0..5 {
        let grant = client.acquire(&name, 30_000);
        client.release(&name, grant.fence);
    }
    let mut last = 0;
    for _ in 0..10 {
        let seq = watcher.next().1["seq"].as_u64().unwrap();
        assert!(seq > last, "seq {seq} after {last}");
        last = seq;
    }
}

fn names_are_escaped(context: &Context) {
    let mut client = context.client();
    let name = format!("{}\"\\\n\t\u{1}é/", context.name("escaped"));
    let mut watcher = Watcher::of(context, &name);
    let owner = "o\"\\\r\u{2}ü";
    let grant = client.acquire_as(&name, 30_000, owner);
    let json = watcher.next_is("acquired", grant.fence, owner);
    assert_eq!(json["resource"].as_str(), Some(name.as_str()));
}

fn a_refusal_is_no_event(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let grant = client.acquire_as(&name, 30_000, "me");
    client.is_refused(&name, 30_000);
    client.release_is_refused(&name, grant.fence + 1, "not_owner");
    client.renew_is_refused(&name, grant.fence + 1, 1_000, "not_owner");
    watcher.next_is("acquired", grant.fence, "me");
    watcher.hears_nothing();
}

/// Asking again for what one has, longer: a renewal is told only where somebody asked for one.
fn a_retry_is_no_event(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let grant = client.acquire_as(&name, 30_000, "me");
    watcher.next_is("acquired", grant.fence, "me");
    assert_eq!(client.acquire_as(&name, 60_000, "me").fence, grant.fence);
    client.release(&name, grant.fence);
    watcher.next_is("released", grant.fence, "me");
    watcher.hears_nothing();
}

/// A plain client's key under the value that asks: it gets a fence, and is held as before.
fn taking_over_a_plain_key_is_no_event(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    ask!(client, "SET", &name, "me", "NX", "PX", 30_000);
    // Clients are connected to the nodes in turn: whichever the watcher gets, it has applied the SET.
    for _ in 0..NODES_MAX {
        ask!(context.client(), "GET", &name);
    }
    let mut watcher = Watcher::of(context, &name);
    let grant = client.acquire_as(&name, 60_000, "me");
    client.release(&name, grant.fence);
    watcher.next_is("released", grant.fence, "me");
    watcher.hears_nothing();
}

fn multi_locks_tell_each_resource(context: &Context) {
    let mut client = context.client();
    let base = context.name("multi");
    let names = [format!("{{{base}}}a"), format!("{{{base}}}b")];
    let mut watchers = names.each_ref().map(|name| Watcher::of(context, name));
    let reply = ask!(client, "LOCK.MACQUIRE", 2, &names[0], &names[1], 30_000, "OWNER", "me");
    let (fences, _) = redfence_tests::expect::multi_granted(&reply, 2);
    ask!(client, "LOCK.MRELEASE", 2, &names[0], fences[0], &names[1], fences[1]);
    for (watcher, fence) in watchers.iter_mut().zip(fences) {
        watcher.next_is("acquired", fence, "me");
        watcher.next_is("released", fence, "me");
    }
}

/// Every `queued` has its end: `acquired`, or `abandoned` where the owner held the lock all the time.
fn a_place_in_line_for_what_is_held_ends(context: &Context) {
    let mut client = context.client();
    let base = context.name("multi");
    let names = [format!("{{{base}}}a"), format!("{{{base}}}b")];
    let mut watchers = names.each_ref().map(|name| Watcher::of(context, name));
    let mine = client.acquire_as(&names[0], 30_000, "me");
    let other = client.acquire_as(&names[1], 30_000, "other");
    let mut waiter = context.client();
    waiter.send(&words!["LOCK.MACQUIRE", 2, &names[0], &names[1], 30_000, "WAIT", 20_000, "OWNER", "me"]);
    watchers[0].next_is("acquired", mine.fence, "me");
    watchers[0].next_is("queued", mine.fence, "me");
    client.release(&names[1], other.fence);
    let (fences, _) = redfence_tests::expect::multi_granted(&waiter.receive(), 2);
    assert_eq!(fences[0], mine.fence);
    watchers[0].next_is("abandoned", mine.fence, "me");
    for (kind, fence, owner) in [
        ("acquired", other.fence, "other"),
        ("queued", other.fence, "me"),
        ("released", other.fence, "other"),
        ("acquired", fences[1], "me"),
    ] {
        watchers[1].next_is(kind, fence, owner);
    }
}

fn unsubscribed_hears_no_more(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let grant = client.acquire_as(&name, 30_000, "me");
    watcher.next_is("acquired", grant.fence, "me");
    let channel = format!("__lock__:{name}");
    watcher.client.send(&words!["UNSUBSCRIBE", &channel]);
    let expected = vec![Value::bulk("unsubscribe"), Value::bulk(&channel), Value::Integer(0)];
    assert_eq!(watcher.client.receive(), pushed(context.protocol(), expected));
    client.release(&name, grant.fence);
    watcher.hears_nothing();
    // It is an ordinary connection again.
    watcher.client.acquire(&name, 30_000);
}

fn a_sessions_end_is_told(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let mut watcher = Watcher::of(context, &name);
    let session = ask!(client, "LOCK.SESSION", "OPEN", 30_000).text();
    let reply = ask!(client, "LOCK.ACQUIRE", &name, 0, "OWNER", "me", "SESSION", &session);
    let grant = redfence_tests::expect::granted(&reply);
    ask!(client, "LOCK.SESSION", "CLOSE", &session).integer();
    watcher.next_is("acquired", grant.fence, "me");
    let deadline = Instant::now() + REPLY_WITHIN;
    while watcher.next().1["event"].as_str() != Some("session_ended") {
        assert!(Instant::now() < deadline, "session_ended was never told");
    }
}
