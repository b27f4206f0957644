//! `LOCK.CLUSTER SET route` and `SET default-tier`: answered when the change is in force and this node follows it.
//!
//! One change at a time: a second one waits until the first is in force. At the deadline (the client's, 5 s by default) the answer is
//! `UNAVAILABLE` where nothing was logged, and `INDETERMINATE` where the change is logged but waits for members that are
//! silent: it comes into force by itself, and the same `SET` again waits for that.

use crate::node_api::OwnedQuery;
use crate::server::ServerState;
use redfence_core::machine::settings::{Setting, Settings, SettingsCommand};
use redfence_core::machine::Command;
use redfence_core::reply::{Refusal, Reply};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{timeout_at, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Starts the task that sets it.
pub fn start(server: Arc<ServerState>, name: Setting, value: Vec<u8>) -> oneshot::Receiver<Reply> {
    let (sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        // The client may be gone: then nobody misses the answer.
        let _ = sender.send(set(&server, name, &value).await);
    });
    receiver
}

/// What is known of the change.
enum Progress {
    /// Not logged, and why.
    NotYet(Refusal),
    /// Logged; the settings had this version before.
    Logged { after: u64 },
}

async fn set(server: &ServerState, name: Setting, value: &[u8]) -> Reply {
    let deadline = Instant::now() + server.tier2.timeout();
    let mut progress = Progress::NotYet(still_pending());
    while let Ok(reply) = timeout_at(deadline, server.tier2.query(OwnedQuery::Settings)).await {
        let settings = if let Reply::Bulk(bytes) = &reply { Settings::read_bytes(bytes) } else { None };
        if let (Reply::Error(refusal), Progress::NotYet(last)) = (reply, &mut progress) {
            *last = refusal;
        }
        if let Some(settings) = settings {
            if is_in_force(&settings, &progress, name, value) {
                if server.routing.newest().has_settled(settings.routing_version) {
                    return Reply::OK;
                }
            } else if matches!(progress, Progress::NotYet(_)) && settings.pending.is_none() {
                progress = match log(server, name, value).await {
                    Ok(()) => Progress::Logged { after: settings.version },
                    // Another was quicker, or there is no leader just now.
                    Err(refusal) if refusal.code() == "UNAVAILABLE" => Progress::NotYet(refusal),
                    Err(refusal) => return refusal.into(),
                };
            }
        }
        if Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    match progress {
        Progress::NotYet(refusal) => refusal.into(),
        Progress::Logged { .. } => {
            tracing::warn!("route change waits for unreachable members");
            Refusal::new(
                "INDETERMINATE the change is logged and not in force yet: it waits up to 10 s for members that are silent; send the same again to wait for it",
            )
            .into()
        }
    }
}

fn is_in_force(settings: &Settings, progress: &Progress, name: Setting, value: &[u8]) -> bool {
    match (progress, &settings.pending) {
        // Ours is pending, or has been in force, whatever came behind it.
        (Progress::Logged { after }, Some(pending)) => {
            pending.version <= *after || !Settings::is_set(&pending.routing, name, value)
        }
        (Progress::Logged { .. }, None) => true,
        (Progress::NotYet(_), Some(_)) => false,
        (Progress::NotYet(_), None) => settings.founded && Settings::is_set(&settings.routing, name, value),
    }
}

async fn log(server: &ServerState, name: Setting, value: &[u8]) -> Result<(), Refusal> {
    let mut blob = Vec::new();
    Command::Settings(SettingsCommand::Set { name: name.as_str().as_bytes(), value }).encode(&mut blob);
    // The machine answers a change of settings with OK or an error.
    if let Reply::Error(refusal) = server.tier2.submit(blob.into(), 0).await {
        return Err(refusal);
    }
    Ok(())
}

fn still_pending() -> Refusal {
    Refusal::new(
        "UNAVAILABLE the last change of routes has not reached every node; nothing was done; retry in a moment",
    )
}
