//! `HELLO`, `AUTH`, `SELECT`, `RESET`, `QUIT`: who the client is and how it wants to be spoken to.

use super::{is, wrong_arity};
use crate::acl::log::Refused;
use crate::acl::User;
use crate::resp::encode::Protocol;
use crate::server::access::audit::AuditEvent;
use crate::server::access::login::{self, DelayedLogin};
use crate::server::client::session::{BeforeLogin, ReplyMode, DATABASES};
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{IfAbandoned, InFlight, Source};
use redfence_core::grammar::errors::shown;
use redfence_core::reply::{Refusal, Reply};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The Redis whose grammar and texts the Raft keyspace has, as scripts are told too; clients switch features by it.
pub const REDIS_VERSION: &str = "7.0.15";

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD_SET: &str =
    "ERR AUTH <password> called without any password configured for the default user. \
                               Are you sure your configuration is correct?";
const HELLO_NEEDS_AUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
                                <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
                                RESP protocol version at the same time";
/// As in Redis: no blanks, no line breaks, nothing that is not plain text.
pub(super) const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
/// A name longer than this helps nobody.
const NAME_BYTES_MAX: usize = 256;

impl CommandContext {
    /// `HELLO [2|3 [AUTH user password] [SETNAME name]]`
    pub(in crate::server) fn hello(&mut self, argv: &[&[u8]]) -> Progress {
        let mut delay = None;
        let answer = self.hello_inner(argv, &mut delay);
        self.reply_after(delay, answer.unwrap_or_else(Reply::Error))
    }

    fn hello_inner(&mut self, argv: &[&[u8]], delay: &mut Option<DelayedLogin>) -> Result<Reply, Refusal> {
        let mut protocol = self.client.protocol;
        let mut words = argv[1..].iter().copied();
        if let Some(version) = words.next() {
            protocol = match version {
                b"2" => Protocol::Resp2,
                b"3" => Protocol::Resp3,
                _ if redfence_core::grammar::words::decimal(version).is_none() => {
                    return Err(Refusal::new("ERR Protocol version is not an integer or out of range"));
                }
                _ => return Err(Refusal::new("NOPROTO unsupported protocol version")),
            };
        }
        let mut name = None;
        while let Some(word) = words.next() {
            if is(word, "AUTH") {
                let (Some(user), Some(password)) = (words.next(), words.next()) else {
                    return Err(hello_syntax(word));
                };
                self.log_in(user, password, delay)?;
            } else if is(word, "SETNAME") {
                let Some(value) = words.next() else { return Err(hello_syntax(word)) };
                name = Some(checked_name(value)?);
            } else {
                return Err(hello_syntax(word));
            }
        }
        if !self.client.authenticated {
            return Err(Refusal::new(HELLO_NEEDS_AUTH));
        }
        if let Some(name) = name {
            self.client.info.texts().name = name;
        }
        self.set_protocol(protocol);
        Ok(self.greeting())
    }

    fn greeting(&self) -> Reply {
        let pair = |key: &'static str, value: Reply| (Reply::Text(key), value);
        // Of the Redis that answers plain commands of this client, if one does.
        let upstream = self.server.upstream.as_ref().filter(|_| self.has_upstream());
        let version = upstream.and_then(|upstream| upstream.version());
        let modules = upstream.map(|upstream| upstream.modules()).unwrap_or_default();
        let module = |(name, version): &(String, i64)| {
            Reply::Map(vec![pair("name", Reply::bulk(name)), pair("ver", Reply::Int(*version))])
        };
        Reply::Map(vec![
            pair("server", Reply::Text("redis")),
            pair("version", version.map_or(Reply::Text(REDIS_VERSION), Reply::bulk)),
            pair("proto", Reply::Int(self.client.protocol.version())),
            pair("id", Reply::Int(self.client.info.id as i64)),
            pair("mode", Reply::Text("standalone")),
            pair(
                "role",
                Reply::Text(if upstream.is_some_and(|upstream| upstream.is_replica()) {
                    "replica"
                } else {
                    "master"
                }),
            ),
            pair("modules", Reply::Array(modules.iter().map(module).collect())),
        ])
    }

    fn set_protocol(&mut self, protocol: Protocol) {
        if self.client.protocol != protocol {
            self.client.protocol = protocol;
            self.client.info.protocol.store(protocol.version() as u64, Ordering::Relaxed);
            self.upstream.shared.leave();
            if let Some(connection) = &mut self.upstream.own {
                connection.send_ours(&["HELLO", &protocol.version().to_string()]);
            }
        }
    }

    /// `AUTH [user] password`
    pub(in crate::server) fn auth(&mut self, argv: &[&[u8]]) -> Progress {
        let mut delay = None;
        let outcome = match argv {
            [_, _] if self.server.access.default_user().nopass => Err(Refusal::new(NO_PASSWORD_SET)),
            [_, password] => self.log_in(b"default", password, &mut delay),
            [_, user, password] => self.log_in(user, password, &mut delay),
            [_] => Err(wrong_arity(b"auth")),
            _ => Err(Refusal::new("ERR syntax error")),
        };
        self.reply_after(delay, outcome.map_or_else(Reply::Error, |()| Reply::OK))
    }

    /// Becomes this user, if the password is right. `delay`: how long the answer has to wait.
    fn log_in(
        &mut self,
        name: &[u8],
        password: &[u8],
        delay: &mut Option<DelayedLogin>,
    ) -> Result<(), Refusal> {
        let server = Arc::clone(&self.server);
        let (access, info) = (&server.access, Arc::clone(&self.client.info));
        let (address, now_ms) = (info.address.ip(), server.now_ms());
        if !access.throttle.admits(address, name, now_ms) {
            // Made-up names share a line: nothing slows down whoever sends them.
            let known = access.user(name).map_or(&b"(unknown)"[..], |_| name);
            self.audit_failed_login(known, "ERR", b"too many failed logins");
            return Err(Refusal::new(login::TOO_MANY));
        }
        let generation = access.generation();
        let user = access.user(name);
        // As much work for a name nobody has.
        let is_right = user
            .as_ref()
            .map_or_else(|| User::new(name).takes_password(password), |user| user.takes_password(password));
        let failed_here = if is_right { 0 } else { self.client.failed_logins.saturating_add(1) };
        if let Some(login) = access.throttle.delay(address, name, failed_here, now_ms) {
            // `HELLO` may name several users: the longest wait counts.
            let (longer, shorter) = match delay.take() {
                Some(before) if before.wait > login.wait => (before, Some(login)),
                before => (login, before),
            };
            shorter.iter().for_each(|login| access.throttle.answered(login));
            *delay = Some(longer);
        }
        let Some(user) = user.filter(|_| is_right) else {
            self.client.failed_logins = failed_here;
            self.note_failed_login(name);
            return Err(Refusal::new(WRONG_PASSWORD));
        };
        info.texts().user = String::from_utf8_lossy(&user.name).into_owned();
        info.logged_in.store(true, Ordering::Release);
        self.client.user = user;
        self.client.access_generation = generation;
        self.client.authenticated = true;
        self.client.before_login = BeforeLogin::default();
        Ok(())
    }

    /// Counts a command of a client that is not logged in. One too many is answered here, and ends the connection.
    pub(in crate::server) fn is_beyond_login_commands(&mut self) -> bool {
        self.client.before_login.commands += 1;
        self.refuse_beyond(self.client.before_login.commands > login::COMMANDS_BEFORE_MAX)
    }

    /// The same for bytes, whether or not they were commands.
    pub(in crate::server) fn is_beyond_login_bytes(&mut self, bytes: usize) -> bool {
        self.client.before_login.bytes += bytes;
        self.refuse_beyond(self.client.before_login.bytes > login::BYTES_BEFORE_MAX)
    }

    fn refuse_beyond(&mut self, is_beyond: bool) -> bool {
        if is_beyond {
            tracing::debug!(client = %self.client.info.address, "closing client: too much sent without a login");
            self.reply(&Reply::Error(Refusal::new(login::TOO_MUCH_BEFORE)));
        }
        is_beyond
    }

    fn note_failed_login(&self, name: &[u8]) {
        let (access, info) = (&self.server.access, &self.client.info);
        let refused = Refused { reason: "auth", context: "toplevel", object: b"AUTH", user: name };
        access.note_refusal(refused, || info.line(self.server.now_ms()));
        tracing::warn!(client = %info.address, user = shown(name), "login failed");
        self.audit_failed_login(name, "WRONGPASS", b"");
    }

    fn audit_failed_login(&self, name: &[u8], result: &str, object: &[u8]) {
        if let Some(audit) = &self.server.access.audit {
            audit.write_refusal(AuditEvent {
                event: "login_failed",
                user: name,
                client: self.client.info.address,
                command: "auth",
                arguments: &[],
                result,
                object,
            });
        }
    }

    /// Answers now, or when the time is up. Nothing else of this client is served meanwhile.
    fn reply_after(&mut self, delay: Option<DelayedLogin>, reply: Reply) -> Progress {
        let Some(delay) = delay else {
            self.reply(&reply);
            return Progress::Done;
        };
        let (sender, receiver) = oneshot::channel();
        let server = Arc::clone(&self.server);
        tokio::spawn(async move {
            tokio::time::sleep(delay.wait).await;
            server.access.throttle.answered(&delay);
            // The client may be gone: then nobody misses the answer.
            let _ = sender.send(reply);
        });
        self.await_call(InFlight::Alone, Source::Node(receiver), false, IfAbandoned::Nothing);
        self.needs_no_routes();
        Progress::Done
    }

    /// `SELECT n`
    pub(in crate::server) fn select(&mut self, argv: &[&[u8]]) -> Progress {
        let [_, number] = argv else {
            self.reply(&Reply::Error(wrong_arity(argv[0])));
            return Progress::Done;
        };
        match asked_database(number) {
            None => self.reply(&Reply::Error(Refusal::new(NOT_AN_INTEGER))),
            Some(Some(db)) => {
                self.set_database(db);
                self.reply(&Reply::OK);
            }
            Some(None) => self.reply(&Reply::Error(Refusal::new("ERR DB index is out of range"))),
        }
        Progress::Done
    }

    pub(in crate::server) fn set_database(&mut self, db: u32) {
        self.client.db = db;
        self.client.info.db.store(u64::from(db), Ordering::Relaxed);
        if let Some(connection) = &mut self.upstream.own {
            connection.send_ours(&["SELECT", &db.to_string()]);
        }
    }

    /// `RESET`: the connection as it was when it was opened.
    pub(in crate::server) fn reset(&mut self) -> Progress {
        self.drop_subscriptions();
        self.stop_tracking();
        self.stop_notifying();
        self.client.told = Default::default();
        self.upstream.own = None;
        self.client.monitors = false;
        self.upstream.shared.leave();
        self.forget_transaction();
        self.client.reply_mode = ReplyMode::On;
        self.client.protocol = Protocol::Resp2;
        self.client.db = 0;
        self.client.info.db.store(0, Ordering::Relaxed);
        self.client.info.protocol.store(2, Ordering::Relaxed);
        self.client.info.texts().name.clear();
        self.client.access_generation = self.server.access.generation();
        self.client.user = self.server.access.default_user();
        let was_logged_in = self.client.authenticated;
        self.client.authenticated = !self.server.access.needs_login();
        self.client.info.texts().user.clear();
        if self.client.authenticated {
            self.client.info.logged_in.store(true, Ordering::Release);
        } else if was_logged_in {
            self.client.info.close_without_login(login::LOGIN_WITHIN);
        }
        self.reply(&Reply::Status("RESET".into()));
        Progress::Done
    }

    pub(in crate::server) fn quit(&mut self) -> Progress {
        self.reply(&Reply::OK);
        Progress::CloseAfterReply
    }
}

/// The database that a word names. `None`: no number. `Some(None)`: there is no such database.
pub(super) fn asked_database(word: &[u8]) -> Option<Option<u32>> {
    let db: i64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    Some(u32::try_from(db).ok().filter(|db| *db < DATABASES))
}

fn hello_syntax(word: &[u8]) -> Refusal {
    Refusal::new(format!(
        "ERR Syntax error in HELLO option '{}'",
        redfence_core::grammar::errors::shown(word)
    ))
}

/// A client's name as Redis allows it.
pub(super) fn checked_name(name: &[u8]) -> Result<String, Refusal> {
    if name.len() > NAME_BYTES_MAX || !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err(Refusal::new(BAD_NAME));
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}
