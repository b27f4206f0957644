//! Sorted sets: writing and looking up. Ranges are in `zset_ranges.rs`.

use super::args::{self, is};
use super::context::{CommandResult, Context, Resp};
use super::errors;
use super::lists_moving::{multi, timeout_ms, wait_for};
use super::sorted::Sorted;
use crate::reply::{Refusal, Reply};
use bytes::Bytes;

#[derive(Clone, Copy, Default)]
struct ZaddOptions {
    only_new: bool,
    only_there: bool,
    greater: bool,
    less: bool,
    changed: bool,
    increment: bool,
}

impl ZaddOptions {
    /// The options, and how many words they take.
    fn parse(words: &[&[u8]]) -> (ZaddOptions, usize) {
        let mut options = ZaddOptions::default();
        for (index, word) in words.iter().enumerate() {
            if is(word, "NX") {
                options.only_new = true;
            } else if is(word, "XX") {
                options.only_there = true;
            } else if is(word, "GT") {
                options.greater = true;
            } else if is(word, "LT") {
                options.less = true;
            } else if is(word, "CH") {
                options.changed = true;
            } else if is(word, "INCR") {
                options.increment = true;
            } else {
                return (options, index);
            }
        }
        (options, words.len())
    }

    fn check(self, pairs: usize) -> Result<(), Refusal> {
        if self.only_new && self.only_there {
            return Err(Refusal::new("ERR XX and NX options at the same time are not compatible"));
        }
        if (self.greater && self.less) || (self.only_new && (self.greater || self.less)) {
            return Err(Refusal::new("ERR GT, LT, and/or NX options at the same time are not compatible"));
        }
        if self.increment && pairs > 1 {
            return Err(Refusal::new("ERR INCR option supports a single increment-element pair"));
        }
        Ok(())
    }
}

/// What became of one member.
enum ZaddOutcome {
    Added(f64),
    Updated(f64),
    /// Its score is what was asked already.
    Same(f64),
    /// The options forbid it.
    Left,
}

fn add(
    members: &mut Sorted,
    member: &[u8],
    score: f64,
    options: ZaddOptions,
) -> Result<ZaddOutcome, Refusal> {
    let Some(before) = members.score(member) else {
        if options.only_there {
            return Ok(ZaddOutcome::Left);
        }
        members.insert(member, score);
        return Ok(ZaddOutcome::Added(score));
    };
    if options.only_new {
        return Ok(ZaddOutcome::Left);
    }
    let after = if options.increment { before + score } else { score };
    if after.is_nan() {
        return Err(errors::SCORE_NAN);
    }
    if (options.less && after >= before) || (options.greater && after <= before) {
        return Ok(ZaddOutcome::Left);
    }
    if after == before {
        return Ok(ZaddOutcome::Same(after));
    }
    members.insert(member, after);
    Ok(ZaddOutcome::Updated(after))
}

pub(super) fn zadd(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (options, taken) = ZaddOptions::parse(&argv[2..]);
    add_pairs(cx, argv[1], &argv[2 + taken..], options)
}

pub(super) fn zincrby(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    add_pairs(cx, argv[1], &argv[2..], ZaddOptions { increment: true, ..ZaddOptions::default() })
}

fn add_pairs(cx: &mut Context<'_>, key: &[u8], words: &[&[u8]], options: ZaddOptions) -> CommandResult {
    if words.is_empty() || !words.len().is_multiple_of(2) {
        return Err(errors::SYNTAX);
    }
    options.check(words.len() / 2)?;
    let mut pairs = Vec::with_capacity(words.len() / 2);
    for pair in words.chunks_exact(2) {
        pairs.push((args::float(pair[0])?, pair[1]));
    }
    if cx.zset(key)?.is_none() && options.only_there {
        return Ok(if options.increment { Reply::Nil } else { Reply::Int(0) });
    }
    let (added, updated, last) = cx.change_zset(key, |members| {
        let (mut added, mut updated, mut last) = (0, 0, Ok(None));
        for (score, member) in pairs {
            match add(members, member, score, options) {
                Ok(ZaddOutcome::Added(score)) => (added, last) = (added + 1, Ok(Some(score))),
                Ok(ZaddOutcome::Updated(score)) => (updated, last) = (updated + 1, Ok(Some(score))),
                Ok(ZaddOutcome::Same(score)) => last = Ok(Some(score)),
                Ok(ZaddOutcome::Left) => last = Ok(None),
                Err(refusal) => {
                    last = Err(refusal);
                    break;
                }
            }
        }
        (added + updated > 0, (added, updated, last))
    })?;
    let last = last?;
    if options.increment {
        return Ok(last.map_or(Reply::Nil, Reply::Double));
    }
    Ok(Reply::Int(if options.changed { added + updated } else { added }))
}

pub(super) fn zrem(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if cx.zset(argv[1])?.is_none() {
        return Ok(Reply::Int(0));
    }
    let removed = cx.change_zset(argv[1], |members| {
        let removed = argv[2..].iter().filter(|member| members.remove(member).is_some()).count();
        (removed > 0, removed)
    })?;
    Ok(Reply::Int(removed as i64))
}

pub(super) fn zcard(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    Ok(Reply::Int(cx.zset(argv[1])?.map_or(0, |members| members.len() as i64)))
}

pub(super) fn zscore(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let score = cx.zset(argv[1])?.and_then(|members| members.score(argv[2]));
    Ok(score.map_or(Reply::Nil, Reply::Double))
}

pub(super) fn zmscore(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let members = cx.zset(argv[1])?;
    let score = |member: &&[u8]| members.and_then(|members| members.score(member));
    Ok(Reply::Array(argv[2..].iter().map(|member| score(member).map_or(Reply::Nil, Reply::Double)).collect()))
}

pub(super) fn zrank(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    cx.charge(cx.zset(argv[1])?.map_or(0, |members| members.len() / 2))?;
    let rank = cx.zset(argv[1])?.and_then(|members| members.rank(argv[2]));
    Ok(rank.map_or(Reply::Nil, |rank| Reply::Int(rank as i64)))
}

pub(super) fn zrevrank(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let members = cx.zset(argv[1])?;
    cx.charge(members.map_or(0, |members| members.len() / 2))?;
    let rank = members.and_then(|members| Some(members.len() - 1 - members.rank(argv[2])?));
    Ok(rank.map_or(Reply::Nil, |rank| Reply::Int(rank as i64)))
}

/// Members with their scores as a reply: pairs in RESP3, flat in RESP2, names alone without scores.
pub(super) fn shown(found: &[(f64, Bytes)], with_scores: bool, resp: Resp) -> Reply {
    let mut items = Vec::with_capacity(found.len() * 2);
    for (score, member) in found {
        let (member, score) = (Reply::Bulk(member.clone()), Reply::Double(*score));
        match (with_scores, resp) {
            (false, _) => items.push(member),
            (true, Resp::Two) => items.extend([member, score]),
            (true, Resp::Three) => items.push(Reply::Array(vec![member, score])),
        }
    }
    Reply::Array(items)
}

/// Takes up to `count` members from one end of a set that is there.
fn take(cx: &mut Context<'_>, key: &[u8], highest: bool, count: usize) -> Result<Vec<(f64, Bytes)>, Refusal> {
    cx.charge(4 * cx.zset(key)?.map_or(0, |members| count.min(members.len())))?;
    if let Some(members) = cx.zset(key)? {
        let bytes = |(_, member): (f64, &Bytes)| member.len() + 32;
        let wanted: usize = match highest {
            true => members.iter().rev().take(count).map(bytes).sum(),
            false => members.iter().take(count).map(bytes).sum(),
        };
        cx.replies.check(wanted)?;
    }
    cx.change_zset(key, |members| {
        let own = |(score, member): (f64, &Bytes)| (score, member.clone());
        let taken: Vec<(f64, Bytes)> = if highest {
            members.iter().rev().take(count).map(own).collect()
        } else {
            members.iter().take(count).map(own).collect()
        };
        for (_, member) in &taken {
            members.remove(member);
        }
        (!taken.is_empty(), taken)
    })
}

fn pop(cx: &mut Context<'_>, argv: &[&[u8]], highest: bool) -> CommandResult {
    let count = match argv {
        [_, _] => None,
        [_, _, count] => Some(args::count(count)?),
        _ => return Err(errors::SYNTAX),
    };
    if cx.zset(argv[1])?.is_none() {
        return Ok(Reply::Array(Vec::new()));
    }
    let taken = take(cx, argv[1], highest, count.unwrap_or(1))?;
    // Without a count the pair stands flat in RESP3 too.
    let resp = if count.is_some() { cx.resp } else { Resp::Two };
    Ok(shown(&taken, true, resp))
}

pub(super) fn zpopmin(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    pop(cx, argv, false)
}

pub(super) fn zpopmax(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    pop(cx, argv, true)
}

fn pop_or_wait(cx: &mut Context<'_>, argv: &[&[u8]], highest: bool) -> CommandResult {
    let (timeout, keys) = argv[1..].split_last().expect("the arity asks for a key and a time-out");
    let timeout_ms = timeout_ms(timeout)?;
    for key in keys {
        if cx.zset(key)?.is_some() {
            let (score, member) = take(cx, key, highest, 1)?.remove(0);
            return Ok(Reply::Array(vec![Reply::bulk(key), Reply::Bulk(member), Reply::Double(score)]));
        }
    }
    Ok(wait_for(cx, keys, timeout_ms, Reply::NilArray))
}

pub(super) fn bzpopmin(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    pop_or_wait(cx, argv, false)
}

pub(super) fn bzpopmax(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    pop_or_wait(cx, argv, true)
}

/// Whether the highest are meant.
fn side(word: &[u8]) -> Result<bool, Refusal> {
    match word {
        _ if is(word, "MIN") => Ok(false),
        _ if is(word, "MAX") => Ok(true),
        _ => Err(errors::SYNTAX),
    }
}

fn pop_first(
    cx: &mut Context<'_>,
    keys: &[&[u8]],
    highest: bool,
    count: usize,
) -> Result<Option<Reply>, Refusal> {
    for key in keys {
        if cx.zset(key)?.is_some() {
            let pair = |(score, member)| Reply::Array(vec![Reply::Bulk(member), Reply::Double(score)]);
            let taken = take(cx, key, highest, count)?.into_iter().map(pair).collect();
            return Ok(Some(Reply::Array(vec![Reply::bulk(key), Reply::Array(taken)])));
        }
    }
    Ok(None)
}

pub(super) fn zmpop(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (keys, highest, count) = multi(&argv[1..], side)?;
    Ok(pop_first(cx, keys, highest, count)?.unwrap_or(Reply::NilArray))
}

pub(super) fn bzmpop(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let timeout_ms = timeout_ms(argv[1])?;
    let (keys, highest, count) = multi(&argv[2..], side)?;
    let found = pop_first(cx, keys, highest, count)?;
    Ok(found.unwrap_or_else(|| wait_for(cx, keys, timeout_ms, Reply::NilArray)))
}
