//! `EVAL` and its relatives: Redis scripts in Luau, run once, on the leader.
//!
//! A script never enters the log, and no node but the leader runs or compiles it. The leader runs it against an overlay
//! that only reads the machine ([`crate::machine`]'s `overlay`), while everything in the log is applied; what it wrote,
//! with a hash of each result, and its reply go into the log ([`crate::machine::effects`]). So a script may do whatever Lua
//! does: nothing has to come out the same twice. Its limits are CPU time and memory. One that runs over is refused and has
//! changed nothing; an ordinary error keeps the writes made before it, as in Redis.
//!
//! Compare-and-delete, compare-and-expire and their like, which is nearly every script there is, are not run at all: they
//! are recognised and logged as a native command (`native`).
//!
//! # Layout
//!
//! - [`scripts`]: the cache of `SCRIPT LOAD`, part of the state; `manage`: `SCRIPT EXISTS`, `FLUSH`
//! - `engine`: what becomes of a request; `running`: its run; `eval`: the commands' words
//! - `shared_entry`: which scripts may be in one entry
//! - `native`: scripts that are recognised
//! - `source`: what is compiled; `vm`: the sandbox; `prelude.luau`: its Luau half; `budget`: its limits
//! - `redis_api`, `host`: `redis.call`; `convert`, `values`: replies and Lua values
//! - `json`, `msgpack`, `structs`, `bits`, `random`: the libraries Redis has
//!
//! The engine is built into this crate only with the feature `scripts`; the cache is always there, because it is state.
//!
//! # Caveats
//!
//! - Numbers turned into text by `..` print as Luau does (shortest exact form), where Lua 5.1 prints 14 digits; `tostring`,
//!   `string.format`, `cjson` and arguments of `redis.call` print as in Redis.
//! - Texts of Lua's own errors (`attempt to index nil …`) are Luau's, and so is syntax beyond Lua 5.1.
//! - `loadstring`, `load`, `getfenv`, `setfenv`, `collectgarbage`, `print` are not there.
//! - `redis.log` checks its arguments and writes nothing.
//! - `LOCK.*` commands that write are refused in scripts.
//! - A script that would need the last free record of the state is refused as a whole with `OOM`.

/// The name under which a node sends a script of a user with limited rights to the leader: `AS_USER rights EVAL …`. Clients cannot
/// send it (no table has it), and it never enters the log.
pub const AS_USER: &[u8] = b"eval@user";
/// What stands first in those rights where the script may touch keys of Tier 2 alone, because other keys of its client are in an
/// upstream Redis. With nothing behind it, rights are not limited. Cluster version 1 does not know it.
const ROUTED: &[u8] = b"routed";

/// The rights of a script that may touch keys of Tier 2 alone. `None`: they are not limited otherwise.
#[must_use]
pub fn routed_rights(rights: Option<&[u8]>) -> Vec<u8> {
    let rights = rights.into_iter().flat_map(|rights| [b" ", rights]);
    std::iter::once(ROUTED).chain(rights).flatten().copied().collect()
}

/// What comes with a script by [`AS_USER`].
#[cfg(feature = "scripts")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Terms<'a> {
    is_routed: bool,
    /// `None`: not limited.
    rights: Option<&'a [u8]>,
}

#[cfg(feature = "scripts")]
impl Terms<'_> {
    fn read(rights: &[u8]) -> Terms<'_> {
        let limited = Terms { is_routed: false, rights: Some(rights) };
        match rights.strip_prefix(ROUTED) {
            Some([]) => Terms { is_routed: true, rights: None },
            Some([b' ', rights @ ..]) => Terms { is_routed: true, rights: Some(rights) },
            Some(_) | None => limited,
        }
    }
}

pub(crate) mod manage;
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
mod eval;
#[cfg(feature = "scripts")]
mod host;
#[cfg(feature = "scripts")]
mod json;
#[cfg(feature = "scripts")]
mod library;
#[cfg(feature = "scripts")]
mod msgpack;
#[cfg(feature = "scripts")]
mod native;
#[cfg(feature = "scripts")]
mod random;
#[cfg(feature = "scripts")]
mod redis_api;
#[cfg(feature = "scripts")]
mod running;
#[cfg(feature = "scripts")]
mod shared_entry;
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

#[cfg(feature = "scripts")]
pub use crate::machine::overlay::Taken;
#[cfg(feature = "scripts")]
pub use engine::{CallGuard, CpuMeter, Engine, Preparation, ScriptResult, Touched};
pub use scripts::Scripts;
use scripts::{sha_hex, Sha};
#[cfg(feature = "scripts")]
pub use shared_entry::SharedEntry;

use crate::reply::Refusal;

/// The error a script ends with, as Redis words it.
pub(crate) fn error_at_line(text: &str, sha: &Sha, line: u32) -> Refusal {
    Refusal::new(format!("{text} script: {}, on @user_script:{line}.", sha_hex(sha)))
}

/// A call of a script that is not cached.
pub(crate) fn no_script() -> Refusal {
    Refusal::new("NOSCRIPT No matching script. Please use EVAL.")
}
