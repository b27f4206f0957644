//! `LOCK.SESSION OPEN ttl [NAME label] [POLICY policy] [AGE n]`, `KEEPALIVE id`, `INFO id`, `CLOSE id`

use super::errors;
use super::words::{self, value_of};
use crate::reply::Refusal;
use crate::types::{SessionPolicy, FENCE_BOUND, LABEL_BYTES_MAX};

pub const NAME: &str = "LOCK.SESSION";

/// Ids are as the client wrote them: only Tier 2 knows whether such a session lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionCommand<'a> {
    Open { ttl_ms: u64, label: Option<&'a [u8]>, policy: Option<SessionPolicy>, age: Option<u64> },
    KeepAlive(&'a [u8]),
    Info(&'a [u8]),
    Close(&'a [u8]),
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<SessionCommand<'_>, Refusal> {
    let [_, verb, first, rest @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    let (verb, first) = (verb.as_ref(), first.as_ref());
    if verb.eq_ignore_ascii_case(b"OPEN") {
        return open(first, rest);
    }
    let session = if verb.eq_ignore_ascii_case(b"KEEPALIVE") {
        SessionCommand::KeepAlive(first)
    } else if verb.eq_ignore_ascii_case(b"INFO") {
        SessionCommand::Info(first)
    } else if verb.eq_ignore_ascii_case(b"CLOSE") {
        SessionCommand::Close(first)
    } else {
        return Err(errors::unknown_subcommand(NAME, verb));
    };
    if !rest.is_empty() {
        return Err(errors::wrong_arity(NAME));
    }
    Ok(session)
}

fn open<'a, A: AsRef<[u8]>>(ttl: &[u8], options: &'a [A]) -> Result<SessionCommand<'a>, Refusal> {
    let ttl_ms = words::ttl_ms(ttl)?;
    let (mut label, mut policy, mut age) = (None, None, None);
    let mut options = options.iter().map(AsRef::as_ref);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"NAME") {
            let value: &[u8] = value_of("NAME", label.is_some(), options.next())?;
            if value.is_empty() || value.len() > LABEL_BYTES_MAX {
                return Err(errors::label_length());
            }
            label = Some(value);
        } else if word.eq_ignore_ascii_case(b"POLICY") {
            let value = value_of("POLICY", policy.is_some(), options.next())?;
            policy = Some(SessionPolicy::parse(value).ok_or_else(|| errors::unknown_policy(value))?);
        } else if word.eq_ignore_ascii_case(b"AGE") {
            let value = words::decimal(value_of("AGE", age.is_some(), options.next())?);
            age = Some(value.filter(|age| *age < FENCE_BOUND).ok_or_else(errors::age_range)?);
        } else {
            return Err(errors::unknown_option(word));
        }
    }
    Ok(SessionCommand::Open { ttl_ms, label, policy, age })
}
