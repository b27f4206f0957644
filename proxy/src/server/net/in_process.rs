//! Connections inside this program: the admin API runs its commands as a client, so that users' rights, limits and the audit log are
//! the same as for every other.

use crate::acl::User;
use crate::resp::encode::Protocol;
use crate::server::access::login::LOGIN_WITHIN;
use crate::server::client::registry::{ClientLimits, TooMany};
use crate::server::client::session::Client;
use crate::server::net::connection::Connection;
use crate::server::routing::router::ListenerKind;
use crate::server::ServerState;
use crate::tls::stream::ClientStream;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use tokio::io::DuplexStream;

/// Bytes under way in each direction.
const BUFFER_BYTES: usize = 256 << 10;
/// What `CLIENT LIST` shows as its name.
const NAME: &str = "admin-api";

/// Whom such a connection stands for.
#[derive(Clone, Debug)]
pub struct InProcessClient {
    /// Of the browser or program that has sent the request.
    pub address: SocketAddr,
    pub local_address: SocketAddr,
    /// Logged in as this user already; `None`: as nobody, as any new client.
    pub user: Option<Arc<User>>,
    /// Why it acts, for the audit log.
    pub reason: Option<Box<str>>,
}

/// The client's end. It speaks RESP3. Whoever calls limits how many there are: they do not count against the clients' limits, so that
/// operators get in when clients fill the node.
pub fn connect(server: &Arc<ServerState>, client: InProcessClient) -> Result<DuplexStream, TooMany> {
    let InProcessClient { address, local_address, user, reason } = client;
    let unlimited = ClientLimits { clients_max: usize::MAX, per_address_max: Some(0) };
    let info = server.clients.enter(address, local_address, server.now_ms(), unlimited, user.is_some())?;
    let account = server.memory.open(info.id);
    let mut client = Client::new(Arc::clone(&info), account, ListenerKind::Main, &server.access);
    client.protocol = Protocol::Resp3;
    info.protocol.store(3, Ordering::Relaxed);
    info.texts().name = NAME.to_owned();
    if let Some(user) = user {
        info.texts().user = String::from_utf8_lossy(&user.name).into_owned();
        client.user = user;
        client.authenticated = true;
        // Of no generation: the first command looks whether it is still as it was.
        client.access_generation = 0;
    }
    client.reason = reason;
    info.logged_in.store(client.authenticated, Ordering::Release);
    if !client.authenticated {
        info.close_without_login(LOGIN_WITHIN);
    }
    let account = Arc::clone(&client.account);
    let (near, far) = tokio::io::duplex(BUFFER_BYTES);
    let connection = Connection::new(Arc::clone(server), ClientStream::InProcess(far), client);
    let task = tokio::spawn(connection.run());
    info.set_task(task.abort_handle());
    account.set_task(task.abort_handle());
    Ok(near)
}
