//! `LOCK.SCAN`: one step of Redis's own `SCAN` over the companions, of which those are shown whose lock is held.

use super::{check_tier, CommandContext, CommandOutcome};
use crate::record::{inspect, names};
use redfence_core::glob;
use redfence_core::grammar::scan::Scan;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &CommandContext<'_>, request: &Scan<'_>) -> Result<CommandOutcome, Refusal> {
    check_tier(request.tier)?;
    let Some((cursor, companions)) = call.ctx.scan(request.cursor, names::COMPANIONS_PATTERN, request.count)
    else {
        return Err(Refusal::new("ERR the server refused to scan its keys"));
    };
    let held = companions.iter().filter_map(|companion| {
        let resource = names::resource_of(companion)?;
        let wanted = request.pattern.is_none_or(|pattern| glob::matches(pattern, resource));
        (wanted && inspect::is_held(call.ctx, companion, resource)).then(|| Reply::bulk(resource))
    });
    Ok(Reply::Array(vec![Reply::bulk(cursor.to_string()), Reply::Array(held.collect())]).into())
}
