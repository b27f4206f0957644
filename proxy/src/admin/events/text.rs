//! One event as streams send it: JSON of one line with the name in the two forms of this API.

use crate::admin::api::json;
use bytes::Bytes;
use redfence_core::event::{EventKind, CHANNEL_PREFIX};
use redfence_core::types::{LockMode, LossCause, RESOURCE_BYTES_MAX};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Of one event. Whatever `LOCK.*` takes fits.
const TEXT_BYTES_MAX: usize = 16 << 10;

const KINDS: [EventKind; 7] = [
    EventKind::Acquired,
    EventKind::Renewed,
    EventKind::Released,
    EventKind::Expired,
    EventKind::Queued,
    EventKind::Abandoned,
    EventKind::SessionEnded,
];

#[derive(Debug)]
pub(super) struct LiveEvent {
    pub(super) channel: Bytes,
    pub(super) text: Vec<u8>,
}

/// What became of a message.
#[derive(Debug)]
pub(super) enum Made {
    Event(LiveEvent),
    /// It is left out, and counted.
    TooLarge,
    /// Somebody published something else there.
    NoEvent,
}

/// An event as the machine says it: its JSON goes on behind the name.
pub(super) fn of_machine(channel: &Bytes, payload: &[u8]) -> Made {
    let Some(name) = channel.strip_prefix(CHANNEL_PREFIX) else { return Made::NoEvent };
    if name.len() > RESOURCE_BYTES_MAX || payload.len() > TEXT_BYTES_MAX {
        return Made::TooLarge;
    }
    let Some(rest) = payload.strip_prefix(b"{") else { return Made::NoEvent };
    let mut text = b"event: lock\ndata: {\"name\":".to_vec();
    text.extend_from_slice(Value::from(json::shown(name)).to_string().as_bytes());
    text.extend_from_slice(b",\"key\":\"");
    text.extend_from_slice(json::key(name).as_bytes());
    text.extend_from_slice(b"\",");
    text.extend(rest.iter().filter(|byte| !matches!(byte, b'\r' | b'\n')));
    made(channel, text)
}

/// What an event of Tier 1 may say. Other fields are not taken over.
#[derive(Debug, Deserialize)]
struct Told {
    event: String,
    #[serde(default)]
    fence: u64,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    seq: u64,
    mode: Option<String>,
    value: Option<String>,
    cause: Option<String>,
}

/// A message that came by way of the Redis. Whoever may publish there can have written it: only fields that are known, with values of
/// their kind, are taken from it; the name is that of the channel, and the tier can be no other.
pub(super) fn of_redis(channel: &Bytes, payload: &[u8]) -> Made {
    let Some(name) = channel.strip_prefix(CHANNEL_PREFIX) else { return Made::NoEvent };
    if name.len() > RESOURCE_BYTES_MAX || payload.len() > TEXT_BYTES_MAX {
        return Made::TooLarge;
    }
    let Ok(told) = serde_json::from_slice::<Told>(payload) else { return Made::NoEvent };
    let one_of = |text: &str, known: &[&str]| known.contains(&text);
    let modes = [LockMode::Exclusive, LockMode::Shared, LockMode::Permits].map(LockMode::as_str);
    let is_event = one_of(&told.event, &KINDS.map(EventKind::as_str))
        && told.mode.as_ref().is_none_or(|mode| one_of(mode, &modes))
        && told.cause.as_ref().is_none_or(|cause| LossCause::ALL.iter().any(|known| known.as_str() == cause));
    if !is_event {
        return Made::NoEvent;
    }
    let mut fields = Map::new();
    let mut put = |field: &str, value: Value| drop(fields.insert(field.to_owned(), value));
    put("name", json::shown(name).into());
    put("key", json::key(name).into());
    put("event", told.event.into());
    put("resource", String::from_utf8_lossy(name).into());
    put("fence", told.fence.into());
    put("owner", told.owner.into());
    put("tier", "EFFICIENCY".into());
    put("seq", told.seq.into());
    for (field, value) in [("mode", told.mode), ("value", told.value), ("cause", told.cause)] {
        if let Some(value) = value {
            put(field, value.into());
        }
    }
    let mut text = b"event: lock\ndata: ".to_vec();
    text.extend_from_slice(Value::Object(fields).to_string().as_bytes());
    made(channel, text)
}

fn made(channel: &Bytes, mut text: Vec<u8>) -> Made {
    text.extend_from_slice(b"\n\n");
    match text.len() > TEXT_BYTES_MAX {
        true => Made::TooLarge,
        // The channel is part of a larger buffer where it came from a Redis.
        false => Made::Event(LiveEvent { channel: Bytes::copy_from_slice(channel), text }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(made: &Made) -> Value {
        let Made::Event(event) = made else { panic!("{made:?}") };
        let text = std::str::from_utf8(&event.text).unwrap();
        let data = text.strip_prefix("event: lock\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
        assert!(!data.contains('\n'));
        serde_json::from_str(data).unwrap()
    }

    fn channel(name: &[u8]) -> Bytes {
        Bytes::from([CHANNEL_PREFIX, name].concat())
    }

    #[test]
    fn a_message_of_a_redis_says_nothing_about_other_names() {
        let payload = br#"{"event":"acquired","resource":"wallet:7","name":"wallet:7","key":"wallet%3A7","tier":"CORRECTNESS","fence":7,"owner":"a\nb","x":{}}"#;
        let event = event(&of_redis(&channel(b"x"), payload));
        assert_eq!(
            (&event["name"], &event["key"], &event["resource"]),
            (&"x".into(), &"x".into(), &"x".into())
        );
        assert_eq!((&event["tier"], &event["fence"]), (&"EFFICIENCY".into(), &7.into()));
        assert_eq!((&event["owner"], &event["x"]), (&"a\nb".into(), &Value::Null));
        for payload in [
            &br#"{"event":"acquired","owner":{"toString":1}}"#[..],
            br#"{"event":"acquired","fence":"7"}"#,
            br#"{"event":"shouted"}"#,
            br#"{"event":"released","cause":"<b>"}"#,
            br#"{"event":"acquired","mode":"none"}"#,
            b"{<script>",
            b"text",
            b"",
        ] {
            assert!(matches!(of_redis(&channel(b"x"), payload), Made::NoEvent), "{payload:?}");
        }
    }

    #[test]
    fn what_is_too_large_is_left_out() {
        let payload = br#"{"event":"acquired","owner":"a"}"#;
        assert_eq!(event(&of_machine(&channel(&[0xff; 512]), payload))["owner"], "a");
        assert!(matches!(of_machine(&channel(&[b'a'; 513]), payload), Made::TooLarge));
        assert!(matches!(of_redis(&channel(&[b'a'; 513]), payload), Made::TooLarge));
        let long = format!("{{\"event\":\"acquired\",\"owner\":\"{}\"}}", "a".repeat(17 << 10));
        assert!(matches!(of_machine(&channel(b"a"), long.as_bytes()), Made::TooLarge));
        assert!(matches!(of_redis(&channel(b"a"), long.as_bytes()), Made::TooLarge));
    }
}
