//! Keeps sessions alive on behalf of the connections that opened them.
//!
//! A command only sets a flag on its connection's [`ConnectionSessions`]. Five times a second one task gathers the sessions of all slots that were
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
pub struct ConnectionSessions {
    number: u64,
    /// With the ttl each was opened with.
    ids: Mutex<Vec<(SessionId, u64)>>,
    touched: AtomicBool,
    waiting: AtomicBool,
}

impl ConnectionSessions {
    /// A command came in.
    pub fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    pub fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Whether there was room.
    #[must_use]
    pub fn add(&self, id: SessionId, ttl_ms: u64) -> bool {
        let mut ids = self.ids();
        let room = ids.len() < SESSIONS_PER_CONNECTION_MAX;
        if room {
            ids.push((id, ttl_ms));
        }
        room
    }

    pub fn forget(&self, id: SessionId) {
        self.ids().retain(|(known, _)| *known != id);
    }

    /// Whether it was opened here.
    #[must_use]
    pub fn has(&self, id: SessionId) -> bool {
        self.ttl_ms(id).is_some()
    }

    /// The ttl of a session that was opened here.
    #[must_use]
    pub fn ttl_ms(&self, id: SessionId) -> Option<u64> {
        self.ids().iter().find(|(known, _)| *known == id).map(|(_, ttl_ms)| *ttl_ms)
    }

    fn ids(&self) -> std::sync::MutexGuard<'_, Vec<(SessionId, u64)>> {
        self.ids.lock().expect("mutex poisoned")
    }
}

#[derive(Debug)]
pub struct SessionKeepalive {
    tier2: Tier2Handle,
    grace_ms: u64,
    next: AtomicU64,
    connections: Mutex<FxHashMap<u64, Arc<ConnectionSessions>>>,
}

impl SessionKeepalive {
    /// Starts the task that reports.
    #[must_use]
    pub fn start(tier2: Tier2Handle, grace_ms: u64) -> Arc<SessionKeepalive> {
        let session_keepalive = Arc::new(SessionKeepalive {
            tier2,
            grace_ms,
            next: AtomicU64::new(0),
            connections: Mutex::default(),
        });
        let weak = Arc::downgrade(&session_keepalive);
        tokio::spawn(async move {
            let mut every = tokio::time::interval(REPORT_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                let Some(session_keepalive) = weak.upgrade() else { return };
                session_keepalive.report();
            }
        });
        session_keepalive
    }

    /// A slot for a connection that opens its first session.
    #[must_use]
    pub fn register(&self) -> Arc<ConnectionSessions> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let sessions = Arc::new(ConnectionSessions {
            number,
            ids: Mutex::default(),
            touched: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
        });
        self.connections.lock().expect("mutex poisoned").insert(number, Arc::clone(&sessions));
        sessions
    }

    /// The connection is closed: its sessions die after the grace time unless somebody keeps them alive.
    pub fn unregister(&self, sessions: &ConnectionSessions) {
        self.connections.lock().expect("mutex poisoned").remove(&sessions.number);
        let ids = std::mem::take(&mut *sessions.ids());
        self.tier2.orphan_sessions(ids.into_iter().map(|(id, _)| id).collect(), self.grace_ms);
    }

    fn report(&self) {
        let mut active = Vec::new();
        let mut ids = Vec::new();
        for sessions in self.connections.lock().expect("mutex poisoned").values() {
            if sessions.touched.swap(false, Ordering::Relaxed) || sessions.waiting.load(Ordering::Relaxed) {
                ids.extend(sessions.ids().iter().map(|(id, _)| *id));
                active.push(Arc::clone(sessions));
            }
        }
        if !self.tier2.touch_sessions(ids) {
            active.iter().for_each(|sessions| sessions.touch());
        }
    }
}
