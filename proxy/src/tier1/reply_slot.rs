//! One client's place at a shared connection ([`super::shared_connection`]): what has come for it, and who must be woken.
//!
//! Filled by the task that reads the shared connection, emptied by the client's own task. What it holds is limited: above [`SLOT_BYTES_MAX`] the
//! shared connection is not read until the client has taken some, and a client for which the others have waited [`TAKE_WITHIN`] is cut off.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Bytes of replies that may wait for one client.
pub const SLOT_BYTES_MAX: usize = 1024 * 1024;
/// How long the others wait for a client that is slow to take the replies to one batch. When it comes again it has a connection of its own.
pub(super) const TAKE_WITHIN: Duration = Duration::from_secs(1);
/// A buffer larger than this is given back once it is empty.
const KEPT_BYTES_MAX: usize = 16 * 1024;

/// What became of one command, in the order the commands were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandResult {
    /// Answered: the next `len` bytes, together with those taken before that belonged to no whole reply.
    Reply { len: u32 },
    /// The connection is gone. Whether the command had left us.
    Lost { had_left: bool },
}

/// What has come since the client looked last.
#[derive(Debug, Default)]
pub struct Arrivals {
    pub bytes: Vec<u8>,
    pub results: Vec<CommandResult>,
    /// A reply came that was too large for a shared connection: the client is better off with its own.
    pub had_large: bool,
    /// Why commands were lost.
    pub reason: Option<Arc<str>>,
    /// The client's stream of replies cannot be mended, or it did not take them: it is disconnected.
    pub cut: bool,
}

#[derive(Debug, Default)]
pub struct ReplySlot {
    state: Mutex<SlotState>,
    taken: Notify,
}

#[derive(Debug, Default)]
struct SlotState {
    arrivals: Arrivals,
    /// Bytes at the end that belong to a reply which has not come whole.
    loose: u32,
    waker: Option<Waker>,
    closed: bool,
}

impl ReplySlot {
    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().expect("mutex poisoned")
    }

    /// Takes what has come into `arrivals`, which must be empty. `false`: nothing; the waker will be called.
    pub fn take(&self, waker: &Waker, arrivals: &mut Arrivals) -> bool {
        let mut state = self.state();
        if state.arrivals.results.is_empty() && state.arrivals.bytes.is_empty() && !state.arrivals.cut {
            if !state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                state.waker = Some(waker.clone());
            }
            return false;
        }
        std::mem::swap(&mut state.arrivals, arrivals);
        state.loose = 0;
        let was_full = arrivals.bytes.len() > SLOT_BYTES_MAX;
        drop(state);
        if was_full {
            self.taken.notify_one();
        }
        true
    }

    /// The client is gone: what still comes for it is dropped.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.arrivals = Arrivals::default();
        drop(state);
        self.taken.notify_one();
    }

    /// Whole replies of these lengths, one behind the other. `true`: the slot is full.
    pub(super) fn deliver(&self, bytes: &[u8], lens: &[u32]) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.arrivals.bytes.extend_from_slice(bytes);
        let mut before = std::mem::take(&mut state.loose);
        state
            .arrivals
            .results
            .extend(lens.iter().map(|len| CommandResult::Reply { len: len + std::mem::take(&mut before) }));
        state.wake()
    }

    /// A piece of a large reply. `true`: the slot is full.
    pub(super) fn deliver_piece(&self, bytes: &[u8]) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.arrivals.bytes.extend_from_slice(bytes);
        state.arrivals.had_large = true;
        state.loose += bytes.len() as u32;
        state.wake()
    }

    /// The connection is gone with `commands` unanswered.
    pub(super) fn lose(&self, commands: u32, had_left: bool, reason: &Arc<str>, mid_reply: bool) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.arrivals.results.extend((0..commands).map(|_| CommandResult::Lost { had_left }));
        state.arrivals.reason = Some(Arc::clone(reason));
        state.arrivals.cut |= mid_reply;
        state.wake();
    }

    /// Waits until there is room again. A client that has not made it by `deadline` is cut off.
    pub(super) async fn room(&self, deadline: Instant) {
        while self.state().arrivals.bytes.len() > SLOT_BYTES_MAX {
            if tokio::time::timeout_at(deadline, self.taken.notified()).await.is_err() {
                let mut state = self.state();
                state.closed = true;
                state.arrivals = Arrivals { cut: true, ..Arrivals::default() };
                state.wake();
                return;
            }
        }
    }
}

impl SlotState {
    fn wake(&self) -> bool {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
        self.arrivals.bytes.len() > SLOT_BYTES_MAX
    }
}

impl Arrivals {
    pub fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        self.results.clear();
        if self.results.capacity() > KEPT_BYTES_MAX / 16 {
            self.results = Vec::new();
        }
        self.had_large = false;
        self.reason = None;
        self.cut = false;
    }
}
