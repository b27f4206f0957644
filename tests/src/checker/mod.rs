//! Decides whether what clients saw could have happened in a correct lock service.
//!
//! The simulator and the fault runs write a [`History`]; [`check`] reads it. Nothing here uses the state machine: the model is
//! written independently, from the contract alone.
//!
//! # Layout
//!
//! - [`history`]: operations with their windows; [`jsonl`]: the same as lines of a file
//! - [`grants`], [`sessions`]: what the history says of each grant and of each session
//! - [`chain`]: the fast checker: fences fix the order of grants, so one pass along them decides
//! - [`plain`]: `SET NX PX` clients name owners; where their fence was seen, what they did is told by fence
//! - [`holds`]: the time each client may believe it holds a lock: never two at once
//! - [`fifo`]: first come, first served
//! - [`kinds`]: readers, writers and permits, from the log and from what clients believe
//! - [`wgl`]: a general search for small histories, to check the fast checker against
//! - [`generator`]: histories from a seed, to test the checker with
//!
//! # Caveats
//!
//! - A *busy* answer names no fence. The fast checker asks only that somebody else may have held the lock at the time.
//! - Grants that nobody was told of are matched to acquires of unknown outcome by owner where the owner was seen, else by
//!   their number alone.
//! - Times are compared on one clock. How much faster than it a leader's clock may run is part of [`Rules`].

pub mod chain;
pub mod fifo;
pub mod generator;
pub mod grants;
pub mod history;
pub mod holds;
pub mod jsonl;
pub mod kinds;
pub mod plain;
pub mod sessions;
pub mod wgl;

pub use history::{Answer, Call, History, Operation, Outcome, Reason};

use std::fmt;

/// Properties of the run that the checker must know.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How much faster than the history's clock a leader's may run, in millionths.
    pub clock_fast_ppm: u64,
    /// Tolerance for rounding to milliseconds.
    pub slack_ns: u64,
    /// Records of free locks may be forgotten within the run: then a fence of 0 says nothing.
    pub forgets: bool,
    /// Multi-locks that wait may keep a free lock from newcomers: then a busy answer says nothing.
    pub waits_for_several: bool,
    /// A waiter counts the ttl it is told from when it is told. Only where replies travel in next to no time.
    pub counts_from_told: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            clock_fast_ppm: 0,
            slack_ns: 2_000_000,
            forgets: false,
            waits_for_several: false,
            counts_from_told: false,
        }
    }
}

impl Rules {
    /// The least time, on the history's clock, that a grant of `ttl_ms` lasts. 0 is bound to its session alone.
    #[must_use]
    pub fn shortest_ns(&self, ttl_ms: u64) -> u64 {
        if ttl_ms == 0 {
            return u64::MAX;
        }
        let ns = u128::from(ttl_ms) * 1_000_000 * 1_000_000 / u128::from(1_000_000 + self.clock_fast_ppm);
        u64::try_from(ns).unwrap_or(u64::MAX).saturating_sub(self.slack_ns)
    }
}

/// Which rule is violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViolationKind {
    /// The history itself is not one: a process with two operations at once, a reply before its request.
    Malformed,
    /// One fence for two grants.
    DuplicateFence,
    /// A grant that nobody can have asked for: an operation that was refused for certain took place.
    Phantom,
    /// Two clients that could both believe they held the lock.
    TwoHolders,
    /// Two holders at once, a fence out of order, a look at a state that was over, or a grant that ended too early.
    Order,
    /// A release that took place twice.
    ReleasedTwice,
    /// A reason that does not fit how the grant ended.
    Reason,
    /// Refused as busy while nobody else can have held it.
    Busy,
    Fifo,
    /// A session ended though it was kept alive, or served after its end.
    Session,
}

/// One violation, with its evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub kind: ViolationKind,
    pub resource: u32,
    pub fence: u64,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: resource {}, fence {}: {}", self.kind, self.resource, self.fence, self.text)
    }
}

/// Everything that can be decided from the history alone. Empty: it could have happened.
#[must_use]
pub fn check(history: &History, rules: &Rules) -> Vec<Violation> {
    let mut violations = history.malformed();
    if !violations.is_empty() {
        return violations;
    }
    let told = plain::by_fence(history, &mut violations);
    let as_asked = history;
    let history = told.as_ref().unwrap_or(history);
    let sessions = sessions::Sessions::gather(history, rules, &mut violations);
    for (resource, operations) in history.by_resource() {
        let mut grants = grants::Grants::gather(resource, &operations, &sessions, rules, &mut violations);
        chain::check(&mut grants, rules, &mut violations);
        chain::check_busy(&grants, &operations, rules, &mut violations);
    }
    // Where multi-locks wait, a lock may be free with others in line, and a plain client takes what is free.
    fifo::check(if rules.waits_for_several { as_asked } else { history }, &mut violations);
    violations
}

/// Never two clients that may both believe they hold a lock. Apart from [`check`], because it needs no fences and judges by
/// the clients' clock alone.
#[must_use]
pub fn check_holds(history: &History, rules: &Rules) -> Vec<Violation> {
    let mut violations = Vec::new();
    holds::check(history, rules, &mut violations);
    violations
}
