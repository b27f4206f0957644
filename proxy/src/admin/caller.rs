//! On whose behalf a request acts. What it asks the node goes as commands over a connection inside this program, so that rights,
//! limits and the audit log are those of any client.

use super::api::ApiError;
use super::logins::LoginEnd;
use super::{http, logins, Admin, Peer};
use crate::acl::check::Denial;
use crate::acl::User;
use crate::cli::connection::Connection;
use crate::cli::reply::Reply;
use crate::node_api::OwnedQuery;
use crate::resp::encode::{Encoder, Protocol};
use crate::server::net::in_process::{self, InProcessClient};
use hyper::header::{self, HeaderMap};
use std::sync::Arc;

/// Commands that are sent before the first reply is read. With names of 512 bytes they fit into the connection's buffer.
const BATCH_MAX: usize = 128;

pub(super) struct Caller {
    pub(super) admin: Arc<Admin>,
    pub(super) user: Arc<User>,
    /// The end of the login it came by, if it came by one.
    pub(super) login: Option<LoginEnd>,
    /// The reason that was given for an action.
    pub(super) reason: Option<Box<str>>,
    peer: Arc<Peer>,
    connection: Option<Connection>,
}

impl Caller {
    /// Who a request comes from: by its cookie, its certificate, or the default user where that one needs no password.
    pub(super) fn of(admin: &Arc<Admin>, peer: &Arc<Peer>, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let access = &admin.server.access;
        let by_cookie = || admin.logins.user_of(http::cookie(headers, logins::COOKIE)?, &admin.server);
        let by_certificate = || {
            let user = access.user(peer.certificate_user.as_ref()?.as_bytes()).filter(|user| user.is_on);
            user.map(|user| (user, None))
        };
        let by_cookie = || by_cookie().map(|(user, login)| (user, Some(login)));
        let (user, login) = match by_cookie().or_else(by_certificate) {
            Some(found) => found,
            None if access.needs_login() => return Err(ApiError::login_needed()),
            None => {
                let host = http::header_text(headers, header::HOST).unwrap_or_default();
                if !http::is_own_host(host, &admin.own_names) {
                    return Err(ApiError::other_host());
                }
                (access.default_user(), None)
            }
        };
        let (admin, peer) = (Arc::clone(admin), Arc::clone(peer));
        Ok(Caller { admin, user, login, reason: None, peer, connection: None })
    }

    /// Whether it may run this command at all, on whichever key.
    pub(super) fn may_run(&self, words: &[&[u8]]) -> bool {
        match self.user.check(words, None) {
            Ok(()) | Err(Denial::Key(_) | Denial::Channel(_)) => true,
            Err(Denial::Command(_)) => false,
        }
    }

    /// Refuses where the user may not run this command. For what no command answers.
    pub(super) fn check(&self, words: &[&[u8]]) -> Result<(), ApiError> {
        self.user.check(words, None).map_err(|denial| ApiError::of_text(&denial.refusal().0))
    }

    fn connection(&mut self) -> Result<&mut Connection, ApiError> {
        if self.connection.is_none() {
            let client = InProcessClient {
                address: self.peer.address,
                local_address: self.peer.local_address,
                user: Some(Arc::clone(&self.user)),
                reason: self.reason.clone(),
            };
            let stream = in_process::connect(&self.admin.server, client)
                .map_err(|_| ApiError::unavailable("too many clients"))?;
            self.connection = Some(Connection::over(stream));
        }
        self.connection.as_mut().ok_or_else(|| ApiError::unavailable("no connection"))
    }

    /// Runs one command. An error of the node is an error.
    pub(super) async fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Result<Reply, ApiError> {
        let reply = self.connection()?.ask(words).await.map_err(|_| ApiError::cut_off())?;
        match reply {
            Reply::Error(text) => Err(ApiError::of_text(&text)),
            reply @ (Reply::Nil
            | Reply::Int(_)
            | Reply::Text(_)
            | Reply::Array(_)
            | Reply::Map(_)
            | Reply::Push(_)) => Ok(reply),
        }
    }

    /// Asks the state for what no command answers. The caller's rights are checked before.
    pub(super) async fn query(&self, query: OwnedQuery) -> Result<Reply, ApiError> {
        let answer = self.admin.server.tier2.query(query).await;
        let mut bytes = Vec::new();
        answer.render(&mut Encoder { out: &mut bytes, protocol: Protocol::Resp3 });
        match Reply::parse(&bytes) {
            Ok(Some((Reply::Error(text), _))) => Err(ApiError::of_text(&text)),
            Ok(Some((reply, _))) => Ok(reply),
            Ok(None) | Err(_) => Err(ApiError::cut_off()),
        }
    }

    /// Runs many, and gives all replies as they are.
    pub(super) async fn ask_all(&mut self, commands: &[Vec<Vec<u8>>]) -> Result<Vec<Reply>, ApiError> {
        let mut replies = Vec::with_capacity(commands.len());
        for batch in commands.chunks(BATCH_MAX) {
            replies.extend(self.connection()?.ask_all(batch).await.map_err(|_| ApiError::cut_off())?);
        }
        Ok(replies)
    }
}

/// Tries a user name and a password, as `AUTH` does.
pub(super) async fn log_in(
    admin: &Arc<Admin>,
    peer: &Peer,
    user: &[u8],
    password: &[u8],
) -> Result<Arc<User>, ApiError> {
    let client = InProcessClient {
        address: peer.address,
        local_address: peer.local_address,
        user: None,
        reason: None,
    };
    let stream =
        in_process::connect(&admin.server, client).map_err(|_| ApiError::unavailable("too many clients"))?;
    // Before the check: one that is changed meanwhile has another password.
    let found = admin.server.access.user(user);
    let mut connection = Connection::over(stream);
    let reply = connection.ask(&[b"AUTH", user, password]).await.map_err(|_| ApiError::cut_off())?;
    match (reply, found) {
        (Reply::Error(text), _) => Err(ApiError::of_text(&text)),
        (Reply::Text(_), Some(user)) => Ok(user),
        (
            Reply::Nil | Reply::Int(_) | Reply::Text(_) | Reply::Array(_) | Reply::Map(_) | Reply::Push(_),
            _,
        ) => Err(ApiError::cut_off()),
    }
}
