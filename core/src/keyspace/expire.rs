//! The time a key has left: `EXPIRE` and its relatives.
//!
//! Deadlines live on the logical clock. An absolute time is turned into what is left of it by the stamp's wall clock when
//! the command is applied, and `EXPIRETIME` computes it back: after a clock step or a leader change it may differ by that step.

use super::args::{self, is, Unit};
use super::context::{CommandResult, Context};
use super::errors;
use super::keys::Deadline;
use crate::reply::{Refusal, Reply};

/// `NX`, `XX`, `GT`, `LT`.
#[derive(Clone, Copy, Default)]
struct Conditions {
    only_without: bool,
    only_with: bool,
    greater: bool,
    less: bool,
}

impl Conditions {
    fn parse(words: &[&[u8]]) -> Result<Conditions, Refusal> {
        let mut conditions = Conditions::default();
        for word in words {
            if is(word, "NX") {
                conditions.only_without = true;
            } else if is(word, "XX") {
                conditions.only_with = true;
            } else if is(word, "GT") {
                conditions.greater = true;
            } else if is(word, "LT") {
                conditions.less = true;
            } else {
                let word = String::from_utf8_lossy(word);
                return Err(Refusal::new(format!("ERR Unsupported option {word}")));
            }
        }
        if conditions.only_without && (conditions.only_with || conditions.greater || conditions.less) {
            return Err(Refusal::new("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if conditions.greater && conditions.less {
            return Err(Refusal::new("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    /// `now` and `asked` are what is left; `None` is for ever.
    fn allow(self, now: Option<i64>, asked: i64) -> bool {
        match now {
            None => !(self.only_with || self.greater),
            Some(now) => {
                !(self.only_without || (self.greater && asked <= now) || (self.less && asked >= now))
            }
        }
    }
}

fn expire_by(cx: &mut Context<'_>, argv: &[&[u8]], unit: Unit, name: &str) -> CommandResult {
    let key = argv[1];
    let conditions = Conditions::parse(&argv[3..])?;
    let value = args::int(argv[2])?;
    // Relative or absolute, Redis checks the bounds of the point in time.
    if !unit.absolute && value < 0 && unit.seconds && value < i64::MIN / 1000 {
        return Err(errors::invalid_expire(name));
    }
    let asked_ms = args::time_left_ms(cx.clock(), value, unit, name)?;
    if !cx.exists(key) {
        return Ok(Reply::Int(0));
    }
    let now_ms = left_ms(cx, key);
    if !conditions.allow(now_ms, asked_ms) {
        return Ok(Reply::Int(0));
    }
    if asked_ms <= 0 {
        cx.remove(key);
    } else {
        let deadline = args::deadline(cx.clock(), asked_ms);
        cx.keys.set_deadline(cx.db, key, deadline);
    }
    Ok(Reply::Int(1))
}

pub(super) fn expire(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    expire_by(cx, argv, Unit::EX, "expire")
}

pub(super) fn pexpire(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    expire_by(cx, argv, Unit::PX, "pexpire")
}

pub(super) fn expireat(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    expire_by(cx, argv, Unit::EXAT, "expireat")
}

pub(super) fn pexpireat(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    expire_by(cx, argv, Unit::PXAT, "pexpireat")
}

pub(super) fn persist(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if cx.keys.deadline_ms(cx.db, argv[1]).is_none() {
        return Ok(Reply::Int(0));
    }
    cx.keys.set_deadline(cx.db, argv[1], Deadline::Never);
    Ok(Reply::Int(1))
}

/// `None` where the key is absent or lives for ever.
fn left_ms(cx: &Context<'_>, key: &[u8]) -> Option<i64> {
    let deadline_ms = cx.keys.deadline_ms(cx.db, key)?;
    Some(deadline_ms.saturating_sub(cx.clock().logical_ms).min(i64::MAX as u64) as i64)
}

/// -2 where the key is absent, -1 where it has no deadline, else what `shape` makes of the milliseconds left.
fn report(cx: &Context<'_>, key: &[u8], shape: impl Fn(i64) -> i64) -> CommandResult {
    let answer = match (cx.exists(key), left_ms(cx, key)) {
        (false, _) => -2,
        (true, None) => -1,
        (true, Some(left_ms)) => shape(left_ms),
    };
    Ok(Reply::Int(answer))
}

fn rounded_seconds(ms: i64) -> i64 {
    ms.saturating_add(500) / 1000
}

pub(super) fn ttl(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    report(cx, argv[1], rounded_seconds)
}

pub(super) fn pttl(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    report(cx, argv[1], |left_ms| left_ms)
}

pub(super) fn expiretime(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let wall_ms = cx.clock().wall_ms();
    report(cx, argv[1], |left_ms| rounded_seconds(wall_ms.saturating_add(left_ms)))
}

pub(super) fn pexpiretime(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let wall_ms = cx.clock().wall_ms();
    report(cx, argv[1], |left_ms| wall_ms.saturating_add(left_ms))
}
