//! Puts a node together and runs it: data and Raft, the upstream Redis, listeners, signals.

use crate::admin;
use crate::client_memory::ClientMemory;
use crate::clock::Clock;
use crate::config::{Config, Refused};
use crate::events::{publish_feed, Hub, LossWatch, Tracker};
use crate::notify;
use crate::secret::Secret;
use crate::server::access::{self, AccessControl, AccessSettings};
use crate::server::client::registry::Registry;
use crate::server::client::session_keepalive::SessionKeepalive;
use crate::server::net::listener;
use crate::server::routing::known_scripts::KnownScripts;
use crate::server::routing::router::{ListenerKind, Router};
use crate::server::routing::routes::Routers;
use crate::server::routing::settings_follower;
use crate::server::{ids, loss_checks, stats::Stats, ServerState};
use crate::shutdown::{Signals, HAND_OVER_WITHIN};
use crate::tier1::subscriber::UpstreamSubscriber;
use crate::tier1::upstream::{Health, Upstream};
use crate::tier2::handle::Tier2Handle;
use crate::tier2::shell::{self, ShellConfig};
use crate::tls::acceptor::Acceptor;
use crate::tls::upstream::Connector;
use redfence_core::machine::settings::Founding;
use redfence_core::routes::Routing;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;

/// How long a start waits for the first word of the upstream Redis. The node serves in any case.
const FIRST_CONTACT_WITHIN: Duration = Duration::from_secs(3);

/// How long a start waits until a node with a Redis has a leader, and knows the routes of its cluster. It serves in any case.
const FIRST_LEADER_WITHIN: Duration = Duration::from_secs(2);
const FIRST_ROUTES_WITHIN: Duration = Duration::from_secs(8);

/// How long a stop waits for the last lines of the audit log.
const AUDIT_WITHIN: Duration = Duration::from_secs(1);

/// Runs until a signal comes. An error is one line that says why the node does not serve.
pub async fn serve(config: Config) -> Result<(), Refused> {
    let mut signals = Signals::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let tls = config.tls.clone().map(Acceptor::start).transpose()?;
    let redis_tls = config.redis_tls.clone().map(Connector::new).transpose()?;
    let main_listener = listener::bind(config.listen)?;
    let plain_listener = config.plain_listen.map(listener::bind).transpose()?;
    let correctness_listener = config.correctness_listen.map(listener::bind).transpose()?;
    let redlock_listener = config.redlock_listen.map(listener::bind).transpose()?;
    let admin_listener = config.admin.map(listener::bind).transpose()?;
    let clock = Clock::start();
    let access = AccessControl::open(AccessSettings {
        password: exposed(config.password.as_ref()),
        acl_file: config.acl_file.clone(),
        audit_log: config.audit_log.clone(),
        has_upstream: config.redis.is_some(),
    })?;
    config.check_login(access.needs_login(), access.user_with_empty_password().as_deref())?;
    let (tier2, raft) = start_tier2(&config, clock)?;
    let server = assemble(&config, clock, tier2.clone(), access, redis_tls, &main_listener);
    tokio::spawn(access::file::follow(Arc::clone(&server)));
    tokio::spawn(access::compare::follow(Arc::clone(&server)));
    tokio::spawn(access::upstream_table::follow(Arc::clone(&server)));
    if let Some(upstream) = &server.upstream {
        let _ = tokio::time::timeout(FIRST_CONTACT_WITHIN, upstream.first_contact()).await;
    }
    first_status(&tier2).await;
    first_routes(&server).await;
    announce(&config, &main_listener);
    let bound = [
        (Some(main_listener), ListenerKind::Main, tls.clone()),
        (plain_listener, ListenerKind::Main, None),
        (correctness_listener, ListenerKind::Correctness, tls.clone()),
        (redlock_listener, ListenerKind::Redlock, tls.clone()),
    ];
    let mut tasks: Vec<_> = bound
        .into_iter()
        .filter_map(|(listener, kind, tls)| {
            Some(tokio::spawn(listener::accept(Arc::clone(&server), listener?, kind, tls)))
        })
        .collect();
    if let Some(listener) = admin_listener {
        let advertise = config.advertise.clone();
        tasks.push(tokio::spawn(admin::accept(Arc::clone(&server), listener, tls, advertise)));
    }
    if config.idle_timeout_ms > 0 {
        tasks.push(tokio::spawn(listener::keep_ending_idle(Arc::clone(&server))));
    }
    notify::ready(&format!("node {} serves", config.id));
    let signal = signals.next().await;
    tracing::info!(signal, "stopping");
    notify::stopping();
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    stop_tier2(&tier2, raft, &mut signals).await;
    if let Some(audit) = &server.access.audit {
        audit.close(AUDIT_WITHIN);
    }
    Ok(())
}

/// Returns when the node has shown itself for the first time, so that nobody sees a node 0.
async fn first_status(tier2: &Tier2Handle) {
    let shown = async {
        while tier2.status().id == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // It serves in any case: a node that is slow to start answers when it can.
    let _ = tokio::time::timeout(Duration::from_secs(2), shown).await;
}

/// Returns when the routes of the cluster are known, or soon.
async fn first_routes(server: &ServerState) {
    let begun = tokio::time::Instant::now();
    let Some(upstream) = &server.upstream else { return };
    while server.routing.newest().check_upstream().is_err() {
        // The routes are known. That Redis cannot be reached: it is not waited for.
        if server.routing.is_fresh(server.now_ms()) && matches!(upstream.health(), Health::Down { .. }) {
            return;
        }
        let has_leader = server.tier2.status().leader != 0;
        let within = if has_leader { FIRST_ROUTES_WITHIN } else { FIRST_LEADER_WITHIN };
        if begun.elapsed() >= within {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Where the line is logged that tells that a node serves, whatever else is logged.
pub const READY_TARGET: &str = "redfence::ready";

fn announce(config: &Config, main_listener: &TcpListener) {
    let listen = main_listener.local_addr().unwrap_or(config.listen);
    let shown = |address: Option<std::net::SocketAddr>| {
        address.map_or_else(|| "-".to_string(), |address| address.to_string())
    };
    tracing::info!(
        target: READY_TARGET,
        id = config.id,
        listen = %listen,
        peer_listen = shown(config.peer_listen),
        correctness_listen = shown(config.correctness_listen),
        redlock_listen = shown(config.redlock_listen),
        plain_listen = shown(config.plain_listen),
        tls = config.tls.is_some(),
        admin = shown(config.admin),
        redis = config.redis.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        data = %config.data.display(),
        "ready"
    );
}

fn assemble(
    config: &Config,
    clock: Clock,
    tier2: Tier2Handle,
    access: AccessControl,
    redis_tls: Option<Connector>,
    main_listener: &TcpListener,
) -> Arc<ServerState> {
    let hub = Arc::new(Hub::new(Arc::clone(tier2.demand())));
    let events_lost = Arc::default();
    let clients_max = clients_max(config.clients_max, files_each(config), reserved_files(config));
    let upstream = config.redis.clone().map(|place| {
        let password = exposed(config.redis_password.as_ref());
        let connections_max = config.redis_connections_max.unwrap_or(clients_max);
        Upstream::start(place, config.redis_username.clone(), password, redis_tls, connections_max)
    });
    let subscriber =
        upstream.as_ref().map(|upstream| UpstreamSubscriber::start(Arc::clone(upstream), Arc::clone(&hub)));
    let tracker = Arc::new(Tracker::new(Arc::clone(&hub), Arc::clone(tier2.demand())));
    let losses = Arc::new(LossWatch::new(Arc::clone(tier2.demand())));
    if let Some(feed) = tier2.take_apply_feed() {
        let events_lost = Arc::clone(&events_lost);
        let (hub, tracker, losses) = (Arc::clone(&hub), Arc::clone(&tracker), Arc::clone(&losses));
        tokio::spawn(publish_feed(feed, hub, tracker, losses, events_lost));
    }
    let flags = Founding {
        routing: Routing { routes: config.routes.clone(), default_tier: config.default_tier },
        idle_retention_ms: config.idle_retention_ms,
        session_grace_ms: config.session_grace_ms,
    };
    let server = Arc::new(ServerState {
        node: config.id,
        routing: Routers::new(Router::unfounded(flags.routing.clone(), upstream.is_some())),
        access,
        clients_max,
        clients_per_address_max: config.clients_per_address_max,
        idle_timeout_ms: config.idle_timeout_ms,
        listen_address: main_listener.local_addr().unwrap_or(config.listen),
        run_id: ids::run_id(),
        clock,
        clients: Registry::default(),
        memory: ClientMemory::new(clock),
        stats: Stats::default(),
        session_keepalive: SessionKeepalive::start(tier2.clone(), clock, config.session_grace_ms),
        known_scripts: KnownScripts::default(),
        hub,
        tracker,
        losses,
        events_lost,
        tier2,
        upstream,
        subscriber,
    });
    settings_follower::start(Arc::clone(&server), flags);
    loss_checks::start(&server, config.election_timeout_ms);
    server
}

fn exposed(secret: Option<&Secret>) -> Option<String> {
    secret.map(|secret| secret.expose().to_owned())
}

/// File descriptors that are no client's: those of the log and the node itself, and as many as others can take at the ports for peers and
/// for administration. Without one that is free the log could not be written, and the node would stop.
fn reserved_files(config: &Config) -> u64 {
    let peers = config.peer_listen.map_or(0, |_| shell::PEER_FILES_MAX);
    let admin = config.admin.map_or(0, |_| admin::FILES_MAX);
    NODE_FILES + peers + admin
}

/// The log, snapshots, listeners, and whatever else the node opens for itself.
const NODE_FILES: u64 = 128;

/// File descriptors of one client: its own, one towards the upstream Redis, and the pair in front of that one's TLS.
fn files_each(config: &Config) -> u64 {
    match (&config.redis, &config.redis_tls) {
        (None, _) => 1,
        (Some(_), None) => 2,
        (Some(_), Some(_)) => 4,
    }
}

/// As many as asked for, if the system has file descriptors for them. Raises the soft limit first.
fn clients_max(wanted: usize, files_each: u64, reserved: u64) -> usize {
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    let limit = getrlimit(Resource::Nofile);
    let needed = wanted as u64 * files_each + reserved;
    let available = limit.maximum.unwrap_or(u64::MAX);
    let raised = needed.min(available).max(limit.current.unwrap_or(u64::MAX));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let possible = files.saturating_sub(reserved) / files_each;
    let possible = usize::try_from(possible).unwrap_or(usize::MAX).max(1);
    if possible < wanted {
        tracing::warn!(wanted, possible, "max-clients lowered to what the limit on open files allows");
    }
    wanted.min(possible)
}

/// Opens the data and starts the Raft node.
fn start_tier2(config: &Config, clock: Clock) -> Result<(Tier2Handle, JoinHandle<()>), Refused> {
    let seed = ids::session().0;
    let mut shell_config = ShellConfig::single(config.id, seed, config.data.clone(), clock);
    shell_config.peer_listen = config.peer_listen;
    shell_config.advertise = config.advertise.clone();
    shell_config.cluster = config.cluster.clone();
    shell_config.join = config.join;
    shell_config.peer_security = config.peer_security()?;
    shell_config.node.loopback_peers_only = shell_config.peer_security.is_plain();
    shell_config.timeout_ms = config.deadline_ms;
    let node = &mut shell_config.node;
    node.heartbeat_ticks = usize::try_from(config.heartbeat_ms.div_ceil(node.tick_ms)).unwrap_or(usize::MAX);
    node.election_ticks =
        usize::try_from(config.election_timeout_ms.div_ceil(node.tick_ms)).unwrap_or(usize::MAX);
    node.idle_record_ms = config.idle_retention_ms;
    node.snapshot_entries = config.snapshot_entries.unwrap_or(node.snapshot_entries);
    node.log_keep_entries = config.log_keep_entries.unwrap_or(node.log_keep_entries);
    shell::start(&shell_config).map_err(|error| error.to_string())
}

/// Hands leadership over and ends the node, unless it takes too long or a second signal comes.
async fn stop_tier2(tier2: &Tier2Handle, raft: JoinHandle<()>, signals: &mut Signals) {
    shell::stop(tier2);
    let ended = tokio::task::spawn_blocking(move || raft.join());
    tokio::select! {
        ended = tokio::time::timeout(HAND_OVER_WITHIN, ended) => match ended {
            Ok(_) => tracing::info!("stopped"),
            Err(_) => tracing::warn!("the node did not stop in time; what it acknowledged is on disk"),
        },
        signal = signals.next() => tracing::warn!(signal, "stopped at once"),
    }
}
