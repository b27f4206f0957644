//! `LOCK.NOTIFY ON [SESSION id]`, `OFF`. Answered by the node that the client is connected to.

use super::errors;
use super::words::value_of;
use crate::reply::Refusal;

pub const NAME: &str = "LOCK.NOTIFY";

/// The id is as the client wrote it: only Tier 2 knows whether such a session lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notify<'a> {
    On { session: Option<&'a [u8]> },
    Off,
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<Notify<'_>, Refusal> {
    let [_, verb, options @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    let verb = verb.as_ref();
    if verb.eq_ignore_ascii_case(b"OFF") {
        return if options.is_empty() { Ok(Notify::Off) } else { Err(errors::wrong_arity(NAME)) };
    }
    if !verb.eq_ignore_ascii_case(b"ON") {
        return Err(errors::unknown_subcommand(NAME, verb));
    }
    let mut session = None;
    let mut options = options.iter().map(AsRef::as_ref);
    while let Some(word) = options.next() {
        if !word.eq_ignore_ascii_case(b"SESSION") {
            return Err(errors::unknown_option(word));
        }
        session = Some(value_of("SESSION", session.is_some(), options.next())?);
    }
    Ok(Notify::On { session })
}
