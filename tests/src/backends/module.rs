//! A redis-server with the module loaded.

use std::sync::OnceLock;

use crate::artifacts;
use crate::backend::{Abilities, Backend};
use crate::client::{SocketWire, Wire};
use crate::redis::{Options, Redis};
use crate::resp::Protocol;

#[derive(Default)]
pub struct ModuleBackend {
    server: OnceLock<Redis>,
}

impl Backend for ModuleBackend {
    fn name(&self) -> &'static str {
        "module"
    }

    fn abilities(&self) -> Abilities {
        Abilities::EFFICIENCY
            .and(Abilities::EFFICIENCY_ALONE)
            .and(Abilities::EVENTS)
            .and(Abilities::FENCING)
            .and(Abilities::PLAIN_KEYS)
            .and(Abilities::COMMAND_TABLE)
            .and(Abilities::WIRE)
            .and(Abilities::TRANSACTIONS)
    }

    fn missing(&self) -> Option<String> {
        artifacts::redis_server().and_then(|_| artifacts::module()).err()
    }

    fn connect(&self, protocol: Protocol) -> Box<dyn Wire> {
        let server = self.server.get_or_init(|| Redis::start(&Options::with_module()));
        let wire = SocketWire::open(server.address(), protocol);
        Box::new(wire.unwrap_or_else(|error| panic!("{error}\n{}", server.log())))
    }

    fn log(&self) -> String {
        self.server.get().map(Redis::log).unwrap_or_default()
    }
}
