//! Tier 1 as the proxy serves it: from its own table, or from the Redis behind it.
//!
//! # Layout
//!
//! - [`embedded`]: the lock machine in this process, not replicated, when there is no Redis
//! - [`marks`]: `FENCE.*` on the embedded tier
//! - [`upstream`]: the Redis behind the proxy: what it can do, and whether it is there
//! - [`link`]: one client's own connection to it; bytes pass unchanged
//! - [`trunk`]: a connection to it that many clients share; [`seat`]: one client's place there
//! - [`replies`]: where a reply ends
//! - [`listener`]: what it publishes
//! - [`lua`]: `LOCK.*` on a Redis without the module, waiting included
//! - [`caller`]: a small client for our own errands
//!
//! # Caveats
//!
//! What the embedded tier holds dies with the process: fences do not go back, because they never run behind the clock.

pub mod caller;
pub mod embedded;
pub mod link;
pub mod listener;
pub mod lua;
pub mod marks;
pub mod replies;
pub mod seat;
pub mod trunk;
pub mod upstream;
