//! The border to Redis: every `unsafe` block of the module is here or in the files below, each with its reason.
//!
//! What leaves this module is safe to use as long as it is used where it was handed out: a [`Ctx`] lives for one callback of
//! Redis, on Redis's one main thread, and nothing here is `Send`.
//!
//! # Layout
//!
//! - [`entry`]: every `extern "C"` function Redis calls; each one catches panics
//! - [`register`]: telling Redis about the commands, their keys, their docs, and the events we listen to
//! - [`positions`]: where a command's keys are
//! - [`key`]: one open key
//! - [`string`]: arguments and strings of Redis
//! - [`block`]: a blocked client, its one owner, and the reply that is on its way to it
//! - [`reply`]: rendering a `Reply`
//! - [`server`]: replication, timers, publishing, flags, logging
//!
//! # Caveats
//!
//! The API table of Redis (`raw::RedisModule_*`) is written once, before any code of ours runs, and never after.

pub(crate) mod block;
pub(crate) mod call;
pub(crate) mod entry;
pub(crate) mod key;
mod positions;
pub(crate) mod register;
mod register_args;
pub(crate) mod reply;
pub(crate) mod server;
pub(crate) mod string;

pub(crate) use block::{BlockedClient, ClientId};
pub(crate) use key::{Key, KeyType};
pub(crate) use string::{Arg, Name, OwnedString};

use redis_module::raw;
use std::cell::Cell;
use std::ptr::NonNull;

/// Calls a function of Redis's API table. Every function called by it exists since Redis 7.0.
macro_rules! api {
    ($name:ident($($argument:expr),* $(,)?)) => {
        (raw::$name.expect(concat!(stringify!($name), " is missing: Redis 7.0 or later is needed")))($($argument),*)
    };
}
pub(crate) use api;

/// The context of the callback Redis is in. Never outlives it.
pub(crate) struct Ctx {
    raw: NonNull<raw::RedisModuleCtx>,
    /// Whether effects are replicated; asked once, and only in a command.
    replicates: Cell<Option<bool>>,
}

impl Ctx {
    /// # Safety
    /// `raw` must be the context Redis gave to the callback that is running now, on the main thread.
    unsafe fn new(raw: *mut raw::RedisModuleCtx) -> Option<Ctx> {
        NonNull::new(raw).map(|raw| Ctx { raw, replicates: Cell::new(Some(true)) })
    }

    /// # Safety
    /// As above, and the callback is a command's.
    unsafe fn of_command(raw: *mut raw::RedisModuleCtx) -> Option<Ctx> {
        NonNull::new(raw).map(|raw| Ctx { raw, replicates: Cell::new(None) })
    }

    fn raw(&self) -> *mut raw::RedisModuleCtx {
        self.raw.as_ptr()
    }
}
