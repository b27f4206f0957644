//! Telling Redis about the commands (flags, arity, key specs, docs, ACL categories) and about the events we listen to.

use super::{api, entry, positions, Ctx};
use redfence_core::grammar::table::{KeyPlaces, Row, Verb, ROWS};
use redis_module::raw;
use std::ffi::{c_int, CString};

/// Why the module cannot be loaded.
pub(crate) type RegisterError = String;

/// The first version that has these commands.
const SINCE: &std::ffi::CStr = c"0.1.0";

impl Ctx {
    /// Everything at once, at load.
    pub(crate) fn register_all(&self) -> Result<(), RegisterError> {
        // SAFETY: we are in `OnLoad`. From now on opening a key for writing does not count as a change by itself.
        unsafe {
            api!(RedisModule_SetModuleOptions(
                self.raw(),
                raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int
            ))
        };
        ROWS.iter().try_for_each(|row| self.register_command(row))?;
        self.subscribe_to_keys()?;
        self.subscribe_to_server()?;
        self.filter_commands()?;
        // SAFETY: we are in `OnLoad`; the callback is ours.
        ok(unsafe { api!(RedisModule_RegisterInfoFunc(self.raw(), Some(entry::on_info))) }, "INFO section")
    }

    fn register_command(&self, row: &Row) -> Result<(), RegisterError> {
        let name = c_string(&row.name.to_ascii_lowercase());
        let flags = c_string(&flags_of(row));
        let (first, last, step) = match row.keys {
            KeyPlaces::First => (1, 1, 1),
            KeyPlaces::None | KeyPlaces::Counted { .. } => (0, 0, 0),
        };
        // SAFETY: we are in `OnLoad`; Redis copies both texts.
        let created = unsafe {
            api!(RedisModule_CreateCommand(
                self.raw(),
                name.as_ptr(),
                Some(if positions::are_asked_for(row) {
                    entry::on_command_or_position_request
                } else {
                    entry::on_command
                }),
                flags.as_ptr(),
                first,
                last,
                step
            ))
        };
        ok(created, row.name)?;
        // SAFETY: the command exists since the call above.
        let command = unsafe { api!(RedisModule_GetCommand(self.raw(), name.as_ptr())) };
        if command.is_null() {
            return Err(format!("{} is not known after it was created", row.name));
        }
        describe(command, row)?;
        categorise(command, row)
    }

    fn subscribe_to_keys(&self) -> Result<(), RegisterError> {
        // Not the class of strings: an overwrite matters to a waiter only by its expiry, which is a generic event of its own,
        // and every `SET` of the server would pay for our listening.
        let classes = raw::REDISMODULE_NOTIFY_GENERIC
            | raw::REDISMODULE_NOTIFY_EXPIRED
            | raw::REDISMODULE_NOTIFY_EVICTED;
        // SAFETY: we are in `OnLoad`; the callback is ours.
        ok(
            unsafe {
                api!(RedisModule_SubscribeToKeyspaceEvents(
                    self.raw(),
                    classes as c_int,
                    Some(entry::on_keyspace_event)
                ))
            },
            "keyspace events",
        )
    }

    fn filter_commands(&self) -> Result<(), RegisterError> {
        // SAFETY: we are in `OnLoad`; the callback is ours. What we call ourselves needs no filter.
        let filter = unsafe {
            api!(RedisModule_RegisterCommandFilter(
                self.raw(),
                Some(entry::on_filter),
                raw::REDISMODULE_CMDFILTER_NOSELF as c_int
            ))
        };
        if filter.is_null() {
            return Err("the server refused to register a command filter".to_owned());
        }
        Ok(())
    }

    fn subscribe_to_server(&self) -> Result<(), RegisterError> {
        let events: [(u64, raw::RedisModuleEventCallback); 7] = [
            (raw::REDISMODULE_EVENT_FORK_CHILD, Some(entry::on_replication_may_begin)),
            (raw::REDISMODULE_EVENT_REPLICA_CHANGE, Some(entry::on_replication_may_begin)),
            (raw::REDISMODULE_EVENT_FLUSHDB, Some(entry::on_flush)),
            (raw::REDISMODULE_EVENT_LOADING, Some(entry::on_dataset_changed)),
            (raw::REDISMODULE_EVENT_SWAPDB, Some(entry::on_dataset_changed)),
            (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, Some(entry::on_role_changed)),
            (raw::REDISMODULE_EVENT_CRON_LOOP, Some(entry::on_cron)),
        ];
        for (id, callback) in events {
            let event = raw::RedisModuleEvent { id, dataver: 1 };
            // SAFETY: we are in `OnLoad`; the callback is ours.
            ok(
                unsafe { api!(RedisModule_SubscribeToServerEvent(self.raw(), event, callback)) },
                "server events",
            )?;
        }
        Ok(())
    }
}

fn flags_of(row: &Row) -> String {
    let mut flags = vec![if row.write { "write" } else { "readonly" }];
    flags.extend(row.deny_oom.then_some("deny-oom"));
    flags.extend(row.fast.then_some("fast"));
    flags.extend(row.blocking.then_some("blocking"));
    flags.extend(positions::are_asked_for(row).then_some("getkeys-api"));
    // On 7.0 this flag is the only way into @admin and @dangerous.
    flags.extend(row.dangerous.then_some("admin"));
    flags.join(" ")
}

/// Arity, docs and key specs.
fn describe(command: *mut raw::RedisModuleCommand, row: &Row) -> Result<(), RegisterError> {
    // SAFETY: the table is written before us; an old server leaves the entry empty.
    let Some(set_info) = (unsafe { raw::RedisModule_SetCommandInfo }) else {
        return Ok(());
    };
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let summary = c_string(row.summary);
    let complexity = c_string(complexity_of(row));
    // A spec of all zeros ends the list.
    let mut specs = [key_spec(row), None].map(|spec| spec.unwrap_or_else(zeroed_spec));
    let mut arguments = super::register_args::Arguments::of(row);
    let info = raw::RedisModuleCommandInfo {
        version: &version,
        summary: summary.as_ptr(),
        complexity: complexity.as_ptr(),
        since: SINCE.as_ptr(),
        history: std::ptr::null_mut(),
        tips: std::ptr::null(),
        arity: row.arity as c_int,
        key_specs: specs.as_mut_ptr(),
        args: arguments.list(),
    };
    // SAFETY: all that `info` points to lives through the call, and Redis copies it.
    ok(unsafe { set_info(command, &info) }, row.name)
}

fn complexity_of(row: &Row) -> &'static str {
    match row.keys {
        KeyPlaces::First => "O(1); LOCK.QUEUE O(N) in its waiters, FENCE.CALL as the command it runs",
        KeyPlaces::Counted { .. } => "O(N log N) in the resources named",
        KeyPlaces::None => "O(1); LOCK.SCAN O(N) in its COUNT",
    }
}

fn zeroed_spec() -> raw::RedisModuleCommandKeySpec {
    // SAFETY: plain data of C, for which all zeros is a value (it ends a list).
    unsafe { std::mem::zeroed() }
}

fn key_spec(row: &Row) -> Option<raw::RedisModuleCommandKeySpec> {
    let mut flags = if row.write {
        raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE
    } else {
        raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS
    };
    if row.verb == Verb::FenceCall {
        // The keys of the inner command are known to that command alone.
        flags |= raw::REDISMODULE_CMD_KEY_INCOMPLETE;
    }
    if row.keys == (KeyPlaces::Counted { step: 2 }) {
        // Makes Redis ask us for the keys: 7.0 would find half of them by this spec.
        flags |= raw::REDISMODULE_CMD_KEY_VARIABLE_FLAGS;
    }
    let mut spec = zeroed_spec();
    spec.flags = u64::from(flags);
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index = raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 };
    match row.keys {
        KeyPlaces::None => return None,
        KeyPlaces::First => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
                lastkey: 0,
                keystep: 1,
                limit: 0,
            };
        }
        KeyPlaces::Counted { step } => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            spec.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                keynumidx: 0,
                firstkey: 1,
                keystep: c_int::from(step),
            };
        }
    }
    Some(spec)
}

/// ACL categories, where the server lets a module set them (7.2 and later).
fn categorise(command: *mut raw::RedisModuleCommand, row: &Row) -> Result<(), RegisterError> {
    // SAFETY: the table is written before us; an older server leaves the entry empty.
    let Some(set_categories) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else {
        return Ok(());
    };
    let mut categories = vec![if row.write { "write" } else { "read" }];
    categories.push(if row.fast { "fast" } else { "slow" });
    categories.extend(row.blocking.then_some("blocking"));
    if row.dangerous {
        categories.extend(["admin", "dangerous"]);
    }
    let categories = c_string(&categories.join(" "));
    // SAFETY: the command is live and the text ends in NUL.
    ok(unsafe { set_categories(command, categories.as_ptr()) }, row.name)
}

fn ok(status: c_int, what: &str) -> Result<(), RegisterError> {
    if status == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err(format!("the server refused to register {what}"))
    }
}

pub(super) fn c_string(text: &str) -> CString {
    CString::new(text).expect("our own texts have no NUL")
}

/// What `redis_module!` calls at the end of loading.
pub(crate) fn ctx_at_load(ctx: &redis_module::Context) -> Ctx {
    // SAFETY: the crate hands over the context of `OnLoad`, which is running.
    unsafe { Ctx::new(ctx.ctx) }.expect("OnLoad has a context")
}
