//! `LOCK.MACQUIRE count resource… ttl [WAIT ms] [OWNER owner] [SESSION id] [SHARED] [TIER tier]`

use super::errors;
use super::words::{self, Known, Options};
use crate::reply::Refusal;
use crate::types::MULTI_RESOURCES_MAX;
use smallvec::SmallVec;

pub const NAME: &str = "LOCK.MACQUIRE";

/// Names in the order they were asked for.
pub type Resources<'a> = SmallVec<[&'a [u8]; 4]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MAcquire<'a> {
    pub resources: Resources<'a>,
    pub ttl_ms: u64,
    pub options: Options<'a>,
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<MAcquire<'_>, Refusal> {
    let [_, count, rest @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    if rest.len() < 2 {
        return Err(errors::wrong_arity(NAME));
    }
    let count = self::count(count.as_ref())?;
    if rest.len() <= count {
        return Err(errors::multi_count_mismatch());
    }
    let (names, rest) = rest.split_at(count);
    let mut resources = Resources::with_capacity(count);
    for name in names {
        resources.push(words::resource(name.as_ref())?);
    }
    refuse_duplicates(&resources)?;
    let ttl_ms = words::ttl_ms_or_zero(rest[0].as_ref())?;
    let options = Options::parse(&rest[1..], Known::MAcquire)?;
    options.check_ttl(ttl_ms)?;
    Ok(MAcquire { resources, ttl_ms, options })
}

pub(super) fn count(word: &[u8]) -> Result<usize, Refusal> {
    match words::decimal(word) {
        Some(value) if (1..=MULTI_RESOURCES_MAX as u64).contains(&value) => Ok(value as usize),
        Some(_) | None => Err(errors::multi_count()),
    }
}

fn refuse_duplicates(resources: &Resources<'_>) -> Result<(), Refusal> {
    let mut sorted = resources.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(errors::duplicate_resource(pair[0])),
        None => Ok(()),
    }
}
