//! Accepts clients. Whatever goes wrong with one of them, or with the number of open files, the next is accepted.

use crate::server::access::login::LOGIN_WITHIN;
use crate::server::client::registry::{network, ClientLimits, TooMany};
use crate::server::client::session::Client;
use crate::server::net::connection::Connection;
use crate::server::routing::router::ListenerKind;
use crate::server::ServerState;
use crate::tls::acceptor::Acceptor;
use crate::tls::stream::ClientStream;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Pause after a failed accept: a process out of file descriptors must not spin.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);
const BACKLOG: u32 = 1024;
/// A client that says nothing is asked by the system whether it is still there, and given up after half a minute without an answer.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";
const TOO_MANY_OF_ADDRESS: &[u8] = b"-ERR max number of clients of this address reached\r\n";

/// Binds an address. The error says which and why.
pub fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "std's error kinds: the others speak for themselves")]
    let explain = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => format!("cannot listen on {address}: the address is in use"),
        io::ErrorKind::PermissionDenied => format!("cannot listen on {address}: permission denied"),
        _ => format!("cannot listen on {address}: {error}"),
    };
    let socket =
        if address.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() };
    let socket = socket.map_err(explain)?;
    socket.set_reuseaddr(true).map_err(explain)?;
    socket.bind(address).map_err(explain)?;
    socket.listen(BACKLOG).map_err(explain)
}

/// Accepts for ever; with TLS where there is an acceptor.
pub async fn accept(
    server: Arc<ServerState>,
    listener: TcpListener,
    listener_kind: ListenerKind,
    tls: Option<Arc<Acceptor>>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => welcome(&server, stream, address, listener_kind, tls.as_ref()),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

fn welcome(
    server: &Arc<ServerState>,
    stream: TcpStream,
    address: SocketAddr,
    listener_kind: ListenerKind,
    tls: Option<&Arc<Acceptor>>,
) {
    let Ok(local_address) = stream.local_addr() else { return };
    // Fails only on a socket that is dead already.
    let _ = stream.set_nodelay(true);
    // A host that is gone without a word would be blocked, and keep its sessions, for ever.
    let _ = SockRef::from(&stream).set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_EVERY)
            .with_retries(KEEPALIVE_RETRIES),
    );
    let limits =
        ClientLimits { clients_max: server.clients_max, per_address_max: server.clients_per_address_max };
    // Before its handshake nobody knows who it is.
    let logged_in = tls.is_none() && !server.access.needs_login();
    let info = match server.clients.enter(address, local_address, server.now_ms(), limits, logged_in) {
        Ok(info) => info,
        Err(too_many) => {
            server.stats.connections_refused.fetch_add(1, Ordering::Relaxed);
            if tls.is_none() {
                tokio::spawn(turn_away(stream, too_many));
            }
            return;
        }
    };
    server.stats.connections.fetch_add(1, Ordering::Relaxed);
    let account = server.memory.open(info.id);
    let client = Client::new(Arc::clone(&info), account, listener_kind, &server.access);
    info.logged_in.store(client.authenticated && tls.is_none(), Ordering::Release);
    if !client.authenticated {
        info.close_without_login(LOGIN_WITHIN);
    }
    let account_of_task = Arc::clone(&client.account);
    let task = match tls {
        None => {
            let stream = ClientStream::Plain(stream);
            tokio::spawn(Connection::new(Arc::clone(server), stream, client).run())
        }
        Some(tls) => {
            let newcomer = Newcomer { server: Arc::clone(server), client: Some(client) };
            tokio::spawn(serve_tls(newcomer, Arc::clone(tls), stream, network(address.ip())))
        }
    };
    info.set_task(task.abort_handle());
    account_of_task.set_task(task.abort_handle());
}

/// A client before its handshake: it counts as connected, and is forgotten where the handshake fails.
struct Newcomer {
    server: Arc<ServerState>,
    client: Option<Client>,
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            self.server.clients.leave(client.info.id);
            client.account.leave();
        }
    }
}

async fn serve_tls(mut newcomer: Newcomer, tls: Arc<Acceptor>, stream: TcpStream, network: IpAddr) {
    let stream = match tls.accept(stream, network).await {
        Ok(stream) => ClientStream::Tls(stream),
        Err(error) => {
            newcomer.server.stats.tls_handshakes_failed.fetch_add(1, Ordering::Relaxed);
            let id = newcomer.client.as_ref().map(|client| client.info.id);
            tracing::debug!(client = id, %error, "TLS handshake failed");
            return;
        }
    };
    drop(tls);
    let Some(mut client) = newcomer.client.take() else { return };
    client.info.logged_in.store(client.authenticated, Ordering::Release);
    client.certificate_user = stream.certificate_name().map(String::into_boxed_str);
    client.log_in_by_certificate(&newcomer.server.access);
    let connection = Connection::new(Arc::clone(&newcomer.server), stream, client);
    drop(newcomer);
    // On the heap: a task is as large as the largest of its parts, and the handshake is over.
    Box::pin(connection.run()).await;
}

async fn turn_away(mut stream: TcpStream, too_many: TooMany) {
    let line = match too_many {
        TooMany::Clients => TOO_MANY,
        TooMany::OfThisAddress => TOO_MANY_OF_ADDRESS,
    };
    // Nobody waits for the outcome.
    let _ = stream.write_all(line).await;
}

/// Ends idle clients, for ever.
pub async fn keep_ending_idle(server: Arc<ServerState>) {
    let idle_ms = server.idle_timeout_ms;
    loop {
        tokio::time::sleep(Duration::from_millis((idle_ms / 4).clamp(10, 1_000))).await;
        let ended = server.clients.end_idle(server.now_ms(), idle_ms);
        server.stats.idle_disconnected.fetch_add(ended as u64, Ordering::Relaxed);
    }
}
