//! Lines without Redis: order, retries, multi-locks, limits, deadlines.

use super::*;

fn wish(resources: &[&str], owner: &str) -> Wish {
    Wish {
        db: 0,
        resources: resources.iter().map(|name| Bytes::copy_from_slice(name.as_bytes())).collect(),
        multi: resources.len() > 1,
        owner: Bytes::copy_from_slice(owner.as_bytes()),
    }
}

fn place(resource: &str) -> Place {
    Place { db: 0, resource: Bytes::copy_from_slice(resource.as_bytes()) }
}

fn join(lines: &mut Lines, resources: &[&str], owner: &str, client: usize) -> Result<bool, Full> {
    lines.join(wish(resources, owner), ClientId(client), 1000, 0, 100 + client as u64)
}

fn next_owner(lines: &Lines, resource: &str) -> Option<String> {
    lines.next(&place(resource)).map(|(_, ticket)| String::from_utf8_lossy(&ticket.wish.owner).into_owned())
}

fn take_next(lines: &mut Lines, resource: &str) -> Option<String> {
    let id = lines.next(&place(resource))?.0;
    lines.take(id).map(|ticket| String::from_utf8_lossy(&ticket.wish.owner).into_owned())
}

#[test]
fn first_come_first_served() {
    let mut lines = Lines::default();
    for (client, owner) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(join(&mut lines, &["r"], owner, client), Ok(true));
    }
    lines.leave(ClientId(1));
    assert_eq!(take_next(&mut lines, "r").as_deref(), Some("a"));
    assert_eq!(take_next(&mut lines, "r").as_deref(), Some("c"));
    assert_eq!(take_next(&mut lines, "r"), None);
    assert!(
        lines.tickets.is_empty()
            && lines.lines.is_empty()
            && lines.clients.is_empty()
            && lines.give_ups.is_empty()
    );
}

#[test]
fn a_retry_keeps_its_place_and_its_clients_share_it() {
    let mut lines = Lines::default();
    assert_eq!(join(&mut lines, &["r"], "a", 1), Ok(true));
    assert_eq!(join(&mut lines, &["r"], "b", 2), Ok(true));
    assert_eq!(join(&mut lines, &["r"], "a", 3), Ok(false));
    assert_eq!(lines.len(0, b"r"), 2);
    assert!(matches!(lines.leave(ClientId(1)), Some(Left::TicketStays)));
    let (id, ticket) = lines.next(&place("r")).expect("a is next");
    assert_eq!(ticket.clients.len(), 1);
    assert_eq!(lines.take(id).map(|ticket| ticket.clients[0].id), Some(ClientId(3)));
    assert_eq!(next_owner(&lines, "r").as_deref(), Some("b"));
}

#[test]
fn a_multi_lock_is_next_when_it_is_first_in_every_line() {
    let mut lines = Lines::default();
    join(&mut lines, &["x"], "single", 1).expect("room");
    join(&mut lines, &["x", "y"], "multi", 2).expect("room");
    join(&mut lines, &["y"], "behind", 3).expect("room");
    assert_eq!(next_owner(&lines, "y"), None, "the multi-lock heads y, but waits in x");
    assert_eq!(take_next(&mut lines, "x").as_deref(), Some("single"));
    assert_eq!(next_owner(&lines, "y").as_deref(), Some("multi"));
    assert_eq!(take_next(&mut lines, "x").as_deref(), Some("multi"));
    assert_eq!(next_owner(&lines, "y").as_deref(), Some("behind"));
    assert_eq!(next_owner(&lines, "x"), None);
}

#[test]
fn the_same_owner_with_other_locks_is_another_wish() {
    let mut lines = Lines::default();
    join(&mut lines, &["x"], "a", 1).expect("room");
    assert_eq!(join(&mut lines, &["x", "y"], "a", 2), Ok(true));
    assert_eq!(join(&mut lines, &["x", "y"], "a", 3), Ok(false), "a retry of the multi-lock");
    assert_eq!(join(&mut lines, &["y", "x"], "a", 4), Ok(false), "in whatever order");
    assert_eq!(lines.len(0, b"x"), 2);
}

#[test]
fn a_line_has_an_end() {
    let mut lines = Lines::default();
    for client in 0..WAITERS_PER_LOCK_MAX {
        assert_eq!(join(&mut lines, &["r"], &client.to_string(), client), Ok(true));
    }
    assert_eq!(join(&mut lines, &["r"], "one more", 99_999), Err(Full));
    assert_eq!(join(&mut lines, &["other", "r"], "one more", 99_999), Err(Full));
    assert_eq!(lines.len(0, b"other"), 0, "a refused wish stands in no line");
    assert_eq!(join(&mut lines, &["r"], "7", 100_000), Ok(false), "a retry needs no new place");
}

#[test]
fn a_ticket_has_an_end() {
    let mut lines = Lines::default();
    for client in 0..CLIENTS_PER_TICKET_MAX {
        join(&mut lines, &["r"], "a", client).expect("room");
    }
    assert_eq!(join(&mut lines, &["r"], "a", 99), Err(Full));
}

#[test]
fn deadlines_come_in_order() {
    let mut lines = Lines::default();
    join(&mut lines, &["r"], "a", 5).expect("room");
    join(&mut lines, &["r"], "b", 3).expect("room");
    assert_eq!(lines.next_due_in_ms(0, 0), Some(103));
    assert_eq!(lines.due_give_ups(103, 10), [ClientId(3)]);
    assert_eq!(lines.due_give_ups(105, 10), [ClientId(3), ClientId(5)]);
    assert_eq!(lines.due_give_ups(105, 1), [ClientId(3)]);
    lines.watch(&place("r"), Some(1_000));
    assert_eq!(lines.next_due_in_ms(0, 990), Some(11));
    assert!(lines.take_due_watches(1_000, 10).is_empty(), "Redis still has the key in its last millisecond");
    assert_eq!(lines.take_due_watches(1_001, 10), [place("r")]);
    assert!(lines.take_due_watches(1_001, 10).is_empty());
}

#[test]
fn a_watch_ends_with_its_line() {
    let mut lines = Lines::default();
    join(&mut lines, &["r"], "a", 1).expect("room");
    lines.watch(&place("r"), Some(1_000));
    lines.watch(&place("r"), Some(500));
    assert!(matches!(lines.leave(ClientId(1)), Some(Left::TicketGone(_))));
    assert_eq!(lines.next_due_in_ms(0, 0), None);
    lines.watch(&place("r"), Some(1_000));
    assert!(lines.watches.is_empty(), "nobody waits there any more");
}

#[test]
fn places_are_of_one_db_or_of_all() {
    let mut lines = Lines::default();
    join(&mut lines, &["r"], "a", 1).expect("room");
    lines.join(Wish { db: 3, ..wish(&["r"], "b") }, ClientId(2), 1, 0, 1).expect("room");
    assert_eq!(lines.places(Some(3)), [Place { db: 3, ..place("r") }]);
    assert_eq!(lines.places(None).len(), 2);
    assert_eq!(next_owner(&lines, "r").as_deref(), Some("a"));
}
