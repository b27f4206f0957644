//! Pass-through to the upstream Redis.
//!
//! # Layout
//!
//! - [`own`]: over a connection that belongs to the client alone
//! - [`shared`]: over a connection shared with other clients
//! - [`fast_path`]: runs of pipelined commands that simply pass

pub mod fast_path;
pub mod own;
pub mod shared;
