//! List commands that move items between lists, and those that wait for one: `BLPOP` and its relatives.
//!
//! A command that waits is a try: where there is nothing it says so in [`Context::would_block`], and whoever runs it decides
//! whether to wait (the machine) or to answer at once (scripts, transactions).

use super::args::is;
use super::context::{CommandResult, Context, WouldBlock};
use super::errors;
use super::lists::{bulks, take, End};
use super::numbers::parse_f64;
use super::table;
use crate::reply::{Refusal, Reply};
use bytes::Bytes;

/// Longest time-out that is read as one: beyond, Redis too calls it out of range.
const TIMEOUT_MS_MAX: f64 = 9e15;

/// `None`: for ever.
pub(super) fn timeout_ms(arg: &[u8]) -> Result<Option<u64>, Refusal> {
    let seconds = parse_f64(arg).filter(|seconds| seconds.is_finite()).ok_or(errors::TIMEOUT_NOT_A_FLOAT)?;
    if seconds < 0.0 {
        return Err(errors::TIMEOUT_NEGATIVE);
    }
    let ms = (seconds * 1000.0).ceil();
    if ms > TIMEOUT_MS_MAX {
        return Err(Refusal::new("ERR timeout is out of range"));
    }
    Ok((ms > 0.0).then_some(ms as u64))
}

/// How long a blocking command asks to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Ms(u64),
    Forever,
}

/// How long a command may come to wait, read as the machine will read it. `None`: not at all, or it is malformed.
#[must_use]
pub fn wait_of(argv: &[&[u8]]) -> Option<Wait> {
    let row = table::find(argv.first()?).filter(|row| row.is(table::BLOCK) && row.takes(argv.len()))?;
    let at = match row.name {
        "blmpop" | "bzmpop" => 1,
        // All others have it last.
        _ => argv.len() - 1,
    };
    Some(match timeout_ms(argv[at]).ok()? {
        Some(ms) => Wait::Ms(ms),
        None => Wait::Forever,
    })
}

/// Notes that the command would wait; answers what it says when it may not.
pub(super) fn wait_for(
    cx: &mut Context<'_>,
    keys: &[&[u8]],
    timeout_ms: Option<u64>,
    at_once: Reply,
) -> Reply {
    let keys = keys.iter().map(|key| Bytes::copy_from_slice(key)).collect();
    cx.would_block = Some(WouldBlock { keys, timeout_ms, timed_out: Reply::NilArray });
    at_once
}

fn move_item(
    cx: &mut Context<'_>,
    from: &[u8],
    to: &[u8],
    from_end: End,
    to_end: End,
) -> Result<Option<Bytes>, Refusal> {
    if cx.list(from)?.is_none() {
        return Ok(None);
    }
    if from == to {
        return rotate(cx, from, from_end, to_end);
    }
    cx.list(to)?;
    let Some(item) = cx.list(from)?.and_then(|items| from_end.peek(items)).cloned() else { return Ok(None) };
    cx.replies.check(item.len() + 16)?;
    // Paid for at once, and the new place first: where there is no room, nothing has changed.
    cx.charge(2)?;
    cx.growth_max = cx.growth_max.saturating_add(item.len());
    cx.change_list(to, |items| {
        to_end.push(items, item.clone());
        (true, ())
    })?;
    cx.change_list(from, |items| (true, from_end.pop(items)))?;
    Ok(Some(item))
}

/// In one step: a list of one item that moves within itself is never empty, so it keeps its time and its fence.
fn rotate(cx: &mut Context<'_>, key: &[u8], from_end: End, to_end: End) -> Result<Option<Bytes>, Refusal> {
    cx.change_list(key, |items| {
        let item = from_end.pop(items);
        if let Some(item) = &item {
            to_end.push(items, item.clone());
        }
        (item.is_some(), item)
    })
}

pub(super) fn rpoplpush(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    Ok(move_item(cx, argv[1], argv[2], End::Right, End::Left)?.map_or(Reply::Nil, Reply::Bulk))
}

pub(super) fn lmove(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (from_end, to_end) = (End::parse(argv[3])?, End::parse(argv[4])?);
    Ok(move_item(cx, argv[1], argv[2], from_end, to_end)?.map_or(Reply::Nil, Reply::Bulk))
}

fn move_or_wait(cx: &mut Context<'_>, argv: &[&[u8]], ends: (End, End), timeout: &[u8]) -> CommandResult {
    let timeout_ms = timeout_ms(timeout)?;
    Ok(match move_item(cx, argv[1], argv[2], ends.0, ends.1)? {
        Some(item) => Reply::Bulk(item),
        None => wait_for(cx, &argv[1..2], timeout_ms, Reply::Nil),
    })
}

pub(super) fn brpoplpush(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    move_or_wait(cx, argv, (End::Right, End::Left), argv[3])
}

pub(super) fn blmove(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let ends = (End::parse(argv[3])?, End::parse(argv[4])?);
    move_or_wait(cx, argv, ends, argv[5])
}

fn pop_or_wait(cx: &mut Context<'_>, argv: &[&[u8]], end: End) -> CommandResult {
    let (timeout, keys) = argv[1..].split_last().expect("the arity asks for a key and a time-out");
    let timeout_ms = timeout_ms(timeout)?;
    for key in keys {
        if cx.list(key)?.is_some() {
            let item = take(cx, key, end, 1)?.remove(0);
            return Ok(Reply::Array(vec![Reply::bulk(key), Reply::Bulk(item)]));
        }
    }
    Ok(wait_for(cx, keys, timeout_ms, Reply::NilArray))
}

pub(super) fn blpop(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    pop_or_wait(cx, argv, End::Left)
}

pub(super) fn brpop(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    pop_or_wait(cx, argv, End::Right)
}

/// `numkeys key [key …] side [COUNT n]`.
pub(super) fn multi<'a, 'b, Side>(
    words: &'a [&'b [u8]],
    side: impl Fn(&[u8]) -> Result<Side, Refusal>,
) -> Result<(&'a [&'b [u8]], Side, usize), Refusal> {
    let numkeys = match super::numbers::parse_i64(words[0]) {
        Some(number @ 1..) => number as usize,
        _ => return Err(errors::NUMKEYS_POSITIVE),
    };
    let rest = words.get(1..).unwrap_or(&[]);
    if numkeys >= rest.len() {
        return Err(errors::SYNTAX);
    }
    let (keys, rest) = rest.split_at(numkeys);
    let side = side(rest[0])?;
    let count = match &rest[1..] {
        [] => 1,
        [word, count] if is(word, "COUNT") => match super::numbers::parse_i64(count) {
            Some(count @ 1..) => count as usize,
            _ => return Err(errors::COUNT_POSITIVE),
        },
        _ => return Err(errors::SYNTAX),
    };
    Ok((keys, side, count))
}

fn pop_first(cx: &mut Context<'_>, keys: &[&[u8]], end: End, count: usize) -> Result<Option<Reply>, Refusal> {
    for key in keys {
        if cx.list(key)?.is_some() {
            let taken = take(cx, key, end, count)?;
            return Ok(Some(Reply::Array(vec![Reply::bulk(key), bulks(taken)])));
        }
    }
    Ok(None)
}

pub(super) fn lmpop(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (keys, end, count) = multi(&argv[1..], End::parse)?;
    Ok(pop_first(cx, keys, end, count)?.unwrap_or(Reply::NilArray))
}

pub(super) fn blmpop(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let timeout_ms = timeout_ms(argv[1])?;
    let (keys, end, count) = multi(&argv[2..], End::parse)?;
    let found = pop_first(cx, keys, end, count)?;
    Ok(found.unwrap_or_else(|| wait_for(cx, keys, timeout_ms, Reply::NilArray)))
}
