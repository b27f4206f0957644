//! Client tracking: who keeps copies of which keys, and who must hear that one changed. As in Redis, keys go by name, whatever
//! the database.
//!
//! A client in the default mode is notified once of each key it has read, and must read it again for another notice. One in broadcast
//! mode is notified of every changed key under its prefixes. What was read and what changed comes from this node's own apply, in order
//! ([`super::publish_feed`]), so that a change behind a read is never missed, and one before it never reported.
//!
//! # Limits
//!
//! - Keys remembered at this node: [`KEYS_MAX`], and [`TABLE_BYTES_MAX`] with their readers. One more makes another be forgotten, and
//!   whoever keeps that one is sent its invalidation.
//! - Work under the lock that all clients need: the keys of a client that stops are removed in slices of [`SLICE_STEPS`], and the
//!   tables grow in small steps ([`key_map`]). Until a removed client's keys are all gone, they count against both limits.
//! - Invalidations a client may leave unread: [`UNREAD_MAX`], and [`UNREAD_BYTES_MAX`]. One more, and it is sent an invalidation of everything.

mod key_map;

use super::{Demand, Hub};
use crate::client_memory::Account;
use bytes::Bytes;
use key_map::KeyMap;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// As Redis ships (`tracking-table-max-keys`).
const KEYS_MAX: usize = 1_000_000;
/// What the names of remembered keys and their readers may take.
const TABLE_BYTES_MAX: usize = 128 * 1024 * 1024;
/// What a remembered key takes besides its name, and what each of its readers takes.
const KEY_BYTES: usize = 64;
const READER_BYTES: usize = 64;
const UNREAD_MAX: usize = 4096;
const UNREAD_BYTES_MAX: usize = 256 * 1024;
/// What an invalidation takes besides the key's name.
const INVALIDATION_BYTES: usize = 64;
/// Keys of a client that has stopped, and readers of them looked at, until the lock is released: a fraction of a millisecond.
const SLICE_STEPS: usize = 512;
/// Looking at so many readers takes as long as looking up a key.
const READERS_PER_STEP: usize = 64;

/// A notification to a client that caches keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    Key(Bytes),
    Everything,
    /// The client to which invalidations were redirected is gone.
    RedirectBroken(u64),
}

/// The options of a client's tracking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackingTerms {
    /// Another client is notified instead, by a message on `__redis__:invalidate`.
    pub redirect: Option<u64>,
    /// Not of its own changes.
    pub no_loop: bool,
    /// Broadcast mode: of all keys with one of these prefixes, read or not.
    pub prefixes: Option<Vec<Bytes>>,
}

/// The receiving end of a client's invalidations.
#[derive(Debug)]
pub struct InvalidationInbox {
    receiver: mpsc::Receiver<Invalidation>,
    state: Arc<InvalidationInboxState>,
}

#[derive(Debug)]
struct InvalidationInboxState {
    overflowed: AtomicBool,
    bytes: AtomicUsize,
    account: Arc<Account>,
}

impl InvalidationInboxState {
    /// Whether there is room for it. It is counted then.
    fn add(&self, bytes: usize) -> bool {
        let fits =
            self.bytes.load(Ordering::Relaxed) + bytes <= UNREAD_BYTES_MAX && self.account.add_message(bytes);
        if fits {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    fn take(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.account.take_message(bytes);
    }
}

fn bytes_of(invalidation: &Invalidation) -> usize {
    let name = match invalidation {
        Invalidation::Key(key) => key.len(),
        Invalidation::Everything | Invalidation::RedirectBroken(_) => 0,
    };
    name + INVALIDATION_BYTES
}

impl InvalidationInbox {
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Invalidation> {
        if self.state.overflowed.swap(false, Ordering::Relaxed) {
            while let Ok(lost) = self.receiver.try_recv() {
                self.state.take(bytes_of(&lost));
            }
            return Poll::Ready(Invalidation::Everything);
        }
        match self.receiver.poll_recv(context) {
            Poll::Ready(Some(invalidation)) => {
                self.state.take(bytes_of(&invalidation));
                Poll::Ready(invalidation)
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

#[derive(Debug)]
struct TrackingClient {
    terms: TrackingTerms,
    sender: mpsc::Sender<Invalidation>,
    state: Arc<InvalidationInboxState>,
    keys: KeyMap<()>,
    start: u64,
}

/// A client that keeps a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reader {
    client: u64,
    /// The number of its [`Tracker::start`]. A client may stop and start again before its old keys are removed.
    start: u64,
}

impl TrackingClient {
    fn tell(&self, hub: &Hub, invalidation: Invalidation) {
        match (self.terms.redirect, invalidation) {
            (Some(target), Invalidation::Key(key)) => hub.invalidate_at(target, Some(key)),
            (Some(target), Invalidation::Everything) => hub.invalidate_at(target, None),
            (None, invalidation) | (Some(_), invalidation @ Invalidation::RedirectBroken(_)) => {
                let bytes = bytes_of(&invalidation);
                if !self.state.add(bytes) {
                    self.state.overflowed.store(true, Ordering::Relaxed);
                } else if self.sender.try_send(invalidation).is_err() {
                    self.state.take(bytes);
                    self.state.overflowed.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct TrackingTable {
    clients: FxHashMap<u64, TrackingClient>,
    broadcast: BTreeSet<u64>,
    /// May still hold readers that have stopped, until their keys are removed.
    readers: KeyMap<SmallVec<[Reader; 1]>>,
    /// What `readers` and the keys of each client take.
    bytes: usize,
    starts: u64,
}

fn key_bytes(key: &[u8], readers: usize) -> usize {
    key.len() + KEY_BYTES + readers * READER_BYTES
}

fn lock(table: &Mutex<TrackingTable>) -> MutexGuard<'_, TrackingTable> {
    table.lock().expect("mutex poisoned")
}

/// All clients of this node that track keys.
#[derive(Debug)]
pub struct Tracker {
    table: Arc<Mutex<TrackingTable>>,
    hub: Arc<Hub>,
    demand: Arc<Demand>,
    keys_max: usize,
    bytes_max: usize,
}

impl Tracker {
    #[must_use]
    pub fn new(hub: Arc<Hub>, demand: Arc<Demand>) -> Tracker {
        Tracker { table: Arc::default(), hub, demand, keys_max: KEYS_MAX, bytes_max: TABLE_BYTES_MAX }
    }

    fn table(&self) -> MutexGuard<'_, TrackingTable> {
        lock(&self.table)
    }

    /// From its return on, reads and changes count. `None`: the client tracks already, and its terms are replaced.
    pub fn start(&self, account: &Arc<Account>, terms: TrackingTerms) -> Option<InvalidationInbox> {
        let client = account.client;
        let mut table = self.table();
        if terms.prefixes.is_some() {
            table.broadcast.insert(client);
        }
        if let Some(tracked) = table.clients.get_mut(&client) {
            tracked.terms = terms;
            return None;
        }
        let (sender, receiver) = mpsc::channel(UNREAD_MAX);
        let state = Arc::new(InvalidationInboxState {
            overflowed: AtomicBool::new(false),
            bytes: AtomicUsize::new(0),
            account: Arc::clone(account),
        });
        let mailbox = InvalidationInbox { receiver, state: Arc::clone(&state) };
        table.starts += 1;
        let start = table.starts;
        table.clients.insert(client, TrackingClient { terms, sender, state, keys: KeyMap::default(), start });
        self.demand.trackers.fetch_add(1, Ordering::SeqCst);
        Some(mailbox)
    }

    /// From its return on, the client is told nothing more. Many keys are removed in a task of their own.
    pub fn stop(&self, client: u64) {
        let mut table = self.table();
        let Some(tracked) = table.clients.remove(&client) else { return };
        table.broadcast.remove(&client);
        drop(table);
        self.demand.trackers.fetch_sub(1, Ordering::SeqCst);
        let (reader, is_small) = (Reader { client, start: tracked.start }, tracked.keys.len() <= SLICE_STEPS);
        let mut keys = tracked.keys.into_keys();
        match Handle::try_current() {
            Ok(runtime) if !is_small => {
                let table = Arc::clone(&self.table);
                runtime.spawn(async move {
                    while remove_slice(&table, reader, &mut keys) {
                        tokio::task::yield_now().await;
                    }
                });
            }
            Ok(_) | Err(_) => while remove_slice(&self.table, reader, &mut keys) {},
        }
    }

    /// A connection has ended: whoever redirects to it is notified.
    pub fn left(&self, client: u64) {
        self.stop(client);
        if self.demand.trackers.load(Ordering::SeqCst) == 0 {
            return;
        }
        for tracked in self.table().clients.values() {
            if tracked.terms.redirect == Some(client) {
                tracked.tell(&self.hub, Invalidation::RedirectBroken(client));
            }
        }
    }

    /// A client in the default mode has read a key.
    pub fn read(&self, client: u64, key: &Bytes) {
        let mut table = self.table();
        // A client that is gone by now keeps nothing.
        let Some(tracked) = table.clients.get_mut(&client) else { return };
        let (known, start) = (tracked.keys.len(), tracked.start);
        tracked.keys.get_or_insert_default(key);
        if tracked.keys.len() == known {
            return;
        }
        let readers = table.readers.get_or_insert_default(key);
        readers.push(Reader { client, start });
        let is_first = readers.len() == 1;
        table.bytes += if is_first { key_bytes(key, 1) } else { READER_BYTES };
        while table.readers.len() > self.keys_max || table.bytes > self.bytes_max {
            let forgotten = table.readers.pick_other_than(key).expect("not empty: a limit is exceeded");
            table.tell_readers(&self.hub, &forgotten, None);
        }
    }

    /// A key has changed, in whatever way.
    pub fn changed(&self, key: &Bytes, by: Option<u64>) {
        let mut table = self.table();
        table.tell_readers(&self.hub, key, by);
        for client in &table.broadcast {
            let Some(tracked) = table.clients.get(client) else { continue };
            let mut prefixes = tracked.terms.prefixes.iter().flatten();
            let own = tracked.terms.no_loop && by == Some(*client);
            if !own && prefixes.any(|prefix| key.starts_with(prefix)) {
                tracked.tell(&self.hub, Invalidation::Key(key.clone()));
            }
        }
    }

    /// All keys are gone, or it is unknown which: every client drops its whole cache.
    pub fn everything_changed(&self) {
        let mut table = self.table();
        let readers = std::mem::take(&mut table.readers);
        table.bytes = 0;
        let mut keys = Vec::with_capacity(table.clients.len());
        for tracked in table.clients.values_mut() {
            keys.push(std::mem::take(&mut tracked.keys));
            tracked.tell(&self.hub, Invalidation::Everything);
        }
        drop(table);
        // To free a million keys takes a while: neither under the lock, nor in the task that distributes the feed.
        match Handle::try_current() {
            Ok(runtime) if readers.len() > SLICE_STEPS => {
                runtime.spawn_blocking(move || drop((readers, keys)));
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// Removes a reader that has stopped from some of its keys. False: there are no more.
fn remove_slice(
    table: &Mutex<TrackingTable>,
    reader: Reader,
    keys: &mut impl Iterator<Item = Bytes>,
) -> bool {
    // Taken and freed without the lock.
    let slice: Vec<Bytes> = keys.take(SLICE_STEPS).collect();
    let mut rest = &slice[..];
    while !rest.is_empty() {
        let removed = lock(table).remove_reader(reader, rest);
        rest = &rest[removed..];
    }
    slice.len() == SLICE_STEPS
}

impl TrackingTable {
    /// Those who keep a key are notified, and keep it no more.
    fn tell_readers(&mut self, hub: &Hub, key: &Bytes, by: Option<u64>) {
        let Some(readers) = self.readers.remove(key) else { return };
        self.bytes -= key_bytes(key, readers.len());
        for Reader { client, start } in readers {
            let tracked = self.clients.get_mut(&client).filter(|tracked| tracked.start == start);
            let Some(tracked) = tracked else { continue };
            tracked.keys.remove(key);
            if !(tracked.terms.no_loop && by == Some(client)) {
                tracked.tell(hub, Invalidation::Key(key.clone()));
            }
        }
    }

    /// Removes a reader that has stopped from the first of these keys; answers from how many. At least one, and no more than
    /// [`SLICE_STEPS`] allow: a key may have many readers.
    fn remove_reader(&mut self, reader: Reader, keys: &[Bytes]) -> usize {
        let mut steps = 0;
        let mut removed = 0;
        while let Some(key) = keys.get(removed).filter(|_| steps < SLICE_STEPS) {
            removed += 1;
            steps += 1;
            // Forgotten meanwhile, and maybe read by others since.
            let Some(readers) = self.readers.get_mut(key) else { continue };
            steps += readers.len() / READERS_PER_STEP;
            let Some(at) = readers.iter().position(|other| *other == reader) else { continue };
            readers.swap_remove(at);
            let is_last = readers.is_empty();
            self.bytes -= READER_BYTES;
            if is_last {
                self.bytes -= key_bytes(key, 0);
                self.readers.remove(key);
            }
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_memory::ClientMemory;
    use crate::clock::Clock;
    use std::task::Waker;

    fn account(client: u64) -> Arc<Account> {
        ClientMemory::new(Clock::start()).open(client)
    }

    const A: Bytes = Bytes::from_static(b"a");
    const B: Bytes = Bytes::from_static(b"b");

    fn tracker() -> Tracker {
        Tracker::new(Arc::new(Hub::new(Arc::default())), Arc::default())
    }

    fn received(mailbox: &mut InvalidationInbox) -> Vec<Invalidation> {
        let mut context = Context::from_waker(Waker::noop());
        let next = || match mailbox.poll(&mut context) {
            Poll::Ready(invalidation) => Some(invalidation),
            Poll::Pending => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_change_is_told_once_to_those_who_read() {
        let tracker = tracker();
        let mut reader = tracker.start(&account(1), TrackingTerms::default()).unwrap();
        let mut other = tracker.start(&account(2), TrackingTerms::default()).unwrap();
        tracker.changed(&A, None);
        tracker.read(1, &A);
        tracker.read(1, &A);
        tracker.changed(&A, Some(1));
        tracker.changed(&A, Some(2));
        assert_eq!(received(&mut reader), [Invalidation::Key(A)]);
        assert_eq!(received(&mut other), []);
    }

    #[test]
    fn own_changes_are_not_told_where_they_are_not_wanted() {
        let tracker = tracker();
        let mut reader =
            tracker.start(&account(1), TrackingTerms { no_loop: true, ..TrackingTerms::default() }).unwrap();
        tracker.read(1, &A);
        tracker.changed(&A, Some(1));
        tracker.read(1, &A);
        tracker.changed(&A, Some(2));
        assert_eq!(received(&mut reader), [Invalidation::Key(A)]);
    }

    #[test]
    fn a_full_table_forgets_a_key_and_says_so() {
        let tracker = Tracker { keys_max: 1, ..tracker() };
        let mut reader = tracker.start(&account(1), TrackingTerms::default()).unwrap();
        tracker.read(1, &A);
        tracker.read(1, &B);
        assert_eq!(received(&mut reader), [Invalidation::Key(A)]);
        tracker.changed(&A, None);
        tracker.changed(&B, None);
        assert_eq!(received(&mut reader), [Invalidation::Key(B)]);
    }

    #[test]
    fn a_table_full_in_bytes_forgets_keys_and_says_so() {
        let long = |fill: u8| Bytes::from(vec![fill; 60_000]);
        let tracker = Tracker { bytes_max: 2 * key_bytes(&long(0), 1), ..tracker() };
        let mut reader = tracker.start(&account(1), TrackingTerms::default()).unwrap();
        tracker.read(1, &long(1));
        tracker.read(1, &long(2));
        assert_eq!(received(&mut reader), [], "at the limit");
        let _other = tracker.start(&account(2), TrackingTerms::default()).unwrap();
        tracker.read(2, &long(2));
        assert_eq!(received(&mut reader), [Invalidation::Key(long(1))], "one reader more");
        tracker.stop(1);
        tracker.stop(2);
        assert_eq!(tracker.table().bytes, 0);
    }

    #[test]
    fn unread_invalidations_are_bounded_in_bytes() {
        let tracker = tracker();
        let (account, prefixes) = (account(1), Some(vec![Bytes::new()]));
        let mut reader =
            tracker.start(&account, TrackingTerms { prefixes, ..TrackingTerms::default() }).unwrap();
        let long = Bytes::from(vec![b'k'; UNREAD_BYTES_MAX / 4 - INVALIDATION_BYTES]);
        for _ in 0..4 {
            tracker.changed(&long, None);
        }
        assert_eq!(received(&mut reader).len(), 4, "at the limit");
        for _ in 0..5 {
            tracker.changed(&long, None);
        }
        assert_eq!(received(&mut reader), [Invalidation::Everything], "one past it");
        tracker.changed(&A, None);
        assert_eq!(received(&mut reader), [Invalidation::Key(A)]);
    }

    #[test]
    fn a_client_that_does_not_read_drops_everything() {
        let tracker = tracker();
        let prefixes = Some(vec![Bytes::new()]);
        let mut reader =
            tracker.start(&account(1), TrackingTerms { prefixes, ..TrackingTerms::default() }).unwrap();
        for _ in 0..=UNREAD_MAX {
            tracker.changed(&A, None);
        }
        tracker.changed(&B, None);
        assert_eq!(received(&mut reader), [Invalidation::Everything]);
        tracker.changed(&B, None);
        assert_eq!(received(&mut reader), [Invalidation::Key(B)]);
    }

    #[test]
    fn who_leaves_is_forgotten() {
        let tracker = tracker();
        let mut redirecting = tracker
            .start(&account(2), TrackingTerms { redirect: Some(1), ..TrackingTerms::default() })
            .unwrap();
        drop(tracker.start(&account(1), TrackingTerms::default()));
        tracker.read(1, &A);
        tracker.read(2, &B);
        tracker.left(1);
        tracker.read(1, &B);
        let table = tracker.table();
        assert_eq!((table.clients.len(), table.readers.len()), (1, 1));
        drop(table);
        assert_eq!(received(&mut redirecting), [Invalidation::RedirectBroken(1)]);
        tracker.left(2);
        assert!(tracker.table().readers.len() == 0 && !tracker.demand.wanted().keys);
    }

    fn key_count_and_bytes(tracker: &Tracker) -> (usize, usize) {
        let table = tracker.table();
        (table.readers.len(), table.bytes)
    }

    fn numbered(number: usize) -> Bytes {
        Bytes::from(format!("key:{number}"))
    }

    /// The task that removes them runs where this test yields.
    #[tokio::test]
    async fn keys_of_who_leaves_are_removed_in_slices() {
        const KEYS: usize = 20 * SLICE_STEPS;
        let tracker = tracker();
        let account = account(1);
        drop(tracker.start(&account, TrackingTerms::default()));
        (0..KEYS).for_each(|number| tracker.read(1, &numbered(number)));
        tracker.stop(1);
        assert!(!tracker.demand.wanted().keys);
        assert_eq!(tracker.table().clients.len(), 0);
        assert_eq!(tracker.table().readers.len(), KEYS, "none is removed yet");

        let mut again = tracker.start(&account, TrackingTerms::default()).unwrap();
        tracker.read(1, &numbered(0));
        tracker.changed(&numbered(1), None);
        assert_eq!(received(&mut again), [], "it has not read that key since");
        tracker.read(1, &numbered(1));
        let (mut left, mut slices) = (tracker.table().readers.len(), 0);
        while left > 2 {
            tokio::task::yield_now().await;
            let now = tracker.table().readers.len();
            assert!(left - now <= SLICE_STEPS, "{} keys removed at once", left - now);
            (left, slices) = (now, slices + 1);
        }
        assert!(slices >= KEYS / SLICE_STEPS);
        assert_eq!(tracker.table().bytes, 2 * key_bytes(&numbered(0), 1));
        tracker.changed(&numbered(0), None);
        tracker.changed(&numbered(1), None);
        let expected = [numbered(0), numbered(1)].map(Invalidation::Key);
        assert_eq!(received(&mut again), expected, "what it reads now is not removed with its old keys");
        assert_eq!(tracker.table().bytes, 0);
    }

    #[test]
    fn keys_of_who_leaves_are_removed_without_a_runtime_too() {
        let tracker = tracker();
        drop(tracker.start(&account(1), TrackingTerms::default()));
        (0..3 * SLICE_STEPS).for_each(|number| tracker.read(1, &numbered(number)));
        tracker.left(1);
        assert_eq!(key_count_and_bytes(&tracker), (0, 0));
    }

    #[test]
    fn a_slice_of_keys_with_many_readers_is_smaller() {
        let tracker = tracker();
        let clients = 4 * READERS_PER_STEP as u64;
        for client in 1..=clients {
            drop(tracker.start(&account(client), TrackingTerms::default()));
            (0..SLICE_STEPS).for_each(|number| tracker.read(client, &numbered(number)));
        }
        let mut table = tracker.table();
        let start = table.clients[&1].start;
        let keys: Vec<Bytes> = (0..SLICE_STEPS).map(numbered).collect();
        let removed = table.remove_reader(Reader { client: 1, start }, &keys);
        assert!((1..=SLICE_STEPS / 4).contains(&removed), "{removed} keys");
    }

    #[tokio::test]
    async fn a_flush_forgets_all_keys_of_many() {
        let tracker = tracker();
        let mut reader = tracker.start(&account(1), TrackingTerms::default()).unwrap();
        (0..2 * SLICE_STEPS).for_each(|number| tracker.read(1, &numbered(number)));
        tracker.everything_changed();
        assert_eq!(key_count_and_bytes(&tracker), (0, 0));
        tracker.read(1, &A);
        tracker.changed(&numbered(0), None);
        tracker.changed(&A, None);
        assert_eq!(received(&mut reader), [Invalidation::Everything, Invalidation::Key(A)]);
    }
}
