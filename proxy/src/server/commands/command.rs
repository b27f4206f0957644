//! `COMMAND …`: the table of what is answered here, in Redis's own shapes: `LOCK.*` and `FENCE.*`, the commands of the Raft keyspace,
//! and the connection's own.

use super::client::SYNTAX;
use super::{help, is, server, unknown_subcommand, wrong_arity};
use crate::acl::commands;
use crate::resp::encode::Encoder;
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::UpstreamCall;
use crate::server::upstream::reply_edit::ReplyEdit;
use crate::tier1::upstream::{Health, Tier1Backend};
use redfence_core::glob;
use redfence_core::grammar;
use redfence_core::grammar::table::{self, KeyPlaces, Row, ROWS};
use redfence_core::keyspace::acl_table::CATEGORIES;
use redfence_core::keyspace::errors::check_pattern;
use redfence_core::keyspace::table as keyspace;
use redfence_core::reply::{Refusal, Reply};

/// Names of the connection's own commands: enough for clients that ask what there is.
const OTHERS: &[(&str, i64)] = &[
    ("acl", -2),
    ("auth", -2),
    ("client", -2),
    ("cluster", -2),
    ("command", -1),
    ("config", -2),
    ("echo", 2),
    ("hello", -1),
    ("info", -1),
    ("ping", -1),
    ("psubscribe", -2),
    ("publish", 3),
    ("pubsub", -2),
    ("punsubscribe", -1),
    ("quit", -1),
    ("reset", 1),
    ("select", 2),
    ("subscribe", -2),
    ("time", 1),
    ("unsubscribe", -1),
];

/// What `COMMAND LIST FILTERBY MODULE` calls `LOCK.*` and `FENCE.*`: the name of the module that serves them in a Redis.
const MODULE_NAME: &str = "redfence";
const NO_KEYS: &str = "ERR The command has no key arguments";

impl CommandContext {
    pub(in crate::server) fn command(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        let (verb, rest) = match argv {
            [_, verb, rest @ ..] => (*verb, rest),
            _ => (&b""[..], &[][..]),
        };
        if self.has_upstream() && !rest.iter().any(|name| grammar::is_ours(name)) {
            return self.command_of_both(verb, rest, argv, frame);
        }
        let reply = self.command_inner(verb, rest, argv);
        match reply {
            Ok(reply) => self.reply(&reply),
            Err(refusal) => self.reply(&Reply::Error(refusal)),
        }
        Progress::Done
    }

    /// The upstream Redis knows its commands best. Those of ours that it does not have stand behind them.
    fn command_of_both(
        &mut self,
        verb: &[u8],
        rest: &[&[u8]],
        argv: &[&[u8]],
        frame: Option<&[u8]>,
    ) -> Progress {
        let ours = self.rows_beside_upstream();
        let added: Vec<Reply> = match rest {
            [] if argv.len() == 1 || is(verb, "INFO") => ours.iter().map(|row| row_info(row)).collect(),
            [] if is(verb, "DOCS") => {
                ours.iter().map(|row| row_docs(row)).flat_map(|(name, docs)| [name, docs]).collect()
            }
            // A filter that is wrong is refused there.
            _ if is(verb, "LIST") => {
                let names = ours.iter().map(|row| row.name.to_ascii_lowercase());
                listed(rest, names.collect(), true).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let protocol = self.client.protocol;
        let mut bytes = Vec::new();
        added.iter().for_each(|reply| reply.render(&mut Encoder { out: &mut bytes, protocol }));
        let edit = (!added.is_empty()).then(|| Box::new(ReplyEdit::append(added.len(), bytes)));
        let is_count = is(verb, "COUNT") && rest.is_empty();
        let call = UpstreamCall {
            muted: self.client.is_muted(),
            edit,
            added: if is_count { ours.len() } else { 0 },
            ..UpstreamCall::default()
        };
        self.send_to_upstream(argv, frame, call)
    }

    /// `LOCK.*` and `FENCE.*` that the upstream Redis does not list itself.
    fn rows_beside_upstream(&self) -> Vec<&'static Row> {
        let Some(upstream) = &self.server.upstream else { return Vec::new() };
        let table = upstream.command_table();
        let has_module = upstream.health() == Health::Up(Tier1Backend::Module);
        ROWS.iter().filter(|row| !table.has(row.name).unwrap_or(has_module)).collect()
    }

    fn command_inner(&self, verb: &[u8], rest: &[&[u8]], argv: &[&[u8]]) -> Result<Reply, Refusal> {
        if argv.len() == 1 || (is(verb, "INFO") && rest.is_empty()) {
            let infos = ROWS.iter().map(row_info).chain(keyspace::ROWS.iter().map(keyspace_info));
            return Ok(Reply::Array(infos.chain(others().map(other_info)).collect()));
        }
        if is(verb, "COUNT") {
            if !rest.is_empty() {
                return Err(wrong_arity(b"command|count"));
            }
            Ok(Reply::Int((ROWS.len() + keyspace::ROWS.len() + others().count()) as i64))
        } else if is(verb, "LIST") {
            list(rest)
        } else if is(verb, "HELP") && rest.is_empty() {
            Ok(help::lines("COMMAND"))
        } else if is(verb, "INFO") {
            Ok(Reply::Array(rest.iter().map(|name| info_of(name)).collect()))
        } else if is(verb, "DOCS") {
            let asked = |known: &str| rest.is_empty() || rest.iter().any(|name| is(name, known));
            let ours = ROWS.iter().filter(|row| asked(row.name)).map(row_docs);
            let plain = keyspace::ROWS.iter().filter(|row| asked(row.name));
            let plain = plain.map(|row| docs_as_in_redis(row.name, PLAIN_SUMMARY));
            let others = others().map(|(name, _)| name).filter(|name| asked(name));
            let others = others.map(|name| docs_as_in_redis(name, CONNECTION_SUMMARY));
            Ok(Reply::Map(ours.chain(plain).chain(others).collect()))
        } else if is(verb, "GETKEYS") {
            keys_of(rest)
        } else {
            Err(unknown_subcommand("COMMAND", verb))
        }
    }
}

fn list(words: &[&[u8]]) -> Result<Reply, Refusal> {
    let ours = ROWS.iter().map(|row| row.name.to_ascii_lowercase()).collect();
    let plain = keyspace::ROWS.iter().map(|row| row.name.to_owned());
    let others = plain.chain(others().map(|(name, _)| name.to_owned())).collect();
    let mut names = listed(words, ours, true)?;
    names.extend(listed(words, others, false)?);
    Ok(Reply::Array(names))
}

/// `COMMAND LIST [FILTERBY (MODULE name | ACLCAT category | PATTERN pattern)]` of these names. What nothing matches is an empty list, as in Redis.
fn listed(words: &[&[u8]], names: Vec<String>, are_ours: bool) -> Result<Vec<Reply>, Refusal> {
    let mut names = names;
    match words {
        [] => {}
        [filter, kind, name] if is(filter, "FILTERBY") && is(kind, "MODULE") => {
            names.retain(|_| are_ours && is(name, MODULE_NAME));
        }
        [filter, kind, name] if is(filter, "FILTERBY") && is(kind, "ACLCAT") => {
            let bit = commands::category(name).unwrap_or(0);
            names.retain(|name| {
                commands::named(name.as_bytes()).is_some_and(|known| known.categories & bit != 0)
            });
        }
        [filter, kind, pattern] if is(filter, "FILTERBY") && is(kind, "PATTERN") => {
            check_pattern(pattern)?;
            let pattern = pattern.to_ascii_lowercase();
            names.retain(|name| glob::matches(&pattern, name.as_bytes()));
        }
        _ => return Err(Refusal::new(SYNTAX)),
    }
    Ok(names.iter().map(Reply::bulk).collect())
}

fn info_of(name: &[u8]) -> Reply {
    if let Some(row) = table::find(name) {
        return row_info(row);
    }
    if let Some(row) = keyspace::find(name) {
        return keyspace_info(row);
    }
    others().find(|(other, _)| is(name, other)).map_or(Reply::Nil, other_info)
}

/// Those the keyspace's table does not have.
fn others() -> impl Iterator<Item = (&'static str, i64)> {
    let all = OTHERS.iter().copied().chain(server::names());
    all.filter(|(name, _)| keyspace::find(name.as_bytes()).is_none())
}

fn keyspace_info(row: &keyspace::Row) -> Reply {
    let flags = [
        (keyspace::W, "write"),
        (keyspace::R, "readonly"),
        (keyspace::OOM, "denyoom"),
        (keyspace::PUBSUB, "pubsub"),
        (keyspace::NOSCRIPT, "noscript"),
        (keyspace::BLOCK, "blocking"),
        (keyspace::FAST, "fast"),
    ];
    let named = |names: &[(u16, &'static str)]| -> Vec<&'static str> {
        names.iter().filter(|(flag, _)| row.is(*flag)).map(|(_, name)| *name).collect()
    };
    let mut flags = named(&flags);
    let (first, last, step) = row.keys.range();
    if row.keys.is_movable() {
        flags.push("movablekeys");
    }
    let empty = || Reply::Array(vec![]);
    Reply::Array(vec![
        Reply::Text(row.name),
        Reply::Int(i64::from(row.arity)),
        statuses(&flags),
        Reply::Int(first),
        Reply::Int(last),
        Reply::Int(step),
        categories(row.name),
        empty(),
        empty(),
        empty(),
    ])
}

/// As `ACL CAT` knows them.
fn categories(name: &str) -> Reply {
    let bits = commands::named(name.as_bytes()).map_or(0, |known| known.categories);
    let names = CATEGORIES.iter().filter(|(_, bit)| bits & bit != 0);
    Reply::Set(names.map(|(name, _)| Reply::Status(format!("@{name}").into())).collect())
}

fn statuses(words: &[&'static str]) -> Reply {
    Reply::Set(words.iter().map(|word| Reply::Status((*word).into())).collect())
}

fn row_info(row: &Row) -> Reply {
    let mut flags = vec![if row.write { "write" } else { "readonly" }];
    for (set, flag) in [
        (row.deny_oom, "denyoom"),
        (row.blocking, "blocking"),
        (row.fast, "fast"),
        (row.dangerous, "admin"),
        (matches!(row.keys, KeyPlaces::Counted { .. }), "movablekeys"),
    ] {
        if set {
            flags.push(flag);
        }
    }
    let (first, last, step) = match row.keys {
        KeyPlaces::First => (1, 1, 1),
        KeyPlaces::None | KeyPlaces::Counted { .. } => (0, 0, 0),
    };
    Reply::Array(vec![
        Reply::bulk(row.name.to_ascii_lowercase()),
        Reply::Int(row.arity),
        statuses(&flags),
        Reply::Int(first),
        Reply::Int(last),
        Reply::Int(step),
        categories(row.name),
        Reply::Array(vec![]),
        Reply::Array(vec![]),
        Reply::Array(vec![]),
    ])
}

fn other_info((name, arity): (&'static str, i64)) -> Reply {
    let zero = || Reply::Int(0);
    let empty = || Reply::Array(vec![]);
    let flags = statuses(&["noscript", "loading", "stale", "fast"]);
    Reply::Array(vec![
        Reply::Text(name),
        Reply::Int(arity),
        flags,
        zero(),
        zero(),
        zero(),
        categories(name),
        empty(),
        empty(),
        empty(),
    ])
}

fn row_docs(row: &Row) -> (Reply, Reply) {
    let docs = vec![
        (Reply::Text("summary"), Reply::Text(row.summary)),
        (Reply::Text("since"), Reply::Text(env!("CARGO_PKG_VERSION"))),
        (Reply::Text("group"), Reply::Text("lock")),
        (Reply::Text("syntax"), Reply::Text(row.syntax)),
    ];
    (Reply::bulk(row.name.to_ascii_lowercase()), Reply::Map(docs))
}

const PLAIN_SUMMARY: &str = "As in Redis, on keys of the correctness tier: see docs/keyspace.md.";
const CONNECTION_SUMMARY: &str = "As in Redis: about the connection or the server.";

/// What Redis's own documentation says better.
fn docs_as_in_redis(name: &'static str, summary: &'static str) -> (Reply, Reply) {
    let docs = vec![
        (Reply::Text("summary"), Reply::Text(summary)),
        (Reply::Text("since"), Reply::Text(env!("CARGO_PKG_VERSION"))),
        (Reply::Text("group"), Reply::Text("redis")),
    ];
    (Reply::Text(name), Reply::Map(docs))
}

fn keys_of(argv: &[&[u8]]) -> Result<Reply, Refusal> {
    let [name, rest @ ..] = argv else { return Err(wrong_arity(b"command|getkeys")) };
    let Some(row) = table::find(name) else { return plain_keys_of(name, argv) };
    let fits = if row.arity < 0 { argv.len() as i64 >= -row.arity } else { argv.len() as i64 == row.arity };
    if !fits {
        return Err(Refusal::new("ERR Invalid number of arguments specified for command"));
    }
    let keys: Vec<Reply> = match row.keys {
        KeyPlaces::None => return Err(Refusal::new(NO_KEYS)),
        KeyPlaces::First => vec![Reply::bulk(rest[0])],
        KeyPlaces::Counted { step } => {
            let count = redfence_core::grammar::words::decimal(rest[0]).unwrap_or(0);
            let keys = rest[1..]
                .iter()
                .step_by(usize::from(step))
                .take(usize::try_from(count).unwrap_or(usize::MAX));
            keys.map(Reply::bulk).collect()
        }
    };
    Ok(Reply::Array(keys))
}

fn plain_keys_of(name: &[u8], argv: &[&[u8]]) -> Result<Reply, Refusal> {
    if argv.len() == 1 {
        return Err(wrong_arity(b"command|getkeys"));
    }
    let Some(row) = keyspace::find(name) else {
        let is_known = others().any(|(other, _)| is(name, other));
        return Err(Refusal::new(if is_known { NO_KEYS } else { "ERR Invalid command specified" }));
    };
    if !row.takes(argv.len()) {
        return Err(Refusal::new("ERR Invalid number of arguments specified for command"));
    }
    let keys = row.keys_of(argv);
    if keys.is_empty() {
        return Err(Refusal::new(NO_KEYS));
    }
    Ok(Reply::Array(keys.iter().map(Reply::bulk).collect()))
}
