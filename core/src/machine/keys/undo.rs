//! Taking back what a command or script has done to keys: scripts that run over, and members that met a hidden key.

use crate::keyspace::Value;
use crate::machine::keys::adapter::MachineKeys;
use crate::machine::keys::members::Grants;
use crate::machine::locks::lock::{Phase, SavedLock};
use crate::machine::stats::Counters;
use crate::machine::sweep::Sweep;
use crate::machine::{Applied, LockSlot, Machine, SessionSlot};
use std::collections::BTreeMap;

/// How it was at the beginning. Locks are noted before they change for the first time.
pub(crate) struct Undo {
    locks: BTreeMap<LockSlot, SavedKey>,
    events: usize,
    published: usize,
    key_accesses: usize,
    losses: usize,
    event_seq: u64,
    counters: Counters,
    sweep: Sweep,
    ready: usize,
    to_serve: usize,
}

/// One key as it was.
struct SavedKey {
    lock: SavedLock,
    value: Option<Value>,
    version: Option<u64>,
    grants: Option<Grants>,
    attached: Option<Box<[u8]>>,
}

impl Undo {
    pub(crate) fn new(machine: &Machine, out: &Applied) -> Undo {
        Undo {
            locks: BTreeMap::new(),
            events: out.events.len(),
            published: out.published.len(),
            key_accesses: out.key_accesses.len(),
            losses: out.losses.len(),
            event_seq: machine.event_seq,
            counters: machine.counters,
            sweep: machine.sweep.clone(),
            ready: machine.blocked.ready_len(),
            to_serve: machine.to_serve.len(),
        }
    }
}

impl MachineKeys<'_> {
    /// Notes a lock before it changes.
    pub(crate) fn save(&mut self, slot: LockSlot) {
        let Some(undo) = &mut self.undo else { return };
        let machine = &*self.machine;
        undo.locks.entry(slot).or_insert_with(|| SavedKey {
            lock: machine.locks[slot].before(),
            value: machine.values.get(&slot).cloned(),
            version: machine.versions.get(&slot).copied(),
            grants: machine.grants.get(&slot).cloned(),
            attached: machine.attached.get(&slot).cloned(),
        });
    }

    /// All is as it was at the beginning, but for free records that stay a while longer.
    pub(crate) fn undo_all(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        // What the command freed was not freed: whoever waited for it before is first in line again.
        self.machine.to_serve.truncate(undo.to_serve);
        for (slot, key) in undo.locks {
            self.machine.put_back(slot, key);
        }
        self.out.events.truncate(undo.events);
        self.out.published.truncate(undo.published);
        self.out.key_accesses.truncate(undo.key_accesses);
        self.out.truncate_losses(undo.losses);
        self.machine.event_seq = undo.event_seq;
        self.machine.counters = undo.counters;
        self.machine.sweep = undo.sweep;
        self.machine.blocked.truncate_ready(undo.ready);
    }
}

impl Machine {
    fn put_back(&mut self, slot: LockSlot, key: SavedKey) {
        let lock = &self.locks[slot];
        if lock.idle_since_ms().is_some() {
            // Looked at and left alone.
            return;
        }
        if lock.is_several() || matches!(key.lock.phase, Phase::Several { .. }) {
            // Nothing that is taken back changes such a lock.
            return;
        }
        let session = lock.session();
        if session.is_some() && session != key.lock.session() {
            let mut locks = self.sessions[session].locks;
            locks.unlink(&mut self.locks, slot);
            self.sessions.edit(session).locks = locks;
            self.locks.edit(slot).set_session(SessionSlot::NONE);
        }
        self.set_value(slot, key.value);
        match key.version {
            Some(version) => self.versions.insert(slot, version),
            None => self.versions.remove(&slot),
        };
        self.set_grants(slot, key.grants);
        self.set_attached(slot, key.attached);
        let mut before = key.lock;
        match before.phase {
            Phase::Held { deadline_ms, session, .. } => {
                if session.is_some() && self.locks[slot].session().is_none() {
                    let mut locks = self.sessions[session].locks;
                    locks.push_back(&mut self.locks, slot);
                    self.sessions.edit(session).locks = locks;
                }
                self.restore_lock(slot, before);
                self.deadlines.set_lock(self.locks[slot].db(), slot, deadline_ms);
            }
            Phase::Several { .. } | Phase::Awaited | Phase::Idle { .. } => {
                self.deadlines.clear_lock(self.locks[slot].db(), slot);
                before.phase = Phase::Awaited;
                self.restore_lock(slot, before);
                if self.locks[slot].queue.len == 0 {
                    // Goes back to the idle list, or away where it never had a fence.
                    self.to_serve.push_back(slot);
                }
            }
        }
    }
}
