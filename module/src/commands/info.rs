//! `LOCK.INFO`

use super::{check_tier, CommandContext, CommandOutcome};
use crate::record::LockKeys;
use crate::waiters;
use bytes::Bytes;
use redfence_core::grammar::info::Info;
use redfence_core::reply::{HolderInfo, LockInfo, Refusal, Reply};
use redfence_core::types::{Fence, LockKind, Tier};

pub(crate) fn run(call: &CommandContext<'_>, request: &Info<'_>) -> Result<CommandOutcome, Refusal> {
    check_tier(request.tier)?;
    let view = LockKeys::new(call.argv[1].name())?.view(call.ctx)?;
    let left_ms = match view.expire_at_ms {
        // The last millisecond counts as one: a held lock never shows 0.
        Some(at_ms) => at_ms.saturating_sub(call.now.wall_ms()).max(1) as i64,
        None => -1,
    };
    let ttl_ms = view.owner.as_ref().map(|_| left_ms);
    let holder = view.owner.as_ref().map(|owner| HolderInfo {
        owner: Bytes::copy_from_slice(owner),
        // A plain client has no fence, and since when it holds is not known.
        fence: if view.value.is_some() { view.fence } else { Fence(0) },
        session: None,
        ttl_ms: left_ms,
        // A fence counts microseconds, unless it ran ahead of the clock.
        held_ms: view.value.as_ref().map(|_| call.now.wall_us.saturating_sub(view.fence.0) / 1000),
        kind: LockKind::Exclusive,
        value: view
            .value
            .as_ref()
            .filter(|value| !value.is_empty())
            .map(|value| Bytes::copy_from_slice(value)),
    });
    let info = LockInfo {
        resource: Bytes::copy_from_slice(request.resource),
        tier: Tier::Efficiency,
        held: view.owner.is_some(),
        fence: view.fence,
        owner: view.owner.map(Bytes::from),
        session: None,
        ttl_ms,
        waiters: waiters::count(call.ctx.db(), request.resource) as u64,
        holders: Some(holder.into_iter().collect()),
    };
    Ok(Reply::Info(Box::new(info)).into())
}
