//! Bytes that this node holds for its clients, and the one limit on their sum.
//!
//! Every limit on a single client (a request, a transaction, unread replies) is checked where it applies; here is their sum over
//! all clients. A client's [`Account`] counts what lies in the node's memory because of it: replies that are made and not taken
//! by its connection yet, and everything else (partial requests, queued commands, watched keys, subscriptions, unsent output),
//! which its connection reports. As with Redis's `maxmemory-clients`, a node whose clients hold more than
//! [`limits::CLIENT_BYTES_PER_NODE_MAX`] closes connections:
//!
//! 1. Only clients above their fair share are closed. The share is 7/8 of the limit, divided by the clients that hold anything.
//!    However others behave, a client below its share stays.
//! 2. Among those, by bytes times the square of the time in which the client took no byte, up to a second. Commands that come in do
//!    not count: an attacker can send them without reading. A client that reads a large value, pausing 50 ms between two reads,
//!    stays before a crowd that takes a byte now and then and holds a hundredth of it each.
//! 3. Until 15/16 of the limit are left. The 1/16 between both bounds is room for one that reads its largest reply: if all others
//!    are below their share, it need not be closed.
//!
//! Called by `server` (connections), `tier2` (replies) and `events` (messages). Knows none of them.
//!
//! # Caveats
//!
//! A client above its share that reads small replies all the time counts as moving; among such clients the largest goes first.
//!
//! Replies below [`SMALL_REPLY_BYTES`] are counted as that, and a connection reports only what differs by [`REPORT_BYTES`]:
//! exact counting would cost every command two atomic operations on a shared line.

#[cfg(test)]
mod tests;

use crate::clock::Clock;
use redfence_core::limits;
use redfence_core::reply::Reply;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::task::AbortHandle;

/// A reply below this is not counted by itself.
pub const SMALL_REPLY_BYTES: usize = 512;
/// A change below this is not reported.
pub const REPORT_BYTES: usize = 4 * 1024;
/// How long a client has taken nothing counts up to this.
const IDLE_MS_MAX: u64 = 1_000;
/// Below this size the idle timer does not run.
const NEXT_TO_NOTHING_BYTES: usize = 64 * 1024;

/// All clients of a node.
#[derive(Debug)]
pub struct ClientMemory {
    /// Sum over all open accounts.
    total: AtomicI64,
    limit: i64,
    clock: Clock,
    accounts: Mutex<BTreeMap<u64, Arc<Account>>>,
    /// Connections closed at the limit.
    closed: AtomicU64,
}

/// What one client holds.
#[derive(Debug)]
pub struct Account {
    pub client: u64,
    node: Arc<ClientMemory>,
    held: Mutex<Held>,
    moved_ms: AtomicU64,
    /// Reads are handed back unanswered until its connection has taken what there is.
    is_deferring: AtomicBool,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug, Default)]
struct Held {
    /// Replies that its connection has not taken.
    replies: usize,
    /// Messages and invalidations that its connection has not taken.
    messages: usize,
    /// As its connection reports.
    rest: usize,
    is_closed: bool,
}

impl Held {
    fn sum(&self) -> usize {
        self.replies + self.messages + self.rest
    }
}

impl ClientMemory {
    #[must_use]
    pub fn new(clock: Clock) -> Arc<ClientMemory> {
        ClientMemory::with_limit(clock, limits::CLIENT_BYTES_PER_NODE_MAX)
    }

    fn with_limit(clock: Clock, limit: usize) -> Arc<ClientMemory> {
        Arc::new(ClientMemory {
            total: AtomicI64::new(0),
            limit: limit as i64,
            clock,
            accounts: Mutex::default(),
            closed: AtomicU64::new(0),
        })
    }

    #[must_use]
    pub fn open(self: &Arc<ClientMemory>, client: u64) -> Arc<Account> {
        let account = Arc::new(Account {
            client,
            node: Arc::clone(self),
            held: Mutex::default(),
            moved_ms: AtomicU64::new(self.clock.monotonic_ms()),
            is_deferring: AtomicBool::new(false),
            task: OnceLock::new(),
        });
        self.accounts().insert(client, Arc::clone(&account));
        account
    }

    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.total.load(Ordering::Relaxed).max(0) as usize
    }

    /// Connections closed because the clients of this node held too much.
    #[must_use]
    pub fn closed_connections(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    fn accounts(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Account>>> {
        self.accounts.lock().expect("mutex poisoned")
    }

    fn is_over(&self) -> bool {
        self.total.load(Ordering::Relaxed) > self.limit
    }

    /// Ends connections, the worst first, until there is room again.
    fn make_room(&self) {
        let now_ms = self.clock.monotonic_ms();
        let accounts = self.accounts();
        if !self.is_over() {
            // Another thread has done it.
            return;
        }
        for account in worst_first(accounts.values(), self.limit, now_ms) {
            // So much room is made that not every further byte ends a connection.
            if self.total.load(Ordering::Relaxed) <= self.limit - self.limit / 16 {
                return;
            }
            let bytes = account.end();
            if bytes > 0 {
                self.closed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    client = account.client,
                    bytes,
                    limit = self.limit,
                    "closing client: the clients of this node hold more bytes than the limit, and it holds more than its share and reads little"
                );
            }
        }
    }
}

impl Account {
    /// The task that serves the client: it is aborted when the account is ended.
    pub fn set_task(&self, task: AbortHandle) {
        // Set once, by the listener that started it.
        let _ = self.task.set(task);
        if self.held().is_closed {
            self.abort();
        }
    }

    fn abort(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the account is still open afterwards.
    fn change(&self, change: impl FnOnce(&mut Held)) -> bool {
        let mut held = self.held();
        if held.is_closed {
            return false;
        }
        let before = held.sum();
        change(&mut held);
        let after = held.sum();
        let grown = after as i64 - before as i64;
        self.node.total.fetch_add(grown, Ordering::Relaxed);
        drop(held);
        if before < NEXT_TO_NOTHING_BYTES && after >= NEXT_TO_NOTHING_BYTES {
            self.has_moved(self.node.clock.monotonic_ms());
        }
        if grown > 0 && self.node.is_over() {
            self.node.make_room();
            return !self.held().is_closed;
        }
        true
    }

    /// A reply for its connection was made. False: the connection is being closed, and nobody will take it.
    pub fn add_reply(&self, bytes: usize) -> bool {
        bytes == 0 || self.change(|held| held.replies += bytes)
    }

    /// Its connection has taken a reply.
    pub fn take_reply(&self, bytes: usize) {
        if bytes > 0 {
            self.change(|held| held.replies = held.replies.saturating_sub(bytes));
        }
    }

    /// The same for messages it is sent without having asked.
    pub fn add_message(&self, bytes: usize) -> bool {
        self.change(|held| held.messages += bytes)
    }

    pub fn take_message(&self, bytes: usize) {
        self.change(|held| held.messages = held.messages.saturating_sub(bytes));
    }

    /// All that its connection holds itself.
    pub fn report(&self, bytes: usize) {
        self.change(|held| held.rest = bytes);
    }

    /// Its client has taken bytes.
    pub fn has_moved(&self, now_ms: u64) {
        self.moved_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether the next read must wait until its connection has taken what there is. Stays so until [`Account::resume_reads`]:
    /// a read that passed an earlier one would show an older state behind a newer one.
    pub fn defers_read(&self) -> bool {
        if self.is_deferring.load(Ordering::Relaxed) {
            return true;
        }
        let defers = self.held().replies >= limits::UNREAD_REPLIES_BYTES_MAX;
        if defers {
            self.is_deferring.store(true, Ordering::Relaxed);
        }
        defers
    }

    /// From now on every read is handed back: one is under way that may become large.
    pub fn defer_reads(&self) {
        self.is_deferring.store(true, Ordering::Relaxed);
    }

    /// All reads that were handed back have arrived at the connection.
    pub fn resume_reads(&self) {
        self.is_deferring.store(false, Ordering::Relaxed);
    }

    /// How much a client that holds so much is to blame.
    fn weight(&self, held_bytes: usize, now_ms: u64) -> u64 {
        let idle_ms = now_ms.saturating_sub(self.moved_ms.load(Ordering::Relaxed)).clamp(1, IDLE_MS_MAX);
        (held_bytes as u64).saturating_mul(idle_ms * idle_ms)
    }

    /// Counts no more, and the connection ends. The bytes that were counted.
    fn end(&self) -> usize {
        let bytes = self.close();
        self.abort();
        bytes
    }

    fn close(&self) -> usize {
        let mut held = self.held();
        if std::mem::replace(&mut held.is_closed, true) {
            return 0;
        }
        let bytes = held.sum();
        self.node.total.fetch_sub(bytes as i64, Ordering::Relaxed);
        bytes
    }

    /// The connection is gone, and with it all that was held for it.
    pub fn leave(&self) {
        self.close();
        self.node.accounts().remove(&self.client);
    }
}

/// Who is above its share: who is closed first, and who next. Without all of them 7/8 of the limit are not reached.
fn worst_first<'a>(
    accounts: impl Iterator<Item = &'a Arc<Account>>,
    limit: i64,
    now_ms: u64,
) -> Vec<&'a Arc<Account>> {
    let holding: Vec<(usize, &Arc<Account>)> =
        accounts.map(|account| (account.held().sum(), account)).filter(|(bytes, _)| *bytes > 0).collect();
    let share_bytes = (limit - limit / 8) as usize / holding.len().max(1);
    let mut worst: Vec<(u64, &Arc<Account>)> = holding
        .into_iter()
        .filter(|(bytes, _)| *bytes > share_bytes)
        .map(|(bytes, account)| (account.weight(bytes, now_ms), account))
        .collect();
    worst.sort_unstable_by_key(|(weight, account)| (std::cmp::Reverse(*weight), account.client));
    worst.into_iter().map(|(_, account)| account).collect()
}

/// What a reply counts.
#[must_use]
pub fn counted_bytes(reply: &Reply) -> usize {
    Some(reply.weight()).filter(|bytes| *bytes >= SMALL_REPLY_BYTES).unwrap_or(0)
}
