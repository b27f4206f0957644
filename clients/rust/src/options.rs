//! How a client is built.

use crate::client::Client;
use crate::clock::Clock;
use crate::error::Error;
use std::time::Duration;

/// As good as for ever, and far from any overflow.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What a client was built with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) connect_timeout: Duration,
    pub(crate) attempt_timeout: Duration,
    pub(crate) operation_timeout: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) session: bool,
    pub(crate) session_ttl: Duration,
    pub(crate) session_label: Option<String>,
    pub(crate) idle_connections_max: usize,
    pub(crate) waiting_connections_max: usize,
    pub(crate) clock: Clock,
}

/// Builds a [`Client`]. The defaults suit most programs.
///
/// ```no_run
/// # async fn example() -> Result<(), redfence_client::Error> {
/// use std::time::Duration;
///
/// let client = redfence_client::Client::builder()
///     .address("redis://n1:6380")
///     .address("redis://n2:6380")
///     .operation_timeout(Duration::from_secs(2))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "call connect"]
pub struct ClientBuilder {
    addresses: Vec<String>,
    settings: Settings,
}

impl Default for ClientBuilder {
    fn default() -> ClientBuilder {
        ClientBuilder {
            addresses: Vec::new(),
            settings: Settings {
                connect_timeout: Duration::from_secs(1),
                attempt_timeout: Duration::from_secs(3),
                operation_timeout: Duration::from_secs(5),
                max_hold: Some(Duration::from_secs(3600)),
                session: true,
                session_ttl: Duration::from_secs(30),
                session_label: None,
                idle_connections_max: 4,
                waiting_connections_max: 1024,
                clock: Clock::System,
            },
        }
    }
}

impl ClientBuilder {
    /// Adds a server: `redis://[user:password@]host:port`, or `rediss://…` with the feature `tls`. Any node of a cluster serves; give all
    /// of them.
    pub fn address(mut self, address: impl Into<String>) -> ClientBuilder {
        self.addresses.push(address.into());
        self
    }

    /// Adds several.
    pub fn addresses<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> ClientBuilder {
        self.addresses.extend(addresses.into_iter().map(Into::into));
        self
    }

    /// How long a connection may take to be made (1 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long a server may leave one request unanswered before another is asked (3 s).
    pub fn attempt_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.settings.attempt_timeout = timeout;
        self
    }

    /// How long a request is tried again, at all servers, before it fails with [`Error::Unavailable`] (5 s). An acquisition may take this
    /// long beyond its wait.
    pub fn operation_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.settings.operation_timeout = timeout;
        self
    }

    /// How long a lock is renewed unless its request says otherwise (1 hour); `None`: for ever. A handle that was forgotten does not hold a
    /// lock for ever.
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> ClientBuilder {
        self.settings.max_hold = max_hold.into();
        self
    }

    /// Whether locks are bound to the client's session where the server has sessions (they are).
    ///
    /// With a session, all locks of a crashed client are free half a second after its connection is gone (the server's setting
    /// `session-grace-ms`) instead of after their ttl, and circles of waiting clients are refused with [`Error::Deadlock`]. The price: a
    /// client that cannot reconnect within that time loses its locks. [`crate::LockRequest::transferable`] leaves a single lock out.
    pub fn session(mut self, session: bool) -> ClientBuilder {
        self.settings.session = session;
        self
    }

    /// How long the session outlives a client that is silent but connected (30 s).
    pub fn session_ttl(mut self, ttl: Duration) -> ClientBuilder {
        self.settings.session_ttl = ttl;
        self
    }

    /// A label for the session, shown by `LOCK.SESSION INFO`: the name of the program, say.
    pub fn session_label(mut self, label: impl Into<String>) -> ClientBuilder {
        self.settings.session_label = Some(label.into());
        self
    }

    /// Connections for waits that are kept for the next one (4).
    pub fn idle_connections_max(mut self, count: usize) -> ClientBuilder {
        self.settings.idle_connections_max = count;
        self
    }

    /// Waits at a time, each with a connection of its own (1,024). One more waits here until one is over.
    pub fn waiting_connections_max(mut self, count: usize) -> ClientBuilder {
        self.settings.waiting_connections_max = count.max(1);
        self
    }

    /// A clock that a test moves, instead of the system's.
    #[cfg(feature = "testing")]
    pub fn clock(mut self, clock: crate::testing::ManualClock) -> ClientBuilder {
        self.settings.clock = Clock::Manual(clock);
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an address that is none, [`Error::Unavailable`] where no server could be reached, [`Error::Unsupported`] where the
    /// server knows neither the commands nor the Lua library.
    pub async fn connect(mut self) -> Result<Client, Error> {
        let settings = &mut self.settings;
        for time in
            [&mut settings.connect_timeout, &mut settings.attempt_timeout, &mut settings.operation_timeout]
        {
            *time = (*time).min(LONGEST);
        }
        if self.settings.session_ttl < Duration::from_millis(100) {
            return Err(Error::invalid("a session's ttl must be at least 100 ms"));
        }
        let servers = crate::links::servers(&self.addresses)?;
        Client::start(servers, self.settings).await
    }
}
