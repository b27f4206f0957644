//! Keeps sessions alive on behalf of the connections that opened them.
//!
//! A command only sets a flag on its connection's [`ConnectionSessions`]. Five times a second one task gathers the sessions of all slots that were
//! active, or whose client is blocked in a WAIT, and reports them to Tier 2 at once: one batched entry, however many clients.
//!
//! A batch is applied up to [`BATCH_LATE_MS`] after the command it speaks of. A session that would end before that is reported by itself,
//! as if its client had sent `LOCK.SESSION KEEPALIVE`.

use crate::clock::Clock;
use crate::tier2::handle::Tier2Handle;
use redfence_core::machine::Command;
use redfence_core::types::SessionId;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often sessions of a short ttl are looked at while their clients are blocked, and after how many of these looks all are reported.
const LOOK_EVERY: Duration = Duration::from_millis(25);
const LOOKS_PER_REPORT: u32 = 8;
/// A report, the node's own batch, and its way through the log: with room to spare.
const BATCH_LATE_MS: u64 = 600;
/// Below this ttl, being blocked has to be reported more often than by batches.
const SHORT_TTL_MS: u64 = 1_000;

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
    shortest_ttl_ms: AtomicU64,
    reported_ms: AtomicU64,
}

impl ConnectionSessions {
    fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    /// Whether a session of it may end before a batch that speaks of a command now is applied. Not again and again within an eighth of the
    /// ttl.
    fn is_in_a_hurry(&self, now_ms: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.reported_ms.load(Ordering::Relaxed));
        let ttl_ms = self.shortest_ttl_ms.load(Ordering::Relaxed);
        since_ms.saturating_add(BATCH_LATE_MS) >= ttl_ms && since_ms >= ttl_ms / 8
    }

    /// The same for a client that is blocked, of a ttl for which batches are too rare.
    fn is_due_while_blocked(&self, now_ms: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.reported_ms.load(Ordering::Relaxed));
        let ttl_ms = self.shortest_ttl_ms.load(Ordering::Relaxed);
        ttl_ms < SHORT_TTL_MS && since_ms >= ttl_ms / 4 && self.waiting.load(Ordering::Relaxed)
    }

    pub fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    fn add(&self, id: SessionId, ttl_ms: u64, now_ms: u64) -> bool {
        let mut ids = self.ids();
        let room = ids.len() < SESSIONS_PER_CONNECTION_MAX;
        if room {
            ids.push((id, ttl_ms));
            self.shortest_ttl_ms.fetch_min(ttl_ms, Ordering::Relaxed);
            if ids.len() == 1 {
                self.reported_ms.store(now_ms, Ordering::Relaxed);
            }
        }
        room
    }

    pub fn forget(&self, id: SessionId) {
        let mut ids = self.ids();
        ids.retain(|(known, _)| *known != id);
        let shortest_ttl_ms = ids.iter().map(|(_, ttl_ms)| *ttl_ms).min().unwrap_or(u64::MAX);
        self.shortest_ttl_ms.store(shortest_ttl_ms, Ordering::Relaxed);
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
    clock: Clock,
    next: AtomicU64,
    connections: Mutex<FxHashMap<u64, Arc<ConnectionSessions>>>,
    /// Those of them that have, or had, a session of a short ttl.
    short: Mutex<FxHashMap<u64, Arc<ConnectionSessions>>>,
}

impl SessionKeepalive {
    /// Starts the task that reports.
    #[must_use]
    pub fn start(tier2: Tier2Handle, clock: Clock, grace_ms: u64) -> Arc<SessionKeepalive> {
        let session_keepalive = Arc::new(SessionKeepalive {
            tier2,
            grace_ms,
            clock,
            next: AtomicU64::new(0),
            connections: Mutex::default(),
            short: Mutex::default(),
        });
        let weak = Arc::downgrade(&session_keepalive);
        tokio::spawn(async move {
            let mut every = tokio::time::interval(LOOK_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            for look in 0_u32.. {
                every.tick().await;
                let Some(session_keepalive) = weak.upgrade() else { return };
                if look % LOOKS_PER_REPORT == 0 {
                    session_keepalive.report();
                }
                session_keepalive.report_short();
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
            shortest_ttl_ms: AtomicU64::new(u64::MAX),
            reported_ms: AtomicU64::new(0),
        });
        self.connections.lock().expect("mutex poisoned").insert(number, Arc::clone(&sessions));
        sessions
    }

    /// The connection has opened a session. False: there was no room for it.
    #[must_use]
    pub fn add(&self, sessions: &Arc<ConnectionSessions>, id: SessionId, ttl_ms: u64) -> bool {
        if !sessions.add(id, ttl_ms, self.clock.monotonic_ms()) {
            return false;
        }
        if ttl_ms < SHORT_TTL_MS {
            self.short.lock().expect("mutex poisoned").insert(sessions.number, Arc::clone(sessions));
        }
        true
    }

    /// A command came in on a connection with sessions.
    pub fn note_command(&self, sessions: &ConnectionSessions, now_ms: u64) {
        sessions.touch();
        if sessions.is_in_a_hurry(now_ms) {
            self.report_alone(sessions, now_ms);
        }
    }

    fn report_alone(&self, sessions: &ConnectionSessions, now_ms: u64) {
        sessions.reported_ms.store(now_ms, Ordering::Relaxed);
        let ids = sessions.ids().iter().map(|(id, _)| *id).collect();
        let mut blob = Vec::new();
        Command::SessionsTouch { ids }.encode(&mut blob);
        // Its reply says nothing; where the node has no room for it, the next batch has.
        drop(self.tier2.submit(blob.into(), 0));
    }

    fn report_short(&self) {
        let now_ms = self.clock.monotonic_ms();
        for sessions in self.short.lock().expect("mutex poisoned").values() {
            if sessions.is_due_while_blocked(now_ms) {
                self.report_alone(sessions, now_ms);
            }
        }
    }

    /// The connection is closed: its sessions die after the grace time unless somebody keeps them alive.
    pub fn unregister(&self, sessions: &ConnectionSessions) {
        self.connections.lock().expect("mutex poisoned").remove(&sessions.number);
        self.short.lock().expect("mutex poisoned").remove(&sessions.number);
        let ids = std::mem::take(&mut *sessions.ids());
        self.tier2.orphan_sessions(ids.into_iter().map(|(id, _)| id).collect(), self.grace_ms);
    }

    fn report(&self) {
        let now_ms = self.clock.monotonic_ms();
        let mut active = Vec::new();
        let mut ids = Vec::new();
        for sessions in self.connections.lock().expect("mutex poisoned").values() {
            if sessions.touched.swap(false, Ordering::Relaxed) || sessions.waiting.load(Ordering::Relaxed) {
                ids.extend(sessions.ids().iter().map(|(id, _)| *id));
                sessions.reported_ms.store(now_ms, Ordering::Relaxed);
                active.push(Arc::clone(sessions));
            }
        }
        if !self.tier2.touch_sessions(ids) {
            active.iter().for_each(|sessions| sessions.touch());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_ttl(ttl_ms: u64) -> ConnectionSessions {
        let sessions = ConnectionSessions {
            number: 1,
            ids: Mutex::default(),
            touched: AtomicBool::new(false),
            waiting: AtomicBool::new(true),
            shortest_ttl_ms: AtomicU64::new(u64::MAX),
            reported_ms: AtomicU64::new(0),
        };
        assert!(sessions.add(SessionId(1), ttl_ms, 10_000));
        sessions
    }

    #[test]
    fn a_batch_is_enough_while_the_session_outlives_it() {
        let long = with_ttl(2_000);
        assert!(!long.is_in_a_hurry(11_399));
        assert!(long.is_in_a_hurry(11_400));
        long.reported_ms.store(11_400, Ordering::Relaxed);
        assert!(!long.is_in_a_hurry(12_000));
    }

    #[test]
    fn a_session_shorter_than_a_batch_takes_is_reported_by_itself() {
        let short = with_ttl(100);
        assert!(!short.is_in_a_hurry(10_011), "an eighth of its ttl apart");
        assert!(short.is_in_a_hurry(10_012));
        assert!(!short.is_due_while_blocked(10_024));
        assert!(short.is_due_while_blocked(10_025));
        short.set_waiting(false);
        assert!(!short.is_due_while_blocked(10_090));
    }

    #[test]
    fn the_shortest_of_several_counts_until_it_is_forgotten() {
        let sessions = with_ttl(60_000);
        assert!(sessions.add(SessionId(2), 300, 10_000));
        assert!(sessions.is_in_a_hurry(10_100));
        sessions.forget(SessionId(2));
        assert!(!sessions.is_in_a_hurry(10_100));
        sessions.forget(SessionId(1));
        assert!(!sessions.is_in_a_hurry(90_000));
    }
}
