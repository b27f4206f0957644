//! What the server does for us beside keys: replication, timers, publishing, flags, random bytes, logging.

use super::{api, entry, Ctx, Name, OwnedString};
use crate::observers;
use redis_module::raw;
use std::ffi::{CStr, CString};

pub(crate) type TimerId = raw::RedisModuleTimerID;

/// What the module has to know of the server before it writes outside a command.
#[derive(Clone, Copy)]
pub(crate) struct ServerStatus {
    pub(crate) replica: bool,
    pub(crate) loading: bool,
}

impl Ctx {
    pub(super) fn flags(&self) -> u32 {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_GetContextFlags(self.raw())) as u32 }
    }

    pub(crate) fn server_status(&self) -> ServerStatus {
        let flags = self.flags();
        ServerStatus {
            replica: flags & raw::REDISMODULE_CTX_FLAGS_SLAVE != 0,
            loading: flags & (raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING)
                != 0,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0
    }

    /// A master without a child at work.
    pub(crate) fn is_lone_master(&self) -> bool {
        let flags = self.flags();
        flags & raw::REDISMODULE_CTX_FLAGS_MASTER != 0 && flags & raw::REDISMODULE_CTX_FLAGS_ACTIVE_CHILD == 0
    }

    /// Whether every one of these fields of `INFO` is there and 0.
    pub(crate) fn info_is_zero(&self, section: &CStr, fields: &[&CStr]) -> bool {
        // SAFETY: context and texts are live; the data is freed once, after its last use.
        unsafe {
            let info = api!(RedisModule_GetServerInfo(self.raw(), section.as_ptr()));
            let zero = fields.iter().all(|field| {
                let mut failed = 0;
                let value = api!(RedisModule_ServerInfoGetFieldUnsigned(info, field.as_ptr(), &mut failed));
                failed == raw::REDISMODULE_OK as i32 && value == 0
            });
            api!(RedisModule_FreeServerInfo(self.raw(), info));
            zero
        }
    }

    /// Whether the server has a command of this name.
    pub(crate) fn knows_command(&self, name: &CStr) -> bool {
        // SAFETY: the format says two C strings follow; the answer is freed once.
        unsafe {
            let reply = api!(RedisModule_Call(
                self.raw(),
                c"COMMAND".as_ptr(),
                c"cc".as_ptr(),
                c"INFO".as_ptr(),
                name.as_ptr()
            ));
            if reply.is_null() {
                return false;
            }
            let row = api!(RedisModule_CallReplyArrayElement(reply, 0));
            let known =
                !row.is_null() && api!(RedisModule_CallReplyType(row)) == raw::REDISMODULE_REPLY_ARRAY as i32;
            api!(RedisModule_FreeCallReply(reply));
            known
        }
    }

    /// Whether keys may be evicted under memory pressure.
    pub(crate) fn may_evict(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_EVICT != 0
    }

    /// While clients are paused or a failover is under way nothing may be added to the replication stream.
    pub(crate) fn must_keep_replicas_still(&self) -> bool {
        // SAFETY: no arguments; the function is asked for by name because it is younger than the rest.
        unsafe { raw::RedisModule_AvoidReplicaTraffic.is_some_and(|avoid| avoid() != 0) }
    }

    pub(crate) fn db(&self) -> i32 {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_GetSelectedDb(self.raw())) }
    }

    /// Timers have a client of their own, whose db may be changed at will.
    pub(crate) fn select_db(&self, db: i32) {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_SelectDb(self.raw(), db)) };
    }

    /// Whether this node serves the slot of a key. Always, outside a cluster; in one, Redis itself is asked by a harmless read.
    pub(crate) fn serves_slot_of(&self, resource: &[u8]) -> bool {
        if !self.is_cluster() {
            return true;
        }
        let name = OwnedString::new(resource);
        // SAFETY: the format says one string follows. Redis answers NULL where the slot is not ours.
        unsafe {
            let reply =
                api!(RedisModule_Call(self.raw(), c"EXISTS".as_ptr(), c"s".as_ptr(), name.name().raw()));
            if reply.is_null() {
                return false;
            }
            api!(RedisModule_FreeCallReply(reply));
            true
        }
    }

    pub(crate) fn log_warning(&self, text: &str) {
        self.log(c"warning", text);
    }

    pub(crate) fn log_notice(&self, text: &str) {
        self.log(c"notice", text);
    }

    fn log(&self, level: &CStr, text: &str) {
        let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
        // SAFETY: the context is live, both texts end in NUL, and the format takes exactly one string.
        unsafe { api!(RedisModule_Log(self.raw(), level.as_ptr(), c"%s".as_ptr(), text.as_ptr())) };
    }

    /// Whether effects of this command go anywhere: asked once, because building them is dear.
    fn replicates(&self) -> bool {
        if let Some(known) = self.replicates.get() {
            return known;
        }
        let replicates = observers::has_replicas() || self.flags() & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
        self.replicates.set(Some(replicates));
        replicates
    }

    /// Counts a change, so that the server's save points see it. Replicates nothing, because nobody is there to replicate to: only
    /// called where [`Ctx::replicates`] said so, and the server itself asks again.
    fn count_change(&self) {
        // SAFETY: the context is a command's.
        unsafe { api!(RedisModule_ReplicateVerbatim(self.raw())) };
    }

    pub(crate) fn replicate_set(&self, name: Name<'_>, value: &[u8], expiry: Expiry) {
        if !self.replicates() {
            return self.count_change();
        }
        let (set, pxat, keep) = (c"SET".as_ptr(), c"PXAT".as_ptr(), c"KEEPTTL".as_ptr());
        let (start, len) = (value.as_ptr(), value.len());
        // SAFETY: the format says what follows: a string, a buffer with its length, and where there is an expiry a C string
        // and a long long. Redis copies all of it.
        unsafe {
            match expiry {
                Expiry::At(at) => {
                    api!(RedisModule_Replicate(
                        self.raw(),
                        set,
                        c"sbcl".as_ptr(),
                        name.raw(),
                        start,
                        len,
                        pxat,
                        at as i64
                    ))
                }
                Expiry::None => {
                    api!(RedisModule_Replicate(self.raw(), set, c"sb".as_ptr(), name.raw(), start, len))
                }
                Expiry::AsBefore => {
                    api!(RedisModule_Replicate(
                        self.raw(),
                        set,
                        c"sbc".as_ptr(),
                        name.raw(),
                        start,
                        len,
                        keep
                    ))
                }
            }
        };
    }

    pub(crate) fn replicate_delete(&self, name: Name<'_>) {
        if !self.replicates() {
            return self.count_change();
        }
        // SAFETY: the format says one string follows.
        unsafe { api!(RedisModule_Replicate(self.raw(), c"DEL".as_ptr(), c"s".as_ptr(), name.raw())) };
    }

    pub(crate) fn replicate_expire(&self, name: Name<'_>, at_ms: u64) {
        if !self.replicates() {
            return self.count_change();
        }
        // SAFETY: the format says a string and a long long follow.
        unsafe {
            api!(RedisModule_Replicate(
                self.raw(),
                c"PEXPIREAT".as_ptr(),
                c"sl".as_ptr(),
                name.raw(),
                at_ms as i64
            ))
        };
    }

    /// Sends the keyspace events that `SET`, `PEXPIREAT` and `DEL` would have sent.
    pub(crate) fn notify(&self, class: Class, event: &CStr, name: Name<'_>) {
        // SAFETY: context, text and name are live.
        unsafe {
            // Redis would first wake our own listener, which costs more than the lock, to find that nobody else listens.
            if api!(RedisModule_GetNotifyKeyspaceEvents()) == 0 {
                return;
            }
            api!(RedisModule_NotifyKeyspaceEvent(self.raw(), class as i32, event.as_ptr(), name.raw()))
        };
    }

    pub(crate) fn publish(&self, channel: &[u8], message: &[u8]) {
        let (channel, message) = (OwnedString::new(channel), OwnedString::new(message));
        // SAFETY: both strings live through the call.
        unsafe {
            api!(RedisModule_PublishMessage(self.raw(), channel.name().raw(), message.name().raw()));
        }
    }

    pub(crate) fn start_timer(&self, in_ms: u64) -> TimerId {
        // SAFETY: the callback is ours and takes no data.
        unsafe {
            api!(RedisModule_CreateTimer(
                self.raw(),
                in_ms as raw::mstime_t,
                Some(entry::on_timer),
                std::ptr::null_mut()
            ))
        }
    }

    /// Must not be called for the timer whose callback is running: Redis would free it twice.
    pub(crate) fn stop_timer(&self, timer: TimerId) {
        // SAFETY: Redis looks the id up, and answers an error where it is gone.
        unsafe { api!(RedisModule_StopTimer(self.raw(), timer, std::ptr::null_mut())) };
    }
}

/// When a key that was set ends.
#[derive(Clone, Copy)]
pub(crate) enum Expiry {
    /// Never.
    None,
    /// Unix time in milliseconds.
    At(u64),
    /// As it did before.
    AsBefore,
}

/// The classes of keyspace events the module causes.
#[derive(Clone, Copy)]
pub(crate) enum Class {
    Generic = raw::REDISMODULE_NOTIFY_GENERIC as isize,
    String = raw::REDISMODULE_NOTIFY_STRING as isize,
}

/// Random lower-case hexadecimal digits.
pub(crate) fn random_hex(digits: &mut [u8]) {
    // SAFETY: Redis writes exactly `len` bytes.
    unsafe { api!(RedisModule_GetRandomHexChars(digits.as_mut_ptr().cast(), digits.len())) };
}
