//! The Lua library on a plain redis-server, as a function library and as a plain script.

use std::sync::{Arc, OnceLock};

use crate::artifacts;
use crate::backend::{Abilities, Backend};
use crate::backends::lua_wire::LuaWire;
use crate::client::Wire;
use crate::redis::{Options, Redis};
use crate::resp::{Protocol, Value};

/// In which of its two forms the library is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    Functions,
    /// By the SHA-1 that SCRIPT LOAD answered.
    Script(String),
}

/// Loads the library into a running server and says how to call it.
pub fn load_functions(server: &Redis) -> Form {
    let source = read("redfence.lua");
    let reply = server.ask(&["FUNCTION", "LOAD", "REPLACE", &source]);
    assert!(!reply.is_error(), "FUNCTION LOAD answered {reply:?}");
    Form::Functions
}

pub fn load_script(server: &Redis) -> Form {
    match server.ask(&["SCRIPT", "LOAD", &read("redfence-script.lua")]) {
        Value::Bulk(sha) => Form::Script(String::from_utf8(sha).expect("a SHA-1 in hexadecimal")),
        other => panic!("SCRIPT LOAD answered {other:?}"),
    }
}

fn read(file: &str) -> String {
    let path = artifacts::lua_folder().unwrap_or_else(|missing| panic!("{missing}")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub struct LuaBackend {
    name: &'static str,
    load: fn(&Redis) -> Form,
    server: OnceLock<(Redis, Form)>,
}

impl LuaBackend {
    pub fn functions() -> Arc<LuaBackend> {
        Arc::new(LuaBackend { name: "lua_functions", load: load_functions, server: OnceLock::new() })
    }

    pub fn script() -> Arc<LuaBackend> {
        Arc::new(LuaBackend { name: "lua_script", load: load_script, server: OnceLock::new() })
    }
}

impl Backend for LuaBackend {
    fn name(&self) -> &'static str {
        self.name
    }

    fn abilities(&self) -> Abilities {
        Abilities::EFFICIENCY
            .and(Abilities::EFFICIENCY_ALONE)
            .and(Abilities::EVENTS)
            .and(Abilities::FENCING)
            .and(Abilities::PLAIN_KEYS)
    }

    fn missing(&self) -> Option<String> {
        artifacts::redis_server().and_then(|_| artifacts::lua_folder()).err()
    }

    fn connect(&self, protocol: Protocol) -> Box<dyn Wire> {
        let (server, form) = self.server.get_or_init(|| {
            let server = Redis::start(&Options::plain());
            let form = (self.load)(&server);
            (server, form)
        });
        Box::new(LuaWire::open(server.address(), protocol, form.clone()))
    }

    fn log(&self) -> String {
        self.server.get().map(|(server, _)| server.log()).unwrap_or_default()
    }
}
