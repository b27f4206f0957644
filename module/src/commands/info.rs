//! `LOCK.INFO`

use super::{check_tier, CommandContext, CommandOutcome};
use crate::record::LockKeys;
use crate::waiters;
use bytes::Bytes;
use redfence_core::grammar::info::Info;
use redfence_core::reply::{LockInfo, Refusal, Reply};
use redfence_core::types::Tier;

pub(crate) fn run(call: &CommandContext<'_>, request: &Info<'_>) -> Result<CommandOutcome, Refusal> {
    check_tier(request.tier)?;
    let view = LockKeys::new(call.argv[1].name())?.view(call.ctx)?;
    let left_ms = match view.expire_at_ms {
        // The last millisecond counts as one: a held lock never shows 0.
        Some(at_ms) => at_ms.saturating_sub(call.now.wall_ms()).max(1) as i64,
        None => -1,
    };
    let ttl_ms = view.owner.as_ref().map(|_| left_ms);
    let info = LockInfo {
        resource: Bytes::copy_from_slice(request.resource),
        tier: Tier::Efficiency,
        held: view.owner.is_some(),
        fence: view.fence,
        owner: view.owner.map(Bytes::from),
        session: None,
        ttl_ms,
        waiters: waiters::count(call.ctx.db(), request.resource) as u64,
    };
    Ok(Reply::Info(Box::new(info)).into())
}
