//! One client's place at a shared connection ([`super::trunk`]): what has come for it, and who must be woken.
//!
//! Filled by the task that reads the trunk, emptied by the client's own task. What it holds is limited: above [`SEAT_BYTES_MAX`] the
//! trunk is not read until the client has taken some, and a client for which the others have waited [`TAKE_WITHIN`] is cut off.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Bytes of replies that may wait for one client.
pub const SEAT_BYTES_MAX: usize = 1024 * 1024;
/// How long the others wait for a client that is slow to take the replies to one batch. When it comes again it has a connection of its own.
pub(super) const TAKE_WITHIN: Duration = Duration::from_secs(1);
/// A buffer larger than this is given back once it is empty.
const KEPT_BYTES_MAX: usize = 16 * 1024;

/// What became of one command, in the order the commands were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Answered: the next `len` bytes, together with those taken before that belonged to no whole reply.
    Reply { len: u32 },
    /// The connection is gone. Whether the command had left us.
    Lost { had_left: bool },
}

/// What has come since the client looked last.
#[derive(Debug, Default)]
pub struct Arrivals {
    pub bytes: Vec<u8>,
    pub told: Vec<Told>,
    /// A reply came that was too large for a shared connection: the client is better off with its own.
    pub had_large: bool,
    /// Why commands were lost.
    pub reason: Option<Arc<str>>,
    /// The client's stream of replies cannot be mended, or it did not take them: it is disconnected.
    pub cut: bool,
}

#[derive(Debug, Default)]
pub struct Seat {
    inbox: Mutex<Inbox>,
    taken: Notify,
}

#[derive(Debug, Default)]
struct Inbox {
    arrivals: Arrivals,
    /// Bytes at the end that belong to a reply which has not come whole.
    loose: u32,
    waker: Option<Waker>,
    closed: bool,
}

impl Seat {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().expect("no one panics with it")
    }

    /// Takes what has come into `arrivals`, which must be empty. `false`: nothing; the waker will be called.
    pub fn take(&self, waker: &Waker, arrivals: &mut Arrivals) -> bool {
        let mut inbox = self.inbox();
        if inbox.arrivals.told.is_empty() && inbox.arrivals.bytes.is_empty() && !inbox.arrivals.cut {
            if !inbox.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                inbox.waker = Some(waker.clone());
            }
            return false;
        }
        std::mem::swap(&mut inbox.arrivals, arrivals);
        inbox.loose = 0;
        let was_full = arrivals.bytes.len() > SEAT_BYTES_MAX;
        drop(inbox);
        if was_full {
            self.taken.notify_one();
        }
        true
    }

    /// The client is gone: what still comes for it is dropped.
    pub fn close(&self) {
        let mut inbox = self.inbox();
        inbox.closed = true;
        inbox.arrivals = Arrivals::default();
        drop(inbox);
        self.taken.notify_one();
    }

    /// Whole replies of these lengths, one behind the other. `true`: the seat is full.
    pub(super) fn deliver(&self, bytes: &[u8], lens: &[u32]) -> bool {
        let mut inbox = self.inbox();
        if inbox.closed {
            return false;
        }
        inbox.arrivals.bytes.extend_from_slice(bytes);
        let mut before = std::mem::take(&mut inbox.loose);
        inbox
            .arrivals
            .told
            .extend(lens.iter().map(|len| Told::Reply { len: len + std::mem::take(&mut before) }));
        inbox.wake()
    }

    /// A piece of a large reply. `true`: the seat is full.
    pub(super) fn deliver_piece(&self, bytes: &[u8]) -> bool {
        let mut inbox = self.inbox();
        if inbox.closed {
            return false;
        }
        inbox.arrivals.bytes.extend_from_slice(bytes);
        inbox.arrivals.had_large = true;
        inbox.loose += bytes.len() as u32;
        inbox.wake()
    }

    /// The connection is gone with `commands` unanswered.
    pub(super) fn lose(&self, commands: u32, had_left: bool, reason: &Arc<str>, mid_reply: bool) {
        let mut inbox = self.inbox();
        if inbox.closed {
            return;
        }
        inbox.arrivals.told.extend((0..commands).map(|_| Told::Lost { had_left }));
        inbox.arrivals.reason = Some(Arc::clone(reason));
        inbox.arrivals.cut |= mid_reply;
        inbox.wake();
    }

    /// Waits until there is room again. A client that has not made it by `deadline` is cut off.
    pub(super) async fn room(&self, deadline: Instant) {
        while self.inbox().arrivals.bytes.len() > SEAT_BYTES_MAX {
            if tokio::time::timeout_at(deadline, self.taken.notified()).await.is_err() {
                let mut inbox = self.inbox();
                inbox.closed = true;
                inbox.arrivals = Arrivals { cut: true, ..Arrivals::default() };
                inbox.wake();
                return;
            }
        }
    }
}

impl Inbox {
    fn wake(&self) -> bool {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
        self.arrivals.bytes.len() > SEAT_BYTES_MAX
    }
}

impl Arrivals {
    pub fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        self.told.clear();
        if self.told.capacity() > KEPT_BYTES_MAX / 16 {
            self.told = Vec::new();
        }
        self.had_large = false;
        self.reason = None;
        self.cut = false;
    }
}
