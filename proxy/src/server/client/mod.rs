//! The state of one client, and of all of them.
//!
//! # Layout
//!
//! - [`session`]: protocol, database, subscriptions, tracking
//! - [`transaction`]: `MULTI` and `WATCH`
//! - [`told_grants`]: locks it was told of before `LOCK.NOTIFY ON`
//! - [`registry`]: all connected clients
//! - [`unblock`]: `CLIENT UNBLOCK`
//! - [`shown`]: a client as `CLIENT LIST` shows it
//! - [`session_keepalive`]: keeps the lock sessions of connected clients alive

pub mod registry;
pub mod session;
pub mod session_keepalive;
pub mod shown;
pub mod told_grants;
pub mod transaction;
pub mod unblock;
