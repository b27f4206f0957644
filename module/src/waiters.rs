//! Clients that wait for a lock: blocked, first come first served.
//!
//! A client that may wait is blocked without a time-out of Redis's and stands in [`Lines`]. What can free a lock puts its
//! line on the list of those to look at: `LOCK.RELEASE` and `LOCK.FORCERELEASE` serve it in their own step; for all else (expiry, eviction, `DEL`
//! or an overwrite by a plain client, a flush, `SWAPDB`, a rename, a changed expiry, a client that left) one timer does it at once, because nothing may be
//! written inside a notification. Whoever comes in between finds the line not empty, serves it first, and then joins it: no barging.
//!
//! One timer runs for whatever is due next: a WAIT that ends (steady clock) or a holder whose time is up (wall clock, as Redis's
//! expiries are). Redis's own cron, ten times a second, catches what a step of the wall clock would let slip.
//!
//! # Layout
//!
//! - here: the state, standing in line, serving a line
//! - [`wakeups`]: what happens to keys, dbs and clients
//! - [`timer`]: what is due
//!
//! # Caveats
//!
//! - Lines live in this process: a restart or a failover empties them, and the clients have lost their connection anyway.
//! - The state is never borrowed across a call into Redis: such a call may notify, and so come back here.
//! - A grant whose client went away before the reply reached it is released again, and the next in line has it.

mod timer;
mod wakeups;

pub(crate) use timer::{on_cron, on_timer};
pub(crate) use wakeups::{on_db_changed, on_delivery_over, on_disconnect, on_key_changed, on_now_replica};

use crate::clock::{self, Now};
use crate::commands::Answer;
use crate::events;
use crate::ffi::server::TimerId;
use crate::ffi::{BlockedClient, ClientId, Ctx, OwnedString};
use crate::info::{self, Counter};
use crate::lines::{Left, Lines, Place, Ticket, Wish};
use crate::multi;
use crate::record::{look, Freedom, Lock};
use bytes::Bytes;
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
    static STATE: RefCell<State> = RefCell::default();
}
/// Tickets in all lines: the question every command asks first. (Atomic, because that is cheaper here than a thread's own variable.)
static TICKETS: AtomicUsize = AtomicUsize::new(0);
/// While set, changes of keys are our own and nobody needs to look.
static QUIET: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
struct State {
    lines: Lines,
    clients: HashMap<ClientId, BlockedClient>,
    /// Lines where a lock may have come free.
    to_look_at: BTreeSet<Place>,
    /// Grants whose clients are all gone.
    undelivered: Vec<Rc<Handed>>,
    /// Waiters that left, for their events.
    left: Vec<Wish>,
    timer: Option<Armed>,
}

struct Armed {
    id: TimerId,
    due_ms: u64,
}

/// A reply on its way to a client that was blocked.
pub(crate) struct Delivery {
    pub(crate) reply: Reply,
    handed: Option<Rc<Handed>>,
}

/// A grant made to a waiter. Several clients may be told of it.
struct Handed {
    db: i32,
    /// Those the wish made, which go back where nobody hears of them.
    locks: Vec<(Bytes, Fence)>,
    reached_a_client: Cell<bool>,
}

impl Delivery {
    pub(crate) fn delivered(&self) {
        if let Some(handed) = &self.handed {
            handed.reached_a_client.set(true);
        }
    }
}

fn with<R>(body: impl FnOnce(&mut State) -> R) -> R {
    STATE.with(|state| {
        let mut state = state.borrow_mut();
        let result = body(&mut state);
        TICKETS.store(state.lines.tickets_len(), Relaxed);
        result
    })
}

/// Runs `body` while changes of keys are known to be our own.
pub(crate) fn quietly<R>(body: impl FnOnce() -> R) -> R {
    let before = QUIET.swap(true, Relaxed);
    let result = body();
    QUIET.store(before, Relaxed);
    result
}

fn nobody_waits() -> bool {
    TICKETS.load(Relaxed) == 0
}

/// Tickets in line for a lock.
pub(crate) fn count(db: i32, resource: &[u8]) -> usize {
    if nobody_waits() {
        return 0;
    }
    with(|state| state.lines.len(db, resource))
}

/// Owners and how long they have waited, first in line first.
pub(crate) fn list(db: i32, resource: &[u8]) -> Vec<(Bytes, u64)> {
    let now_us = clock::steady_us();
    let line = with(|state| state.lines.list(db, resource));
    line.into_iter().map(|(owner, since_us)| (owner, now_us.saturating_sub(since_us) / 1000)).collect()
}

pub(crate) fn clients_len() -> usize {
    with(|state| state.lines.clients_len())
}

/// Whether somebody is in line for a lock, once those have been served that can be. Called before a newcomer may take it.
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
        serve_places(ctx, vec![Place { db, resource: Bytes::copy_from_slice(resource) }], now);
        timer::rearm(ctx);
    }
}

/// The holder's time has changed.
pub(crate) fn deadline_moved(ctx: &Ctx, resource: &[u8], deadline_ms: u64) {
    let db = ctx.db();
    if count(db, resource) > 0 {
        let place = Place { db, resource: Bytes::copy_from_slice(resource) };
        with(|state| state.lines.watch(&place, Some(deadline_ms)));
        timer::rearm(ctx);
    }
}

/// Blocks the client of the running command and puts it in line.
pub(crate) fn wait(ctx: &Ctx, wish: Wish, ttl_ms: u64, wait_ms: u64) -> Result<Answer, Refusal> {
    if !with(|state| state.lines.has_room(&wish)) {
        return Err(errors::queue_full());
    }
    let unwatched: Vec<Place> =
        wish.places().filter(|place| !with(|state| state.lines.is_watched(place))).collect();
    let mut watches = Vec::with_capacity(unwatched.len());
    for place in unwatched {
        if let Freedom::HeldUntil(until_ms) = freedom(ctx, &place.resource, None)? {
            watches.push((place, until_ms));
        }
    }
    let Some(client) = ctx.block() else {
        return Ok(Answer::Sent);
    };
    let is_new = with(|state| {
        let id = client.id();
        let give_up_at_ms = clock::steady_ms() + wait_ms;
        let joined = state.lines.join(wish.clone(), id, ttl_ms, clock::steady_us(), give_up_at_ms);
        state.clients.insert(id, client);
        for (place, until_ms) in &watches {
            state.lines.watch(place, *until_ms);
        }
        joined
    });
    if is_new == Ok(true) {
        info::count(Counter::Queued);
        publish_for(ctx, EventKind::Queued, &wish);
    }
    timer::rearm(ctx);
    Ok(Answer::Sent)
}

fn freedom(ctx: &Ctx, resource: &[u8], owner: Option<&[u8]>) -> Result<Freedom, Refusal> {
    let name = OwnedString::new(resource);
    Lock::new(name.name())?.freedom(ctx, owner)
}

/// What came of serving a ticket.
enum Served {
    Granted {
        reply: Reply,
        handed: Handed,
        deadline_ms: u64,
    },
    /// Held by somebody until then.
    Busy(Place, Option<u64>),
    Refused(Refusal),
}

/// Serves these lines, and whatever lines that sets in motion.
fn serve_places(ctx: &Ctx, mut places: Vec<Place>, now: Now) {
    while let Some(place) = places.pop() {
        let next = with(|state| {
            state.lines.next(&place).map(|(id, ticket)| (id, ticket.wish.clone(), ticket.ttl_ms()))
        });
        let Some((id, wish, ttl_ms)) = next else {
            continue;
        };
        match quietly(|| serve_ticket(ctx, &wish, ttl_ms, now)) {
            Served::Busy(place, until_ms) => with(|state| state.lines.watch(&place, until_ms)),
            Served::Granted { reply, handed, deadline_ms } => {
                let ticket = with(|state| {
                    let ticket = state.lines.take(id);
                    wish.places().for_each(|place| state.lines.watch(&place, Some(deadline_ms)));
                    ticket
                });
                if let Some(ticket) = ticket {
                    info::waited(clock::steady_us().saturating_sub(ticket.since_us));
                    answer_all(&ticket, &reply, Some(Rc::new(handed)));
                }
            }
            Served::Refused(refusal) => {
                if let Some(ticket) = with(|state| state.lines.take(id)) {
                    info::count(Counter::Refused);
                    answer_all(&ticket, &Reply::Error(refusal), None);
                }
                places.extend(wish.places());
            }
        }
    }
}

fn serve_ticket(ctx: &Ctx, wish: &Wish, ttl_ms: u64, now: Now) -> Served {
    let mut held = Vec::new();
    for place in wish.places() {
        match freedom(ctx, &place.resource, Some(&wish.owner)) {
            Ok(Freedom::Free) => {}
            Ok(Freedom::Yours) => held.push(place.resource),
            Ok(Freedom::HeldUntil(until_ms)) => return Served::Busy(place, until_ms),
            Err(refusal) => return Served::Refused(refusal),
        }
    }
    // What it holds already is not granted again: there its place in line ends without a grant.
    publish_about(ctx, EventKind::Abandoned, &held, &wish.owner);
    match multi::take_all(ctx, &wish.resources, &wish.owner, ttl_ms, now) {
        Err(refusal) => Served::Refused(refusal),
        Ok(grants) => {
            let locks = wish.resources.iter().cloned().zip(grants.fences.iter().copied());
            let locks = locks.zip(&grants.fresh).filter_map(|(lock, fresh)| fresh.then_some(lock)).collect();
            let handed = Handed { db: wish.db, locks, reached_a_client: Cell::new(false) };
            let reply = match grants.fences.as_slice() {
                [fence] if !wish.multi => Reply::Granted { fence: *fence, ttl_ms: grants.ttl_ms },
                _ => multi::granted(&grants),
            };
            Served::Granted { reply, handed, deadline_ms: now.wall_ms() + ttl_ms }
        }
    }
}

fn answer_all(ticket: &Ticket, reply: &Reply, handed: Option<Rc<Handed>>) {
    for client in &ticket.clients {
        if let Some(blocked) = with(|state| state.clients.remove(&client.id)) {
            blocked.answer(Box::new(Delivery { reply: reply.clone(), handed: handed.clone() }));
        }
    }
}

impl State {
    /// Takes a client out of line; whoever is behind it may be next now.
    fn leave(&mut self, id: ClientId) {
        if let Some(Left::TicketGone(ticket)) = self.lines.leave(id) {
            self.to_look_at.extend(ticket.wish.places());
            if self.left.len() < LEFT_EVENTS_MAX {
                self.left.push(ticket.wish);
            }
        }
    }
}

fn publish_for(ctx: &Ctx, kind: EventKind, wish: &Wish) {
    publish_about(ctx, kind, &wish.resources, &wish.owner);
}

fn publish_about(ctx: &Ctx, kind: EventKind, resources: &[Bytes], owner: &[u8]) {
    if !events::is_on() {
        return;
    }
    for resource in resources {
        events::publish(ctx, kind, resource, look::last_fence(ctx, resource), owner);
    }
}
