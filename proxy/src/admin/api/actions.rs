//! What changes something: force-release, closing a session, handing over leadership. Each runs the command of the same name for the
//! user, and needs a reason, which stands in the audit log and in the node's own log.

use super::{json, ApiError};
use crate::admin::caller::Caller;
use crate::cli::reply::Reply;
use redfence_core::types::RESOURCE_BYTES_MAX;
use serde_json::{json, Value};

const REASON_BYTES_MAX: usize = 256;

/// Takes the reason.
fn take_reason(caller: &mut Caller, body: &Value) -> Result<(), ApiError> {
    let reason = body.get("reason").and_then(Value::as_str).map(str::trim).unwrap_or_default();
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX {
        return Err(ApiError::bad("say why: \"reason\" must have 1 to 256 bytes"));
    }
    caller.reason = Some(reason.into());
    Ok(())
}

/// Runs an action, and writes down in the node's log what became of it. Who may not is in the audit log alone: whoever can log in could
/// fill the disk.
async fn act<W: AsRef<[u8]>>(
    caller: &mut Caller,
    words: &[W],
    action: &str,
    on: &[u8],
) -> Result<Reply, ApiError> {
    let answer = caller.ask(words).await;
    let result = answer.as_ref().map_or_else(|error| error.code.as_str(), |_| "ok");
    if result != "NOPERM" {
        let user = json::shown(&caller.user.name);
        let reason = json::shown(caller.reason.as_deref().unwrap_or_default().as_bytes());
        let on = json::cut(on, RESOURCE_BYTES_MAX);
        tracing::warn!(user, action, on, reason, result, "asked for by the admin API");
    }
    answer
}

/// A field of the body that may be left out, but is nothing else than what it should be.
fn optional<'a, T>(
    body: &'a Value,
    field: &str,
    read: impl Fn(&'a Value) -> Option<T>,
    wrong: &str,
) -> Result<Option<T>, ApiError> {
    match body.get(field) {
        None => Ok(None),
        Some(value) => read(value).map(Some).ok_or_else(|| ApiError::bad(wrong)),
    }
}

pub(in crate::admin) async fn force_release(
    mut caller: Caller,
    name: &[u8],
    body: &Value,
) -> Result<Value, ApiError> {
    take_reason(&mut caller, body)?;
    if name.len() > RESOURCE_BYTES_MAX {
        return Err(ApiError::bad("a lock's name has at most 512 bytes"));
    }
    let mut words = vec![b"LOCK.FORCERELEASE".to_vec(), name.to_vec()];
    if let Some(tier) = optional(body, "tier", Value::as_str, "tier must be correctness or efficiency")? {
        words.extend([b"TIER".to_vec(), tier.as_bytes().to_vec()]);
    }
    let fence = optional(body, "fence", Value::as_u64, "fence must be a number, or left out")?;
    if let Some(fence) = fence {
        words.extend([b"FENCE".to_vec(), fence.to_string().into_bytes()]);
    }
    let released = act(&mut caller, &words, "force-release", name).await?.int();
    if fence.is_some() && released == Some(0) {
        return Err(ApiError::changed("the lock is not held with this fence any more; look again"));
    }
    Ok(json!({ "ok": true, "released": released }))
}

pub(in crate::admin) async fn close_session(
    mut caller: Caller,
    id: &[u8],
    body: &Value,
) -> Result<Value, ApiError> {
    take_reason(&mut caller, body)?;
    let words = [b"LOCK.SESSION", &b"CLOSE"[..], id];
    let released = act(&mut caller, &words, "close session", id).await?;
    Ok(json!({ "ok": true, "released": released.int() }))
}

pub(in crate::admin) async fn transfer(mut caller: Caller, body: &Value) -> Result<Value, ApiError> {
    let to =
        body.get("to").and_then(Value::as_u64).ok_or_else(|| ApiError::bad("to must be the id of a node"))?;
    let to = to.to_string();
    take_reason(&mut caller, body)?;
    let words = ["LOCK.CLUSTER", "TRANSFER", &to];
    act(&mut caller, &words, "transfer leadership", to.as_bytes()).await?;
    Ok(json!({ "ok": true }))
}
