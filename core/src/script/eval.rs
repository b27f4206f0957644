//! The words of `EVAL`, `EVALSHA` and their read-only twins.

use super::scripts::{parse_sha, SCRIPT_BYTES_MAX};
use super::{no_script, Sha};
use crate::keyspace::args::{int, is};
use crate::keyspace::errors;
use crate::reply::Refusal;

/// A script as a client names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    Body(&'a [u8]),
    Sha(Sha),
}

/// One call as a client words it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Eval<'a> {
    pub(super) script: Named<'a>,
    pub(super) keys: &'a [&'a [u8]],
    pub(super) args: &'a [&'a [u8]],
    pub(super) read_only: bool,
}

/// Whether a word names one of them, and how Redis shows it.
fn form(name: &[u8]) -> Option<(&'static str, bool, bool)> {
    [("eval", false, false), ("evalsha", true, false), ("eval_ro", false, true), ("evalsha_ro", true, true)]
        .into_iter()
        .find(|(word, _, _)| is(name, word))
}

/// `None`: it is another command.
pub(super) fn parse<'a>(argv: &'a [&'a [u8]]) -> Option<Result<Eval<'a>, Refusal>> {
    let (name, words) = argv.split_first()?;
    let (name, by_sha, read_only) = form(name)?;
    Some(parse_words(name, by_sha, read_only, words))
}

fn parse_words<'a>(
    name: &str,
    by_sha: bool,
    read_only: bool,
    words: &'a [&'a [u8]],
) -> Result<Eval<'a>, Refusal> {
    let [script, numkeys, rest @ ..] = words else { return Err(errors::wrong_arity(name)) };
    let numkeys = int(numkeys)?;
    if numkeys > rest.len() as i64 {
        return Err(Refusal::new("ERR Number of keys can't be greater than number of args"));
    }
    let Ok(numkeys) = usize::try_from(numkeys) else {
        return Err(Refusal::new("ERR Number of keys can't be negative"));
    };
    let (keys, args) = rest.split_at(numkeys);
    let script = match by_sha {
        true => Named::Sha(parse_sha(script).ok_or_else(no_script)?),
        false => Named::Body(script),
    };
    if let Named::Body(body) = script {
        check_length(body)?;
    }
    Ok(Eval { script, keys, args, read_only })
}

pub(super) fn check_length(body: &[u8]) -> Result<(), Refusal> {
    if body.len() > SCRIPT_BYTES_MAX {
        return Err(Refusal::new(format!("ERR a script may have {SCRIPT_BYTES_MAX} bytes at most")));
    }
    Ok(())
}
