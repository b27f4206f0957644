//! `CLIENT …`: what clients say of themselves, and what operators ask about clients.

use super::hello::{checked_name, NOT_AN_INTEGER};
use super::transaction::not_in_transaction;
use super::{help, is, unknown_subcommand, wrong_arity};
use crate::server::client::registry::ClientInfo;
use crate::server::client::session::ReplyMode;
use crate::server::client::shown::ClientType;
use crate::server::client::unblock::UnblockWith;
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{IfAbandoned, InFlight, Source};
use bytes::Bytes;
use redfence_core::grammar::errors::shown;
use redfence_core::reply::{Refusal, Reply};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use tokio::sync::oneshot;

pub(super) const SYNTAX: &str = "ERR syntax error";

/// Those with a fixed number of words.
const SUBCOMMANDS: &[&str] = &[
    "CACHING",
    "GETNAME",
    "GETREDIR",
    "ID",
    "INFO",
    "NO-EVICT",
    "NO-TOUCH",
    "SETINFO",
    "SETNAME",
    "TRACKING",
    "TRACKINGINFO",
];
/// Those that may be part of a transaction, and how many words stand behind each.
const QUEUED: &[(&str, usize)] = &[
    ("GETNAME", 0),
    ("GETREDIR", 0),
    ("HELP", 0),
    ("ID", 0),
    ("INFO", 0),
    ("NO-EVICT", 1),
    ("NO-TOUCH", 1),
    ("SETINFO", 2),
    ("SETNAME", 1),
    ("TRACKINGINFO", 0),
];
/// Those that may not: they change what comes behind them, wait, or look at all clients, and a transaction has many commands.
const NOT_QUEUED: &[&str] = &["CACHING", "KILL", "LIST", "PAUSE", "REPLY", "TRACKING", "UNBLOCK", "UNPAUSE"];

/// Whether a `CLIENT` command may be part of a transaction. What is wrong with its words is said when it is queued, as in Redis.
pub(super) fn check_queued(argv: &[&[u8]]) -> Result<(), Refusal> {
    let [_, verb, rest @ ..] = argv else { return Err(wrong_arity(argv[0])) };
    let name = || format!("client|{}", String::from_utf8_lossy(verb).to_ascii_lowercase());
    match QUEUED.iter().find(|(known, _)| is(verb, known)) {
        Some((_, words)) if *words == rest.len() => Ok(()),
        Some(_) => Err(wrong_arity(name().as_bytes())),
        None if NOT_QUEUED.iter().any(|known| is(verb, known)) => Err(not_in_transaction(name().as_bytes())),
        None => Err(unknown_subcommand("CLIENT", verb)),
    }
}

impl CommandContext {
    pub(in crate::server) fn client_command(&mut self, argv: &[&[u8]]) -> Progress {
        let [_, verb, rest @ ..] = argv else { return self.refuse(wrong_arity(argv[0])) };
        if is(verb, "REPLY") {
            return self.client_reply(rest);
        }
        if is(verb, "UNBLOCK") {
            return self.client_unblock(rest);
        }
        if self.has_upstream() && is(verb, "TRACKING") {
            return self.track_at_upstream(argv);
        }
        // It is that Redis which is paused, for everybody.
        if self.has_upstream() && (is(verb, "PAUSE") || is(verb, "UNPAUSE")) {
            return self.pass_to_upstream(argv, None);
        }
        match self.client_inner(verb, rest) {
            Ok(reply) => self.reply(&reply),
            Err(refusal) => self.reply(&Reply::Error(refusal)),
        }
        Progress::Done
    }

    /// One of a transaction that was carried out.
    pub(in crate::server) fn queued_client_command(&mut self, argv: &[Bytes]) -> Reply {
        let words: Vec<&[u8]> = argv.iter().map(|word| &word[..]).collect();
        let [_, verb, rest @ ..] = &words[..] else { return wrong_arity(b"client").into() };
        self.client_inner(verb, rest).unwrap_or_else(Reply::Error)
    }

    /// `CLIENT UNBLOCK id [TIMEOUT|ERROR]`: 1 where a client of this node waits that can be told to stop, else 0.
    fn client_unblock(&mut self, rest: &[&[u8]]) -> Progress {
        let (id, with) = match rest {
            [id] => (id, UnblockWith::Timeout),
            [id, word] if is(word, "TIMEOUT") => (id, UnblockWith::Timeout),
            [id, word] if is(word, "ERROR") => (id, UnblockWith::Error),
            [_, _] => {
                return self.refuse(Refusal::new("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"))
            }
            _ => return self.refuse(wrong_arity(b"client|unblock")),
        };
        let Some(id) = std::str::from_utf8(id).ok().and_then(|id| id.parse::<i64>().ok()) else {
            return self.refuse(Refusal::new(NOT_AN_INTEGER));
        };
        let info = u64::try_from(id).ok().and_then(|id| self.server.clients.get(id));
        let Some(info) = info else {
            self.reply(&Reply::Int(0));
            return Progress::Done;
        };
        let number = info.upstream_number.load(Ordering::Relaxed);
        let Some(upstream) = self.server.upstream.clone().filter(|_| number != 0) else {
            self.reply(&Reply::Int(i64::from(info.unblock.ask(with))));
            return Progress::Done;
        };
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        if info.unblock.ask(with) {
            self.reply(&Reply::Int(1));
            return Progress::Done;
        }
        // It may wait at the upstream Redis, which says whether it does.
        let word = match with {
            UnblockWith::Timeout => "TIMEOUT",
            UnblockWith::Error => "ERROR",
        };
        let argv = ["CLIENT", "UNBLOCK", &number.to_string(), word]
            .map(|word| Bytes::copy_from_slice(word.as_bytes()));
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            // The client may be gone: then nobody misses the answer.
            let _ = sender.send(upstream.ask(&argv).await);
        });
        self.await_call(InFlight::Alone, Source::Node(receiver), false, IfAbandoned::Nothing);
        self.needs_no_routes();
        Progress::Done
    }

    fn client_inner(&mut self, verb: &[u8], rest: &[&[u8]]) -> Result<Reply, Refusal> {
        let info = Arc::clone(&self.client.info);
        self.show_state();
        match rest {
            [] if is(verb, "ID") => Ok(Reply::Int(info.id as i64)),
            [] if is(verb, "GETNAME") => {
                let name = info.texts().name.clone();
                Ok(if name.is_empty() { Reply::Nil } else { Reply::bulk(name) })
            }
            [name] if is(verb, "SETNAME") => {
                info.texts().name = checked_name(name)?;
                Ok(Reply::OK)
            }
            [attribute, value] if is(verb, "SETINFO") => set_info(&info, attribute, value),
            [] if is(verb, "HELP") => Ok(help::lines("CLIENT")),
            [] if is(verb, "INFO") => Ok(Reply::Verbatim((info.line(self.server.now_ms()) + "\n").into())),
            _ if is(verb, "LIST") => self.client_list(rest),
            _ if is(verb, "KILL") => self.client_kill(rest),
            [switch] if is(verb, "NO-EVICT") || is(verb, "NO-TOUCH") => {
                if is(switch, "ON") || is(switch, "OFF") {
                    Ok(Reply::OK)
                } else {
                    Err(Refusal::new(SYNTAX))
                }
            }
            _ if is(verb, "MAINT_NOTIFICATIONS") => Err(unknown_subcommand("CLIENT", verb)),
            [switch, options @ ..] if is(verb, "TRACKING") => self.client_tracking(switch, options),
            [answer] if is(verb, "CACHING") => self.client_caching(answer),
            [] if is(verb, "TRACKINGINFO") => Ok(self.tracking_info()),
            [] if is(verb, "GETREDIR") => Ok(self.redirect()),
            _ if SUBCOMMANDS.iter().any(|known| is(verb, known)) => {
                let name = format!("client|{}", String::from_utf8_lossy(verb).to_ascii_lowercase());
                Err(wrong_arity(name.as_bytes()))
            }
            _ => Err(unknown_subcommand("CLIENT", verb)),
        }
    }

    /// `CLIENT LIST [TYPE type | ID id…]`
    fn client_list(&self, rest: &[&[u8]]) -> Result<Reply, Refusal> {
        let (mut client_type, mut wanted) = (None, None);
        match rest {
            [] => {}
            [word, name] if is(word, "TYPE") => client_type = Some(type_named(name)?),
            [word, ids @ ..] if is(word, "ID") && !ids.is_empty() => {
                let ids: Option<Vec<u64>> =
                    ids.iter().map(|id| redfence_core::grammar::words::decimal(id)).collect();
                wanted = Some(ids.ok_or(Refusal::new("ERR Invalid client ID"))?);
            }
            _ => return Err(Refusal::new(SYNTAX)),
        }
        let now_ms = self.server.now_ms();
        let mut text = String::new();
        for info in self.server.clients.infos() {
            let is_meant = wanted.as_ref().is_none_or(|ids| ids.contains(&info.id))
                && client_type.is_none_or(|wanted| wanted == info.client_type());
            if is_meant {
                text.push_str(&info.line(now_ms));
                text.push('\n');
            }
        }
        Ok(Reply::Verbatim(text.into()))
    }

    /// `CLIENT KILL addr:port` or `CLIENT KILL [ID id] [ADDR addr:port] [LADDR addr:port] [TYPE type] [USER user] [SKIPME yes|no]`
    fn client_kill(&self, rest: &[&[u8]]) -> Result<Reply, Refusal> {
        let own = self.client.info.id;
        if let [address] = rest {
            let victim = self
                .server
                .clients
                .infos()
                .into_iter()
                .find(|info| info.address.to_string().as_bytes() == *address);
            let victim = victim.ok_or(Refusal::new("ERR No such client"))?;
            victim.kill();
            return Ok(Reply::OK);
        }
        let (mut id, mut address, mut local_address, mut user, mut client_type, mut skip_me) =
            (None, None, None, None, None, true);
        if rest.is_empty() {
            return Err(wrong_arity(b"client|kill"));
        }
        if !rest.len().is_multiple_of(2) {
            return Err(Refusal::new(SYNTAX));
        }
        for pair in rest.chunks_exact(2) {
            if is(pair[0], "ID") {
                let number = redfence_core::grammar::words::decimal(pair[1]);
                id = Some(
                    number
                        .filter(|id| *id > 0)
                        .ok_or(Refusal::new("ERR client-id should be greater than 0"))?,
                );
            } else if is(pair[0], "ADDR") {
                address = Some(pair[1]);
            } else if is(pair[0], "LADDR") {
                local_address = Some(pair[1]);
            } else if is(pair[0], "TYPE") {
                client_type = Some(type_named(pair[1])?);
            } else if is(pair[0], "USER") {
                if self.server.access.user(pair[1]).is_none() {
                    return Err(Refusal::new(format!("ERR No such user '{}'", shown(pair[1]))));
                }
                user = Some(pair[1]);
            } else if is(pair[0], "SKIPME") && (is(pair[1], "YES") || is(pair[1], "NO")) {
                skip_me = is(pair[1], "YES");
            } else {
                return Err(Refusal::new(SYNTAX));
            }
        }
        let mut killed = 0;
        for info in self.server.clients.infos() {
            let at = |wanted: Option<&[u8]>, own: SocketAddr| {
                wanted.is_none_or(|wanted| own.to_string().as_bytes() == wanted)
            };
            let meant = client_type.is_none_or(|wanted| wanted == info.client_type())
                && id.is_none_or(|id| info.id == id)
                && user.is_none_or(|user: &[u8]| info.user() == user)
                && at(address, info.address)
                && at(local_address, info.local_address);
            if meant && !(skip_me && info.id == own) {
                info.kill();
                killed += 1;
            }
        }
        Ok(Reply::Int(killed))
    }

    /// `CLIENT REPLY ON|OFF|SKIP`: only ON is answered.
    fn client_reply(&mut self, rest: &[&[u8]]) -> Progress {
        match rest {
            [mode] if is(mode, "ON") => {
                self.client.reply_mode = ReplyMode::On;
                self.reply(&Reply::OK);
            }
            [mode] if is(mode, "OFF") => self.client.reply_mode = ReplyMode::Off,
            [mode] if is(mode, "SKIP") => {
                if self.client.reply_mode != ReplyMode::Off {
                    self.client.reply_mode = ReplyMode::SkipNext;
                }
            }
            _ => return self.refuse(Refusal::new(SYNTAX)),
        }
        Progress::Done
    }
}

fn type_named(name: &[u8]) -> Result<ClientType, Refusal> {
    if is(name, "NORMAL") {
        Ok(ClientType::Normal)
    } else if is(name, "PUBSUB") {
        Ok(ClientType::PubSub)
    } else if is(name, "MASTER") || is(name, "REPLICA") || is(name, "SLAVE") {
        Ok(ClientType::Replication)
    } else {
        Err(Refusal::new(format!("ERR Unknown client type '{}'", shown(name))))
    }
}

fn set_info(info: &ClientInfo, attribute: &[u8], value: &[u8]) -> Result<Reply, Refusal> {
    let name = String::from_utf8_lossy(attribute).to_ascii_lowercase();
    let text = checked_name(value).map_err(|_| {
        Refusal::new(format!("ERR {name} cannot contain spaces, newlines or special characters."))
    })?;
    if is(attribute, "LIB-NAME") {
        info.texts().library = text;
    } else if is(attribute, "LIB-VER") {
        info.texts().library_version = text;
    } else {
        return Err(Refusal::new(format!("ERR Unrecognized option '{}'", shown(attribute))));
    }
    Ok(Reply::OK)
}
