//! FENCE.*: fencing at a resource that lives in Redis itself.

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect, words};

use crate::topic::cases;

cases! {
    Abilities::FENCING => [
        the_mark_of_nothing_is_zero,
        check_raises_the_mark,
        a_stale_fence_is_refused,
        the_same_fence_passes_again,
        get_changes_nothing,
        call_runs_the_command,
        a_stale_call_does_nothing,
        call_raises_the_mark,
        call_passes_errors_on,
        a_locks_fence_guards_its_resource,
        the_mark_is_apart_from_the_lock,
        a_fence_from_the_future_is_refused,
        a_command_that_cannot_run_raises_nothing,
        a_fence_of_the_next_minute_passes,
        marks_of_names_with_braces,
        call_keeps_binary_arguments,
    ],
}

fn the_mark_of_nothing_is_zero(context: &Context) {
    let mut client = context.client();
    assert_eq!(ask!(client, "FENCE.GET", context.name("mark")), Value::Integer(0));
}

fn check_raises_the_mark(context: &Context) {
    let mut client = context.client();
    let name = context.name("mark");
    for fence in [1, 42, 43, 1_000_000_000_000_000] {
        assert_eq!(ask!(client, "FENCE.CHECK", &name, fence), Value::Integer(1));
        assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(fence));
    }
}

fn a_stale_fence_is_refused(context: &Context) {
    let mut client = context.client();
    let name = context.name("mark");
    assert_eq!(ask!(client, "FENCE.CHECK", &name, 43), Value::Integer(1));
    assert_eq!(ask!(client, "FENCE.CHECK", &name, 42), Value::Integer(0));
    // Compared as numbers, not as text: "5" sorts behind "43".
    assert_eq!(ask!(client, "FENCE.CHECK", &name, 5), Value::Integer(0));
    assert_eq!(ask!(client, "FENCE.CHECK", &name, 100), Value::Integer(1));
    assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(100));
}

fn the_same_fence_passes_again(context: &Context) {
    let mut client = context.client();
    let name = context.name("mark");
    for _ in 0..3 {
        assert_eq!(ask!(client, "FENCE.CHECK", &name, 7), Value::Integer(1));
    }
}

fn get_changes_nothing(context: &Context) {
    let mut client = context.client();
    let name = context.name("mark");
    for _ in 0..3 {
        assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(0));
    }
    assert_eq!(ask!(client, "FENCE.CHECK", &name, 1), Value::Integer(1));
}

fn call_runs_the_command(context: &Context) {
    let mut client = context.client();
    let (name, data) = tagged(context);
    let reply = ask!(client, "FENCE.CALL", &name, 42, "SET", &data, "value");
    assert_eq!(reply, Value::Simple(b"OK".to_vec()));
    assert_eq!(ask!(client, "FENCE.CALL", &name, 42, "GET", &data), Value::bulk("value"));
    assert_eq!(ask!(client, "FENCE.CALL", &name, 42, "APPEND", &data, "s"), Value::Integer(6));
    assert_eq!(ask!(client, "GET", &data), Value::bulk("values"));
    let missing = ask!(client, "FENCE.CALL", &name, 42, "GET", format!("{data}none"));
    assert_eq!(missing, context.protocol().nil());
}

/// A resource and a data key in one slot.
fn tagged(context: &Context) -> (String, String) {
    let tag = context.name("mark");
    (format!("{{{tag}}}"), format!("{{{tag}}}:data"))
}

fn a_stale_call_does_nothing(context: &Context) {
    let mut client = context.client();
    let (name, data) = tagged(context);
    assert_eq!(ask!(client, "FENCE.CHECK", &name, 43), Value::Integer(1));
    let reply = ask!(client, "FENCE.CALL", &name, 42, "SET", &data, "stale");
    assert_eq!(reply, Value::Error("STALE fence 42 is behind 43".into()));
    assert_eq!(ask!(client, "EXISTS", &data), Value::Integer(0));
    assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(43));
}

fn call_raises_the_mark(context: &Context) {
    let mut client = context.client();
    let (name, data) = tagged(context);
    ask!(client, "FENCE.CALL", &name, 50, "SET", &data, "new");
    assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(50));
    expect::error(&ask!(client, "FENCE.CALL", &name, 49, "SET", &data, "old"), "STALE");
    assert_eq!(ask!(client, "GET", &data), Value::bulk("new"));
}

fn call_passes_errors_on(context: &Context) {
    let mut client = context.client();
    let (name, data) = tagged(context);
    ask!(client, "SET", &data, "text");
    expect::error(&ask!(client, "FENCE.CALL", &name, 7, "INCR", &data), "ERR");
    expect::error(&ask!(client, "FENCE.CALL", &name, 7, "LPUSH", &data, "x"), "WRONGTYPE");
    assert!(ask!(client, "FENCE.CALL", &name, 7, "NOSUCHCOMMAND", &data).is_error());
    assert_eq!(ask!(client, "FENCE.CALL", &name, 7, "GET", &data), Value::bulk("text"));
}

fn a_locks_fence_guards_its_resource(context: &Context) {
    let mut client = context.client();
    let (name, data) = tagged(context);
    let first = client.acquire_and_expire(&name);
    let second = client.acquire(&name, 30_000).fence;
    let reply = ask!(client, "FENCE.CALL", &name, second, "SET", &data, "second");
    assert_eq!(reply, Value::Simple(b"OK".to_vec()));
    let reply = ask!(client, "FENCE.CALL", &name, first, "SET", &data, "first");
    assert_eq!(reply, Value::Error(format!("STALE fence {first} is behind {second}")));
    assert_eq!(ask!(client, "GET", &data), Value::bulk("second"));
}

fn the_mark_is_apart_from_the_lock(context: &Context) {
    let mut client = context.client();
    let name = context.name("mark");
    let grant = client.acquire(&name, 30_000);
    assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(0), "a grant raises no mark");
    assert_eq!(ask!(client, "FENCE.CHECK", &name, grant.fence), Value::Integer(1));
    client.release(&name, grant.fence);
    assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(grant.fence), "a release lowers none");
}

fn wall_us() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("a clock after 1970").as_micros() as i64
}

/// It would make every real fence stale.
fn a_fence_from_the_future_is_refused(context: &Context) {
    let mut client = context.client();
    let (name, data) = tagged(context);
    for future in [expect::FENCE_BOUND - 1, wall_us() + 2 * 3_600_000_000] {
        expect::error(&ask!(client, "FENCE.CHECK", &name, future), "ERR");
        expect::error(&ask!(client, "FENCE.CALL", &name, future, "SET", &data, "x"), "ERR");
    }
    assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(0));
    assert_eq!(ask!(client, "EXISTS", &data), Value::Integer(0));
    let grant = client.acquire(&name, 30_000);
    assert_eq!(ask!(client, "FENCE.CHECK", &name, grant.fence), Value::Integer(1));
}

/// Counters run ahead of the clock a little, and clocks differ.
fn a_fence_of_the_next_minute_passes(context: &Context) {
    let mut client = context.client();
    let name = context.name("mark");
    let soon = wall_us() + 20_000_000;
    assert_eq!(ask!(client, "FENCE.CHECK", &name, soon), Value::Integer(1));
    assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(soon), "to the last digit");
    assert_eq!(ask!(client, "FENCE.CHECK", &name, soon - 1), Value::Integer(0));
}

fn a_command_that_cannot_run_raises_nothing(context: &Context) {
    let mut client = context.client();
    let (name, data) = tagged(context);
    assert!(ask!(client, "FENCE.CALL", &name, 9, "NOSUCHCOMMAND", &data).is_error());
    assert!(ask!(client, "FENCE.CALL", &name, 9, "GET", &data, "one word too many").is_error());
    // The mark would rise in another database than it is looked up in.
    expect::error_naming(&ask!(client, "FENCE.CALL", &name, 9, "SELECT", "3"), "ERR", "cannot run 'select'");
    assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(0));
    assert_eq!(ask!(client, "FENCE.CHECK", &name, 3), Value::Integer(1));
}

fn marks_of_names_with_braces(context: &Context) {
    let mut client = context.client();
    let base = context.name("mark");
    for (fence, shape) in ["{%}", "a{%}b", "%}", "{%", "{}%", "%"].iter().enumerate() {
        let name = shape.replace('%', &base);
        assert_eq!(ask!(client, "FENCE.GET", &name), Value::Integer(0), "{name} has a mark of its own");
        assert_eq!(ask!(client, "FENCE.CHECK", &name, fence + 1), Value::Integer(1));
    }
}

fn call_keeps_binary_arguments(context: &Context) {
    let mut client = context.client();
    let (name, data) = tagged(context);
    let bytes: &[u8] = b"\0\r\n\xff\xfe";
    client.ask(&words!["FENCE.CALL", &name, 7, "SET", &data, bytes]);
    assert_eq!(ask!(client, "GET", &data), Value::Bulk(bytes.to_vec()));
}
