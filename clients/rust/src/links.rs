//! Connections: one shared by everything that is answered at once, and a few for waits, each blocked in one command at a time.
//!
//! Any address serves. When one dies the next is taken, with a pause that grows and jitters once all of them have failed.

use crate::breaker::Breaker;
use crate::clock::{Clock, Time};
use crate::error::{Error, Failure};
use crate::options::Settings;
use crate::protocol::{bytes, integer, Dialect, LockInfo, Tier};
use crate::routes::Routes;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{socket2::TcpKeepalive, TcpSettings};
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// A name that nobody locks: asked about to learn what the server is.
const PROBE: &[u8] = b"redfence:probe";
/// Commands that may stand in line for a connection before the next one waits.
const PIPELINE_BUFFER: usize = 1024;
/// However little time is left for a lease, a node may take this long to greet.
const PATIENCE_MIN: Duration = Duration::from_millis(100);

/// What a server said without being asked.
#[derive(Debug)]
pub(crate) enum Notice {
    Lost {
        name: Vec<u8>,
        fence: i64,
        cause: Vec<u8>,
        successor: Option<i64>,
    },
    Suspect {
        name: Vec<u8>,
        fence: i64,
    },
    /// A connection ended, or is given up.
    Disconnected {
        link: u64,
    },
    /// The shared connection was made anew.
    Reconnected,
}

/// What the servers can do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Abilities {
    pub(crate) dialect: Dialect,
    /// A Redis with the module or the Lua library alone.
    pub(crate) is_tier_1: bool,
    /// Where the default tier is correctness and the routes could be read: which names a session may be attached to unasked.
    pub(crate) routes: Option<Routes>,
}

/// Whether a connection is lost, and since when. The session that lives by the connection looks at it too.
#[derive(Debug)]
pub(crate) struct Health {
    link: u64,
    clock: Clock,
    broken_at: OnceLock<Time>,
    /// It was not closed: nobody answered.
    is_silent: AtomicBool,
    notices: UnboundedSender<Notice>,
}

impl Health {
    pub(crate) fn new(link: u64, clock: Clock, notices: UnboundedSender<Notice>) -> Health {
        Health { link, clock, broken_at: OnceLock::new(), is_silent: AtomicBool::new(false), notices }
    }

    /// When the connection was lost, if it is.
    pub(crate) fn broken_at(&self) -> Option<Time> {
        self.broken_at.get().copied()
    }

    /// It is lost since then: no request goes out on it any more. The first to say so counts.
    pub(crate) fn break_since(&self, at: Time) {
        if self.broken_at.set(at).is_ok() {
            // Nobody listens where the client is closed.
            let _ = self.notices.send(Notice::Disconnected { link: self.link });
        }
    }
}

pub(crate) struct Link {
    connection: MultiplexedConnection,
    /// The server tells of lost locks on this connection.
    pub(crate) has_pushes: bool,
    address: usize,
    pub(crate) health: Arc<Health>,
}

impl Link {
    /// Sends one command and waits for its answer.
    pub(crate) async fn request(&self, cmd: &Cmd, within: Duration) -> Result<Value, Failure> {
        let sent = self.health.clock.now();
        let mut connection = self.connection.clone();
        let outcome = tokio::time::timeout(within, connection.send_packed_command(cmd)).await;
        let failure = match outcome {
            Ok(Ok(Value::ServerError(error))) => Failure::from_redis(&error.into(), true),
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => Failure::from_redis(&error, true),
            Err(_) => {
                // Nothing is known of the connection since this was sent.
                self.health.is_silent.store(true, Ordering::Release);
                self.health.break_since(sent);
                Failure::Connection { reason: format!("no answer within {within:?}"), sent: true }
            }
        };
        if matches!(failure, Failure::Connection { .. }) {
            self.health.break_since(self.health.clock.now());
        }
        Err(failure)
    }

    fn is_usable(&self) -> bool {
        self.health.broken_at().is_none()
    }
}

/// Dropped while a node is still waited for: the next attempt begins at another one.
struct Waiting<'a> {
    current: &'a AtomicUsize,
    next: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.current.store(self.next, Ordering::Release);
    }
}

pub(crate) struct Links {
    servers: Vec<redis::Client>,
    settings: Settings,
    notices: UnboundedSender<Notice>,
    current: AtomicUsize,
    shared: RwLock<Option<Arc<Link>>>,
    connecting: tokio::sync::Mutex<()>,
    idle: Mutex<Vec<Link>>,
    numbers: AtomicU64,
    /// When the first lease ends, in microseconds.
    ends_at_us: AtomicU64,
    /// For each address: tells who waits there that the node does not answer any more.
    silenced: Vec<tokio::sync::Notify>,
    abilities: OnceLock<Abilities>,
    is_closed: AtomicBool,
    /// Waits at a time.
    pub(crate) waits: tokio::sync::Semaphore,
    pub(crate) breaker: Breaker,
}

impl Links {
    pub(crate) fn new(
        servers: Vec<redis::Client>,
        settings: Settings,
        notices: UnboundedSender<Notice>,
    ) -> Links {
        Links {
            silenced: servers.iter().map(|_| tokio::sync::Notify::new()).collect(),
            servers,
            waits: tokio::sync::Semaphore::new(settings.waiting_connections_max),
            settings,
            notices,
            current: AtomicUsize::new(0),
            shared: RwLock::default(),
            connecting: tokio::sync::Mutex::default(),
            idle: Mutex::default(),
            numbers: AtomicU64::new(1),
            ends_at_us: AtomicU64::new(u64::MAX),
            abilities: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            breaker: Breaker::default(),
        }
    }

    /// What the servers can do, as far as one has been asked. Before that: what a proxy could.
    pub(crate) fn abilities(&self) -> &Abilities {
        static UNKNOWN: Abilities = Abilities { dialect: Dialect::Commands, is_tier_1: false, routes: None };
        self.abilities.get().unwrap_or(&UNKNOWN)
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.abilities().dialect
    }

    /// The shared connection, made where there is none.
    pub(crate) async fn shared(&self) -> Result<Arc<Link>, Failure> {
        if let Some(link) = self.usable() {
            return Ok(link);
        }
        let _only_one = self.connecting.lock().await;
        if let Some(link) = self.usable() {
            return Ok(link);
        }
        self.leave_silent();
        // Boxed, as it is rare: every request would carry its size.
        let link = Arc::new(Box::pin(self.dial(true)).await?);
        let old = {
            let mut shared = self.shared.write().unwrap_or_else(PoisonError::into_inner);
            self.admit()?;
            shared.replace(Arc::clone(&link))
        };
        if old.is_some() {
            let _ = self.notices.send(Notice::Reconnected);
        }
        Ok(link)
    }

    fn usable(&self) -> Option<Arc<Link>> {
        let shared = self.shared.read().unwrap_or_else(PoisonError::into_inner);
        shared.as_ref().filter(|link| link.is_usable()).cloned()
    }

    /// The number of the shared connection.
    pub(crate) fn shared_number(&self) -> Option<u64> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|link| link.health.link)
    }

    /// A node that did not answer is not the first to be asked again, and nobody waits there any more.
    fn leave_silent(&self) {
        let shared = self.shared.read().unwrap_or_else(PoisonError::into_inner);
        let silent = shared.as_ref().filter(|link| link.health.is_silent.load(Ordering::Acquire));
        if let Some(address) = silent.map(|link| link.address).filter(|_| self.servers.len() > 1) {
            self.leave_address(address);
            self.lock_idle().retain(|idle| idle.address != address);
            self.silenced[address].notify_waiters();
        }
    }

    /// Resolves when the node of a connection does not answer any more, as the shared connection found.
    pub(crate) async fn silenced(&self, link: &Link) {
        self.silenced[link.address].notified().await;
    }

    fn leave_address(&self, address: usize) {
        let next = (address + 1) % self.servers.len();
        let _ = self.current.compare_exchange(address, next, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Tells when the first lease ends; `None`: there is none.
    pub(crate) fn will_end(&self, at: Option<Time>) {
        let at_us = at.and_then(|at| u64::try_from(at.as_micros()).ok()).unwrap_or(u64::MAX);
        self.ends_at_us.store(at_us, Ordering::Release);
    }

    /// How long one node may take to greet: time must be left for the others, where one hangs.
    fn patience(&self) -> Duration {
        if self.servers.len() < 2 {
            return Duration::MAX;
        }
        let ends_at = Duration::from_micros(self.ends_at_us.load(Ordering::Acquire));
        let shares = u32::try_from(self.servers.len() + 1).unwrap_or(u32::MAX);
        (ends_at.saturating_sub(self.settings.clock.now()) / shares).max(PATIENCE_MIN)
    }

    /// This node cannot serve: the next request goes to another, if there is one.
    pub(crate) fn move_on(&self, link: &Link) {
        if self.servers.len() > 1 {
            self.leave_address(link.address);
            link.health.break_since(link.health.clock.now());
        }
    }

    /// A connection to be blocked on. Dropping it closes it, and the server takes its waiter off the queue.
    pub(crate) async fn for_wait(&self) -> Result<Link, Failure> {
        loop {
            let Some(link) = self.lock_idle().pop() else { break };
            if link.is_usable() {
                return Ok(link);
            }
        }
        Box::pin(self.dial(false)).await
    }

    /// Gives a connection back that is not blocked any more.
    pub(crate) fn give_back(&self, link: Link) {
        let mut idle = self.lock_idle();
        if self.admit().is_ok() && link.is_usable() && idle.len() < self.settings.idle_connections_max {
            idle.push(link);
        }
    }

    /// Closes the connections. None is made any more.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.lock_idle().clear();
        *self.shared.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn admit(&self) -> Result<(), Failure> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Failure::Closed);
        }
        Ok(())
    }

    /// Open connections, for tests of leaks.
    #[cfg(feature = "testing")]
    pub(crate) fn open_count(&self) -> usize {
        self.lock_idle().len() + usize::from(self.usable().is_some())
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries every address once, beginning with the one that served last.
    async fn dial(&self, is_shared: bool) -> Result<Link, Failure> {
        let (first, count) = (self.current.load(Ordering::Acquire), self.servers.len());
        let mut failure = None;
        for address in (0..count).map(|step| (first + step) % count) {
            self.admit()?;
            let waiting = Waiting { current: &self.current, next: (address + 1) % count };
            let outcome = self.connect(address, is_shared).await;
            std::mem::forget(waiting);
            match outcome {
                Ok(link) => {
                    self.current.store(address, Ordering::Release);
                    return Ok(link);
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or(Failure::Connection { reason: "there is no address".into(), sent: false }))
    }

    async fn connect(&self, address: usize, is_shared: bool) -> Result<Link, Failure> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let health = Arc::new(Health::new(number, self.settings.clock.clone(), self.notices.clone()));
        let own = Arc::clone(&health);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.settings.connect_timeout))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    own.break_since(own.clock.now());
                }
                match notice(&push) {
                    Some(notice) => own.notices.send(notice).map_err(drop),
                    None => Ok(()),
                }
            });
        let patience = self.patience();
        let opened = self.servers[address].get_multiplexed_async_connection_with_config(&config);
        let connection = tokio::time::timeout(patience.min(self.settings.connect_timeout * 2), opened)
            .await
            .map_err(|_| Failure::Connection { reason: "no connection in time".into(), sent: false })?
            .map_err(|error| Failure::from_redis(&error, false))?;
        let mut link = Link { connection, has_pushes: false, address, health };
        let within = patience.min(self.settings.attempt_timeout);
        if is_shared {
            self.greet(&mut link, within).await?;
        } else if self.usable().is_some_and(|shared| shared.has_pushes) {
            link.has_pushes = self.ask_for_pushes(&link, within).await.is_ok();
        }
        Ok(link)
    }

    /// A connection that hears what is published on channels that match a pattern.
    pub(crate) async fn subscribe(&self, pattern: &[u8]) -> Result<redis::aio::PubSub, Failure> {
        let (first, count) = (self.current.load(Ordering::Acquire), self.servers.len());
        let mut failure = None;
        for address in (0..count).map(|step| (first + step) % count) {
            self.admit()?;
            let opened = async {
                let mut subscription = self.servers[address].get_async_pubsub().await?;
                subscription.psubscribe(pattern).await?;
                Ok::<_, redis::RedisError>(subscription)
            };
            match tokio::time::timeout(self.settings.connect_timeout * 2, opened).await {
                Ok(Ok(subscription)) => return Ok(subscription),
                Ok(Err(error)) => failure = Some(Failure::from_redis(&error, false)),
                Err(_) => {
                    failure =
                        Some(Failure::Connection { reason: "no connection in time".into(), sent: false });
                }
            }
        }
        Err(failure.unwrap_or(Failure::Connection { reason: "there is no address".into(), sent: false }))
    }

    async fn ask_for_pushes(&self, link: &Link, within: Duration) -> Result<Value, Failure> {
        link.request(redis::cmd("LOCK.NOTIFY").arg("ON"), within).await
    }

    /// Learns what the server is: one round trip, all questions at once.
    async fn greet(&self, link: &mut Link, within: Duration) -> Result<(), Failure> {
        if self.abilities.get().is_some() {
            if self.dialect() == Dialect::Commands {
                link.has_pushes = match self.ask_for_pushes(link, within).await {
                    Ok(_) => true,
                    Err(failure @ (Failure::Connection { .. } | Failure::Closed)) => return Err(failure),
                    Err(Failure::Server { .. }) => false,
                };
            }
            return Ok(());
        }
        let setting = |name: &str| {
            let mut cmd = redis::cmd("LOCK.CLUSTER");
            cmd.arg("GET").arg(name);
            cmd
        };
        let (info, tier, routes) =
            (Dialect::Commands.info(PROBE, None), setting("default-tier"), setting("route"));
        let (info, tier, routes, pushes) = tokio::join!(
            link.request(&info, within),
            link.request(&tier, within),
            link.request(&routes, within),
            self.ask_for_pushes(link, within)
        );
        link.has_pushes = pushes.is_ok();
        let mut abilities = Abilities::default();
        match info {
            Err(failure @ (Failure::Connection { .. } | Failure::Closed)) => return Err(failure),
            // It has no quorum now: asked again with the next connection.
            Err(failure) if failure.is_retryable() => return Ok(()),
            Err(Failure::Server { text, .. }) if text.contains("unknown command") => {
                let info = link.request(&Dialect::Functions.info(PROBE, None), within).await?;
                LockInfo::read(&info)
                    .map_err(|error| Failure::Server { code: "ERR".into(), text: error.to_string() })?;
                abilities = Abilities { dialect: Dialect::Functions, is_tier_1: true, routes: None };
            }
            // Known, and not allowed to this user: a proxy or a module.
            Err(Failure::Server { .. }) => {}
            Ok(info) => {
                let is_efficiency =
                    LockInfo::read(&info).is_ok_and(|info| info.tier == Some(Tier::Efficiency));
                abilities.is_tier_1 = is_efficiency && tier.as_ref().is_err_and(|failure| failure.is("TIER"));
                let is_default = tier.as_ref().ok().and_then(bytes) == Some(b"correctness");
                if is_default && !is_efficiency {
                    abilities.routes = routes.ok().as_ref().and_then(bytes).and_then(Routes::parse);
                }
            }
        }
        let _ = self.abilities.set(abilities);
        Ok(())
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("servers", &self.servers.len()).finish_non_exhaustive()
    }
}

fn notice(push: &PushInfo) -> Option<Notice> {
    let PushKind::Other(kind) = &push.kind else { return None };
    let [name, fence, rest @ ..] = push.data.as_slice() else { return None };
    let (name, fence) = (bytes(name)?.to_vec(), integer(fence)?);
    match kind.as_str() {
        "lock-lost" => {
            let cause = rest.first().and_then(bytes).unwrap_or(b"expired").to_vec();
            Some(Notice::Lost { name, fence, cause, successor: rest.get(1).and_then(integer) })
        }
        "lock-suspect" => Some(Notice::Suspect { name, fence }),
        _ => None,
    }
}

/// The addresses as redis-rs takes them: RESP3, and a dead peer is noticed by the kernel.
pub(crate) fn servers(addresses: &[String]) -> Result<Vec<redis::Client>, Error> {
    let open = |address: &String| {
        let invalid = |error: redis::RedisError| Error::invalid(format!("the address of a server: {error}"));
        let info = redis::IntoConnectionInfo::into_connection_info(address.as_str()).map_err(invalid)?;
        let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        let keepalive =
            TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        redis::Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp)).map_err(invalid)
    };
    if addresses.is_empty() {
        return Err(Error::invalid("a client needs at least one address, such as redis://127.0.0.1:6380"));
    }
    addresses.iter().map(open).collect()
}

/// A pause before another attempt: up to twice as long each time, with full jitter.
pub(crate) fn backoff(attempt: u32, base: Duration, max: Duration) -> Duration {
    let ceiling = base.saturating_mul(1 << attempt.min(16)).min(max);
    ceiling.mul_f64(0.25 + 0.75 * random_fraction())
}

/// 0 to 1. Good enough for jitter, and needs no crate.
pub(crate) fn random_fraction() -> f64 {
    use std::hash::{BuildHasher, Hasher};
    let bits = std::collections::hash_map::RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(bits >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}
