//! A run from its seed to its report: the storm, the healing, and what must hold in the end.

use super::calls::Ask;
use super::world::World;
use super::Report;
use crate::checker::history::{may_be_told_late, Operation, NEVER};
use crate::checker::{check, check_holds, Answer, Call, Outcome, Rules, Violation};
use redfence::node_api::NodeId;
use redfence::tier2::QUIET_ENTRIES;
use std::collections::BTreeMap;

/// After healing, somebody is served within this time.
const RECOVERY_MS_MAX: u64 = 5_000;
/// After healing, every member has caught up within this time.
const CATCH_UP_MS_MAX: u64 = 30_000;
/// A follower asks for the digest that confirms its snapshot after a quarter of a minute, and again where nodes sit that round out.
const CONFIRMED_MS_MAX: u64 = 60_000;
/// Nodes are watched at rest for so long at least.
const REST_MS_MIN: u64 = 2_000;
const LOOK_EVERY_US: u64 = 50_000;

#[must_use]
pub fn run(seed: u64, trace: bool) -> Report {
    let mut world = World::new(seed);
    world.kernel.trace = trace;
    world.run_to(world.plan.storm_ms * 1_000);
    world.heal();
    world.reckon();
    world.leave_untold_open();
    let simulated_ms = world.kernel.now_us / 1_000;
    let rules = world.rules();
    let mut violations = check(&world.history, &rules);
    violations.extend(world.two_holders(&rules));
    let kinds = violations.iter().map(|violation| violation.kind).collect();
    let mut failures = std::mem::take(&mut world.failures);
    failures.extend(violations.iter().map(ToString::to_string));
    if let Err(text) = world.books.replay() {
        failures.push(format!("the log: {text}"));
    }
    world.tell_history();
    let unknown = world.history.operations.iter().filter(|op| op.outcome == Outcome::Unknown).count();
    Report {
        seed,
        failures,
        kinds,
        trace: world.kernel.agenda.trace,
        simulated_ms,
        happened: world.kernel.agenda.happened,
        operations: world.history.operations.len() as u64,
        unknown: unknown as u64,
        grants: world.books.grants,
        entries: world.books.entries().count() as u64,
    }
}

impl World {
    /// What a node told late, as the contract says. A grant that ended before its client could be told of it, or may have, is answered
    /// nil: for the checker that says as little as no answer. Where it stood all the same, its node gives it back. A renewal is refused
    /// with the reason of the end: that must be true, but the renewal itself may have taken effect before.
    fn leave_untold_open(&mut self) {
        let (untold, rules) = (self.books.untold(), self.rules());
        let (forced, acquires) = (self.forced_ns(), self.history.acquires_by_owner());
        let mut renewals_told: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        for op in &self.history.operations {
            if let (Call::Renew { fence, .. }, Outcome::Answered(Answer::Done)) = (op.call, op.outcome) {
                *renewals_told.entry((op.resource, fence)).or_default() += 1;
            }
        }
        let (mut open, mut failures) = (Vec::new(), Vec::new());
        for (at, op) in self.history.operations.iter_mut().enumerate() {
            // Its client went on asking: an open call is a process of its own.
            let process = u64::MAX - at as u64;
            let node = u64::MAX / 2 - at as u64;
            match (op.call, op.outcome) {
                (Call::Acquire { owner, .. }, Outcome::Answered(Answer::Busy | Answer::Nothing)) => {
                    let Some(fence) = untold.grants.get(&(op.resource, owner)).copied() else { continue };
                    if acquires.get(&(op.resource, owner)) == Some(&1) && !may_have_ended(op, &rules, &forced)
                    {
                        failures.push(format!("granted, and told nil before its time was up: {op:?}"));
                    }
                    (op.outcome, op.complete_ns, op.process) = (Outcome::Unknown, NEVER, process);
                    open.push(Operation { process: node, call: Call::Release { fence }, ..*op });
                }
                (Call::Renew { fence, .. }, Outcome::Answered(Answer::Refused(_))) => {
                    let times = |of: &BTreeMap<_, u64>| of.get(&(op.resource, fence)).copied().unwrap_or(0);
                    if may_be_told_late(op) && times(&untold.renewals) > times(&renewals_told) {
                        open.push(Operation {
                            outcome: Outcome::Unknown,
                            complete_ns: NEVER,
                            process,
                            ..*op
                        });
                    }
                }
                _ => {}
            }
        }
        self.history.operations.extend(open);
        failures.into_iter().for_each(|text| self.fail(text));
    }

    /// When operators took locks away: from, to.
    fn forced_ns(&self) -> Vec<(u64, u64)> {
        let forced = self.history.operations.iter().filter(|op| op.call == Call::ForceRelease);
        forced.map(|op| (op.invoke_ns, op.complete_ns)).collect()
    }

    /// What the checker must know of this run.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules {
            clock_fast_ppm: self.plan.fast_ppm(),
            slack_ns: 3_000_000,
            forgets: self.plan.idle_record_ms < 100_000,
            waits_for_several: self.plan.multi_locks,
            counts_from_told: true,
        }
    }

    /// Two clients that both believe they hold a lock, by majority or by a node's own word.
    fn two_holders(&self, rules: &Rules) -> Vec<Violation> {
        match self.majorities.is_empty() {
            true => check_holds(&self.history, rules),
            false => {
                let mut believed = self.history.clone();
                believed.operations.extend(&self.majorities);
                check_holds(&believed, rules)
            }
        }
    }

    /// Everything is healed: from here on everybody must get on.
    fn reckon(&mut self) {
        self.run_to(self.kernel.now_us + 1_000 * RECOVERY_MS_MAX);
        self.demand_leader();
        self.run_to(self.kernel.now_us + 1_000 * 2_000);
        self.clients_rest = true;
        let longest_ms = 2 * (self.plan.timeout_ms + 4_000) + 5_000;
        self.run_until(longest_ms, |world| world.calls.is_empty());
        if let Some(call) = self.calls.values().next() {
            let text = format!("still without an answer: {:?} at node {}", call.ask, call.host);
            self.fail(text);
        }
        self.demand_raise();
        self.demand_rest();
        self.demand_catch_up();
        self.demand_service();
        self.demand_wider();
        self.demand_kinds();
        self.run_to(self.kernel.now_us + 1_000 * 2_000);
        // An entry of the clock alone may be on its way just now.
        self.demand_catch_up();
        self.demand_equality();
        self.demand_snapshots();
        self.check_changes();
    }

    /// Nobody's log grows for ever: who has applied enough since its last snapshot has made another, and has had it confirmed.
    fn demand_snapshots(&mut self) {
        let end_us = self.kernel.now_us + 1_000 * CONFIRMED_MS_MAX;
        while let Some((id, applied, snapshot)) = self.without_snapshot() {
            if self.kernel.now_us >= end_us {
                let text =
                    format!("node {id} makes no snapshots: applied {applied}, the last is of {snapshot}");
                self.fail(text);
                return;
            }
            self.run_to(self.kernel.now_us + LOOK_EVERY_US);
        }
    }

    /// A member that should have a newer snapshot, what it has applied, and its last one.
    fn without_snapshot(&self) -> Option<(NodeId, u64, u64)> {
        self.members().into_iter().find_map(|id| {
            let node = self.kernel.hosts.get(&id)?.node.as_ref()?;
            let (applied, snapshot) = (node.applied_index(), node.snapshot_index());
            let quiet = if node.machine().content_index() <= snapshot { QUIET_ENTRIES } else { 0 };
            let is_late = applied.saturating_sub(snapshot) > self.plan.snapshot_entries.saturating_add(quiet);
            is_late.then_some((id, applied, snapshot))
        })
    }

    /// Runs for so long, or until there is nothing left to wait for; some runs wait it out all the same.
    fn run_until(&mut self, longest_ms: u64, done: impl Fn(&World) -> bool) {
        let end_us = self.kernel.now_us + 1_000 * longest_ms;
        while self.kernel.now_us < end_us && (self.patient || !done(self)) {
            self.run_to(end_us.min(self.kernel.now_us + LOOK_EVERY_US));
        }
    }

    /// Whether every lock, wait and session has ended, as far as the leader knows.
    fn all_ended(&self) -> bool {
        let leader = self
            .kernel
            .leader()
            .and_then(|id| self.kernel.hosts.get(&id))
            .and_then(|host| host.node.as_ref());
        leader.is_some_and(|node| node.machine().next_due_ms().is_none())
    }

    fn demand_leader(&mut self) {
        if self.kernel.leader().is_none() {
            self.fail(format!("nobody leads {RECOVERY_MS_MAX} ms after healing"));
        }
    }

    /// The members as their leader sees them.
    pub(super) fn members(&self) -> Vec<NodeId> {
        let leader = self.kernel.leader().and_then(|id| self.kernel.hosts.get(&id));
        leader.map_or(Vec::new(), |host| host.members.iter().map(|member| member.id).collect())
    }

    fn demand_catch_up(&mut self) {
        let end_us = self.kernel.now_us + 1_000 * CATCH_UP_MS_MAX;
        while self.kernel.now_us < end_us {
            let members = self.members();
            let applied: Vec<u64> = members.iter().filter_map(|id| self.applied(*id)).collect();
            if !applied.is_empty() && applied.windows(2).all(|pair| pair[0] == pair[1]) {
                return;
            }
            self.run_to(self.kernel.now_us + 50_000);
        }
        let applied: Vec<_> = self.members().into_iter().map(|id| (id, self.applied(id))).collect();
        self.fail(format!("members have not caught up {CATCH_UP_MS_MAX} ms after healing: {applied:?}"));
    }

    /// While nobody asks for anything and locks run out, nodes sleep most of the time. Every member's
    /// acknowledgement wakes the leader, so a large cluster may wake it more often.
    fn demand_rest(&mut self) {
        let before: Vec<u64> = self.kernel.hosts.values().map(|host| host.turns).collect();
        let start_us = self.kernel.now_us;
        let looked_at_ms = self.plan.longest_hold_ms().min(REST_MS_MIN);
        self.run_to(start_us + 1_000 * looked_at_ms);
        self.run_until(self.plan.longest_hold_ms() - looked_at_ms, World::all_ended);
        let rest_ms = (self.kernel.now_us - start_us) / 1_000;
        let turns =
            self.kernel.hosts.values().zip(before).map(|(host, before)| (host.id, host.turns - before));
        let turns_max = rest_ms / 10 * (self.members().len() as u64).max(5);
        let restless = turns.max_by_key(|(_, turns)| *turns).filter(|(_, turns)| *turns > turns_max);
        if let Some((id, turns)) = restless {
            self.fail(format!("node {id} does not rest: {turns} turns in {rest_ms} quiet ms"));
        }
    }

    fn applied(&self, id: NodeId) -> Option<u64> {
        Some(self.kernel.hosts.get(&id)?.node.as_ref()?.applied_index())
    }

    /// At every member: every lock can be seen, taken, and released. Nothing is stuck.
    fn demand_service(&mut self) {
        let client = self.clients.len();
        let (rng, process) = (self.kernel.rng.fork(), self.number());
        self.clients.push(super::clients::Client::new(rng, process));
        for id in self.members() {
            for resource in 0..self.plan.resources {
                self.demand(client, id, Ask::Look { resource });
                let owner = self.number();
                let acquire =
                    Ask::Acquire { resources: vec![resource], owner, ttl_ms: 60_000, wait_ms: 0, session: 0 };
                let Some(Outcome::Answered(crate::checker::Answer::Granted { fence, .. })) =
                    self.demand(client, id, acquire)
                else {
                    self.fail(format!(
                        "resource {resource} cannot be had at node {id} long after everything ended"
                    ));
                    continue;
                };
                self.demand(client, id, Ask::Release { pairs: vec![(resource, fence)] });
            }
        }
    }

    /// One call, run until it is answered.
    fn demand(&mut self, client: usize, host: NodeId, ask: Ask) -> Option<Outcome> {
        if !self.kernel.hosts.get(&host).is_some_and(|host| host.is_up()) {
            self.fail(format!("node {host} is not up in the end"));
            return None;
        }
        let number = self.call(client, host, ask.clone());
        let at = self.calls[&number].operations.start;
        let end_us = self.kernel.now_us + 10_000_000;
        while self.kernel.now_us < end_us && self.calls.contains_key(&number) {
            self.run_to(self.kernel.now_us + 200);
        }
        let outcome = self.history.operations.get(at).map(|op| op.outcome);
        if !matches!(outcome, Some(Outcome::Answered(_))) {
            self.fail(format!("not served in the end: {ask:?} at node {host}: {outcome:?}"));
        }
        outcome
    }

    fn demand_equality(&mut self) {
        let members = self.members();
        if members.is_empty() {
            self.fail("nobody leads in the end".to_string());
        }
        let mut states = Vec::new();
        for id in &members {
            let Some(node) = self.kernel.hosts.get(id).and_then(|host| host.node.as_ref()) else { continue };
            states.push((
                *id,
                node.applied_index(),
                node.machine().state_hash(),
                self.kernel.hosts[id].members.clone(),
            ));
            if let Err(violation) = node.machine().check_invariants() {
                self.fail(format!("node {id}: {violation}"));
            }
        }
        for pair in states.windows(2) {
            if (pair[0].1, pair[0].2, &pair[0].3) != (pair[1].1, pair[1].2, &pair[1].3) {
                self.fail(format!("nodes differ in the end: {:?} and {:?}", pair[0], pair[1]));
                return;
            }
        }
    }

    /// Changes of membership that were acknowledged are still there.
    fn check_changes(&mut self) {
        let members = self.members();
        if let Some(id) = self.changes.removed.iter().find(|id| members.contains(id)) {
            self.fail(format!("node {id} was removed, and is a member in the end"));
        }
        let lost = self
            .changes
            .added
            .iter()
            .find(|id| !members.contains(id) && !self.changes.remove_asked.contains(id));
        if let Some(id) = lost {
            self.fail(format!("node {id} was added, and is no member in the end"));
        }
    }
}

/// Whether a grant can have ended before its answer: its ttl has passed since it was asked for, or it was taken away.
fn may_have_ended(op: &Operation, rules: &Rules, forced: &[(u64, u64)]) -> bool {
    let Call::Acquire { ttl_ms, session, .. } = op.call else { return false };
    // The clock of the node that told it and those of the leaders may each be fast.
    let shortest_ns = rules.shortest_ns(rules.shortest_ns(ttl_ms) / 1_000_000);
    session != 0
        || op.complete_ns.saturating_sub(op.invoke_ns) >= shortest_ns
        || forced.iter().any(|(from_ns, to_ns)| *from_ns <= op.complete_ns && op.invoke_ns <= *to_ns)
}
