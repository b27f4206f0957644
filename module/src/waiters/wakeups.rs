//! What wakes a queue, or empties it: keys and dbs that change, clients that leave, grants that reach nobody, a change of role.
//!
//! Nothing is written here, because most of it runs inside a notification: queues are marked, and the timer looks at them at once.

use super::timer::rearm;
use super::{answer_all, nobody_waits, with, BlockedReply, LostGrants, IGNORING_CHANGES};
use crate::ffi::{ClientId, Ctx};
use crate::wait_queues::{LockKey, WaiterId};
use bytes::Bytes;
use redfence_core::reply::{Refusal, Reply};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

/// Redis is done with a delivery. Where no client got to know of the grant, nobody holds it: it goes back.
pub(crate) fn on_delivery_over(ctx: &Ctx, delivery: BlockedReply) {
    let Some(grant) = delivery.grant else {
        return;
    };
    if Rc::strong_count(&grant) == 1 && !grant.reached_a_client.get() {
        with(|state| state.undelivered.push(grant));
        rearm(ctx);
    }
}

/// A blocked client is gone. One whose answer is already on its way is no longer here, and is left to [`on_delivery_over`].
pub(crate) fn on_disconnect(ctx: &Ctx, id: ClientId) {
    let Some(client) = with(|state| state.clients.remove(&id)) else {
        return;
    };
    with(|state| state.leave(id));
    client.let_go();
    rearm(ctx);
}

/// Any key may have changed under a waiter; where somebody waits for this one, the timer looks.
pub(crate) fn on_key_changed(ctx: &Ctx, key: &[u8]) {
    if nobody_waits() || IGNORING_CHANGES.load(Relaxed) {
        return;
    }
    let db = ctx.db();
    let waited_for = with(|state| {
        let waited_for = state.wait_queues.len(db, key) > 0;
        if waited_for {
            state.to_check.insert(LockKey { db, resource: Bytes::copy_from_slice(key) });
        }
        waited_for
    });
    if waited_for {
        rearm(ctx);
    }
}

/// A whole db, or all of them, may have changed.
pub(crate) fn on_db_changed(ctx: &Ctx, db: Option<i32>) {
    if nobody_waits() {
        return;
    }
    with(|state| {
        let lock_keys = state.wait_queues.lock_keys(db);
        state.to_check.extend(lock_keys);
    });
    rearm(ctx);
}

/// A replica grants nothing: whoever waits must ask the new master.
pub(crate) fn on_now_replica(_ctx: &Ctx) {
    let refusal = Reply::Error(Refusal::new(
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ));
    let ids: Vec<WaiterId> = with(|state| {
        state.undelivered.clear();
        state.left.clear();
        state.to_check.clear();
        state.lost = LostGrants::default();
        state.wait_queues.waiter_ids()
    });
    for id in ids {
        if let Some(waiter) = with(|state| state.wait_queues.take(id)) {
            answer_all(&waiter, &refusal, None);
        }
    }
}
