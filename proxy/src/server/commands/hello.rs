//! `HELLO`, `AUTH`, `SELECT`, `RESET`, `QUIT`: who the client is and how it wants to be spoken to.

use super::{is, wrong_arity};
use crate::resp::encode::Protocol;
use crate::server::client::session::{ReplyMode, DATABASES};
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use redfence_core::reply::{Refusal, Reply};
use std::sync::atomic::Ordering;

/// The Redis whose manners we have; clients switch features by it.
pub const REDIS_VERSION: &str = "7.2.4";

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD_SET: &str =
    "ERR AUTH <password> called without any password configured for the default user. \
                               Are you sure your configuration is correct?";
const HELLO_NEEDS_AUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
                                <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
                                RESP protocol version at the same time";
/// As in Redis: no blanks, no line breaks, nothing that is not plain text.
pub(super) const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
/// A name longer than this helps nobody.
const NAME_BYTES_MAX: usize = 256;

impl CommandContext {
    /// `HELLO [2|3 [AUTH user password] [SETNAME name]]`
    pub(in crate::server) fn hello(&mut self, argv: &[&[u8]]) -> Progress {
        match self.hello_inner(argv) {
            Ok(reply) => self.reply(&reply),
            Err(refusal) => self.reply(&Reply::Error(refusal)),
        }
        Progress::Done
    }

    fn hello_inner(&mut self, argv: &[&[u8]]) -> Result<Reply, Refusal> {
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
                self.authenticate(user, password)?;
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
        Reply::Map(vec![
            pair("server", Reply::Text("redis")),
            pair("version", Reply::Text(REDIS_VERSION)),
            pair("proto", Reply::Int(self.client.protocol.version())),
            pair("id", Reply::Int(self.client.info.id as i64)),
            pair("mode", Reply::Text("standalone")),
            pair("role", Reply::Text("master")),
            pair("modules", Reply::Array(vec![])),
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
        let outcome = match argv {
            [_, _] if self.server.password.is_none() => Err(Refusal::new(NO_PASSWORD_SET)),
            [_, password] => self.authenticate(b"default", password),
            [_, user, password] => self.authenticate(user, password),
            [_] => Err(wrong_arity(b"auth")),
            _ => Err(Refusal::new("ERR syntax error")),
        };
        match outcome {
            Ok(()) => self.reply(&Reply::OK),
            Err(refusal) => self.reply(&Reply::Error(refusal)),
        }
        Progress::Done
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Result<(), Refusal> {
        let right = match &self.server.password {
            Some(expected) => equal_in_constant_time(expected.as_bytes(), password),
            // As Redis's default user with `nopass`: any password will do.
            None => true,
        };
        if user != b"default" || !right {
            return Err(Refusal::new(WRONG_PASSWORD));
        }
        self.client.authenticated = true;
        Ok(())
    }

    /// `SELECT n`
    pub(in crate::server) fn select(&mut self, argv: &[&[u8]]) -> Progress {
        let [_, number] = argv else {
            self.reply(&Reply::Error(wrong_arity(argv[0])));
            return Progress::Done;
        };
        let db = std::str::from_utf8(number).ok().and_then(|text| text.parse::<i64>().ok());
        match db {
            None => self.reply(&Reply::Error(Refusal::new("ERR value is not an integer or out of range"))),
            Some(db) if (0..i64::from(DATABASES)).contains(&db) => {
                self.set_database(db as u32);
                self.reply(&Reply::OK);
            }
            Some(_) => self.reply(&Reply::Error(Refusal::new("ERR DB index is out of range"))),
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
        self.upstream.own = None;
        self.upstream.shared.leave();
        self.forget_transaction();
        self.client.reply_mode = ReplyMode::On;
        self.client.protocol = Protocol::Resp2;
        self.client.db = 0;
        self.client.info.db.store(0, Ordering::Relaxed);
        self.client.info.protocol.store(2, Ordering::Relaxed);
        self.client.info.texts().name.clear();
        self.client.authenticated = self.server.password.is_none();
        self.reply(&Reply::Status("RESET".into()));
        Progress::Done
    }

    pub(in crate::server) fn quit(&mut self) -> Progress {
        self.reply(&Reply::OK);
        Progress::CloseAfterReply
    }
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

/// The time it takes tells nothing about where the two differ.
fn equal_in_constant_time(expected: &[u8], given: &[u8]) -> bool {
    let mut difference = expected.len() ^ given.len();
    for (at, byte) in given.iter().enumerate() {
        let other = expected[at % expected.len().max(1)..].first().copied().unwrap_or(0);
        difference |= usize::from(byte ^ other);
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::equal_in_constant_time;

    #[test]
    fn compares_all_of_it() {
        assert!(equal_in_constant_time(b"secret", b"secret"));
        for wrong in [&b""[..], b"secre", b"secret1", b"Secret", b"secretsecret"] {
            assert!(!equal_in_constant_time(b"secret", wrong), "{wrong:?}");
        }
    }
}
