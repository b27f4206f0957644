//! Tier 1 on one Redis, by whichever of its implementations: for tests that restart servers and swap one for another.

use crate::backends::lua::{load_functions, load_script, Form};
use crate::backends::lua_wire::LuaWire;
use crate::client::{Client, SocketWire, Wire};
use crate::redis::{Options, Redis};
use crate::resp::Protocol;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier1 {
    Module,
    Functions,
    Script,
}

impl Tier1 {
    pub const ALL: [Tier1; 3] = [Tier1::Module, Tier1::Functions, Tier1::Script];

    /// How a server that serves this must be started.
    pub fn options(self) -> Options {
        match self {
            Tier1::Module => Options::with_module(),
            Tier1::Functions | Tier1::Script => Options::plain(),
        }
    }

    /// A client of a server that runs; loads the library if it is one.
    pub fn client(self, server: &Redis) -> Client {
        let protocol = Protocol::Resp2;
        let wire: Box<dyn Wire> = match self.form(server) {
            None => Box::new(
                SocketWire::open(server.address(), protocol).unwrap_or_else(|error| panic!("{error}")),
            ),
            Some(form) => Box::new(LuaWire::open(server.address(), protocol, form)),
        };
        Client::new(wire, protocol)
    }

    fn form(self, server: &Redis) -> Option<Form> {
        match self {
            Tier1::Module => None,
            Tier1::Functions => Some(load_functions(server)),
            Tier1::Script => Some(load_script(server)),
        }
    }
}
