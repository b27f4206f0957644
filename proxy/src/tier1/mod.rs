//! Tier 1: `LOCK.*` and plain commands on the upstream Redis. Without an upstream there is no Tier 1: Tier 2 serves `EFFICIENCY` too.
//!
//! # Layout
//!
//! - [`upstream`]: the upstream Redis: its address, its health, which backend serves `LOCK.*` there
//! - `sentinel`: who is the master, where Sentinels watch over it
//! - [`command_table`]: where that Redis says its commands have their keys
//! - [`own_connection`]: one client's own connection to it; bytes pass unchanged
//! - [`shared_connection`]: a connection that many clients share; [`reply_slot`]: one client's replies there
//! - [`stream`]: the socket of each of them, plain or through TLS
//! - [`subscriber`]: the pub/sub connection that feeds this node's hub
//! - [`lua`]: `LOCK.*` on a Redis without the module, waiting included
//! - `attempts`: waits there that share one place in a queue
//! - [`client`]: a small Redis client for the proxy's own calls

mod attempts;
pub mod client;
pub mod command_table;
pub mod lua;
pub mod own_connection;
pub mod reply_slot;
mod sentinel;
pub mod shared_connection;
pub mod stream;
pub mod subscriber;
pub mod upstream;
