//! Clients that wait for a lock: blocked, first come first served.
//!
//! A client that may wait is blocked without a time-out of Redis's and stands in [`WaitQueues`]. What can free a lock puts its
//! queue on the list of those to look at: `LOCK.RELEASE` and `LOCK.FORCERELEASE` serve it in their own step; for all else (expiry, eviction, `DEL`
//! or an overwrite by a plain client, a flush, `SWAPDB`, a rename, a changed expiry, a client that left) one timer does it at once, because nothing may be
//! written inside a notification. Whoever comes in between finds the queue not empty, serves it first, and then joins it: no barging.
//!
//! One timer runs for whatever is due next: a WAIT that ends (steady clock) or a holder whose time is up (wall clock, as Redis's
//! expiries are). Redis's own cron, ten times a second, catches what a step of the wall clock would let slip.
//!
//! # Layout
//!
//! - here: the state, waits, serving a queue
//! - [`wakeups`]: what happens to keys, dbs and clients
//! - [`timer`]: what is due
//! - [`lost`]: grants that ended without a release, to be told once their queue was served
//!
//! # Caveats
//!
//! - Queues live in this process: a restart or a failover empties them, and the clients have lost their connection anyway.
//! - The state is never borrowed across a call into Redis: such a call may notify, and so come back here.
//! - A grant whose client went away before the reply reached it is released again, and the next in the queue has it.

mod lost;
mod timer;
mod wakeups;

pub(crate) use lost::{hold_back_loss, note_deleted};
pub(crate) use timer::{on_cron, on_timer};
pub(crate) use wakeups::{on_db_changed, on_delivery_over, on_disconnect, on_key_changed, on_now_replica};

use crate::clock::{self, Now};
use crate::commands::CommandOutcome;
use crate::events::{self, EventGrant};
use crate::ffi::server::TimerId;
use crate::ffi::{BlockedClient, ClientId, Ctx, OwnedString};
use crate::info::{self, Counter};
use crate::multi;
use crate::record::{inspect, Availability, LockKeys, Terms};
use crate::wait_queues::{LeaveOutcome, LockKey, WaitQueues, WaitRequest, Waiter};
use bytes::Bytes;
use lost::LostGrants;
use redfence_core::event::EventKind;
use redfence_core::grammar::errors;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Fence;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Events of waiters that left, kept until the timer's turn. Beyond, they are dropped: they are for dashboards.
const LEFT_EVENTS_MAX: usize = 10_000;

thread_local! {
    static STATE: RefCell<WaitState> = RefCell::default();
}
/// Waiters in all queues: the question every command asks first. (Atomic, because that is cheaper here than a thread's own variable.)
static WAITERS: AtomicUsize = AtomicUsize::new(0);
/// While set, changes of keys are our own and nobody needs to look.
static IGNORING_CHANGES: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
struct WaitState {
    wait_queues: WaitQueues,
    clients: HashMap<ClientId, BlockedClient>,
    /// Queues where a lock may have come free.
    to_check: BTreeSet<LockKey>,
    /// Grants whose clients are all gone.
    undelivered: Vec<Rc<PendingGrant>>,
    /// Waiters that left, for their events.
    left: Vec<WaitRequest>,
    lost: LostGrants,
    timer: Option<ArmedTimer>,
}

struct ArmedTimer {
    id: TimerId,
    due_ms: u64,
}

/// A reply on its way to a client that was blocked.
pub(crate) struct BlockedReply {
    pub(crate) reply: Reply,
    grant: Option<Rc<PendingGrant>>,
}

/// A grant made to a waiter. Several clients may get it as their reply.
struct PendingGrant {
    db: i32,
    /// Those the wish made, which go back where nobody hears of them.
    locks: Vec<(Bytes, Fence)>,
    reached_a_client: Cell<bool>,
}

impl BlockedReply {
    pub(crate) fn delivered(&self) {
        if let Some(grant) = &self.grant {
            grant.reached_a_client.set(true);
        }
    }
}

fn with<R>(body: impl FnOnce(&mut WaitState) -> R) -> R {
    STATE.with(|state| {
        let mut state = state.borrow_mut();
        let result = body(&mut state);
        WAITERS.store(state.wait_queues.waiters_len(), Relaxed);
        result
    })
}

/// Runs `body` while changes of keys are known to be our own.
pub(crate) fn ignoring_own_changes<R>(body: impl FnOnce() -> R) -> R {
    let before = IGNORING_CHANGES.swap(true, Relaxed);
    let result = body();
    IGNORING_CHANGES.store(before, Relaxed);
    result
}

fn nobody_waits() -> bool {
    WAITERS.load(Relaxed) == 0
}

/// Waiters in the queue for a lock.
pub(crate) fn count(db: i32, resource: &[u8]) -> usize {
    if nobody_waits() {
        return 0;
    }
    with(|state| state.wait_queues.len(db, resource))
}

/// Owners and how long they have waited, first in the queue first.
pub(crate) fn list(db: i32, resource: &[u8]) -> Vec<(Bytes, u64)> {
    let now_us = clock::steady_us();
    let line = with(|state| state.wait_queues.list(db, resource));
    line.into_iter().map(|(owner, since_us)| (owner, now_us.saturating_sub(since_us) / 1000)).collect()
}

pub(crate) fn clients_len() -> usize {
    with(|state| state.wait_queues.clients_len())
}

/// Whether somebody is in the queue for a lock, once those have been served that can be. Called before a newcomer may take it.
pub(crate) fn somebody_is_before(ctx: &Ctx, resource: &[u8], now: Now) -> bool {
    if count(ctx.db(), resource) == 0 {
        return false;
    }
    serve(ctx, resource, now);
    count(ctx.db(), resource) > 0
}

/// A lock of the running command's db may have come free: whoever is next has it, in this step.
pub(crate) fn serve(ctx: &Ctx, resource: &[u8], now: Now) {
    let db = ctx.db();
    if count(db, resource) > 0 {
        serve_lock_keys(ctx, vec![LockKey { db, resource: Bytes::copy_from_slice(resource) }], now);
        lost::tell_expired(ctx, db);
        timer::rearm(ctx);
    }
}

/// The holder's time has changed.
pub(crate) fn deadline_moved(ctx: &Ctx, resource: &[u8], deadline_ms: u64) {
    let db = ctx.db();
    if count(db, resource) > 0 {
        let place = LockKey { db, resource: Bytes::copy_from_slice(resource) };
        with(|state| state.wait_queues.watch(&place, Some(deadline_ms)));
        timer::rearm(ctx);
    }
}

/// Blocks the client of the running command and puts it in the queue.
pub(crate) fn wait(
    ctx: &Ctx,
    wait_request: WaitRequest,
    ttl_ms: u64,
    wait_ms: u64,
) -> Result<CommandOutcome, Refusal> {
    if !with(|state| state.wait_queues.has_room(&wait_request)) {
        return Err(errors::queue_full());
    }
    let unwatched: Vec<LockKey> =
        wait_request.lock_keys().filter(|place| !with(|state| state.wait_queues.is_watched(place))).collect();
    let mut watches = Vec::with_capacity(unwatched.len());
    for place in unwatched {
        if let Availability::HeldUntil(until_ms) = availability(ctx, &place.resource, None)? {
            watches.push((place, until_ms));
        }
    }
    let Some(client) = ctx.block() else {
        return Ok(CommandOutcome::Sent);
    };
    let is_new = with(|state| {
        let id = client.id();
        let give_up_at_ms = clock::steady_ms() + wait_ms;
        let joined =
            state.wait_queues.join(wait_request.clone(), id, ttl_ms, clock::steady_us(), give_up_at_ms);
        state.clients.insert(id, client);
        for (place, until_ms) in &watches {
            state.wait_queues.watch(place, *until_ms);
        }
        joined
    });
    if is_new == Ok(true) {
        info::count(Counter::Queued);
        publish_for(ctx, EventKind::Queued, &wait_request);
    }
    timer::rearm(ctx);
    Ok(CommandOutcome::Sent)
}

fn availability(ctx: &Ctx, resource: &[u8], owner: Option<&[u8]>) -> Result<Availability, Refusal> {
    let name = OwnedString::new(resource);
    LockKeys::new(name.name())?.availability(ctx, owner)
}

/// What came of serving a waiter.
enum Served {
    Granted {
        reply: Reply,
        grant: PendingGrant,
        deadline_ms: u64,
    },
    /// Held by somebody until then.
    Busy(LockKey, Option<u64>),
    Refused(Refusal),
}

/// Serves these queues, and whatever queues that sets in motion.
fn serve_lock_keys(ctx: &Ctx, mut lock_keys: Vec<LockKey>, now: Now) {
    while let Some(place) = lock_keys.pop() {
        let next = with(|state| {
            state
                .wait_queues
                .next(&place)
                .map(|(id, waiter)| (id, waiter.wait_request.clone(), waiter.ttl_ms()))
        });
        let Some((id, wait_request, ttl_ms)) = next else {
            continue;
        };
        match ignoring_own_changes(|| serve_waiter(ctx, &wait_request, ttl_ms, now)) {
            Served::Busy(place, until_ms) => with(|state| state.wait_queues.watch(&place, until_ms)),
            Served::Granted { reply, grant, deadline_ms } => {
                let waiter = with(|state| {
                    let waiter = state.wait_queues.take(id);
                    wait_request
                        .lock_keys()
                        .for_each(|place| state.wait_queues.watch(&place, Some(deadline_ms)));
                    waiter
                });
                if let Some(waiter) = waiter {
                    info::waited(clock::steady_us().saturating_sub(waiter.since_us));
                    answer_all(&waiter, &reply, Some(Rc::new(grant)));
                }
            }
            Served::Refused(refusal) => {
                if let Some(waiter) = with(|state| state.wait_queues.take(id)) {
                    info::count(Counter::Refused);
                    answer_all(&waiter, &Reply::Error(refusal), None);
                }
                lock_keys.extend(wait_request.lock_keys());
            }
        }
    }
}

fn serve_waiter(ctx: &Ctx, wait_request: &WaitRequest, ttl_ms: u64, now: Now) -> Served {
    let mut held = Vec::new();
    for place in wait_request.lock_keys() {
        match availability(ctx, &place.resource, Some(&wait_request.owner)) {
            Ok(Availability::Free) => {}
            Ok(Availability::OwnedByCaller) => held.push(place.resource),
            Ok(Availability::HeldUntil(until_ms)) => return Served::Busy(place, until_ms),
            Err(refusal) => return Served::Refused(refusal),
        }
    }
    // What it holds already is not granted again: there its place in the queue ends without a grant.
    publish_about(ctx, EventKind::Abandoned, &held, &wait_request.owner);
    let terms = Terms { ttl_ms, value: &wait_request.value };
    match multi::take_all(ctx, &wait_request.resources, &wait_request.owner, terms, now) {
        Err(refusal) => Served::Refused(refusal),
        Ok(grants) => {
            let locks = wait_request.resources.iter().cloned().zip(grants.fences.iter().copied());
            let locks = locks.zip(&grants.fresh).filter_map(|(lock, fresh)| fresh.then_some(lock)).collect();
            let grant = PendingGrant { db: wait_request.db, locks, reached_a_client: Cell::new(false) };
            let reply = match grants.fences.as_slice() {
                [fence] if !wait_request.multi => Reply::Granted { fence: *fence, ttl_ms: grants.ttl_ms },
                _ => multi::granted(&grants),
            };
            Served::Granted { reply, grant, deadline_ms: now.wall_ms() + ttl_ms }
        }
    }
}

fn answer_all(waiter: &Waiter, reply: &Reply, grant: Option<Rc<PendingGrant>>) {
    for client in &waiter.clients {
        if let Some(blocked) = with(|state| state.clients.remove(&client.id)) {
            blocked.answer(Box::new(BlockedReply { reply: reply.clone(), grant: grant.clone() }));
        }
    }
}

impl WaitState {
    /// Takes a client out of queue; whoever is behind it may be next now.
    fn leave(&mut self, id: ClientId) {
        if let Some(LeaveOutcome::WaiterGone(waiter)) = self.wait_queues.leave(id) {
            self.to_check.extend(waiter.wait_request.lock_keys());
            if self.left.len() < LEFT_EVENTS_MAX {
                self.left.push(waiter.wait_request);
            }
        }
    }
}

fn publish_for(ctx: &Ctx, kind: EventKind, wait_request: &WaitRequest) {
    publish_about(ctx, kind, &wait_request.resources, &wait_request.owner);
}

fn publish_about(ctx: &Ctx, kind: EventKind, resources: &[Bytes], owner: &[u8]) {
    if !events::is_on() {
        return;
    }
    for resource in resources {
        let last = EventGrant { fence: inspect::last_fence(ctx, resource), owner, value: b"" };
        events::publish(ctx, kind, resource, last);
    }
}
