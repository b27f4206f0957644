//! The handle of a held lock. Ownership lives here, not in a task or thread.

use crate::client::Handle;
use crate::core::{BACKOFF_BASE, BACKOFF_MAX};
use crate::error::{Cause, Error, Failure, Loss};
use crate::fenced::Fenced;
use crate::lease::{Lease, NewLease, Part, State};
use crate::links::backoff;
use crate::protocol::{answer, Answer, Dialect, Kind, Tier};
use crate::renewer::{ask_by_owner, release_parts, renew_one, Job};
use crate::token;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

pub use crate::token::Token;

/// A held lock. It is renewed in the background until it is released, lost or dropped; dropping it releases it in the background.
///
/// It may be sent to another task: ownership is the handle's. It cannot be cloned; put it into an [`Arc`] to share it.
#[must_use = "dropping it releases the lock"]
pub struct Lock {
    handle: Arc<Handle>,
    lease: Arc<Lease>,
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Released {
    /// It was given back now.
    Now,
    /// It had been given back before, by its fence.
    Before,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.lease.parts.iter().map(|part| String::from_utf8_lossy(&part.name)).collect();
        f.debug_struct("Lock")
            .field("names", &names)
            .field("fence", &self.fence())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Lock {
    pub(crate) fn new(handle: Arc<Handle>, lease: Arc<Lease>) -> Lock {
        Lock { handle, lease }
    }

    /// The fencing token: a positive number below 2^53 that rises with every grant of this name. Send it with every write; the resource
    /// refuses what is lower than the highest it has seen. `i64`, because that is SQL's `bigint`. Of a multi-lock: the first name's.
    ///
    /// It stays the same when the lock is lost: a late write with it is what the resource must refuse.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.lease.parts[0].fence()
    }

    /// The names and their fences, in the order they were asked for.
    #[must_use]
    pub fn fences(&self) -> Vec<(&[u8], i64)> {
        self.lease.parts.iter().map(|part| (part.name.as_slice(), part.fence())).collect()
    }

    /// The name; of a multi-lock the first.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.lease.parts[0].name
    }

    /// The owner: the UUID of this acquisition.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.lease.owner
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.lease.kind()
    }

    /// How sure this process may be that it holds the lock, by its own clock and by what the server said. Asks nobody.
    #[must_use]
    pub fn state(&self) -> State {
        self.lease.state(self.handle.core.clock.now())
    }

    /// For how long it is surely held, counted from when the last good renewal was sent. While the session is without its connection, that
    /// is the server's half second of grace at most. Asks nobody.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.state() {
            State::Held | State::Suspect => self.lease.remaining(self.handle.core.clock.now()),
            State::Lost | State::Released => Duration::ZERO,
        }
    }

    /// Before a step that takes this long: makes sure that the lock is held for it, and renews now where it is not, or where the session is
    /// without its connection.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], or [`Error::TooLittleTime`] where the lock is held but not for so long.
    pub async fn ensure(&self, at_least: Duration) -> Result<(), Error> {
        self.check()?;
        if self.remaining() >= at_least && !self.lease.is_orphaned() {
            return Ok(());
        }
        let core = &self.handle.core;
        // Longer than the ttl is never granted: nobody needs to be asked.
        if at_least <= self.lease.ttl {
            self.renew().await;
            self.check()?;
        }
        let remaining = self.lease.remaining(core.clock.now());
        if remaining >= at_least && !remaining.is_zero() {
            return Ok(());
        }
        Err(Error::TooLittleTime { remaining, wanted: at_least })
    }

    /// Renews now, with its session, as long as there is time.
    async fn renew(&self) {
        let core = &self.handle.core;
        let within = self.lease.until_deadline(core.clock.now()).min(core.settings.operation_timeout);
        // Whatever became of it, the lease knows.
        let _ = tokio::time::timeout(within, self.renew_until_answered()).await;
    }

    async fn renew_until_answered(&self) {
        let core = &self.handle.core;
        let mut attempt = 0;
        while !self.lease.is_over() {
            if let Some(session) =
                self.lease.session.as_ref().filter(|_| attempt == 0 || self.lease.is_orphaned())
            {
                crate::session::keep_alive(core, session).await;
            }
            if let Ok(link) = core.links.shared().await {
                let within = core.settings.attempt_timeout.min(self.lease.ttl / 3);
                if renew_one(core, &link, &self.lease, within).await && !self.lease.is_orphaned() {
                    return;
                }
            }
            tokio::time::sleep(backoff(attempt, Duration::from_millis(10), self.lease.ttl / 8)).await;
            attempt += 1;
        }
    }

    fn check(&self) -> Result<(), Error> {
        match self.state() {
            State::Held | State::Suspect => Ok(()),
            State::Lost => {
                Err(Error::Lost(self.lease.loss().cloned().unwrap_or_else(|| Loss::new(Cause::Expired))))
            }
            State::Released => Err(Error::Lost(Loss::new(Cause::AlreadyReleased))),
        }
    }

    /// Resolves when the lock is lost, by the server's word or by this process's clock, whichever is first. Never resolves for a lock that
    /// was released.
    pub async fn lost(&self) -> Loss {
        loop {
            self.lease.ended().cancelled().await;
            if let Some(loss) = self.lease.loss() {
                return loss.clone();
            }
        }
    }

    /// How it was lost, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        let _ = self.state();
        self.lease.loss().cloned()
    }

    /// Cancelled when the lock is lost: for code that takes a token.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.lease.ended().child_token()
    }

    /// Runs `work` while the lock is held. When it is lost, or another task releases it, `work` is dropped at its next `await`, and the answer is [`Error::Lost`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]. The outcome of `work` itself is passed on untouched, an error of its own included.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.check()?;
        let mut work = std::pin::pin!(work);
        let mut over = std::pin::pin!(self.lease.over().cancelled());
        std::future::poll_fn(|context| {
            // Looked at before each step, and by the clock too: after a pause the background task may not have run yet.
            let is_over = over.as_mut().poll(context).is_ready();
            if is_over || matches!(self.state(), State::Lost | State::Released) {
                return std::task::Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await
        .map_or_else(|| self.check().and(Err(Error::Lost(Loss::new(Cause::Expired)))), Ok)
    }

    /// Gives the lock back. May be called again: the answer is then [`Released::Before`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] where the lock had ended before, with the server's reason: somebody else may have worked meanwhile. A lock that this
    /// process knows to be lost is tried once, without retries. [`Error::Unavailable`] and [`Error::Indeterminate`] where no server
    /// answered: the lock then ends with its ttl.
    pub async fn release(&self) -> Result<Released, Error> {
        let core = &self.handle.core;
        if let State::Lost = self.state() {
            let _ = release_parts(core, &self.lease, true).await;
            return self.check().map(|()| Released::Before);
        }
        let is_first = self.lease.release();
        core.unregister(&self.lease);
        if is_first {
            let held = core.clock.now().saturating_sub(self.lease.since);
            core.telemetry.held(held, "released");
        }
        // Dropped half-way, the rest is done in the background.
        let mut guard = ReleaseGuard(is_first.then_some(self));
        let outcome = release_parts(core, &self.lease, false).await;
        guard.0 = None;
        match outcome.map_err(Failure::into_error)? {
            None => Ok(Released::Now),
            Some(Cause::AlreadyReleased) => Ok(Released::Before),
            Some(cause) => Err(Error::Lost(Loss::new(cause))),
        }
    }

    /// A token by which another process can take the lock over with [`crate::Client::adopt`]. Clients in other languages read it too. This handle
    /// goes on as before: prefer [`Lock::hand_over`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]; [`Error::Invalid`] for a lock that is bound to this client's session: acquire it as
    /// [`crate::LockRequest::transferable`].
    pub fn token(&self) -> Result<Token, Error> {
        self.check()?;
        if self.lease.session.is_some() {
            return Err(Error::invalid(
                "the lock is bound to this client's session; acquire it with .transferable()",
            ));
        }
        Ok(token::Fields::of(&self.lease).into_token())
    }

    /// The same, and this handle lets go: it neither renews nor releases any more.
    ///
    /// # Errors
    ///
    /// As [`Lock::token`]; the lock is then released in the background, as by dropping it.
    pub fn hand_over(self) -> Result<Token, Error> {
        let token = self.token()?;
        self.lease.release();
        self.handle.core.unregister(&self.lease);
        Ok(token)
    }

    pub(crate) async fn adopt(handle: &Arc<Handle>, token: &Token) -> Result<Lock, Error> {
        let fields = token.fields()?;
        let core = &handle.core;
        core.admit()?;
        tokio::select! {
            biased;
            () = core.closed().cancelled() => Err(Error::Closed),
            adopted = Lock::adopt_fields(handle, fields) => adopted,
        }
    }

    async fn adopt_fields(handle: &Arc<Handle>, fields: token::Fields) -> Result<Lock, Error> {
        let core = &handle.core;
        let now = core.clock.now();
        let lease = Arc::new(Lease::new(NewLease {
            number: core.next_number(),
            parts: fields.parts.into_iter().map(|(name, fence)| Part::new(name, fence)).collect(),
            owner: fields.owner,
            ttl: fields.ttl,
            granted: fields.ttl,
            sent: now,
            tier: fields.tier,
            kind: fields.kind,
            session: None,
            max_hold: core.settings.max_hold,
        }));
        // No handle before it is ours: one that is dropped would release the other process's lock.
        let deadline = Instant::now() + core.settings.operation_timeout.min(lease.ttl);
        let mut attempt = 0;
        loop {
            let failure = match core.links.shared().await {
                Ok(link) if renew_one(core, &link, &lease, core.settings.attempt_timeout).await => break,
                Ok(_) => {
                    Error::Unavailable { reason: "the lock could not be renewed".into(), circuit_open: false }
                }
                Err(failure) => failure.into_error(),
            };
            if let Some(loss) = lease.loss() {
                return Err(Error::Lost(loss.clone()));
            }
            if Instant::now() >= deadline {
                return Err(failure);
            }
            tokio::time::sleep(backoff(attempt, BACKOFF_BASE, BACKOFF_MAX)).await;
            attempt += 1;
        }
        core.register(&lease)?;
        Ok(Lock { handle: Arc::clone(handle), lease })
    }

    /// Turns a shared lock into an exclusive one, with a new fence, waiting for the other readers ahead of everybody in the queue. The
    /// shared lock is kept while it waits, and after [`Error::Busy`]. Needs cluster version 2.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`], [`Error::Deadlock`] where another reader waits for the same, [`Error::Lost`], [`Error::TierRefused`],
    /// [`Error::Unsupported`].
    pub async fn upgrade(&self, wait: Duration) -> Result<(), Error> {
        self.convert(true, wait).await
    }

    /// Turns an exclusive lock into a shared one; the fence stays. Needs cluster version 2.
    ///
    /// # Errors
    ///
    /// As [`Lock::upgrade`].
    pub async fn downgrade(&self) -> Result<(), Error> {
        self.convert(false, Duration::ZERO).await
    }

    async fn convert(&self, is_exclusive: bool, wait: Duration) -> Result<(), Error> {
        self.check()?;
        let core = &self.handle.core;
        core.admit()?;
        let [part] = self.lease.parts.as_slice() else {
            return Err(Error::invalid("a multi-lock cannot be converted"));
        };
        if wait > crate::protocol::WAIT_MAX {
            return Err(Error::invalid("the wait must be at most 1 hour"));
        }
        if core.links.dialect() == Dialect::Functions {
            return Err(Error::TierRefused { reason: "the Lua library serves exclusive locks".into() });
        }
        let refused = |failure: Failure| match failure {
            Failure::Server { code, text }
                if code == "ERR"
                    && (text.contains("unknown command") || text.contains("needs cluster version")) =>
            {
                Error::Unsupported { feature: "LOCK.CONVERT", needs: "cluster version 2" }
            }
            failure => failure.into_error(),
        };
        let link = core.links.for_wait().await.map_err(Failure::into_error)?;
        let before = part.fence();
        let cmd = Dialect::convert(&part.name, before, is_exclusive, wait);
        let within = wait + core.settings.attempt_timeout + Duration::from_secs(5);
        if !is_exclusive {
            // From now on the server may let readers in.
            self.lease.set_kind(Kind::Shared);
        }
        let mut conversion = Conversion::begin(self);
        let outcome = tokio::select! {
            biased;
            () = core.closed().cancelled() => return Err(Error::Closed),
            () = self.lease.ended().cancelled() => return self.check(),
            outcome = link.request(&cmd, within) => outcome,
            () = core.links.silenced(&link) => {
                let reason = "the node that was asked does not answer any more".into();
                Err(Failure::Connection { reason, sent: true })
            }
        };
        let value = match outcome {
            Ok(value) => {
                core.links.give_back(link);
                value
            }
            Err(failure) if !failure.is_without_effect() => {
                ask_by_owner(core, &self.lease).await.map_err(Failure::into_error)?;
                self.check()?;
                let is_done =
                    if is_exclusive { part.fence() != before } else { self.lease.kind() == Kind::Shared };
                if !is_done && !is_exclusive {
                    // It may still be on its way.
                    self.lease.set_kind(Kind::Shared);
                }
                return if is_done { Ok(()) } else { Err(failure.into_error()) };
            }
            Err(failure) => {
                conversion.is_known();
                if !is_exclusive {
                    self.lease.set_kind(Kind::Exclusive);
                }
                return Err(refused(failure));
            }
        };
        match answer(&value)? {
            Answer::Granted(fences, _) => {
                part.set_fence(fences[0]);
                self.lease.set_kind(if is_exclusive { Kind::Exclusive } else { Kind::Shared });
                conversion.is_known();
                core.catch_up(&self.lease);
                if self.lease.loss().is_some() {
                    // Lost while the server granted it: nobody renews it.
                    self.handle.leave(Job::Release { lease: Arc::clone(&self.lease), once: true });
                }
                self.check()
            }
            Answer::Taken | Answer::Queued(..) => {
                conversion.is_known();
                if !is_exclusive {
                    self.lease.set_kind(Kind::Exclusive);
                }
                self.renew().await;
                self.check()?;
                Err(Error::Busy(crate::error::Busy::default()))
            }
        }
    }

    /// Writes to data that lives in the same server, refused where this lock's fence is stale.
    #[must_use]
    pub fn fenced(&self) -> Fenced {
        Fenced::new(Arc::clone(&self.handle), self.name().to_vec(), self.fence())
    }

    /// Which tier was asked for, if any.
    #[must_use]
    pub fn tier(&self) -> Option<Tier> {
        self.lease.tier
    }
}

/// A conversion that was sent. Where its outcome stays unknown, dropped half-way included, the next renewal comes at once and finds out.
struct Conversion<'a> {
    lock: &'a Lock,
    is_known: bool,
}

impl Conversion<'_> {
    fn begin(lock: &Lock) -> Conversion<'_> {
        lock.lease.begin_conversion();
        Conversion { lock, is_known: false }
    }

    fn is_known(&mut self) {
        if !std::mem::replace(&mut self.is_known, true) {
            self.lock.lease.end_conversion();
        }
    }
}

impl Drop for Conversion<'_> {
    fn drop(&mut self) {
        if !self.is_known {
            let core = &self.lock.handle.core;
            self.lock.lease.renew_now(core.clock.now());
            core.wake();
        }
    }
}

/// A release whose future was dropped goes on in the background.
struct ReleaseGuard<'a>(Option<&'a Lock>);

impl Drop for ReleaseGuard<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            lock.handle.leave(Job::Release { lease: Arc::clone(&lock.lease), once: false });
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let core = &self.handle.core;
        let was_renewed = core.unregister(&self.lease);
        let is_first = self.lease.release();
        if is_first {
            core.telemetry.held(core.clock.now().saturating_sub(self.lease.since), "dropped");
        }
        // Found lost by the clock, and dropped before the background task saw it: the server may not know yet.
        if is_first || (was_renewed && self.lease.loss().is_some()) {
            self.handle.leave(Job::Release { lease: Arc::clone(&self.lease), once: !is_first });
        }
    }
}
