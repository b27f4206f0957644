//! Taking several locks in one step, in one canonical order: the names sorted. One lock is the simplest case of it.

use crate::clock::Now;
use crate::events::{self, EventGrant};
use crate::ffi::{Ctx, OwnedString};
use crate::info::{self, Counter};
use crate::record::owner::Owner;
use crate::record::{AcquireOutcome, LockKeys, Terms};
use crate::waiters;
use redfence_core::event::EventKind;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Fence;

/// What came of taking several locks.
pub(crate) struct MultiGrant {
    /// In the order asked.
    pub(crate) fences: Vec<Fence>,
    /// Which of them are new, and not a retry's.
    pub(crate) fresh: Vec<bool>,
    /// The shortest of them.
    pub(crate) ttl_ms: u64,
}

/// Takes locks that are known to be free, or the owner's already. Fences are minted in sorted order of the names.
pub(crate) fn take_all<R: AsRef<[u8]>>(
    ctx: &Ctx,
    resources: &[R],
    owner: &[u8],
    terms: Terms<'_>,
    now: Now,
) -> Result<MultiGrant, Refusal> {
    let mut order: Vec<usize> = (0..resources.len()).collect();
    order.sort_unstable_by_key(|at| resources[*at].as_ref());
    let mut fences = vec![Fence(0); resources.len()];
    let mut fresh = vec![false; resources.len()];
    let mut shortest_ms = u64::MAX;
    for at in order {
        let resource = resources[at].as_ref();
        let name = OwnedString::new(resource);
        let taken = LockKeys::new(name.name())?.take(ctx, &mut Owner::Given(owner), terms, true, now)?;
        let grant = match taken {
            AcquireOutcome::Granted(grant) => {
                info::count(Counter::Granted);
                let told = EventGrant { fence: grant.fence, owner, value: terms.value };
                events::publish(ctx, EventKind::Acquired, resource, told);
                fresh[at] = true;
                grant
            }
            AcquireOutcome::Again(grant) => {
                info::count(Counter::GrantedAgain);
                if let Some(deadline_ms) = grant.deadline_ms {
                    waiters::deadline_moved(ctx, resource, deadline_ms);
                }
                grant
            }
            AcquireOutcome::Busy => unreachable!("a lock seen free in this step is free"),
        };
        fences[at] = grant.fence;
        shortest_ms = shortest_ms.min(grant.ttl_ms);
    }
    Ok(MultiGrant { fences, fresh, ttl_ms: shortest_ms })
}

/// `[[fence, …], ttl]`
pub(crate) fn granted(grants: &MultiGrant) -> Reply {
    Reply::GrantedMany { fences: grants.fences.as_slice().into(), ttl_ms: grants.ttl_ms }
}
