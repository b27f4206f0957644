//! `GET /api/v1/locks/{key}`: one lock: who has it, who waits for it, how it ended lately.

use super::locks::HOLDERS_TOLD_MAX;
use super::{json, ApiError};
use crate::admin::caller::Caller;
use crate::admin::http::Words;
use crate::cli::reply::Reply;
use crate::node_api::OwnedQuery;
use bytes::Bytes;
use redfence_core::types::RESOURCE_BYTES_MAX;
use serde_json::{json, Value};
use std::time::Duration;

/// Holders and waiters that are listed, and bytes of them.
const LISTED_MAX: usize = 256;
const LISTED_BYTES_MAX: usize = 256 << 10;
/// How long one command may take: a Redis that hangs keeps nobody's turn for long.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

pub(in crate::admin) async fn one(mut caller: Caller, name: &[u8], words: &Words) -> Result<Value, ApiError> {
    if name.len() > RESOURCE_BYTES_MAX {
        return Err(ApiError::bad("a lock's name has at most 512 bytes; this can only be a plain key"));
    }
    let tier = words.get("tier").map_or(Vec::new(), |tier| vec![&b"TIER"[..], tier]);
    let command = |command: &'static str| [&[command.as_bytes(), name], &tier[..]].concat();
    let info = ask(&mut caller, &command("LOCK.INFO")).await?;
    let is_raft = info
        .field("tier")
        .and_then(Reply::bytes)
        .is_some_and(|tier| tier.eq_ignore_ascii_case(b"correctness"));
    let mut info = without_list(info, "holders");
    info["name"] = json::shown(name).into();
    info["key"] = json::key(name).into();
    let explain = match ask(&mut caller, &command("LOCK.EXPLAIN")).await {
        Ok(reply) => {
            let mut explain = without_list(reply, "queue");
            // They are in the info.
            if let Some(fields) = explain.as_object_mut() {
                fields.remove("holders");
            }
            explain
        }
        // Tier 1 has no EXPLAIN, but a queue.
        Err(error) if error.code == "TIER" => match ask(&mut caller, &command("LOCK.QUEUE")).await {
            Ok(reply) => queue_alone(&reply),
            Err(error) if error.code == "NOPERM" => Value::Null,
            Err(error) => return Err(error),
        },
        Err(error) if error.code == "NOPERM" => Value::Null,
        Err(error) => return Err(error),
    };
    let recent = match is_raft {
        true => {
            let query = OwnedQuery::Past { db: 0, resource: Bytes::copy_from_slice(name) };
            json::of_reply(&caller.query(query).await?)
        }
        false => json!([]),
    };
    Ok(json!({ "info": info, "explain": explain, "recent": recent }))
}

async fn ask(caller: &mut Caller, words: &[&[u8]]) -> Result<Reply, ApiError> {
    let late = || ApiError::unavailable("no answer in five seconds; retry");
    tokio::time::timeout(ANSWER_WITHIN, caller.ask(words)).await.unwrap_or_else(|_| Err(late()))
}

/// A map as JSON, with the first items of its list `field` and how many there are. Other lists named so in other replies are dropped
/// before they become JSON.
fn without_list(reply: Reply, field: &str) -> Value {
    let Reply::Map(pairs) = reply else { return json::of_reply(&reply) };
    let is_list = |name: &Reply, field: &str| name.bytes() == Some(field.as_bytes());
    let (lists, rest): (Vec<_>, Vec<_>) =
        pairs.into_iter().partition(|(name, _)| is_list(name, "holders") || is_list(name, "queue"));
    let mut value = json::of_reply(&Reply::Map(rest));
    if let Some((_, list)) = lists.iter().find(|(name, _)| is_list(name, field)) {
        put_list(&mut value, field, list.items().iter().map(json::of_reply), list.items().len());
    }
    value
}

/// `{queue, queue_total}` of `LOCK.QUEUE`: owners and how long they wait.
fn queue_alone(reply: &Reply) -> Value {
    let row = |(at, row): (usize, &Reply)| {
        let [owner, waited_ms] = row.items() else { return Value::Null };
        json!({
            "owner": json::of_reply(owner),
            "waited_ms": json::of_reply(waited_ms),
            "mode": "exclusive",
            "position": at + 1,
        })
    };
    let mut value = json!({});
    put_list(&mut value, "queue", reply.items().iter().enumerate().map(row), reply.items().len());
    value
}

fn put_list(value: &mut Value, field: &str, items: impl Iterator<Item = Value>, total: usize) {
    let mut bytes = 0;
    let mut listed = Vec::new();
    for item in items.take(LISTED_MAX) {
        bytes += item.to_string().len();
        listed.push(item);
        if bytes >= LISTED_BYTES_MAX {
            break;
        }
    }
    value[field] = listed.into();
    value[format!("{field}_total")] = total.into();
    if total >= HOLDERS_TOLD_MAX {
        value[format!("{field}_more")] = true.into();
    }
}
