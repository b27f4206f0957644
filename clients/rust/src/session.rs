//! The client's one session: opened with the first lock that is bound to it, kept alive by the renewer.

use crate::client::Handle;
use crate::clock::Time;
use crate::core::Core;
use crate::error::Failure;
use crate::links::Health;
use crate::protocol::{bytes, integer, millis, whole_ms};
use crate::renewer::Job;
use redis::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// The server ends a session soon after the connection that opened it is gone, and may notice that late. So after every
/// new connection keep-alives come thick for a while: this often at first, then less, then as ever.
const EAGER: [(Duration, Duration); 2] = [
    (Duration::from_secs(1), Duration::from_millis(100)),
    (Duration::from_secs(10), Duration::from_millis(250)),
];

/// How long the server lets a session live whose connection is lost, unless it is kept alive on another one (its setting
/// `session-grace-ms`).
pub(crate) const GRACE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    ttl: Duration,
    times: Mutex<Times>,
    is_over: AtomicBool,
}

#[derive(Debug)]
struct Times {
    kept: Time,
    next: Time,
    in_flight: bool,
    /// When the client last had to connect again.
    reconnected: Option<Time>,
    /// The connection it was opened on, or kept alive on after that one was lost.
    carrier: Arc<Health>,
}

impl Session {
    pub(crate) fn new(id: String, ttl: Duration, sent: Time, carrier: Arc<Health>) -> Session {
        let times = Times { kept: sent, next: sent + ttl / 3, in_flight: false, reconnected: None, carrier };
        Session { id, ttl, times: Mutex::new(times), is_over: AtomicBool::new(false) }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn deadline(&self) -> Time {
        self.times().kept + self.ttl
    }

    /// Since when it is without its connection: the server ends it [`GRACE`] after that, unless a keep-alive comes.
    pub(crate) fn orphaned_at(&self) -> Option<Time> {
        self.times().carrier.broken_at()
    }

    /// When the client last had to connect again.
    pub(crate) fn reconnected_at(&self) -> Option<Time> {
        self.times().reconnected
    }

    pub(crate) fn is_quiet(&self, now: Time) -> bool {
        now.saturating_sub(self.times().kept) * 3 >= self.ttl * 2
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// When the next keep-alive is due; `None` while one is under way.
    pub(crate) fn next(&self) -> Option<Time> {
        let times = self.times();
        (!times.in_flight).then_some(times.next)
    }

    pub(crate) fn begin(&self) {
        self.times().in_flight = true;
    }

    /// A keep-alive sent then on this connection was answered.
    pub(crate) fn kept(&self, sent: Time, carrier: &Arc<Health>) {
        let mut times = self.times();
        times.in_flight = false;
        if carrier.broken_at().is_none() {
            times.carrier = Arc::clone(carrier);
        }
        times.kept = times.kept.max(sent);
        let since = times.reconnected.map(|at| sent.saturating_sub(at));
        let eager = since.and_then(|since| EAGER.iter().find(|(until, _)| since < *until));
        times.next = sent + eager.map_or(self.ttl / 3, |(_, every)| (*every).min(self.ttl / 3));
    }

    fn failed(&self, now: Time) {
        let mut times = self.times();
        times.in_flight = false;
        times.next = now + Duration::from_millis(50).min(self.ttl / 8);
    }

    pub(crate) fn reconnected(&self, now: Time) {
        let mut times = self.times();
        times.reconnected = Some(now);
        times.next = now;
    }
}

/// Opens the session where there is none. One caller opens, the others wait for it.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    current: Mutex<Option<Arc<Session>>>,
    opening: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub(crate) fn current(&self) -> Option<Arc<Session>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|session| !session.is_over()).cloned()
    }

    /// The session. The background task opens it: an acquisition that is dropped meanwhile would leave one behind that nobody knows, and that
    /// every command on the connection keeps alive.
    pub(crate) async fn get(&self, handle: &Handle) -> Result<Arc<Session>, Failure> {
        let core = &handle.core;
        if let Some(session) = self.current() {
            if session.deadline() > core.clock.now() {
                return Ok(session);
            }
            // Over by this process's clock, after a pause perhaps: what it would be bound to now would count as lost.
            keep_alive(core, &session).await;
            if session.is_over() || session.deadline() > core.clock.now() {
                return self.current().ok_or_else(|| unanswered("the session ended"));
            }
            return Err(unanswered("the session could not be kept alive"));
        }
        let (sender, opened) = oneshot::channel();
        handle.leave(Job::Open(sender));
        opened.await.unwrap_or(Err(Failure::Closed))
    }

    pub(crate) async fn open(&self, core: &Core) -> Result<Arc<Session>, Failure> {
        let _only_one = self.opening.lock().await;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let settings = &core.settings;
        let link = core.links.shared().await?;
        let sent = core.clock.now();
        let mut cmd = redis::cmd("LOCK.SESSION");
        cmd.arg("OPEN").arg(whole_ms(settings.session_ttl));
        if let Some(label) = &settings.session_label {
            cmd.arg("NAME").arg(label);
        }
        let outcome = link.request(&cmd, settings.attempt_timeout).await;
        core.note(Some(&link), &outcome);
        let value = outcome?;
        let id = bytes(&value).and_then(|id| String::from_utf8(id.to_vec()).ok());
        let id = id.ok_or_else(|| Failure::Server {
            code: "ERR".into(),
            text: "LOCK.SESSION OPEN was answered with no id".into(),
        })?;
        let session = Arc::new(Session::new(id, settings.session_ttl, sent, Arc::clone(&link.health)));
        if link.has_pushes {
            // Where it fails, renewals and the clock still tell of every loss.
            let _ = link.request(&notify(&session.id), settings.attempt_timeout).await;
        }
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&session));
        core.wake();
        Ok(session)
    }
}

fn unanswered(reason: &str) -> Failure {
    Failure::Connection { reason: reason.into(), sent: false }
}

fn notify(id: &str) -> redis::Cmd {
    let mut cmd = redis::cmd("LOCK.NOTIFY");
    cmd.arg("ON").arg("SESSION").arg(id);
    cmd
}

/// One keep-alive. Where the session is gone, so are its locks.
pub(crate) async fn keep_alive(core: &Core, session: &Arc<Session>) {
    let within = core.settings.attempt_timeout.min(session.ttl / 3);
    let Ok(link) = core.links.shared().await else {
        session.failed(core.clock.now());
        return;
    };
    let sent = core.clock.now();
    let mut cmd = redis::cmd("LOCK.SESSION");
    cmd.arg("KEEPALIVE").arg(&session.id);
    let outcome = link.request(&cmd, within).await;
    // A node without quorum cannot keep it alive; another one may.
    core.note(Some(&link), &outcome);
    match outcome {
        Ok(value) if integer(&value).is_some() => session.kept(sent, &link.health),
        Err(failure) if failure.is("NOSESSION") => core.session_ended(session),
        Ok(_) | Err(_) => session.failed(core.clock.now()),
    }
}

/// After a new connection: the session is kept, and what it no longer holds is lost.
pub(crate) async fn reconnect(core: &Core, session: &Arc<Session>) {
    session.reconnected(core.clock.now());
    session.begin();
    keep_alive(core, session).await;
    let Ok(link) = core.links.shared().await else { return };
    if !link.has_pushes || session.is_over() {
        return;
    }
    // Locks granted from now on may be missing from the list.
    let before: Vec<_> =
        core.bound_to(session).into_iter().map(|lease| (Arc::clone(&lease), lease.fences())).collect();
    if let Ok(Value::Array(held)) = link.request(&notify(&session.id), core.settings.attempt_timeout).await {
        let is_held = |name: &[u8], fence: i64| {
            held.iter().any(|pair| match pair {
                Value::Array(pair) => {
                    pair.first().and_then(bytes) == Some(name) && pair.get(1).and_then(integer) == Some(fence)
                }
                _ => false,
            })
        };
        for lease in core.lose_all_but(&before, is_held) {
            if lease.parts.len() > 1 {
                // Half a multi-lock protects nothing: the other half is given back.
                let _ = crate::renewer::release_parts(core, &lease, true).await;
            }
        }
    }
}

/// Gives the session back, with whatever it still holds.
pub(crate) async fn close(core: &Core) {
    let Some(session) = core.sessions.current() else { return };
    session.end();
    if let Ok(link) = core.links.shared().await {
        let mut cmd = redis::cmd("LOCK.SESSION");
        cmd.arg("CLOSE").arg(&session.id);
        let _ = link.request(&cmd, core.settings.attempt_timeout.min(millis(1000))).await;
    }
}
