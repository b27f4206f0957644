//! `FENCE.CHECK`, `FENCE.GET`, `FENCE.CALL`

use super::{CommandContext, CommandOutcome};
use crate::info::{count, Counter};
use crate::record::marks;
use redfence_core::grammar::errors::{self, shown};
use redfence_core::grammar::fence;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn check(
    call: &CommandContext<'_>,
    request: &fence::FenceCheck<'_>,
) -> Result<CommandOutcome, Refusal> {
    marks::admit(call.ctx, request.resource, request.fence, call.now)?;
    match marks::raise(call.ctx, request.resource, request.fence, call.now)? {
        Ok(()) => Ok(Reply::Int(1).into()),
        Err(_mark) => {
            count(Counter::StaleFence);
            Ok(Reply::Int(0).into())
        }
    }
}

pub(crate) fn get(
    call: &CommandContext<'_>,
    request: &fence::FenceGet<'_>,
) -> Result<CommandOutcome, Refusal> {
    Ok(Reply::Int(marks::get(call.ctx, request.resource)?.0 as i64).into())
}

/// The command runs, then the mark rises; both in one step, and both in one transaction on replicas. A command that cannot run
/// (unknown, wrong number of words, refused by the server) raises nothing.
pub(crate) fn call(
    call: &CommandContext<'_>,
    request: &fence::FenceCall<'_>,
) -> Result<CommandOutcome, Refusal> {
    let command = &call.argv[fence::FenceCall::COMMAND_AT..];
    let name = command[0].as_ref();
    if name.eq_ignore_ascii_case(fence::CALL.as_bytes()) {
        return Err(Refusal::new("ERR FENCE.CALL cannot run FENCE.CALL"));
    }
    if name.eq_ignore_ascii_case(b"SELECT") {
        return Err(Refusal::new("ERR FENCE.CALL cannot run 'select': it is about the connection"));
    }
    let mark = marks::admit(call.ctx, request.resource, request.fence, call.now)?;
    if request.fence < mark {
        count(Counter::StaleFence);
        return Err(errors::stale_fence(request.fence.0, mark.0));
    }
    match call.ctx.call_for_client(command) {
        Some(reply) => {
            if !reply.is_refusal() {
                // Nothing but the command itself ran in between: the mark can have become no higher.
                let _ = marks::raise(call.ctx, request.resource, request.fence, call.now)?;
            }
            call.ctx.reply_with(&reply);
            Ok(CommandOutcome::Sent)
        }
        None => Err(Refusal::new(format!("ERR unknown command '{}'", shown(name)))),
    }
}
