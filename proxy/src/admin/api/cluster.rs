//! `GET /api/v1/cluster`: members, versions, digests, the log, snapshots and settings.

use super::{json, overview, ApiError};
use crate::admin::caller::Caller;
use crate::metrics::SnapshotStep;
use redfence_core::machine::settings::Setting;
use serde_json::{json, Map, Value};

pub(in crate::admin) async fn cluster(mut caller: Caller) -> Result<Value, ApiError> {
    let info = caller.ask(&["LOCK.CLUSTER", "INFO"]).await?;
    let version = caller.ask(&["LOCK.CLUSTER", "VERSION"]).await?;
    let settings = settings(&mut caller).await?;
    let server = &caller.admin.server;
    let (status, metrics) = (server.tier2.status(), server.tier2.metrics());
    let digests = status.digests;
    let snapshots: Map<String, Value> = SnapshotStep::ALL
        .into_iter()
        .map(|step| {
            let seconds = metrics.snapshot(step).snapshot();
            let row = json!({
                "count": seconds.count(),
                "failed": metrics.snapshots_failed(step).get(),
                "seconds_total": seconds.sum_us as f64 / 1e6,
                "p99_ms": (seconds.count() > 0).then(|| seconds.percentile_us(99) / 1_000),
            });
            (step.as_str().to_owned(), row)
        })
        .collect();
    Ok(json!({
        "info": json::of_reply(&info),
        "nodes": overview::nodes(server, &status),
        "version": json::of_reply(&version),
        "digests": {
            "point_index": digests.point_index,
            "confirmed_index": digests.confirmed_index,
            "full_index": digests.full_index,
            "compared": metrics.digests_compared.get(),
            "quarantined_at": digests.quarantined_at,
            "quarantined_members": digests.quarantined_members,
            "no_majority": digests.no_majority,
        },
        "log": {
            "entries": metrics.log_entries.get(),
            "bytes": metrics.log_bytes.get(),
            "commit": status.commit,
            "applied": status.applied,
            "term": status.term,
            "write_p99_ms": metrics.log_write.snapshot().percentile_us(99) as f64 / 1e3,
            "disk_stalls": metrics.disk_stalls.get(),
        },
        "snapshots": snapshots,
        "elections": metrics.elections.get(),
        "leader_changes": metrics.leader_changes.get(),
        "settings": settings,
    }))
}

/// All replicated settings; null where the user may not ask, or nobody can answer now.
async fn settings(caller: &mut Caller) -> Result<Value, ApiError> {
    if !caller.admin.server.tier2.status().quorum || !caller.may_run(&[b"LOCK.CLUSTER", b"GET", b"route"]) {
        return Ok(Value::Null);
    }
    let mut values = Map::new();
    for setting in Setting::ALL {
        let value = match caller.ask(&["LOCK.CLUSTER", "GET", setting.as_str()]).await {
            Ok(reply) => json::of_reply(&reply),
            Err(error) if error.code == "INDETERMINATE" => return Err(error),
            Err(_) => Value::Null,
        };
        values.insert(setting.as_str().to_owned(), value);
    }
    Ok(Value::Object(values))
}
