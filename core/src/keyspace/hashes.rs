//! Hashes.

use super::args::{self, is};
use super::context::{CommandResult, Context};
use super::errors;
use super::numbers::{add_decimal, int_bytes, parse_i64};
use super::Resp;
use crate::reply::Reply;
use bytes::Bytes;

fn shown(value: Option<&Bytes>) -> Reply {
    value.map_or(Reply::Nil, |bytes| Reply::Bulk(bytes.clone()))
}

/// A look at every field.
fn charge_all(cx: &Context<'_>, key: &[u8]) -> Result<(), crate::reply::Refusal> {
    cx.charge(cx.hash(key)?.map_or(0, |fields| fields.len()))
}

/// Sets the pairs; answers how many fields are new.
fn put_pairs(cx: &mut Context<'_>, key: &[u8], pairs: &[&[u8]]) -> Result<i64, crate::reply::Refusal> {
    cx.change_hash(key, |fields| {
        let mut new = 0;
        for pair in pairs.chunks_exact(2) {
            new += i64::from(fields.insert(pair[0], Bytes::copy_from_slice(pair[1])).is_none());
        }
        (true, new)
    })
}

pub(super) fn hset(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if !argv.len().is_multiple_of(2) {
        return Err(errors::wrong_arity("hset"));
    }
    Ok(Reply::Int(put_pairs(cx, argv[1], &argv[2..])?))
}

pub(super) fn hmset(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if !argv.len().is_multiple_of(2) {
        return Err(errors::wrong_arity("hmset"));
    }
    put_pairs(cx, argv[1], &argv[2..])?;
    Ok(Reply::OK)
}

pub(super) fn hsetnx(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if cx.hash(argv[1])?.is_some_and(|fields| fields.contains(argv[2])) {
        return Ok(Reply::Int(0));
    }
    put_pairs(cx, argv[1], &argv[2..])?;
    Ok(Reply::Int(1))
}

pub(super) fn hget(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    Ok(shown(cx.hash(argv[1])?.and_then(|fields| fields.get(argv[2]))))
}

pub(super) fn hmget(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let fields = cx.hash(argv[1])?;
    let each = |name: &&[u8]| shown(fields.and_then(|fields| fields.get(name)));
    Ok(Reply::Array(argv[2..].iter().map(each).collect()))
}

pub(super) fn hdel(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    if cx.hash(argv[1])?.is_none() {
        return Ok(Reply::Int(0));
    }
    let removed = cx.change_hash(argv[1], |fields| {
        let removed = argv[2..].iter().filter(|name| fields.remove(name).is_some()).count();
        (removed > 0, removed)
    })?;
    Ok(Reply::Int(removed as i64))
}

pub(super) fn hexists(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let there = cx.hash(argv[1])?.is_some_and(|fields| fields.contains(argv[2]));
    Ok(Reply::Int(i64::from(there)))
}

pub(super) fn hlen(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    Ok(Reply::Int(cx.hash(argv[1])?.map_or(0, |fields| fields.len() as i64)))
}

pub(super) fn hstrlen(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let value = cx.hash(argv[1])?.and_then(|fields| fields.get(argv[2]));
    Ok(Reply::Int(value.map_or(0, |value| value.len() as i64)))
}

pub(super) fn hkeys(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    charge_all(cx, argv[1])?;
    let names = cx.hash(argv[1])?.into_iter().flat_map(|fields| fields.iter());
    Ok(Reply::Array(names.map(|(name, _)| Reply::Bulk(name.clone())).collect()))
}

pub(super) fn hvals(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    charge_all(cx, argv[1])?;
    let values = cx.hash(argv[1])?.into_iter().flat_map(|fields| fields.iter());
    Ok(Reply::Array(values.map(|(_, value)| Reply::Bulk(value.clone())).collect()))
}

pub(super) fn hgetall(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    charge_all(cx, argv[1])?;
    let pairs = cx.hash(argv[1])?.into_iter().flat_map(|fields| fields.iter());
    let pair = |(name, value): (&Bytes, &Bytes)| (Reply::Bulk(name.clone()), Reply::Bulk(value.clone()));
    Ok(Reply::Map(pairs.map(pair).collect()))
}

pub(super) fn hincrby(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let delta = args::int(argv[3])?;
    let before = match cx.hash(argv[1])?.and_then(|fields| fields.get(argv[2])) {
        Some(text) => parse_i64(text).ok_or(errors::HASH_NOT_AN_INTEGER)?,
        None => 0,
    };
    let after = before.checked_add(delta).ok_or(errors::OVERFLOW)?;
    cx.change_hash(argv[1], |fields| (true, fields.insert(argv[2], int_bytes(after))))?;
    Ok(Reply::Int(after))
}

pub(super) fn hincrbyfloat(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    args::float(argv[3])?;
    let before = cx.hash(argv[1])?.and_then(|fields| fields.get(argv[2])).cloned();
    let before = before.unwrap_or_else(|| Bytes::from_static(b"0"));
    let after =
        add_decimal(&before, argv[3]).ok_or(errors::HASH_NOT_A_FLOAT)?.ok_or(errors::NAN_OR_INFINITY)?;
    let after = Bytes::from(after);
    cx.change_hash(argv[1], |fields| (true, fields.insert(argv[2], after.clone())))?;
    Ok(Reply::Bulk(after))
}

/// Not random, because every node must answer the same: the first fields, or with a negative count the fields round and round.
pub(super) fn hrandfield(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let with_values = match argv.get(3) {
        Some(word) if is(word, "WITHVALUES") && argv.len() == 4 => true,
        Some(_) => return Err(errors::SYNTAX),
        None => false,
    };
    let Some(count) = argv.get(2) else {
        let fields = cx.hash(argv[1])?;
        return Ok(shown(fields.and_then(|fields| fields.nth(0))));
    };
    let count = args::int(count)?;
    let resp = cx.resp;
    let Some(fields) = cx.hash(argv[1])? else { return Ok(Reply::Array(Vec::new())) };
    cx.charge(super::sets::picked_max(fields.len(), count))?;
    let picked = super::sets::pick(fields.iter(), count);
    let mut items = Vec::new();
    for (name, value) in picked {
        let (name, value) = (Reply::Bulk(name.clone()), Reply::Bulk(value.clone()));
        match (with_values, resp) {
            (false, _) => items.push(name),
            (true, Resp::Two) => items.extend([name, value]),
            (true, Resp::Three) => items.push(Reply::Array(vec![name, value])),
        }
    }
    Ok(Reply::Array(items))
}
