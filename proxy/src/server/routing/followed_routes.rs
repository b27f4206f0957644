//! The routes by which one client's commands are decided. Part of [`CommandContext`].
//!
//! A connection takes a new router only while nothing is in flight, and says in its [`ClientInfo`] which one it follows, so that
//! the settings follower knows when no command depends on older routes.
//!

use crate::server::client::registry::ClientInfo;
use crate::server::context::CommandContext;
use crate::server::net::connection::Disconnect;
use crate::server::net::in_flight::{AwaitedReply, InFlight};
use crate::server::routing::keys;
use crate::server::routing::router::depends_on_routes;
use crate::server::routing::router::{Destination, PlainDestination, Router};
use crate::server::routing::routes::stale_routes;
use crate::server::routing::waiting::Waiting;
use crate::server::ServerState;
use redfence_core::grammar::{self, Request};
use redfence_core::reply::Refusal;
use std::sync::Arc;

#[derive(Debug)]
pub(in crate::server) struct FollowedRoutes {
    /// Changes only while nothing is in flight.
    pub(super) router: Arc<Router>,
    /// The client's info names the router's generation.
    is_routed: bool,
    /// The routes were not confirmed lately: what depends on them is refused.
    pub(in crate::server) is_stale: bool,
    /// Bytes of the waiting command recorded in the client's info.
    pub(in crate::server) waiting_bytes: usize,
}

impl FollowedRoutes {
    pub(in crate::server) fn new(router: Arc<Router>) -> FollowedRoutes {
        FollowedRoutes { router, is_routed: false, is_stale: false, waiting_bytes: 0 }
    }

    /// Whether the routes in force decide what is in flight as it was decided. `None`: they are not known here yet.
    pub(in crate::server) fn still_hold(&self, server: &ServerState, info: &ClientInfo) -> Option<bool> {
        let version = server.tier2.routing_version();
        if self.router.covers(version) {
            return Some(true);
        }
        let newest = server.routing.newest();
        let alike = || info.waiting().as_ref().is_some_and(|waiting| waiting.is_decided_alike_by(&newest));
        newest.covers(version).then(alike)
    }
}

impl CommandContext {
    /// Whether commands of this client may reach the upstream Redis: there is one, and the client's listener passes to it.
    pub(in crate::server) fn has_upstream(&self) -> bool {
        self.routes.router.has_upstream_for(self.client.listener_kind)
    }

    /// Whether plain keys of this client live in either tier, each by its route.
    pub(in crate::server) fn has_keys_in_both_tiers(&self) -> bool {
        self.routes.router.divides_keys(self.client.listener_kind)
    }

    /// Who answers, by routes that are known to be the cluster's.
    pub(super) fn route_lock(&self, request: &Request<'_>) -> Result<Destination, Refusal> {
        if self.routes.is_stale && self.has_upstream() && depends_on_routes(request) {
            return Err(stale_routes());
        }
        self.routes.router.lock(self.client.listener_kind, request)
    }

    /// Where these keys live, by routes that are known to be the cluster's.
    pub(super) fn route_plain<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Result<PlainDestination, Refusal> {
        if self.routes.is_stale && self.has_upstream() {
            return Err(stale_routes());
        }
        self.routes.router.plain(self.client.listener_kind, keys)
    }

    /// Says on the client info what is in flight, if it is one command that may wait for long.
    pub(in crate::server) fn note_waiting(&mut self, argv: &[&[u8]]) {
        let alone = self.replies.awaited.len() == 1
            && matches!(self.replies.in_flight, InFlight::Alone | InFlight::OwnUpstream);
        if !alone
            || !self.routes.is_routed
            || !self.routes.router.has_upstream()
            || self.client.transaction.is_some()
        {
            return;
        }
        if grammar::is_ours(argv[0]) || !keys::may_share(argv[0]) {
            let waiting = Waiting::of(&self.routes.router, self.client.listener_kind, argv);
            self.routes.waiting_bytes = waiting.as_ref().map_or(0, Waiting::bytes);
            self.client.info.set_waiting(waiting);
        }
    }

    pub(in crate::server) fn clear_waiting(&mut self) {
        if std::mem::take(&mut self.routes.waiting_bytes) > 0 {
            self.client.info.set_waiting(None);
        }
    }

    /// Nothing that is in flight depends on routes.
    pub(in crate::server) fn needs_no_routes(&mut self) {
        self.routes.is_routed = false;
        self.client.info.clear_routed_by();
    }

    /// Whether the next command may be decided: by the newest router, which is taken when nothing is in flight.
    pub(in crate::server) fn follow_routes(&mut self) -> bool {
        let newest = self.server.routing.generation();
        let may_go_on = if self.routes.is_routed {
            self.routes.router.generation == newest
                || self.replies.in_flight == InFlight::Nothing && self.take_routes()
        } else {
            self.take_routes()
        };
        if may_go_on {
            self.clear_waiting();
        }
        may_go_on
    }

    pub(in crate::server) fn take_routes(&mut self) -> bool {
        if self.server.upstream.is_none() {
            // All names are served by Tier 2 whatever the routes say: no command in flight depends on them.
            if self.routes.router.generation != self.server.routing.generation() {
                self.routes.router = self.server.routing.newest();
            }
            return true;
        }
        loop {
            if self.routes.router.generation != self.server.routing.generation() {
                self.routes.router = self.server.routing.newest();
                if let Some(transaction) = &mut self.client.transaction {
                    // What it has queued was decided by older routes.
                    transaction.must_abort = true;
                }
            }
            // First the client info, then another look: a router put in force in between waits for us or is seen by us.
            self.client.info.set_routed_by(self.routes.router.generation);
            if self.server.routing.generation() == self.routes.router.generation {
                break;
            }
        }
        self.routes.is_routed = true;
        self.routes.is_stale =
            self.server.upstream.is_some() && !self.server.routing.is_fresh(self.server.now_ms());
        true
    }

    pub(in crate::server) fn leave_routes(&mut self) {
        if self.routes.is_routed && self.replies.in_flight == InFlight::Nothing {
            self.clear_waiting();
            self.needs_no_routes();
        }
    }

    /// The upstream Redis's reply is sent only while the routes hold by which it was asked: a name may belong to the other
    /// tier by now, and have another holder there.
    pub(in crate::server) fn check_routes_of_passing(&self) -> Result<(), Disconnect> {
        let passes = match self.replies.in_flight {
            InFlight::OwnUpstream | InFlight::SharedUpstream => !self.replies.awaited.is_empty(),
            // A wait in Lua. What else is alone there is asked of Tier 2.
            InFlight::Alone => self.replies.awaited.iter().any(AwaitedReply::is_asked_of_upstream),
            InFlight::Nothing | InFlight::Tier2 | InFlight::Reads => false,
        };
        if passes && !self.server.routing.is_fresh(self.server.now_ms()) {
            tracing::info!(
                client = self.client.info.id,
                "closing client: routes not confirmed by the leader, upstream replies withheld"
            );
            return Err(Disconnect);
        }
        Ok(())
    }
}
