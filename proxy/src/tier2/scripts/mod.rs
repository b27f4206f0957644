//! Scripts on the leader: run once, before anything is logged; the log carries what they did.
//!
//! A staged command that holds a script (and is not one of the few that are logged as native commands) waits in a
//! [`ScriptQueue`] until the leader has applied everything in its log. Then the state it sees is exactly the state its entry
//! will be applied to: if the entry commits at its index, what is before it is what the leader saw; if not, it never happened.
//! Running, and proposing what came of it, is one call; where the proposal is refused the result is thrown away and the
//! script stays staged. Whoever loses leadership forgets the queue: the nodes of the clients send again.
//!
//! **Order.** What comes by the connection of a waiting script waits behind it. Other connections pass it for a while
//! (`script_passed_us_max`), then nothing is proposed until one ran. Scripts together use a quarter of the leader's time: while
//! the [`Budget`] is used up they wait, and hold up nobody.
//!
//! # Layout
//!
//! - `queue.rs`: scripts that wait, and what waits behind them; `budget.rs`: CPU time

mod budget;
mod queue;

pub(super) use budget::{Budget, CountedCpu};
pub(super) use queue::{ConnectionKey, ScriptQueue, StagedCommand};

use crate::acl::script::guard;
use crate::node_api::OwnedQuery;
use crate::tier2::node::Node;
use crate::tier2::requests::encoded;
use crate::tier2::requests::staging::UNNUMBERED;
use budget::Meter;
use bytes::Bytes;
use redfence_core::keyspace::Resp;
use redfence_core::machine::{Command, Db, EntryBuilder, Fate, Machine};
use redfence_core::reply::Reply;
use redfence_core::script::{Engine, Preparation, SharedEntry};
use redfence_core::types::{RequestId, Stamp};
use std::cell::RefCell;

/// No further script joins an entry once its scripts have used so much CPU time: with the last one's own limit of 20 ms a turn stays
/// below 50 ms.
const ENTRY_CPU_US_MAX: u64 = 10_000;

/// Time between two log lines about differing results.
const WARNINGS_APART_MS: u64 = 10_000;
/// Keys that are handed over to their waiters before a script that met them. If there are more it meets the rest next time.
const REFRESHED_MAX: usize = 256;

thread_local! {
    /// A VM does not move between threads, and is no state: nodes that share a thread (in simulators) may share it.
    static ENGINE: RefCell<Engine> = RefCell::new(Engine::with_guard(guard));
}

/// What becomes of a request before it is logged.
pub(super) fn prepare(machine: &Machine, blob: &[u8]) -> Preparation {
    ENGINE.with_borrow_mut(|engine| engine.prepare(machine, blob))
}

/// Starts with a fresh VM: what a simulated run does must not depend on the runs before it.
pub fn forget_vm() {
    ENGINE.with_borrow_mut(|engine| *engine = Engine::with_guard(guard));
}

/// What the leader knows of its scripts, besides those that wait.
#[derive(Debug, Default)]
pub(super) struct Scripting {
    pub(super) budget: Budget,
    /// Something had to be ended before the scripts for which a stamp was drawn: they run at the same instant.
    awaited: Option<AwaitedExpiry>,
    /// When differing results were last logged.
    warned_at_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct AwaitedExpiry {
    logical_ms: u64,
    /// The newest script when the stamp was drawn. Later ones must not run at an instant before they came.
    newest: u64,
}

impl Node {
    /// This node does not lead (any more), or leads anew.
    pub(super) fn forget_scripts(&mut self) {
        self.scripting.awaited = None;
    }

    /// Nothing else is proposed until a script ran.
    pub(super) fn must_run_scripts(&self) -> bool {
        let Some(since_us) = self.stage.scripts.ready_since_us(self.stage.proposed) else { return false };
        let passed_us = self.now.monotonic_us.saturating_sub(since_us);
        self.scripting.awaited.is_some()
            || (passed_us >= self.config.script_passed_us_max
                && self.scripting.budget.may_run(self.now.monotonic_us))
    }

    /// When scripts that wait for CPU time want to be looked at again.
    pub(super) fn scripts_at_us(&self) -> Option<u64> {
        let waits = self.is_leader() && !self.stage.scripts.is_empty();
        waits.then(|| self.scripting.budget.free_at_us(self.now.monotonic_us)).flatten()
    }

    /// Runs scripts that wait, if everything in the log is applied, and proposes what they did.
    pub(super) fn run_scripts(&mut self) {
        let now_us = self.now.monotonic_us;
        if self.stage.scripts.ready_since_us(self.stage.proposed).is_none()
            || !self.may_propose()
            || self.entries_under_way() > 0
            || !(self.scripting.awaited.is_some() || self.scripting.budget.may_run(now_us))
        {
            return;
        }
        let Some((stamp, newest)) = self.script_stamp() else { return };
        if self.machine.has_due(stamp) {
            self.expire_before_scripts(stamp, newest);
            return;
        }
        self.scripting.awaited = None;
        self.run_scripts_at(stamp, newest);
    }

    /// The stamp scripts run at, and the newest of them that may.
    fn script_stamp(&mut self) -> Option<(Stamp, u64)> {
        let stamp = self.clock.stamp(self.now)?;
        Some(match self.scripting.awaited {
            // The same instant: else something else might be due again, and again.
            Some(awaited) => {
                let logical_ms = awaited.logical_ms.max(self.machine.logical_ms());
                (Stamp { logical_ms, ..stamp }, awaited.newest)
            }
            None => (stamp, self.stage.scripts.newest()),
        })
    }

    fn expire_before_scripts(&mut self, stamp: Stamp, newest: u64) {
        let expire = encoded(&Command::Expire { idle_ms: self.idle_retention_ms() });
        self.propose_before_scripts(stamp, newest, &[expire]);
    }

    /// Any command ends what is over of the keys it names, and serves who waits for them.
    fn refresh_before_scripts(&mut self, stamp: Stamp, newest: u64, keys: &[(Db, Bytes)]) {
        let exists = |(db, key): &(Db, Bytes)| {
            let argv = [&b"EXISTS"[..], key].into_iter().collect();
            encoded(&Command::Redis { db: *db, resp: Resp::Two, member: None, argv })
        };
        let commands: Vec<Bytes> = keys.iter().take(REFRESHED_MAX).map(exists).collect();
        self.propose_before_scripts(stamp, newest, &commands);
    }

    fn propose_before_scripts(&mut self, stamp: Stamp, newest: u64, commands: &[Bytes]) {
        let mut builder = EntryBuilder::for_version(self.machine.cluster_version(), stamp);
        let (origin, acked_below) = (self.pending.origin(), self.pending.acked_below());
        builder.push_batch(origin, acked_below, commands.iter().map(|command| (UNNUMBERED, command)));
        if self.raw.propose(Vec::new(), builder.finish()).is_ok() {
            self.note_proposed(commands.len());
            self.scripting.awaited = Some(AwaitedExpiry { logical_ms: stamp.logical_ms, newest });
        }
    }

    /// As many scripts as cannot tell that they share one become one entry.
    fn run_scripts_at(&mut self, stamp: Stamp, newest: u64) {
        let mut builder = EntryBuilder::for_version(self.machine.cluster_version(), stamp);
        let mut shared = SharedEntry::default();
        let mut own = Vec::new();
        let mut unswept = Vec::new();
        let began_us = self.cpu.thread_us();
        let mut done = 0;
        while let Some(script) = self.stage.scripts.get(done, newest, self.stage.proposed) {
            let (origin, acked_below) = script.origin(&self.pending);
            let seq = script.seq();
            let is_new = matches!(self.machine.fate(RequestId { origin, seq }), Fate::Unmet);
            // Given up by its client, or applied before: nothing is left to do.
            let Some(blob) = script.blob(&self.pending).filter(|_| is_new) else {
                done += 1;
                continue;
            };
            let mut meter = Meter::start(self.cpu.as_mut());
            let ran = ENGINE.with_borrow_mut(|engine| {
                engine.run_behind(shared.taken(), &self.machine, stamp, blob, &mut meter)
            });
            if !ran.touched.unswept.is_empty() {
                unswept = ran.touched.unswept;
                break;
            }
            if !shared.admits(&ran) {
                break;
            }
            builder.push_batch(origin, acked_below, [(seq, self.gated(ran.blob.clone()))]);
            own.extend(script.is_own().then_some(seq));
            done += 1;
            shared.add(&self.machine, &ran);
            if shared.is_closed()
                || builder.len() >= self.config.entry_bytes_max
                || self.cpu.thread_us().saturating_sub(began_us) >= ENTRY_CPU_US_MAX
            {
                break;
            }
        }
        let used_us = self.cpu.thread_us().saturating_sub(began_us);
        self.scripting.budget.spend(self.now.monotonic_us, used_us);
        self.turn_load.scripts_us += used_us;
        let commands = builder.commands();
        if commands == 0 && !unswept.is_empty() {
            self.refresh_before_scripts(stamp, newest, &unswept);
        }
        if commands > 0 {
            if self.raw.propose(Vec::new(), builder.finish()).is_err() {
                // Dropped before it entered the log: it never ran.
                return;
            }
            self.note_proposed(commands);
            own.into_iter().for_each(|seq| self.pending.mark_proposed(seq));
        }
        self.stage.scripts_done(done, &self.machine, &self.pending, self.now.monotonic_us);
    }

    /// All nodes see the same, so all go on; but it must never happen, and somebody should hear of it. Not of each one: a client
    /// may be able to repeat it.
    pub(super) fn warn_of_differing_effects(&mut self, index: u64) {
        let now_ms = self.now.monotonic_ms();
        let is_due = |at_ms: u64| now_ms.saturating_sub(at_ms) >= WARNINGS_APART_MS;
        if self.scripting.warned_at_ms.is_none_or(is_due) {
            self.scripting.warned_at_ms = Some(now_ms);
            let so_far = self.machine.differing_effects();
            tracing::error!(
                index,
                so_far,
                "a script's writes had other results when applied than on the leader; its client got INDETERMINATE; please report this"
            );
        }
    }

    /// A look at the state by a script, or by anything else.
    pub(super) fn ask(&mut self, query: &OwnedQuery, late_ms: u64) -> Reply {
        let OwnedQuery::Script { db, resp, member, argv } = query else {
            return query.ask(&self.machine, late_ms);
        };
        let argv: Vec<&[u8]> = argv.iter().map(|word| &word[..]).collect();
        let mut meter = Meter::start(self.cpu.as_mut());
        ENGINE.with_borrow_mut(|engine| {
            engine.run_read(&self.machine, late_ms, *member, *db, *resp, &argv, &mut meter)
        })
    }
}
