//! Which commands hold scripts as a client sent them: they are run or recognised on the leader before anything is logged.

use crate::keyspace::args::is;
use crate::keyspace::table;
#[cfg(feature = "scripts")]
use crate::machine::log::bytes::Reader;
#[cfg(feature = "scripts")]
use crate::machine::log::codec::tag;
use crate::machine::log::command::{CallSite, Command, Words};
#[cfg(feature = "scripts")]
use crate::machine::log::fields::read_protocol;
use crate::script::AS_USER;

impl Command<'_> {
    /// Whether this is a client's request and not yet a command for the log: it holds a script, which the leader runs or turns
    /// into a native command first.
    #[must_use]
    pub fn is_request(&self) -> bool {
        let mut holds_script = false;
        self.for_each_redis_call(|site, argv| {
            holds_script |= match site {
                CallSite::Client => is_script_request(argv),
                CallSite::Transaction => argv.first().is_some_and(|name| names_script(name)),
                CallSite::Native => false,
            };
        });
        holds_script
    }
}

fn is_script_request(argv: &Words<'_>) -> bool {
    match argv.as_slice() {
        [name, word, ..] if is(name, "SCRIPT") => is(word, "LOAD"),
        [name, ..] => names_script(name),
        [] => false,
    }
}

/// What an encoded request has to do with scripts.
#[cfg(feature = "scripts")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptUse {
    Plain,
    /// `EVAL` and its relatives, or `SCRIPT`.
    Script,
    /// A transaction that holds one of them.
    TransactionWithScript,
}

/// Reads no more than the tag and the names of commands.
#[cfg(feature = "scripts")]
pub(crate) fn script_use(bytes: &[u8]) -> ScriptUse {
    let mut reader = Reader::new(bytes);
    match reader.u8() {
        Some(tag::REDIS) if redis_holds_script(&mut reader).unwrap_or(false) => ScriptUse::Script,
        Some(tag::TRANSACTION) if transaction_holds_script(&mut reader).unwrap_or(false) => {
            ScriptUse::TransactionWithScript
        }
        Some(_) | None => ScriptUse::Plain,
    }
}

#[cfg(feature = "scripts")]
fn redis_holds_script(reader: &mut Reader<'_>) -> Option<bool> {
    reader.varint_u32()?;
    read_protocol(reader)?;
    reader.varint()?;
    Some(names_script(reader.bytes()?))
}

#[cfg(feature = "scripts")]
fn transaction_holds_script(reader: &mut Reader<'_>) -> Option<bool> {
    reader.varint_u32()?;
    read_protocol(reader)?;
    for _ in 0..reader.varint()? {
        reader.varint_u32()?;
        reader.bytes()?;
        reader.u64_fixed()?;
    }
    for _ in 0..reader.varint()? {
        for at in 0..reader.varint()? {
            let word = reader.bytes()?;
            if at == 0 && names_script(word) {
                return Some(true);
            }
        }
    }
    Some(false)
}

/// Whether a command's name is one of those that run or manage scripts.
pub(crate) fn names_script(name: &[u8]) -> bool {
    // Nearly every name is distinguished by its first two letters.
    match name {
        [b'e' | b'E', b'v' | b'V', ..] | [b's' | b'S', b'c' | b'C', ..] => {
            table::find(name).is_some_and(|row| row.is(table::SCRIPT)) || name == AS_USER
        }
        _ => false,
    }
}
