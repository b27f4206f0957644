//! `EVAL` and its relatives: Redis scripts in Luau, the same on every node.
//!
//! A script runs when its entry is applied, on every node, against the same keys. So nothing in it may differ between two
//! nodes: it has no clock but `TIME` from the stamp, no randomness but Redis's fixed seed, no addresses, no order but a
//! sorted one; and its limits are counts. A script that runs over is stopped and its writes are undone. An ordinary error
//! keeps the writes made before it, as in Redis.
//!
//! # Layout
//!
//! - [`scripts`]: the cache of `SCRIPT LOAD`, part of the state; [`eval`]: the commands' words
//! - `source`: what is compiled; `vm`: the sandbox; `prelude.luau`: its Luau half; `budget`: its limits
//! - `redis_api`, `host`: `redis.call`; `convert`, `values`: replies and Lua values
//! - `json`, `msgpack`, `structs`, `bits`, `random`: the libraries Redis has
//!
//! The VM is built into this crate only with the feature `scripts`; the cache is always there, because it is state.
//!
//! # Caveats
//!
//! - Numbers turned into text by `..` print as Luau does (shortest exact form), where Lua 5.1 prints 14 digits; `tostring`,
//!   `string.format`, `cjson` and arguments of `redis.call` print as in Redis.
//! - `pairs` goes in sorted order, and refuses tables that have tables, functions or threads as keys. The length of a table
//!   that has both such keys and holes is the one thing left that depends on addresses.
//! - Texts of Lua's own errors (`attempt to index nil …`) are Luau's.
//! - `loadstring`, `load`, `getfenv`, `setfenv`, `collectgarbage`, `print` are not there.
//! - `math.sin` and its like come from the platform: nodes of one cluster must run the same build.
//! - `redis.log` checks its arguments and writes nothing.

pub mod eval;
pub mod scripts;

#[cfg(feature = "scripts")]
mod bits;
#[cfg(feature = "scripts")]
mod budget;
#[cfg(feature = "scripts")]
mod convert;
#[cfg(feature = "scripts")]
mod engine;
#[cfg(feature = "scripts")]
mod host;
#[cfg(feature = "scripts")]
mod json;
#[cfg(feature = "scripts")]
mod library;
#[cfg(feature = "scripts")]
mod msgpack;
#[cfg(feature = "scripts")]
mod random;
#[cfg(feature = "scripts")]
mod redis_api;
#[cfg(feature = "scripts")]
mod run;
#[cfg(feature = "scripts")]
mod source;
#[cfg(feature = "scripts")]
mod structs;
#[cfg(feature = "scripts")]
mod values;
#[cfg(feature = "scripts")]
mod vm;

#[cfg(all(test, feature = "scripts"))]
mod tests;

pub use eval::command;
pub use scripts::Scripts;
use scripts::Sha;

/// One call of a script.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub sha: Sha,
    pub body: &'a [u8],
    pub keys: &'a [&'a [u8]],
    pub args: &'a [&'a [u8]],
    pub read_only: bool,
}

#[cfg(feature = "scripts")]
pub use engine::{CpuMeter, Engine, Preparation, Ran, Touched};
#[cfg(feature = "scripts")]
pub use run::{check, run};

#[cfg(not(feature = "scripts"))]
mod without {
    use super::Call;
    use crate::keyspace::{Db, Keys};
    use crate::reply::{Refusal, Reply};

    /// This build has no script engine.
    pub fn run(_keys: &mut dyn Keys, _db: Db, _call: &Call<'_>) -> Reply {
        Reply::Error(Refusal::new("ERR scripts are not part of this build"))
    }

    /// This build has no script engine.
    pub fn check(_sha: &super::Sha, _body: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::new("ERR scripts are not part of this build"))
    }
}
#[cfg(not(feature = "scripts"))]
pub use without::{check, run};
