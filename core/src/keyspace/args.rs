//! Reading arguments as Redis does: integers, floats, words, expiry times.

use super::context::Context;
use super::errors;
use super::keys::{Clock, Deadline};
use super::numbers::{parse_f64, parse_i64};
use crate::reply::Refusal;

pub fn int(arg: &[u8]) -> Result<i64, Refusal> {
    parse_i64(arg).ok_or(errors::NOT_AN_INTEGER)
}

pub fn float(arg: &[u8]) -> Result<f64, Refusal> {
    parse_f64(arg).ok_or(errors::NOT_A_FLOAT)
}

/// A count that may be zero: `ERR value is out of range, must be positive` below.
pub fn count(arg: &[u8]) -> Result<usize, Refusal> {
    match parse_i64(arg) {
        Some(value) => usize::try_from(value).map_err(|_| errors::OUT_OF_RANGE_POSITIVE),
        None => Err(errors::OUT_OF_RANGE_POSITIVE),
    }
}

#[must_use]
pub fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// How a time is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub seconds: bool,
    pub absolute: bool,
}

impl Unit {
    pub const EX: Unit = Unit { seconds: true, absolute: false };
    pub const PX: Unit = Unit { seconds: false, absolute: false };
    pub const EXAT: Unit = Unit { seconds: true, absolute: true };
    pub const PXAT: Unit = Unit { seconds: false, absolute: true };

    /// The option of `SET` and `GETEX` that takes a time.
    #[must_use]
    pub fn of_option(word: &[u8]) -> Option<Unit> {
        [("EX", Unit::EX), ("PX", Unit::PX), ("EXAT", Unit::EXAT), ("PXAT", Unit::PXAT)]
            .into_iter()
            .find_map(|(name, unit)| is(word, name).then_some(unit))
    }
}

/// What is left of a time as the client wrote it, in milliseconds from now; below one where it has passed.
pub fn time_left_ms(clock: Clock, value: i64, unit: Unit, command: &str) -> Result<i64, Refusal> {
    let invalid = || errors::invalid_expire(command);
    let ms = if unit.seconds { value.checked_mul(1000).ok_or_else(invalid)? } else { value };
    if unit.absolute {
        return Ok(ms.saturating_sub(clock.wall_ms()));
    }
    // Redis refuses what would overflow as a point in time; so does the logical clock.
    clock.wall_ms().checked_add(ms).ok_or_else(invalid)?;
    Ok(ms)
}

/// When something ends that has this much left.
#[must_use]
pub fn deadline(clock: Clock, left_ms: i64) -> Deadline {
    Deadline::At(clock.logical_ms.saturating_add_signed(left_ms))
}

/// The positive time `SET`, `SETEX`, `PSETEX` and `GETEX` ask for.
pub fn positive_time_left_ms(
    cx: &Context<'_>,
    arg: &[u8],
    unit: Unit,
    command: &str,
) -> Result<i64, Refusal> {
    let value = int(arg)?;
    if value <= 0 {
        return Err(errors::invalid_expire(command));
    }
    time_left_ms(cx.clock(), value, unit, command)
}

/// `start` and `stop` of a range over `len` elements, negative ones counted from the end. `None`: nothing is in it.
#[must_use]
pub fn span(start: i64, stop: i64, len: usize) -> Option<std::ops::Range<usize>> {
    let len = len as i64;
    let start = if start < 0 { (start + len).max(0) } else { start };
    let stop = if stop < 0 { stop + len } else { stop }.min(len - 1);
    (start <= stop && start < len).then(|| start as usize..stop as usize + 1)
}
