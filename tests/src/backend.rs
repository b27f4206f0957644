//! What a backend must offer to be tested, and what a case may ask of it.
//!
//! A case names the abilities it needs; it exists only for the backends that have them. What a backend must
//! *refuse* is a case of its own (`tiers`), so an ability left out is never silently untested.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::client::{Client, Wire};
use crate::resp::Protocol;

/// A set of abilities; `const` so that topic tables can name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abilities(u32);

impl Abilities {
    pub const NONE: Abilities = Abilities(0);
    /// Serves Tier 1.
    pub const EFFICIENCY: Abilities = Abilities(1);
    /// Serves Tier 2: sessions, deadlock refusal.
    pub const CORRECTNESS: Abilities = Abilities(1 << 1);
    /// SUBSCRIBE and PSUBSCRIBE deliver lock events.
    pub const EVENTS: Abilities = Abilities(1 << 2);
    /// FENCE.* commands.
    pub const FENCING: Abilities = Abilities(1 << 3);
    /// SET, GET, DEL, EVAL and their kin act on the same keys.
    pub const PLAIN_KEYS: Abilities = Abilities(1 << 4);
    /// COMMAND INFO, COMMAND DOCS and the `redfence` section of INFO.
    pub const COMMAND_TABLE: Abilities = Abilities(1 << 5);
    /// A socket of the server under test itself: raw bytes, real disconnects.
    pub const WIRE: Abilities = Abilities(1 << 6);
    /// The proxy's own limits on frames.
    pub const FRAME_LIMITS: Abilities = Abilities(1 << 7);
    /// LOCK.CLUSTER.
    pub const CLUSTER: Abilities = Abilities(1 << 8);
    /// Serves Tier 1 and nothing else: whatever only Tier 2 promises is refused with `-TIER`.
    pub const EFFICIENCY_ALONE: Abilities = Abilities(1 << 9);
    /// LOCK.* commands between MULTI and EXEC, and inside scripts.
    pub const TRANSACTIONS: Abilities = Abilities(1 << 10);
    /// Serves Tier 1 by default and Tier 2 for the names routed to it.
    pub const ROUTES: Abilities = Abilities(1 << 11);

    #[must_use]
    pub const fn and(self, other: Abilities) -> Abilities {
        Abilities(self.0 | other.0)
    }

    pub const fn cover(self, needed: Abilities) -> bool {
        self.0 & needed.0 == needed.0
    }
}

/// One thing that serves the commands of `docs/commands`. Started when first connected to, stopped when dropped.
pub trait Backend: Send + Sync {
    /// As in a test's name: `module`, `lua_functions`, `tier2_3_follower`.
    fn name(&self) -> &'static str;

    fn abilities(&self) -> Abilities;

    /// What is not there and how to get it; `None` where the backend can be started.
    fn missing(&self) -> Option<String>;

    fn connect(&self, protocol: Protocol) -> Box<dyn Wire>;

    /// For the report of a failed case.
    fn log(&self) -> String;
}

/// What a case is given.
pub struct Context {
    backend: Arc<dyn Backend>,
    protocol: Protocol,
    label: String,
}

impl Context {
    pub fn new(backend: Arc<dyn Backend>, protocol: Protocol, label: &str) -> Context {
        Context { backend, protocol, label: label.to_owned() }
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub fn can(&self, abilities: Abilities) -> bool {
        self.backend.abilities().cover(abilities)
    }

    /// A new connection in the case's protocol.
    pub fn client(&self) -> Client {
        self.client_in(self.protocol)
    }

    pub fn client_in(&self, protocol: Protocol) -> Client {
        Client::new(self.backend.connect(protocol), protocol)
    }

    /// A name nobody else uses, in this run or any other on the same server.
    pub fn name(&self, what: &str) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("{what}:{}:{}:{count}", self.label, std::process::id())
    }

    /// The tier that answers a command without TIER, as LOCK.INFO spells it.
    pub fn tier(&self) -> &'static str {
        if self.can(Abilities::CORRECTNESS) {
            "CORRECTNESS"
        } else {
            "EFFICIENCY"
        }
    }
}
