//! A wait that would close a circle of sessions is refused at once (Tier 2).

use std::time::{Duration, Instant};

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::Client;
use redfence_tests::{ask, expect, words};

use crate::topic::cases;

cases! {
    Abilities::CORRECTNESS => [
        a_circle_of_two_is_refused,
        a_circle_of_three_is_refused,
        the_refusal_changes_nothing,
        owners_without_a_session_take_no_part,
        a_try_is_never_a_deadlock,
        a_chain_is_no_circle,
        waiting_for_oneself_is_no_circle,
        a_circle_over_one_name_is_refused,
        threads_of_two_sessions_take_turns,
    ],
}

struct Party {
    client: Client,
    session: String,
}

impl Party {
    fn new(context: &Context) -> Party {
        let mut client = context.client();
        let session = ask!(client, "LOCK.SESSION", "OPEN", 60_000).text();
        Party { client, session }
    }

    fn take(&mut self, name: &str) -> i64 {
        expect::granted(&ask!(self.client, "LOCK.ACQUIRE", name, 0, "SESSION", &self.session)).fence
    }

    fn start_waiting(&mut self, name: &str) {
        self.client.send(&words!["LOCK.ACQUIRE", name, 0, "WAIT", 30_000, "SESSION", &self.session]);
    }
}

fn a_circle_of_two_is_refused(context: &Context) {
    let (mut one, mut other, mut watcher) = (Party::new(context), Party::new(context), context.client());
    let (left, right) = (context.name("left"), context.name("right"));
    one.take(&left);
    let right_fence = other.take(&right);
    one.start_waiting(&right);
    watcher.await_waiters(&right, 1);
    let start = Instant::now();
    other.start_waiting(&left);
    let text = expect::error(&other.client.receive(), "DEADLOCK");
    assert!(start.elapsed() < Duration::from_secs(10), "refused at once, not after the wait");
    assert!(text.contains(&one.session) || text.contains(&other.session), "it names the circle: {text}");
    other.client.release(&right, right_fence);
    one.client.receive_grant();
}

fn a_circle_of_three_is_refused(context: &Context) {
    let mut parties: Vec<Party> = (0..3).map(|_| Party::new(context)).collect();
    let names: Vec<String> = (0..3).map(|_| context.name("lock")).collect();
    let mut watcher = context.client();
    for (party, name) in parties.iter_mut().zip(&names) {
        party.take(name);
    }
    for index in 0..2 {
        parties[index].start_waiting(&names[index + 1]);
        watcher.await_waiters(&names[index + 1], 1);
    }
    parties[2].start_waiting(&names[0]);
    expect::error(&parties[2].client.receive(), "DEADLOCK");
}

fn the_refusal_changes_nothing(context: &Context) {
    let (mut one, mut other, mut watcher) = (Party::new(context), Party::new(context), context.client());
    let (left, right) = (context.name("left"), context.name("right"));
    let left_fence = one.take(&left);
    let right_fence = other.take(&right);
    one.start_waiting(&right);
    watcher.await_waiters(&right, 1);
    other.start_waiting(&left);
    expect::error(&other.client.receive(), "DEADLOCK");
    let (at_left, at_right) = (watcher.info(&left), watcher.info(&right));
    assert_eq!((at_left.fence, at_left.waiters), (left_fence, 0));
    assert_eq!((at_right.fence, at_right.waiters), (right_fence, 1));
}

fn owners_without_a_session_take_no_part(context: &Context) {
    let (mut one, mut other, mut watcher) = (context.client(), context.client(), context.client());
    let (left, right) = (context.name("left"), context.name("right"));
    one.acquire(&left, 60_000);
    let right_fence = other.acquire(&right, 60_000).fence;
    one.start_waiting(&right, 60_000, 30_000, "one");
    watcher.await_waiters(&right, 1);
    other.start_waiting(&left, 60_000, 200, "other");
    other.receive_nil();
    other.release(&right, right_fence);
    one.receive_grant();
}

fn a_try_is_never_a_deadlock(context: &Context) {
    let (mut one, mut other, mut watcher) = (Party::new(context), Party::new(context), context.client());
    let (left, right) = (context.name("left"), context.name("right"));
    one.take(&left);
    other.take(&right);
    one.start_waiting(&right);
    watcher.await_waiters(&right, 1);
    let session = other.session.clone();
    let reply = ask!(other.client, "LOCK.ACQUIRE", &left, 0, "SESSION", &session);
    assert_eq!(reply, context.protocol().nil());
}

fn a_chain_is_no_circle(context: &Context) {
    let (mut one, mut two, mut three) = (Party::new(context), Party::new(context), Party::new(context));
    let (left, right) = (context.name("left"), context.name("right"));
    let mut watcher = context.client();
    let left_fence = one.take(&left);
    let right_fence = two.take(&right);
    two.start_waiting(&left);
    watcher.await_waiters(&left, 1);
    three.start_waiting(&right);
    watcher.await_waiters(&right, 1);
    three.client.hears_nothing_for(Duration::from_millis(30));
    one.client.release(&left, left_fence);
    two.client.receive_grant();
    two.client.release(&right, right_fence);
    three.client.receive_grant();
}

fn waiting_for_oneself_is_no_circle(context: &Context) {
    let mut one = Party::new(context);
    let name = context.name("lock");
    one.take(&name);
    // Another thread of the same client may give it back: one session alone waits for nobody else.
    let session = one.session.clone();
    let reply = ask!(one.client, "LOCK.ACQUIRE", &name, 0, "WAIT", 80, "SESSION", &session);
    assert_eq!(reply, context.protocol().nil());
}

fn a_circle_over_one_name_is_refused(context: &Context) {
    for (part, all) in
        [(&["SHARED"][..], &[][..]), (&["PERMITS", "1", "OF", "3"], &["PERMITS", "3", "OF", "3"])]
    {
        let (mut one, mut other, mut watcher) = (Party::new(context), Party::new(context), context.client());
        let name = context.name("lock");
        let ask = |party: &Party, wait_ms: &str, kind: &[&str]| {
            let words = ["LOCK.ACQUIRE", &name, "0", "WAIT", wait_ms, "SESSION", &party.session];
            words.iter().chain(kind).map(|word| word.as_bytes().to_vec()).collect::<Vec<Vec<u8>>>()
        };
        let first = ask(&one, "0", part);
        one.client.send(&first);
        let fence = one.client.receive_grant().fence;
        let whole = ask(&other, "30000", all);
        other.client.send(&whole);
        watcher.await_waiters(&name, 1);
        let more = ask(&one, "30000", part);
        one.client.send(&more);
        expect::error(&one.client.receive(), "DEADLOCK");
        one.client.release(&name, fence);
        other.client.receive_grant();
    }
}

fn threads_of_two_sessions_take_turns(context: &Context) {
    let (mut one, mut other, mut watcher) = (Party::new(context), Party::new(context), context.client());
    let name = context.name("lock");
    let fence = one.take(&name);
    other.start_waiting(&name);
    watcher.await_waiters(&name, 1);
    one.start_waiting(&name);
    watcher.await_waiters(&name, 2);
    watcher.release(&name, fence);
    let fence = other.client.receive_grant().fence;
    watcher.release(&name, fence);
    one.client.receive_grant();
}
