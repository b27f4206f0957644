//! What changes something: force-release, closing a session, handing over leadership. Each runs the command of the same name for the
//! user, and needs a reason, which stands in the audit log and in the node's own log.

use super::{json, ApiError};
use crate::admin::caller::Caller;
use serde_json::{json, Value};

const REASON_BYTES_MAX: usize = 256;

/// Takes the reason, and writes down that it was given.
fn with_reason(caller: &mut Caller, body: &Value, action: &str, on: &str) -> Result<(), ApiError> {
    let reason = body.get("reason").and_then(Value::as_str).map(str::trim).unwrap_or_default();
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX {
        return Err(ApiError::bad("say why: \"reason\" must have 1 to 256 bytes"));
    }
    let (user, reason_shown) = (json::shown(&caller.user.name), json::shown(reason.as_bytes()));
    tracing::warn!(user, action, on, reason = reason_shown, "asked for by the admin API");
    caller.reason = Some(reason.into());
    Ok(())
}

pub(in crate::admin) async fn force_release(
    mut caller: Caller,
    name: &[u8],
    body: &Value,
) -> Result<Value, ApiError> {
    with_reason(&mut caller, body, "force-release", &json::shown(name))?;
    let mut words = vec![b"LOCK.FORCERELEASE".to_vec(), name.to_vec()];
    if let Some(tier) = body.get("tier").and_then(Value::as_str) {
        words.extend([b"TIER".to_vec(), tier.as_bytes().to_vec()]);
    }
    let fence = body.get("fence").filter(|fence| !fence.is_null());
    if let Some(fence) = fence {
        let fence = fence.as_u64().ok_or_else(|| ApiError::bad("fence must be a number"))?;
        words.extend([b"FENCE".to_vec(), fence.to_string().into_bytes()]);
    }
    let released = caller.ask(&words).await?.int();
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
    with_reason(&mut caller, body, "close session", &json::shown(id))?;
    let released = caller.ask(&[b"LOCK.SESSION", &b"CLOSE"[..], id]).await?;
    Ok(json!({ "ok": true, "released": released.int() }))
}

pub(in crate::admin) async fn transfer(mut caller: Caller, body: &Value) -> Result<Value, ApiError> {
    let to =
        body.get("to").and_then(Value::as_u64).ok_or_else(|| ApiError::bad("to must be the id of a node"))?;
    let to = to.to_string();
    with_reason(&mut caller, body, "transfer leadership", &to)?;
    caller.ask(&["LOCK.CLUSTER", "TRANSFER", &to]).await?;
    Ok(json!({ "ok": true }))
}
