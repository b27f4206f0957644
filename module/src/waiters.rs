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
//! # Caveats
//!
//! - Lines live in this process: a restart or a failover empties them, and the clients have lost their connection anyway.
//! - The state is never borrowed across a call into Redis: such a call may notify, and so come back here.
//! - A grant whose client went away before the reply reached it is released again, and the next in line has it.

use crate::clock::{self, Now};
use crate::commands::Answer;
use crate::events;
use crate::ffi::server::TimerId;
use crate::ffi::{BlockedClient, ClientId, Ctx, OwnedString};
use crate::info::{self, Counter};
use crate::lines::{Left, Lines, Place, Ticket, TicketId, Wish};
use crate::record::{Ended, Freedom, Lock};
use crate::{multi, record};
use bytes::Bytes;
use redfence_core::event::EventKind;
use redfence_core::grammar::errors;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Fence;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Lines, clients and grants looked at in one turn of the timer; the rest has its turn right after, so others get theirs.
const TURN_MAX: usize = 1_000;
/// Events of waiters that left, kept until the timer's turn. Beyond, they are dropped: they are for dashboards.
const LEFT_EVENTS_MAX: usize = 10_000;
/// While replicas must be kept still, or the data is being loaded, hand-overs wait this long before they try again.
const HOLD_MS: u64 = 10;

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
    /// Tickets in all lines: the question every command asks first.
    static TICKETS: Cell<usize> = const { Cell::new(0) };
    /// While set, changes of keys are our own and nobody needs to look.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

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
        TICKETS.with(|tickets| tickets.set(state.lines.tickets_len()));
        result
    })
}

/// Runs `body` while changes of keys are known to be our own.
pub(crate) fn quietly<R>(body: impl FnOnce() -> R) -> R {
    let before = QUIET.with(|quiet| quiet.replace(true));
    let result = body();
    QUIET.with(|quiet| quiet.set(before));
    result
}

fn nobody_waits() -> bool {
    TICKETS.with(Cell::get) == 0
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
        rearm(ctx);
    }
}

/// The holder's time has changed.
pub(crate) fn deadline_moved(ctx: &Ctx, resource: &[u8], deadline_ms: u64) {
    let db = ctx.db();
    if count(db, resource) > 0 {
        let place = Place { db, resource: Bytes::copy_from_slice(resource) };
        with(|state| state.lines.watch(&place, Some(deadline_ms)));
        rearm(ctx);
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
    rearm(ctx);
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
    for place in wish.places() {
        match freedom(ctx, &place.resource, Some(&wish.owner)) {
            Ok(Freedom::Free | Freedom::Yours) => {}
            Ok(Freedom::HeldUntil(until_ms)) => return Served::Busy(place, until_ms),
            Err(refusal) => return Served::Refused(refusal),
        }
    }
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

/// Redis is done with a delivery. Where no client got to know of the grant, nobody holds it: it goes back.
pub(crate) fn on_delivery_over(ctx: &Ctx, delivery: Delivery) {
    let Some(handed) = delivery.handed else {
        return;
    };
    if Rc::strong_count(&handed) == 1 && !handed.reached_a_client.get() {
        with(|state| state.undelivered.push(handed));
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

    fn next_due_in_ms(&self) -> Option<u64> {
        if !self.to_look_at.is_empty() || !self.undelivered.is_empty() || !self.left.is_empty() {
            return Some(0);
        }
        self.lines.next_due_in_ms(clock::steady_ms(), Now::read().wall_ms())
    }
}

/// Keeps one timer, for what is due next.
fn rearm(ctx: &Ctx) {
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
    with(|state| state.timer = Some(Armed { id, due_ms }));
}

pub(crate) fn on_timer(ctx: &Ctx) {
    // The timer that runs is no longer ours to stop.
    with(|state| state.timer = None);
    let now = Now::read();
    give_up_due(ctx);
    let standing = ctx.standing();
    if standing.replica {
        on_now_replica(ctx);
        return;
    }
    publish_left(ctx);
    if standing.loading || ctx.must_keep_replicas_still() {
        if with(|state| state.next_due_in_ms()).is_some() {
            arm(ctx, HOLD_MS);
        }
        return;
    }
    release_undelivered(ctx, now);
    for place in with(|state| state.take_places_due(now.wall_ms())) {
        ctx.select_db(place.db);
        if ctx.serves_slot_of(&place.resource) {
            serve_places(ctx, vec![place], now);
        } else {
            refuse_line(&place, &slot_moved());
        }
    }
    rearm(ctx);
}

impl State {
    fn take_places_due(&mut self, wall_ms: u64) -> Vec<Place> {
        let mut places = self.lines.take_due_watches(wall_ms, TURN_MAX);
        while places.len() < TURN_MAX {
            match self.to_look_at.pop_first() {
                Some(place) => places.push(place),
                None => break,
            }
        }
        places
    }
}

fn give_up_due(ctx: &Ctx) {
    for id in with(|state| state.lines.due_give_ups(clock::steady_ms(), TURN_MAX)) {
        let client = with(|state| {
            state.leave(id);
            state.clients.remove(&id)
        });
        if let Some(client) = client {
            info::count(Counter::GaveUp);
            client.answer(Box::new(Delivery { reply: Reply::Nil, handed: None }));
        }
    }
    publish_left(ctx);
}

fn release_undelivered(ctx: &Ctx, now: Now) {
    for handed in with(|state| std::mem::take(&mut state.undelivered)) {
        ctx.select_db(handed.db);
        for (resource, fence) in &handed.locks {
            let name = OwnedString::new(resource);
            let ended = Lock::new(name.name()).and_then(|lock| lock.end(ctx, *fence, now));
            if let Ok(Ended::Now { owner }) = ended {
                info::count(Counter::Released);
                events::publish(ctx, EventKind::Released, resource, *fence, &owner);
            }
            serve(ctx, resource, now);
        }
    }
}

fn publish_left(ctx: &Ctx) {
    for wish in with(|state| std::mem::take(&mut state.left)) {
        ctx.select_db(wish.db);
        publish_for(ctx, EventKind::Abandoned, &wish);
    }
}

fn publish_for(ctx: &Ctx, kind: EventKind, wish: &Wish) {
    if !events::is_on() {
        return;
    }
    for resource in &wish.resources {
        events::publish(ctx, kind, resource, record::last_fence(ctx, resource), &wish.owner);
    }
}

fn refuse_line(place: &Place, refusal: &Refusal) {
    while let Some(ticket) = with(|state| state.lines.first(place).and_then(|id| state.lines.take(id))) {
        answer_all(&ticket, &Reply::Error(refusal.clone()), None);
    }
}

/// Any key may have changed under a waiter; where somebody waits for this one, the timer looks.
pub(crate) fn on_key_changed(ctx: &Ctx, key: &[u8]) {
    if nobody_waits() || QUIET.with(Cell::get) {
        return;
    }
    let db = ctx.db();
    let waited_for = with(|state| {
        let waited_for = state.lines.len(db, key) > 0;
        if waited_for {
            state.to_look_at.insert(Place { db, resource: Bytes::copy_from_slice(key) });
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
        let places = state.lines.places(db);
        state.to_look_at.extend(places);
    });
    rearm(ctx);
}

/// A replica grants nothing: whoever waits must ask the new master.
pub(crate) fn on_now_replica(_ctx: &Ctx) {
    let refusal = Reply::Error(Refusal::new(
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ));
    let ids: Vec<TicketId> = with(|state| {
        state.undelivered.clear();
        state.left.clear();
        state.to_look_at.clear();
        state.lines.ticket_ids()
    });
    for id in ids {
        if let Some(ticket) = with(|state| state.lines.take(id)) {
            answer_all(&ticket, &refusal, None);
        }
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

impl State {
    fn timer_is_late(&self) -> bool {
        self.timer.as_ref().is_none_or(|armed| armed.due_ms + HOLD_MS < clock::steady_ms())
    }
}

fn slot_moved() -> Refusal {
    Refusal::new("UNBLOCKED the slot of this lock is served by another node now; ask again there")
}
