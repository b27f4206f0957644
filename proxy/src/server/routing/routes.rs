//! The routes this node follows, and until when it may: what all connections share of the router.
//!
//! The [`crate::server::routing::settings_follower`] follows the replicated settings and puts a new [`Router`] here when they change. A connection decides a
//! command by the router it has seen last, and takes a new one only when nothing is in flight: what is in flight was decided
//! by one router. Its client info says by which, so that the settings follower knows when nothing is left that older routes decided.
//!
//! Without word from the leader nobody can know whether the routes are still those of the cluster. They are confirmed (by a
//! read through the leader) every half second and hold for [`LEASE_MS`] from when that was asked; after that this node serves
//! nothing that depends on them, and drops what the upstream Redis may still answer. `docs/adr/` has the reasoning.

use crate::server::client::registry::{ClientInfo, Registry};
use crate::server::routing::router::Router;
use redfence_core::reply::Refusal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long routes hold that were confirmed.
pub const LEASE_MS: u64 = 3_000;
/// Connections get this long to finish what older routes decided; then they are closed.
pub const DRAIN_WITHIN: Duration = Duration::from_millis(3_000);
/// A member that has said nothing for this long serves nothing: lease and drain are over, with room for clocks that differ.
pub const SETTLE_AFTER_MS: u64 = 10_000;

const _: () = assert!(2 * (LEASE_MS + DRAIN_WITHIN.as_millis() as u64) <= SETTLE_AFTER_MS + 2_000);

#[derive(Debug)]
pub struct Routers {
    /// Of the newest router.
    generation: AtomicU64,
    newest: Mutex<Arc<Router>>,
    /// On the monotonic clock.
    fresh_until_ms: AtomicU64,
}

impl Routers {
    #[must_use]
    pub fn new(first: Router) -> Routers {
        // 0 stands for no router on a client's info.
        let first = Arc::new(first.numbered(1));
        Routers {
            generation: AtomicU64::new(1),
            newest: Mutex::new(first),
            fresh_until_ms: AtomicU64::new(0),
        }
    }

    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    #[must_use]
    pub fn newest(&self) -> Arc<Router> {
        Arc::clone(&self.newest.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether routes confirmed so far hold at this time.
    #[must_use]
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        now_ms < self.fresh_until_ms.load(Ordering::Acquire)
    }

    /// From now on commands are decided by this router.
    pub(in crate::server) fn put(&self, router: Router) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = newest.generation + 1;
        *newest = Arc::new(router.numbered(generation));
        self.generation.store(generation, Ordering::SeqCst);
    }

    /// The newest router was confirmed by a read that began at this time.
    pub(in crate::server) fn confirm(&self, asked_ms: u64) {
        self.fresh_until_ms.fetch_max(asked_ms + LEASE_MS, Ordering::AcqRel);
    }

    /// The routes had lapsed: whatever older ones decided is closed, and none of its replies are sent any more.
    pub(in crate::server) async fn close_busy(&self, clients: &Registry) {
        loop {
            let newest = self.newest();
            // A wait in Tier 2 that the new routes leave there was served by nobody else.
            let stays = |info: &ClientInfo| {
                info.waiting().as_ref().is_some_and(|it| it.is_at_tier2() && it.is_decided_alike_by(&newest))
            };
            let is_busy = |info: &Arc<ClientInfo>| info.is_behind(u64::MAX) && !stays(info);
            let busy: Vec<_> = clients.infos().into_iter().filter(is_busy).collect();
            if busy.is_empty() {
                return;
            }
            busy.iter().for_each(|info| info.kill());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns when no client has anything in flight that an older router decided otherwise. Those that take too long are
    /// closed; so is at once who waits for what the new routes give to the other tier.
    pub(in crate::server) async fn drain(&self, clients: &Registry) {
        let begun = tokio::time::Instant::now();
        let generation = self.generation();
        loop {
            let newest = self.newest();
            if !newest.has_upstream() {
                // One store serves all names, whatever the routes.
                return;
            }
            let is_behind = |info: &Arc<ClientInfo>| {
                let waiting = info.waiting();
                let stays = waiting.as_ref().is_some_and(|it| it.is_decided_alike_by(&newest));
                info.is_behind(generation) && !stays
            };
            let behind: Vec<_> = clients.infos().into_iter().filter(is_behind).collect();
            if behind.is_empty() {
                return;
            }
            for info in behind.iter().filter(|info| info.waiting().is_some()) {
                tracing::warn!(
                    client = info.id,
                    "closing client: its wait was decided by routes no longer in force"
                );
                info.kill();
            }
            if begun.elapsed() >= DRAIN_WITHIN {
                tracing::warn!(
                    clients = behind.len(),
                    "closing clients whose commands were decided by routes no longer in force"
                );
                behind.iter().for_each(|info| info.kill());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What depends on routes is refused.
#[must_use]
pub fn stale_routes() -> Refusal {
    Refusal::new(
        "UNAVAILABLE this node has not reached a leader for a while, and routes may have changed; nothing was done; retry",
    )
}
