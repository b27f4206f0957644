//! Servers, relays and the driver of `clients/scenarios.toml`.
#![allow(dead_code)] // each test uses a part of it

pub(crate) mod relay;
pub(crate) mod scenarios;
pub(crate) mod servers;
pub(crate) mod steps;
