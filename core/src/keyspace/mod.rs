//! Redis's commands over keys kept by somebody else: strings, hashes, lists, sets, sorted sets, times, walks.
//!
//! A command is a function from a [`Context`] and its words to a reply; it knows neither locks nor Raft. Replies and error
//! texts are those of Redis 7.0.15, with `SET … IFEQ/IFNE` and `DELEX` of Redis 8.4 and `DELIFEQ` of Valkey 9.
//!
//! # Layout
//!
//! - [`keys`]: the trait `Keys`; [`memory`]: a plain map behind it
//! - [`value`], [`fields`], [`list`], [`sorted`]: what keys hold; each knows its weight in bytes
//! - [`codec`], [`stream`]: values as bytes, whole and in portions
//! - [`table`]: every command's name, arity, flags and key positions
//! - `strings`, `counters`, `generic`, `expire`, `scan`, `hashes`, `lists`, `lists_moving`, `zsets`, `zset_ranges`, `sets`,
//!   `object`, `server`: the commands, one family a file
//! - [`context`], [`args`], [`numbers`], [`errors`]: what they share
//!
//! # Caveats
//!
//! - What is random in Redis (`RANDOMKEY`, `SPOP`, `SRANDMEMBER`, `HRANDFIELD`) picks the first here: all nodes must agree.
//! - A string holds 1 MiB at most ([`STRING_BYTES_MAX`]; Redis: 512 MiB) and a key's name 64 KiB: both go into the log.
//! - Large hashes and sets iterate in the order of their names, where Redis's order is arbitrary.
//! - `INCRBYFLOAT` adds in decimal, not in 80-bit floats: see [`numbers::add_decimal`].
//! - `HSCAN`, `SSCAN` and `ZSCAN` answer everything at once.

pub mod acl_table;
pub mod args;
pub mod codec;
pub mod context;
mod counters;
pub mod errors;
mod expire;
pub mod fields;
mod generic;
mod hashes;
pub mod key_spec;
pub mod keys;
pub mod list;
mod lists;
mod lists_moving;
pub mod memory;
pub mod numbers;
mod object;
mod scan;
mod server;
mod sets;
pub mod sorted;
pub mod stream;
mod strings;
pub mod table;
pub mod value;
mod zset_ranges;
mod zsets;

#[cfg(test)]
pub(crate) mod tests;

use crate::reply::{Refusal, Reply};
pub use context::{Context, ReplyRoom, Resp, WouldBlock, BYTES_PER_UNIT};
pub(crate) use generic::database;
pub use keys::{Clock, Db, Deadline, Keys};
pub use lists_moving::{wait_of, Wait};
pub use memory::MemoryKeys;
use table::Run;
pub use value::{Value, View};

use crate::limits::ELEMENT_OVERHEAD_BYTES;
pub use crate::limits::{KEY_BYTES_MAX, STRING_BYTES_MAX};
/// `SELECT` goes from 0 up to this, as by default in Redis.
pub const DATABASES: u32 = 16;

/// What a command costs by its words alone: each may be an element to change, and its bytes are copied.
#[must_use]
pub fn words_work(argv: &[&[u8]]) -> usize {
    let bytes: usize = argv.iter().map(|word| word.len()).sum();
    4 * argv.len() + bytes / 1024
}

/// Runs one command and answers it. `argv[0]` is its name.
pub fn execute(cx: &mut Context<'_>, argv: &[&[u8]]) -> Reply {
    let Some(row) = argv.first().and_then(|name| table::find(name)) else {
        return errors::unknown_command(argv).into();
    };
    if !row.takes(argv.len()) {
        return errors::wrong_arity(row.name).into();
    }
    if let Err(refusal) = check_words(argv) {
        return refusal.into();
    }
    match row.run {
        Run::Here(handler) => {
            let reply = match cx.charge(words_work(argv)) {
                Ok(()) => run(cx, row, handler, argv),
                Err(refusal) => refusal.into(),
            };
            cx.keys.note_read(row, argv);
            settle_reply(cx, row, reply)
        }
        Run::Elsewhere => errors::unknown_command(argv).into(),
    }
}

/// The limit on every word of every command.
pub(crate) fn check_words(argv: &[&[u8]]) -> Result<(), Refusal> {
    match argv.iter().any(|word| word.len() > STRING_BYTES_MAX) {
        true => Err(errors::ARGUMENT_TOO_LONG),
        false => Ok(()),
    }
}

/// Runs the handler of a command whose name, number of words and words were checked.
pub(crate) fn run(cx: &mut Context<'_>, row: &table::Row, handler: table::Handler, argv: &[&[u8]]) -> Reply {
    if row.is(table::W) && cx.keys.has_several() {
        if let Err(refusal) = check_holders(cx, row, argv) {
            return refusal.into();
        }
    }
    cx.growth_max = argv.iter().map(|word| word.len() + 2 * ELEMENT_OVERHEAD_BYTES).sum();
    handler(cx, argv).unwrap_or_else(Reply::Error)
}

/// Refuses to write to locks with several holders. What asks for an absent key finds it taken, and needs no error for that.
#[cold]
fn check_holders(cx: &Context<'_>, row: &table::Row, argv: &[&[u8]]) -> Result<(), Refusal> {
    let asks_for_absent = match row.name {
        "setnx" | "msetnx" => true,
        "set" => argv.iter().skip(3).any(|word| args::is(word, "NX")),
        _ => false,
    };
    let keys = row.keys_of(argv);
    let written = match row.name {
        // One in another database is refused where it is put.
        "copy" => keys.get(1..).unwrap_or_default(),
        "getex" if argv.len() == 2 => &[],
        _ => &keys[..],
    };
    let is_shared = |key: &&[u8]| cx.keys.is_held_by_several(cx.db, key);
    match !asks_for_absent && written.iter().any(is_shared) {
        true => Err(crate::grammar::errors::plain_write_on_several()),
        false => Ok(()),
    }
}

/// Takes a reply out of the room for replies. One that does not fit is not given: strings and popped items were checked before they were
/// copied or taken, so what is left are reads, whose elements are shared with the state and cost little to drop.
fn settle_reply(cx: &mut Context<'_>, row: &table::Row, reply: Reply) -> Reply {
    let weight = reply.weight();
    if weight > cx.replies.left && !row.is(table::W) && !reply.is_error() {
        return cx.replies.refusal.clone().into();
    }
    cx.replies.left = cx.replies.left.saturating_sub(weight);
    reply
}
