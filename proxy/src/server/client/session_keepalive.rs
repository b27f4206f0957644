//! Keeps sessions alive on behalf of the connections that opened them.
//!
//! A command only sets a flag on its connection's [`ConnectionSessions`]. Five times a second one task gathers the sessions of all slots that were
//! active, or whose client is blocked in a WAIT, and reports them to Tier 2 at once: one batched entry, however many clients. None again
//! within an eighth of its ttl, and no more than [`REPORTED_AT_ONCE_MAX`]: first those of connections with few sessions, and among these
//! and among the others those that would end first.
//!
//! A batch is applied up to [`BATCH_LATE_MS`] after the command it speaks of. A session that would end before that is reported at once, with
//! all others that are in a hurry by then, and a bounded number of them a second ([`PAUSE_PER_SESSION`]). Connections with many sessions
//! stand in a line of their own, which has one report in four: they make each other wait, and nobody else.
//!
//! A session may end while its connection goes on: closed by another one, or because nothing came for too long. Reported once more, it is
//! not there, and is forgotten.

use crate::clock::Clock;
use crate::tier2::handle::Tier2Handle;
use redfence_core::types::SessionId;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

/// How often sessions of a short ttl are looked at while their clients are blocked, and after how many of these looks all are reported.
const LOOK_EVERY: Duration = Duration::from_millis(25);
const LOOKS_PER_REPORT: u32 = 8;
/// A report, the node's own batch, and its way through the log: with room to spare.
const BATCH_LATE_MS: u64 = 600;
/// Below this ttl, being blocked has to be reported more often than by batches.
const SHORT_TTL_MS: u64 = 1_000;

/// A session is not reported again within this part of its ttl, nor is it reported later than that: a client that is frozen must not
/// keep a long one for minutes more.
const REPORT_PART: u64 = 8;
const REPORT_MS_MAX: u64 = 5_000;
/// Sessions in one report of all: 64,000 a second.
const REPORTED_AT_ONCE_MAX: usize = 12_800;
/// After a report of sessions in a hurry the next one waits for so long for each of them: as many a second.
const PAUSE_PER_SESSION: Duration = Duration::from_micros(16);
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Where the node's inbox is full. It is emptied at each turn of the node.
const REPORT_AGAIN: Duration = Duration::from_millis(5);
const REPORT_TRIES: u32 = 100;
/// Connections with more are not in one line with the others.
const SESSIONS_FEW: usize = 16;
/// Every so many reports is one of connections with many.
const TURN_OF_MANY: u32 = 4;
/// Sessions in one report of those in a hurry.
const SESSIONS_AT_ONCE_MAX: usize = 1024;
/// A connection without room for another session is reported this often: some of its sessions may have ended.
const FULL_REPORT_MS: u64 = 1_000;

/// What comes so shortly before the end of a connection may have been on its way for as long as that end, also where it was answered in
/// pieces.
const LAST_WORDS_MS: u64 = 1_000;
/// How exactly reads are remembered, and how many.
const READS_EVERY_MS: u64 = 250;
const READS_MAX: usize = 6;

/// Sessions one connection may have opened that have not ended. One more is refused.
pub const SESSIONS_PER_CONNECTION_MAX: usize = 1024;

/// What is known of when a client was last there, by the log: after the last entry applied when a reply was written before it sent
/// something more. When its bytes are read says little: the network, or this process, may have kept them for long.
#[derive(Debug)]
struct Heard {
    /// Oldest first, not empty.
    reads: VecDeque<Read>,
}

/// Of the reads within [`READS_EVERY_MS`] the first and the last.
#[derive(Clone, Copy, Debug)]
struct Read {
    first_ms: u64,
    first_index: u64,
    last_ms: u64,
    last_index: u64,
}

impl Heard {
    fn new(index: u64) -> Heard {
        let opened = Read { first_ms: 0, first_index: index, last_ms: 0, last_index: index };
        Heard { reads: VecDeque::from([opened]) }
    }

    /// `index`: the last entry applied when the last reply was written.
    fn note(&mut self, index: u64, now_ms: u64) {
        match self.reads.back_mut().filter(|read| now_ms < read.first_ms + READS_EVERY_MS) {
            Some(read) => (read.last_ms, read.last_index) = (now_ms, index),
            None => {
                if self.reads.len() == READS_MAX {
                    self.reads.pop_front();
                }
                let (first_ms, first_index) = (now_ms, index);
                self.reads.push_back(Read { first_ms, first_index, last_ms: now_ms, last_index: index });
            }
        }
    }

    /// If the connection ended at this time.
    fn until(&self, ended_ms: u64) -> u64 {
        let before_ms = ended_ms.saturating_sub(LAST_WORDS_MS);
        let certain = self.reads.iter().rev().find(|read| read.first_ms <= before_ms);
        match certain.or(self.reads.front()) {
            Some(read) if read.last_ms <= before_ms => read.last_index,
            Some(read) => read.first_index,
            None => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct OwnSession {
    id: SessionId,
    ttl_ms: u64,
    /// It was opened: if it is not there, it has ended.
    is_open: bool,
}

/// The sessions of one connection.
#[derive(Debug)]
pub struct ConnectionSessions {
    number: u64,
    all: Mutex<Vec<OwnSession>>,
    touched: AtomicBool,
    is_in_line: AtomicBool,
    waiting: AtomicBool,
    shortest_ttl_ms: AtomicU64,
    reported_ms: AtomicU64,
    /// One more was refused.
    is_full: AtomicBool,
    heard: Mutex<Heard>,
    /// The last entry applied when a reply was last written.
    written_index: AtomicU64,
    /// When the client, or this side, ended the connection; 0: not yet. What is in flight may be waited for.
    ended_ms: AtomicU64,
}

impl ConnectionSessions {
    fn new(number: u64, heard_index: u64) -> ConnectionSessions {
        ConnectionSessions {
            number,
            all: Mutex::default(),
            touched: AtomicBool::new(false),
            is_in_line: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            shortest_ttl_ms: AtomicU64::new(u64::MAX),
            reported_ms: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            heard: Mutex::new(Heard::new(heard_index)),
            written_index: AtomicU64::new(heard_index),
            ended_ms: AtomicU64::new(0),
        }
    }

    /// Bytes came from the client.
    pub fn heard(&self, now_ms: u64) {
        let index = self.written_index.load(Ordering::Relaxed);
        self.heard.lock().expect("mutex poisoned").note(index, now_ms);
    }

    /// Bytes of replies were written. `entry_index`: the last entry applied.
    pub fn written(&self, entry_index: u64) {
        self.written_index.store(entry_index, Ordering::Relaxed);
    }

    /// No more is heard.
    pub fn ended(&self, now_ms: u64) {
        // Only the first time counts.
        let _ = self.ended_ms.compare_exchange(0, now_ms.max(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    /// Whether a report of all has to have its sessions.
    fn is_due(&self, now_ms: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.reported_ms.load(Ordering::Relaxed));
        let ttl_ms = self.shortest_ttl_ms.load(Ordering::Relaxed);
        let is_full = self.is_full.load(Ordering::Relaxed);
        let after_ms = (ttl_ms / REPORT_PART).min(if is_full { FULL_REPORT_MS } else { REPORT_MS_MAX });
        (self.touched.load(Ordering::Relaxed) || self.waiting.load(Ordering::Relaxed)) && since_ms >= after_ms
    }

    /// When the first of its sessions may end.
    fn ends_ms(&self) -> u64 {
        let reported_ms = self.reported_ms.load(Ordering::Relaxed);
        reported_ms.saturating_add(self.shortest_ttl_ms.load(Ordering::Relaxed))
    }

    fn reported(&self, now_ms: u64) {
        self.reported_ms.store(now_ms, Ordering::Relaxed);
        self.is_full.store(false, Ordering::Relaxed);
    }

    fn has_many(&self) -> bool {
        self.all().len() > SESSIONS_FEW
    }

    /// Whether a session of it may end before a batch that speaks of a command now is applied. Not again and again within an eighth of the
    /// ttl.
    fn is_in_a_hurry(&self, now_ms: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.reported_ms.load(Ordering::Relaxed));
        let ttl_ms = self.shortest_ttl_ms.load(Ordering::Relaxed);
        since_ms.saturating_add(BATCH_LATE_MS) >= ttl_ms && since_ms >= ttl_ms / REPORT_PART
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
        let mut all = self.all();
        let room = all.len() < SESSIONS_PER_CONNECTION_MAX;
        if room {
            all.push(OwnSession { id, ttl_ms, is_open: false });
            self.shortest_ttl_ms.fetch_min(ttl_ms, Ordering::Relaxed);
            if all.len() == 1 {
                self.reported_ms.store(now_ms, Ordering::Relaxed);
            }
        } else {
            self.is_full.store(true, Ordering::Relaxed);
        }
        room
    }

    pub fn forget(&self, id: SessionId) {
        self.forget_each(|known| known == id);
    }

    fn forget_each(&self, forgets: impl Fn(SessionId) -> bool) {
        let mut all = self.all();
        all.retain(|own| !forgets(own.id));
        let shortest_ttl_ms = all.iter().map(|own| own.ttl_ms).min().unwrap_or(u64::MAX);
        self.shortest_ttl_ms.store(shortest_ttl_ms, Ordering::Relaxed);
    }

    /// The session is there.
    pub fn opened(&self, id: SessionId) {
        self.all().iter_mut().filter(|own| own.id == id).for_each(|own| own.is_open = true);
    }

    /// Whether it was opened here.
    #[must_use]
    pub fn has(&self, id: SessionId) -> bool {
        self.ttl_ms(id).is_some()
    }

    /// The ttl of a session that was opened here.
    #[must_use]
    pub fn ttl_ms(&self, id: SessionId) -> Option<u64> {
        self.all().iter().find(|own| own.id == id).map(|own| own.ttl_ms)
    }

    /// Those that were opened: one of these that is not there has ended.
    fn open_ids(&self) -> Vec<SessionId> {
        self.all().iter().filter(|own| own.is_open).map(|own| own.id).collect()
    }

    fn all(&self) -> MutexGuard<'_, Vec<OwnSession>> {
        self.all.lock().expect("mutex poisoned")
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
    /// Those with sessions in a hurry.
    line: Line,
    in_line: Arc<Notify>,
    /// Of the last reports: which of their sessions have ended is known by the next.
    reported_lately: Mutex<Vec<Arc<ConnectionSessions>>>,
}

/// Connections in the order in which they came, each once.
#[derive(Debug, Default)]
struct Line(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    few: VecDeque<Arc<ConnectionSessions>>,
    many: VecDeque<Arc<ConnectionSessions>>,
    turn: u32,
}

impl Line {
    /// False: it stands there already.
    fn push(&self, sessions: &Arc<ConnectionSessions>) -> bool {
        let is_new = !sessions.is_in_line.swap(true, Ordering::Relaxed);
        if is_new {
            let has_many = sessions.has_many();
            let mut queues = self.0.lock().expect("mutex poisoned");
            let queue = if has_many { &mut queues.many } else { &mut queues.few };
            queue.push_back(Arc::clone(sessions));
        }
        is_new
    }

    /// The sessions of the first, as many as go into one report: mostly of connections with few, and in their turn of those with many.
    fn take(&self) -> (Vec<Arc<ConnectionSessions>>, Vec<SessionId>) {
        let mut queues = self.0.lock().expect("mutex poisoned");
        let Queues { few, many, turn } = &mut *queues;
        *turn = (*turn + 1) % TURN_OF_MANY;
        let (first, second) = if *turn == 0 { (many, few) } else { (few, many) };
        let taken = take_first(first);
        // Its connections may have closed all of theirs meanwhile.
        if taken.1.is_empty() {
            return take_first(second);
        }
        taken
    }
}

fn take_first(
    line: &mut VecDeque<Arc<ConnectionSessions>>,
) -> (Vec<Arc<ConnectionSessions>>, Vec<SessionId>) {
    let (mut taken, mut ids) = (Vec::new(), Vec::new());
    while let Some(sessions) = line.front() {
        if !ids.is_empty() && ids.len() + sessions.all().len() > SESSIONS_AT_ONCE_MAX {
            break;
        }
        // A command that comes from now on is not in this report.
        sessions.is_in_line.store(false, Ordering::Relaxed);
        ids.extend(sessions.open_ids());
        taken.extend(line.pop_front());
    }
    (taken, ids)
}

impl Drop for SessionKeepalive {
    fn drop(&mut self) {
        // Its task ends.
        self.in_line.notify_one();
    }
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
            line: Line::default(),
            in_line: Arc::default(),
            reported_lately: Mutex::default(),
        });
        tokio::spawn(report_line(Arc::downgrade(&session_keepalive), Arc::clone(&session_keepalive.in_line)));
        let weak = Arc::downgrade(&session_keepalive);
        tokio::spawn(async move {
            let mut every = tokio::time::interval(LOOK_EVERY);
            every.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
        let sessions = Arc::new(ConnectionSessions::new(number, self.tier2.entry_index()));
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
    pub fn note_command(&self, sessions: &Arc<ConnectionSessions>, now_ms: u64) {
        sessions.touch();
        if sessions.is_in_a_hurry(now_ms) {
            self.line_up(sessions);
        }
    }

    fn line_up(&self, sessions: &Arc<ConnectionSessions>) {
        if self.line.push(sessions) {
            self.in_line.notify_one();
        }
    }

    /// The next of the line, to be reported now.
    fn take_line(&self) -> Vec<SessionId> {
        let (taken, ids) = self.line.take();
        let now_ms = self.clock.monotonic_ms();
        taken.iter().for_each(|sessions| sessions.reported(now_ms));
        self.reported_lately.lock().expect("mutex poisoned").extend(taken);
        ids
    }

    /// Sessions that were reported and are not there have ended.
    fn forget_ended(&self) {
        let reported = std::mem::take(&mut *self.reported_lately.lock().expect("mutex poisoned"));
        let ended: FxHashSet<SessionId> = self.tier2.take_absent_sessions().into_iter().collect();
        if !ended.is_empty() {
            reported.iter().for_each(|sessions| sessions.forget_each(|id| ended.contains(&id)));
        }
    }

    fn report_short(&self) {
        let now_ms = self.clock.monotonic_ms();
        for sessions in self.short.lock().expect("mutex poisoned").values() {
            if sessions.is_due_while_blocked(now_ms) {
                self.line_up(sessions);
            }
        }
    }

    /// The connection is closed: its sessions die after the grace time unless somebody keeps them alive.
    pub fn unregister(&self, sessions: &ConnectionSessions) {
        self.connections.lock().expect("mutex poisoned").remove(&sessions.number);
        self.short.lock().expect("mutex poisoned").remove(&sessions.number);
        let all = std::mem::take(&mut *sessions.all());
        let ids = all.into_iter().map(|own| own.id).collect();
        sessions.ended(self.clock.monotonic_ms());
        let ended_ms = sessions.ended_ms.load(Ordering::Relaxed);
        let heard_index = sessions.heard.lock().expect("mutex poisoned").until(ended_ms);
        self.tier2.orphan_sessions(ids, self.grace_ms, heard_index);
    }

    fn report(&self) {
        self.forget_ended();
        let now_ms = self.clock.monotonic_ms();
        let connections = self.connections.lock().expect("mutex poisoned");
        let due: Vec<_> = connections.values().filter(|sessions| sessions.is_due(now_ms)).cloned().collect();
        drop(connections);
        let (reported, ids) = first_to_report(due);
        // A command that comes from now on is not in this report.
        reported.iter().for_each(|sessions| sessions.touched.store(false, Ordering::Relaxed));
        match self.tier2.touch_sessions(ids) {
            true => {
                reported.iter().for_each(|sessions| sessions.reported(now_ms));
                self.reported_lately.lock().expect("mutex poisoned").extend(reported);
            }
            false => reported.iter().for_each(|sessions| sessions.touch()),
        }
    }
}

/// Those that go into one report, with their sessions.
fn first_to_report(mut due: Vec<Arc<ConnectionSessions>>) -> (Vec<Arc<ConnectionSessions>>, Vec<SessionId>) {
    due.sort_by_cached_key(|sessions| (sessions.has_many(), sessions.ends_ms()));
    let mut ids = Vec::new();
    let is_room = |ids: &mut Vec<SessionId>, sessions: &ConnectionSessions| {
        let is_room = ids.len() < REPORTED_AT_ONCE_MAX;
        if is_room {
            ids.extend(sessions.open_ids());
        }
        is_room
    };
    let count = due.iter().take_while(|sessions| is_room(&mut ids, sessions)).count();
    due.truncate(count);
    (due, ids)
}

/// As the node's own: a queue that is full of clients' requests must not end the sessions of others.
async fn report_at_once(tier2: &Tier2Handle, ids: &[SessionId]) {
    for _ in 0..REPORT_TRIES {
        if tier2.touch_sessions_at_once(ids.to_vec()) {
            return;
        }
        tokio::time::sleep(REPORT_AGAIN).await;
    }
}

async fn report_line(weak: Weak<SessionKeepalive>, in_line: Arc<Notify>) {
    loop {
        in_line.notified().await;
        loop {
            let Some(session_keepalive) = weak.upgrade() else { return };
            let ids = session_keepalive.take_line();
            if ids.is_empty() {
                break;
            }
            let pause = (PAUSE_PER_SESSION * ids.len() as u32).max(PAUSE_MIN);
            let tier2 = session_keepalive.tier2.clone();
            // Else nobody would be left to end this task.
            drop(session_keepalive);
            report_at_once(&tier2, &ids).await;
            tokio::time::sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_ttl(ttl_ms: u64) -> ConnectionSessions {
        let sessions = ConnectionSessions::new(1, 0);
        sessions.set_waiting(true);
        open(&sessions, 1, ttl_ms, 10_000);
        sessions
    }

    fn open(sessions: &ConnectionSessions, id: u64, ttl_ms: u64, now_ms: u64) {
        assert!(sessions.add(SessionId(id), ttl_ms, now_ms));
        sessions.opened(SessionId(id));
    }

    #[test]
    fn what_comes_with_the_end_says_nothing_of_when_the_client_was_there() {
        let mut heard = Heard::new(5);
        assert_eq!(heard.until(0), 5);
        heard.note(10, 10_000);
        assert_eq!((heard.until(10_999), heard.until(11_000)), (5, 10));
        heard.note(20, 40_000);
        heard.note(21, 40_100);
        assert_eq!((heard.until(40_999), heard.until(41_000), heard.until(41_100)), (10, 20, 21));
        // Without a pause: as exact, and never much older than has to be.
        for at_ms in 50_000..60_000 {
            heard.note(at_ms, at_ms);
        }
        assert!((58_749..=59_000).contains(&heard.until(60_000)), "{}", heard.until(60_000));
        assert!(heard.reads.len() <= READS_MAX);
    }

    #[test]
    fn a_command_counts_as_of_the_reply_before_it() {
        let sessions = ConnectionSessions::new(1, 5);
        sessions.written(7);
        sessions.heard(10_000);
        sessions.written(90);
        sessions.ended(12_000);
        sessions.ended(99_000);
        assert_eq!(sessions.ended_ms.load(Ordering::Relaxed), 12_000);
        assert_eq!(sessions.heard.lock().unwrap().until(12_000), 7);
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
    fn no_session_is_reported_again_and_again() {
        for (ttl_ms, every_ms) in [(2_000, 250), (8_000, 1_000), (3_600_000, REPORT_MS_MAX)] {
            let sessions = with_ttl(ttl_ms);
            assert!(
                !sessions.is_due(10_000 + every_ms - 1) && sessions.is_due(10_000 + every_ms),
                "{ttl_ms}"
            );
            sessions.set_waiting(false);
            assert!(!sessions.is_due(20_000), "{ttl_ms}: nothing came");
            sessions.touch();
            assert!(sessions.is_due(20_000), "{ttl_ms}: a command came");
        }
    }

    #[test]
    fn a_report_is_bounded_and_connections_with_few_sessions_come_first() {
        let holder = |first: u64, count: u64, reported_ms: u64| {
            let sessions = Arc::new(ConnectionSessions::new(first, 0));
            for id in first..first + count {
                open(&sessions, id, 10_000, reported_ms);
            }
            sessions
        };
        let mut due: Vec<_> = (0..100).map(|n| holder(10_000 * (n + 2), 1_024, 1_000 + 100 - n)).collect();
        let last = Arc::clone(&due[0]);
        due.push(holder(1, SESSIONS_FEW as u64, 5_000));
        let (reported, ids) = first_to_report(due);
        assert_eq!(ids[0], SessionId(1));
        assert!((REPORTED_AT_ONCE_MAX..REPORTED_AT_ONCE_MAX + 1_024).contains(&ids.len()), "{}", ids.len());
        assert_eq!(ids[SESSIONS_FEW], SessionId(1_010_000), "then the one that would end first");
        assert!(!reported.iter().any(|sessions| Arc::ptr_eq(sessions, &last)));
    }

    #[test]
    fn long_sessions_do_not_stand_before_one_that_would_end() {
        let holder = |first: u64, count: u64, ttl_ms: u64, reported_ms: u64| {
            let sessions = Arc::new(ConnectionSessions::new(first, 0));
            (first..first + count).for_each(|id| open(&sessions, id, ttl_ms, reported_ms));
            sessions
        };
        let mut due: Vec<_> = (0..100).map(|n| holder(10_000 * (n + 2), 1_024, 40_000, 1_000)).collect();
        due.push(holder(1, 17, 2_000, 5_900));
        let (_, ids) = first_to_report(due);
        assert_eq!(ids[0], SessionId(1));
    }

    #[test]
    fn only_what_was_opened_is_reported() {
        let sessions = with_ttl(5_000);
        assert!(sessions.add(SessionId(2), 5_000, 10_000));
        assert_eq!(sessions.open_ids(), [SessionId(1)]);
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
    fn each_connection_stands_in_line_once() {
        let (line, first, second) = (Line::default(), Arc::new(with_ttl(5)), Arc::new(with_ttl(5)));
        for id in 2..=SESSIONS_PER_CONNECTION_MAX as u64 {
            open(&second, id, 5, 10_000);
        }
        assert!(line.push(&first) && line.push(&second) && !line.push(&second));
        assert_eq!(line.take().1, [SessionId(1)]);
        assert!(line.push(&first) && !line.push(&second));
        assert_eq!(line.take().1, [SessionId(1)]);
        assert_eq!(line.take().1.len(), SESSIONS_PER_CONNECTION_MAX, "nobody else is there");
        assert!(line.push(&first) && line.push(&second));
        assert_eq!(line.take().1.len(), SESSIONS_PER_CONNECTION_MAX, "the turn of those with many");
        assert_eq!(line.take().1, [SessionId(1)]);
        assert!(line.take().1.is_empty() && line.push(&second));
    }

    #[test]
    fn connections_with_many_sessions_make_no_others_wait() {
        let line = Line::default();
        let holder = |first: u64, count: u64| {
            let sessions = Arc::new(ConnectionSessions::new(first, 0));
            for id in first..first + count {
                open(&sessions, id, 5, 10_000);
            }
            assert!(line.push(&sessions));
            sessions
        };
        let heavy: Vec<_> = (0..100).map(|n| holder(10_000 * (n + 1), 1_024)).collect();
        let few = holder(1, SESSIONS_FEW as u64);
        let reports = [line.take().1, line.take().1];
        assert!(reports.iter().any(|ids| ids.contains(&SessionId(1))), "behind one report at most");
        for id in 100..200 {
            line.push(&Arc::new(with_ttl(id)));
        }
        assert!(line.push(&few));
        let left: Vec<_> = std::iter::from_fn(|| Some(line.take().1).filter(|ids| !ids.is_empty())).collect();
        assert_eq!(left.len(), 99 + 1, "those with many have their turns, too");
        assert!(heavy.iter().all(|sessions| line.push(sessions)), "all may stand in line again");
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
