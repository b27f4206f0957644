//! The client connection: socket to frames, replies in order.
//!
//! # Layout
//!
//! - [`listener`]: accepts clients, up to the connection limit
//! - [`connection`]: the task of one client; [`socket`]: its bytes in and out
//! - [`replies`]: replies that wait to be sent or are awaited; [`in_flight`]: what is awaited; [`delivery`]: takes it as it comes
//! - [`deferred_reads`]: reads of a client that reads its replies slowly
//! - [`pushes`]: messages the client did not ask for (pub/sub, invalidations, lost locks)

pub mod connection;
pub mod deferred_reads;
pub mod delivery;
pub mod in_flight;
pub mod in_process;
pub mod listener;
pub mod pushes;
pub mod replies;
pub mod socket;
