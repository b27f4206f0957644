//! Lost locks: SUBSCRIBE to `__lost__:<resource>`, one JSON object for every lock that ends without its release.

use std::time::Duration;

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::Client;
use redfence_tests::resp::Value;
use redfence_tests::{ask, words};
use serde_json::{json, Value as Json};

use crate::topic::cases;

cases! {
    Abilities::EVENTS => [
        an_expired_lock_is_told,
        an_expiry_tells_who_got_the_lock,
        a_forced_lock_is_told,
        a_force_release_tells_who_got_the_lock,
        a_release_is_no_loss,
    ],
    Abilities::EVENTS.and(Abilities::PLAIN_KEYS) => [a_deleted_lock_is_told],
}

struct LossWatcher {
    client: Client,
    resource: String,
}

impl LossWatcher {
    fn of(context: &Context, resource: &str) -> LossWatcher {
        let mut client = context.client();
        let channel = format!("__lost__:{resource}");
        client.send(&words!["SUBSCRIBE", &channel]);
        client.receive();
        LossWatcher { client, resource: resource.to_owned() }
    }

    /// The next message has these fields and no others; gives back the successor.
    fn next_is(&mut self, fence: i64, cause: &str) -> Option<i64> {
        let message = self.client.receive();
        let items = if let Value::Push(items) = &message { items.as_slice() } else { message.array() };
        let json: Json = serde_json::from_slice(items[2].bytes()).expect("JSON");
        let successor = &json["successor"];
        let expected = json!({
            "event": "lock-lost", "resource": self.resource, "fence": fence, "cause": cause, "successor": successor,
        });
        assert_eq!(json, expected);
        successor.as_i64()
    }

    fn hears_nothing(&mut self) {
        self.client.hears_nothing_for(Duration::from_millis(80));
    }
}

fn an_expired_lock_is_told(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let mut watcher = LossWatcher::of(context, &name);
    let first = client.acquire_as(&name, 60_000, "first");
    client.expire(&name, first.fence);
    // A script has no timer: the Lua library tells when the lock is next taken.
    let second = client.acquire_as(&name, 30_000, "second");
    let successor = watcher.next_is(first.fence, "expired");
    assert!(successor.is_none_or(|successor| successor == second.fence), "{successor:?}");
    watcher.hears_nothing();
}

fn an_expiry_tells_who_got_the_lock(context: &Context) {
    let (mut holder, mut waiter, name) = (context.client(), context.client(), context.name("lock"));
    let mut watcher = LossWatcher::of(context, &name);
    let first = holder.acquire_as(&name, 60_000, "first");
    waiter.start_waiting(&name, 30_000, 30_000, "second");
    holder.await_waiters(&name, 1);
    holder.end_soon(&name, first.fence, 50);
    let second = waiter.receive_grant();
    assert_eq!(watcher.next_is(first.fence, "expired"), Some(second.fence));
    watcher.hears_nothing();
}

fn a_forced_lock_is_told(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let mut watcher = LossWatcher::of(context, &name);
    let grant = client.acquire_as(&name, 60_000, "me");
    assert_eq!(ask!(client, "LOCK.FORCERELEASE", &name).integer(), 1);
    assert_eq!(watcher.next_is(grant.fence, "forced"), None);
    assert_eq!(ask!(client, "LOCK.FORCERELEASE", &name).integer(), 0);
    watcher.hears_nothing();
}

fn a_force_release_tells_who_got_the_lock(context: &Context) {
    let (mut holder, mut waiter, name) = (context.client(), context.client(), context.name("lock"));
    let mut watcher = LossWatcher::of(context, &name);
    let first = holder.acquire_as(&name, 60_000, "first");
    waiter.start_waiting(&name, 30_000, 30_000, "second");
    holder.await_waiters(&name, 1);
    assert_eq!(ask!(holder, "LOCK.FORCERELEASE", &name).integer(), 1);
    let second = waiter.receive_grant();
    assert_eq!(watcher.next_is(first.fence, "forced"), Some(second.fence));
}

fn a_release_is_no_loss(context: &Context) {
    let (mut holder, mut waiter, name) = (context.client(), context.client(), context.name("lock"));
    let mut watcher = LossWatcher::of(context, &name);
    let first = holder.acquire_as(&name, 60_000, "first");
    waiter.start_waiting(&name, 30_000, 30_000, "second");
    holder.await_waiters(&name, 1);
    holder.renew(&name, first.fence, 30_000);
    holder.release(&name, first.fence);
    let second = waiter.receive_grant();
    waiter.release(&name, second.fence);
    watcher.hears_nothing();
}

fn a_deleted_lock_is_told(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let mut watcher = LossWatcher::of(context, &name);
    let first = client.acquire_as(&name, 60_000, "first");
    assert_eq!(ask!(client, "DEL", &name).integer(), 1);
    let second = client.acquire_as(&name, 30_000, "second");
    let successor = watcher.next_is(first.fence, "deleted");
    assert!(successor.is_none_or(|successor| successor == second.fence), "{successor:?}");
    client.release(&name, second.fence);
    watcher.hears_nothing();
}
