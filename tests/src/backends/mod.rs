//! One file for each kind of backend, and the list the conformance suite runs against.

pub mod lua;
pub mod lua_wire;
pub mod machine;
pub mod module;
pub mod proxy;
pub mod rendering;

use std::sync::Arc;

use redfence_core::types::Tier;

use crate::backend::Backend;

/// Every backend of the conformance suite.
pub fn all() -> Vec<Arc<dyn Backend>> {
    let mut backends: Vec<Arc<dyn Backend>> = vec![
        machine::MachineBackend::new(Tier::Correctness),
        Arc::new(module::ModuleBackend::default()),
        lua::LuaBackend::functions(),
        lua::LuaBackend::script(),
    ];
    backends.extend(proxy::all());
    backends
}
