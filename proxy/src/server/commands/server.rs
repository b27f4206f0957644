//! Commands about the server itself, where there is no Redis to ask: what drivers and monitors send in passing. Each says what is
//! true of this node, in Redis's shape; what has no meaning here has no row.
//!
//! Chosen by [`crate::server::routing::plan`] for commands the Raft keyspace does not know.

use super::{help, is, unknown_command, unknown_subcommand, wrong_arity};
use crate::clock;
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use redfence_core::reply::{Refusal, Reply};

type ReplyResult = Result<Reply, Refusal>;

struct ServerCommand {
    name: &'static str,
    /// As in Redis: the name counts, negative means "at least".
    arity: isize,
    run: fn(&CommandContext, &[&[u8]]) -> ReplyResult,
}

#[rustfmt::skip]
const ROWS: &[ServerCommand] = &[
    ServerCommand { name: "asking", arity: 1, run: no_cluster },
    ServerCommand { name: "bgsave", arity: -1, run: saved },
    ServerCommand { name: "debug", arity: -2, run: debug },
    ServerCommand { name: "lastsave", arity: 1, run: last_save },
    ServerCommand { name: "latency", arity: -2, run: latency },
    ServerCommand { name: "module", arity: -2, run: module },
    ServerCommand { name: "readonly", arity: 1, run: no_cluster },
    ServerCommand { name: "readwrite", arity: 1, run: no_cluster },
    ServerCommand { name: "role", arity: 1, run: role },
    ServerCommand { name: "save", arity: 1, run: saved },
    ServerCommand { name: "slowlog", arity: -2, run: slow_log },
    ServerCommand { name: "wait", arity: 3, run: wait },
    ServerCommand { name: "waitaof", arity: 4, run: wait_aof },
];

/// Names and arities, for `COMMAND`.
pub(super) fn names() -> impl Iterator<Item = (&'static str, i64)> {
    ROWS.iter().map(|row| (row.name, row.arity as i64))
}

fn find(name: &[u8]) -> Option<&'static ServerCommand> {
    ROWS.iter().find(|row| is(name, row.name))
}

#[must_use]
pub(in crate::server) fn knows(name: &[u8]) -> bool {
    find(name).is_some()
}

impl CommandContext {
    pub(in crate::server) fn server_command(&mut self, argv: &[&[u8]]) -> Progress {
        let Some(row) = find(argv[0]) else { return self.refuse(unknown_command(argv)) };
        let words = argv.len() as isize;
        let fits = if row.arity < 0 { words >= -row.arity } else { words == row.arity };
        let answer = if fits { (row.run)(self, argv) } else { Err(wrong_arity(argv[0])) };
        self.reply(&answer.unwrap_or_else(Reply::Error));
        Progress::Done
    }
}

/// Nodes beside this one that are certain to have every write the client was answered: a majority has it.
fn certain_replicas(context: &CommandContext) -> i64 {
    context.server.tier2.status().voters as i64 / 2
}

fn integer(word: &[u8], text: &'static str) -> Result<i64, Refusal> {
    let number = std::str::from_utf8(word).ok().and_then(|text| text.parse::<i64>().ok());
    number.ok_or(Refusal::new(text))
}

/// `WAIT numreplicas timeout`: there is nothing left to wait for when a write is answered.
fn wait(context: &CommandContext, argv: &[&[u8]]) -> ReplyResult {
    integer(argv[1], "ERR value is not an integer or out of range")?;
    timeout(argv[2])?;
    Ok(Reply::Int(certain_replicas(context)))
}

/// `WAITAOF numlocal numreplicas timeout`: what is answered is on the disks of a majority.
fn wait_aof(context: &CommandContext, argv: &[&[u8]]) -> ReplyResult {
    integer(argv[1], "ERR value is out of range, value must between 0 and 1")?;
    integer(argv[2], "ERR value is out of range, must be positive")?;
    timeout(argv[3])?;
    Ok(Reply::Array(vec![Reply::Int(1), Reply::Int(certain_replicas(context))]))
}

fn timeout(word: &[u8]) -> Result<(), Refusal> {
    match integer(word, "ERR timeout is not an integer or out of range")? {
        ms if ms < 0 => Err(Refusal::new("ERR timeout is negative")),
        _ => Ok(()),
    }
}

/// Every node takes writes, and has no replicas of its own.
fn role(_: &CommandContext, _: &[&[u8]]) -> ReplyResult {
    Ok(Reply::Array(vec![Reply::Text("master"), Reply::Int(0), Reply::Array(vec![])]))
}

/// Everything answered is on disk already.
fn saved(_: &CommandContext, _: &[&[u8]]) -> ReplyResult {
    Ok(Reply::OK)
}

fn last_save(_: &CommandContext, _: &[&[u8]]) -> ReplyResult {
    Ok(Reply::Int((clock::wall_us() / 1_000_000) as i64))
}

fn no_cluster(_: &CommandContext, _: &[&[u8]]) -> ReplyResult {
    Err(Refusal::new("ERR This instance has cluster support disabled"))
}

fn module(_: &CommandContext, argv: &[&[u8]]) -> ReplyResult {
    match argv[1] {
        verb if is(verb, "LIST") && argv.len() == 2 => Ok(Reply::Array(vec![])),
        verb if is(verb, "HELP") && argv.len() == 2 => Ok(help::lines("MODULE")),
        verb => Err(unknown_subcommand("MODULE", verb)),
    }
}

/// Latencies are in `INFO redfence`; Redis's monitor of events is off here, as it is in Redis by default.
fn latency(_: &CommandContext, argv: &[&[u8]]) -> ReplyResult {
    match argv[1] {
        verb if is(verb, "LATEST") && argv.len() == 2 => Ok(Reply::Array(vec![])),
        verb if is(verb, "HISTORY") && argv.len() == 3 => Ok(Reply::Array(vec![])),
        verb if is(verb, "RESET") => Ok(Reply::Int(0)),
        verb if is(verb, "HELP") && argv.len() == 2 => Ok(help::lines("LATENCY")),
        verb => Err(unknown_subcommand("LATENCY", verb)),
    }
}

/// Nothing is slow enough to be logged: scripts and ranges have limits.
fn slow_log(_: &CommandContext, argv: &[&[u8]]) -> ReplyResult {
    match argv[1] {
        verb if is(verb, "GET") && argv.len() <= 3 => Ok(Reply::Array(vec![])),
        verb if is(verb, "LEN") && argv.len() == 2 => Ok(Reply::Int(0)),
        verb if is(verb, "RESET") && argv.len() == 2 => Ok(Reply::OK),
        verb if is(verb, "HELP") && argv.len() == 2 => Ok(help::lines("SLOWLOG")),
        verb => Err(unknown_subcommand("SLOWLOG", verb)),
    }
}

/// Redis's own text. Debug builds know `DEBUG DIVERGE ANSWER|STATE n`: this replica is to differ from the others, for tests.
fn debug(context: &CommandContext, argv: &[&[u8]]) -> ReplyResult {
    #[cfg(debug_assertions)]
    if let [_, verb, how, number] = argv {
        use redfence_core::machine::digest::Divergence;
        let number = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
        if let (true, Some(number)) = (is(verb, "DIVERGE"), number) {
            let how = if is(how, "STATE") { Divergence::State(number) } else { Divergence::Answer(number) };
            context.server.tier2.push_report(crate::node_api::Input::Diverge(how));
            return Ok(Reply::OK);
        }
    }
    let _ = (context, argv);
    Err(Refusal::new(
        "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local \
         connection, otherwise you need to set this option in the configuration file, and then restart the server.",
    ))
}
