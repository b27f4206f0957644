//! The RESP server: what a Redis client meets.
//!
//! # Layout
//!
//! - [`listener`]: accepts clients, keeps their number in bounds
//! - [`connection`], `deferring`, [`socket`], [`passing`], `sharing`: one client: replies in order, its bytes, the Redis behind, by its own connection or a shared one; [`pending`]: answers that are due;
//!   [`pushes`]: what it is told unasked
//! - [`request`], [`inline`]: bytes → words; [`encode`]: replies → bytes
//! - [`session`], [`transaction`], [`registry`], [`keeper`]: the state of a client; all clients; their sessions kept alive
//! - [`known_scripts`]: which scripts only read, and run on this node
//! - [`execute`], [`commands`]: who answers a command, and what; `quick`: the many that simply pass; [`router`], [`keys`]: which tier
//! - [`routing`], [`steward`]: the routes of the cluster, as this node follows them
//! - [`stats`], [`ids`]: what `INFO` counts; made-up names; [`give_back`], [`put_back`]: grants and items nobody is left to take
//!
//! # Caveats
//!
//! Commands of one client that go to different places (Tier 2, the Redis behind) are never under way at the same time: order first.

pub mod commands;
pub mod connection;
mod deferring;
pub mod encode;
pub mod execute;
pub mod give_back;
pub mod ids;
pub mod inline;
pub mod keeper;
pub mod keys;
pub mod known_scripts;
pub mod listener;
pub mod passing;
pub mod pending;
pub mod pushes;
pub mod put_back;
mod quick;
pub mod registry;
pub mod request;
pub mod router;
pub mod routing;
pub mod session;
mod sharing;
pub mod socket;
pub mod stats;
pub mod steward;
pub mod transaction;

use crate::client_memory::ClientMemory;
use crate::clock::Clock;
use crate::events::{EventQueue, Hub, Tracker};
use crate::tier1::listener::Listener;
use crate::tier1::upstream::Upstream;
use crate::tier2::handle::Tier2Handle;
use commands::Local;
use redfence_core::grammar;
use request::Sender;
use router::Door;
use session::Client;
use std::net::SocketAddr;
use std::sync::Arc;

/// What all connections of a node share.
#[derive(Debug)]
pub struct Shared {
    /// This node's id, which is also its number as a Redlock member.
    pub node: u64,
    pub routing: routing::Routers,
    pub password: Option<String>,
    pub clients_max: usize,
    pub listen_address: SocketAddr,
    pub run_id: String,
    pub clock: Clock,
    pub clients: registry::Registry,
    /// What is held for all of them.
    pub memory: Arc<ClientMemory>,
    pub stats: stats::Stats,
    pub hub: Arc<Hub>,
    pub tracker: Arc<Tracker>,
    pub events: EventQueue,
    pub keeper: Arc<keeper::Keeper>,
    pub known_scripts: known_scripts::KnownScripts,
    pub tier2: Tier2Handle,
    /// The Redis behind, and what it publishes.
    pub upstream: Option<Arc<Upstream>>,
    pub listener: Option<Arc<Listener>>,
}

impl Shared {
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.clock.monotonic_us()
    }

    /// The limits for what a client sends.
    #[must_use]
    pub fn sender_for(&self, client: &Client) -> Sender {
        let behind = self.upstream.is_some() && client.door == Door::Main;
        Sender { authenticated: client.authenticated, may_stream: if behind { streams } else { |_| false } }
    }
}

/// Whether a command may go to the Redis behind in pieces: what we do not answer ourselves, and the command in a `FENCE.CALL`
/// is held, because it may have to be put into other words.
fn streams(name: &[u8]) -> bool {
    !grammar::is_ours(name)
        && Local::find(name).is_none_or(|local| local.yields_to_redis() || local == Local::Watch)
}
