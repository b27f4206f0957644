//! For tests of your own code: a clock that the test moves, and a controller of `redfence testserver`.
//!
//! The server is the real lock machine in one process. Start it inside the test with the crate `redfence-testserver`, or as a process with
//! `redfence testserver`; `clients/TESTSERVER.md` in the repository is its manual.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use redfence_client::testing::Harness;
//! use redfence_client::State;
//! use std::time::Duration;
//!
//! let server = redfence_testserver::TestServer::start().unwrap();
//! let harness = Harness::connect(server.address()).await.unwrap();
//! let client = harness.client().await.unwrap();
//!
//! let lock = client.lock("invoice:7").ttl(Duration::from_secs(30)).acquire().await.unwrap();
//! harness.advance(Duration::from_secs(3600 - 1)).await; // renewals go on
//! assert_eq!(lock.state(), State::Held);
//!
//! harness.stop_renewals(&client); // as if this process were stopped
//! harness.advance(Duration::from_secs(31)).await;
//! assert_eq!(lock.state(), State::Lost);
//! # });
//! ```

use crate::client::Client;
use crate::clock::Time;
use crate::error::{Error, Failure};
use crate::options::ClientBuilder;
use crate::protocol::integer;
use crate::renewer::Job;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// For the commands that move the server's clock: as long as a busy machine may take.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);

/// A clock that stands still until it is moved. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct ManualClock {
    inner: Arc<ManualInner>,
}

#[derive(Debug)]
struct ManualInner {
    now: watch::Sender<Time>,
    /// Who sleeps until when.
    sleepers: Mutex<BTreeSet<(Time, u64)>>,
    numbers: std::sync::atomic::AtomicU64,
}

impl Default for ManualClock {
    fn default() -> ManualClock {
        // Not 0, so that times before the start of a test exist.
        let (now, _) = watch::channel(Duration::from_secs(1_000_000));
        ManualClock { inner: Arc::new(ManualInner { now, sleepers: Mutex::default(), numbers: 0.into() }) }
    }
}

impl ManualClock {
    /// A clock that nobody moves yet.
    #[must_use]
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Moves it ahead in one jump: to play a process that was stopped for this long.
    pub fn jump(&self, by: Duration) {
        self.inner.now.send_modify(|now| *now += by);
    }

    pub(crate) fn now(&self) -> Time {
        *self.inner.now.borrow()
    }

    pub(crate) async fn sleep_until(&self, at: Time) {
        let key = (at, self.inner.numbers.fetch_add(1, Ordering::Relaxed));
        self.sleepers().insert(key);
        let _awake = Awake(self, key);
        let mut now = self.inner.now.subscribe();
        // The clock outlives who sleeps by it.
        let _ = now.wait_for(|now| *now >= at).await;
    }

    /// When the first sleeper wakes up.
    fn next(&self) -> Option<Time> {
        self.sleepers().first().map(|(at, _)| *at)
    }

    fn sleepers(&self) -> MutexGuard<'_, BTreeSet<(Time, u64)>> {
        self.inner.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Awake<'a>(&'a ManualClock, (Time, u64));

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.sleepers().remove(&self.1);
    }
}

/// A test server and the clock of its clients, moved together.
#[derive(Debug)]
pub struct Harness {
    address: SocketAddr,
    clock: ManualClock,
    control: redis::aio::MultiplexedConnection,
    clients: Mutex<Vec<std::sync::Weak<crate::client::Handle>>>,
}

impl Harness {
    /// Connects to a test server.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where none listens.
    pub async fn connect(address: SocketAddr) -> Result<Harness, Error> {
        let failed = |error: redis::RedisError| Failure::from_redis(&error, false).into_error();
        let client = redis::Client::open(format!("redis://{address}")).map_err(failed)?;
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONTROL_TIMEOUT))
            .set_response_timeout(Some(CONTROL_TIMEOUT));
        let control = client.get_multiplexed_async_connection_with_config(&patient).await.map_err(failed)?;
        Ok(Harness { address, clock: ManualClock::new(), control, clients: Mutex::default() })
    }

    /// A client of the server, on the harness's clock.
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::connect`].
    pub async fn client(&self) -> Result<Client, Error> {
        self.client_with(Client::builder()).await
    }

    /// The same with settings. Address and clock are set here.
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::connect`].
    pub async fn client_with(&self, builder: ClientBuilder) -> Result<Client, Error> {
        let address = format!("redis://{}", self.address);
        let client = builder.address(address).clock(self.clock.clone()).connect().await?;
        self.clients().push(Arc::downgrade(&client.handle));
        Ok(client)
    }

    /// Lets time pass for the server and for its clients alike. Whatever is due on the way (renewals, expiries) happens at its time.
    ///
    /// # Panics
    ///
    /// Where the server is gone.
    pub async fn advance(&self, by: Duration) {
        let target = self.clock.now() + by;
        loop {
            self.settle().await;
            let now = self.clock.now();
            if now >= target {
                return;
            }
            let next = self.clock.next().unwrap_or(target).clamp(now + Duration::from_millis(1), target);
            let step = Duration::from_millis(crate::protocol::whole_ms(next.saturating_sub(now)).max(1));
            self.ask(&["TEST.ADVANCE", &step.as_millis().to_string()]).await;
            self.clock.jump(step);
        }
    }

    /// Lets time pass for the server alone: its clients are stopped, or think that they are early.
    ///
    /// # Panics
    ///
    /// Where the server is gone.
    pub async fn advance_server(&self, by: Duration) {
        self.ask(&["TEST.ADVANCE", &by.as_millis().to_string()]).await;
    }

    /// Lets time pass for the clients alone.
    pub async fn advance_clients(&self, by: Duration) {
        self.clock.jump(by);
        self.settle().await;
    }

    /// The client renews nothing any more, as a process that was stopped. Its own clock goes on.
    pub fn stop_renewals(&self, client: &Client) {
        client.handle.core.is_stopped.store(true, Ordering::Release);
        client.handle.core.wake();
    }

    /// The holder of a lock loses it, as by an operator.
    ///
    /// # Panics
    ///
    /// Where the server is gone.
    pub async fn lose(&self, name: &str) -> bool {
        self.ask(&["TEST.LOSE", name]).await == Some(1)
    }

    /// The server has no quorum from now on; `heal` ends it.
    ///
    /// # Panics
    ///
    /// Where the server is gone.
    pub async fn partition(&self) {
        self.ask(&["TEST.PARTITION", "ON"]).await;
    }

    /// Ends every partition.
    ///
    /// # Panics
    ///
    /// Where the server is gone.
    pub async fn heal(&self) {
        self.ask(&["TEST.PARTITION", "OFF"]).await;
    }

    /// Any other command of the test server; integers are answered.
    ///
    /// # Panics
    ///
    /// Where the server is gone, or refuses the command.
    pub async fn ask(&self, words: &[&str]) -> Option<i64> {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        let value: redis::Value = cmd
            .query_async(&mut self.control.clone())
            .await
            .unwrap_or_else(|error| panic!("the test server: {} {error}", words.join(" ")));
        integer(&value)
    }

    /// Waits until no client has anything under way.
    pub async fn settle(&self) {
        let handles: Vec<_> = self.clients().iter().filter_map(std::sync::Weak::upgrade).collect();
        for handle in handles {
            let (sender, settled) = oneshot::channel();
            handle.leave(Job::Settle(sender));
            // An error means that the client was closed.
            let _ = settled.await;
        }
    }

    fn clients(&self) -> MutexGuard<'_, Vec<std::sync::Weak<crate::client::Handle>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As [`Harness::stop_renewals`], for a client on the system's clock.
pub fn stop_renewals(client: &Client) {
    client.handle.core.is_stopped.store(true, Ordering::Release);
    client.handle.core.wake();
}

/// Connections that the client keeps open now, without those that are blocked in a wait.
#[must_use]
pub fn open_connections(client: &Client) -> usize {
    client.handle.core.links.open_count()
}

/// Locks that the client renews now.
#[must_use]
pub fn renewed_locks(client: &Client) -> usize {
    client.handle.core.leases().len()
}
