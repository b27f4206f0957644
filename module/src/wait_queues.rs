//! Who waits for which lock: the bookkeeping of `waiters.rs`, without Redis, so that it can be tested without one.
//!
//! A *waiter* is one request that waits: for one lock or, with `LOCK.MACQUIRE`, for several. It stands in the queue of each
//! of its locks from one instant; ids rise, so every queue is in the order of arrival and two multi-locks are in the same order in
//! every queue they share. A waiter belongs to one client, or to several where an OWNER asked again while it was queued.
//!
//! Limits: [`WAITERS_PER_LOCK_MAX`] waiters a queue, [`CLIENTS_PER_WAITER_MAX`] clients a waiter; beyond, `join` says [`QueueFull`].

use crate::ffi::ClientId;
use bytes::Bytes;
use redfence_core::types::WAITERS_PER_LOCK_MAX;
use std::collections::{BTreeSet, HashMap};

/// Retries of one OWNER that wait at the same time.
pub(crate) const CLIENTS_PER_WAITER_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId(u64);

/// A lock's place in the server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LockKey {
    pub(crate) db: i32,
    pub(crate) resource: Bytes,
}

/// A request for locks, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitRequest {
    pub(crate) db: i32,
    /// In the order asked.
    pub(crate) resources: Vec<Bytes>,
    /// Whether the answer is a multi-lock's, even where it names one resource.
    pub(crate) multi: bool,
    pub(crate) owner: Bytes,
    /// Kept with the grant; empty where there is none.
    pub(crate) value: Bytes,
}

impl WaitRequest {
    pub(crate) fn lock_keys(&self) -> impl Iterator<Item = LockKey> + '_ {
        self.resources.iter().map(|resource| LockKey { db: self.db, resource: resource.clone() })
    }
}

#[derive(Debug)]
pub(crate) struct WaitingClient {
    pub(crate) id: ClientId,
    pub(crate) ttl_ms: u64,
    give_up_at_ms: u64,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) wait_request: WaitRequest,
    pub(crate) since_us: u64,
    pub(crate) clients: Vec<WaitingClient>,
}

impl Waiter {
    /// Where retries asked for different times, the longest is granted.
    pub(crate) fn ttl_ms(&self) -> u64 {
        self.clients.iter().map(|client| client.ttl_ms).max().unwrap_or(0)
    }
}

#[derive(Debug, Default)]
struct WaitQueue {
    waiters: BTreeSet<WaiterId>,
    by_owner: HashMap<Bytes, WaiterId>,
    /// When the holder's time is up, where somebody has looked.
    watched_until_ms: Option<u64>,
}

/// The queue, or the waiter, has no room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// What became of a client that left.
#[derive(Debug)]
pub(crate) enum LeaveOutcome {
    /// Its waiter had other clients, and stays.
    WaiterStays,
    /// It was the last: the waiter is gone from every queue.
    WaiterGone(Waiter),
}

/// All queues of the server.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    wait_queues: HashMap<i32, HashMap<Bytes, WaitQueue>>,
    waiters: HashMap<WaiterId, Waiter>,
    clients: HashMap<ClientId, WaiterId>,
    /// On the steady clock.
    give_ups: BTreeSet<(u64, ClientId)>,
    /// On the wall clock, as Redis's expiries are.
    watches: BTreeSet<(u64, LockKey)>,
    last_id: u64,
}

impl WaitQueues {
    pub(crate) fn clients_len(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn waiters_len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether somebody has looked when the holder's time is up.
    pub(crate) fn is_watched(&self, place: &LockKey) -> bool {
        self.line(place.db, &place.resource).is_some_and(|line| line.watched_until_ms.is_some())
    }

    pub(crate) fn first(&self, place: &LockKey) -> Option<WaiterId> {
        self.line(place.db, &place.resource)?.waiters.first().copied()
    }

    fn line(&self, db: i32, resource: &[u8]) -> Option<&WaitQueue> {
        self.wait_queues.get(&db)?.get(resource)
    }

    /// Waiters in the queue.
    pub(crate) fn len(&self, db: i32, resource: &[u8]) -> usize {
        self.line(db, resource).map_or(0, |line| line.waiters.len())
    }

    /// Owners and arrivals, first in the queue first.
    pub(crate) fn list(&self, db: i32, resource: &[u8]) -> Vec<(Bytes, u64)> {
        let waiters = self.line(db, resource).into_iter().flat_map(|line| &line.waiters);
        waiters
            .filter_map(|id| self.waiters.get(id))
            .map(|waiter| (waiter.wait_request.owner.clone(), waiter.since_us))
            .collect()
    }

    /// Whether this very wish is already in the queue: the same owner, the same locks.
    pub(crate) fn find(&self, wait_request: &WaitRequest) -> Option<WaiterId> {
        wait_request.resources.iter().find_map(|resource| {
            let id = *self.line(wait_request.db, resource)?.by_owner.get(&wait_request.owner)?;
            let queued = &self.waiters.get(&id)?.wait_request;
            let same = queued.multi == wait_request.multi
                && queued.resources.len() == wait_request.resources.len()
                && queued.resources.iter().all(|resource| wait_request.resources.contains(resource));
            same.then_some(id)
        })
    }

    /// Whether [`WaitQueues::join`] would find room.
    pub(crate) fn has_room(&self, wait_request: &WaitRequest) -> bool {
        match self.find(wait_request).and_then(|id| self.waiters.get(&id)) {
            Some(waiter) => waiter.clients.len() < CLIENTS_PER_WAITER_MAX,
            None => wait_request
                .resources
                .iter()
                .all(|resource| self.len(wait_request.db, resource) < WAITERS_PER_LOCK_MAX),
        }
    }

    /// Puts a client in the queue: with a waiter of its own at the end, or with the one its OWNER already has. True where it is new.
    pub(crate) fn join(
        &mut self,
        wait_request: WaitRequest,
        client: ClientId,
        ttl_ms: u64,
        now_us: u64,
        give_up_at_ms: u64,
    ) -> Result<bool, QueueFull> {
        if !self.has_room(&wait_request) {
            return Err(QueueFull);
        }
        let known = self.find(&wait_request);
        let id = known.unwrap_or_else(|| self.add_ticket(wait_request, now_us));
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.clients.push(WaitingClient { id: client, ttl_ms, give_up_at_ms });
        }
        self.clients.insert(client, id);
        self.give_ups.insert((give_up_at_ms, client));
        Ok(known.is_none())
    }

    fn add_ticket(&mut self, wait_request: WaitRequest, now_us: u64) -> WaiterId {
        self.last_id += 1;
        let id = WaiterId(self.last_id);
        let wait_queues = self.wait_queues.entry(wait_request.db).or_default();
        for resource in &wait_request.resources {
            let line = wait_queues.entry(resource.clone()).or_default();
            line.waiters.insert(id);
            line.by_owner.entry(wait_request.owner.clone()).or_insert(id);
        }
        self.waiters.insert(id, Waiter { wait_request, since_us: now_us, clients: Vec::with_capacity(1) });
        id
    }

    /// A client gave up, or is gone. `None` where it is not in the queue.
    pub(crate) fn leave(&mut self, client: ClientId) -> Option<LeaveOutcome> {
        let id = self.clients.remove(&client)?;
        let waiter = self.waiters.get_mut(&id)?;
        let at = waiter.clients.iter().position(|other| other.id == client)?;
        let gone = waiter.clients.remove(at);
        self.give_ups.remove(&(gone.give_up_at_ms, client));
        if !waiter.clients.is_empty() {
            return Some(LeaveOutcome::WaiterStays);
        }
        self.take(id).map(LeaveOutcome::WaiterGone)
    }

    /// Takes a waiter, with its clients, out of every queue.
    pub(crate) fn take(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        for client in &waiter.clients {
            self.clients.remove(&client.id);
            self.give_ups.remove(&(client.give_up_at_ms, client.id));
        }
        for place in waiter.wait_request.lock_keys() {
            self.remove_from_line(&place, id, &waiter.wait_request.owner);
        }
        Some(waiter)
    }

    fn remove_from_line(&mut self, place: &LockKey, id: WaiterId, owner: &Bytes) {
        let Some(wait_queues) = self.wait_queues.get_mut(&place.db) else {
            return;
        };
        let Some(line) = wait_queues.get_mut(&place.resource) else {
            return;
        };
        line.waiters.remove(&id);
        if line.by_owner.get(owner) == Some(&id) {
            line.by_owner.remove(owner);
        }
        if line.waiters.is_empty() {
            let watched = line.watched_until_ms;
            wait_queues.remove(&place.resource);
            if wait_queues.is_empty() {
                self.wait_queues.remove(&place.db);
            }
            if let Some(until_ms) = watched {
                self.watches.remove(&(until_ms, place.clone()));
            }
        }
    }

    /// The first in the queue, where it is first in all of its queues: it is next. `None` where nobody is, or it waits for another queue.
    pub(crate) fn next(&self, place: &LockKey) -> Option<(WaiterId, &Waiter)> {
        let first = *self.line(place.db, &place.resource)?.waiters.first()?;
        let waiter = self.waiters.get(&first)?;
        let first_everywhere = waiter.wait_request.resources.iter().all(|resource| {
            self.line(place.db, resource).and_then(|line| line.waiters.first()) == Some(&first)
        });
        first_everywhere.then_some((first, waiter))
    }

    /// The holder's time is up at `until_ms`: look again then.
    pub(crate) fn watch(&mut self, place: &LockKey, until_ms: Option<u64>) {
        let Some(line) =
            self.wait_queues.get_mut(&place.db).and_then(|wait_queues| wait_queues.get_mut(&place.resource))
        else {
            return;
        };
        if line.watched_until_ms == until_ms {
            return;
        }
        let before = std::mem::replace(&mut line.watched_until_ms, until_ms);
        if let Some(before_ms) = before {
            self.watches.remove(&(before_ms, place.clone()));
        }
        if let Some(until_ms) = until_ms {
            self.watches.insert((until_ms, place.clone()));
        }
    }

    /// Takes up to `most` queues whose holder's time is up.
    pub(crate) fn take_due_watches(&mut self, wall_ms: u64, most: usize) -> Vec<LockKey> {
        let due: Vec<(u64, LockKey)> =
            self.watches.iter().take_while(|(at_ms, _)| *at_ms < wall_ms).take(most).cloned().collect();
        due.into_iter()
            .map(|(_, place)| {
                self.watch(&place, None);
                place
            })
            .collect()
    }

    /// Clients whose WAIT is over, up to `most`. They are still in the queue.
    pub(crate) fn due_give_ups(&self, steady_ms: u64, most: usize) -> Vec<ClientId> {
        self.give_ups
            .iter()
            .take_while(|(at_ms, _)| *at_ms <= steady_ms)
            .take(most)
            .map(|(_, client)| *client)
            .collect()
    }

    /// Milliseconds until something is due; `None` where nothing will be.
    pub(crate) fn next_due_in_ms(&self, steady_ms: u64, wall_ms: u64) -> Option<u64> {
        let give_up = self.give_ups.first().map(|(at_ms, _)| at_ms.saturating_sub(steady_ms));
        // Redis ends a key one millisecond after its expiry.
        let watch = self.watches.first().map(|(at_ms, _)| (at_ms + 1).saturating_sub(wall_ms));
        give_up.into_iter().chain(watch).min()
    }

    /// Every queue, of one db or of all.
    pub(crate) fn lock_keys(&self, db: Option<i32>) -> Vec<LockKey> {
        let dbs = self.wait_queues.iter().filter(|(id, _)| db.is_none_or(|db| db == **id));
        dbs.flat_map(|(db, wait_queues)| {
            wait_queues.keys().map(|resource| LockKey { db: *db, resource: resource.clone() })
        })
        .collect()
    }

    pub(crate) fn waiter_ids(&self) -> Vec<WaiterId> {
        self.waiters.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests;
