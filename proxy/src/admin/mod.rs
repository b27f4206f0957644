//! The operators' listener, over HTTP or HTTPS: `/health`, `/ready` and `/metrics` for probes and Prometheus, the dashboard at `/`, and
//! what the dashboard shows as JSON under `/api/v1/`.
//!
//! # Layout
//!
//! - [`http`]: answers and their headers, checks of requests
//! - [`metrics`]: the page `/metrics`
//! - [`ui`]: the dashboard's files
//! - [`api`]: `/api/v1/`, one file a subject
//! - [`caller`]: on whose behalf a request acts; [`logins`]: who has logged in
//! - [`events`]: live events; [`series`]: the last 15 minutes
//! - [`turns`]: how many requests are answered at once; [`guarded_stream`]: clients that read nothing
//!
//! # Caveats
//!
//! Probes and metrics need no password: bind the listener to loopback or to a network of your own.

mod api;
mod caller;
mod events;
mod guarded_stream;
mod http;
mod logins;
mod metrics;
mod series;
mod turns;
mod ui;

use crate::server::client::registry::network;
use crate::server::ServerState;
use crate::tls::acceptor::Acceptor;
use crate::tls::stream::ClientStream;
use guarded_stream::GuardedStream;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Connections at one time that are not being answered. One more ends the oldest of them, so that probes always find a place: an
/// honest one is answered at once and gone, and a browser connects again.
const WAITING_MAX: usize = 128;
/// Connections at one time, with those that are being answered (a wrong password on purpose slowly) or have live events. One more ends
/// one of the address that has most.
const CONNECTIONS_MAX: usize = WAITING_MAX + events::STREAMS_MAX;
/// File descriptors that others can take here: with the one that was just accepted.
pub const FILES_MAX: u64 = CONNECTIONS_MAX as u64 + 1;
/// Bytes under way to one client, in the system's buffer.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// A request's head. A longer one is refused.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long a request's head may take, and how long a connection may be silent between requests.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// The TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer of the API may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// What all requests share.
#[derive(Debug)]
struct Admin {
    server: Arc<ServerState>,
    /// Names by which a browser may come where nobody needs to log in.
    own_names: Vec<String>,
    is_tls: bool,
    logins: logins::Logins,
    turns: turns::Turns,
    answers: http::AnswerBudget,
    live: Arc<events::Live>,
    series: Arc<series::Series>,
    contended: api::contention::Cache,
}

/// Where a connection comes from, and the ACL user its certificate names.
#[derive(Clone, Debug)]
struct Peer {
    address: SocketAddr,
    local_address: SocketAddr,
    certificate_user: Option<String>,
}

/// What a connection is at: it waits for a request or for its reader, is being answered, or has live events.
#[derive(Debug, Default)]
struct Stage(AtomicU8);

const WAITING: u8 = 0;
const ANSWERED: u8 = 1;
const LIVE: u8 = 2;

impl Stage {
    fn set(&self, stage: u8) {
        self.0.store(stage, Ordering::Relaxed);
    }

    fn is(&self, stage: u8) -> bool {
        self.0.load(Ordering::Relaxed) == stage
    }
}

/// A connection that was accepted.
struct Served {
    stage: Arc<Stage>,
    network: IpAddr,
    task: JoinHandle<()>,
}

/// Answers for ever; with TLS where there is an acceptor. `advertise`: the address this node is known by.
pub async fn accept(
    server: Arc<ServerState>,
    listener: TcpListener,
    tls: Option<Arc<Acceptor>>,
    advertise: Option<String>,
) {
    let admin = Arc::new(Admin {
        own_names: own_names(advertise.as_deref()),
        is_tls: tls.is_some(),
        logins: logins::Logins::default(),
        turns: turns::Turns::default(),
        answers: http::AnswerBudget::default(),
        live: Arc::default(),
        series: Arc::default(),
        contended: api::contention::Cache::default(),
        server,
    });
    let _series =
        AbortOnDrop(tokio::spawn(series::follow(Arc::clone(&admin.server), Arc::clone(&admin.series))));
    let mut connections: VecDeque<Served> = VecDeque::with_capacity(WAITING_MAX);
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                if let Some(left_out) = make_room(&mut connections) {
                    left_out.task.abort();
                    // Until its socket is closed.
                    let _ = left_out.task.await;
                }
                let stage = Arc::new(Stage::default());
                let task = serve(Arc::clone(&admin), stream, address, tls.clone(), Arc::clone(&stage));
                let network = network(address.ip());
                connections.push_back(Served { stage, network, task: tokio::spawn(task) });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed on the admin listener");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The name of this machine, and the one by which other nodes reach it.
fn own_names(advertise: Option<&str>) -> Vec<String> {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let advertised = advertise.and_then(|address| address.rsplit_once(':')).map(|(name, _)| name.to_owned());
    [Some(machine), advertised].into_iter().flatten().filter(|name| !name.is_empty()).collect()
}

/// Who has to go for one more: of the address that has most of those that wait, the one that has waited for longest, and where it is
/// not those that wait who are many, the same of all. So whoever opens many pushes out its own.
fn make_room(connections: &mut VecDeque<Served>) -> Option<Served> {
    if connections.len() < WAITING_MAX {
        return None;
    }
    connections.retain(|connection| !connection.task.is_finished());
    let waits = |connection: &Served| connection.stage.is(WAITING);
    let leaves = oldest_of_most(connections, WAITING_MAX, waits)
        .or_else(|| oldest_of_most(connections, CONNECTIONS_MAX, |_| true));
    leaves.and_then(|oldest| connections.remove(oldest))
}

/// Where there are as many of a kind as there may be.
fn oldest_of_most(
    connections: &VecDeque<Served>,
    max: usize,
    is_kind: impl Fn(&Served) -> bool,
) -> Option<usize> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for connection in connections.iter().filter(|connection| is_kind(connection)) {
        *counts.entry(connection.network).or_default() += 1;
    }
    if counts.values().sum::<usize>() < max {
        return None;
    }
    let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    connections.iter().position(|connection| is_kind(connection) && connection.network == most)
}

async fn serve(
    admin: Arc<Admin>,
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<Acceptor>>,
    stage: Arc<Stage>,
) {
    let Ok(local_address) = stream.local_addr() else { return };
    // Fails only on a socket that is dead already.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES);
    let stream = match tls {
        None => ClientStream::Plain(stream),
        Some(tls) => {
            let handshake = tls.accept(stream, network(address.ip()));
            match tokio::time::timeout(HANDSHAKE_WITHIN, handshake).await {
                Ok(Ok(stream)) => ClientStream::Tls(stream),
                Ok(Err(_)) | Err(_) => return,
            }
        }
    };
    let certificate_user = stream.certificate_name();
    let stream = GuardedStream::new(stream, Arc::clone(&stage));
    let peer = Arc::new(Peer { address, local_address, certificate_user });
    let answer = service_fn(|request| {
        let (admin, peer, stage) = (Arc::clone(&admin), Arc::clone(&peer), Arc::clone(&stage));
        async move { Ok::<_, Infallible>(answer(admin, peer, stage, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    // Whether it was answered, failed or took too long: the connection ends.
    let _ = connection.await;
}

/// Back to waiting, however the answer ends.
struct Answering<'a>(&'a Stage);

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.set(WAITING);
    }
}

async fn answer(
    admin: Arc<Admin>,
    peer: Arc<Peer>,
    stage: Arc<Stage>,
    request: Request<Incoming>,
) -> http::Answer {
    let path = request.uri().path();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if path.starts_with("/api/") {
        return api::answer(&admin, &peer, &stage, request).await;
    }
    if !reads {
        return http::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is known here\n");
    }
    match path {
        "/" => ui::index(),
        "/health" | "/ready" | "/metrics" => probe(&admin.server, path),
        _ => match path.strip_prefix("/ui/") {
            Some(name) => ui::file(name),
            None => {
                let known = "known here: / /api/v1/ /health /ready /metrics\n";
                http::text(StatusCode::NOT_FOUND, known)
            }
        },
    }
}

/// For probes and Prometheus: plain text, and the connection closes behind it.
fn probe(server: &ServerState, path: &str) -> http::Answer {
    let (status, body) = page(server, path);
    let mut answer = http::whole(status, "text/plain; version=0.0.4", body.into(), http::NO_STORE);
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn page(server: &ServerState, path: &str) -> (StatusCode, String) {
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    match path {
        "/ready" if server.tier2.status().quorum => (StatusCode::OK, "ready\n".to_string()),
        "/ready" if server.tier2.is_quarantined() => {
            (unavailable, "quarantined: this node differs from the others\n".to_string())
        }
        "/ready" => (unavailable, "no quorum: the correctness tier does not serve\n".to_string()),
        "/metrics" => (StatusCode::OK, metrics::page(server)),
        _ => (StatusCode::OK, "alive\n".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn served(stage: u8, last_of_address: u8) -> Served {
        let network = Ipv4Addr::new(10, 0, 0, last_of_address).into();
        Served { stage: Arc::new(Stage(stage.into())), network, task: tokio::spawn(std::future::pending()) }
    }

    /// How many of an address are left.
    fn count(connections: &VecDeque<Served>, last_of_address: u8) -> usize {
        let network: IpAddr = Ipv4Addr::new(10, 0, 0, last_of_address).into();
        connections.iter().filter(|connection| connection.network == network).count()
    }

    /// Of no stage can there be more than there are file descriptors for, and one address does not push out another's.
    #[tokio::test]
    async fn connections_are_bounded_whatever_they_are_at() {
        for (stage, max) in [(WAITING, WAITING_MAX), (ANSWERED, CONNECTIONS_MAX), (LIVE, CONNECTIONS_MAX)] {
            let mut connections: VecDeque<Served> = (0..9).map(|_| served(stage, 1)).collect();
            for _ in 0..2 * CONNECTIONS_MAX {
                make_room(&mut connections);
                connections.push_back(served(stage, 2));
                assert!(connections.len() <= max, "stage {stage}: {}", connections.len());
            }
            assert_eq!((connections.len(), count(&connections, 1)), (max, 9), "stage {stage}");
        }
    }

    #[tokio::test]
    async fn probes_find_a_place_beside_connections_of_all_kinds() {
        let mut connections: VecDeque<Served> = VecDeque::new();
        for number in 0..3 * CONNECTIONS_MAX {
            make_room(&mut connections);
            let stage = [WAITING, ANSWERED, LIVE][number % 3];
            connections.push_back(served(stage, 2));
            assert!(connections.len() <= CONNECTIONS_MAX);
        }
        make_room(&mut connections);
        connections.push_back(served(WAITING, 1));
        for _ in 0..CONNECTIONS_MAX {
            make_room(&mut connections);
            connections.push_back(served(ANSWERED, 2));
        }
        assert_eq!(count(&connections, 1), 1);
    }
}
