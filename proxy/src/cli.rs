//! The command line: every option as a flag, an environment variable `REDFENCE_…` and a key of the file; `--help` teaches. Below it the
//! programs beside the server.
//!
//! Nothing is checked here beyond its shape. The module `config` puts flags, environment, file and defaults together.
//!
//! # Layout
//!
//! - `access.rs` (addresses, TLS, login), `connection.rs` and `reply.rs`: how a program asks a cluster
//! - `output.rs`, `times.rs`, `exit.rs`: tables and JSON, times, exit codes
//! - `hold.rs` (a lock, renewed until it is lost), `child.rs` (a process group): what `run.rs` and `drill.rs` are made of
//! - a file for each program: `locks.rs`, `cluster.rs`, `watch.rs`, `run.rs` (`run` and `elect`), `drill.rs`, `fence_sql.rs`

pub(crate) mod access;
mod child;
pub mod cluster;
pub(crate) mod connection;
pub mod container;
pub mod drill;
pub mod exit;
pub mod fence_sql;
pub mod guard;
mod hold;
pub mod locks;
pub mod output;
mod processes;
pub(crate) mod reply;
pub mod run;
mod times;
pub mod watch;

use crate::secret::Secret;
use clap::{Args, Parser, Subcommand};
use cluster::ClusterArgs;
use container::{HealthArgs, JoinArgs, HEALTH_EXAMPLES, JOIN_EXAMPLES};
use drill::DrillArgs;
use exit::Failure;
use fence_sql::FenceSqlArgs;
use guard::GuardArgs;
use locks::LocksArgs;
use run::{ElectArgs, RunArgs};
use serde::Deserialize;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use watch::WatchArgs;

const EXAMPLES: &str = "\
Examples:
  One node for a look, data in ./redfence-data:
      redfence serve
      redis-cli -p 6380 LOCK.ACQUIRE order:42 30000

  Three nodes of a cluster on one machine (the same line with --id 2 and 3, and their own ports):
      redfence serve --id 1 --listen 127.0.0.1:6380 --peer-listen 127.0.0.1:7380 --data node1 \\
          --cluster 1=127.0.0.1:7380,2=127.0.0.1:7381,3=127.0.0.1:7382

  In front of a Redis: locks of cache:* stay there, everything else that is not a lock passes through:
      redfence serve --redis 127.0.0.1:6379 --route 'cache:*=efficiency'

  From a file (keys are the flags' names), one value overridden:
      redfence serve --config redfence.toml --log debug

Every flag is also a key of the file (default-tier = \"efficiency\") and an environment variable
(REDFENCE_DEFAULT_TIER=efficiency). A flag wins over the environment, the environment over the file.";

/// Distributed locks with fencing tokens, for Redis clients.
#[derive(Debug, Parser)]
#[command(name = "redfence", version, about, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a node: serves Redis clients, and is a member of the Raft cluster.
    #[command(after_help = EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Writes a consistent backup of a running cluster to a file, or checks one (backup verify FILE).
    #[command(after_help = BACKUP_EXAMPLES, args_conflicts_with_subcommands = true)]
    Backup(BackupArgs),
    /// Founds a new cluster from a backup. Run it once for each member, with the same file and the same --cluster.
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(RestoreArgs),
    /// Asks a running node whether it lives, or with --ready whether it can serve: for health checks of containers.
    #[command(after_help = HEALTH_EXAMPLES)]
    Health(HealthArgs),
    /// Adds a new node to a running cluster (LOCK.CLUSTER ADD) unless it was added before: for scripts that start nodes.
    #[command(after_help = JOIN_EXAMPLES)]
    Join(JoinArgs),
    /// Shows who holds which lock, and who waits.
    #[command(after_help = locks::EXAMPLES)]
    Locks(LocksArgs),
    /// Shows and changes the members of a cluster, its settings and its version.
    #[command(after_help = cluster::EXAMPLES)]
    Cluster(ClusterArgs),
    /// Prints the events of locks as they happen.
    #[command(after_help = watch::EXAMPLES)]
    Watch(WatchArgs),
    /// Runs a command while holding a lock: cron jobs, migrations.
    #[command(after_help = run::RUN_EXAMPLES)]
    Run(RunArgs),
    /// Runs a command on one machine of many: a leader election.
    #[command(after_help = run::ELECT_EXAMPLES)]
    Elect(ElectArgs),
    /// Takes a lock away from its holder on purpose, and tries whether the old fence still writes.
    #[command(after_help = drill::EXAMPLES)]
    Drill(DrillArgs),
    /// Prints the trigger that makes a table of PostgreSQL or MySQL refuse stale fences.
    #[command(after_help = fence_sql::EXAMPLES)]
    FenceSql(FenceSqlArgs),
    /// Between `run` and its command: ends with its parent.
    #[command(hide = true)]
    GuardedExec(GuardArgs),
    /// Runs a server for tests of clients: the lock machine alone, with a clock that the test moves. Keeps nothing.
    #[command(after_help = TESTSERVER_EXAMPLES)]
    Testserver(TestserverArgs),
}

/// A program that asks a cluster, or prints something for its operator.
pub trait Program {
    fn run(&self) -> Result<(), Failure>;
}

/// Each program is an async function over its arguments.
macro_rules! programs {
    ($($args:ty => $run:path),* $(,)?) => {
        $(impl Program for $args {
            fn run(&self) -> Result<(), Failure> {
                block_on($run(self))
            }
        })*
    };
}

programs! {
    LocksArgs => locks::run,
    ClusterArgs => cluster::run,
    WatchArgs => watch::run,
    RunArgs => run::run,
    ElectArgs => run::elect,
    DrillArgs => drill::run,
    FenceSqlArgs => fence_sql::run,
    GuardArgs => guard::run,
}

/// A program asks one node at a time: one thread is enough.
fn block_on(program: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    runtime()?.block_on(program)
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("cannot start: {error}").into())
}

const TESTSERVER_EXAMPLES: &str = "\
Example:
  redfence testserver --listen 127.0.0.1:6390
  redis-cli -p 6390 LOCK.ACQUIRE order:42 30000
  redis-cli -p 6390 TEST.ADVANCE 30001

It prints 'ready ADDRESS' when it serves. clients/TESTSERVER.md lists the commands of the clock and of faults.";

#[derive(Debug, Args)]
pub struct TestserverArgs {
    /// A loopback address; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,

    /// The clock runs by itself
    #[arg(long)]
    pub real_time: bool,

    /// End when standard input ends
    #[arg(long)]
    pub until_stdin_closes: bool,
}

const BACKUP_EXAMPLES: &str = "\
Examples:
  redfence backup --from 127.0.0.1:6380 --out locks.backup
  redfence backup verify locks.backup

Any member can be asked. Locks are served meanwhile. The password is read from --password-file or from the environment
variable REDFENCE_PASSWORD.";

const RESTORE_EXAMPLES: &str = "\
Example, for a cluster of three (the old one must be stopped for good, its data removed):
  redfence restore --from locks.backup --data node1 --id 1 --cluster 1=127.0.0.1:7380,2=127.0.0.1:7381,3=127.0.0.1:7382
  redfence restore --from locks.backup --data node2 --id 2 --cluster 1=127.0.0.1:7380,2=127.0.0.1:7381,3=127.0.0.1:7382
  redfence restore --from locks.backup --data node3 --id 3 --cluster 1=127.0.0.1:7380,2=127.0.0.1:7381,3=127.0.0.1:7382
  then redfence serve as ever, with the same --data, --id and --cluster

The member with the lowest id gets the state, with a fence floor by its own clock; the others begin empty and get the state
from it when they start. Every lock of the backup is held for its full ttl from then on.";

#[derive(Debug, Args)]
pub struct BackupArgs {
    #[command(subcommand)]
    pub command: Option<BackupCommand>,

    /// Address of a member, as a Redis client would use it
    #[arg(long, value_name = "ADDR")]
    pub from: Option<String>,

    /// The file to write. It is there whole or not at all; an older one is replaced
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// A file with the password for the cluster [default: the environment variable REDFENCE_PASSWORD]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,

    /// The user to log in as [default: default]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// Speak TLS: a file with the authority of the member's certificate
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// The name in the member's certificate [default: the host of --from]
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    pub tls_name: Option<String>,

    /// Our own certificate, where the member wants one
    #[arg(long, value_name = "FILE", requires = "tls_ca", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Reads a backup to its end, checks that a cluster can be founded from it, and prints what is in it.
    Verify { file: PathBuf },
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,

    /// The data directory to make: empty, or not there yet
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,

    /// This node's number in the new cluster, 1 to 65535
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub id: u64,

    /// The members of the new cluster, the same list on every node: 1=host:port,2=host:port,3=host:port [default: this node alone]
    #[arg(long, value_name = "LIST")]
    pub cluster: Option<String>,

    /// Every fence of the new cluster is above this one, if the backup's fences plus one hour and the clock plus one hour are not
    /// higher already. To restore a backup again, give the number that the last restore printed for that
    #[arg(long, value_name = "FENCE")]
    pub fence_floor: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// A TOML file with any of these options.
    #[arg(long, value_name = "FILE.toml", env = "REDFENCE_CONFIG")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub settings: Settings,
}

/// Every option, each perhaps not given.
#[derive(Clone, Debug, Default, Args, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// This node's number in the cluster, 1 to 65535 [default: 1]
    #[arg(long, value_name = "N", env = "REDFENCE_ID")]
    pub id: Option<u64>,

    /// Address for Redis clients [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDR", env = "REDFENCE_LISTEN")]
    pub listen: Option<String>,

    /// Address for the other nodes. Needed for a cluster of more than one [default: this node's address in --cluster]
    #[arg(long, value_name = "ADDR", env = "REDFENCE_PEER_LISTEN")]
    pub peer_listen: Option<String>,

    /// Address under which other nodes reach this one [default: its address in --cluster, else --peer-listen]
    #[arg(long, value_name = "ADDR", env = "REDFENCE_ADVERTISE")]
    pub advertise: Option<String>,

    /// The founding members, the same list on every node: 1=host:port,2=host:port,3=host:port
    #[arg(long, value_name = "LIST", env = "REDFENCE_CLUSTER")]
    pub cluster: Option<String>,

    /// Join a running cluster: wait until LOCK.CLUSTER ADD adds this node
    #[arg(long, env = "REDFENCE_JOIN", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub join: Option<bool>,

    /// File with the secret that all nodes of the cluster share: 32 random bytes in hex or base64, one secret a line. Encrypts and authenticates all traffic between nodes. The first is used to dial, all are accepted; read again when it changes
    #[arg(long, value_name = "FILE", env = "REDFENCE_PEER_SECRET_FILE")]
    pub peer_secret_file: Option<PathBuf>,

    /// Certificate (PEM) this node shows other nodes: mutual TLS instead of --peer-secret-file. Read again when it changes
    #[arg(long, value_name = "FILE", env = "REDFENCE_PEER_TLS_CERT")]
    pub peer_tls_cert: Option<PathBuf>,

    /// Key (PEM) of --peer-tls-cert
    #[arg(long, value_name = "FILE", env = "REDFENCE_PEER_TLS_KEY")]
    pub peer_tls_key: Option<PathBuf>,

    /// Authority (PEM) that signs the certificates of all nodes
    #[arg(long, value_name = "FILE", env = "REDFENCE_PEER_TLS_CA")]
    pub peer_tls_ca: Option<PathBuf>,

    /// Directory for the log and the snapshots [default: ./redfence-data]
    #[arg(long, value_name = "DIR", env = "REDFENCE_DATA")]
    pub data: Option<PathBuf>,

    /// Address of the upstream Redis, or of its Sentinels (redis-sentinel://host:port,host:port/master): it serves tier 1 (module or Lua library) and all keys that are not on tier 2. Without it tier 2 serves everything
    #[arg(long, value_name = "ADDR", env = "REDFENCE_REDIS")]
    pub redis: Option<String>,

    /// TLS towards the upstream Redis, as with --redis rediss://host:port. Needs --redis-tls-ca
    #[arg(long, env = "REDFENCE_REDIS_TLS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub redis_tls: Option<bool>,

    /// Authority (PEM) of the upstream Redis's certificate
    #[arg(long, value_name = "FILE", env = "REDFENCE_REDIS_TLS_CA")]
    pub redis_tls_ca: Option<PathBuf>,

    /// Certificate (PEM) that is shown to the upstream Redis
    #[arg(long, value_name = "FILE", env = "REDFENCE_REDIS_TLS_CERT")]
    pub redis_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of --redis-tls-cert
    #[arg(long, value_name = "FILE", env = "REDFENCE_REDIS_TLS_KEY")]
    pub redis_tls_key: Option<PathBuf>,

    /// Name in the upstream Redis's certificate, also sent as SNI [default: the host of --redis]
    #[arg(long, value_name = "HOST", env = "REDFENCE_REDIS_TLS_NAME")]
    pub redis_tls_name: Option<String>,

    /// User name for the upstream Redis
    #[arg(long, value_name = "NAME", env = "REDFENCE_REDIS_USERNAME")]
    pub redis_username: Option<String>,

    /// Password for the upstream Redis. Other users see it in the process list: better a file or the environment
    #[arg(long, value_name = "TEXT", env = "REDFENCE_REDIS_PASSWORD", hide_env_values = true, value_parser = secret)]
    pub redis_password: Option<Secret>,

    /// File with the password for the upstream Redis, in its only line
    #[arg(long, value_name = "FILE", env = "REDFENCE_REDIS_PASSWORD_FILE")]
    pub redis_password_file: Option<PathBuf>,

    /// Names that match the glob belong to a tier: 'wallet:*=correctness'. May be repeated; the first match counts
    #[arg(long, value_name = "GLOB=TIER", env = "REDFENCE_ROUTE", value_delimiter = ' ')]
    #[serde(deserialize_with = "one_or_many")]
    pub route: Option<Vec<String>>,

    /// Tier of locks without TIER and without a route: correctness or efficiency [default: correctness]
    #[arg(long, value_name = "TIER", env = "REDFENCE_DEFAULT_TIER")]
    pub default_tier: Option<String>,

    /// A second address for Redis clients: every lock and key that comes in here belongs to the correctness tier
    #[arg(long, value_name = "ADDR", env = "REDFENCE_CORRECTNESS_LISTEN")]
    pub correctness_listen: Option<String>,

    /// Address for Redlock clients: to them each node of the cluster is one independent master
    #[arg(long, value_name = "ADDR", env = "REDFENCE_REDLOCK_LISTEN")]
    pub redlock_listen: Option<String>,

    /// HTTP address for the dashboard and its API, /health, /ready and /metrics (HTTPS with --tls-cert). The last three ask for no password: keep it on a private network
    #[arg(long, value_name = "ADDR", env = "REDFENCE_ADMIN")]
    pub admin: Option<String>,

    /// Password that clients must give (AUTH). Other users see it in the process list: better a file or the environment
    #[arg(long, value_name = "TEXT", env = "REDFENCE_PASSWORD", hide_env_values = true, value_parser = secret)]
    pub password: Option<Secret>,

    /// File with the password that clients must give, in its only line
    #[arg(long, value_name = "FILE", env = "REDFENCE_PASSWORD_FILE")]
    pub password_file: Option<PathBuf>,

    /// Certificate chain (PEM): TLS on every listener for clients, the admin address too. Read again when it changes
    #[arg(long, value_name = "FILE", env = "REDFENCE_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,

    /// Private key (PEM) of --tls-cert
    #[arg(long, value_name = "FILE", env = "REDFENCE_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// Authority (PEM) that signs client certificates
    #[arg(long, value_name = "FILE", env = "REDFENCE_TLS_CLIENT_CA")]
    pub tls_client_ca: Option<PathBuf>,

    /// Whether clients show a certificate: optional or required [default: required with --tls-client-ca]
    #[arg(long, value_name = "WHEN", env = "REDFENCE_TLS_CLIENT_AUTH")]
    pub tls_client_auth: Option<String>,

    /// One more address for Redis clients, without TLS, as --listen otherwise
    #[arg(long, value_name = "ADDR", env = "REDFENCE_PLAIN_LISTEN")]
    pub plain_listen: Option<String>,

    /// Users and their rights: an ACL file as Redis writes it, read again when it changes
    #[arg(long, value_name = "FILE", env = "REDFENCE_ACL_FILE")]
    pub acl_file: Option<PathBuf>,

    /// One JSON line for every administrative act, refused permission and failed login
    #[arg(long, value_name = "FILE", env = "REDFENCE_AUDIT_LOG")]
    pub audit_log: Option<PathBuf>,

    /// yes: refuse to start where strangers could come in: beyond loopback without TLS, without a password, or with a key that others can read. no: warn [default: yes]
    #[arg(long, value_name = "YES|NO", env = "REDFENCE_PROTECTED_MODE")]
    pub protected_mode: Option<String>,

    /// Maximum number of connected clients [default: 10000]
    #[arg(long, value_name = "N", env = "REDFENCE_MAX_CLIENTS")]
    pub max_clients: Option<usize>,

    /// Maximum number of connected clients of one address; 0: any number [default: 1000, any number from loopback]
    #[arg(long, value_name = "N", env = "REDFENCE_MAX_CLIENTS_PER_ADDRESS")]
    pub max_clients_per_address: Option<usize>,

    /// Maximum number of connections to the upstream Redis on behalf of clients [default: as many as --max-clients]
    #[arg(long, value_name = "N", env = "REDFENCE_MAX_REDIS_CONNECTIONS")]
    pub max_redis_connections: Option<usize>,

    /// Disconnect a client that sends no command for this long, waits for no reply and has no subscription; 0: never [default: 0]
    #[arg(long, value_name = "MS", env = "REDFENCE_IDLE_TIMEOUT_MS")]
    pub idle_timeout_ms: Option<u64>,

    /// How long a session outlives the connection that opened it [default: 500]
    #[arg(long, value_name = "MS", env = "REDFENCE_SESSION_GRACE_MS")]
    pub session_grace_ms: Option<u64>,

    /// How long the last fence and the last holder's end of a free lock are remembered [default: 600000]
    #[arg(long, value_name = "MS", env = "REDFENCE_IDLE_RETENTION_MS")]
    pub idle_retention_ms: Option<u64>,

    /// How long a command may wait for a leader; then it is UNAVAILABLE, or INDETERMINATE if it was sent [default: 5000]
    #[arg(long, value_name = "MS", env = "REDFENCE_DEADLINE_MS")]
    pub deadline_ms: Option<u64>,

    /// A follower that hears no leader for this long (drawn at random, up to twice as long) starts an election [default: 300]
    #[arg(long, value_name = "MS", env = "REDFENCE_ELECTION_TIMEOUT_MS")]
    pub election_timeout_ms: Option<u64>,

    /// Interval of the leader's heartbeats [default: 75]
    #[arg(long, value_name = "MS", env = "REDFENCE_HEARTBEAT_MS")]
    pub heartbeat_ms: Option<u64>,

    /// Make a snapshot after this many log entries [default: 100000]
    #[arg(long, value_name = "N", env = "REDFENCE_SNAPSHOT_ENTRIES")]
    pub snapshot_entries: Option<u64>,

    /// Log entries kept behind a snapshot, for followers that are slightly behind [default: 10000]
    #[arg(long, value_name = "N", env = "REDFENCE_LOG_KEEP_ENTRIES")]
    pub log_keep_entries: Option<u64>,

    /// Log level: error, warn, info, debug, or a filter such as info,redfence::tier2=debug [default: info,raft_engine=error]
    #[arg(long, value_name = "FILTER", env = "REDFENCE_LOG")]
    pub log: Option<String>,

    /// Log format: text or json [default: text]
    #[arg(long, value_name = "FORMAT", env = "REDFENCE_LOG_FORMAT")]
    pub log_format: Option<String>,
}

/// What clap says of a wrong command line, as one line without the usage.
#[must_use]
pub fn usage_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let line = lines.join("; ").replace(":; ", ": ");
    format!("{}; see --help", line.strip_prefix("error: ").unwrap_or(&line))
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::from(text.to_owned()))
}

/// A list, or a single value in its place.
fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(Some(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(value) => vec![value],
        OneOrMany::Many(values) => values,
    }))
}
