//! Commands for keys of any type, but for their times (`expire.rs`) and walks over all of them (`scan.rs`).

use super::args::{self, is};
use super::context::{CommandResult, Context};
use super::errors;
use super::keys::{Db, Deadline};
use super::DATABASES;
use crate::reply::{Refusal, Reply};

pub(super) fn del(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let removed = argv[1..].iter().filter(|key| cx.remove(key)).count();
    Ok(Reply::Int(removed as i64))
}

pub(super) fn exists(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let there = argv[1..].iter().filter(|key| cx.exists(key)).count();
    Ok(Reply::Int(there as i64))
}

pub(super) fn key_type(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    Ok(Reply::Status(cx.value(argv[1]).map_or("none", |value| value.type_name()).into()))
}

pub(super) fn dbsize(cx: &mut Context<'_>, _argv: &[&[u8]]) -> CommandResult {
    Ok(Reply::Int(cx.keys.count(cx.db) as i64))
}

pub(super) fn flushdb(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    check_flush(argv)?;
    cx.keys.check_flush()?;
    cx.keys.flush(Some(cx.db));
    Ok(Reply::OK)
}

pub(super) fn flushall(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    check_flush(argv)?;
    cx.keys.check_flush()?;
    cx.keys.flush(None);
    Ok(Reply::OK)
}

fn check_flush(argv: &[&[u8]]) -> Result<(), Refusal> {
    match argv {
        [_] => Ok(()),
        [_, word] if is(word, "ASYNC") || is(word, "SYNC") => Ok(()),
        _ => Err(errors::SYNTAX),
    }
}

/// Moves a value and its time to another name, in place of whatever is there.
fn move_key(cx: &mut Context<'_>, from: &[u8], to: &[u8], only_if_free: bool) -> Result<bool, Refusal> {
    let value = cx.value(from).ok_or(errors::NO_SUCH_KEY)?.to_value();
    if only_if_free && !cx.is_vacant(to) {
        return Ok(false);
    }
    if from == to {
        return Ok(true);
    }
    let deadline = cx.keys.deadline_ms(cx.db, from).map_or(Deadline::Never, Deadline::At);
    cx.put(to, value, deadline)?;
    cx.remove(from);
    Ok(true)
}

pub(super) fn rename(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    move_key(cx, argv[1], argv[2], false)?;
    Ok(Reply::OK)
}

pub(super) fn renamenx(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    Ok(Reply::Int(i64::from(move_key(cx, argv[1], argv[2], true)?)))
}

pub(super) fn copy(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let (from, to) = (argv[1], argv[2]);
    let (mut replace, mut to_db) = (false, cx.db);
    let mut rest = argv[3..].iter();
    while let Some(word) = rest.next() {
        if is(word, "REPLACE") {
            replace = true;
        } else if is(word, "DB") {
            to_db = database(rest.next().ok_or(errors::SYNTAX)?)?;
        } else {
            return Err(errors::SYNTAX);
        }
    }
    if from == to && to_db == cx.db {
        return Err(errors::SAME_OBJECT);
    }
    let Some(value) = cx.value(from).map(|value| value.to_value()) else { return Ok(Reply::Int(0)) };
    if cx.keys.value(to_db, to).is_some() && !replace {
        return Ok(Reply::Int(0));
    }
    let deadline = cx.keys.deadline_ms(cx.db, from).map_or(Deadline::Never, Deadline::At);
    let home = std::mem::replace(&mut cx.db, to_db);
    let written = cx.put(to, value, deadline);
    cx.db = home;
    written?;
    Ok(Reply::Int(1))
}

pub(crate) fn database(arg: &[u8]) -> Result<Db, Refusal> {
    match args::int(arg)? {
        number @ 0.. if number < i64::from(DATABASES) => Ok(number as Db),
        _ => Err(errors::DB_OUT_OF_RANGE),
    }
}
