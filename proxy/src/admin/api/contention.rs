//! `GET /api/v1/contention`: what is waited for most, by name or by prefix, in the last ten to twenty minutes as this node has seen it.

use super::{json, ApiError};
use crate::admin::caller::Caller;
use crate::admin::http::Words;
use crate::cli::reply::Reply;
use crate::node_api::OwnedQuery;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The node is asked once for all who ask within this time.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Names that the node is asked for.
const NAMES_MAX: usize = 100;

#[derive(Clone, Debug)]
pub(in crate::admin) struct Row {
    pub(in crate::admin) name: Vec<u8>,
    pub(in crate::admin) wait_ms_total: i64,
    pub(in crate::admin) waits: i64,
    pub(in crate::admin) waiters: i64,
    pub(in crate::admin) hold_p50_ms: Option<i64>,
    pub(in crate::admin) wait_p99_ms: Option<i64>,
}

/// The last answer of the node.
#[derive(Debug, Default)]
pub(in crate::admin) struct Cache(Mutex<Option<(Instant, Arc<Vec<Row>>)>>);

impl Cache {
    fn fresh(&self) -> Option<Arc<Vec<Row>>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, rows) = kept.as_ref()?;
        (at.elapsed() < FRESH_FOR).then(|| Arc::clone(rows))
    }

    fn keep(&self, rows: &Arc<Vec<Row>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), Arc::clone(rows)));
    }
}

async fn all(caller: &Caller) -> Result<Arc<Vec<Row>>, ApiError> {
    if let Some(rows) = caller.admin.contended.fresh() {
        return Ok(rows);
    }
    let reply = caller.query(OwnedQuery::Contention { count: NAMES_MAX }).await?;
    let rows = Arc::new(reply.items().iter().filter_map(row).collect());
    caller.admin.contended.keep(&rows);
    Ok(rows)
}

/// Of the first database: the others have no place in this API.
fn row(row: &Reply) -> Option<Row> {
    let int = |name: &str| row.field(name).and_then(Reply::int);
    if int("db")? != 0 {
        return None;
    }
    Some(Row {
        name: row.field("resource")?.bytes()?.to_vec(),
        wait_ms_total: int("waited_ms")?,
        waits: int("waits")?,
        waiters: int("waiters")?,
        hold_p50_ms: int("hold_p50_ms"),
        wait_p99_ms: int("wait_p99_ms"),
    })
}

/// Those the caller may ask about, most waited for first.
pub(in crate::admin) async fn rows(caller: &Caller, count: usize) -> Result<Vec<Row>, ApiError> {
    let rows = all(caller).await?;
    let may_see = |row: &&Row| caller.user.check(&[b"LOCK.EXPLAIN", &row.name], None).is_ok();
    Ok(rows.iter().filter(may_see).take(count).cloned().collect())
}

pub(in crate::admin) async fn list(caller: Caller, words: &Words) -> Result<Value, ApiError> {
    caller.check_command(&[b"LOCK.EXPLAIN", b"x"])?;
    let rows = rows(&caller, NAMES_MAX).await?;
    let rows = match words.get("by").unwrap_or(b"name") {
        b"name" => rows,
        b"prefix" => by_prefix(rows),
        _ => return Err(ApiError::bad("by must be name or prefix")),
    };
    Ok(json!({ "rows": rows.iter().map(to_json).collect::<Vec<_>>() }))
}

fn to_json(row: &Row) -> Value {
    json!({
        "name": json::shown(&row.name),
        "key": json::key(&row.name),
        "wait_ms_total": row.wait_ms_total,
        "waits": row.waits,
        "waiters": row.waiters,
        "hold_p50_ms": row.hold_p50_ms,
        "wait_p99_ms": row.wait_p99_ms,
    })
}

/// A name up to its first `:`, `/` or `.`, with it; a name without one is its own prefix.
fn prefix(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|byte| matches!(byte, b':' | b'/' | b'.'));
    &name[..end.map_or(name.len(), |end| end + 1)]
}

/// Sums; of the p99 the largest, which is an upper bound.
fn by_prefix(rows: Vec<Row>) -> Vec<Row> {
    let mut sums: BTreeMap<Vec<u8>, Row> = BTreeMap::new();
    for row in rows {
        let name = prefix(&row.name).to_vec();
        match sums.get_mut(&name) {
            Some(sum) => {
                sum.wait_ms_total = sum.wait_ms_total.saturating_add(row.wait_ms_total);
                sum.waits += row.waits;
                sum.waiters += row.waiters;
                sum.wait_p99_ms = sum.wait_p99_ms.max(row.wait_p99_ms);
            }
            None => {
                sums.insert(name.clone(), Row { name, hold_p50_ms: None, ..row });
            }
        }
    }
    let mut sums: Vec<Row> = sums.into_values().collect();
    sums.sort_by_key(|row| std::cmp::Reverse(row.wait_ms_total));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_summed_most_waited_for_first() {
        let row = |name: &str, ms: i64| Row {
            name: name.as_bytes().to_vec(),
            wait_ms_total: ms,
            waits: 1,
            waiters: 1,
            hold_p50_ms: Some(1),
            wait_p99_ms: Some(ms),
        };
        let sums = by_prefix(vec![row("b:1", 5), row("a:1", 3), row("a:2", 4), row("plain", 1)]);
        let shown: Vec<_> = sums
            .iter()
            .map(|row| (json::shown(&row.name), row.wait_ms_total, row.waits, row.wait_p99_ms))
            .collect();
        let expected = [("a:", 7, 2, Some(4)), ("b:", 5, 1, Some(5)), ("plain", 1, 1, Some(1))];
        assert_eq!(shown, expected.map(|(name, ms, waits, p99)| (name.to_owned(), ms, waits, p99)));
    }
}
