//! Lists, but for the commands that move or wait (`lists_moving.rs`).

use super::args::{self, is};
use super::context::{CommandResult, Context};
use super::errors;
use super::list::List;
use crate::reply::{Refusal, Reply};
use bytes::Bytes;

/// One end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Left,
    Right,
}

impl End {
    pub(super) fn parse(word: &[u8]) -> Result<End, Refusal> {
        if is(word, "LEFT") {
            Ok(End::Left)
        } else if is(word, "RIGHT") {
            Ok(End::Right)
        } else {
            Err(errors::SYNTAX)
        }
    }

    pub(super) fn push(self, items: &mut List, item: Bytes) {
        match self {
            End::Left => items.push_front(item),
            End::Right => items.push_back(item),
        }
    }

    pub(super) fn peek(self, items: &List) -> Option<&Bytes> {
        match self {
            End::Left => items.front(),
            End::Right => items.back(),
        }
    }

    pub(super) fn pop(self, items: &mut List) -> Option<Bytes> {
        match self {
            End::Left => items.pop_front(),
            End::Right => items.pop_back(),
        }
    }
}

/// Items that `LREM` takes out one by one; with more of them the list is made anew.
const REMOVED_SINGLY_MAX: usize = 16;

/// What it costs to compare so many items with one.
fn looks(items: usize, with: &[u8]) -> usize {
    items.saturating_mul(1 + with.len() / 256)
}

fn push(cx: &mut Context<'_>, argv: &[&[u8]], end: End, only_if_there: bool) -> CommandResult {
    if cx.list(argv[1])?.is_none() && only_if_there {
        return Ok(Reply::Int(0));
    }
    let len = cx.change_list(argv[1], |items| {
        for item in &argv[2..] {
            end.push(items, Bytes::copy_from_slice(item));
        }
        (true, items.len())
    })?;
    Ok(Reply::Int(len as i64))
}

pub(super) fn lpush(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    push(cx, argv, End::Left, false)
}

pub(super) fn rpush(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    push(cx, argv, End::Right, false)
}

pub(super) fn lpushx(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    push(cx, argv, End::Left, true)
}

pub(super) fn rpushx(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    push(cx, argv, End::Right, true)
}

/// Takes up to `count` items from one end of a list that is there.
pub(super) fn take(cx: &mut Context<'_>, key: &[u8], end: End, count: usize) -> Result<Vec<Bytes>, Refusal> {
    cx.charge(2 * cx.list(key)?.map_or(0, |items| count.min(items.len())))?;
    if let Some(items) = cx.list(key)? {
        let bytes = |item: &Bytes| item.len() + 16;
        let wanted: usize = match end {
            End::Left => items.iter().take(count).map(bytes).sum(),
            End::Right => items.iter().rev().take(count).map(bytes).sum(),
        };
        cx.replies.check(wanted)?;
    }
    cx.change_list(key, |items| {
        let count = count.min(items.len());
        let taken: Vec<Bytes> = (0..count).filter_map(|_| end.pop(items)).collect();
        (!taken.is_empty(), taken)
    })
}

pub(super) fn bulks(items: Vec<Bytes>) -> Reply {
    Reply::Array(items.into_iter().map(Reply::Bulk).collect())
}

fn pop(cx: &mut Context<'_>, argv: &[&[u8]], end: End, name: &str) -> CommandResult {
    let count = match argv {
        [_, _] => None,
        [_, _, count] => Some(args::count(count)?),
        _ => return Err(errors::wrong_arity(name)),
    };
    if cx.list(argv[1])?.is_none() {
        return Ok(if count.is_some() { Reply::NilArray } else { Reply::Nil });
    }
    let mut taken = take(cx, argv[1], end, count.unwrap_or(1))?;
    Ok(match count {
        None => Reply::Bulk(taken.remove(0)),
        Some(_) => bulks(taken),
    })
}

pub(super) fn lpop(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    pop(cx, argv, End::Left, "lpop")
}

pub(super) fn rpop(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    pop(cx, argv, End::Right, "rpop")
}

pub(super) fn llen(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    Ok(Reply::Int(cx.list(argv[1])?.map_or(0, |items| items.len() as i64)))
}

/// Where an index points, negative ones counted from the end.
fn place(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index + len as i64 } else { index };
    usize::try_from(index).ok().filter(|index| *index < len)
}

pub(super) fn lindex(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let Some(items) = cx.list(argv[1])? else { return Ok(Reply::Nil) };
    let index = args::int(argv[2])?;
    let item = place(index, items.len()).and_then(|index| items.get(index));
    Ok(item.map_or(Reply::Nil, |item| Reply::Bulk(item.clone())))
}

pub(super) fn lset(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let len = cx.list(argv[1])?.ok_or(errors::NO_SUCH_KEY)?.len();
    let index = place(args::int(argv[2])?, len).ok_or(errors::INDEX_OUT_OF_RANGE)?;
    let item = Bytes::copy_from_slice(argv[3]);
    cx.change_list(argv[1], |items| (true, items.set(index, item)))?;
    Ok(Reply::OK)
}

pub(super) fn lrange(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (start, stop) = (args::int(argv[2])?, args::int(argv[3])?);
    let Some(items) = cx.list(argv[1])? else { return Ok(Reply::Array(Vec::new())) };
    let Some(span) = args::span(start, stop, items.len()) else { return Ok(Reply::Array(Vec::new())) };
    cx.charge(span.len())?;
    let shown = items.focus().narrow(span).into_iter().map(|item| Reply::Bulk(item.clone())).collect();
    Ok(Reply::Array(shown))
}

pub(super) fn ltrim(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (start, stop) = (args::int(argv[2])?, args::int(argv[3])?);
    let Some(items) = cx.list(argv[1])? else { return Ok(Reply::OK) };
    let kept = args::span(start, stop, items.len()).map_or(0, |span| span.len());
    // What is cut off goes one by one.
    cx.charge((items.len() - kept) / 2)?;
    cx.change_list(argv[1], |items| {
        match args::span(start, stop, items.len()) {
            Some(span) => items.keep(span),
            None => *items = List::default(),
        }
        (true, ())
    })?;
    Ok(Reply::OK)
}

pub(super) fn lrem(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let count = args::int(argv[2])?;
    let Some(items) = cx.list(argv[1])? else { return Ok(Reply::Int(0)) };
    cx.charge(looks(items.len(), argv[3]))?;
    let limit = if count == 0 { usize::MAX } else { count.unsigned_abs() as usize };
    let hits = items.iter().enumerate().filter(|(_, item)| *item == argv[3]).map(|(index, _)| index);
    let hits: Vec<usize> = hits.collect();
    // Counted from the side the sign names.
    let skip = if count < 0 { hits.len().saturating_sub(limit) } else { 0 };
    let doomed: Vec<usize> = hits.into_iter().skip(skip).take(limit).collect();
    cx.change_list(argv[1], |items| {
        if doomed.len() <= REMOVED_SINGLY_MAX {
            doomed.iter().rev().for_each(|index| {
                items.remove(*index);
            });
        } else {
            let mut next = doomed.iter().peekable();
            let keep = |(index, _): &(usize, &Bytes)| next.next_if(|doomed| **doomed == *index).is_none();
            *items = items.iter().enumerate().filter(keep).map(|(_, item)| item.clone()).collect();
        }
        (!doomed.is_empty(), ())
    })?;
    Ok(Reply::Int(doomed.len() as i64))
}

pub(super) fn linsert(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let after = match argv[2] {
        word if is(word, "BEFORE") => 0,
        word if is(word, "AFTER") => 1,
        _ => return Err(errors::SYNTAX),
    };
    let Some(items) = cx.list(argv[1])? else { return Ok(Reply::Int(0)) };
    cx.charge(looks(items.len(), argv[3]))?;
    let Some(pivot) = items.iter().position(|item| item == argv[3]) else { return Ok(Reply::Int(-1)) };
    let item = Bytes::copy_from_slice(argv[4]);
    let len = cx.change_list(argv[1], |items| {
        items.insert(pivot + after, item);
        (true, items.len())
    })?;
    Ok(Reply::Int(len as i64))
}

pub(super) fn lpos(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (mut rank, mut count, mut looked_at_max) = (1_i64, None, 0_i64);
    let mut rest = argv[3..].iter();
    while let Some(word) = rest.next() {
        let value = rest.next().ok_or(errors::SYNTAX)?;
        if is(word, "RANK") {
            rank = args::int(value)?;
            if rank == 0 {
                return Err(Refusal::new(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list",
                ));
            }
        } else if is(word, "COUNT") {
            count = Some(not_negative(value, "ERR COUNT can't be negative")?);
        } else if is(word, "MAXLEN") {
            looked_at_max = not_negative(value, "ERR MAXLEN can't be negative")?;
        } else {
            return Err(errors::SYNTAX);
        }
    }
    let Some(items) = cx.list(argv[1])? else {
        return Ok(if count.is_some() { Reply::Array(Vec::new()) } else { Reply::Nil });
    };
    let looked_at_max = if looked_at_max == 0 { usize::MAX } else { looked_at_max as usize };
    cx.charge(looks(items.len().min(looked_at_max), argv[2]))?;
    let walk: Box<dyn Iterator<Item = (usize, &Bytes)>> = if rank > 0 {
        Box::new(items.iter().enumerate())
    } else {
        let last = items.len() - 1;
        Box::new(items.iter().rev().enumerate().map(move |(index, item)| (last - index, item)))
    };
    let mut hits = walk
        .take(looked_at_max)
        .filter(|(_, item)| *item == argv[2])
        .map(|(index, _)| Reply::Int(index as i64))
        .skip(rank.unsigned_abs() as usize - 1);
    Ok(match count {
        None => hits.next().unwrap_or(Reply::Nil),
        Some(0) => Reply::Array(hits.collect()),
        Some(count) => Reply::Array(hits.take(count as usize).collect()),
    })
}

fn not_negative(arg: &[u8], text: &'static str) -> Result<i64, Refusal> {
    match super::numbers::parse_i64(arg) {
        Some(value @ 0..) => Ok(value),
        _ => Err(Refusal::new(text)),
    }
}
