//! Enforces the deadlines of clients even if the node's thread is stuck.
//!
//! The node itself ends overdue requests once a tick. In case its thread is stuck, another thread checks every
//! [`SWEEP_EVERY`] whether a turn has begun since the last check; only if none has, it answers what is overdue. A request
//! that is still in the inbox is removed from it and was certainly not applied; the outcome of one that the node has
//! taken is unknown. The cost is one atomic load per request and one addition per turn: deadlines are counted in sweeps, without
//! reading a clock.

use crate::node_api::{Input, WAIT_FOREVER};
use crate::tier2::handle::inbox::{ReplyDeadline, RequestKind};
use crate::tier2::handle::{HandleShared, NodeAnswer};
use crate::tier2::refusals;
use redfence_core::reply::Reply;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often [`crate::tier2::handle::Tier2Handle::sweep`] is to be called.
pub(in crate::tier2) const SWEEP_EVERY: Duration = Duration::from_millis(SWEEP_MS);
const SWEEP_MS: u64 = 100;
/// How many sweeps later than the node itself.
const MARGIN_SWEEPS: u64 = 3;

#[derive(Debug, Default)]
pub(in crate::tier2) struct Sweeper {
    sweeps: AtomicU64,
    turns: AtomicU64,
    turns_seen: AtomicU64,
}

impl Sweeper {
    pub(in crate::tier2) fn turn_begins(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::tier2) fn deadline(
        &self,
        kind: RequestKind,
        timeout_ms: u64,
        wait_ms: u64,
    ) -> ReplyDeadline {
        let sweeps = self.sweeps.load(Ordering::Relaxed) + MARGIN_SWEEPS;
        let after = |ms: u64| sweeps.saturating_add(ms.div_ceil(SWEEP_MS));
        let (in_inbox, taken) = match wait_ms {
            WAIT_FOREVER => (after(timeout_ms), u64::MAX),
            _ => (after(timeout_ms.saturating_add(wait_ms)), after(timeout_ms.saturating_add(wait_ms))),
        };
        ReplyDeadline { in_inbox, taken, kind }
    }

    /// Whether no turn has begun since the last sweep.
    fn is_stuck(&self) -> bool {
        let turns = self.turns.load(Ordering::Relaxed);
        self.turns_seen.swap(turns, Ordering::Relaxed) == turns
    }
}

pub(in crate::tier2) fn sweep(shared: &HandleShared) -> bool {
    let sweep = shared.sweeper.sweeps.fetch_add(1, Ordering::Relaxed) + 1;
    if shared.inbox.is_closed() {
        return false;
    }
    if !shared.sweeper.is_stuck() {
        return true;
    }
    for reply_to in shared.inbox.take_overdue(sweep) {
        let _ = reply_to.reply.send(NodeAnswer::uncounted(refusals::not_taken()));
    }
    let mut waiting = shared.waiting.lock().expect("mutex poisoned");
    let overdue = waiting.take_where(|reply_to| reply_to.deadline.taken <= sweep);
    drop(waiting);
    for (ticket, reply_to) in overdue {
        if reply_to.deadline.kind == RequestKind::Wait {
            shared.inbox.push_report(Input::Cancel { ticket });
        }
        // Fails if the client is gone.
        let _ = reply_to.reply.send(NodeAnswer::uncounted(unknown(reply_to.deadline.kind)));
    }
    true
}

fn unknown(kind: RequestKind) -> Reply {
    match kind {
        RequestKind::Command | RequestKind::Wait => refusals::indeterminate(),
        RequestKind::Read => refusals::no_quorum(),
        RequestKind::Admin => refusals::change_indeterminate(),
    }
}

#[cfg(test)]
mod tests {
    use crate::node_api::{Input, OwnedQuery, WakeFilter, WAIT_FOREVER};
    use crate::tier2::handle::{connect, NodeEndpoint, PendingReply, Tier2Handle};
    use bytes::Bytes;
    use redfence_core::reply::Reply;
    use redfence_core::types::{SessionId, SessionScope};
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    const TIMEOUT_MS: u64 = 1_000;

    fn turn(endpoint: &mut NodeEndpoint) -> Vec<Input> {
        let mut inputs = Vec::new();
        endpoint.collect(Duration::ZERO, WakeFilter::default(), &mut inputs);
        inputs
    }

    fn sweep_for(handle: &Tier2Handle, ms: u64) {
        (0..ms / 100).for_each(|_| assert!(handle.sweep()));
    }

    /// The code of the answer, if there is one.
    fn code(pending: &mut PendingReply) -> Option<String> {
        match Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => None,
            Poll::Ready(Reply::Error(refusal)) => Some(refusal.code().to_owned()),
            Poll::Ready(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_stuck_node_never_took_is_refused_in_time_and_never_done() {
        let (handle, mut endpoint) = connect(TIMEOUT_MS);
        turn(&mut endpoint);
        let mut command = handle.submit(Bytes::from_static(b"c"), 0);
        let mut forever = handle.submit(Bytes::from_static(b"f"), WAIT_FOREVER);
        let mut wait = handle.submit(Bytes::from_static(b"w"), 2_000);
        sweep_for(&handle, TIMEOUT_MS);
        assert_eq!(code(&mut command), None, "the node itself would be asked first");
        sweep_for(&handle, 500);
        assert_eq!(code(&mut command).as_deref(), Some("UNAVAILABLE"));
        assert_eq!(code(&mut forever).as_deref(), Some("UNAVAILABLE"));
        assert_eq!(code(&mut wait), None, "its own time comes on top");
        let seen = turn(&mut endpoint);
        assert_eq!(seen.iter().filter(|input| matches!(input, Input::Submit(_))).count(), 1);
    }

    #[test]
    fn what_a_stuck_node_took_is_answered_in_time_and_a_wait_is_called_off() {
        let (handle, mut endpoint) = connect(TIMEOUT_MS);
        let mut command = handle.submit(Bytes::from_static(b"c"), 0);
        let mut wait = handle.submit(Bytes::from_static(b"w"), 500);
        let mut forever = handle.submit(Bytes::from_static(b"f"), WAIT_FOREVER);
        let mut read = handle.query(OwnedQuery::Session { id: SessionId(1), sessions: SessionScope::All });
        turn(&mut endpoint);
        sweep_for(&handle, TIMEOUT_MS + 1_000);
        assert_eq!(code(&mut command).as_deref(), Some("INDETERMINATE"));
        assert_eq!(code(&mut wait).as_deref(), Some("INDETERMINATE"));
        assert_eq!(code(&mut read).as_deref(), Some("UNAVAILABLE"));
        assert_eq!(code(&mut forever), None, "it may wait for ever");
        let cancels =
            turn(&mut endpoint).iter().filter(|input| matches!(input, Input::Cancel { .. })).count();
        assert_eq!(cancels, 1);
    }

    #[test]
    fn a_node_that_runs_answers_for_itself() {
        let (handle, mut endpoint) = connect(TIMEOUT_MS);
        let mut command = handle.submit(Bytes::from_static(b"c"), 0);
        for _ in 0..50 {
            turn(&mut endpoint);
            assert!(handle.sweep());
        }
        assert_eq!(code(&mut command), None);
        endpoint.close();
        assert!(!handle.sweep(), "the node has stopped");
    }
}
