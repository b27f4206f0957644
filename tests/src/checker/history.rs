//! What clients asked and were told, with the time of each, on one clock.
//!
//! An operation is stamped before its first byte is written and after the last byte of its answer is read. Its outcome is
//! one of three: answered, certainly not done ([`Outcome::Failed`]), or not known. After an unknown outcome its process is
//! retired and a new one goes on (Jepsen's rule). A multi-lock is one operation for each of its resources, with one window.

use super::{Violation, ViolationKind};
use std::collections::HashMap;

/// No completion: the outcome is not known, and may still come about at any later time.
pub const NEVER: u64 = u64::MAX;
/// The resource of an operation on a session.
pub const NO_RESOURCE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `session` 0: none. `ttl_ms` 0: as long as the session.
    Acquire {
        owner: u64,
        ttl_ms: u64,
        wait_ms: u64,
        session: u64,
    },
    Release {
        fence: u64,
    },
    Renew {
        fence: u64,
        ttl_ms: u64,
    },
    /// A plain client's compare-and-delete: it knows its value, not the fence.
    ReleaseBy {
        owner: u64,
    },
    /// A plain client's compare-and-pexpire.
    RenewBy {
        owner: u64,
        ttl_ms: u64,
    },
    ForceRelease,
    /// `LOCK.INFO`
    Look,
    Open {
        session: u64,
        ttl_ms: u64,
    },
    KeepAlive {
        session: u64,
    },
    Close {
        session: u64,
    },
    /// The connection that opened the session is gone. Never answered.
    Orphan {
        session: u64,
        grace_ms: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted {
        fence: u64,
        ttl_ms: u64,
    },
    /// Granted to a plain client (`SET NX PX`), which is told no fence.
    Taken,
    /// nil
    Busy,
    /// It took place, and there is nothing more to say.
    Done,
    Refused(Reason),
    /// `fence` is the last issued, 0 if none; `owner` 0 where it is free.
    Seen {
        held: bool,
        fence: u64,
        owner: u64,
    },
    NoSession,
    /// An error that certainly changed nothing (DEADLOCK, OOM, ERR), or nothing to force.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    NotOwner,
    AlreadyReleased,
    Expired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answered(Answer),
    /// Certainly not done, now or later.
    Failed,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub process: u64,
    pub resource: u32,
    pub invoke_ns: u64,
    /// [`NEVER`] where the outcome is not known.
    pub complete_ns: u64,
    pub call: Call,
    pub outcome: Outcome,
    /// Parts of one multi-lock share a number; 0 for all others.
    pub group: u64,
}

/// Somebody was seen in line: by `LOCK.QUEUE`, or by a `queued` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenQueued {
    pub at_ns: u64,
    pub resource: u32,
    pub owner: u64,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    pub queued: Vec<SeenQueued>,
}

impl Operation {
    #[must_use]
    pub fn answer(&self) -> Option<Answer> {
        match self.outcome {
            Outcome::Answered(answer) => Some(answer),
            Outcome::Failed | Outcome::Unknown => None,
        }
    }

    /// Whether it may have changed something.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.outcome == Outcome::Unknown
    }

    /// The session it names, 0 for none.
    #[must_use]
    pub fn session(&self) -> u64 {
        match self.call {
            Call::Acquire { session, .. }
            | Call::Open { session, .. }
            | Call::KeepAlive { session }
            | Call::Close { session }
            | Call::Orphan { session, .. } => session,
            Call::Release { .. }
            | Call::Renew { .. }
            | Call::ReleaseBy { .. }
            | Call::RenewBy { .. }
            | Call::ForceRelease
            | Call::Look => 0,
        }
    }
}

impl History {
    /// Operations of each resource, resources in order.
    #[must_use]
    pub fn by_resource(&self) -> Vec<(u32, Vec<&Operation>)> {
        let mut sorted: Vec<&Operation> =
            self.operations.iter().filter(|op| op.resource != NO_RESOURCE).collect();
        sorted.sort_by_key(|op| op.resource);
        let mut groups: Vec<(u32, Vec<&Operation>)> = Vec::new();
        for op in sorted {
            match groups.last_mut() {
                Some((resource, group)) if *resource == op.resource => group.push(op),
                Some(_) | None => groups.push((op.resource, vec![op])),
            }
        }
        groups
    }

    /// What makes this no history at all.
    #[must_use]
    pub fn malformed(&self) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut wrong = |op: &Operation, text: &str| {
            let text = format!("process {}: {text}: {op:?}", op.process);
            violations.push(Violation {
                kind: ViolationKind::Malformed,
                resource: op.resource,
                fence: 0,
                text,
            });
        };
        let mut order: Vec<&Operation> = self.operations.iter().collect();
        order.sort_by_key(|op| (op.process, op.invoke_ns));
        for op in &order {
            if op.complete_ns < op.invoke_ns {
                wrong(op, "answered before it was asked");
            }
            if op.is_unknown() != (op.complete_ns == NEVER) {
                wrong(op, "an unknown outcome has no completion, and every other has one");
            }
        }
        for pair in order.windows(2).filter(|pair| pair[0].process == pair[1].process) {
            let one_call = pair[0].group != 0 && pair[0].group == pair[1].group;
            if !one_call && pair[0].complete_ns > pair[1].invoke_ns {
                wrong(pair[1], "asked while another call was open");
            }
        }
        violations
    }

    /// Owners asked for more than once on one resource: their place in line may have been lost between two tries.
    #[must_use]
    pub fn acquires_by_owner(&self) -> HashMap<(u32, u64), u32> {
        let mut counts = HashMap::new();
        for op in &self.operations {
            if let Call::Acquire { owner, .. } = op.call {
                *counts.entry((op.resource, owner)).or_insert(0) += 1;
            }
        }
        counts
    }
}

/// Whether a refused renewal may have taken effect before it was refused: a node tells a renewal that it heard of late as it is by
/// then. The refusal itself must be true. The node's limit for what is not late: half of the ttl, 20 to 250 ms.
#[must_use]
pub fn may_be_told_late(op: &Operation) -> bool {
    let (Call::Renew { ttl_ms, .. }, Outcome::Answered(Answer::Refused(_))) = (op.call, op.outcome) else {
        return false;
    };
    let took_ms = op.complete_ns.saturating_sub(op.invoke_ns) / 1_000_000;
    took_ms >= if ttl_ms == 0 { 250 } else { (ttl_ms / 2).clamp(20, 250) }
}
