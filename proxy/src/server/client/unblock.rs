//! `CLIENT UNBLOCK`: how one connection ends the wait of another. Part of what others may know of a client
//! ([`crate::server::client::registry::ClientInfo`]).
//!
//! The connection that waits looks here whenever it looks for its answer. What is asked of it is to leave the queue it stands in; the answer
//! still comes from there, so that a grant which was quicker is told and not lost.

use redfence_core::reply::{Refusal, Reply};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

/// What the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnblockWith {
    /// What it would be told if its time had run out.
    Timeout,
    Error,
}

impl UnblockWith {
    /// The answer to a wait that was ended so.
    #[must_use]
    pub fn answer(self, reply: Reply) -> Reply {
        match (self, reply) {
            (UnblockWith::Error, Reply::Nil | Reply::NilArray) => {
                Refusal::new("UNBLOCKED client unblocked via CLIENT UNBLOCK").into()
            }
            (UnblockWith::Error | UnblockWith::Timeout, reply) => reply,
        }
    }
}

#[derive(Debug, Default)]
pub struct UnblockSlot(Mutex<SlotState>);

#[derive(Debug, Default)]
struct SlotState {
    /// A wait is under way that can be ended, and nobody has ended it.
    waits: bool,
    asked: Option<UnblockWith>,
    waker: Option<Waker>,
}

impl UnblockSlot {
    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A wait begins.
    pub fn begin(&self) {
        *self.state() = SlotState { waits: true, ..SlotState::default() };
    }

    /// It is over.
    pub fn end(&self) {
        *self.state() = SlotState::default();
    }

    /// Ends the wait that is under way. `false`: there is none, or somebody has ended it before.
    pub fn ask(&self, with: UnblockWith) -> bool {
        let mut state = self.state();
        if !std::mem::take(&mut state.waits) {
            return false;
        }
        state.asked = Some(with);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        true
    }

    /// Asked by the connection that waits: whether to go on. It is woken when that changes.
    pub fn poll(&self, context: &Context<'_>) -> Option<UnblockWith> {
        let mut state = self.state();
        let asked = state.asked.take();
        if asked.is_none() && state.waits {
            state.waker = Some(context.waker().clone());
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_ended_once_and_only_while_it_lasts() {
        let (slot, context) = (UnblockSlot::default(), Context::from_waker(Waker::noop()));
        assert!(!slot.ask(UnblockWith::Timeout), "nobody waits");
        slot.begin();
        assert_eq!(slot.poll(&context), None);
        assert!(slot.ask(UnblockWith::Error) && !slot.ask(UnblockWith::Timeout));
        assert_eq!((slot.poll(&context), slot.poll(&context)), (Some(UnblockWith::Error), None));
        slot.begin();
        slot.end();
        assert!(!slot.ask(UnblockWith::Error));
    }

    #[test]
    fn what_was_granted_before_is_told() {
        assert_eq!(UnblockWith::Error.answer(Reply::Int(7)), Reply::Int(7));
        assert_eq!(UnblockWith::Timeout.answer(Reply::NilArray), Reply::NilArray);
        assert!(UnblockWith::Error.answer(Reply::NilArray).is_error());
    }
}
