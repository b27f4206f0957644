//! The RESP server: what a Redis client meets.
//!
//! # Layout
//!
//! - [`net`]: listener, connection (socket to frames), replies in flight
//! - [`client`]: the state of one client, and the registry of all of them
//! - [`routing`]: who answers a command, and which tier
//! - [`upstream`]: pass-through to the upstream Redis
//! - [`access`]: users, logins, refusals, the audit log
//! - [`context`]: what a command sees of its connection
//! - [`commands`]: one file a command or family
//! - [`release_orphaned_grant`], [`restore_popped_items`]: clean-up after a client that left before its reply
//! - [`stats`]: what `INFO` counts; [`ids`]: random owners, sessions and run ids
//!
//! # Caveats
//!
//! Commands of one client that go to different places (Tier 2, the upstream Redis) are never in flight at the same time: order first.

pub mod access;
pub mod client;
pub mod commands;
pub mod context;
pub mod ids;
pub mod loss_checks;
pub mod net;
pub mod release_orphaned_grant;
pub mod restore_popped_items;
pub mod routing;
pub mod stats;
pub mod upstream;

use crate::client_memory::ClientMemory;
use crate::clock::Clock;
use crate::events::{Hub, LossWatch, Tracker};
use crate::resp::request::ParseLimits;
use crate::tier1::subscriber::UpstreamSubscriber;
use crate::tier1::upstream::Upstream;
use crate::tier2::handle::Tier2Handle;
use client::session::Client;
use client::{registry, session_keepalive};
use commands::Local;
use redfence_core::grammar;
use routing::router::ListenerKind;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// What all connections of a node share.
#[derive(Debug)]
pub struct ServerState {
    /// This node's id, which is also its number as a Redlock member.
    pub node: u64,
    pub routing: routing::routes::Routers,
    /// Who may do what.
    pub access: access::AccessControl,
    pub clients_max: usize,
    /// Clients of one address; `None`: the default.
    pub clients_per_address_max: Option<usize>,
    /// A client that sends nothing for so long is disconnected; 0: never.
    pub idle_timeout_ms: u64,
    pub listen_address: SocketAddr,
    pub run_id: String,
    pub clock: Clock,
    pub clients: registry::Registry,
    /// What is held for all of them.
    pub memory: Arc<ClientMemory>,
    pub stats: stats::Stats,
    pub hub: Arc<Hub>,
    pub tracker: Arc<Tracker>,
    pub losses: Arc<LossWatch>,
    /// How often lock events were lost because the feed from apply was full.
    pub events_lost: Arc<AtomicU64>,
    pub session_keepalive: Arc<session_keepalive::SessionKeepalive>,
    pub known_scripts: routing::known_scripts::KnownScripts,
    pub tier2: Tier2Handle,
    /// The upstream Redis, and what it publishes.
    pub upstream: Option<Arc<Upstream>>,
    pub subscriber: Option<Arc<UpstreamSubscriber>>,
}

impl ServerState {
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.clock.monotonic_us()
    }

    /// Ends the connections of these users, but that of one client.
    pub fn close_clients_of(&self, users: &[Vec<u8>], but: Option<u64>) {
        if users.is_empty() {
            return;
        }
        for info in self.clients.infos() {
            let is_meant = users.iter().any(|user| *user == info.user());
            if is_meant && Some(info.id) != but {
                info.kill();
            }
        }
    }

    /// The limits for what a client sends.
    #[must_use]
    pub fn parse_limits_for(&self, client: &Client) -> ParseLimits {
        let behind = self.upstream.is_some() && client.listener_kind == ListenerKind::Main;
        ParseLimits {
            authenticated: client.authenticated,
            may_stream: if behind { streams } else { |_| false },
        }
    }
}

/// Whether a command may go to the upstream Redis in pieces: what we do not answer ourselves, and the command in a `FENCE.CALL`
/// is held, because it may have to be put into other words.
fn streams(name: &[u8]) -> bool {
    !grammar::is_ours(name)
        && Local::find(name).is_none_or(|local| local.yields_to_upstream() || local == Local::Watch)
}
