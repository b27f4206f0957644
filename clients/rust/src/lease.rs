//! A held lock as this process knows it: until when, and whether it is lost.

use crate::clock::Time;
use crate::core::{BACKOFF_BASE, BACKOFF_MAX};
use crate::error::{Cause, Loss};
use crate::links::{backoff, random_fraction};
use crate::protocol::{Kind, Tier};
use crate::session::{Session, GRACE};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How sure a holder may be of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Renewed in time.
    Held,
    /// Two thirds of the ttl have passed without a good renewal, the connection of the session is lost and no keep-alive was answered on
    /// another one yet, or the server says that it cannot reach the leader: finish, or stop.
    Suspect,
    /// Gone.
    Lost,
    /// Given back, or handed to another process.
    Released,
}

/// One resource of a lock.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: Vec<u8>,
    fence: AtomicI64,
}

impl Part {
    pub(crate) fn new(name: Vec<u8>, fence: i64) -> Part {
        Part { name, fence: AtomicI64::new(fence) }
    }

    pub(crate) fn fence(&self) -> i64 {
        self.fence.load(Ordering::Acquire)
    }

    pub(crate) fn set_fence(&self, fence: i64) {
        self.fence.store(fence, Ordering::Release);
    }
}

#[derive(Debug)]
struct Times {
    /// When the last good renewal was sent.
    renewed: Time,
    /// When the lease ends if nothing more is heard.
    deadline: Time,
    next_renewal: Time,
    /// A renewal is under way.
    in_flight: bool,
    /// Renewals that failed since the last good one.
    failures: u32,
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) number: u64,
    pub(crate) parts: Vec<Part>,
    pub(crate) owner: String,
    pub(crate) ttl: Duration,
    pub(crate) tier: Option<Tier>,
    pub(crate) kind: Mutex<Kind>,
    pub(crate) session: Option<Arc<Session>>,
    /// When it was granted.
    pub(crate) since: Time,
    pub(crate) hold_until: Option<Time>,
    times: Mutex<Times>,
    is_suspected: AtomicBool,
    /// Conversions that were sent and whose outcome is not known: the server may have replaced the fence.
    conversions: AtomicU32,
    is_released: AtomicBool,
    loss: OnceLock<Loss>,
    ended: CancellationToken,
    /// Cancelled when it is lost or released.
    over: CancellationToken,
}

/// What a lease is made of.
pub(crate) struct NewLease {
    pub(crate) number: u64,
    pub(crate) parts: Vec<Part>,
    pub(crate) owner: String,
    pub(crate) ttl: Duration,
    /// What the server granted, counted from `sent`.
    pub(crate) granted: Duration,
    pub(crate) sent: Time,
    pub(crate) tier: Option<Tier>,
    pub(crate) kind: Kind,
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) max_hold: Option<Duration>,
}

impl Lease {
    pub(crate) fn new(new: NewLease) -> Lease {
        let times = Times {
            renewed: new.sent,
            deadline: new.sent + new.granted.min(new.ttl),
            next_renewal: new.sent + third(new.ttl),
            in_flight: false,
            failures: 0,
        };
        let ended = CancellationToken::new();
        Lease {
            number: new.number,
            parts: new.parts,
            owner: new.owner,
            ttl: new.ttl,
            tier: new.tier,
            kind: Mutex::new(new.kind),
            session: new.session,
            since: new.sent,
            hold_until: new.max_hold.and_then(|max_hold| new.sent.checked_add(max_hold)),
            times: Mutex::new(times),
            is_suspected: AtomicBool::new(false),
            conversions: AtomicU32::new(0),
            is_released: AtomicBool::new(false),
            loss: OnceLock::new(),
            over: ended.child_token(),
            ended,
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn kind(&self) -> Kind {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_kind(&self, kind: Kind) {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner) = kind;
    }

    pub(crate) fn fences(&self) -> Vec<i64> {
        self.parts.iter().map(Part::fence).collect()
    }

    /// A conversion is about to be sent.
    pub(crate) fn begin_conversion(&self) {
        self.conversions.fetch_add(1, Ordering::AcqRel);
    }

    /// Its outcome is known. One that is never told leaves the fence in doubt for good.
    pub(crate) fn end_conversion(&self) {
        self.conversions.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether the server may have replaced the fence without this process knowing: only its owner tells then whether it is held.
    pub(crate) fn may_be_converted(&self) -> bool {
        self.conversions.load(Ordering::Acquire) > 0
    }

    /// When it is over by this process's clock: the lease's own end, its session's, or the longest hold.
    pub(crate) fn deadline(&self) -> Time {
        let own = self.times().deadline;
        let session = self.session.as_ref().map_or(own, |session| session.deadline());
        own.min(session).min(self.hold_until.unwrap_or(own))
    }

    /// Whether its session is without its connection: the server may end it long before its ttl is over.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.orphaned_at().is_some())
    }

    /// When the last good renewal was sent.
    pub(crate) fn renewed_at(&self) -> Time {
        self.times().renewed
    }

    /// The next renewal is due now.
    pub(crate) fn renew_now(&self, now: Time) {
        let mut times = self.times();
        times.next_renewal = times.next_renewal.min(now);
    }

    /// When the next renewal is due; `None` while one is under way.
    pub(crate) fn next_renewal(&self) -> Option<Time> {
        let times = self.times();
        (!times.in_flight).then_some(times.next_renewal)
    }

    /// How long before its time it may go along with others. One that failed keeps its pause: it would be repeated at once.
    pub(crate) fn may_be_early(&self) -> Duration {
        if self.times().failures == 0 {
            self.ttl / 20
        } else {
            Duration::ZERO
        }
    }

    pub(crate) fn begin_renewal(&self) {
        self.times().in_flight = true;
    }

    /// A renewal sent then was granted this much.
    pub(crate) fn renewed(&self, sent: Time, granted: Duration) {
        let mut times = self.times();
        times.in_flight = false;
        times.failures = 0;
        // Answers may overtake each other: the renewal that was sent last counts.
        if sent >= times.renewed {
            times.renewed = sent;
            times.deadline = sent + granted.min(self.ttl);
            times.next_renewal = sent + third(self.ttl);
            self.is_suspected.store(false, Ordering::Release);
        }
    }

    /// A renewal failed: it is repeated soon, not a third of the ttl later.
    pub(crate) fn renewal_failed(&self, now: Time) {
        let mut times = self.times();
        times.in_flight = false;
        let pause = backoff(times.failures, BACKOFF_BASE, BACKOFF_MAX.min(self.ttl / 8));
        times.failures += 1;
        times.next_renewal = now + pause;
    }

    pub(crate) fn suspect(&self) {
        self.is_suspected.store(true, Ordering::Release);
    }

    /// Marks it lost. True for who was first, and only where it was not released before.
    pub(crate) fn lose(&self, loss: Loss) -> bool {
        if self.is_released.load(Ordering::Acquire) || self.loss.set(loss).is_err() {
            return false;
        }
        self.ended.cancel();
        true
    }

    /// Marks it released: no loss is told from now on. False where it was over already.
    pub(crate) fn release(&self) -> bool {
        let is_first = self.loss.get().is_none() && !self.is_released.swap(true, Ordering::AcqRel);
        if is_first {
            self.over.cancel();
        }
        is_first
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_released.load(Ordering::Acquire) || self.loss.get().is_some()
    }

    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.loss.get()
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub(crate) fn over(&self) -> &CancellationToken {
        &self.over
    }

    /// Looks at the clock. A process that was stopped finds out here, before anybody told it.
    pub(crate) fn state(&self, now: Time) -> State {
        if self.is_released() {
            return State::Released;
        }
        if self.loss.get().is_some() {
            return State::Lost;
        }
        if now >= self.deadline() {
            self.lose(Loss::new(self.cause_of_deadline(now)));
            return State::Lost;
        }
        let quiet_since = self.times().renewed;
        let is_quiet = now.saturating_sub(quiet_since) * 3 >= self.ttl * 2;
        let is_session_quiet = self.session.as_ref().is_some_and(|session| session.is_quiet(now));
        if is_quiet || is_session_quiet || self.is_orphaned() || self.is_suspected.load(Ordering::Acquire) {
            State::Suspect
        } else {
            State::Held
        }
    }

    pub(crate) fn cause_of_deadline(&self, now: Time) -> Cause {
        if self.hold_until.is_some_and(|until| now >= until) && now < self.times().deadline {
            Cause::MaxHold
        } else {
            Cause::Deadline
        }
    }

    /// For how long it is surely held.
    pub(crate) fn remaining(&self, now: Time) -> Duration {
        let orphaned_at = self.session.as_ref().and_then(|session| session.orphaned_at());
        let left = self.until_deadline(now);
        orphaned_at.map_or(left, |at| left.min((at + GRACE).saturating_sub(now)))
    }

    /// For how long an answer may still say that it is held.
    pub(crate) fn until_deadline(&self, now: Time) -> Duration {
        if self.is_over() {
            return Duration::ZERO;
        }
        self.deadline().saturating_sub(now)
    }
}

/// A third of the ttl, a tenth more or less: clients that began together do not renew together for ever.
fn third(ttl: Duration) -> Duration {
    (ttl / 3).mul_f64(0.9 + 0.2 * random_fraction())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::links::Health;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn lease(max_hold: Option<Duration>) -> Lease {
        lease_of(max_hold, None)
    }

    fn lease_of(max_hold: Option<Duration>, session: Option<Arc<Session>>) -> Lease {
        Lease::new(NewLease {
            number: 1,
            parts: vec![Part::new(b"a".to_vec(), 7)],
            owner: "o".into(),
            ttl: seconds(30),
            granted: seconds(30),
            sent: seconds(100),
            tier: None,
            kind: Kind::Exclusive,
            session,
            max_hold,
        })
    }

    #[test]
    fn a_session_without_its_connection_is_sure_for_the_grace_until_it_is_kept_on_another() {
        let (notices, _heard) = tokio::sync::mpsc::unbounded_channel();
        let [old, new] = [1, 2].map(|link| Arc::new(Health::new(link, Clock::default(), notices.clone())));
        let session = Arc::new(Session::new("s".into(), seconds(30), seconds(100), Arc::clone(&old)));
        let lease = lease_of(None, Some(Arc::clone(&session)));
        assert_eq!(lease.state(seconds(101)), State::Held);
        old.break_since(seconds(101));
        assert_eq!(lease.state(seconds(101)), State::Suspect);
        assert_eq!(lease.remaining(seconds(101)), GRACE);
        assert_eq!(lease.remaining(seconds(102)), Duration::ZERO);
        assert_eq!(lease.state(seconds(102)), State::Suspect);
        assert_eq!(lease.until_deadline(seconds(102)), seconds(28));
        session.kept(seconds(100), &old);
        assert_eq!(lease.state(seconds(102)), State::Suspect, "sent before the connection was lost");
        session.kept(seconds(102), &new);
        assert_eq!(lease.state(seconds(102)), State::Held);
        assert_eq!(lease.remaining(seconds(102)), seconds(28));
    }

    #[test]
    fn states_follow_the_time_since_the_last_good_renewal_was_sent() {
        let lease = lease(None);
        assert_eq!(lease.state(seconds(119)), State::Held);
        assert_eq!(lease.state(seconds(120)), State::Suspect);
        lease.renewed(seconds(110), seconds(30));
        assert_eq!(lease.state(seconds(120)), State::Held);
        assert_eq!(lease.remaining(seconds(120)), seconds(20));
        assert_eq!(lease.state(seconds(140)), State::Lost);
        assert_eq!(lease.loss().map(|loss| loss.cause), Some(Cause::Deadline));
        assert!(lease.ended().is_cancelled());
    }

    #[test]
    fn an_answer_that_was_overtaken_does_not_shorten_the_lease() {
        let lease = lease(None);
        lease.renewed(seconds(110), seconds(30));
        lease.renewed(seconds(105), seconds(30));
        assert_eq!(lease.deadline(), seconds(140));
    }

    #[test]
    fn a_late_answer_does_not_bring_a_lost_lock_back() {
        let lease = lease(None);
        assert_eq!(lease.state(seconds(131)), State::Lost);
        lease.renewed(seconds(129), seconds(30));
        assert_eq!(lease.state(seconds(132)), State::Lost);
        assert_eq!(lease.remaining(seconds(132)), Duration::ZERO);
    }

    #[test]
    fn the_longest_hold_ends_it_however_well_it_is_renewed() {
        let lease = lease(Some(seconds(40)));
        lease.renewed(seconds(139), seconds(30));
        assert_eq!(lease.state(seconds(140)), State::Lost);
        assert_eq!(lease.loss().map(|loss| loss.cause), Some(Cause::MaxHold));
    }

    #[test]
    fn a_renewal_that_failed_is_repeated_after_a_pause_of_a_second_at_most() {
        let lease = lease(None);
        for _ in 0..20 {
            lease.renewal_failed(seconds(101));
            let next = lease.next_renewal().unwrap();
            assert!(next > seconds(101) + lease.may_be_early() && next <= seconds(102), "{next:?}");
        }
        lease.renewed(seconds(102), seconds(30));
        assert!(!lease.may_be_early().is_zero());
    }

    #[test]
    fn a_released_lock_is_not_lost_afterwards() {
        let lease = lease(None);
        assert!(lease.release());
        assert!(!lease.lose(Loss::new(Cause::Forced)));
        assert_eq!(lease.state(seconds(200)), State::Released);
    }
}
