//! Follows the replicated settings on behalf of this node: one task.
//!
//! It confirms the settings by a read through the leader, puts routers in force ([`crate::server::routing::routes`]), and says in the log when
//! nothing of this node follows older routes. It tells the cluster which Redis is behind this node. On the leader it founds the
//! settings from this node's flags, once, and puts pending routes in force when every member follows them.

use crate::node_api::{ClusterStatus, OwnedQuery, Role};
use crate::server::routing::router::{Router, UpstreamMatch};
use crate::server::routing::routes::SETTLE_AFTER_MS;
use crate::server::ServerState;
use redfence_core::machine::settings::{Founding, Settings, SettingsCommand};
use redfence_core::machine::upstream_identity::{Identity, Relation};
use redfence_core::machine::Command;
use redfence_core::reply::Reply;
use std::sync::Arc;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_millis(50);
const CONFIRM_EVERY_MS: u64 = 500;
/// A report that changed nothing is made again after this time.
const REPORT_AGAIN_MS: u64 = 2_000;

pub struct SettingsFollower {
    server: Arc<ServerState>,
    flags: Founding,
    settings: Settings,
    confirmed_ms: Option<u64>,
    /// What the newest router was made from.
    shown: Option<(Settings, UpstreamMatch)>,
    /// The version this node has said it follows.
    told_version: u64,
    reported: Option<(Identity, u64)>,
    /// Since when this node, as leader of this term, has seen these pending routes.
    pending_since: Option<(u64, u64, u64)>,
    compared_flags: bool,
}

/// Starts the task.
pub fn start(server: Arc<ServerState>, flags: Founding) {
    let follower = SettingsFollower {
        server,
        flags,
        settings: Settings::default(),
        confirmed_ms: None,
        shown: None,
        told_version: 0,
        reported: None,
        pending_since: None,
        compared_flags: false,
    };
    tokio::spawn(follower.run());
}

impl SettingsFollower {
    async fn run(mut self) {
        loop {
            self.look().await;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&mut self) {
        let status = self.server.tier2.status();
        let now_ms = self.server.now_ms();
        let is_due = self.confirmed_ms.is_none_or(|confirmed_ms| now_ms >= confirmed_ms + CONFIRM_EVERY_MS);
        let identity = self.identity();
        if is_due || status.settings_version != self.settings.version {
            self.confirm().await;
        } else if self.settings.founded {
            self.show(identity.as_ref());
        }
        if self.confirmed_ms.is_none() {
            return;
        }
        let leads = status.role == Role::Leader;
        if leads && !self.settings.founded {
            self.submit(SettingsCommand::Found(self.flags.clone())).await;
        }
        self.report(identity, leads, now_ms).await;
        self.tell_seen(&status).await;
        self.settle(&status, leads, now_ms).await;
    }

    /// Asks for the settings as they are now, and follows them.
    async fn confirm(&mut self) {
        let asked_ms = self.server.now_ms();
        let Reply::Bulk(bytes) = self.server.tier2.query(OwnedQuery::Settings).await else { return };
        let Some(settings) = Settings::read_bytes(&bytes) else {
            tracing::error!("cannot decode the replicated settings");
            return;
        };
        let has_upstream = self.server.upstream.is_some();
        let lapsed =
            has_upstream && self.shown.is_some() && !self.server.routing.is_fresh(self.server.now_ms());
        self.settings = settings;
        self.confirmed_ms = Some(asked_ms);
        if self.settings.founded {
            self.compare_flags();
            let identity = self.identity();
            let changed = self.show(identity.as_ref());
            if lapsed && changed {
                self.server.routing.close_busy(&self.server.clients).await;
            }
            // Only behind the router it confirms.
            self.server.routing.confirm(asked_ms);
        }
    }

    fn compare_flags(&mut self) {
        if std::mem::replace(&mut self.compared_flags, true) {
            return;
        }
        if self.flags.routing != self.settings.routing {
            let route = String::from_utf8_lossy(&redfence_core::routes::list(&self.settings.routing.routes))
                .into_owned();
            let default_tier = redfence_core::routes::tier_word(self.settings.routing.default_tier);
            tracing::warn!(
                route,
                default_tier,
                "--route or --default-tier differ from the replicated settings, which take precedence; change them with LOCK.CLUSTER SET"
            );
        }
    }

    /// What this node has behind it. `None` while its Redis has not been reached.
    fn identity(&self) -> Option<Identity> {
        match &self.server.upstream {
            None => Some(Identity::NoRedis),
            Some(upstream) => upstream.identity(),
        }
    }

    fn upstream_match(&self, identity: Option<&Identity>) -> UpstreamMatch {
        match (&self.settings.behind.reference, identity) {
            (Some(reference), Some(identity)) => match reference.relation_of(&identity.as_report()) {
                Relation::Same => UpstreamMatch::Same,
                Relation::Successor => UpstreamMatch::Unknown,
                Relation::Other => UpstreamMatch::Other,
            },
            (None, _) | (_, None) => UpstreamMatch::Unknown,
        }
    }

    /// Puts a router in force if anything it is made from has changed.
    fn show(&mut self, identity: Option<&Identity>) -> bool {
        let upstream_match = self.upstream_match(identity);
        if let Some((settings, shown)) = &self.shown {
            let pending = |settings: &Settings| settings.pending.as_ref().map(|pending| pending.version);
            let same_routes = settings.routing_version == self.settings.routing_version
                && pending(settings) == pending(&self.settings);
            if same_routes && *shown == upstream_match {
                return false;
            }
        }
        if upstream_match == UpstreamMatch::Other {
            tracing::warn!(
                "the upstream of this node differs from the leader's: refusing tier 1 and pass-through"
            );
        }
        let has_upstream = self.server.upstream.is_some();
        self.server.routing.put(Router::of_settings(&self.settings, has_upstream, upstream_match));
        self.shown = Some((self.settings.clone(), upstream_match));
        true
    }

    async fn report(&mut self, identity: Option<Identity>, leads: bool, now_ms: u64) {
        let Some(identity) = identity else { return };
        let known = self.settings.behind.reports.get(&self.server.node) == Some(&identity);
        let settled = known && self.upstream_match(Some(&identity)) == UpstreamMatch::Same;
        // A leader that has another one asks again: those who had the old one may be gone.
        let recently = self
            .reported
            .as_ref()
            .is_some_and(|(reported, at_ms)| *reported == identity && now_ms < at_ms + REPORT_AGAIN_MS);
        if settled || recently || (known && !leads) {
            return;
        }
        self.reported = Some((identity.clone(), now_ms));
        let node = self.server.node;
        self.submit(SettingsCommand::Behind { node, leads, what: identity.as_report() }).await;
    }

    /// Says that this node follows the pending routes, once nothing is left that older ones decided.
    async fn tell_seen(&mut self, status: &ClusterStatus) {
        let Some(version) = self.settings.pending.as_ref().map(|pending| pending.version) else { return };
        if self.told_version >= version || status.role == Role::Removed {
            return;
        }
        self.server.routing.drain(&self.server.clients).await;
        if self.submit(SettingsCommand::Seen { node: self.server.node, version }).await {
            self.told_version = version;
        }
    }

    async fn settle(&mut self, status: &ClusterStatus, leads: bool, now_ms: u64) {
        let Some(pending) = self.settings.pending.as_ref().filter(|_| leads) else {
            self.pending_since = None;
            return;
        };
        let version = pending.version;
        let since_ms = match self.pending_since {
            Some((term, seen, since_ms)) if (term, seen) == (status.term, version) => since_ms,
            Some(_) | None => now_ms,
        };
        self.pending_since = Some((status.term, version, since_ms));
        let all_follow = status.nodes.iter().all(|node| pending.seen.contains(&node.id));
        if all_follow || now_ms >= since_ms + SETTLE_AFTER_MS {
            self.submit(SettingsCommand::Settle { version }).await;
        }
    }

    /// True where it was applied.
    async fn submit(&mut self, command: SettingsCommand<'_>) -> bool {
        let mut blob = Vec::new();
        Command::Settings(command).encode(&mut blob);
        let reply = self.server.tier2.submit(blob.into(), 0).await;
        // Its effect is looked for at the next look.
        self.settings.version = self.settings.version.wrapping_sub(1);
        reply == Reply::OK
    }
}
