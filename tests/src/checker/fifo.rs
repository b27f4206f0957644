//! First come, first served: who was seen in line before another asked is granted before it.

use super::history::{Answer, Call, History, NEVER};
use super::{Violation, ViolationKind};
use std::collections::HashMap;

/// One wait: asked, seen in line, granted under a fence.
#[derive(Clone, Copy, Debug)]
struct Wait {
    asked_ns: u64,
    /// [`NEVER`] where nobody saw it in line.
    queued_ns: u64,
    fence: u64,
    owner: u64,
}

/// Parts of multi-locks are left out: they wait for several heads at once. So are owners that asked twice, because a place
/// may have been lost between two tries.
pub fn check(history: &History, violations: &mut Vec<Violation>) {
    let tries = history.acquires_by_owner();
    let mut seen: HashMap<(u32, u64), u64> = HashMap::new();
    for queued in &history.queued {
        let at_ns = seen.entry((queued.resource, queued.owner)).or_insert(NEVER);
        *at_ns = (*at_ns).min(queued.at_ns);
    }
    for (resource, operations) in history.by_resource() {
        let waits: Vec<Wait> = operations
            .iter()
            .filter(|op| op.group == 0)
            .filter_map(|op| match (op.call, op.answer()) {
                (Call::Acquire { owner, .. }, Some(Answer::Granted { fence, .. })) => {
                    let alone = tries.get(&(resource, owner)) == Some(&1);
                    let queued_ns = seen.get(&(resource, owner)).copied().filter(|_| alone);
                    let queued_ns = queued_ns.unwrap_or(NEVER);
                    alone.then_some(Wait { asked_ns: op.invoke_ns, queued_ns, fence, owner })
                }
                _ => None,
            })
            .collect();
        sweep(resource, waits, violations);
    }
}

fn sweep(resource: u32, mut waits: Vec<Wait>, violations: &mut Vec<Violation>) {
    let mut in_line: Vec<Wait> = waits.iter().filter(|wait| wait.queued_ns != NEVER).copied().collect();
    in_line.sort_by_key(|wait| wait.queued_ns);
    waits.sort_by_key(|wait| wait.asked_ns);
    let mut ahead = in_line.into_iter().peekable();
    let mut latest: Option<Wait> = None;
    for wait in waits {
        while let Some(before) = ahead.next_if(|before| before.queued_ns < wait.asked_ns) {
            if latest.is_none_or(|latest| latest.fence < before.fence) {
                latest = Some(before);
            }
        }
        if let Some(before) = latest.filter(|before| before.fence > wait.fence) {
            let text = format!(
                "owner {:x} stood in line at {} ns and got fence {}; owner {:x} asked at {} ns and got {}",
                before.owner, before.queued_ns, before.fence, wait.owner, wait.asked_ns, wait.fence
            );
            violations.push(Violation { kind: ViolationKind::Fifo, resource, fence: wait.fence, text });
            return;
        }
    }
}
