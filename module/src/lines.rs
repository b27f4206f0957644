//! Who stands in line for which lock: the bookkeeping of `waiters.rs`, without Redis, so that it can be tested without one.
//!
//! A *ticket* is one request that waits: for one lock or, with `LOCK.MACQUIRE`, for several. It stands in the line of each
//! of its locks from one instant; ids rise, so every line is in the order of arrival and two multi-locks are in the same order in
//! every line they share. A ticket belongs to one client, or to several where an OWNER asked again while it was queued.
//!
//! Limits: [`WAITERS_PER_LOCK_MAX`] tickets a line, [`CLIENTS_PER_TICKET_MAX`] clients a ticket; beyond, `join` says [`Full`].

use crate::ffi::ClientId;
use bytes::Bytes;
use redfence_core::types::WAITERS_PER_LOCK_MAX;
use std::collections::{BTreeSet, HashMap};

/// Retries of one OWNER that wait at the same time.
pub(crate) const CLIENTS_PER_TICKET_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TicketId(u64);

/// A lock's place in the server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) db: i32,
    pub(crate) resource: Bytes,
}

/// A request for locks, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) db: i32,
    /// In the order asked.
    pub(crate) resources: Vec<Bytes>,
    /// Whether the answer is a multi-lock's, even where it names one resource.
    pub(crate) multi: bool,
    pub(crate) owner: Bytes,
}

impl Wish {
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.resources.iter().map(|resource| Place { db: self.db, resource: resource.clone() })
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) ttl_ms: u64,
    give_up_at_ms: u64,
}

#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) wish: Wish,
    pub(crate) since_us: u64,
    pub(crate) clients: Vec<Client>,
}

impl Ticket {
    /// Where retries asked for different times, the longest is granted.
    pub(crate) fn ttl_ms(&self) -> u64 {
        self.clients.iter().map(|client| client.ttl_ms).max().unwrap_or(0)
    }
}

#[derive(Debug, Default)]
struct Line {
    tickets: BTreeSet<TicketId>,
    by_owner: HashMap<Bytes, TicketId>,
    /// When the holder's time is up, where somebody has looked.
    watched_until_ms: Option<u64>,
}

/// The line, or the ticket, has no room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// What became of a client that left.
#[derive(Debug)]
pub(crate) enum Left {
    /// Its ticket had other clients, and stays.
    TicketStays,
    /// It was the last: the ticket is gone from every line.
    TicketGone(Ticket),
}

/// All lines of the server.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: HashMap<i32, HashMap<Bytes, Line>>,
    tickets: HashMap<TicketId, Ticket>,
    clients: HashMap<ClientId, TicketId>,
    /// On the steady clock.
    give_ups: BTreeSet<(u64, ClientId)>,
    /// On the wall clock, as Redis's expiries are.
    watches: BTreeSet<(u64, Place)>,
    last_id: u64,
}

impl Lines {
    pub(crate) fn clients_len(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn tickets_len(&self) -> usize {
        self.tickets.len()
    }

    /// Whether somebody has looked when the holder's time is up.
    pub(crate) fn is_watched(&self, place: &Place) -> bool {
        self.line(place.db, &place.resource).is_some_and(|line| line.watched_until_ms.is_some())
    }

    pub(crate) fn first(&self, place: &Place) -> Option<TicketId> {
        self.line(place.db, &place.resource)?.tickets.first().copied()
    }

    fn line(&self, db: i32, resource: &[u8]) -> Option<&Line> {
        self.lines.get(&db)?.get(resource)
    }

    /// Tickets in line.
    pub(crate) fn len(&self, db: i32, resource: &[u8]) -> usize {
        self.line(db, resource).map_or(0, |line| line.tickets.len())
    }

    /// Owners and arrivals, first in line first.
    pub(crate) fn list(&self, db: i32, resource: &[u8]) -> Vec<(Bytes, u64)> {
        let tickets = self.line(db, resource).into_iter().flat_map(|line| &line.tickets);
        tickets
            .filter_map(|id| self.tickets.get(id))
            .map(|ticket| (ticket.wish.owner.clone(), ticket.since_us))
            .collect()
    }

    /// Whether this very wish is already in line: the same owner, the same locks.
    pub(crate) fn find(&self, wish: &Wish) -> Option<TicketId> {
        wish.resources.iter().find_map(|resource| {
            let id = *self.line(wish.db, resource)?.by_owner.get(&wish.owner)?;
            let queued = &self.tickets.get(&id)?.wish;
            let same = queued.multi == wish.multi
                && queued.resources.len() == wish.resources.len()
                && queued.resources.iter().all(|resource| wish.resources.contains(resource));
            same.then_some(id)
        })
    }

    /// Whether [`Lines::join`] would find room.
    pub(crate) fn has_room(&self, wish: &Wish) -> bool {
        match self.find(wish).and_then(|id| self.tickets.get(&id)) {
            Some(ticket) => ticket.clients.len() < CLIENTS_PER_TICKET_MAX,
            None => wish.resources.iter().all(|resource| self.len(wish.db, resource) < WAITERS_PER_LOCK_MAX),
        }
    }

    /// Puts a client in line: with a ticket of its own at the end, or with the one its OWNER already has. True where it is new.
    pub(crate) fn join(
        &mut self,
        wish: Wish,
        client: ClientId,
        ttl_ms: u64,
        now_us: u64,
        give_up_at_ms: u64,
    ) -> Result<bool, Full> {
        if !self.has_room(&wish) {
            return Err(Full);
        }
        let known = self.find(&wish);
        let id = known.unwrap_or_else(|| self.add_ticket(wish, now_us));
        if let Some(ticket) = self.tickets.get_mut(&id) {
            ticket.clients.push(Client { id: client, ttl_ms, give_up_at_ms });
        }
        self.clients.insert(client, id);
        self.give_ups.insert((give_up_at_ms, client));
        Ok(known.is_none())
    }

    fn add_ticket(&mut self, wish: Wish, now_us: u64) -> TicketId {
        self.last_id += 1;
        let id = TicketId(self.last_id);
        let lines = self.lines.entry(wish.db).or_default();
        for resource in &wish.resources {
            let line = lines.entry(resource.clone()).or_default();
            line.tickets.insert(id);
            line.by_owner.entry(wish.owner.clone()).or_insert(id);
        }
        self.tickets.insert(id, Ticket { wish, since_us: now_us, clients: Vec::with_capacity(1) });
        id
    }

    /// A client gave up, or is gone. `None` where it is not in line.
    pub(crate) fn leave(&mut self, client: ClientId) -> Option<Left> {
        let id = self.clients.remove(&client)?;
        let ticket = self.tickets.get_mut(&id)?;
        let at = ticket.clients.iter().position(|other| other.id == client)?;
        let gone = ticket.clients.remove(at);
        self.give_ups.remove(&(gone.give_up_at_ms, client));
        if !ticket.clients.is_empty() {
            return Some(Left::TicketStays);
        }
        self.take(id).map(Left::TicketGone)
    }

    /// Takes a ticket, with its clients, out of every line.
    pub(crate) fn take(&mut self, id: TicketId) -> Option<Ticket> {
        let ticket = self.tickets.remove(&id)?;
        for client in &ticket.clients {
            self.clients.remove(&client.id);
            self.give_ups.remove(&(client.give_up_at_ms, client.id));
        }
        for place in ticket.wish.places() {
            self.remove_from_line(&place, id, &ticket.wish.owner);
        }
        Some(ticket)
    }

    fn remove_from_line(&mut self, place: &Place, id: TicketId, owner: &Bytes) {
        let Some(lines) = self.lines.get_mut(&place.db) else {
            return;
        };
        let Some(line) = lines.get_mut(&place.resource) else {
            return;
        };
        line.tickets.remove(&id);
        if line.by_owner.get(owner) == Some(&id) {
            line.by_owner.remove(owner);
        }
        if line.tickets.is_empty() {
            let watched = line.watched_until_ms;
            lines.remove(&place.resource);
            if lines.is_empty() {
                self.lines.remove(&place.db);
            }
            if let Some(until_ms) = watched {
                self.watches.remove(&(until_ms, place.clone()));
            }
        }
    }

    /// The first in line, where it is first in all of its lines: it is next. `None` where nobody is, or it waits for another line.
    pub(crate) fn next(&self, place: &Place) -> Option<(TicketId, &Ticket)> {
        let first = *self.line(place.db, &place.resource)?.tickets.first()?;
        let ticket = self.tickets.get(&first)?;
        let first_everywhere = ticket.wish.resources.iter().all(|resource| {
            self.line(place.db, resource).and_then(|line| line.tickets.first()) == Some(&first)
        });
        first_everywhere.then_some((first, ticket))
    }

    /// The holder's time is up at `until_ms`: look again then.
    pub(crate) fn watch(&mut self, place: &Place, until_ms: Option<u64>) {
        let Some(line) = self.lines.get_mut(&place.db).and_then(|lines| lines.get_mut(&place.resource))
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

    /// Takes up to `most` lines whose holder's time is up.
    pub(crate) fn take_due_watches(&mut self, wall_ms: u64, most: usize) -> Vec<Place> {
        let due: Vec<(u64, Place)> =
            self.watches.iter().take_while(|(at_ms, _)| *at_ms < wall_ms).take(most).cloned().collect();
        due.into_iter()
            .map(|(_, place)| {
                self.watch(&place, None);
                place
            })
            .collect()
    }

    /// Clients whose WAIT is over, up to `most`. They are still in line.
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

    /// Every line, of one db or of all.
    pub(crate) fn places(&self, db: Option<i32>) -> Vec<Place> {
        let dbs = self.lines.iter().filter(|(id, _)| db.is_none_or(|db| db == **id));
        dbs.flat_map(|(db, lines)| lines.keys().map(|resource| Place { db: *db, resource: resource.clone() }))
            .collect()
    }

    pub(crate) fn ticket_ids(&self) -> Vec<TicketId> {
        self.tickets.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests;
