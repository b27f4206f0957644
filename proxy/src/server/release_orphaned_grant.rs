//! Gives back a grant of Tier 2 that nobody is left to take.
//!
//! The client went away while its acquire was in flight, and its owner was made up by this node: nobody can ask again and get the same
//! fence, so the lock would stand until its ttl runs out. An acquire that named its OWNER is left alone: its client may come back.
//!
//! Where the cluster does not answer it is tried again, within the ttl and the limits of [`Retries`]: a release names the fence, so
//! repeating it is safe.

use crate::node_api::OwnedQuery;
use crate::retries::Retries;
use crate::server::client::transaction::LockInTransaction;
use crate::tier2::handle::{PendingReply, Tier2Handle};
use bytes::Bytes;
use redfence_core::machine::{Command, GrantState};
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, UserTag};

/// What a name takes in memory beside its bytes.
const NAME_OVERHEAD_BYTES: usize = 64;

/// Starts the task that does it. `waits`: the command may stand in a queue, and leaves it.
pub fn start(tier2: Tier2Handle, blob: Bytes, pending: PendingReply, waits: bool) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let Some(target) = AcquireTarget::read(&blob) else { return };
    let Some(retries) = Retries::accept(target.ttl_ms, blob.len() + target.memory_bytes()) else { return };
    runtime.spawn(async move {
        let mut release = OrphanRelease { tier2, retries };
        if waits {
            drop(pending);
            release.look_and_release(&target).await;
            return;
        }
        let reply = pending.await;
        if code(&reply) == Some("INDETERMINATE") {
            release.look_and_release(&target).await;
        }
        let (fences, _) = reply.granted().unwrap_or_default();
        for (name, fence) in target.names.iter().zip(fences) {
            release.release(target.db, name, *fence).await;
        }
    });
}

/// The same for a transaction. Where its outcome is not known, its grants end with their ttl: nobody knows their owners.
pub fn start_of_transaction(tier2: Tier2Handle, locks: Vec<LockInTransaction>, pending: PendingReply) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let bytes = locks.iter().map(LockInTransaction::bytes).sum();
    let Some(retries) = Retries::accept(0, bytes) else { return };
    runtime.spawn(async move {
        let mut release = OrphanRelease { tier2, retries };
        let Reply::Array(replies) = pending.await else { return };
        for lock in &locks {
            let granted = replies.get(lock.at).and_then(|reply| lock.granted(reply));
            let (fences, _) = granted.unwrap_or_default();
            for (name, fence) in lock.names.iter().zip(fences) {
                release.release(lock.db, name, fence).await;
            }
        }
    });
}

/// What was asked for.
struct AcquireTarget {
    db: u32,
    owner: Bytes,
    user: UserTag,
    names: Vec<Bytes>,
    ttl_ms: u64,
}

impl AcquireTarget {
    /// Its own copies, and the release that is made of one of them.
    fn memory_bytes(&self) -> usize {
        let names = self.names.iter().map(|name| name.len() + NAME_OVERHEAD_BYTES).sum::<usize>();
        let longest = self.names.iter().map(Bytes::len).max().unwrap_or(0);
        self.owner.len() + names + longest
    }

    fn read(blob: &[u8]) -> Option<AcquireTarget> {
        let command = Command::decode(blob)?;
        let user = command.user();
        let target = |db, owner: &[u8], names: &[&[u8]], ttl_ms| AcquireTarget {
            db,
            owner: Bytes::copy_from_slice(owner),
            user,
            names: names.iter().map(|name| Bytes::copy_from_slice(name)).collect(),
            ttl_ms,
        };
        match command.without_user() {
            Command::Acquire { db, resource, owner, ttl_ms, .. }
            | Command::AcquireWith { db, resource, owner, ttl_ms, .. } => {
                Some(target(db, owner, &[resource], ttl_ms))
            }
            Command::MAcquire { db, resources, owner, ttl_ms, .. }
            | Command::MAcquireShared { db, resources, owner, ttl_ms, .. } => {
                Some(target(db, owner, &resources, ttl_ms))
            }
            Command::Release { .. }
            | Command::Convert { .. }
            | Command::ForceReleaseOne { .. }
            | Command::SessionOpenWith { .. }
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
            | Command::Upgrade(_)
            | Command::Digest(_)
            | Command::FenceCheck { .. }
            | Command::FenceCall { .. }
            | Command::Redis { .. }
            | Command::Transaction { .. }
            | Command::Conditional(_)
            | Command::Effects(_)
            | Command::OfUser(_) => None,
            #[cfg(feature = "next-version")]
            Command::Next => None,
        }
    }
}

struct OrphanRelease {
    tier2: Tier2Handle,
    retries: Retries,
}

impl OrphanRelease {
    /// The wait was called off, or its outcome is not known, but there may be a grant. A release that can release nothing tells
    /// when the call is through: what this node submits is applied in order.
    async fn look_and_release(&mut self, target: &AcquireTarget) -> Option<()> {
        self.release(target.db, &target.names[0], Fence(1)).await?;
        for name in &target.names {
            let AcquireTarget { db, user, .. } = *target;
            let query = || {
                let (resource, owner) = (name.clone(), target.owner.clone());
                OwnedQuery::GrantByOwner { db, resource, owner, user }
            };
            let reply = self.answer(|tier2| tier2.query(query())).await?;
            if let Some(GrantState::Held { fence, .. }) = GrantState::read(&reply) {
                self.release(db, name, fence).await?;
            }
        }
        Some(())
    }

    async fn release(&mut self, db: u32, resource: &[u8], fence: Fence) -> Option<()> {
        let mut blob = Vec::with_capacity(resource.len() + 32);
        Command::Release { db, resource, fence }.encode(&mut blob);
        let blob = Bytes::from(blob);
        self.answer(|tier2| tier2.submit(blob.clone(), 0)).await.map(|_| ())
    }

    /// The answer of the cluster. `None`: there was none, and the lock ends with its ttl.
    async fn answer(&mut self, ask: impl Fn(&Tier2Handle) -> PendingReply) -> Option<Reply> {
        loop {
            let reply = ask(&self.tier2).await;
            if !matches!(code(&reply), Some("UNAVAILABLE" | "INDETERMINATE")) {
                return Some(reply);
            }
            if !self.retries.pause().await {
                tracing::debug!(
                    "giving up the release of a disconnected client's grant: it ends with its ttl"
                );
                return None;
            }
        }
    }
}

fn code(reply: &Reply) -> Option<&str> {
    let Reply::Error(refusal) = reply else { return None };
    Some(refusal.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_api::{Input, Outputs, Ticket, WakeFilter};
    use crate::tier2::handle::{connect, NodeEndpoint};
    use crate::tier2::refusals;
    use std::time::{Duration, Instant};

    /// The next request that reaches the node: its ticket, and the fence if it is a release.
    fn next(node: &mut NodeEndpoint) -> (Ticket, Option<Fence>) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            let mut inputs = Vec::new();
            node.collect(Duration::from_millis(50), WakeFilter::default(), &mut inputs);
            for input in inputs {
                match input {
                    Input::Submit(submit) => match Command::decode(&submit.blob) {
                        Some(Command::Release { fence, .. }) => return (submit.ticket, Some(fence)),
                        other => panic!("not a release: {other:?}"),
                    },
                    Input::Read(read) => return (read.ticket, None),
                    _ => {}
                }
            }
        }
        panic!("nothing came")
    }

    fn answer(node: &mut NodeEndpoint, ticket: Ticket, reply: Reply) {
        node.deliver(&mut Outputs { replies: vec![(ticket, reply)], ..Outputs::default() });
    }

    fn acquire(ttl_ms: u64) -> Bytes {
        let mut blob = Vec::new();
        let (resource, owner) = (&b"r"[..], &b"made-up"[..]);
        Command::Acquire { db: 0, resource, ttl_ms, wait_ms: 0, owner, session: None }.encode(&mut blob);
        blob.into()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_release_that_fails_is_tried_again() {
        let (tier2, mut node) = connect(5_000);
        let granted = Reply::Granted { fence: Fence(42), ttl_ms: 60_000 };
        start(tier2, acquire(60_000), PendingReply::answered(granted), false);
        for refused in [refusals::no_quorum(), refusals::indeterminate(), refusals::queue_full()] {
            let (ticket, fence) = next(&mut node);
            assert_eq!(fence, Some(Fence(42)));
            answer(&mut node, ticket, refused);
        }
        let (ticket, fence) = next(&mut node);
        assert_eq!(fence, Some(Fence(42)));
        answer(&mut node, ticket, Reply::Released);
    }

    /// The acquire itself may have been applied although its outcome is not known.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_grant_whose_outcome_was_not_known_is_looked_for() {
        let (tier2, mut node) = connect(5_000);
        start(tier2, acquire(60_000), PendingReply::answered(refusals::indeterminate()), false);
        let (ticket, fence) = next(&mut node);
        assert_eq!(fence, Some(Fence(1)), "nobody's fence: it tells when the acquire is through");
        answer(&mut node, ticket, refusals::no_quorum());
        let (ticket, _) = next(&mut node);
        answer(&mut node, ticket, Reply::Refused(redfence_core::types::Reason::NotOwner));
        let (ticket, fence) = next(&mut node);
        assert_eq!(fence, None, "a read");
        answer(&mut node, ticket, refusals::no_quorum());
        assert_eq!(next(&mut node).1, None, "and again");
    }
}
