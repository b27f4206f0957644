//! What watchers see: one JSON object a change, on the channel `__lock__:<resource>`.

use crate::types::{Fence, LockMode, LossCause, Tier};
use bytes::Bytes;
use std::fmt::Write;

/// Every event is published on this prefix followed by the resource's name.
pub const CHANNEL_PREFIX: &[u8] = b"__lock__:";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    Acquired,
    Renewed,
    Released,
    Expired,
    Queued,
    Abandoned,
    SessionEnded,
}

impl EventKind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::Acquired => "acquired",
            EventKind::Renewed => "renewed",
            EventKind::Released => "released",
            EventKind::Expired => "expired",
            EventKind::Queued => "queued",
            EventKind::Abandoned => "abandoned",
            EventKind::SessionEnded => "session_ended",
        }
    }
}

/// One change of one lock. `fence` is the grant's own, or the last issued where the event has none (queued, abandoned).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub db: u32,
    pub resource: Bytes,
    pub fence: Fence,
    pub owner: Bytes,
    pub seq: u64,
    pub mode: LockMode,
    /// Empty where the grant has none.
    pub value: Bytes,
    /// Why it ended, where its holder did not end it.
    pub cause: Option<LossCause>,
}

/// The channel an event of `resource` is published on.
#[must_use]
pub fn channel(resource: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(CHANNEL_PREFIX.len() + resource.len());
    name.extend_from_slice(CHANNEL_PREFIX);
    name.extend_from_slice(resource);
    name
}

/// The message itself. Bytes that are not UTF-8 become U+FFFD: JSON has no other way to carry them.
#[must_use]
pub fn to_json(kind: EventKind, resource: &[u8], fence: Fence, owner: &[u8], tier: Tier, seq: u64) -> String {
    let mut json = String::with_capacity(128 + resource.len() + owner.len());
    json.push_str("{\"event\":\"");
    json.push_str(kind.as_str());
    json.push_str("\",\"resource\":");
    push_json_string(&mut json, resource);
    let _ = write!(json, ",\"fence\":{fence},\"owner\":");
    push_json_string(&mut json, owner);
    let _ = write!(json, ",\"tier\":\"{}\",\"seq\":{seq}}}", tier.as_str());
    json
}

/// The same with what not every event has: another mode than exclusive, a value, a cause.
#[must_use]
pub fn event_to_json(event: &Event, tier: Tier) -> String {
    let json = to_json(event.kind, &event.resource, event.fence, &event.owner, tier, event.seq);
    // What ended by its time, or with its session, says so by its name.
    let cause = event.cause.filter(|_| event.kind == EventKind::Released);
    with_details(json, event.mode, &event.value, cause)
}

/// Adds to a message of [`to_json`] what not every event has.
#[must_use]
pub fn with_details(mut json: String, mode: LockMode, value: &[u8], cause: Option<LossCause>) -> String {
    json.pop();
    if mode != LockMode::Exclusive {
        let _ = write!(json, ",\"mode\":\"{}\"", mode.as_str());
    }
    if !value.is_empty() {
        json.push_str(",\"value\":");
        push_json_string(&mut json, value);
    }
    if let Some(cause) = cause {
        let _ = write!(json, ",\"cause\":\"{}\"", cause.as_str());
    }
    json.push('}');
    json
}

/// Every loss is published on this prefix followed by the resource's name.
pub const LOST_CHANNEL_PREFIX: &[u8] = b"__lost__:";

/// The channel a loss of `resource` is published on.
#[must_use]
pub fn lost_channel(resource: &[u8]) -> Vec<u8> {
    [LOST_CHANNEL_PREFIX, resource].concat()
}

/// A lost lock as subscribers are told.
#[must_use]
pub fn loss_to_json(
    event: &str,
    resource: &[u8],
    fence: Fence,
    cause: &str,
    successor: Option<Fence>,
) -> String {
    let mut json = String::with_capacity(128 + resource.len());
    let _ = write!(json, "{{\"event\":\"{event}\",\"resource\":");
    push_json_string(&mut json, resource);
    let _ = write!(json, ",\"fence\":{fence},\"cause\":\"{cause}\",\"successor\":");
    match successor {
        Some(successor) => {
            let _ = write!(json, "{successor}}}");
        }
        None => json.push_str("null}"),
    }
    json
}

fn push_json_string(json: &mut String, bytes: &[u8]) {
    json.push('"');
    for ch in String::from_utf8_lossy(bytes).chars() {
        match ch {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            ch if (ch as u32) < 0x20 => {
                let _ = write!(json, "\\u{:04x}", ch as u32);
            }
            ch => json.push(ch),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_escapes_what_json_must() {
        let json = to_json(EventKind::Acquired, b"a\"\\\n\x01\xff", Fence(7), b"me", Tier::Efficiency, 9);
        assert_eq!(
            json,
            "{\"event\":\"acquired\",\"resource\":\"a\\\"\\\\\\n\\u0001\u{fffd}\",\"fence\":7,\"owner\":\"me\",\
             \"tier\":\"EFFICIENCY\",\"seq\":9}"
        );
    }
}
