//! `GET /api/v1/audit`: the last lines of this node's audit log.

use super::ApiError;
use crate::admin::caller::Caller;
use crate::admin::http::Words;
use serde_json::{json, Value};

const COUNT_DEFAULT: usize = 100;

pub(in crate::admin) fn lines(caller: &Caller, words: &Words) -> Result<Value, ApiError> {
    caller.check(&[b"ACL", b"LOG"])?;
    let count =
        words.get("count").map_or(Some(COUNT_DEFAULT), |text| std::str::from_utf8(text).ok()?.parse().ok());
    let count = count.ok_or_else(|| ApiError::bad("count must be a number"))?;
    let Some(audit) = &caller.admin.server.access.audit else {
        return Ok(json!({ "lines": [], "enabled": false }));
    };
    let lines: Vec<Value> =
        audit.last_lines(count).iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    Ok(json!({ "lines": lines, "enabled": true }))
}
