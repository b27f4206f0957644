//! `GET /api/v1/overview`: is it healthy, how busy is it, what is waited for.

use super::{contention, json, ApiError};
use crate::admin::caller::Caller;
use crate::node_api::{ClusterStatus, NodeStatus};
use crate::server::ServerState;
use crate::tier1::upstream::Health;
use redfence_core::types::LossCause;
use serde_json::{json, Map, Value};

/// Names that are shown as most waited for.
const CONTENDED: usize = 10;
/// Of what is said about a Redis that is not reached.
const REASON_BYTES_MAX: usize = 200;

pub(in crate::admin) async fn overview(caller: Caller) -> Result<Value, ApiError> {
    caller.check(&[b"LOCK.CLUSTER", b"INFO"])?;
    let server = &caller.admin.server;
    let (status, series) = (server.tier2.status(), &caller.admin.series);
    let (stats, now) = (status.stats, series.current(server));
    let metrics = server.tier2.metrics();
    let losses: Map<String, Value> = LossCause::ALL
        .into_iter()
        .map(|cause| (cause.as_str().to_owned(), metrics.losses(cause).get().into()))
        .collect();
    // Without a quorum nobody can say what is waited for: the rest is shown all the same.
    let contended = match status.quorum {
        true => contention::rows(&caller, CONTENDED).await.unwrap_or_default(),
        false => Vec::new(),
    };
    let contended: Vec<Value> = contended
        .iter()
        .map(|row| {
            json!({
                "name": json::shown(&row.name),
                "key": json::key(&row.name),
                "wait_ms_total": row.wait_ms_total,
                "waiters": row.waiters,
            })
        })
        .collect();
    Ok(json!({
        "health": health(server, &status),
        "node": status.id,
        "leader": status.leader,
        "nodes": nodes(server, &status),
        "has_redis": server.upstream.is_some(),
        "held": {
            "exclusive": stats.exclusive_holds,
            "shared": stats.shared_holds,
            "permits": stats.permit_holds,
        },
        "waiters": stats.waiters,
        "sessions": stats.sessions,
        "state_bytes": stats.memory_used_bytes,
        "max_memory": stats.memory_max_bytes,
        "grants_per_s": now.grants_per_s,
        "acquire_p99_ms": now.p99_ms,
        "series": series.points(),
        "losses": losses,
        "contended": contended,
    }))
}

fn health(server: &ServerState, status: &ClusterStatus) -> Value {
    let up = status.nodes.iter().filter(|node| node.up || node.id == status.id).count();
    let all = status.nodes.len();
    let (is_ok, text) = if server.tier2.is_quarantined() {
        (false, "This node differs from the others and is quarantined: it serves nothing.".to_owned())
    } else if status.digests.no_majority {
        (false, "The replicas differ and no majority agrees: nobody serves.".to_owned())
    } else if !status.quorum {
        (false, format!("No quorum: this node reaches no leader with a majority ({up} of {all} nodes up)."))
    } else if up < all {
        (false, format!("Serving; {up} of {all} nodes are up, node {} leads.", status.leader))
    } else if status.digests.quarantined_members > 0 {
        (false, format!("Serving; {} quarantined.", counted(status.digests.quarantined_members)))
    } else if let Some(text) = redis_trouble(server) {
        (false, text)
    } else if all == 1 {
        (true, format!("Healthy: node {} serves alone.", status.leader))
    } else {
        (true, format!("Healthy: all {all} nodes are up, node {} leads.", status.leader))
    };
    json!({ "ok": is_ok, "text": text })
}

/// What is wrong with the Redis behind, if there is one.
fn redis_trouble(server: &ServerState) -> Option<String> {
    let reason = match server.upstream.as_ref()?.health() {
        Health::Up(_) => return None,
        Health::Starting => "it was not reached yet".to_owned(),
        Health::Down { reason } => json::cut(reason.as_bytes(), REASON_BYTES_MAX),
    };
    Some(format!("Serving; the efficiency tier does not: Redis is not reached ({reason})."))
}

fn counted(nodes: u64) -> String {
    if nodes == 1 {
        "1 node".to_owned()
    } else {
        format!("{nodes} nodes")
    }
}

pub(super) fn nodes(server: &ServerState, status: &ClusterStatus) -> Vec<Value> {
    status.nodes.iter().map(|node| node_row(server, status, node)).collect()
}

fn node_row(server: &ServerState, status: &ClusterStatus, node: &NodeStatus) -> Value {
    let peers = server.tier2.metrics().peers();
    let measured = peers.iter().find(|(id, _)| *id == node.id).and_then(|(_, peer)| peer.lag());
    let own = (node.id == status.id).then(|| status.commit.saturating_sub(status.applied));
    let told = (node.matched > 0).then(|| status.commit.saturating_sub(node.matched));
    let lag_entries = measured.map(|(entries, _)| entries).or(own).or(told);
    let role = if node.id == status.leader { "leader" } else { node.role.as_str() };
    json!({
        "id": node.id,
        "addr": node.addr,
        "role": role,
        "up": node.up || node.id == status.id,
        "lag_entries": lag_entries,
        "lag_bytes": measured.map(|(_, bytes)| bytes),
        "version": u64::from(node.version),
    })
}
