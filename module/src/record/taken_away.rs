//! Grants that end without a release by their holder: by an operator, or by a plain client that deletes the key.

use super::companion::{self, Companion, EndCause, EndedGrant, GrantState};
use super::{EndedHold, LockKeys};
use crate::clock::Now;
use crate::ffi::server::Class;
use crate::ffi::{Ctx, KeyType};
use crate::info::{count, Counter};
use crate::{events, losses, observers, waiters};
use redfence_core::reply::Refusal;
use redfence_core::types::{Fence, LossCause};

/// A lock that was taken away.
pub(crate) struct ForcedEnd {
    /// With the last fence issued, and the value of the key as its owner.
    pub(crate) hold: EndedHold,
    /// The grant was ours, and not a plain client's.
    pub(crate) was_ours: bool,
}

impl LockKeys<'_> {
    /// Takes the lock away from whoever holds it; with `only`, from the holder of that fence alone. `None` where there is nobody to take it from.
    pub(crate) fn end_by_force(
        &self,
        ctx: &Ctx,
        only: Option<Fence>,
        now: Now,
    ) -> Result<Option<ForcedEnd>, Refusal> {
        let (mut key, kind) = self.open(ctx)?;
        if kind == KeyType::Absent {
            return Ok(None);
        }
        let mut side = self.open_companion(ctx)?;
        let owner = key.bytes().to_vec();
        let seen = companion::parse(side.bytes());
        let fence = seen.map_or(Fence(0), |seen| seen.fence);
        let ours = seen.filter(|seen| seen.state == GrantState::Held && seen.owner == owner);
        if only.is_some() && only != ours.map(|ours| ours.fence) {
            return Ok(None);
        }
        let value = ours.map_or(Vec::new(), |ours| ours.value.to_vec());
        let deadline_ms = ours.map(|ours| ours.deadline_ms);
        self.delete(ctx, &mut key);
        if let Some(deadline_ms) = deadline_ms {
            self.write_ended(ctx, &mut side, fence, GrantState::Forced, deadline_ms, now);
        }
        drop((key, side));
        waiters::ignoring_own_changes(|| ctx.notify(Class::Generic, c"del", self.name));
        let hold = EndedHold { fence, owner, value };
        Ok(Some(ForcedEnd { hold, was_ours: deadline_ms.is_some() }))
    }

    /// A plain client has deleted our holder's key: the companion says so from now on, so that it is told once. `None` where that is not
    /// so, or known already.
    pub(crate) fn record_deletion(&self, ctx: &Ctx, now: Now) -> Result<Option<EndedHold>, Refusal> {
        let (mut key, kind) = self.open(ctx)?;
        let mut side = self.open_companion(ctx)?;
        let Some(seen) = companion::parse(side.bytes()).filter(|seen| seen.state == GrantState::Held) else {
            return Ok(None);
        };
        let state = match kind {
            KeyType::Absent if seen.end(now.wall_ms()).how == EndCause::Released => GrantState::Released,
            // An expiry has been told when it happened.
            KeyType::Absent => return Ok(None),
            KeyType::String | KeyType::Other if key.bytes() == seen.owner => return Ok(None),
            // Somebody else has the key by now, so this was no release.
            KeyType::String | KeyType::Other => GrantState::Forced,
        };
        let (hold, deadline_ms) = (EndedHold::of(&seen), seen.deadline_ms);
        self.write_ended(ctx, &mut side, hold.fence, state, deadline_ms, now);
        Ok(Some(hold))
    }

    /// A plain client ended our grant by deleting its key, and nobody told watchers yet (an expiry is told when it happens).
    pub(super) fn tell_unseen_end(
        &self,
        ctx: &Ctx,
        seen: Option<Companion<'_>>,
        ended: Option<EndedGrant>,
        successor: Fence,
    ) {
        let deleted = ended.is_some_and(|ended| ended.how == EndCause::Released);
        if let Some(seen) = seen.filter(|seen| deleted && seen.state == GrantState::Held) {
            count(Counter::Released);
            if observers::somebody_listens() {
                let hold = EndedHold::of(&seen);
                events::publish_taken(ctx, self.resource(), (&hold).into(), LossCause::Deleted);
                losses::publish(ctx, self.resource(), seen.fence, LossCause::Deleted, Some(successor));
            }
        }
    }
}
