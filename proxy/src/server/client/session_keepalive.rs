//! Keeps sessions alive on behalf of the connections that opened them.
//!
//! A command only sets a flag on its connection's [`Slot`]. Five times a second one task gathers the sessions of all slots that were
//! active, or whose client is blocked in a WAIT, and reports them to Tier 2 at once: one batched entry, however many clients.

use crate::tier2::handle::Tier2Handle;
use redfence_core::types::SessionId;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const REPORT_EVERY: Duration = Duration::from_millis(200);

/// Sessions one connection may have opened and not closed. One more is refused.
pub const SESSIONS_PER_CONNECTION_MAX: usize = 1024;

/// The sessions of one connection.
#[derive(Debug)]
pub struct Slot {
    number: u64,
    ids: Mutex<Vec<SessionId>>,
    touched: AtomicBool,
    waiting: AtomicBool,
}

impl Slot {
    /// A command came in.
    pub fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    pub fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Whether there was room.
    #[must_use]
    pub fn add(&self, id: SessionId) -> bool {
        let mut ids = self.ids();
        let room = ids.len() < SESSIONS_PER_CONNECTION_MAX;
        if room {
            ids.push(id);
        }
        room
    }

    pub fn forget(&self, id: SessionId) {
        self.ids().retain(|known| *known != id);
    }

    fn ids(&self) -> std::sync::MutexGuard<'_, Vec<SessionId>> {
        self.ids.lock().expect("a slot is whole")
    }
}

#[derive(Debug)]
pub struct Keeper {
    tier2: Tier2Handle,
    grace_ms: u64,
    next: AtomicU64,
    slots: Mutex<FxHashMap<u64, Arc<Slot>>>,
}

impl Keeper {
    /// Starts the task that reports.
    #[must_use]
    pub fn start(tier2: Tier2Handle, grace_ms: u64) -> Arc<Keeper> {
        let keeper = Arc::new(Keeper { tier2, grace_ms, next: AtomicU64::new(0), slots: Mutex::default() });
        let weak = Arc::downgrade(&keeper);
        tokio::spawn(async move {
            let mut every = tokio::time::interval(REPORT_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                let Some(keeper) = weak.upgrade() else { return };
                keeper.report();
            }
        });
        keeper
    }

    /// A slot for a connection that opens its first session.
    #[must_use]
    pub fn open_slot(&self) -> Arc<Slot> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::new(Slot {
            number,
            ids: Mutex::default(),
            touched: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
        });
        self.slots.lock().expect("the keeper is whole").insert(number, Arc::clone(&slot));
        slot
    }

    /// The connection is closed: its sessions die after the grace time unless somebody keeps them alive.
    pub fn close_slot(&self, slot: &Slot) {
        self.slots.lock().expect("the keeper is whole").remove(&slot.number);
        let ids = std::mem::take(&mut *slot.ids());
        self.tier2.orphan_sessions(ids, self.grace_ms);
    }

    fn report(&self) {
        let mut active = Vec::new();
        let mut ids = Vec::new();
        for slot in self.slots.lock().expect("the keeper is whole").values() {
            if slot.touched.swap(false, Ordering::Relaxed) || slot.waiting.load(Ordering::Relaxed) {
                ids.extend_from_slice(&slot.ids());
                active.push(Arc::clone(slot));
            }
        }
        if !self.tier2.touch_sessions(ids) {
            active.iter().for_each(|slot| slot.touch());
        }
    }
}
