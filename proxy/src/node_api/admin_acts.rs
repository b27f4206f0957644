//! Administrative commands that a client's script called. A script runs on the leader; the client's node learns what it did when
//! it applies the entry, before it hands out the reply.

use redfence_core::machine::AdminAct;
use std::sync::atomic::{AtomicU8, Ordering};

/// Shared by a request and whoever awaits its reply.
#[derive(Debug, Default)]
pub struct AdminActs(AtomicU8);

impl AdminActs {
    pub fn add(&self, act: AdminAct) {
        self.0.fetch_or(bit(act), Ordering::Release);
    }

    /// Names of the commands, as the audit log has them.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        let bits = self.0.load(Ordering::Acquire);
        AdminAct::ALL.into_iter().filter(|act| bits & bit(*act) != 0).map(AdminAct::name).collect()
    }
}

fn bit(act: AdminAct) -> u8 {
    match act {
        AdminAct::FlushAll => 1,
        AdminAct::FlushDb => 2,
    }
}
