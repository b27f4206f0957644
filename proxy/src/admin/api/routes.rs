//! `GET /api/v1/routes`: which tier a name gets, and why.

use super::{json, ApiError};
use crate::admin::caller::Caller;
use crate::admin::http::Words;
use redfence_core::routes;
use serde_json::{json, Value};

pub(in crate::admin) async fn routes(mut caller: Caller, words: &Words) -> Result<Value, ApiError> {
    let list = setting(&mut caller, "route").await?;
    let default_tier = setting(&mut caller, "default-tier").await?;
    let known = routes::parse_list(&list).map_err(|refusal| ApiError::of_text(&refusal.0))?;
    let has_upstream = caller.admin.server.upstream.is_some();
    let default_tier = String::from_utf8_lossy(&default_tier).to_ascii_lowercase();
    let answer = words.get("name").map(|name| answer(&known, &default_tier, has_upstream, name));
    let rows: Vec<Value> = known
        .iter()
        .map(|route| json!({ "match": json::shown(&route.pattern), "tier": shown_tier(route) }))
        .collect();
    Ok(json!({
        "routes": rows,
        "default_tier": default_tier,
        "has_redis": has_upstream,
        "answer": answer,
    }))
}

fn shown_tier(route: &routes::Route) -> String {
    route.tier.as_str().to_ascii_lowercase()
}

async fn setting(caller: &mut Caller, name: &str) -> Result<Vec<u8>, ApiError> {
    let reply = caller.ask(&["LOCK.CLUSTER", "GET", name]).await?;
    Ok(reply
        .bytes()
        .map(<[u8]>::to_vec)
        .or_else(|| reply.int().map(|int| int.to_string().into_bytes()))
        .unwrap_or_default())
}

/// As the router decides for a lock whose command names no tier and no session.
fn answer(known: &[routes::Route], default_tier: &str, has_upstream: bool, name: &[u8]) -> Value {
    let matched = known.iter().position(|route| redfence_core::glob::matches(&route.pattern, name));
    let (tier, why) = match matched {
        Some(at) => {
            let route = &known[at];
            let why = format!("route {} matches first: {}", at + 1, json::shown(&route.pattern));
            (shown_tier(route), why)
        }
        None if known.is_empty() => {
            (default_tier.to_owned(), "there are no routes: the default tier".to_owned())
        }
        None => (default_tier.to_owned(), "no route matches: the default tier".to_owned()),
    };
    if has_upstream || tier == "correctness" {
        return json!({ "tier": tier, "why": why });
    }
    let why = format!("{why} ({tier}); there is no Redis behind, so the Raft cluster serves it");
    json!({ "tier": "correctness", "why": why })
}
