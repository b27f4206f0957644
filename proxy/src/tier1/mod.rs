//! Tier 1 as the proxy serves it: from the Redis behind it. Without one there is no Tier 1: Tier 2 serves `EFFICIENCY` too.
//!
//! # Layout
//!
//! - [`upstream`]: the Redis behind the proxy: what it can do, and whether it is there
//! - [`link`]: one client's own connection to it; bytes pass unchanged
//! - [`trunk`]: a connection to it that many clients share; [`seat`]: one client's place there
//! - [`listener`]: what it publishes
//! - [`lua`]: `LOCK.*` on a Redis without the module, waiting included
//! - [`caller`]: a small client for our own errands

pub mod caller;
pub mod link;
pub mod listener;
pub mod lua;
pub mod seat;
pub mod trunk;
pub mod upstream;
