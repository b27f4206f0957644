//! `LOCK.RENEW`: sets the time left of a lock that is still held under this fence. It may also shorten it.

use crate::event::EventKind;
use crate::grammar::errors;
use crate::machine::log::command::Db;
use crate::machine::{Applied, Machine};
use crate::mutant;
use crate::reply::Reply;
use crate::types::{Fence, Reason, TTL_MS_MAX};

impl Machine {
    pub(crate) fn renew(
        &mut self,
        db: Db,
        name: &[u8],
        fence: Fence,
        ttl_ms: u64,
        out: &mut Applied,
    ) -> Reply {
        if ttl_ms == 0 || ttl_ms > TTL_MS_MAX {
            return errors::ttl_range().into();
        }
        let Some(slot) = self.find_fresh(db, name, out) else { return Reply::Refused(Reason::NotOwner) };
        let Some(hold) = self.hold_with_fence(slot, fence) else {
            return Reply::Refused(self.locks[slot].reason_against(fence));
        };
        if mutant!(RenewWithoutEffect) {
            return Reply::Renewed { ttl_ms };
        }
        // A lock that was bound to its session alone now ends with whichever comes first.
        let deadline_ms = self.deadline_after(ttl_ms);
        self.set_end_of(hold, deadline_ms);
        self.emit(EventKind::Renewed, slot, Machine::event_owner(hold), out);
        Reply::Renewed { ttl_ms }
    }
}
