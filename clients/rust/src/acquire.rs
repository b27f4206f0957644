//! Asking for a lock. The owner is fixed before the first byte is sent, so every retry is the same acquisition; a request that is
//! dropped half-way is cleaned up in the background.

use crate::client::{Client, Handle};
use crate::clock::Time;
use crate::core::{Core, BACKOFF_BASE, BACKOFF_MAX};
use crate::error::{Busy, Error, Failure};
use crate::fallback::{Acquired, OnUnavailable};
use crate::lease::{Lease, NewLease, Part};
use crate::links::backoff;
use crate::lock::Lock;
use crate::protocol::{answer, Answer, Dialect, Kind, LockInfo, Terms, Tier};
use crate::renewer::{renew_one, Job};
use crate::session::Session;
use crate::telemetry;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(30);
/// A wait is answered this much later at most: the server's own deadline for finding a leader, and a margin.
const ANSWER_MARGIN: Duration = Duration::from_secs(8);
/// How often a session that ended is opened anew within one acquisition.
const SESSIONS_MAX: u32 = 2;

/// A request for one lock or several. Nothing is sent before [`LockRequest::acquire`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before acquire"]
pub struct LockRequest<'c> {
    client: &'c Client,
    terms: Terms,
    is_transferable: bool,
    describes_busy: bool,
    max_hold: Option<Duration>,
}

impl<'c> LockRequest<'c> {
    pub(crate) fn new(client: &'c Client, names: Vec<Vec<u8>>, is_multi: bool) -> LockRequest<'c> {
        let terms = Terms {
            names,
            is_multi,
            ttl: TTL,
            wait: Duration::ZERO,
            tier: None,
            kind: Kind::Exclusive,
            value: None,
        };
        let max_hold = client.handle.core.settings.max_hold;
        LockRequest { client, terms, is_transferable: false, describes_busy: false, max_hold }
    }

    /// How long the lock lives without a renewal (30 s). It is renewed in the background as long as the handle lives.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.terms.ttl = ttl;
        self
    }

    /// How long to wait for a taken lock (not at all), up to an hour. Waiters are served first come, first served.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.terms.wait = wait;
        self
    }

    /// Which tier must serve it. By default the server's routes decide.
    pub fn tier(mut self, tier: Tier) -> Self {
        self.terms.tier = Some(tier);
        self
    }

    /// A reader: any number of them hold the lock together. Needs cluster version 2.
    pub fn shared(mut self) -> Self {
        self.terms.kind = Kind::Shared;
        self
    }

    /// A semaphore: `count` permits out of `of`. Needs cluster version 2.
    pub fn permits(mut self, count: u32, of: u32) -> Self {
        self.terms.kind = Kind::Permits { count, of };
        self
    }

    /// The kind, where it is known only at run time.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.terms.kind = kind;
        self
    }

    /// Up to 1,024 bytes that are shown to whoever looks at the lock. Needs cluster version 2.
    pub fn value(mut self, value: impl AsRef<[u8]>) -> Self {
        self.terms.value = Some(value.as_ref().to_vec());
        self
    }

    /// Renewal ends after this time, and the lock with it (the client's setting: 1 hour); `None`: never.
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Self {
        self.max_hold = max_hold.into();
        self
    }

    /// The lock is not bound to the client's session: it lives on its ttl alone, and may be handed to another process with
    /// [`Lock::hand_over`].
    pub fn transferable(mut self) -> Self {
        self.is_transferable = true;
        self
    }

    /// [`Error::Busy`] tells who holds the lock and how many wait, for one more question to the server.
    pub fn describe_busy(mut self) -> Self {
        self.describes_busy = true;
        self
    }

    /// Takes the lock. Dropping the future leaves nothing behind: the place in the queue is given up, and a grant on its way is given
    /// back in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] where the wait ran out, [`Error::Deadlock`], [`Error::TierRefused`], [`Error::ModeConflict`],
    /// [`Error::Unsupported`], [`Error::Invalid`]; [`Error::Unavailable`] or [`Error::Indeterminate`] where no server answered in time.
    pub async fn acquire(self) -> Result<Lock, Error> {
        self.terms.check()?;
        let handle = &self.client.handle;
        let (core, began) = (&handle.core, Instant::now());
        let outcome = self.acquire_inner(handle).await;
        core.telemetry.acquired(telemetry::Acquired {
            waited: began.elapsed(),
            tier: self.terms.tier.map_or("default", Tier::word),
            outcome: outcome_word(&outcome),
            fence: outcome.as_ref().ok().map(Lock::fence),
        });
        match outcome {
            Err(Error::Busy(_)) if self.describes_busy => Err(Error::Busy(self.describe(core).await)),
            outcome => outcome,
        }
    }

    /// The same, with `None` where somebody else has it.
    ///
    /// # Errors
    ///
    /// As [`LockRequest::acquire`], without [`Error::Busy`].
    pub async fn try_acquire(self) -> Result<Option<Lock>, Error> {
        match self.acquire().await {
            Ok(lock) => Ok(Some(lock)),
            Err(Error::Busy(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same with a way out where no server answers. For [`Tier::Efficiency`] only: there a lock saves work, and to do the
    /// work twice is allowed. The way out is never silent: the answer is a type of its own, and a warning is logged.
    ///
    /// # Errors
    ///
    /// As [`LockRequest::acquire`]; [`Error::Invalid`] for any other tier.
    pub async fn acquire_or(self, on_unavailable: OnUnavailable) -> Result<Acquired, Error> {
        if self.terms.tier != Some(Tier::Efficiency) {
            return Err(Error::invalid("a fallback exists for .tier(Tier::Efficiency) only"));
        }
        let (names, wait) = (self.terms.names.clone(), self.terms.wait);
        match self.acquire().await {
            Ok(lock) => Ok(Acquired::Locked(lock)),
            Err(error @ (Error::Unavailable { .. } | Error::Indeterminate { .. })) => {
                on_unavailable.apply(error, names, wait).await
            }
            Err(error) => Err(error),
        }
    }

    async fn describe(&self, core: &Core) -> Busy {
        let cmd = core.links.dialect().info(&self.terms.names[0], self.terms.tier);
        let info = core.attempt(&cmd, core.settings.attempt_timeout).await.ok();
        info.and_then(|info| LockInfo::read(&info).ok()).map(LockInfo::into_busy).unwrap_or_default()
    }

    async fn acquire_inner(&self, handle: &Arc<Handle>) -> Result<Lock, Error> {
        let core = &handle.core;
        core.admit()?;
        let mut attempt = Attempt {
            handle,
            number: core.next_number(),
            terms: &self.terms,
            owner: uuid::Uuid::new_v4().to_string(),
            unsure: false,
            wait_until: core.clock.now() + self.terms.wait,
        };
        core.begin_acquisition(attempt.number, &self.terms, &attempt.owner)?;
        tokio::select! {
            biased;
            () = core.closed().cancelled() => Err(Error::Closed),
            outcome = self.take(handle, &mut attempt) => outcome,
        }
    }

    async fn take(&self, handle: &Arc<Handle>, attempt: &mut Attempt<'_>) -> Result<Lock, Error> {
        let core = &handle.core;
        let granted = attempt.run(!self.is_transferable).await?;
        let parts = self.terms.names.iter().cloned().zip(granted.fences);
        let lease = Arc::new(Lease::new(NewLease {
            number: attempt.number,
            parts: parts.map(|(name, fence)| Part::new(name, fence)).collect(),
            owner: attempt.owner.clone(),
            ttl: self.terms.ttl,
            granted: granted.ttl,
            sent: granted.sent,
            tier: self.terms.tier,
            kind: self.terms.kind,
            session: granted.session,
            max_hold: self.max_hold,
        }));
        if granted.has_waited && !renew_first(core, &lease).await? {
            return Err(Error::Busy(Busy::default()));
        }
        core.register(&lease)?;
        attempt.unsure = false;
        if lease.loss().is_some() && lease.parts.len() > 1 {
            // Half a multi-lock protects nothing: the other half is given back.
            handle.leave(Job::Release { lease: Arc::clone(&lease), once: true });
        }
        Ok(Lock::new(Arc::clone(handle), lease))
    }
}

/// A waiter cannot know when its lease began: it renews once before the lock is handed out. False where it was lost meanwhile.
async fn renew_first(core: &Core, lease: &Arc<Lease>) -> Result<bool, Error> {
    let deadline = Instant::now() + core.settings.operation_timeout.min(lease.ttl);
    for attempt in 0.. {
        let within = core.settings.attempt_timeout.min(lease.ttl);
        if let Ok(link) = core.links.shared().await {
            if renew_one(core, &link, lease, within).await {
                return Ok(true);
            }
        }
        if lease.is_over() {
            return Ok(false);
        }
        if Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(backoff(attempt, BACKOFF_BASE, BACKOFF_MAX)).await;
    }
    Err(Error::Indeterminate { reason: "granted, but it could not be renewed in time".into() })
}

fn outcome_word(outcome: &Result<Lock, Error>) -> &'static str {
    match outcome {
        Ok(_) => "acquired",
        Err(Error::Busy(_)) => "busy",
        Err(Error::Unavailable { .. } | Error::Indeterminate { .. }) => "unavailable",
        Err(Error::Deadlock { .. }) => "deadlock",
        Err(_) => "refused",
    }
}

struct Granted {
    fences: Vec<i64>,
    ttl: Duration,
    sent: Time,
    session: Option<Arc<Session>>,
    has_waited: bool,
}

/// One acquisition, over all its retries.
struct Attempt<'a> {
    handle: &'a Arc<Handle>,
    number: u64,
    terms: &'a Terms,
    owner: String,
    /// Something was sent whose outcome is not known: whoever drops this leaves a clean-up behind.
    unsure: bool,
    wait_until: Time,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let clean_up = |terms, owner| self.handle.leave(Job::CleanUp { terms: Box::new(terms), owner });
        self.handle.core.end_acquisition(self.number, self.unsure.then_some(clean_up));
    }
}

impl Attempt<'_> {
    async fn run(&mut self, mut may_bind: bool) -> Result<Granted, Error> {
        let core = &self.handle.core;
        let gives_up = Instant::now() + self.terms.wait + core.settings.operation_timeout;
        let (mut attempts, mut sessions, mut is_queueing) = (0, 0, false);
        // An outcome that is not known may be followed by an answer that clears it up; only the last word counts.
        let mut was_unsure = false;
        loop {
            let session = self.session(may_bind).await;
            let named = session.as_ref().ok().cloned().flatten();
            let outcome = match session {
                Ok(session) => self.try_once(session, is_queueing).await,
                Err(failure) => Err(failure),
            };
            let failure = match outcome {
                Ok(Outcome::Granted(granted)) => return Ok(granted),
                Ok(Outcome::Taken) => {
                    // The owner holds nothing, whatever became of earlier attempts.
                    (self.unsure, was_unsure) = (false, false);
                    if is_queueing || self.wait_left().is_zero() {
                        return Err(Error::Busy(Busy::default()));
                    }
                    is_queueing = true;
                    continue;
                }
                Ok(Outcome::Unreadable(error)) => return Err(error),
                Err(failure) => failure,
            };
            was_unsure |= !failure.is_without_effect();
            self.unsure = was_unsure;
            if failure.is("NOSESSION") && sessions < SESSIONS_MAX {
                sessions += 1;
                // The one that was named: another acquisition may have opened the next one meanwhile.
                if let Some(session) = &named {
                    core.session_ended(session);
                }
                continue;
            }
            if failure.is("DEADLOCK") && may_bind && self.shares_with_itself() {
                may_bind = false;
                continue;
            }
            if !failure.is_retryable() {
                return Err(self.refused(failure));
            }
            let pause = backoff(attempts, BACKOFF_BASE, BACKOFF_MAX);
            // What may have happened is not `Unavailable`.
            let honest = |error| match error {
                Error::Unavailable { reason, .. } if was_unsure => Error::Indeterminate { reason },
                error => error,
            };
            if Instant::now() + pause >= gives_up {
                return Err(honest(failure.into_error()));
            }
            if attempts > 0 {
                tokio::time::sleep(pause).await;
            }
            attempts += 1;
            core.admit().map_err(honest)?;
        }
    }

    /// Whether this client has a part of what is asked for. The server sees one session and cannot know that another task will give that
    /// part back: without the session it waits its turn.
    fn shares_with_itself(&self) -> bool {
        let asks_for = |name: &Vec<u8>| self.terms.names.contains(name);
        self.terms.kind != Kind::Exclusive
            && self
                .handle
                .core
                .leases()
                .values()
                .any(|lease| lease.parts.iter().any(|part| asks_for(&part.name)))
    }

    /// The session to bind to: none where the server has no sessions, or where it would move the lock to another tier.
    async fn session(&self, may_bind: bool) -> Result<Option<Arc<Session>>, Failure> {
        let core = &self.handle.core;
        if !may_bind || !core.settings.session || self.terms.tier == Some(Tier::Efficiency) {
            return Ok(None);
        }
        // Connects first, where that must be done anyway: only then is it known what the server can do.
        core.links.shared().await.inspect_err(|_| core.note::<()>(None, &Err(unreached())))?;
        let abilities = core.links.abilities();
        let is_routed = abilities
            .routes
            .as_ref()
            .is_some_and(|routes| self.terms.names.iter().all(|name| routes.is_correctness(name)));
        if abilities.is_tier_1 || !(is_routed || self.terms.tier == Some(Tier::Correctness)) {
            return Ok(None);
        }
        core.sessions.get(self.handle).await.map(Some)
    }

    fn wait_left(&self) -> Duration {
        self.wait_until.saturating_sub(self.handle.core.clock.now())
    }

    async fn try_once(
        &mut self,
        session: Option<Arc<Session>>,
        is_queueing: bool,
    ) -> Result<Outcome, Failure> {
        let core = Arc::clone(&self.handle.core);
        let dialect = core.links.dialect();
        if dialect == Dialect::Functions
            && (self.terms.needs_version_2() || self.terms.tier == Some(Tier::Correctness))
        {
            let text = "the Lua library serves exclusive locks of the efficiency tier".to_owned();
            return Err(Failure::Server { code: "TIER".into(), text });
        }
        if is_queueing {
            return match dialect {
                Dialect::Commands => self.queue(&core, session).await,
                Dialect::Functions => self.poll(&core).await,
            };
        }
        let id = session.as_ref().map(|session| session.id.as_str());
        let cmd = dialect.acquire(self.terms, &self.owner, Duration::ZERO, id);
        let link = core.links.shared().await.inspect_err(|_| core.note::<()>(None, &Err(unreached())))?;
        let sent = core.clock.now();
        self.unsure = true;
        let outcome = link.request(&cmd, core.settings.attempt_timeout).await;
        core.note(Some(&link), &outcome);
        Ok(read(&outcome?, sent, session, false))
    }

    /// Blocks on a connection of its own, in the server's queue.
    async fn queue(&mut self, core: &Core, session: Option<Arc<Session>>) -> Result<Outcome, Failure> {
        let Ok(_permit) = core.links.waits.acquire().await else { return Err(unreached()) };
        let link = core.links.for_wait().await.inspect_err(|_| core.note::<()>(None, &Err(unreached())))?;
        let wait = self.wait_left().max(Duration::from_millis(1));
        let id = session.as_ref().map(|session| session.id.as_str());
        let cmd = Dialect::Commands.acquire(self.terms, &self.owner, wait, id);
        let sent = core.clock.now();
        self.unsure = true;
        let outcome = tokio::select! {
            outcome = link.request(&cmd, wait + ANSWER_MARGIN) => outcome,
            () = core.links.silenced(&link) => {
                let reason = "the node of this wait does not answer any more".into();
                Err(Failure::Connection { reason, sent: true })
            }
        };
        core.note(Some(&link), &outcome);
        if outcome.is_ok() {
            core.links.give_back(link);
        }
        Ok(read(&outcome?, sent, session, true))
    }

    /// The Lua library cannot block: ask, listen, ask again.
    async fn poll(&mut self, core: &Core) -> Result<Outcome, Failure> {
        let Ok(_permit) = core.links.waits.acquire().await else { return Err(unreached()) };
        let link = core.links.for_wait().await?;
        let within = core.settings.attempt_timeout;
        loop {
            let left = self.wait_left();
            let sent = core.clock.now();
            self.unsure = true;
            if left.is_zero() {
                let value = link.request(&Dialect::cancel(self.terms, &self.owner), within).await?;
                core.links.give_back(link);
                return Ok(read(&value, sent, None, true));
            }
            let cmd = Dialect::Functions.acquire(self.terms, &self.owner, left, None);
            let value = link.request(&cmd, within).await?;
            let (key, poll) = match answer(&value) {
                Ok(Answer::Queued(key, poll)) => (key, poll.min(left).max(Duration::from_millis(10))),
                Ok(Answer::Granted(..) | Answer::Taken) | Err(_) => {
                    core.links.give_back(link);
                    return Ok(read(&value, sent, None, true));
                }
            };
            let mut listen = redis::cmd("BLPOP");
            listen.arg(key).arg(poll.as_secs_f64());
            // Whatever it says, asking again answers the grant.
            link.request(&listen, poll + within).await?;
        }
    }

    /// An error that no retry mends.
    fn refused(&mut self, failure: Failure) -> Error {
        // An error reply says that this attempt had no effect; earlier ones may have had.
        let is_unknown = matches!(&failure, Failure::Server { code, text }
            if code == "ERR" && (text.contains("unknown option") || text.contains("needs cluster version")));
        if self.terms.needs_version_2() && is_unknown {
            if self.handle.core.links.abilities().is_tier_1 {
                return Error::TierRefused { reason: "the module serves exclusive locks".into() };
            }
            return Error::Unsupported {
                feature: "shared locks, permits and values",
                needs: "cluster version 2",
            };
        }
        failure.into_error()
    }
}

fn unreached() -> Failure {
    Failure::Connection { reason: "no address could be reached".into(), sent: false }
}

enum Outcome {
    Granted(Granted),
    Taken,
    Unreadable(Error),
}

fn read(value: &redis::Value, sent: Time, session: Option<Arc<Session>>, has_waited: bool) -> Outcome {
    match answer(value) {
        Ok(Answer::Granted(fences, ttl)) => {
            Outcome::Granted(Granted { fences, ttl, sent, session, has_waited })
        }
        Ok(Answer::Taken | Answer::Queued(..)) => Outcome::Taken,
        Err(error) => Outcome::Unreadable(error),
    }
}
