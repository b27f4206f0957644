//! The upstream Redis: where it is, whether it is there, and how it serves Tier 1.
//!
//! One task keeps a connection to it. When it gets one it asks for the module; without the module it loads the Lua library, as
//! functions where the server knows them and as a plain script where it does not. When the connection breaks, Tier 1 is down
//! until the task has it back: nobody has to do anything. Clients' own connections ([`super::own_connection`]) come and go beside it.
//!
//! Every step has a time limit: a Redis that stands still accepts connections and says nothing. Where Sentinels name the master, every
//! connection knows how often it had moved ([`Upstream::moves`]), and ends when it moves again.

use super::attempts::Attempts;
use super::client::UpstreamClient;
use super::command_table::CommandTable;
use super::own_connection;
use super::sentinel;
use super::shared_connection::SharedConnection;
use super::stream::{self, within, UpstreamStream};
use crate::redis_place::RedisPlace;
use crate::resp::encode::Protocol;
use crate::tls::upstream::Connector;
use bytes::Bytes;
use redfence_core::machine::upstream_identity::Identity;
use redfence_core::reply::Reply;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{watch, Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// How often the task looks whether that Redis still answers.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take to find out what a Redis is, and to load the Lua library.
const GREET_WITHIN: Duration = Duration::from_secs(5);
/// A command of the proxy's own that a client waits for.
const ASK_WITHIN: Duration = Duration::from_secs(10);
/// Pause before the next try after a failed one: doubled up to the maximum.
const RETRY_AFTER: Duration = Duration::from_millis(50);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(1);
/// A command table that could not be had is asked for again after this.
const TABLE_RETRY_AFTER: Duration = Duration::from_secs(10);
/// Idle connections kept for waiting in Lua.
const IDLE_CLIENTS_MAX: usize = 16;

const FUNCTIONS: &str = include_str!("../../../lua/redfence.lua");
const SCRIPT: &str = include_str!("../../../lua/redfence-script.lua");

/// How that Redis serves `LOCK.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tier1Backend {
    Module,
    /// The Lua library as functions: `FCALL`.
    Functions,
    /// The Lua library as one script: `EVALSHA` with this digest.
    Script {
        sha1: String,
    },
}

impl Tier1Backend {
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Tier1Backend::Module => "module",
            Tier1Backend::Functions => "lua_functions",
            Tier1Backend::Script { .. } => "lua_script",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not reached since the start.
    Starting,
    Up(Tier1Backend),
    Down {
        reason: String,
    },
}

#[derive(Debug)]
pub struct Upstream {
    pub place: RedisPlace,
    /// Where the master is that the Sentinels name, and how often it has moved.
    master: watch::Sender<Option<String>>,
    moves: AtomicU64,
    username: Option<String>,
    password: Option<String>,
    tls: Option<Connector>,
    health: watch::Sender<Health>,
    /// What `INFO` says it is; `None` while it is not reached.
    identity: Mutex<Option<Identity>>,
    /// `redis_version`, as it said when it was last reached.
    version: Mutex<Option<String>>,
    /// Whether it is a replica, as it said last.
    is_replica: AtomicBool,
    /// Name and version of each of its modules, as it said last.
    modules: Mutex<Vec<(String, i64)>>,
    /// What `COMMAND` says of its commands.
    command_table: Mutex<Arc<CommandTable>>,
    /// Somebody found the Lua library gone: load it again.
    reload: Notify,
    idle_clients: Mutex<Vec<UpstreamClient>>,
    /// What waits in its Lua library.
    pub(super) attempts: Attempts,
    /// A place for each connection on behalf of one client. Those that all clients share have none.
    places: Arc<Semaphore>,
    places_max: usize,
    /// Connections that clients share: one for each protocol.
    shared_connections: [Mutex<Option<Arc<SharedConnection>>>; 2],
}

impl Upstream {
    /// Starts the task that keeps an eye on it.
    #[must_use]
    pub fn start(
        place: RedisPlace,
        username: Option<String>,
        password: Option<String>,
        tls: Option<Connector>,
        connections_max: usize,
    ) -> Arc<Upstream> {
        let upstream = Arc::new(Upstream {
            place,
            master: watch::channel(None).0,
            moves: AtomicU64::new(0),
            username,
            password,
            tls,
            health: watch::channel(Health::Starting).0,
            identity: Mutex::default(),
            version: Mutex::default(),
            is_replica: AtomicBool::new(false),
            modules: Mutex::default(),
            command_table: Mutex::new(not_reached()),
            reload: Notify::new(),
            idle_clients: Mutex::default(),
            attempts: Attempts::default(),
            places: Arc::new(Semaphore::new(connections_max)),
            places_max: connections_max,
            shared_connections: Default::default(),
        });
        tokio::spawn(keep_watch(Arc::clone(&upstream)));
        upstream
    }

    #[must_use]
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Which Redis it is. `None` while it is not reached.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.identity.lock().expect("mutex poisoned").clone()
    }

    fn set_identity(&self, identity: Option<Identity>) {
        *self.identity.lock().expect("mutex poisoned") = identity;
    }

    /// Its version, if it was ever reached.
    #[must_use]
    pub fn version(&self) -> Option<String> {
        self.version.lock().expect("mutex poisoned").clone()
    }

    /// Whether it is a replica of another.
    #[must_use]
    pub fn is_replica(&self) -> bool {
        self.is_replica.load(Ordering::Relaxed)
    }

    /// Name and version of each of its modules.
    #[must_use]
    pub fn modules(&self) -> Vec<(String, i64)> {
        self.modules.lock().expect("mutex poisoned").clone()
    }

    /// Where it says that its commands have their keys.
    #[must_use]
    pub fn command_table(&self) -> Arc<CommandTable> {
        Arc::clone(&self.command_table.lock().expect("mutex poisoned"))
    }

    fn set_command_table(&self, table: Arc<CommandTable>) {
        *self.command_table.lock().expect("mutex poisoned") = table;
    }

    /// Returns when the first try to reach it has ended, one way or the other.
    pub async fn first_contact(&self) {
        let mut health = self.health.subscribe();
        // An error means that the task is gone, and there is nothing to wait for.
        let _ = health.wait_for(|health| *health != Health::Starting).await;
    }

    /// A new connection, not logged in yet.
    pub(super) async fn connect(&self) -> io::Result<UpstreamStream> {
        match &self.place {
            RedisPlace::Fixed(address) => stream::connect(address, self.tls.as_ref()).await,
            RedisPlace::Sentinels { .. } => {
                let master = self.master.borrow().clone();
                let address = master.ok_or_else(|| io::Error::other("no master is known"))?;
                stream::connect(&address, self.tls.as_ref()).await
            }
        }
    }

    /// For a connection on behalf of one client, as long as it is open. That Redis has a limit of its own, which all nodes and everybody else share.
    pub(super) fn take_place(&self) -> io::Result<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let max = self.places_max;
            io::Error::other(format!(
                "this node has as many connections to it as it may, {max} (--max-redis-connections)"
            ))
        })
    }

    /// How often the master has moved: a connection of another count is to a Redis that is the master no more.
    #[must_use]
    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Returns when the master has moved since there were so many moves.
    pub(super) async fn moved_since(&self, moves: u64) -> io::Error {
        let mut master = self.master.subscribe();
        while self.moves() == moves && master.changed().await.is_ok() {}
        moved()
    }

    /// Whether it is behind Sentinels, so that it may move.
    pub(super) fn may_move(&self) -> bool {
        matches!(self.place, RedisPlace::Sentinels { .. })
    }

    /// Does the work, but not for longer than the master stays where it is.
    pub(super) async fn unless_moved<T>(
        &self,
        moves: u64,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        tokio::select! {
            error = self.moved_since(moves) => Err(error),
            // An answer that comes with the news is one of the old master.
            outcome = work => if self.moves() == moves { outcome } else { Err(moved()) },
        }
    }

    fn set_master(&self, address: Option<String>) {
        self.master.send_if_modified(|known| {
            let is_other = *known != address;
            if is_other {
                self.moves.fetch_add(1, Ordering::Relaxed);
                *known = address;
            }
            is_other
        });
    }

    /// Closes all connections to the master where it is another than this.
    fn leave_master_unless(&self, address: &str) -> bool {
        let is_other = self.master.borrow().as_ref().is_some_and(|known| known != address);
        if is_other {
            self.set_master(None);
        }
        is_other
    }

    #[must_use]
    pub fn auth_words(&self) -> Option<Vec<String>> {
        let password = self.password.clone()?;
        let mut words = vec!["AUTH".to_string()];
        words.extend(self.username.clone());
        words.push(password);
        Some(words)
    }

    /// The Lua library was found missing (a flush, a restart). The next commands are refused until it is back.
    pub fn library_is_gone(&self) {
        self.health.send_replace(Health::Down {
            reason: "its Lua library was flushed and is being loaded again".into(),
        });
        self.reload.notify_one();
    }

    /// The connection that clients of this protocol share; opened when first needed, and again when it is gone.
    pub fn shared_connection(self: &Arc<Upstream>, protocol: Protocol) -> Arc<SharedConnection> {
        let place = match protocol {
            Protocol::Resp2 => &self.shared_connections[0],
            Protocol::Resp3 => &self.shared_connections[1],
        };
        let mut place = place.lock().expect("mutex poisoned");
        match &*place {
            Some(connection) if !connection.is_down() => Arc::clone(connection),
            Some(_) | None => Arc::clone(place.insert(SharedConnection::open(self, protocol))),
        }
    }

    /// A client of the master of now.
    pub async fn take_client(&self) -> io::Result<UpstreamClient> {
        let place = self.take_place()?;
        let idle = {
            let mut idle = self.idle_clients.lock().expect("mutex poisoned");
            idle.retain(|client| client.moves() == self.moves());
            idle.pop()
        };
        let client = match idle {
            Some(client) => client,
            None => UpstreamClient::open(self).await?,
        };
        Ok(client.at(Some(place)))
    }

    /// One command on a connection of the proxy's own, and what is to be told to a client where there is no answer.
    pub async fn ask(&self, argv: &[Bytes]) -> Reply {
        let mut had_left = false;
        let asked = async {
            let mut client = self.take_client().await?;
            had_left = true;
            let reply = within(ASK_WITHIN, "a command", client.call(argv)).await?;
            self.return_client(client);
            Ok::<Reply, io::Error>(reply)
        };
        match self.unless_moved(self.moves(), asked).await {
            Ok(reply) => reply,
            Err(error) => {
                let reason = format!("upstream Redis at {}: {error}", self.place);
                own_connection::refusal(&reason, had_left).into()
            }
        }
    }

    /// Takes back a client that has no call in flight. One of a Redis that is the master no more is closed.
    pub fn return_client(&self, client: UpstreamClient) {
        let mut idle = self.idle_clients.lock().expect("mutex poisoned");
        if idle.len() < IDLE_CLIENTS_MAX && client.moves() == self.moves() {
            idle.push(client.at(None));
        }
    }
}

/// Why a connection is closed whose other end is the master no more.
pub(super) const TURNED_AWAY: &str = "it has as many clients as it may (maxclients)";

/// Whether this is what a Redis that has as many clients as it may says to a new one, before it hangs up. It reads nothing from it.
pub(super) fn turns_away(bytes: &[u8]) -> bool {
    bytes.starts_with(b"-ERR max number of clients reached\r\n")
}

pub(super) fn moved() -> io::Error {
    io::Error::other("the Sentinels name another master")
}

fn not_reached() -> Arc<CommandTable> {
    Arc::new(CommandTable::Missing { reason: "it is not reached".into() })
}

async fn keep_watch(upstream: Arc<Upstream>) {
    let mut retry_after = RETRY_AFTER;
    loop {
        let error = match serve_once(&upstream, &mut retry_after).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        upstream.idle_clients.lock().expect("mutex poisoned").clear();
        upstream.set_identity(None);
        upstream.set_command_table(not_reached());
        let reason = error.to_string();
        if !matches!(&*upstream.health.borrow(), Health::Down { reason: known } if *known == reason) {
            tracing::warn!(redis = %upstream.place, reason, "upstream Redis is down; tier 1 is unavailable");
        }
        upstream.health.send_replace(Health::Down { reason });
        tokio::time::sleep(retry_after).await;
        retry_after = (retry_after * 2).min(RETRY_AFTER_MAX);
    }
}

/// Connects, finds the means, and stays until something breaks.
async fn serve_once(
    upstream: &Arc<Upstream>,
    retry_after: &mut Duration,
) -> io::Result<std::convert::Infallible> {
    let mut client = match &upstream.place {
        RedisPlace::Fixed(_) => UpstreamClient::open(upstream).await?,
        RedisPlace::Sentinels { addresses, master } => open_master(upstream, addresses, master).await?,
    };
    let mut table_watch = TableWatch::default();
    loop {
        let greet = async {
            let backend = find_backend(&mut client).await?;
            let modules = info(&mut client, "modules").await?;
            Ok((backend, modules, find_identity(&mut client, upstream).await?))
        };
        let (backend, modules, identity) = within(GREET_WITHIN, "COMMAND, FUNCTION and INFO", greet).await?;
        table_watch.follow(upstream, modules).await;
        upstream.set_identity(Some(identity));
        *retry_after = RETRY_AFTER;
        if upstream.health() != Health::Up(backend.clone()) {
            tracing::info!(redis = %upstream.place, ?backend, "upstream Redis is up");
        }
        upstream.health.send_replace(Health::Up(backend));
        loop {
            tokio::select! {
                () = upstream.reload.notified() => break,
                () = tokio::time::sleep(PING_EVERY) => {}
            }
            if let RedisPlace::Sentinels { addresses, master } = &upstream.place {
                check_master(upstream, addresses, master, &mut client).await?;
            }
            // In place of a PING: a failover changes what it is, and modules come and go.
            let look = async {
                Ok((find_identity(&mut client, upstream).await?, info(&mut client, "modules").await?))
            };
            let (identity, modules) = within(PING_WITHIN, "PING", look).await?;
            upstream.set_identity(Some(identity));
            table_watch.follow(upstream, modules).await;
        }
    }
}

/// A connection to the master that the Sentinels name. Clients' connections go there from now on.
async fn open_master(upstream: &Upstream, sentinels: &[String], master: &str) -> io::Result<UpstreamClient> {
    let address = sentinel::master_address(sentinels, master, upstream.tls.as_ref()).await?;
    // The old one is left at once, also where the new one cannot serve yet.
    upstream.leave_master_unless(&address);
    let open = async {
        let stream = stream::connect(&address, upstream.tls.as_ref()).await?;
        let mut client = UpstreamClient::log_in(stream, upstream).await?;
        sentinel::check_role(&mut client).await?;
        Ok(client)
    };
    let client = within(GREET_WITHIN, "ROLE", open).await?;
    upstream.set_master(Some(address));
    Ok(client)
}

/// An error where the Sentinels name another master, or this one is a replica by now. Sentinels that do not answer change nothing.
async fn check_master(
    upstream: &Upstream,
    sentinels: &[String],
    master: &str,
    client: &mut UpstreamClient,
) -> io::Result<()> {
    let named = sentinel::master_address(sentinels, master, upstream.tls.as_ref()).await.ok();
    if let Some(address) = named.filter(|address| upstream.leave_master_unless(address)) {
        return Err(io::Error::other(format!("the Sentinels name another master: {address}")));
    }
    let role = within(PING_WITHIN, "ROLE", sentinel::check_role(client)).await;
    role.inspect_err(|_| upstream.set_master(None))
}

/// Keeps the command table that of the modules in force.
#[derive(Default)]
struct TableWatch {
    modules: String,
    asked: Option<Instant>,
}

/// `module:name=redfence,ver=1,api=1,…`
fn module_of(line: &str) -> Option<(String, i64)> {
    let fields = line.strip_prefix("module:")?;
    let field = |name: &str| fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    Some((field("name")?.to_owned(), field("ver")?.parse().ok()?))
}

impl TableWatch {
    async fn follow(&mut self, upstream: &Upstream, modules: String) {
        *upstream.modules.lock().expect("mutex poisoned") = modules.lines().filter_map(module_of).collect();
        let is_due = match self.asked {
            None => true,
            Some(asked) => {
                modules != self.modules
                    || (upstream.command_table().is_missing() && asked.elapsed() >= TABLE_RETRY_AFTER)
            }
        };
        if is_due {
            // The modules first, then the table: one loaded in between is seen by the next look.
            self.modules = modules;
            self.asked = Some(Instant::now());
            upstream.set_command_table(Arc::new(CommandTable::fetch(upstream).await));
        }
    }
}

async fn info(client: &mut UpstreamClient, section: &str) -> io::Result<String> {
    let answer = client.call_ok(&["INFO", section]).await?;
    let Reply::Bulk(text) = &answer else {
        return Err(io::Error::other(format!("INFO answered {answer:?}")));
    };
    Ok(String::from_utf8_lossy(text).into_owned())
}

async fn find_identity(client: &mut UpstreamClient, upstream: &Upstream) -> io::Result<Identity> {
    let text = info(client, "server").await? + &info(client, "replication").await?;
    let version = text.lines().find_map(|line| line.strip_prefix("redis_version:"));
    *upstream.version.lock().expect("mutex poisoned") = version.map(str::to_owned);
    upstream.is_replica.store(text.lines().any(|line| line == "role:slave"), Ordering::Relaxed);
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        // No second history: all digits are zero.
        value.filter(|value| value.bytes().any(|byte| byte != b'0')).unwrap_or("").as_bytes().to_vec()
    };
    let identity = Identity::Redis {
        run_id: field("run_id"),
        replid: field("master_replid"),
        replid2: field("master_replid2"),
    };
    Ok(identity)
}

async fn find_backend(client: &mut UpstreamClient) -> io::Result<Tier1Backend> {
    let info = client.call_ok(&["COMMAND", "INFO", "LOCK.ACQUIRE"]).await?;
    if matches!(&info, Reply::Array(items) if matches!(items.first(), Some(Reply::Array(_)))) {
        return Ok(Tier1Backend::Module);
    }
    let loaded = client.call(&["FUNCTION", "LOAD", "REPLACE", FUNCTIONS]).await?;
    let Reply::Error(refusal) = loaded else { return Ok(Tier1Backend::Functions) };
    if !refusal.0.contains("unknown command") {
        return Err(io::Error::other(format!("the Lua library could not be loaded: {}", refusal.0)));
    }
    let answer = client.call_ok(&["SCRIPT", "LOAD", SCRIPT]).await?;
    let Reply::Bulk(sha1) = &answer else {
        return Err(io::Error::other(format!("SCRIPT LOAD answered {answer:?}")));
    };
    Ok(Tier1Backend::Script { sha1: String::from_utf8_lossy(sha1).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_read_from_their_lines() {
        let text =
            "# Modules\r\nmodule:name=redfence,ver=200,api=1,filters=0,usedby=[],using=[],options=[]\r\n\r\n";
        let modules: Vec<_> = text.lines().filter_map(module_of).collect();
        assert_eq!(modules, [("redfence".to_owned(), 200)]);
    }
}
