//! One timer for whatever is due next: a WAIT that ends, a holder whose time is up, a queue to look at, a grant that reached nobody.

use super::{
    answer_all, lost, publish_for, serve, serve_lock_keys, wakeups, with, ArmedTimer, BlockedReply, WaitState,
};
use crate::clock::{self, Now};
use crate::events;
use crate::ffi::{Ctx, OwnedString};
use crate::info::{self, Counter};
use crate::record::{EndOutcome, LockKeys};
use crate::wait_queues::LockKey;
use redfence_core::event::EventKind;
use redfence_core::reply::{Refusal, Reply};

/// Queues, clients and grants looked at in one turn of the timer; the rest has its turn right after, so others get theirs.
pub(super) const TURN_MAX: usize = 1_000;
/// While replicas must be kept still, or the data is being loaded, hand-overs wait this long before they try again.
const HOLD_MS: u64 = 10;

impl WaitState {
    fn next_due_in_ms(&self) -> Option<u64> {
        if !self.to_check.is_empty()
            || !self.undelivered.is_empty()
            || !self.left.is_empty()
            || !self.lost.is_empty()
        {
            return Some(0);
        }
        self.wait_queues.next_due_in_ms(clock::steady_ms(), Now::read().wall_ms())
    }
}

/// Keeps one timer, for what is due next.
pub(super) fn rearm(ctx: &Ctx) {
    if let Some(in_ms) = with(|state| state.next_due_in_ms()) {
        arm(ctx, in_ms);
    }
}

fn arm(ctx: &Ctx, in_ms: u64) {
    let due_ms = clock::steady_ms() + in_ms;
    let stale = with(|state| match &state.timer {
        Some(armed) if armed.due_ms <= due_ms => Err(()),
        Some(_) | None => Ok(state.timer.take()),
    });
    let Ok(stale) = stale else {
        return;
    };
    if let Some(armed) = stale {
        ctx.stop_timer(armed.id);
    }
    let id = ctx.start_timer(in_ms);
    with(|state| state.timer = Some(ArmedTimer { id, due_ms }));
}

pub(crate) fn on_timer(ctx: &Ctx) {
    // The timer that runs is no longer ours to stop.
    with(|state| state.timer = None);
    let server_status = ctx.server_status();
    if server_status.replica {
        wakeups::on_now_replica(ctx);
        return;
    }
    publish_left(ctx);
    let on_hold = server_status.loading || ctx.must_keep_replicas_still();
    if !on_hold {
        hand_over_due(ctx, Now::read());
    }
    // After the hand-overs: where a stall made both due at once, the lock came free while the client still waited.
    give_up_due(ctx);
    match with(|state| state.next_due_in_ms()) {
        Some(in_ms) if on_hold => arm(ctx, in_ms.max(HOLD_MS)),
        Some(in_ms) => arm(ctx, in_ms),
        None => {}
    }
}

fn hand_over_due(ctx: &Ctx, now: Now) {
    release_undelivered(ctx, now);
    lost::record_deleted(ctx, now);
    for place in with(|state| state.take_places_due(now.wall_ms())) {
        ctx.select_db(place.db);
        if ctx.serves_slot_of(&place.resource) {
            serve_lock_keys(ctx, vec![place], now);
        } else {
            refuse_line(&place, &slot_moved());
        }
    }
    lost::tell_all_expired(ctx);
}

impl WaitState {
    fn take_places_due(&mut self, wall_ms: u64) -> Vec<LockKey> {
        let mut lock_keys = self.wait_queues.take_due_watches(wall_ms, TURN_MAX);
        while lock_keys.len() < TURN_MAX {
            match self.to_check.pop_first() {
                Some(place) => lock_keys.push(place),
                None => break,
            }
        }
        lock_keys
    }
}

fn give_up_due(ctx: &Ctx) {
    for id in with(|state| state.wait_queues.due_give_ups(clock::steady_ms(), TURN_MAX)) {
        let client = with(|state| {
            state.leave(id);
            state.clients.remove(&id)
        });
        if let Some(client) = client {
            info::count(Counter::GaveUp);
            client.answer(Box::new(BlockedReply { reply: Reply::Nil, grant: None }));
        }
    }
    publish_left(ctx);
}

fn release_undelivered(ctx: &Ctx, now: Now) {
    for grant in with(|state| std::mem::take(&mut state.undelivered)) {
        ctx.select_db(grant.db);
        for (resource, fence) in &grant.locks {
            let name = OwnedString::new(resource);
            let ended = LockKeys::new(name.name()).and_then(|lock| lock.end(ctx, *fence, now));
            if let Ok(EndOutcome::Now(hold)) = ended {
                info::count(Counter::Released);
                events::publish(ctx, EventKind::Released, resource, (&hold).into());
            }
            serve(ctx, resource, now);
        }
    }
}

fn publish_left(ctx: &Ctx) {
    for wait_request in with(|state| std::mem::take(&mut state.left)) {
        ctx.select_db(wait_request.db);
        publish_for(ctx, EventKind::Abandoned, &wait_request);
    }
}

fn refuse_line(place: &LockKey, refusal: &Refusal) {
    while let Some(waiter) =
        with(|state| state.wait_queues.first(place).and_then(|id| state.wait_queues.take(id)))
    {
        answer_all(&waiter, &Reply::Error(refusal.clone()), None);
    }
}

/// Module timers go by the wall clock; where it stepped back, what is due is found here.
pub(crate) fn on_cron(ctx: &Ctx) {
    let overdue = with(|state| state.next_due_in_ms() == Some(0) && state.timer_is_late());
    if overdue {
        if let Some(armed) = with(|state| state.timer.take()) {
            ctx.stop_timer(armed.id);
        }
        arm(ctx, 0);
    }
}

impl WaitState {
    fn timer_is_late(&self) -> bool {
        self.timer.as_ref().is_none_or(|armed| armed.due_ms + HOLD_MS < clock::steady_ms())
    }
}

fn slot_moved() -> Refusal {
    Refusal::new("UNBLOCKED the slot of this lock is served by another node now; ask again there")
}
