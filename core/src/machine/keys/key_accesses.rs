//! Which requests read which keys, and which keys changed, in order: what client tracking is made of. Not state, and only
//! collected while somebody wants it.
//!
//! Keys go by their names alone, whatever the database, as in Redis. As there, only commands that merely read leave a trace,
//! inside scripts and transactions too; every change does, whoever made it.

use crate::event::EventKind;
use crate::keyspace::table::{Row, R};
use crate::machine::{Applied, LockSlot, Machine};
use crate::types::RequestId;
use ::bytes::Bytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyAccess {
    Read {
        by: RequestId,
        key: Bytes,
    },
    /// `by`: the request that changed it, if it was one. What ends by its time has none.
    Changed {
        by: Option<RequestId>,
        key: Bytes,
    },
    /// A whole database, or all of them.
    Flushed,
}

impl Machine {
    pub(crate) fn note_read(&self, row: &Row, argv: &[&[u8]], out: &mut Applied) {
        let Some(by) = self.acting.filter(|_| self.wanted.keys && row.is(R)) else { return };
        let keys = row.keys_of(argv);
        out.key_accesses
            .extend(keys.iter().map(|key| KeyAccess::Read { by, key: Bytes::copy_from_slice(key) }));
    }

    /// The same for a script that ran elsewhere.
    pub(crate) fn note_name_read(&self, key: &[u8], out: &mut Applied) {
        if let Some(by) = self.acting.filter(|_| self.wanted.keys) {
            out.key_accesses.push(KeyAccess::Read { by, key: Bytes::copy_from_slice(key) });
        }
    }

    /// Every change of a lock or a key has an event.
    pub(crate) fn note_event(&self, kind: EventKind, slot: LockSlot, out: &mut Applied) {
        match kind {
            EventKind::Queued | EventKind::Abandoned => {}
            EventKind::Acquired
            | EventKind::Renewed
            | EventKind::Released
            | EventKind::Expired
            | EventKind::SessionEnded => {
                let key = Bytes::copy_from_slice(self.locks[slot].name());
                out.key_accesses.push(KeyAccess::Changed { by: self.acting, key });
            }
        }
    }
}
