//! Sets. What is random in Redis is "the first" here: every node must answer the same.

use super::args;
use super::context::{CommandResult, Context};
use super::errors;
use super::fields::Fields;
use super::keys::Deadline;
use super::value::Value;
use crate::limits::COLLECTION_BYTES_MAX;
use crate::reply::{Refusal, Reply};
use bytes::Bytes;

/// Most elements a negative count may ask for; Redis would repeat members for as long as asked.
const REPEATS_MAX: usize = 100_000;

/// A positive count: that many different ones, in order. A negative one: round and round until there are enough.
pub(super) fn pick<T: Clone>(all: impl Iterator<Item = T>, count: i64) -> Vec<T> {
    if count >= 0 {
        return all.take(count as usize).collect();
    }
    let all: Vec<T> = all.collect();
    let wanted = count.unsigned_abs().min(REPEATS_MAX as u64) as usize;
    all.iter().cycle().take(if all.is_empty() { 0 } else { wanted }).cloned().collect()
}

/// How many elements [`pick`] looks at.
pub(super) fn picked_max(len: usize, count: i64) -> usize {
    match usize::try_from(count) {
        Ok(count) => count.min(len),
        Err(_) => len + count.unsigned_abs().min(REPEATS_MAX as u64) as usize,
    }
}

pub(super) fn sadd(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let added = cx.change_set(argv[1], |members| {
        let added = argv[2..].iter().filter(|name| members.insert(name, ()).is_none()).count();
        (added > 0, added)
    })?;
    Ok(Reply::Int(added as i64))
}

pub(super) fn srem(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if cx.set(argv[1])?.is_none() {
        return Ok(Reply::Int(0));
    }
    let removed = cx.change_set(argv[1], |members| {
        let removed = argv[2..].iter().filter(|name| members.remove(name).is_some()).count();
        (removed > 0, removed)
    })?;
    Ok(Reply::Int(removed as i64))
}

pub(super) fn sismember(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let there = cx.set(argv[1])?.is_some_and(|members| members.contains(argv[2]));
    Ok(Reply::Int(i64::from(there)))
}

pub(super) fn smismember(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let members = cx.set(argv[1])?;
    let each = |name: &&[u8]| Reply::Int(i64::from(members.is_some_and(|members| members.contains(name))));
    Ok(Reply::Array(argv[2..].iter().map(each).collect()))
}

pub(super) fn smembers(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    cx.charge(cx.set(argv[1])?.map_or(0, |members| members.len()))?;
    Ok(shown(cx.set(argv[1])?.into_iter().flat_map(|members| members.iter().map(|(name, ())| name))))
}

fn shown<'a>(names: impl Iterator<Item = &'a Bytes>) -> Reply {
    Reply::Set(names.map(|name| Reply::Bulk(name.clone())).collect())
}

pub(super) fn scard(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    Ok(Reply::Int(cx.set(argv[1])?.map_or(0, |members| members.len() as i64)))
}

pub(super) fn spop(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let count = match argv {
        [_, _] => None,
        [_, _, count] => Some(args::count(count)?),
        _ => return Err(errors::SYNTAX),
    };
    let Some(members) = cx.set(argv[1])? else {
        return Ok(if count.is_some() { Reply::Set(Vec::new()) } else { Reply::Nil });
    };
    cx.charge(4 * count.unwrap_or(1).min(members.len()))?;
    cx.replies.check(members.iter().take(count.unwrap_or(1)).map(|(name, ())| name.len() + 16).sum())?;
    let popped: Vec<Bytes> = members.iter().take(count.unwrap_or(1)).map(|(name, ())| name.clone()).collect();
    cx.change_set(argv[1], |members| {
        for name in &popped {
            members.remove(name);
        }
        (!popped.is_empty(), ())
    })?;
    Ok(match count {
        None => Reply::Bulk(popped[0].clone()),
        Some(_) => shown(popped.iter()),
    })
}

pub(super) fn srandmember(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let count = match argv {
        [_, _] => None,
        [_, _, count] => Some(args::int(count)?),
        _ => return Err(errors::SYNTAX),
    };
    let members = cx.set(argv[1])?;
    let Some(count) = count else {
        let first = members.and_then(|members| members.nth(0));
        return Ok(first.map_or(Reply::Nil, |name| Reply::Bulk(name.clone())));
    };
    cx.charge(picked_max(members.map_or(0, |members| members.len()), count))?;
    let names = members.into_iter().flat_map(|members| members.iter().map(|(name, ())| name));
    Ok(Reply::Array(pick(names, count).into_iter().map(|name| Reply::Bulk(name.clone())).collect()))
}

pub(super) fn smove(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (from, to, member) = (argv[1], argv[2], argv[3]);
    let there = match cx.set(from)? {
        Some(members) => members.contains(member),
        None => return Ok(Reply::Int(0)),
    };
    cx.set(to)?;
    if there && from != to {
        // The new place first: where there is no room, nothing has changed.
        cx.change_set(to, |members| (members.insert(member, ()).is_none(), ()))?;
        cx.change_set(from, |members| (true, members.remove(member)))?;
    }
    Ok(Reply::Int(i64::from(there)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Combine {
    Union,
    Intersect,
    Differ,
}

/// The members of the first set, in its order, filtered or extended by the others.
fn combine(cx: &Context<'_>, keys: &[&[u8]], how: Combine) -> Result<Fields<()>, Refusal> {
    let mut sets = Vec::with_capacity(keys.len());
    for key in keys {
        sets.push(cx.set(key)?);
    }
    let mut result = Fields::default();
    let Some((first, others)) = sets.split_first() else { return Ok(result) };
    for (name, ()) in first.iter().flat_map(|members| members.iter()) {
        let mut looks = 4;
        let mut keep = true;
        for other in if how == Combine::Union { &[] } else { others } {
            looks += 1;
            cx.charge_compared(other.map_or(0, |members| members.compared_bytes(name)))?;
            let is_there = other.is_some_and(|members| members.contains(name));
            if is_there != (how == Combine::Intersect) {
                keep = false;
                break;
            }
        }
        cx.charge(looks)?;
        if keep {
            add(cx, &mut result, name)?;
        }
    }
    if how == Combine::Union {
        for other in others.iter().flatten() {
            cx.charge(4 * other.len())?;
            for (name, ()) in other.iter() {
                add(cx, &mut result, name)?;
            }
        }
    }
    Ok(result)
}

fn add(cx: &Context<'_>, members: &mut Fields<()>, name: &[u8]) -> Result<(), Refusal> {
    cx.charge_compared(members.compared_bytes(name))?;
    members.insert(name, ());
    check_weight(members)
}

/// Whatever becomes of it, it is not larger than a set may be.
fn check_weight(members: &Fields<()>) -> Result<(), Refusal> {
    if members.weight() > COLLECTION_BYTES_MAX {
        return Err(errors::COLLECTION_TOO_LARGE);
    }
    Ok(())
}

fn store(cx: &mut Context<'_>, argv: &[&[u8]], how: Combine) -> CommandResult {
    let result = combine(cx, &argv[2..], how)?;
    let len = result.len() as i64;
    cx.put(argv[1], Value::Set(result), Deadline::Never)?;
    Ok(Reply::Int(len))
}

fn show(cx: &mut Context<'_>, argv: &[&[u8]], how: Combine) -> CommandResult {
    let result = combine(cx, &argv[1..], how)?;
    let reply = shown(result.iter().map(|(name, ())| name));
    Ok(reply)
}

pub(super) fn sunion(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    show(cx, argv, Combine::Union)
}

pub(super) fn sinter(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    show(cx, argv, Combine::Intersect)
}

pub(super) fn sdiff(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    show(cx, argv, Combine::Differ)
}

pub(super) fn sunionstore(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    store(cx, argv, Combine::Union)
}

pub(super) fn sinterstore(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    store(cx, argv, Combine::Intersect)
}

pub(super) fn sdiffstore(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    store(cx, argv, Combine::Differ)
}
