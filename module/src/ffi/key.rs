//! One open key.
//!
//! # Caveats
//!
//! Two handles of one key at a time go stale: callers have at most one lock and its own companion open at once.

use super::{api, Ctx, Name};
use redis_module::raw;
use std::marker::PhantomData;
use std::ptr::NonNull;

const READ: i32 = raw::REDISMODULE_READ as i32;
const WRITE: i32 = raw::REDISMODULE_WRITE as i32;

/// What an open key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyType {
    Absent,
    String,
    Other,
}

/// A key, open until dropped. Opening it for writing ends one that has expired.
pub(crate) struct Key<'c> {
    raw: NonNull<raw::RedisModuleKey>,
    ctx: &'c Ctx,
    name: Name<'c>,
    changed: bool,
    life: PhantomData<&'c Ctx>,
}

impl<'c> Key<'c> {
    /// `None` where there is no such key.
    pub(crate) fn open_to_read(ctx: &'c Ctx, name: Name<'c>) -> Option<Key<'c>> {
        Key::open(ctx, name, READ)
    }

    pub(crate) fn open_to_write(ctx: &'c Ctx, name: Name<'c>) -> Key<'c> {
        Key::open(ctx, name, READ | WRITE).expect("Redis opens any key for writing")
    }

    fn open(ctx: &'c Ctx, name: Name<'c>, mode: i32) -> Option<Key<'c>> {
        // SAFETY: context and name are live; the handle is closed on drop.
        let raw = unsafe { api!(RedisModule_OpenKey(ctx.raw(), name.raw(), mode)) };
        NonNull::new(raw.cast()).map(|raw| Key { raw, ctx, name, changed: false, life: PhantomData })
    }

    pub(crate) fn kind(&self) -> KeyType {
        // SAFETY: the handle is open.
        match unsafe { api!(RedisModule_KeyType(self.raw.as_ptr())) } as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => KeyType::Absent,
            raw::REDISMODULE_KEYTYPE_STRING => KeyType::String,
            _ => KeyType::Other,
        }
    }

    /// The bytes of a string; empty for anything else. Valid until the key is touched again.
    pub(crate) fn bytes(&mut self) -> &[u8] {
        if self.kind() != KeyType::String {
            return &[];
        }
        let mut len = 0;
        // SAFETY: the key is a string. The bytes stay put until the next call on this key, which needs `&mut self`.
        unsafe {
            let start = api!(RedisModule_StringDMA(self.raw.as_ptr(), &mut len, READ));
            if start.is_null() || len == 0 {
                return &[];
            }
            std::slice::from_raw_parts(start.cast::<u8>(), len)
        }
    }

    /// Makes the key a string of these bytes, in place where it already is one. Keeps its expiry.
    pub(crate) fn set_bytes(&mut self, bytes: &[u8]) {
        self.changed = true;
        // SAFETY: the key is open for writing and absent or a string (callers have looked); after the truncation it is an
        // unshared string of exactly `bytes.len()` bytes, which DMA lets us write.
        unsafe {
            let resized = api!(RedisModule_StringTruncate(self.raw.as_ptr(), bytes.len()));
            assert_eq!(resized, raw::REDISMODULE_OK as i32, "a string can be resized");
            let mut len = 0;
            let start = api!(RedisModule_StringDMA(self.raw.as_ptr(), &mut len, READ | WRITE));
            assert!(!start.is_null() && len == bytes.len(), "a string has the size it was given");
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.cast::<u8>(), len);
        }
    }

    pub(crate) fn delete(&mut self) {
        self.changed = true;
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_DeleteKey(self.raw.as_ptr())) };
    }

    /// Unix time in milliseconds; `None` where the key does not expire.
    pub(crate) fn expire_at_ms(&self) -> Option<u64> {
        // SAFETY: the handle is open.
        let at = unsafe { api!(RedisModule_GetAbsExpire(self.raw.as_ptr())) };
        u64::try_from(at).ok()
    }

    pub(crate) fn set_expire_at_ms(&mut self, at_ms: u64) {
        self.changed = true;
        // SAFETY: the key is open for writing and exists (callers set its bytes before).
        unsafe { api!(RedisModule_SetAbsExpire(self.raw.as_ptr(), at_ms as raw::mstime_t)) };
    }

    /// The key lives for ever from now on.
    pub(crate) fn clear_expiry(&mut self) {
        if self.expire_at_ms().is_some() {
            self.changed = true;
            // SAFETY: the key is open for writing and exists.
            unsafe { api!(RedisModule_SetAbsExpire(self.raw.as_ptr(), raw::REDISMODULE_NO_EXPIRE.into())) };
        }
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once. WATCH and client-side caches hear of a change only where there was one: the
        // module has switched the implicit signal off.
        unsafe {
            api!(RedisModule_CloseKey(self.raw.as_ptr()));
            if self.changed {
                api!(RedisModule_SignalModifiedKey(self.ctx.raw(), self.name.raw()));
            }
        }
    }
}
