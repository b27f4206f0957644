//! The shapes of the contract's replies, each checked to the last type.
//!
//! A function here takes a reply apart or panics with the whole reply in the message. It never accepts two
//! spellings of one answer: that is what "the same answers from all backends" means.

use crate::resp::{Protocol, Value};

/// Fences stay below this.
pub const FENCE_BOUND: i64 = 1 << 53;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub fence: i64,
    pub ttl_ms: i64,
}

/// `[fence, ttl]`
#[track_caller]
pub fn granted(reply: &Value) -> Grant {
    match reply {
        Value::Array(items) => match items.as_slice() {
            [Value::Integer(fence), Value::Integer(ttl_ms)] => {
                assert!((1..FENCE_BOUND).contains(fence), "fence {fence} is not between 1 and 2^53");
                assert!(*ttl_ms >= 0, "granted ttl {ttl_ms}");
                Grant { fence: *fence, ttl_ms: *ttl_ms }
            }
            _ => panic!("expected [fence, ttl], got {reply:?}"),
        },
        _ => panic!("expected [fence, ttl], got {reply:?}"),
    }
}

/// The ttl in a reply: what was asked for, or what is left of it where a busy node tells its client late.
pub fn ttl_told(told_ms: i64, asked_ms: u64) {
    const LATE_MS_MAX: i64 = 10_000;
    let asked_ms = asked_ms as i64;
    assert!(
        told_ms <= asked_ms && told_ms >= (asked_ms - LATE_MS_MAX).max(1),
        "asked for {asked_ms} ms, told {told_ms}"
    );
}

/// `[[fence, …], ttl]`
#[track_caller]
pub fn multi_granted(reply: &Value, count: usize) -> (Vec<i64>, i64) {
    match reply {
        Value::Array(items) => match items.as_slice() {
            [Value::Array(fences), Value::Integer(ttl_ms)] => {
                assert_eq!(fences.len(), count, "one fence for each resource: {reply:?}");
                (fences.iter().map(Value::integer).collect(), *ttl_ms)
            }
            _ => panic!("expected [[fence, …], ttl], got {reply:?}"),
        },
        _ => panic!("expected [[fence, …], ttl], got {reply:?}"),
    }
}

/// `[1, "ok"]`
#[track_caller]
pub fn released(reply: &Value) {
    assert_eq!(*reply, Value::Array(vec![Value::Integer(1), Value::bulk("ok")]));
}

/// `[0, reason]`
#[track_caller]
pub fn refused(reply: &Value, reason: &str) {
    assert_eq!(*reply, Value::Array(vec![Value::Integer(0), Value::bulk(reason)]));
}

/// `[1, ttl]`
#[track_caller]
pub fn renewed(reply: &Value) -> i64 {
    match reply {
        Value::Array(items) => match items.as_slice() {
            [Value::Integer(1), Value::Integer(ttl_ms)] => *ttl_ms,
            _ => panic!("expected [1, ttl], got {reply:?}"),
        },
        _ => panic!("expected [1, ttl], got {reply:?}"),
    }
}

/// An error with this code; gives back the text after it.
#[track_caller]
pub fn error(reply: &Value, code: &str) -> String {
    match reply {
        Value::Error(line) => {
            let (first, text) = line.split_once(' ').unwrap_or((line, ""));
            assert_eq!(first, code, "expected -{code}, got -{line}");
            assert!(!text.is_empty(), "an error must say what to do: -{line}");
            text.to_owned()
        }
        other => panic!("expected -{code}, got {other:?}"),
    }
}

/// An error with this code whose text names `part` (a limit, a word).
#[track_caller]
pub fn error_naming(reply: &Value, code: &str, part: &str) {
    let text = error(reply, code);
    assert!(text.contains(part), "the error should name '{part}': -{code} {text}");
}

/// A map of the contract: a map in RESP3, the same pairs as a flat array in RESP2.
#[track_caller]
pub fn pairs(reply: &Value, protocol: Protocol) -> Vec<(String, Value)> {
    match (protocol, reply) {
        (Protocol::Resp3, Value::Map(pairs)) => {
            pairs.iter().map(|(key, value)| (key.text(), value.clone())).collect()
        }
        (Protocol::Resp2, Value::Array(items)) if items.len() % 2 == 0 => {
            items.chunks_exact(2).map(|pair| (pair[0].text(), pair[1].clone())).collect()
        }
        _ => panic!("expected a map as {} spells it, got {reply:?}", protocol.name()),
    }
}

/// A value that may be absent: `None` for the protocol's nil, never for another one.
#[track_caller]
fn optional(value: &Value, protocol: Protocol) -> Option<Value> {
    match value {
        Value::Null | Value::NullBulk | Value::NullArray => {
            assert_eq!(*value, protocol.nil(), "the wrong nil");
            None
        }
        present => Some(present.clone()),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub resource: Vec<u8>,
    pub tier: String,
    pub state: String,
    pub fence: i64,
    pub owner: Option<String>,
    pub session: Option<String>,
    pub ttl_ms: Option<i64>,
    pub waiters: i64,
}

const INFO_FIELDS: [&str; 13] = [
    "resource", "tier", "state", "fence", "owner", "session", "ttl", "waiters", "mode", "held_ms", "value",
    "max", "holders",
];
const HOLDER_FIELDS: [&str; 7] = ["owner", "fence", "session", "ttl", "held_ms", "permits", "value"];

#[track_caller]
pub fn info(reply: &Value, protocol: Protocol) -> Info {
    let mut pairs = pairs(reply, protocol);
    if protocol == Protocol::Resp3 {
        // A map has no order, and a Lua script cannot give it one; the flat array of RESP2 has.
        pairs.sort_by_key(|(field, _)| INFO_FIELDS.iter().position(|known| known == field));
    }
    let fields: Vec<&str> = pairs.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, INFO_FIELDS, "the fields of LOCK.INFO, in order");
    let value = |index: usize| &pairs[index].1;
    let info = Info {
        resource: value(0).bytes().to_vec(),
        tier: value(1).text(),
        state: value(2).text(),
        fence: value(3).integer(),
        owner: optional(value(4), protocol).map(|owner| owner.text()),
        session: optional(value(5), protocol).map(|session| session.text()),
        ttl_ms: optional(value(6), protocol).map(|ttl| ttl.integer()),
        waiters: value(7).integer(),
    };
    let holders = value(12).array();
    match info.state.as_str() {
        "held" => {
            assert!(info.owner.is_some() && info.ttl_ms.is_some(), "held, so it has owner and ttl: {info:?}");
            oldest_holder(&holders[0], &pairs, protocol);
        }
        "free" => {
            assert_eq!((&info.owner, &info.session, info.ttl_ms), (&None, &None, None), "free: {info:?}");
            assert!((8..12).all(|index| optional(value(index), protocol).is_none()), "free: {pairs:?}");
            assert!(holders.is_empty(), "free: {pairs:?}");
        }
        other => panic!("state is held or free, not {other}"),
    }
    info
}

/// The fields above `holders` show the oldest of them.
#[track_caller]
fn oldest_holder(holder: &Value, lock: &[(String, Value)], protocol: Protocol) {
    let holder = holder_pairs(holder, protocol);
    for (field, value) in holder.iter().filter(|(field, _)| !["fence", "permits"].contains(&field.as_str())) {
        let shown = lock.iter().find(|(known, _)| known == field).map(|(_, value)| value);
        assert_eq!(shown, Some(value), "{field} of the oldest holder");
    }
    let mode = lock[8].1.text();
    assert!(["exclusive", "shared", "permits"].contains(&mode.as_str()), "mode {mode}");
    assert_eq!(optional(&holder[5].1, protocol).is_some(), mode == "permits", "{holder:?}");
    assert_eq!(optional(&lock[11].1, protocol).is_some(), mode == "permits", "{lock:?}");
}

/// One row of `holders`.
#[track_caller]
pub fn holder_pairs(holder: &Value, protocol: Protocol) -> Vec<(String, Value)> {
    let mut pairs = pairs(holder, protocol);
    if protocol == Protocol::Resp3 {
        pairs.sort_by_key(|(field, _)| HOLDER_FIELDS.iter().position(|known| known == field));
    }
    let fields: Vec<&str> = pairs.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, HOLDER_FIELDS, "the fields of a holder, in order");
    pairs
}

/// `LOCK.QUEUE`: owners and how long they have waited.
#[track_caller]
pub fn queue(reply: &Value) -> Vec<(String, i64)> {
    reply
        .array()
        .iter()
        .map(|entry| match entry.array() {
            [owner, waited] => {
                assert!(waited.integer() >= 0, "waited_ms {waited:?}");
                (owner.text(), waited.integer())
            }
            _ => panic!("expected [owner, waited_ms], got {entry:?}"),
        })
        .collect()
}

/// `LOCK.SCAN`: the next cursor and the names found.
#[track_caller]
pub fn scanned(reply: &Value) -> (String, Vec<String>) {
    match reply.array() {
        [cursor, names] => {
            let cursor = cursor.text();
            assert!(cursor.bytes().all(|byte| byte.is_ascii_digit()), "a cursor is a number: {cursor}");
            (cursor, names.array().iter().map(Value::text).collect())
        }
        _ => panic!("expected [cursor, [resource, …]], got {reply:?}"),
    }
}
