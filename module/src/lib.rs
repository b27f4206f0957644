//! Tier 1 inside Redis: `LOCK.*` and `FENCE.*` as a Redis module, for Redis 7.0 and later and Valkey.
//!
//! This file is the command table and the table of settings, nothing else.
//!
//! # Layout
//!
//! - [`commands`]: one file a command; [`multi`] what several of them share
//! - [`record`]: a lock as Redis keeps it; the only code that knows the layout
//! - [`waiters`] and [`wait_queues`]: blocked clients, and who waits for what
//! - [`events`] and [`losses`]: what subscribers hear; [`info`], [`config`], [`clock`]; [`observers`]: whether anybody would see an effect or an event
//! - [`ffi`]: the border to Redis, with every `unsafe` block
//!
//! # Caveats
//!
//! At most one holder while this Redis keeps its data. A failover, an eviction or a lost write may break it; fences still rise.

#![deny(unsafe_code)]

mod clock;
mod commands;
mod config;
mod events;
#[allow(unsafe_code)]
mod ffi;
mod info;
mod losses;
mod multi;
mod observers;
mod record;
mod wait_queues;
mod waiters;

use commands::{CommandContext, CommandOutcome};
use redfence_core::grammar::Request;
use redfence_core::reply::Refusal;
use redis_module::configuration::ConfigurationFlags;
use redis_module::{redis_module, Context, RedisString, Status};

#[cfg(not(test))]
type Allocator = redis_module::alloc::RedisAlloc;
#[cfg(not(test))]
const ALLOCATOR: Allocator = redis_module::alloc::RedisAlloc;
/// Redis's allocator lives in a server, and unit tests run without one.
#[cfg(test)]
type Allocator = std::alloc::System;
#[cfg(test)]
const ALLOCATOR: Allocator = std::alloc::System;

/// The command table.
pub(crate) fn run(call: &CommandContext<'_>, request: &Request<'_>) -> Result<CommandOutcome, Refusal> {
    match request {
        Request::Acquire(request) => commands::acquire::run(call, request),
        Request::Release(request) => commands::release::run(call, request),
        Request::Renew(request) => commands::renew::run(call, request),
        Request::Info(request) => commands::info::run(call, request),
        Request::MAcquire(request) => commands::macquire::run(call, request),
        Request::MRelease(request) => commands::mrelease::run(call, request),
        Request::Queue(request) => commands::queue::run(call, request),
        Request::Scan(request) => commands::scan::run(call, request),
        Request::ForceRelease(request) => commands::force_release::run(call, request),
        Request::Session(_) => commands::proxy_only::session(),
        Request::Convert(_) | Request::Explain(_) => commands::proxy_only::kinds(),
        Request::Notify(_) => commands::proxy_only::notify(),
        Request::Cluster(_) => commands::proxy_only::cluster(),
        Request::FenceCheck(request) => commands::fence::check(call, request),
        Request::FenceGet(request) => commands::fence::get(call, request),
        Request::FenceCall(request) => commands::fence::call(call, request),
    }
}

fn start(ctx: &Context, _arguments: &[RedisString]) -> Status {
    let ctx = ffi::register::ctx_at_load(ctx);
    // A server too old for us panics in the first call it does not know; it must go on without us.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ctx.register_all())) {
        Ok(Ok(())) => {}
        Ok(Err(failure)) => {
            ctx.log_warning(&format!("redfence cannot be loaded: {failure}"));
            return Status::Err;
        }
        Err(_) => {
            ctx.log_warning("redfence cannot be loaded: it needs Redis 7.0 or later, or Valkey");
            return Status::Err;
        }
    }
    record::names::learn_mode(&ctx);
    observers::learn(&ctx);
    if ctx.may_evict() {
        ctx.log_warning(
            "maxmemory-policy may evict keys, and locks are keys: a lock may be lost while it is held. \
             Set maxmemory-policy to noeviction on a Redis that keeps locks.",
        );
    }
    Status::Ok
}

redis_module! {
    name: "redfence",
    version: 1,
    allocator: (Allocator, ALLOCATOR),
    data_types: [],
    init: start,
    configurations: [
        i64: [
            ["companion-retention-ms", &config::COMPANION_RETENTION_MS, config::COMPANION_RETENTION_MS_DEFAULT,
                config::COMPANION_RETENTION_MS_MIN, config::RETENTION_MS_MAX, ConfigurationFlags::DEFAULT, None],
            ["mark-retention-ms", &config::MARK_RETENTION_MS, 0,
                0, config::RETENTION_MS_MAX, ConfigurationFlags::DEFAULT, None],
        ],
        string: [],
        bool: [
            ["events", &config::EVENTS, true, ConfigurationFlags::DEFAULT, None],
        ],
        enum: [],
        module_args_as_configuration: true,
    ]
}
