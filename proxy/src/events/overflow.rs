//! The mark on an inbox that was full when something came for it: its connection must end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

/// Shared by the inbox and those who put something into it.
#[derive(Clone, Debug, Default)]
pub(super) struct OverflowMark(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_set: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl OverflowMark {
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.0.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self) {
        self.0.is_set.store(true, Ordering::Relaxed);
        if let Some(waker) = self.waker().take() {
            waker.wake();
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }

    /// For a connection that does not look into the inbox because its client has no room for more. To be called before
    /// [`OverflowMark::is_set`].
    pub(super) fn wake_when_set(&self, context: &Context<'_>) {
        *self.waker() = Some(context.waker().clone());
    }
}
