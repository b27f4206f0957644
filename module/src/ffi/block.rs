//! A blocked client: one owner, answered exactly once.
//!
//! The life of one: `Ctx::block` makes a [`BlockedClient`]; `waiters.rs` owns it. Then either
//! `answer` gives it its reply (Redis delivers it before it next sleeps, by [`on_reply`](super::entry)), or Redis says
//! that the client is gone, and `let_go` gives the handle back. Both take the handle by value, so there is no second time.
//! In either case Redis frees the [`BlockedReply`], which records whether the reply reached the client.
//!
//! # Caveats
//!
//! No time-out is ever given to Redis, and no time-out callback: on Redis 7.0 and 7.2 a time-out (or `CLIENT UNBLOCK`) in the
//! same loop turn as an unblock loses the reply. So `CLIENT UNBLOCK` answers 0 for a client that waits for a lock.

use super::{api, entry, Ctx};
use crate::waiters::BlockedReply;
use redis_module::raw;
use std::ptr::NonNull;

/// Tells blocked clients apart. Unique among those that are blocked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientId(pub(crate) usize);

/// The one handle of a blocked client.
pub(crate) struct BlockedClient(NonNull<raw::RedisModuleBlockedClient>);

impl BlockedClient {
    pub(crate) fn id(&self) -> ClientId {
        ClientId(self.0.as_ptr() as usize)
    }

    /// Sends the reply on its way.
    pub(crate) fn answer(self, delivery: Box<BlockedReply>) {
        // SAFETY: the handle has not been unblocked before, because unblocking takes it. Redis owns the box from here on and
        // gives it to `entry::on_free` exactly once.
        unsafe { api!(RedisModule_UnblockClient(self.0.as_ptr(), Box::into_raw(delivery).cast())) };
    }

    /// The client is gone: Redis gets its handle back.
    pub(crate) fn let_go(self) {
        // SAFETY: as above; no private data, so nothing will be freed.
        unsafe { api!(RedisModule_UnblockClient(self.0.as_ptr(), std::ptr::null_mut())) };
    }
}

impl Ctx {
    /// Whether this client may be made to wait. In MULTI, in a script and for clients that must not block, it may not.
    pub(crate) fn may_block(&self) -> bool {
        const NEVER: u32 = raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & NEVER == 0
    }

    /// Blocks the client of the command that is running. `None` where Redis would not have it; it has then sent an error.
    pub(crate) fn block(&self) -> Option<BlockedClient> {
        // SAFETY: the context is a command's; the callbacks are ours; no time-out (see above).
        unsafe {
            let raw = api!(RedisModule_BlockClient(
                self.raw(),
                Some(entry::on_reply),
                None,
                Some(entry::on_free),
                0
            ));
            let raw = NonNull::new(raw)?;
            api!(RedisModule_SetDisconnectCallback(raw.as_ptr(), Some(entry::on_disconnect)));
            Some(BlockedClient(raw))
        }
    }
}
