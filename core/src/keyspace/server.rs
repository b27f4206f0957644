//! What scripts and transactions may call that touches no key: `PING`, `ECHO`, `PUBLISH`, `SELECT`, `UNWATCH`.

use super::context::{CommandResult, Context};
use super::errors;
use super::generic::database;
use crate::reply::Reply;

pub(super) fn ping(_cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    match argv {
        [_] => Ok(Reply::Status("PONG".into())),
        [_, word] => Ok(Reply::bulk(word)),
        _ => Err(errors::wrong_arity("ping")),
    }
}

pub(super) fn echo(_cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    Ok(Reply::bulk(argv[1]))
}

pub(super) fn publish(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    errors::check_channel(argv[1])?;
    Ok(Reply::Int(cx.keys.publish(argv[1], argv[2])))
}

/// Inside a transaction, where everything watched has been looked at already.
pub(super) fn unwatch(_cx: &mut Context<'_>, _argv: &[&[u8]]) -> CommandResult {
    Ok(Reply::OK)
}

/// Inside a script or a transaction; a client's own `SELECT` is its session's business.
pub(super) fn select(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    cx.db = database(argv[1])?;
    Ok(Reply::OK)
}
