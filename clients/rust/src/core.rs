//! What all handles of a client share, and the requests that are tried until a deadline.

use crate::alarm::Alarm;
use crate::clock::Clock;
use crate::error::{Cause, Error, Failure, Loss};
use crate::lease::Lease;
use crate::links::{backoff, Link, Links};
use crate::options::Settings;
use crate::protocol::Terms;
use crate::session::{Session, Sessions};
use crate::telemetry::Telemetry;
use redis::{Cmd, Value};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Pauses between attempts.
pub(crate) const BACKOFF_BASE: Duration = Duration::from_millis(20);
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Losses of locks that are not known here that are remembered.
const EARLY_MAX: usize = 256;

/// Losses that were told before the lock was known here: name, fence, and how.
type Early = VecDeque<(Vec<u8>, i64, Loss)>;

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) links: Links,
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) sessions: Sessions,
    pub(crate) telemetry: Telemetry,
    leases: Mutex<HashMap<u64, Arc<Lease>>>,
    /// What is asked for now, and by which owner: given back when the client is closed.
    acquisitions: Mutex<HashMap<u64, (Terms, String)>>,
    early: Mutex<Early>,
    numbers: AtomicU64,
    waker: Notify,
    /// When the renewer wakes up next.
    pub(crate) alarm: Alarm,
    closed: CancellationToken,
    /// Tests play a stopped process.
    pub(crate) is_stopped: AtomicBool,
}

impl Core {
    pub(crate) fn new(links: Links, settings: Settings) -> Core {
        Core {
            links,
            clock: settings.clock.clone(),
            settings,
            sessions: Sessions::default(),
            telemetry: Telemetry::default(),
            leases: Mutex::default(),
            acquisitions: Mutex::default(),
            early: Mutex::default(),
            numbers: AtomicU64::new(1),
            waker: Notify::new(),
            alarm: Alarm::default(),
            closed: CancellationToken::new(),
            is_stopped: AtomicBool::new(false),
        }
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    pub(crate) fn set_closed(&self) {
        self.closed.cancel();
    }

    /// Cancelled when the client is closed.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    // Leases.

    pub(crate) fn leases(&self) -> MutexGuard<'_, HashMap<u64, Arc<Lease>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acquisitions(&self) -> MutexGuard<'_, HashMap<u64, (Terms, String)>> {
        self.acquisitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an acquisition before anything is sent.
    pub(crate) fn begin_acquisition(&self, number: u64, terms: &Terms, owner: &str) -> Result<(), Error> {
        let mut acquisitions = self.acquisitions();
        // Looked at under the lock: `close` takes all that began before.
        if self.is_closed() {
            return Err(Error::Closed);
        }
        acquisitions.insert(number, (terms.clone(), owner.to_owned()));
        Ok(())
    }

    /// It is over. `clean_up` is called where its outcome is not known and `close` has not taken care of it.
    pub(crate) fn end_acquisition(&self, number: u64, clean_up: Option<impl FnOnce(Terms, String)>) {
        let mut acquisitions = self.acquisitions();
        // Under the lock: `close` finds it here, or what was left to the background task before it looked.
        if let (Some((terms, owner)), Some(clean_up)) = (acquisitions.remove(&number), clean_up) {
            clean_up(terms, owner);
        }
    }

    /// All that began and did not end.
    pub(crate) fn take_acquisitions(&self) -> Vec<(Terms, String)> {
        self.acquisitions().drain().map(|(_, acquisition)| acquisition).collect()
    }

    /// From now on it is renewed. At a client that is closed there is nobody to do so: it is lost.
    pub(crate) fn register(&self, lease: &Arc<Lease>) -> Result<(), Error> {
        {
            let mut leases = self.leases();
            // Looked at under the lock: `close` loses all that are there.
            if self.is_closed() {
                drop(leases);
                self.lose(lease, Loss::new(Cause::Closed));
                return Err(Error::Closed);
            }
            leases.insert(lease.number, Arc::clone(lease));
        }
        self.catch_up(lease);
        let first = lease.next_renewal().unwrap_or_default().min(lease.deadline());
        if self.alarm.ask(first) {
            self.wake();
        }
        Ok(())
    }

    /// Loses every lease: from now on nobody renews them.
    pub(crate) fn lose_all(&self) -> Vec<Arc<Lease>> {
        self.set_closed();
        let leases: Vec<_> = self.leases().values().cloned().collect();
        for lease in &leases {
            self.lose(lease, Loss::new(Cause::Closed));
        }
        leases
    }

    /// What was told before the lease, or its fence, was known here: a push may be heard before whoever waits for the grant runs again.
    pub(crate) fn catch_up(&self, lease: &Lease) {
        if let Some(loss) = self.take_early(lease) {
            self.lose(lease, loss);
        }
        let Some(session) = &lease.session else { return };
        if session.is_over() {
            self.lose(lease, Loss::new(Cause::SessionEnded));
        } else if session.reconnected_at().is_some_and(|at| lease.renewed_at() < at) {
            // Lost while there was no connection, it would have been told to nobody.
            lease.renew_now(self.clock.now());
        }
    }

    fn early(&self) -> MutexGuard<'_, Early> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A loss of a lock that is not known here, perhaps not yet.
    pub(crate) fn note_early(&self, name: Vec<u8>, fence: i64, loss: Loss) {
        let mut early = self.early();
        if early.len() >= EARLY_MAX {
            early.pop_front();
        }
        early.push_back((name, fence, loss));
    }

    fn take_early(&self, lease: &Lease) -> Option<Loss> {
        let mut early = self.early();
        let is_meant = |(name, fence, _): &(Vec<u8>, i64, Loss)| {
            lease.parts.iter().any(|part| part.fence() == *fence && part.name == *name)
        };
        let at = early.iter().position(is_meant)?;
        early.remove(at).map(|(_, _, loss)| loss)
    }

    /// True where it was still renewed.
    pub(crate) fn unregister(&self, lease: &Lease) -> bool {
        self.leases().remove(&lease.number).is_some()
    }

    /// Lets the renewer look again.
    pub(crate) fn wake(&self) {
        self.waker.notify_one();
    }

    pub(crate) async fn woken(&self) {
        self.waker.notified().await;
    }

    pub(crate) fn bound_to(&self, session: &Arc<Session>) -> Vec<Arc<Lease>> {
        let is_bound =
            |lease: &&Arc<Lease>| lease.session.as_ref().is_some_and(|own| Arc::ptr_eq(own, session));
        self.leases().values().filter(is_bound).cloned().collect()
    }

    /// Marks a lease lost and tells the world.
    pub(crate) fn lose(&self, lease: &Lease, loss: Loss) {
        if lease.lose(loss) {
            self.unregister(lease);
            self.telemetry.held(self.clock.now().saturating_sub(lease.since), "lost");
        }
    }

    pub(crate) fn session_ended(&self, session: &Arc<Session>) {
        session.end();
        for lease in self.bound_to(session) {
            self.lose(&lease, Loss::new(Cause::SessionEnded));
        }
    }

    /// Those that are not held by the fences they had are lost, and answered. Where a conversion may have replaced the fence, the next
    /// renewal finds out.
    pub(crate) fn lose_all_but(
        &self,
        leases: &[(Arc<Lease>, Vec<i64>)],
        is_held: impl Fn(&[u8], i64) -> bool,
    ) -> Vec<Arc<Lease>> {
        let mut lost = Vec::new();
        for (lease, fences) in leases {
            if lease.parts.iter().zip(fences).all(|(part, fence)| is_held(&part.name, *fence)) {
                continue;
            }
            if lease.may_be_converted() || lease.fences() != *fences {
                lease.renew_now(self.clock.now());
            } else {
                self.lose(lease, Loss::new(Cause::Expired));
                lost.push(Arc::clone(lease));
            }
        }
        lost
    }

    // Requests.

    /// Notes what became of a request: for the breaker, and for the choice of the node.
    pub(crate) fn note<T>(&self, link: Option<&Link>, outcome: &Result<T, Failure>) {
        match outcome {
            Ok(_) => self.links.breaker.succeeded(),
            Err(failure) if failure.is("UNAVAILABLE") => {
                self.links.breaker.failed(Instant::now());
                if let Some(link) = link {
                    self.links.move_on(link);
                }
            }
            // No address could be reached.
            Err(Failure::Connection { sent: false, .. }) => self.links.breaker.failed(Instant::now()),
            // A server that refuses is there.
            Err(failure @ Failure::Server { .. }) if !failure.is_retryable() => {
                self.links.breaker.succeeded();
            }
            Err(Failure::Connection { .. } | Failure::Server { .. }) => {
                self.links.breaker.unanswered(Instant::now());
            }
            Err(Failure::Closed) => {}
        }
    }

    /// Whether a request of the application may be sent now.
    pub(crate) fn admit(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        if self.links.breaker.admit(Instant::now()) {
            return Ok(());
        }
        let reason =
            "five requests failed within ten seconds; one a second is tried until a server answers".into();
        Err(Error::Unavailable { reason, circuit_open: true })
    }

    /// One attempt on the shared connection.
    pub(crate) async fn attempt(&self, cmd: &Cmd, within: Duration) -> Result<Value, Failure> {
        let link = match self.links.shared().await {
            Ok(link) => link,
            Err(failure) => {
                let outcome = Err(failure);
                self.note::<Value>(None, &outcome);
                return outcome;
            }
        };
        let outcome = link.request(cmd, within).await;
        self.note(Some(&link), &outcome);
        outcome
    }

    /// A request that may be repeated, tried until the deadline of an operation.
    pub(crate) async fn ask(&self, cmd: &Cmd) -> Result<Value, Failure> {
        self.ask_counted(cmd).await.0
    }

    /// The same, with the number of attempts that may have had an effect before the last.
    pub(crate) async fn ask_counted(&self, cmd: &Cmd) -> (Result<Value, Failure>, usize) {
        let deadline = Instant::now() + self.settings.operation_timeout;
        let (mut attempt, mut unsure) = (0, 0);
        loop {
            let outcome = self.attempt(cmd, self.settings.attempt_timeout).await;
            let pause = backoff(attempt, BACKOFF_BASE, BACKOFF_MAX);
            match outcome {
                Err(failure) if failure.is_retryable() && Instant::now() + pause < deadline => {
                    unsure += usize::from(!failure.is_without_effect());
                }
                outcome => return (outcome, unsure),
            }
            // The first attempt after a broken connection goes out at once: another address may be there.
            if attempt > 0 {
                tokio::time::sleep(pause).await;
            }
            attempt += 1;
        }
    }
}
