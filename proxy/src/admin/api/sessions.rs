//! `GET /api/v1/sessions`: those the user may see, its own or all.

use super::{json, ApiError};
use crate::admin::caller::Caller;
use crate::admin::http::Words;
use crate::cli::reply::Reply;
use crate::node_api::OwnedQuery;
use redfence_core::types::UserTag;
use serde_json::{json, Value};
use std::collections::HashMap;

const COUNT_DEFAULT: u64 = 100;
const COUNT_MAX: u64 = 1_000;

pub(in crate::admin) async fn list(caller: Caller, words: &Words) -> Result<Value, ApiError> {
    caller.check(&[b"LOCK.SESSION", b"INFO", b"x"])?;
    let number = |name: &str, otherwise: u64| match words.get(name) {
        None => Ok(otherwise),
        Some(text) => {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
            number.ok_or_else(|| ApiError::bad("cursor and count must be numbers"))
        }
    };
    let (cursor, count) = (number("cursor", 0)?, number("count", COUNT_DEFAULT)?);
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(ApiError::bad("count must be 1 to 1000"));
    }
    let query = OwnedQuery::Sessions { cursor, count, sessions: caller.user.session_scope() };
    let reply = caller.query(query).await?;
    // Only the hash of a user's name is replicated: names are those of this node's users.
    let names: HashMap<UserTag, Vec<u8>> =
        caller.admin.server.access.users().iter().map(|user| (user.tag, user.name.clone())).collect();
    let [next, rows] = reply.items() else { return Err(ApiError::cut_off()) };
    let sessions: Vec<Value> = rows.items().iter().map(|row| to_json(row, &names)).collect();
    Ok(json!({ "sessions": sessions, "cursor": json::of_reply(next) }))
}

fn to_json(row: &Reply, names: &HashMap<UserTag, Vec<u8>>) -> Value {
    let tag = row.field("user").and_then(Reply::int).map(|tag| UserTag(tag as u64));
    let user = tag.and_then(|tag| names.get(&tag)).map(|name| json::shown(name));
    let waits_for = row.field("waits_for").and_then(Reply::bytes);
    json!({
        "id": json::field(row, "id"),
        "user": user,
        "label": json::field(row, "name"),
        "ttl_ms": json::field(row, "left"),
        "locks": json::field(row, "locks"),
        "policy": json::field(row, "policy"),
        "waiting_for": waits_for.map(json::shown),
        "waiting_for_key": waits_for.map(json::key),
    })
}
