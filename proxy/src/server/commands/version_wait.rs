//! A young cluster raises its version by itself, a moment after it has a leader. A command that needs the version to come waits for
//! that, alone on its connection, instead of being refused to whoever is quick.

use crate::server::context::CommandContext;
use crate::server::{release_orphaned_grant, ServerState};
use crate::tier2::handle::PendingReply;
use bytes::Bytes;
use redfence_core::machine::version::ClusterVersion;
use redfence_core::machine::Command;
use redfence_core::reply::Reply;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A cluster that has not risen by then runs with an older program somewhere.
const WAIT_MS_MAX: u64 = 2_000;
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl CommandContext {
    /// The version that a command has to wait for: the cluster has not got it, and nothing is known to keep it from rising.
    pub(super) fn version_to_come(&self, command: &Command<'_>) -> Option<ClusterVersion> {
        let is_later = matches!(
            command,
            Command::AcquireWith { .. }
                | Command::MAcquireShared { .. }
                | Command::Convert { .. }
                | Command::ForceReleaseOne { .. }
                | Command::SessionOpenWith { .. }
        );
        let version = is_later.then(|| command.need().version)?;
        rises_to(&self.server, version).then_some(version)
    }
}

/// Whether the cluster runs an older version, and every member could run this one as far as it is known (0: not heard of yet).
fn rises_to(server: &ServerState, version: ClusterVersion) -> bool {
    let status = server.tier2.status();
    status.cluster_version < version
        && !status.upgrade_hold
        && status.nodes.iter().all(|node| node.version == 0 || node.version >= version)
}

/// Submits the command when the version is there, or when it is clear that it does not come: the node refuses it then.
/// `gives_back`: a grant that its client is not there to take is released.
pub(super) fn start(
    server: Arc<ServerState>,
    version: ClusterVersion,
    client: u64,
    blob: Bytes,
    wait_ms: u64,
    gives_back: bool,
) -> oneshot::Receiver<Reply> {
    let (mut sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let until_ms = server.now_ms() + WAIT_MS_MAX;
        while rises_to(&server, version) && server.now_ms() < until_ms {
            tokio::time::sleep(LOOK_EVERY).await;
            if sender.is_closed() {
                return;
            }
        }
        let mut pending = server.tier2.submit_for(client, None, None, None, blob.clone(), wait_ms);
        let told = tokio::select! {
            reply = &mut pending => sender.send(reply).map_err(|reply| (PendingReply::answered(reply), false)),
            // Dropping the request takes it out of its queue.
            () = sender.closed() => Err((pending, wait_ms > 0)),
        };
        if let (Err((pending, waits)), true) = (told, gives_back) {
            release_orphaned_grant::start(server.tier2.clone(), blob, pending, waits);
        }
    });
    receiver
}
