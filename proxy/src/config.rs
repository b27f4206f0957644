//! From settings to a configuration that can be served: flags and environment over file over defaults, and every reason to refuse.
//!
//! Each error is one line that says what is wrong and what would be right.

mod peers;
mod protection;
mod tls;

use crate::cli::{ServeArgs, Settings};
use crate::redis_place::RedisPlace;
use crate::secret::{self, Secret};
use crate::server::routing::router::Route;
use crate::tls::files::TlsFiles;
use crate::tls::upstream::UpstreamTls;
use peers::PeerTlsFiles;
use redfence_core::types::{Tier, PATTERN_BYTES_MAX};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub id: u64,
    pub listen: SocketAddr,
    pub peer_listen: Option<SocketAddr>,
    pub advertise: Option<String>,
    pub cluster: Vec<(u64, String)>,
    pub join: bool,
    pub peer_secret_file: Option<PathBuf>,
    pub peer_tls: Option<PeerTlsFiles>,
    pub data: PathBuf,
    pub redis: Option<RedisPlace>,
    pub redis_tls: Option<UpstreamTls>,
    pub redis_username: Option<String>,
    pub redis_password: Option<Secret>,
    pub routes: Vec<Route>,
    pub default_tier: Tier,
    pub correctness_listen: Option<SocketAddr>,
    pub redlock_listen: Option<SocketAddr>,
    pub admin: Option<SocketAddr>,
    pub password: Option<Secret>,
    /// TLS on every listener for clients but [`Config::plain_listen`].
    pub tls: Option<TlsFiles>,
    pub plain_listen: Option<SocketAddr>,
    /// Files that secrets were read from, by the name of their setting.
    pub secret_files: Vec<(&'static str, PathBuf)>,
    pub protected: bool,
    /// What `--protected-mode no` has lifted, to be logged at the start.
    pub warnings: Vec<String>,
    pub acl_file: Option<PathBuf>,
    pub audit_log: Option<PathBuf>,
    pub clients_max: usize,
    pub clients_per_address_max: Option<usize>,
    /// To the upstream Redis, on behalf of clients. `None`: as many as there may be clients.
    pub redis_connections_max: Option<usize>,
    pub idle_timeout_ms: u64,
    pub session_grace_ms: u64,
    pub idle_retention_ms: u64,
    pub deadline_ms: u64,
    pub election_timeout_ms: u64,
    pub heartbeat_ms: u64,
    pub snapshot_entries: Option<u64>,
    pub log_keep_entries: Option<u64>,
    pub log: String,
    pub log_is_json: bool,
}

/// raft-engine warns about every torn tail; expected after a crash, so only errors are shown.
const DEFAULT_LOG: &str = "info,raft_engine=error";

/// Why the program does not start, as one line.
pub type Refused = String;

impl Config {
    pub fn from_args(args: &ServeArgs) -> Result<Config, Refused> {
        let file = match &args.config {
            Some(path) => read_file(path)?,
            None => Settings::default(),
        };
        Config::resolve(args.settings.clone().over(file))
    }

    pub fn resolve(settings: Settings) -> Result<Config, Refused> {
        let id = in_range("id", settings.id, 1, 1..=65_535)?;
        let cluster = settings.cluster.as_deref().map(cluster_list).transpose()?.unwrap_or_default();
        if !cluster.is_empty()
            && !cluster.iter().any(|(member, _)| *member == id)
            && settings.join != Some(true)
        {
            let members: Vec<String> = cluster.iter().map(|(member, _)| member.to_string()).collect();
            return Err(format!(
                "id not in the cluster: this is node {id}, but cluster names {}; to join a running cluster say --join",
                members.join(", ")
            ));
        }
        let own_peer_address =
            cluster.iter().find(|(member, _)| *member == id).map(|(_, address)| address.clone());
        let peer_listen = match (&settings.peer_listen, own_peer_address) {
            (Some(text), _) => Some(address("peer-listen", text)?),
            (None, Some(text)) => Some(address("cluster", &text)?),
            (None, None) => None,
        };
        let tls = tls::resolve(&settings)?;
        let peer_tls = peers::tls_files(&settings)?;
        let redis_tls = tls::resolve_upstream(&settings)?;
        let secret_files = [
            ("password-file", settings.password_file.clone()),
            ("redis-password-file", settings.redis_password_file.clone()),
        ];
        let mut config = Config {
            id,
            listen: address("listen", settings.listen.as_deref().unwrap_or("127.0.0.1:6380"))?,
            peer_listen,
            advertise: settings.advertise,
            cluster,
            join: settings.join.unwrap_or(false),
            peer_tls,
            peer_secret_file: settings.peer_secret_file,
            data: settings.data.unwrap_or_else(|| PathBuf::from("redfence-data")),
            redis: settings.redis.as_deref().map(RedisPlace::parse).transpose()?,
            redis_tls,
            redis_username: settings.redis_username,
            redis_password: secret::resolve(
                "redis-password",
                settings.redis_password,
                settings.redis_password_file.as_deref(),
            )?,
            routes: settings
                .route
                .unwrap_or_default()
                .iter()
                .map(|text| route(text))
                .collect::<Result<_, _>>()?,
            default_tier: settings
                .default_tier
                .as_deref()
                .map_or(Ok(Tier::Correctness), |word| tier("default-tier", word))?,
            correctness_listen: settings
                .correctness_listen
                .map(|text| address("correctness-listen", &text))
                .transpose()?,
            redlock_listen: settings
                .redlock_listen
                .map(|text| address("redlock-listen", &text))
                .transpose()?,
            admin: settings.admin.map(|text| address("admin", &text)).transpose()?,
            password: secret::resolve("password", settings.password, settings.password_file.as_deref())?,
            tls,
            plain_listen: settings.plain_listen.map(|text| address("plain-listen", &text)).transpose()?,
            secret_files: secret_files.into_iter().filter_map(|(name, path)| Some((name, path?))).collect(),
            protected: true,
            warnings: Vec::new(),
            acl_file: settings.acl_file,
            audit_log: settings.audit_log,
            clients_per_address_max: settings.max_clients_per_address,
            redis_connections_max: settings
                .max_redis_connections
                .map(|max| in_range("max-redis-connections", Some(max), max, 1..=1_000_000))
                .transpose()?,
            idle_timeout_ms: in_range("idle-timeout-ms", settings.idle_timeout_ms, 0, 0..=31_536_000_000)?,
            clients_max: in_range("max-clients", settings.max_clients, 10_000, 1..=1_000_000)?,
            session_grace_ms: in_range("session-grace-ms", settings.session_grace_ms, 500, 0..=3_600_000)?,
            idle_retention_ms: in_range(
                "idle-retention-ms",
                settings.idle_retention_ms,
                600_000,
                1_000..=31_536_000_000,
            )?,
            deadline_ms: in_range("deadline-ms", settings.deadline_ms, 5_000, 100..=600_000)?,
            election_timeout_ms: in_range(
                "election-timeout-ms",
                settings.election_timeout_ms,
                300,
                50..=60_000,
            )?,
            heartbeat_ms: in_range("heartbeat-ms", settings.heartbeat_ms, 75, 5..=10_000)?,
            snapshot_entries: settings.snapshot_entries,
            log_keep_entries: settings.log_keep_entries,
            log: settings.log.unwrap_or_else(|| DEFAULT_LOG.into()),
            log_is_json: match settings.log_format.as_deref() {
                None | Some("text") => false,
                Some("json") => true,
                Some(other) => return Err(format!("log-format is '{other}': use text or json")),
            },
        };
        if config.heartbeat_ms * 2 > config.election_timeout_ms {
            return Err(format!(
                "heartbeat-ms {} is too long for election-timeout-ms {}: use at most half of it",
                config.heartbeat_ms, config.election_timeout_ms
            ));
        }
        config.check_peers()?;
        let protected = yes_or_no("protected-mode", settings.protected_mode.as_deref())?;
        config.protected = protected;
        config.warnings = config.check_protection(protected)?;
        Ok(config)
    }
}

impl Settings {
    /// These where they are given, else `below`.
    #[must_use]
    pub fn over(self, below: Settings) -> Settings {
        Settings {
            id: self.id.or(below.id),
            listen: self.listen.or(below.listen),
            peer_listen: self.peer_listen.or(below.peer_listen),
            advertise: self.advertise.or(below.advertise),
            cluster: self.cluster.or(below.cluster),
            join: self.join.or(below.join),
            peer_secret_file: self.peer_secret_file.or(below.peer_secret_file),
            peer_tls_cert: self.peer_tls_cert.or(below.peer_tls_cert),
            peer_tls_key: self.peer_tls_key.or(below.peer_tls_key),
            peer_tls_ca: self.peer_tls_ca.or(below.peer_tls_ca),
            data: self.data.or(below.data),
            redis: self.redis.or(below.redis),
            redis_tls: self.redis_tls.or(below.redis_tls),
            redis_tls_ca: self.redis_tls_ca.or(below.redis_tls_ca),
            redis_tls_cert: self.redis_tls_cert.or(below.redis_tls_cert),
            redis_tls_key: self.redis_tls_key.or(below.redis_tls_key),
            redis_tls_name: self.redis_tls_name.or(below.redis_tls_name),
            redis_username: self.redis_username.or(below.redis_username),
            redis_password: self.redis_password.or(below.redis_password),
            redis_password_file: self.redis_password_file.or(below.redis_password_file),
            route: self.route.or(below.route),
            default_tier: self.default_tier.or(below.default_tier),
            correctness_listen: self.correctness_listen.or(below.correctness_listen),
            redlock_listen: self.redlock_listen.or(below.redlock_listen),
            admin: self.admin.or(below.admin),
            password: self.password.or(below.password),
            password_file: self.password_file.or(below.password_file),
            tls_cert: self.tls_cert.or(below.tls_cert),
            tls_key: self.tls_key.or(below.tls_key),
            tls_client_ca: self.tls_client_ca.or(below.tls_client_ca),
            tls_client_auth: self.tls_client_auth.or(below.tls_client_auth),
            plain_listen: self.plain_listen.or(below.plain_listen),
            acl_file: self.acl_file.or(below.acl_file),
            audit_log: self.audit_log.or(below.audit_log),
            protected_mode: self.protected_mode.or(below.protected_mode),
            max_clients: self.max_clients.or(below.max_clients),
            max_clients_per_address: self.max_clients_per_address.or(below.max_clients_per_address),
            max_redis_connections: self.max_redis_connections.or(below.max_redis_connections),
            idle_timeout_ms: self.idle_timeout_ms.or(below.idle_timeout_ms),
            session_grace_ms: self.session_grace_ms.or(below.session_grace_ms),
            idle_retention_ms: self.idle_retention_ms.or(below.idle_retention_ms),
            deadline_ms: self.deadline_ms.or(below.deadline_ms),
            election_timeout_ms: self.election_timeout_ms.or(below.election_timeout_ms),
            heartbeat_ms: self.heartbeat_ms.or(below.heartbeat_ms),
            snapshot_entries: self.snapshot_entries.or(below.snapshot_entries),
            log_keep_entries: self.log_keep_entries.or(below.log_keep_entries),
            log: self.log.or(below.log),
            log_format: self.log_format.or(below.log_format),
        }
    }
}

fn read_file(path: &Path) -> Result<Settings, Refused> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("config file {shown}: {error}"))?;
    settings_from_toml(&text).map_err(|error| format!("config file {shown}: {error}"))
}

/// Keys may be written as the flags are (`peer-listen`) or with underscores.
pub fn settings_from_toml(text: &str) -> Result<Settings, Refused> {
    let one_line = |error: toml::de::Error| error.message().replace('\n', " ");
    let table: toml::Table = text.parse().map_err(one_line)?;
    let mut settings = Settings::default();
    let mut seen = std::collections::BTreeSet::new();
    for (key, value) in table {
        let field = key.replace('-', "_");
        if !seen.insert(field.clone()) {
            return Err(format!("{} is given twice, with - and with _", field.replace('_', "-")));
        }
        // One at a time, so that an error can name its key.
        let single = toml::Table::from_iter([(field, value)]);
        let given: Settings = single.try_into().map_err(|error| format!("{key}: {}", one_line(error)))?;
        settings = given.over(settings);
    }
    Ok(settings)
}

fn in_range<T: PartialOrd + Copy + std::fmt::Display>(
    name: &str,
    value: Option<T>,
    default: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, Refused> {
    let value = value.unwrap_or(default);
    if range.contains(&value) {
        return Ok(value);
    }
    Err(format!("{name} is {value}: use {} to {}", range.start(), range.end()))
}

fn address(name: &str, text: &str) -> Result<SocketAddr, Refused> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| format!("{name} '{text}' is no address (host:port): {error}"))?;
    found.next().ok_or_else(|| format!("{name} '{text}' is no address (host:port)"))
}

/// The founding members of `--cluster`.
pub fn cluster_list(text: &str) -> Result<Vec<(u64, String)>, Refused> {
    let wrong = |part: &str| format!("cluster has '{part}': use id=host:port, separated by commas");
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let mut members: Vec<(u64, String)> = Vec::new();
    for part in parts {
        let (id, address) = part.split_once('=').ok_or_else(|| wrong(part))?;
        let id = id
            .trim()
            .parse::<u64>()
            .ok()
            .filter(|id| (1..=65_535).contains(id))
            .ok_or_else(|| wrong(part))?;
        let address = address.trim();
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() {
            return Err(wrong(part));
        }
        if members.iter().any(|(member, _)| *member == id) {
            return Err(format!("cluster names node {id} twice"));
        }
        if members.iter().any(|(_, known)| known == address) {
            return Err(format!("cluster names the address {address} twice"));
        }
        members.push((id, address.to_string()));
    }
    Ok(members)
}

fn route(text: &str) -> Result<Route, Refused> {
    let (pattern, word) = text
        .rsplit_once('=')
        .ok_or_else(|| format!("route '{text}': use GLOB=TIER, as 'wallet:*=correctness'"))?;
    if pattern.is_empty() {
        return Err(format!("route '{text}' has no pattern: use GLOB=TIER"));
    }
    if pattern.len() > PATTERN_BYTES_MAX {
        let shown: String = text.chars().take(64).collect();
        return Err(format!("route '{shown}…': a pattern has {PATTERN_BYTES_MAX} bytes at most"));
    }
    if pattern.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return Err(format!("route '{text}': a pattern has no blanks; write ? for one"));
    }
    Ok(Route { pattern: pattern.as_bytes().to_vec(), tier: tier("route", word)? })
}

fn tier(name: &str, word: &str) -> Result<Tier, Refused> {
    Tier::parse(word.trim().as_bytes())
        .ok_or_else(|| format!("{name} names the tier '{word}': use correctness or efficiency"))
}

fn yes_or_no(name: &str, word: Option<&str>) -> Result<bool, Refused> {
    match word.map(str::to_ascii_lowercase).as_deref() {
        None | Some("yes" | "true" | "1") => Ok(true),
        Some("no" | "false" | "0") => Ok(false),
        Some(other) => Err(format!("{name} is '{other}': use yes or no")),
    }
}

#[cfg(test)]
mod tests;
