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

/// File descriptors kept for the log, the peers and everything that is no client.
pub const RESERVED_FILES: u64 = 128;

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
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn settings(flags: &[&str]) -> Settings {
        let argv = ["redfence", "serve"].iter().chain(flags);
        match Cli::try_parse_from(argv).unwrap().command {
            Command::Serve(args) => args.settings,
            other => panic!("{other:?}"),
        }
    }

    fn refused(flags: &[&str]) -> String {
        Config::resolve(settings(flags)).unwrap_err()
    }

    #[test]
    fn with_nothing_said_it_is_a_single_local_node() {
        let config = Config::resolve(Settings::default()).unwrap();
        assert_eq!((config.id, config.listen), (1, "127.0.0.1:6380".parse().unwrap()));
        assert_eq!((config.peer_listen, config.redis, config.default_tier), (None, None, Tier::Correctness));
        assert_eq!(config.data, PathBuf::from("redfence-data"));
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = settings_from_toml(
            "id = 2\nlisten = '127.0.0.1:1111'\npeer-listen = '127.0.0.1:2222'\ndefault_tier = 'efficiency'\nroute = ['a*=correctness']",
        );
        let config = Config::resolve(settings(&["--listen", "127.0.0.1:3333"]).over(file.unwrap())).unwrap();
        assert_eq!((config.id, config.listen.port(), config.default_tier), (2, 3333, Tier::Efficiency));
        assert_eq!(config.peer_listen.unwrap().port(), 2222);
        assert_eq!(config.routes, [Route { pattern: b"a*".to_vec(), tier: Tier::Correctness }]);
    }

    #[test]
    fn a_key_of_the_file_is_given_once_however_it_is_written() {
        let both = "default-tier = 'efficiency'\ndefault_tier = 'correctness'";
        let error = settings_from_toml(both).unwrap_err();
        assert_eq!(error, "default-tier is given twice, with - and with _");
    }

    #[test]
    fn protected_mode_is_said_in_one_way_or_another() {
        let protected = |word: &str| {
            Config::resolve(settings(&["--protected-mode", word])).map(|config| config.protected)
        };
        for word in ["yes", "true", "1", "YES"] {
            assert_eq!(protected(word), Ok(true), "{word}");
        }
        for word in ["no", "false", "0", "No"] {
            assert_eq!(protected(word), Ok(false), "{word}");
        }
        assert_eq!(protected("2"), Err("protected-mode is '2': use yes or no".into()));
    }

    #[test]
    fn an_acl_file_with_passwords_is_a_secret() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (key, users) = (folder.path().join("key"), folder.path().join("users"));
        std::fs::write(&key, "x").unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        let write = |text: &str, mode| {
            std::fs::write(&users, text).unwrap();
            std::fs::set_permissions(&users, PermissionsExt::from_mode(mode)).unwrap();
        };
        let (key, file) = (key.to_str().unwrap(), users.to_str().unwrap());
        let tls = ["--tls-cert", "cert", "--tls-key", key, "--acl-file", file];
        let beyond = [&["--listen", "0.0.0.0:6380"], &tls[..]].concat();
        write("user default off\nuser app on >secret ~* +@all\n", 0o644);
        assert!(refused(&beyond).contains("acl-file"), "{}", refused(&beyond));
        assert!(Config::resolve(settings(&tls)).is_ok(), "on loopback it is the operator's business");
        write("user default off\nuser app on >secret ~* +@all\n", 0o640);
        assert!(Config::resolve(settings(&beyond)).is_ok());
        write("user default off\nuser app on #ab12 ~* +@all\n", 0o644);
        assert!(Config::resolve(settings(&beyond)).is_ok(), "a hash is not the password");
    }

    #[test]
    fn what_protected_mode_no_lifts_is_named() {
        let config = Config::resolve(settings(&[
            "--listen",
            "0.0.0.0:6380",
            "--redis-password",
            "hidden",
            "--protected-mode",
            "no",
        ]))
        .unwrap();
        let warnings = config.warnings.join("\n");
        for part in ["without TLS", "without a password", "redis-password"] {
            assert!(warnings.contains(part), "{warnings}");
        }
        assert!(!format!("{config:?}").contains("hidden"));
        assert!(!format!("{:?}", settings(&["--password", "hidden"])).contains("hidden"));
    }

    #[test]
    fn beyond_loopback_with_tls_and_a_password_it_starts_unless_others_may_read_the_key() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (key, password) = (folder.path().join("key"), folder.path().join("password"));
        std::fs::write(&key, "x").unwrap();
        std::fs::write(&password, "x").unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let flags = [
            "--listen",
            "0.0.0.0:6380",
            "--admin",
            "0.0.0.0:6381",
            "--tls-cert",
            "cert",
            "--tls-key",
            key.to_str().unwrap(),
            "--password-file",
            password.to_str().unwrap(),
        ];
        mode(&key, 0o640);
        mode(&password, 0o600);
        assert_eq!(Config::resolve(settings(&flags)).unwrap().warnings, Vec::<String>::new());
        mode(&key, 0o644);
        assert!(refused(&flags).contains("may be read by every user"));
        let local: Vec<&str> = flags
            .iter()
            .map(|flag| if flag.starts_with("0.0.0.0:") { "127.0.0.1:1" } else { flag })
            .collect();
        assert!(Config::resolve(settings(&local)).is_ok(), "on loopback it is the operator's business");
        mode(&key, 0o600);
        mode(&password, 0o604);
        assert!(refused(&flags).contains("password-file"));
    }

    #[test]
    fn a_peer_secret_opens_the_way_beyond_loopback() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let file = path.to_str().unwrap();
        let peers = ["--peer-listen", "0.0.0.0:7380", "--peer-secret-file", file];
        std::fs::write(&path, "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let config = Config::resolve(settings(&peers)).unwrap();
        assert!(!config.peer_security().unwrap().is_plain());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(config.peer_security().unwrap_err().contains("chmod 600"));
        let local = Config::resolve(settings(&["--peer-secret-file", file])).unwrap();
        assert!(local.peer_security().is_ok(), "a warning is enough on loopback");
        std::fs::write(&path, "").unwrap();
        assert!(local.peer_security().is_err(), "an empty secret is none");
        let argv = ["redfence", "serve", "--peer-secret", ""];
        assert!(Cli::try_parse_from(argv).is_err(), "a secret on the command line is not taken");
    }

    #[test]
    fn routes_may_be_given_often() {
        let config =
            Config::resolve(settings(&["--route", "a=b=correctness", "--route", "c*=EFFICIENCY"])).unwrap();
        assert_eq!(config.routes[0].pattern, b"a=b");
        assert_eq!(config.routes[1].tier, Tier::Efficiency);
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        for (flags, part) in [
            (&["--id", "0"][..], "id is 0"),
            (&["--id", "4", "--cluster", "1=127.0.0.1:1,2=127.0.0.1:2"], "id not in the cluster"),
            (&["--cluster", "1=127.0.0.1:1,2=127.0.0.1:1"], "cluster names the address 127.0.0.1:1 twice"),
            (&["--cluster", "1=127.0.0.1:1,1=127.0.0.1:2"], "twice"),
            (&["--cluster", "one=127.0.0.1:1"], "id=host:port"),
            (&["--listen", "nonsense"], "listen 'nonsense'"),
            (&["--listen", "0.0.0.0:6380"], "protected-mode"),
            (&["--listen", "0.0.0.0:6380"], "without a password"),
            (&["--admin", "0.0.0.0:6380"], "admin 0.0.0.0:6380 is beyond loopback"),
            (&["--password", ""], "password is empty"),
            (&["--redis-password", "", "--password", "x"], "redis-password is empty"),
            (&["--redis-password", "x"], "redis-password without a password of its own"),
            (&["--password", "x", "--password-file", "y"], "use one of them"),
            (&["--password-file", "/nowhere/y"], "password-file /nowhere/y"),
            (&["--tls-cert", "a"], "tls-cert without tls-key"),
            (&["--tls-key", "a"], "tls-key without tls-cert"),
            (&["--plain-listen", "127.0.0.1:0"], "plain-listen without TLS"),
            (&["--tls-client-ca", "a"], "tls-client-ca without TLS"),
            (&["--tls-cert", "a", "--tls-key", "b", "--tls-client-auth", "required"], "needs tls-client-ca"),
            (
                &["--tls-cert", "a", "--tls-key", "b", "--tls-client-ca", "c", "--tls-client-auth", "maybe"],
                "optional, required or off",
            ),
            (
                &["--tls-cert", "a", "--tls-key", "b", "--password", "x", "--plain-listen", "0.0.0.0:1"],
                "plain-listen 0.0.0.0:1 is beyond loopback and its traffic goes without TLS",
            ),
            (
                &["--listen", "0.0.0.0:6380", "--tls-cert", "a", "--tls-key", "b"],
                "listen 0.0.0.0:6380 is beyond loopback and anybody may use it without a password",
            ),
            (&["--listen", "0.0.0.0:6380", "--password", "x"], "TLS"),
            (&["--route", "wallet"], "GLOB=TIER"),
            (&["--route", "wallet*=strong"], "correctness or efficiency"),
            (&["--default-tier", "best"], "correctness or efficiency"),
            (&["--protected-mode", "maybe"], "yes or no"),
            (&["--heartbeat-ms", "200"], "at most half"),
            (&["--redis", "localhost"], "host:port"),
            (&["--redis", "http://localhost:1"], "host:port"),
            (&["--redis", "redis://:sekret@localhost:1"], "redis-password-file"),
            (&["--redis", "rediss://localhost:1"], "needs redis-tls-ca"),
            (&["--redis", "localhost:1", "--redis-tls"], "needs redis-tls-ca"),
            (&["--redis", "localhost:1", "--redis-tls-ca", "a"], "redis-tls-ca without redis-tls"),
            (&["--redis-tls", "--redis-tls-ca", "a"], "redis-tls without redis"),
            (&["--redis", "rediss://h:1", "--redis-tls-ca", "a", "--redis-tls-cert", "b"], "give both"),
            (&["--log-format", "xml"], "text or json"),
            (&["--redlock-listen", "0.0.0.0:1"], "protected-mode"),
            (&["--peer-listen", "0.0.0.0:7380"], "--peer-secret-file"),
            (&["--peer-listen", "0.0.0.0:7380", "--protected-mode", "no"], "--peer-secret-file"),
            (
                &["--cluster", "1=127.0.0.1:7380,2=10.0.0.2:7380", "--protected-mode", "no"],
                "cluster member 2",
            ),
            (&["--advertise", "node1:7380", "--protected-mode", "no"], "advertise node1:7380"),
            (&["--peer-tls-cert", "a", "--peer-tls-key", "b"], "give all three"),
            (
                &[
                    "--peer-tls-cert",
                    "a",
                    "--peer-tls-key",
                    "b",
                    "--peer-tls-ca",
                    "c",
                    "--peer-secret-file",
                    "d",
                ],
                "use one of them",
            ),
            (&["--redlock-listen", "nonsense"], "redlock-listen 'nonsense'"),
        ] {
            let line = refused(flags);
            assert!(line.contains(part) && !line.contains('\n'), "{flags:?}: {line}");
        }
        assert!(Config::resolve(settings(&["--listen", "0.0.0.0:6380", "--protected-mode", "no"])).is_ok());
        assert!(settings_from_toml("lsiten = 'x'").unwrap_err().contains("lsiten"));
        assert!(settings_from_toml("id = 'x'").unwrap_err().starts_with("id: invalid type"));
    }
}
