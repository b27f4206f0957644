//! `LOCK.QUEUE`

use super::{check_tier, CommandContext, CommandOutcome};
use crate::waiters;
use redfence_core::grammar::queue::Queue;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &CommandContext<'_>, request: &Queue<'_>) -> Result<CommandOutcome, Refusal> {
    check_tier(request.tier)?;
    let line = waiters::list(call.ctx.db(), request.resource).into_iter();
    let rows =
        line.map(|(owner, waited_ms)| Reply::Array(vec![Reply::Bulk(owner), Reply::Int(waited_ms as i64)]));
    Ok(Reply::Array(rows.collect()).into())
}
