//! Queues without Redis: order, retries, multi-locks, limits, deadlines.

use super::*;

fn wait_request(resources: &[&str], owner: &str) -> WaitRequest {
    WaitRequest {
        db: 0,
        resources: resources.iter().map(|name| Bytes::copy_from_slice(name.as_bytes())).collect(),
        multi: resources.len() > 1,
        owner: Bytes::copy_from_slice(owner.as_bytes()),
        value: Bytes::new(),
    }
}

fn place(resource: &str) -> LockKey {
    LockKey { db: 0, resource: Bytes::copy_from_slice(resource.as_bytes()) }
}

fn join(
    wait_queues: &mut WaitQueues,
    resources: &[&str],
    owner: &str,
    client: usize,
) -> Result<bool, QueueFull> {
    wait_queues.join(wait_request(resources, owner), ClientId(client), 1000, 0, 100 + client as u64)
}

fn next_owner(wait_queues: &WaitQueues, resource: &str) -> Option<String> {
    wait_queues
        .next(&place(resource))
        .map(|(_, waiter)| String::from_utf8_lossy(&waiter.wait_request.owner).into_owned())
}

fn take_next(wait_queues: &mut WaitQueues, resource: &str) -> Option<String> {
    let id = wait_queues.next(&place(resource))?.0;
    wait_queues.take(id).map(|waiter| String::from_utf8_lossy(&waiter.wait_request.owner).into_owned())
}

#[test]
fn first_come_first_served() {
    let mut wait_queues = WaitQueues::default();
    for (client, owner) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(join(&mut wait_queues, &["r"], owner, client), Ok(true));
    }
    wait_queues.leave(ClientId(1));
    assert_eq!(take_next(&mut wait_queues, "r").as_deref(), Some("a"));
    assert_eq!(take_next(&mut wait_queues, "r").as_deref(), Some("c"));
    assert_eq!(take_next(&mut wait_queues, "r"), None);
    assert!(
        wait_queues.waiters.is_empty()
            && wait_queues.wait_queues.is_empty()
            && wait_queues.clients.is_empty()
            && wait_queues.give_ups.is_empty()
    );
}

#[test]
fn a_retry_keeps_its_place_and_its_clients_share_it() {
    let mut wait_queues = WaitQueues::default();
    assert_eq!(join(&mut wait_queues, &["r"], "a", 1), Ok(true));
    assert_eq!(join(&mut wait_queues, &["r"], "b", 2), Ok(true));
    assert_eq!(join(&mut wait_queues, &["r"], "a", 3), Ok(false));
    assert_eq!(wait_queues.len(0, b"r"), 2);
    assert!(matches!(wait_queues.leave(ClientId(1)), Some(LeaveOutcome::WaiterStays)));
    let (id, waiter) = wait_queues.next(&place("r")).expect("a is next");
    assert_eq!(waiter.clients.len(), 1);
    assert_eq!(wait_queues.take(id).map(|waiter| waiter.clients[0].id), Some(ClientId(3)));
    assert_eq!(next_owner(&wait_queues, "r").as_deref(), Some("b"));
}

#[test]
fn a_multi_lock_is_next_when_it_is_first_in_every_line() {
    let mut wait_queues = WaitQueues::default();
    join(&mut wait_queues, &["x"], "single", 1).expect("room");
    join(&mut wait_queues, &["x", "y"], "multi", 2).expect("room");
    join(&mut wait_queues, &["y"], "behind", 3).expect("room");
    assert_eq!(next_owner(&wait_queues, "y"), None, "the multi-lock heads y, but waits in x");
    assert_eq!(take_next(&mut wait_queues, "x").as_deref(), Some("single"));
    assert_eq!(next_owner(&wait_queues, "y").as_deref(), Some("multi"));
    assert_eq!(take_next(&mut wait_queues, "x").as_deref(), Some("multi"));
    assert_eq!(next_owner(&wait_queues, "y").as_deref(), Some("behind"));
    assert_eq!(next_owner(&wait_queues, "x"), None);
}

#[test]
fn the_same_owner_with_other_locks_is_another_wish() {
    let mut wait_queues = WaitQueues::default();
    join(&mut wait_queues, &["x"], "a", 1).expect("room");
    assert_eq!(join(&mut wait_queues, &["x", "y"], "a", 2), Ok(true));
    assert_eq!(join(&mut wait_queues, &["x", "y"], "a", 3), Ok(false), "a retry of the multi-lock");
    assert_eq!(join(&mut wait_queues, &["y", "x"], "a", 4), Ok(false), "in whatever order");
    assert_eq!(wait_queues.len(0, b"x"), 2);
}

#[test]
fn a_line_has_an_end() {
    let mut wait_queues = WaitQueues::default();
    for client in 0..WAITERS_PER_LOCK_MAX {
        assert_eq!(join(&mut wait_queues, &["r"], &client.to_string(), client), Ok(true));
    }
    assert_eq!(join(&mut wait_queues, &["r"], "one more", 99_999), Err(QueueFull));
    assert_eq!(join(&mut wait_queues, &["other", "r"], "one more", 99_999), Err(QueueFull));
    assert_eq!(wait_queues.len(0, b"other"), 0, "a refused wait_request stands in no line");
    assert_eq!(join(&mut wait_queues, &["r"], "7", 100_000), Ok(false), "a retry needs no new place");
}

#[test]
fn a_ticket_has_an_end() {
    let mut wait_queues = WaitQueues::default();
    for client in 0..CLIENTS_PER_WAITER_MAX {
        join(&mut wait_queues, &["r"], "a", client).expect("room");
    }
    assert_eq!(join(&mut wait_queues, &["r"], "a", 99), Err(QueueFull));
}

#[test]
fn deadlines_come_in_order() {
    let mut wait_queues = WaitQueues::default();
    join(&mut wait_queues, &["r"], "a", 5).expect("room");
    join(&mut wait_queues, &["r"], "b", 3).expect("room");
    assert_eq!(wait_queues.next_due_in_ms(0, 0), Some(103));
    assert_eq!(wait_queues.due_give_ups(103, 10), [ClientId(3)]);
    assert_eq!(wait_queues.due_give_ups(105, 10), [ClientId(3), ClientId(5)]);
    assert_eq!(wait_queues.due_give_ups(105, 1), [ClientId(3)]);
    wait_queues.watch(&place("r"), Some(1_000));
    assert_eq!(wait_queues.next_due_in_ms(0, 990), Some(11));
    assert!(
        wait_queues.take_due_watches(1_000, 10).is_empty(),
        "Redis still has the key in its last millisecond"
    );
    assert_eq!(wait_queues.take_due_watches(1_001, 10), [place("r")]);
    assert!(wait_queues.take_due_watches(1_001, 10).is_empty());
}

#[test]
fn a_watch_ends_with_its_line() {
    let mut wait_queues = WaitQueues::default();
    join(&mut wait_queues, &["r"], "a", 1).expect("room");
    wait_queues.watch(&place("r"), Some(1_000));
    wait_queues.watch(&place("r"), Some(500));
    assert!(matches!(wait_queues.leave(ClientId(1)), Some(LeaveOutcome::WaiterGone(_))));
    assert_eq!(wait_queues.next_due_in_ms(0, 0), None);
    wait_queues.watch(&place("r"), Some(1_000));
    assert!(wait_queues.watches.is_empty(), "nobody waits there any more");
}

#[test]
fn places_are_of_one_db_or_of_all() {
    let mut wait_queues = WaitQueues::default();
    join(&mut wait_queues, &["r"], "a", 1).expect("room");
    wait_queues.join(WaitRequest { db: 3, ..wait_request(&["r"], "b") }, ClientId(2), 1, 0, 1).expect("room");
    assert_eq!(wait_queues.lock_keys(Some(3)), [LockKey { db: 3, ..place("r") }]);
    assert_eq!(wait_queues.lock_keys(None).len(), 2);
    assert_eq!(next_owner(&wait_queues, "r").as_deref(), Some("a"));
}
