//! Strings: `SET` with all its options, `GET` and its relatives. Numbers in strings are in `counters.rs`.

use super::args::{self, is, Unit};
use super::context::{CommandResult, Context, BYTES_PER_UNIT};
use super::errors;
use super::keys::Deadline;
use super::STRING_BYTES_MAX;
use crate::limits::KEY_OVERHEAD_BYTES;
use crate::reply::{Refusal, Reply};

/// On what the write depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Condition<'a> {
    #[default]
    None,
    Absent,
    Present,
    Equal(&'a [u8]),
    NotEqual(&'a [u8]),
}

#[derive(Clone, Copy, Debug, Default)]
struct SetOptions<'a> {
    condition: Condition<'a>,
    get: bool,
    keep_ttl: bool,
    persist: bool,
    time: Option<(Unit, &'a [u8])>,
}

/// Which words are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grammar {
    Set,
    GetEx,
}

impl<'a> SetOptions<'a> {
    /// Any order, any case; words that exclude each other are a syntax error, as in Redis.
    fn parse(words: &[&'a [u8]], grammar: Grammar) -> Result<SetOptions<'a>, Refusal> {
        let mut options = SetOptions::default();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let set = grammar == Grammar::Set;
            if set && is(word, "GET") {
                options.get = true;
            } else if set && is(word, "KEEPTTL") && options.time.is_none() {
                options.keep_ttl = true;
            } else if !set && is(word, "PERSIST") && options.time.is_none() {
                options.persist = true;
            } else if let Some(unit) = Unit::of_option(word) {
                let arg = rest.next().ok_or(errors::SYNTAX)?;
                // The same word twice is fine in Redis, and the last one counts; two different ones are not.
                let other = options.time.is_some_and(|(have, _)| have != unit);
                if other || options.keep_ttl || options.persist {
                    return Err(errors::SYNTAX);
                }
                options.time = Some((unit, arg));
            } else if set {
                let condition = SetOptions::condition(word, &mut rest)?;
                if options.condition != Condition::None && options.condition != condition {
                    return Err(errors::SYNTAX);
                }
                options.condition = condition;
            } else {
                return Err(errors::SYNTAX);
            }
        }
        Ok(options)
    }

    fn condition(word: &[u8], rest: &mut std::slice::Iter<'_, &'a [u8]>) -> Result<Condition<'a>, Refusal> {
        if is(word, "NX") {
            Ok(Condition::Absent)
        } else if is(word, "XX") {
            Ok(Condition::Present)
        } else if is(word, "IFEQ") {
            rest.next().map(|value| Condition::Equal(value)).ok_or(errors::SYNTAX)
        } else if is(word, "IFNE") {
            rest.next().map(|value| Condition::NotEqual(value)).ok_or(errors::SYNTAX)
        } else {
            Err(errors::SYNTAX)
        }
    }
}

fn holds(cx: &Context<'_>, key: &[u8], condition: Condition<'_>) -> Result<bool, Refusal> {
    Ok(match condition {
        Condition::None => true,
        Condition::Absent => cx.is_vacant(key),
        Condition::Present => cx.exists(key),
        Condition::Equal(expected) => cx.string(key)?.is_some_and(|value| value == expected),
        Condition::NotEqual(expected) => cx.string(key)?.is_none_or(|value| value != expected),
    })
}

/// Writes with a time left; one that has passed leaves no key behind.
fn put_for(cx: &mut Context<'_>, key: &[u8], value: &[u8], left_ms: i64) -> Result<(), Refusal> {
    if left_ms <= 0 {
        cx.remove(key);
        return Ok(());
    }
    let deadline = args::deadline(cx.clock(), left_ms);
    cx.put_string(key, value, deadline)
}

pub(super) fn set(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (key, value) = (argv[1], argv[2]);
    let options = SetOptions::parse(&argv[3..], Grammar::Set)?;
    let left_ms = match options.time {
        Some((unit, arg)) => Some(args::positive_time_left_ms(cx, arg, unit, "set")?),
        None => None,
    };
    let before = if options.get { Some(cx.shown(cx.string(key)?)?) } else { None };
    if !holds(cx, key, options.condition)? {
        return Ok(before.unwrap_or(Reply::Nil));
    }
    match left_ms {
        Some(left_ms) => put_for(cx, key, value, left_ms)?,
        None => {
            let deadline = if options.keep_ttl { Deadline::Keep } else { Deadline::Never };
            cx.put_string(key, value, deadline)?;
        }
    }
    Ok(before.unwrap_or(Reply::OK))
}

pub(super) fn setnx(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if !cx.is_vacant(argv[1]) {
        return Ok(Reply::Int(0));
    }
    cx.put_string(argv[1], argv[2], Deadline::Never)?;
    Ok(Reply::Int(1))
}

pub(super) fn setex(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let left_ms = args::positive_time_left_ms(cx, argv[2], Unit::EX, "setex")?;
    put_for(cx, argv[1], argv[3], left_ms)?;
    Ok(Reply::OK)
}

pub(super) fn psetex(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let left_ms = args::positive_time_left_ms(cx, argv[2], Unit::PX, "psetex")?;
    put_for(cx, argv[1], argv[3], left_ms)?;
    Ok(Reply::OK)
}

pub(super) fn get(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    cx.shown(cx.string(argv[1])?)
}

pub(super) fn getset(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let before = cx.shown(cx.string(argv[1])?)?;
    cx.put_string(argv[1], argv[2], Deadline::Never)?;
    Ok(before)
}

pub(super) fn getdel(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let before = cx.shown(cx.string(argv[1])?)?;
    cx.remove(argv[1]);
    Ok(before)
}

pub(super) fn getex(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let key = argv[1];
    let options = SetOptions::parse(&argv[2..], Grammar::GetEx)?;
    let Some(value) = cx.string(key)? else { return Ok(Reply::Nil) };
    let value = cx.shown(Some(value))?;
    let left_ms = match options.time {
        Some((unit, arg)) => Some(args::positive_time_left_ms(cx, arg, unit, "getex")?),
        None => None,
    };
    match left_ms {
        Some(left_ms) if left_ms <= 0 => {
            cx.remove(key);
        }
        Some(left_ms) => {
            let deadline = args::deadline(cx.clock(), left_ms);
            cx.keys.set_deadline(cx.db, key, deadline);
        }
        None if options.persist && cx.keys.deadline_ms(cx.db, key).is_some() => {
            cx.keys.set_deadline(cx.db, key, Deadline::Never);
        }
        None => {}
    }
    Ok(value)
}

pub(super) fn mget(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    // A key of another type counts as absent here.
    let value = |key: &[u8]| cx.string(key).unwrap_or(None);
    // Counted before any is copied: one name may be given a thousand times.
    let bytes = argv[1..].iter().map(|key| value(key).map_or(0, <[u8]>::len) + 16).sum();
    cx.replies.check(bytes)?;
    Ok(Reply::Array(argv[1..].iter().map(|key| value(key).map_or(Reply::Nil, Reply::bulk)).collect()))
}

pub(super) fn mset(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if argv.len().is_multiple_of(2) {
        return Err(errors::wrong_arity("mset"));
    }
    check_pairs(cx, &argv[1..])?;
    for pair in argv[1..].chunks_exact(2) {
        cx.put_checked_string(pair[0], pair[1])?;
    }
    Ok(Reply::OK)
}

pub(super) fn msetnx(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if argv.len().is_multiple_of(2) {
        return Err(errors::wrong_arity("msetnx"));
    }
    check_pairs(cx, &argv[1..])?;
    if argv[1..].iter().step_by(2).any(|key| !cx.is_vacant(key)) {
        return Ok(Reply::Int(0));
    }
    for pair in argv[1..].chunks_exact(2) {
        cx.put_checked_string(pair[0], pair[1])?;
    }
    Ok(Reply::Int(1))
}

/// All or nothing: limits, work and room are looked at before the first write.
fn check_pairs(cx: &mut Context<'_>, pairs: &[&[u8]]) -> Result<(), Refusal> {
    for pair in pairs.chunks_exact(2) {
        if pair[0].len() > super::KEY_BYTES_MAX {
            return Err(errors::KEY_TOO_LONG);
        }
        if pair[1].len() > STRING_BYTES_MAX {
            return Err(errors::STRING_TOO_LONG);
        }
    }
    cx.charge(pairs.chunks_exact(2).map(|pair| pair[1].len() / BYTES_PER_UNIT).sum())?;
    let growth = |pair: &[&[u8]]| {
        let after = pair[1].len() + cx.keys.user_growth(cx.db, pair[0]);
        match cx.value(pair[0]) {
            Some(value) => after.saturating_sub(value.weight()),
            None => pair[0].len() + after + KEY_OVERHEAD_BYTES,
        }
    };
    match pairs.chunks_exact(2).map(growth).sum() {
        0 => Ok(()),
        growth => cx.keys.room_for(growth),
    }
}

pub(super) fn append(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let after = [cx.string(argv[1])?.unwrap_or_default(), argv[2]].concat();
    cx.put_string(argv[1], &after, Deadline::Keep)?;
    Ok(Reply::Int(after.len() as i64))
}

pub(super) fn strlen(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    Ok(Reply::Int(cx.string(argv[1])?.map_or(0, |value| value.len() as i64)))
}

pub(super) fn getrange(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (start, stop) = (args::int(argv[2])?, args::int(argv[3])?);
    let Some(value) = cx.string(argv[1])? else { return Ok(Reply::Text("")) };
    // Redis clamps a stop before the beginning to the first byte, unless both are negative and crossed.
    if start < 0 && stop < 0 && start > stop {
        return Ok(Reply::Text(""));
    }
    let stop = if stop < 0 { (stop.saturating_add(value.len() as i64)).max(0) } else { stop };
    Ok(match args::span(start.max(i64::MIN / 2), stop, value.len()) {
        Some(span) => Reply::bulk(&value[span]),
        None => Reply::Text(""),
    })
}

pub(super) fn setrange(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (key, offset, patch) = (argv[1], args::int(argv[2])?, argv[3]);
    let Ok(offset) = usize::try_from(offset) else { return Err(errors::OFFSET_OUT_OF_RANGE) };
    let before = cx.string(key)?.unwrap_or_default();
    if patch.is_empty() {
        return Ok(Reply::Int(before.len() as i64));
    }
    let end = offset.saturating_add(patch.len());
    if end > STRING_BYTES_MAX {
        return Err(errors::STRING_TOO_LONG);
    }
    let mut after = before.to_vec();
    after.resize(after.len().max(end), 0);
    after[offset..end].copy_from_slice(patch);
    cx.put_string(key, &after, Deadline::Keep)?;
    Ok(Reply::Int(after.len() as i64))
}

/// Redis 8.4: `DELEX key [IFEQ value | IFNE value]`.
pub(super) fn delex(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let condition = match argv {
        [_, _] => Condition::None,
        [_, _, word, value] if is(word, "IFEQ") => Condition::Equal(value),
        [_, _, word, value] if is(word, "IFNE") => Condition::NotEqual(value),
        [_, _, _, _] => return Err(errors::SYNTAX),
        _ => return Err(errors::wrong_arity("delex")),
    };
    let removed = cx.exists(argv[1]) && holds(cx, argv[1], condition)? && cx.remove(argv[1]);
    Ok(Reply::Int(i64::from(removed)))
}

/// Valkey 9: `DELIFEQ key value`.
pub(super) fn delifeq(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let removed = holds(cx, argv[1], Condition::Equal(argv[2]))? && cx.remove(argv[1]);
    Ok(Reply::Int(i64::from(removed)))
}
