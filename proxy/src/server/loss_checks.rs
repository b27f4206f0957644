//! Tells holders of locks to doubt them while this node does not reach the leader, and looks up what they
//! hold after ends of grants were missed.

use crate::events::GrantKey;
use crate::node_api::OwnedQuery;
use crate::server::ServerState;
use redfence_core::reply::Reply;
use redfence_core::types::SessionScope;
use std::sync::Arc;
use std::time::Duration;

/// `LOCK.INFO` shows no more.
const HOLDERS_SHOWN_MAX: usize = 1_000;
/// How often it looks.
const PERIOD: Duration = Duration::from_millis(25);

/// Starts the task. It ends with the server.
pub fn start(server: Arc<ServerState>) {
    let server = Arc::downgrade(&server);
    tokio::spawn(async move {
        let mut out_of_reach_ms = None;
        loop {
            tokio::time::sleep(PERIOD).await;
            let Some(server) = server.upgrade() else { return };
            out_of_reach_ms = doubt(&server, out_of_reach_ms);
            for key in server.losses.take_to_check() {
                look_up(&server, key).await;
            }
        }
    });
}

/// Answers since when the leader is out of reach.
fn doubt(server: &ServerState, since_ms: Option<u64>) -> Option<u64> {
    if server.tier2.status().quorum {
        if since_ms.is_some() {
            server.losses.trust();
        }
        return None;
    }
    let now_ms = server.now_ms();
    let since_ms = since_ms.unwrap_or(now_ms);
    if !server.losses.is_idle() {
        server.losses.suspect(now_ms.saturating_sub(since_ms));
    }
    Some(since_ms)
}

/// A grant that the state does not have is gone. Where the state cannot be read, the next look will tell.
async fn look_up(server: &ServerState, key: GrantKey) {
    let query = OwnedQuery::Info { db: key.db, resource: key.resource.clone(), sessions: SessionScope::None };
    let Reply::Info(info) = server.tier2.query(query).await else { return server.losses.missed() };
    let holders = info.holders.unwrap_or_default();
    // Of more holders than are shown nobody can tell who is missing.
    if holders.len() < HOLDERS_SHOWN_MAX && !holders.iter().any(|holder| holder.fence == key.fence) {
        let successor = holders.first().map(|holder| holder.fence);
        server.losses.gone(key, successor);
    }
}
