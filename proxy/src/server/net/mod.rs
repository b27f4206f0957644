//! The client connection: socket to frames, replies in order.
//!
//! # Layout
//!
//! - [`listener`]: accepts clients, up to the connection limit
//! - [`connection`]: the task of one client; [`socket`]: its bytes in and out
//! - [`in_flight`]: replies in flight, in the order of their commands; [`deferred_reads`]: those of a client that reads slowly
//! - [`pushes`]: messages the client did not ask for (pub/sub, invalidations, lost locks)

pub mod connection;
pub mod deferred_reads;
pub mod in_flight;
pub mod listener;
pub mod pushes;
pub mod socket;
