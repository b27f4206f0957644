//! Taking several locks in one step, in one canonical order: the names sorted. One lock is the simplest case of it.

use crate::clock::Now;
use crate::events;
use crate::ffi::{Ctx, OwnedString};
use crate::info::{self, Counter};
use crate::record::owner::Owner;
use crate::record::{Lock, Taken};
use redfence_core::event::EventKind;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Fence;

/// Takes locks that are known to be free. Fences are minted in sorted order of the names, and answered in the order asked.
pub(crate) fn take_all<R: AsRef<[u8]>>(
    ctx: &Ctx,
    resources: &[R],
    owner: &[u8],
    ttl_ms: u64,
    now: Now,
) -> Result<Vec<Fence>, Refusal> {
    let mut order: Vec<usize> = (0..resources.len()).collect();
    order.sort_unstable_by_key(|at| resources[*at].as_ref());
    let mut fences = vec![Fence(0); resources.len()];
    for at in order {
        let resource = resources[at].as_ref();
        let name = OwnedString::new(resource);
        let taken = Lock::new(name.name())?.take(ctx, &mut Owner::Given(owner), ttl_ms, true, now)?;
        match taken {
            Taken::Granted(grant) => {
                fences[at] = grant.fence;
                info::count(Counter::Granted);
                events::publish(ctx, EventKind::Acquired, resource, grant.fence, owner);
            }
            Taken::Again(grant) => fences[at] = grant.fence,
            Taken::Busy => unreachable!("a lock seen free in this step is free"),
        }
    }
    Ok(fences)
}

/// `[[fence, …], ttl]`
pub(crate) fn granted(fences: &[Fence], ttl_ms: u64) -> Reply {
    let fences = fences.iter().map(|fence| Reply::Int(fence.0 as i64)).collect();
    Reply::Array(vec![Reply::Array(fences), Reply::Int(ttl_ms as i64)])
}
