//! Gives back a grant of Tier 2 that nobody is left to take.
//!
//! The client went away while its acquire was in flight, and its owner was made up by this node: nobody can ask again and get the same
//! fence, so the lock would stand until its ttl runs out. An acquire that named its OWNER is left alone: its client may come back.

use crate::node_api::OwnedQuery;
use crate::tier2::handle::{PendingReply, Tier2Handle};
use bytes::Bytes;
use redfence_core::machine::Command;
use redfence_core::reply::Reply;
use redfence_core::types::Fence;

/// Starts the task that does it. `waits`: the command may stand in a queue, and leaves it.
pub fn start(tier2: Tier2Handle, blob: Bytes, pending: PendingReply, waits: bool) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let Some((db, owner, names)) = read(&blob) else { return };
        if waits {
            drop(pending);
            look_and_release(&tier2, db, &owner, &names).await;
        } else {
            let reply = pending.await;
            let (fences, _) = reply.granted().unwrap_or_default();
            for (name, fence) in names.iter().zip(fences) {
                release(&tier2, db, name, *fence).await;
            }
        }
    });
}

type AcquireTarget = (u32, Bytes, Vec<Bytes>);

fn read(blob: &[u8]) -> Option<AcquireTarget> {
    match Command::decode(blob)? {
        Command::Acquire { db, resource, owner, .. } => {
            Some((db, Bytes::copy_from_slice(owner), vec![Bytes::copy_from_slice(resource)]))
        }
        Command::MAcquire { db, resources, owner, .. } => Some((
            db,
            Bytes::copy_from_slice(owner),
            resources.iter().map(|name| Bytes::copy_from_slice(name)).collect(),
        )),
        Command::Release { .. }
        | Command::Renew { .. }
        | Command::MRelease { .. }
        | Command::ForceRelease { .. }
        | Command::SessionOpen { .. }
        | Command::SessionKeepAlive { .. }
        | Command::SessionClose { .. }
        | Command::SessionsTouch { .. }
        | Command::SessionsOrphan { .. }
        | Command::Cancel { .. }
        | Command::Expire { .. }
        | Command::OriginStart { .. }
        | Command::OriginGone { .. }
        | Command::Settings(_)
        | Command::FenceCheck { .. }
        | Command::FenceCall { .. }
        | Command::Redis { .. }
        | Command::Transaction { .. }
        | Command::Conditional(_)
        | Command::Effects(_) => None,
    }
}

/// The wait was called off, but a grant may have been quicker. A release that can release nothing tells when the call is
/// through: what this node submits is applied in order.
async fn look_and_release(tier2: &Tier2Handle, db: u32, owner: &Bytes, names: &[Bytes]) {
    release(tier2, db, &names[0], Fence(1)).await;
    for name in names {
        let query = OwnedQuery::Info { db, resource: name.clone() };
        let Reply::Info(info) = tier2.query(query).await else { continue };
        if info.held && info.owner.as_ref() == Some(owner) {
            release(tier2, db, name, info.fence).await;
        }
    }
}

async fn release(tier2: &Tier2Handle, db: u32, resource: &[u8], fence: Fence) {
    let mut blob = Vec::with_capacity(resource.len() + 32);
    Command::Release { db, resource, fence }.encode(&mut blob);
    // Where it fails the lock stands until its ttl runs out: there is nobody to tell.
    let _ = tier2.submit(blob.into(), 0).await;
}
