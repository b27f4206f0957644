//! `LOCK.RENEW`

use super::{check_tier, Answer, Call};
use crate::events;
use crate::info::{count, Counter};
use crate::record::{Ended, Lock};
use crate::waiters;
use redfence_core::event::EventKind;
use redfence_core::grammar::renew::Renew;
use redfence_core::reply::{Refusal, Reply};

pub(crate) fn run(call: &Call<'_>, request: &Renew<'_>) -> Result<Answer, Refusal> {
    check_tier(request.tier)?;
    let lock = Lock::new(call.argv[1].name())?;
    match lock.renew(call.ctx, request.fence, request.ttl_ms, call.now)? {
        Ended::Now { owner } => {
            count(Counter::Renewed);
            waiters::deadline_moved(call.ctx, request.resource, call.now.wall_ms() + request.ttl_ms);
            events::publish(call.ctx, EventKind::Renewed, request.resource, request.fence, &owner);
            Ok(Reply::Renewed { ttl_ms: request.ttl_ms }.into())
        }
        Ended::Before(reason) => {
            count(Counter::Refused);
            Ok(Reply::Refused(reason).into())
        }
    }
}
