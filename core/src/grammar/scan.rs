//! `LOCK.SCAN cursor [MATCH glob] [COUNT n] [TIER tier]`

use super::errors;
use super::words::{self, value_of};
use crate::reply::Refusal;
use crate::types::{Tier, PATTERN_BYTES_MAX, SCAN_COUNT_DEFAULT, SCAN_COUNT_MAX};

pub const NAME: &str = "LOCK.SCAN";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan<'a> {
    pub cursor: u64,
    pub pattern: Option<&'a [u8]>,
    /// No more than [`SCAN_COUNT_MAX`].
    pub count: u64,
    /// More was asked for.
    pub is_count_cut: bool,
    pub tier: Option<Tier>,
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<Scan<'_>, Refusal> {
    let [_, cursor, options @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    let cursor = words::decimal(cursor.as_ref()).ok_or_else(errors::cursor)?;
    let (mut pattern, mut count, mut tier) = (None, None, None);
    let mut options = options.iter().map(AsRef::as_ref);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"MATCH") {
            pattern = Some(self::pattern(value_of("MATCH", pattern.is_some(), options.next())?)?);
        } else if word.eq_ignore_ascii_case(b"COUNT") {
            count = Some(self::count(value_of("COUNT", count.is_some(), options.next())?)?);
        } else if word.eq_ignore_ascii_case(b"TIER") {
            let value = value_of("TIER", tier.is_some(), options.next())?;
            tier = Some(Tier::parse(value).ok_or_else(|| errors::unknown_tier(value))?);
        } else {
            return Err(errors::unknown_option(word));
        }
    }
    let asked = count.unwrap_or(SCAN_COUNT_DEFAULT);
    let (count, is_count_cut) = (asked.min(SCAN_COUNT_MAX), asked > SCAN_COUNT_MAX);
    Ok(Scan { cursor, pattern, count, is_count_cut, tier })
}

fn pattern(word: &[u8]) -> Result<&[u8], Refusal> {
    if word.is_empty() || word.len() > PATTERN_BYTES_MAX {
        return Err(errors::pattern_length());
    }
    Ok(word)
}

/// Any positive number, as for `SCAN`.
fn count(word: &[u8]) -> Result<u64, Refusal> {
    match words::decimal(word) {
        Some(value) if (1..=i64::MAX as u64).contains(&value) => Ok(value),
        Some(_) | None => Err(errors::scan_count()),
    }
}
