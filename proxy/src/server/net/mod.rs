//! The client connection: socket to frames, replies in order.
//!
//! # Layout
//!
//! - [`listener`]: accepts clients, up to the connection limit
//! - [`connection`]: the task of one client; [`socket`]: its bytes in and out
//! - [`pending`]: replies in flight, in the order of their commands; [`deferring`]: those of a client that reads slowly
//! - [`pushes`]: messages the client did not ask for (pub/sub, invalidations, lost locks)

pub mod connection;
pub mod deferring;
pub mod listener;
pub mod pending;
pub mod pushes;
pub mod socket;
