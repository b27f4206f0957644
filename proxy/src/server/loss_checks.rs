//! Tells holders of locks to doubt them while this node does not reach the leader, and looks up grants of which only the state
//! knows whether they stand.

use crate::events::{publish, GrantKey, Publication, Turn};
use crate::node_api::OwnedQuery;
use crate::server::commands::notify::held;
use crate::server::ServerState;
use bytes::Bytes;
use redfence_core::event::{loss_to_json, lost_channel};
use redfence_core::machine::GrantState;
use redfence_core::reply::Reply;
use redfence_core::types::SessionScope;
use std::sync::Arc;
use std::time::Duration;

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(25);
/// Grants that are asked for at a time.
const LOOK_UPS_MAX: usize = 256;

/// Starts the tasks. They end with the server. Several of them: while the state cannot be read, there is the more to doubt.
pub fn start(server: &Arc<ServerState>, election_timeout_ms: u64) {
    let weak = Arc::downgrade(server);
    // A node gives its leader up, and a leader itself, after one to two election timeouts of silence: so long it may be cut off already.
    let silent_ms_max = election_timeout_ms.saturating_mul(2);
    tokio::spawn(async move {
        let mut since_ms = None;
        loop {
            tokio::time::sleep(PERIOD).await;
            let Some(server) = weak.upgrade() else { return };
            since_ms = doubt(&server, since_ms, silent_ms_max).await;
        }
    });
    start_looking_at_sessions(server);
    let weak = Arc::downgrade(server);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(PERIOD).await;
            let Some(server) = weak.upgrade() else { return };
            if server.losses.has_clients() && server.tier2.status().quorum {
                look_up(&server).await;
            }
        }
    });
}

/// What sessions hold of which somebody wants to hear, once in each outage: others may have taken it for them. Nothing changes here while
/// the node is cut off.
fn start_looking_at_sessions(server: &Arc<ServerState>) {
    let weak = Arc::downgrade(server);
    tokio::spawn(async move {
        let mut has_looked = false;
        loop {
            tokio::time::sleep(PERIOD).await;
            let Some(server) = weak.upgrade() else { return };
            let is_cut_off = !server.tier2.status().quorum;
            if is_cut_off && !has_looked {
                look_at_sessions(&server).await;
            }
            has_looked = is_cut_off;
        }
    });
}

async fn look_at_sessions(server: &ServerState) {
    let ask = |query| server.tier2.query(OwnedQuery::Here(Box::new(query)));
    for id in server.losses.watched_sessions() {
        if server.tier2.status().quorum {
            return;
        }
        let held_by_it = ask(OwnedQuery::SessionLocks { id, sessions: SessionScope::All }).await;
        let Reply::Array(rows) = held_by_it else { continue };
        for rows in rows.chunks(LOOK_UPS_MAX) {
            let keys = rows.iter().filter_map(held);
            let keys = keys.map(|(db, name, fence)| GrantKey { db, resource: name.clone(), fence });
            let by_fence = |key: GrantKey| {
                let GrantKey { db, resource, fence } = key.clone();
                (key, ask(OwnedQuery::GrantByFence { db, resource, fence }))
            };
            let asked: Vec<_> = keys.map(by_fence).collect();
            for (key, pending) in asked {
                if let Some(GrantState::Held { lease_ms, .. }) = GrantState::read(&pending.await) {
                    server.losses.session_holds(id, &key, lease_ms);
                }
            }
        }
    }
}

/// Answers since when the leader is out of reach, at the earliest.
async fn doubt(server: &ServerState, since_ms: Option<u64>, silent_ms_max: u64) -> Option<u64> {
    if server.tier2.status().quorum {
        if since_ms.is_some() {
            server.losses.trust();
        }
        return None;
    }
    let now_ms = server.now_ms();
    let since_ms = since_ms.unwrap_or(now_ms.saturating_sub(silent_ms_max));
    if server.losses.has_clients() {
        let mut turn = Turn::default();
        for notice in server.losses.suspect(now_ms.saturating_sub(since_ms)) {
            // For RESP2 clients, which get no pushes.
            let json = loss_to_json(notice.kind.as_str(), &notice.resource, notice.fence, notice.cause, None);
            let channel = Bytes::from(lost_channel(&notice.resource));
            publish(&server.hub, Publication::new(channel, Bytes::from(json)), &mut turn).await;
        }
    }
    Some(since_ms)
}

/// Where the state cannot be read, the next look will tell.
async fn look_up(server: &ServerState) {
    for keys in server.losses.take_to_look_up().chunks(LOOK_UPS_MAX) {
        let ask = |key: &GrantKey| {
            let GrantKey { db, resource, fence } = key.clone();
            server.tier2.query(OwnedQuery::GrantByFence { db, resource, fence })
        };
        let misses = server.losses.misses();
        let asked: Vec<_> = keys.iter().map(|key| (key.clone(), ask(key))).collect();
        for (key, pending) in asked {
            match GrantState::read(&pending.await) {
                Some(state) => server.losses.found(key, state, misses),
                None => server.losses.not_found(key),
            }
        }
    }
}
