//! On whose behalf a request acts. What it asks the node goes as commands over a connection inside this program, so that rights,
//! limits and the audit log are those of any client.

use super::api::ApiError;
use super::logins::LoginEnd;
use super::{http, logins, Admin, Peer};
use crate::acl::check::Denial;
use crate::acl::{commands, User};
use crate::cli::connection::Connection;
use crate::cli::reply::Reply;
use crate::node_api::OwnedQuery;
use crate::resp::encode::{Encoder, Protocol};
use crate::server::access::audit::AuditEvent;
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
        let by_cookie = || {
            let name = logins::cookie_name(admin, peer);
            admin.logins.user_of(http::cookie(headers, &name)?, &admin.server)
        };
        let by_certificate = || access.user(peer.certificate_user.as_ref()?.as_bytes());
        let by_cookie = by_cookie().map(|(user, login)| (user, Some(login)));
        let (user, login) = match by_cookie.or_else(|| by_certificate().map(|user| (user, None))) {
            // Of a user who was locked out: it does not act as the default user instead.
            Some((user, None)) if !user.is_on => return Err(ApiError::login_needed()),
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

    /// Refuses where the user may not run this command. For what no command answers: so the refusal is written down here.
    pub(super) fn check(&self, words: &[&[u8]]) -> Result<(), ApiError> {
        self.user.check(words, None).map_err(|denial| {
            self.note_denial(&denial, words);
            ApiError::of_text(&denial.refusal().0)
        })
    }

    /// The same where the key or channel does not matter.
    pub(super) fn check_command(&self, words: &[&[u8]]) -> Result<(), ApiError> {
        match self.may_run(words) {
            true => Ok(()),
            false => self.check(words),
        }
    }

    /// As a connection does: `ACL LOG` and the audit log have every refusal.
    fn note_denial(&self, denial: &Denial, words: &[&[u8]]) {
        let access = &self.admin.server.access;
        let (address, user) = (self.peer.address, &self.user.name);
        let client = || format!("addr={address} name=admin-api user={}", String::from_utf8_lossy(user));
        access.note_denial(denial, "toplevel", user, client);
        if let Some(audit) = &access.audit {
            audit.write_refusal(AuditEvent {
                event: "denied",
                user,
                client: address,
                command: commands::find(words).map_or("unknown", |known| known.name.as_str()),
                arguments: commands::arguments_of(words),
                result: "NOPERM",
                object: denial.reason().1,
            });
        }
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

    /// Runs many, and hands on each reply as it comes.
    pub(super) async fn ask_each(
        &mut self,
        commands: &[Vec<Vec<u8>>],
        mut each: impl FnMut(Reply),
    ) -> Result<(), ApiError> {
        for batch in commands.chunks(BATCH_MAX) {
            self.connection()?.ask_each(batch, &mut each).await.map_err(|_| ApiError::cut_off())?;
        }
        Ok(())
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
