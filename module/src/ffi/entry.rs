//! Every function Redis calls. A panic must not cross into Redis, where it would end the server: each entry catches it,
//! logs it, and answers an error where somebody waits for an answer.

use super::{api, Arg, ClientId, Ctx, Name};
use crate::commands::{self, CommandOutcome};
use crate::waiters::{self, BlockedReply};
use crate::{info, losses, observers};
use redfence_core::reply::{Refusal, Reply};
use redis_module::raw;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};

const OK: c_int = raw::REDISMODULE_OK as c_int;

/// Runs `body` with a context. `None` where it panicked; that has been logged.
fn guarded<R>(raw: *mut raw::RedisModuleCtx, body: impl FnOnce(&Ctx) -> R) -> Option<R> {
    // SAFETY: every caller is a callback of Redis and hands on the context it was given.
    guarded_with(unsafe { Ctx::new(raw) }?, body)
}

fn guarded_with<R>(ctx: Ctx, body: impl FnOnce(&Ctx) -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(|| body(&ctx))) {
        Ok(result) => Some(result),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no text");
            ctx.log_warning(&format!("internal error, please report: {text}"));
            None
        }
    }
}

fn internal_error() -> Reply {
    Reply::Error(Refusal::new("ERR internal error in redfence; the server's log has the details"))
}

pub(super) extern "C" fn on_command(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: this is a command's callback.
    let command_ctx = unsafe { Ctx::of_command(ctx) };
    let done = command_ctx.and_then(|ctx| {
        guarded_with(ctx, |ctx| {
            // SAFETY: Redis hands over `argc` live arguments for the length of this call.
            let argv = unsafe { Arg::slice(argv, argc as usize) };
            match commands::answer(ctx, argv) {
                CommandOutcome::Reply(reply) => ctx.reply(&reply),
                CommandOutcome::Sent => {}
            }
        })
    });
    if done.is_none() {
        guarded(ctx, |ctx| ctx.reply(&internal_error()));
    }
    OK
}

/// For commands whose keys Redis asks for by calling them.
pub(super) extern "C" fn on_command_or_position_request(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let answered = guarded(ctx, |ctx| {
        let asked = ctx.asks_for_positions();
        if asked {
            // SAFETY: Redis hands over `argc` live arguments for the length of this call.
            ctx.answer_positions(unsafe { Arg::slice(argv, argc as usize) });
        }
        asked
    });
    match answered {
        Some(false) => on_command(ctx, argv, argc),
        Some(true) | None => OK,
    }
}

/// The reply of a client that was unblocked.
pub(super) extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    guarded(ctx, |ctx| {
        // SAFETY: the private data is the `BlockedReply` given to `UnblockClient`, and lives until `on_free`.
        let delivery = unsafe {
            api!(RedisModule_GetBlockedClientPrivateData(ctx.raw())).cast::<BlockedReply>().as_ref()
        };
        match delivery {
            Some(delivery) => {
                ctx.reply(&delivery.reply);
                delivery.delivered();
            }
            None => ctx.reply(&internal_error()),
        }
    });
    OK
}

/// Called once for every `BlockedReply`, whether its client was still there or not.
pub(super) extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, delivery: *mut c_void) {
    if delivery.is_null() {
        return;
    }
    // SAFETY: made by `Box::into_raw` in `BlockedClient::answer`; Redis calls this once for it.
    let delivery = unsafe { Box::from_raw(delivery.cast::<BlockedReply>()) };
    guarded(ctx, |ctx| waiters::on_delivery_over(ctx, *delivery));
}

pub(super) extern "C" fn on_disconnect(
    ctx: *mut raw::RedisModuleCtx,
    client: *mut raw::RedisModuleBlockedClient,
) {
    guarded(ctx, |ctx| waiters::on_disconnect(ctx, ClientId(client as usize)));
}

pub(super) extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    guarded(ctx, waiters::on_timer);
}

/// Events after which the key is not there, beside its expiry.
const GONE: [&CStr; 4] = [c"del", c"evicted", c"rename_from", c"move_from"];

pub(super) extern "C" fn on_keyspace_event(
    ctx: *mut raw::RedisModuleCtx,
    class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    guarded(ctx, |ctx| {
        // SAFETY: Redis hands over a live string for the length of this call.
        let name = unsafe { Name::new(key) };
        waiters::on_key_changed(ctx, name.bytes());
        if class & raw::REDISMODULE_NOTIFY_EXPIRED != 0 {
            losses::on_key_expired(ctx, name);
        } else if observers::somebody_listens() {
            // SAFETY: Redis hands over a text that ends in NUL and lives for the length of this call.
            let event = unsafe { CStr::from_ptr(event) };
            if GONE.contains(&event) {
                losses::on_key_gone(ctx, name);
            }
        }
    });
    OK
}

pub(super) extern "C" fn on_flush(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if subevent != raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
        return;
    }
    guarded(ctx, |ctx| {
        // SAFETY: for this event Redis hands over a `RedisModuleFlushInfo`.
        let db = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() }.map_or(-1, |info| info.dbnum);
        waiters::on_db_changed(ctx, (db >= 0).then_some(db));
    });
}

/// SWAPDB, the end of loading: any key of any db may be another now.
pub(super) extern "C" fn on_dataset_changed(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    guarded(ctx, |ctx| waiters::on_db_changed(ctx, None));
}

pub(super) extern "C" fn on_role_changed(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    guarded(ctx, |ctx| {
        observers::on_replication_may_begin();
        if subevent == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA {
            waiters::on_now_replica(ctx);
        } else {
            waiters::on_db_changed(ctx, None);
        }
    });
}

/// A fork, or a replica that came or went: replication may have begun.
pub(super) extern "C" fn on_replication_may_begin(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    guarded(ctx, |_ctx| observers::on_replication_may_begin());
}

/// Sees every command before it runs, and looks for subscribers.
pub(super) extern "C" fn on_filter(filter: *mut raw::RedisModuleCommandFilterCtx) {
    let _ = catch_unwind(|| {
        // SAFETY: Redis hands over a live filter context; position 0 is the command's name, live for this call.
        let name = unsafe {
            let name = api!(RedisModule_CommandFilterArgGet(filter, 0));
            if name.is_null() {
                return;
            }
            Name::new(name).bytes()
        };
        if matches!(name.first(), Some(b's' | b'S' | b'p' | b'P'))
            && (name.eq_ignore_ascii_case(b"subscribe") || name.eq_ignore_ascii_case(b"psubscribe"))
        {
            observers::on_subscribe();
        }
    });
}

pub(super) extern "C" fn on_cron(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    guarded(ctx, |ctx| {
        waiters::on_cron(ctx);
        observers::on_cron(ctx);
    });
}

/// `INFO` has a context of its own kind, so this entry guards itself.
pub(super) extern "C" fn on_info(ctx: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the context is live; a null name means the section is called as the module.
        if unsafe { api!(RedisModule_InfoAddSection(ctx, std::ptr::null())) } != OK {
            return;
        }
        info::fields(|name: &CStr, value: u64| {
            // SAFETY: the context is live and the name ends in NUL.
            unsafe { api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value)) };
        });
    }));
}
