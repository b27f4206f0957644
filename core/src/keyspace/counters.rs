//! Numbers kept in strings: `INCR` and its relatives. A change keeps the time a key has left.

use super::args;
use super::context::{CommandResult, Context};
use super::errors;
use super::keys::Deadline;
use super::numbers::{add_decimal, int_bytes, parse_i64};
use crate::reply::Reply;
use bytes::Bytes;

fn add(cx: &mut Context<'_>, key: &[u8], delta: i64) -> CommandResult {
    let before = match cx.string(key)? {
        Some(text) => parse_i64(text).ok_or(errors::NOT_AN_INTEGER)?,
        None => 0,
    };
    let after = before.checked_add(delta).ok_or(errors::OVERFLOW)?;
    cx.put_string(key, &int_bytes(after), Deadline::Keep)?;
    Ok(Reply::Int(after))
}

pub(super) fn incr(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    add(cx, argv[1], 1)
}

pub(super) fn decr(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    add(cx, argv[1], -1)
}

pub(super) fn incrby(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let delta = args::int(argv[2])?;
    add(cx, argv[1], delta)
}

pub(super) fn decrby(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let delta = args::int(argv[2])?.checked_neg().ok_or(errors::DECREMENT_OVERFLOW)?;
    add(cx, argv[1], delta)
}

pub(super) fn incrbyfloat(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let before = cx.string(argv[1])?.unwrap_or(b"0");
    let after = add_decimal(before, argv[2]).ok_or(errors::NOT_A_FLOAT)?.ok_or(errors::NAN_OR_INFINITY)?;
    cx.put_string(argv[1], after.as_bytes(), Deadline::Keep)?;
    Ok(Reply::Bulk(Bytes::from(after)))
}
