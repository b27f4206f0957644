//! Walks over all keys of an overlay, and the `LOCK.*` commands that only look.
//!
//! Keys with a record in the machine come at their slots, as they do outside; keys that came into being in this run come
//! behind them, in the order of their names.

use super::{Db, LockSlot, Overlay, View};
use crate::glob;
use crate::grammar::{self, Request};
use crate::machine::keys::lock_commands::check_in_transaction;
use crate::machine::Query;
use crate::reply::{Refusal, Reply};
use crate::types::SCAN_COUNT_MAX;
use ::bytes::Bytes;

/// Cursors from here on count keys without a slot.
const NEW_FROM: u64 = 1 << 32;

impl Overlay<'_> {
    /// Visits every key that may be seen, of one database or of all.
    pub(super) fn walk(&self, db: Option<Db>, visit: &mut dyn FnMut(Db, &[u8], View<'_>)) {
        self.everything.set(true);
        for (slot, lock) in self.machine.locks.iter() {
            if db.is_none_or(|db| lock.db() == db) {
                self.at_slot(slot, &mut |key, view| visit(lock.db(), key, view));
            }
        }
        for db in self.changes.by_db.keys().filter(|have| db.is_none_or(|db| db == **have)) {
            self.new_keys(*db).for_each(|(key, view)| visit(*db, key, view));
        }
    }

    /// The key at one slot, as the run has left it.
    fn at_slot(&self, slot: LockSlot, visit: &mut dyn FnMut(&[u8], View<'_>)) {
        let lock = &self.machine.locks[slot];
        let changed = if self.changes.by_db.is_empty() { None } else { self.entry(lock.db(), lock.name()) };
        let seen = match changed {
            Some(entry) => entry.holder.as_ref().map(|holder| holder.seen()),
            None => self.in_machine(slot),
        };
        if let Some(seen) = seen.filter(|seen| self.is_shown(seen)) {
            visit(lock.name(), seen.value);
        }
    }

    /// Keys that have no record in the machine.
    fn new_keys(&self, db: Db) -> impl Iterator<Item = (&[u8], View<'_>)> {
        let entries = self.changes.by_db.get(&db).into_iter().flatten();
        let new = entries.filter(move |(key, _)| self.machine_slot(db, key).is_none());
        new.filter_map(|(key, entry)| {
            let seen = entry.holder.as_ref()?.seen();
            self.is_shown(&seen).then_some((&key[..], seen.value))
        })
    }

    pub(super) fn page(
        &self,
        db: Db,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&[u8], View<'_>),
    ) -> u64 {
        self.everything.set(true);
        let mut looked = 0;
        if cursor < NEW_FROM {
            let first = LockSlot::from_cursor(cursor);
            for (slot, lock) in self.machine.locks.iter_from(first) {
                if looked == count {
                    return u64::from(slot.number());
                }
                looked += 1;
                if lock.db() == db {
                    self.at_slot(slot, visit);
                }
            }
        }
        let from = cursor.saturating_sub(NEW_FROM) as usize;
        for (index, (key, view)) in self.new_keys(db).enumerate().skip(from) {
            if looked == count {
                return NEW_FROM + index as u64;
            }
            looked += 1;
            visit(key, view);
        }
        0
    }

    /// `LOCK.INFO`, `LOCK.QUEUE` and `LOCK.SCAN`. What writes is refused.
    pub(super) fn look(&self, db: Db, argv: &[&[u8]]) -> Reply {
        match grammar::parse(argv) {
            Some(Ok(Request::Info(request))) => self.info(db, request.resource),
            Some(Ok(Request::Explain(request))) => {
                self.depend_on(db, request.resource);
                let late_ms = self.clock.logical_ms.saturating_sub(self.machine.logical_ms());
                let (resource, sessions) = (request.resource, self.sessions);
                self.machine.query_later(Query::Explain { db, resource, sessions }, late_ms)
            }
            Some(Ok(Request::Queue(request))) => {
                self.depend_on(db, request.resource);
                let late_ms = self.clock.logical_ms.saturating_sub(self.machine.logical_ms());
                self.machine.query_later(Query::Queue { db, resource: request.resource }, late_ms)
            }
            Some(Ok(Request::Scan(request))) => {
                self.lock_scan(db, request.cursor, request.pattern, request.count)
            }
            Some(Ok(request)) => {
                let name = String::from_utf8_lossy(argv[0]).to_ascii_uppercase();
                let why = match check_in_transaction(&request) {
                    Ok(()) => "use it outside the script, or in MULTI without one",
                    Err(_) => "use it outside the script",
                };
                Refusal::new(format!("ERR {name} cannot be called from a script: {why}")).into()
            }
            Some(Err(refusal)) => refusal.into(),
            None => Refusal::new("ERR Unknown Redis command called from script").into(),
        }
    }

    fn info(&self, db: Db, resource: &[u8]) -> Reply {
        self.depend_on(db, resource);
        let late_ms = self.clock.logical_ms.saturating_sub(self.machine.logical_ms());
        let sessions = self.sessions;
        let mut reply = self.machine.query_later(Query::Info { db, resource, sessions }, late_ms);
        if let (Reply::Info(info), true, None) = (&mut reply, self.has_flushed(db), self.entry(db, resource))
        {
            (info.held, info.owner, info.session, info.ttl_ms) = (false, None, None, None);
            info.holders = Some(Vec::new());
        }
        if let (Reply::Info(info), Some(entry)) = (&mut reply, self.entry(db, resource)) {
            let holder = entry.holder.as_ref();
            let is_same_grant = info.fence == entry.fence;
            info.held = holder.is_some();
            info.fence = entry.fence;
            info.owner = holder.map(|holder| match holder.value.view() {
                View::Str(owner) => Bytes::copy_from_slice(owner),
                other @ (View::Hash(_) | View::List(_) | View::Set(_) | View::ZSet(_)) => {
                    Bytes::from_static(other.type_name().as_bytes())
                }
            });
            info.ttl_ms = holder.map(|holder| match holder.at_ms {
                super::NEVER => -1,
                at_ms => at_ms.saturating_sub(self.now_ms()) as i64,
            });
            info.session = info.session.filter(|_| holder.is_some() && is_same_grant);
            info.holders = Some(info.holders_of_plain_key(is_same_grant));
        }
        reply
    }

    fn lock_scan(&self, db: Db, cursor: u64, pattern: Option<&[u8]>, count: u64) -> Reply {
        let count = count.clamp(1, SCAN_COUNT_MAX) as usize;
        let mut names = Vec::new();
        let next = self.page(db, cursor, count, &mut |name, _| {
            if pattern.is_none_or(|pattern| glob::matches(pattern, name)) {
                names.push(Reply::bulk(name));
            }
        });
        Reply::Array(vec![Reply::bulk(next.to_string()), Reply::Array(names)])
    }
}
