//! Who would see what a command does beside its client: subscribers, replicas, the AOF. Nothing is built for nobody.
//!
//! Building arguments for a replication stream that goes nowhere, and JSON for no subscriber, would cost more than the lock itself.
//! Both answers are exact where they say "nobody", and may say "somebody" too often:
//!
//! - Subscribers: a filter sees every `SUBSCRIBE` and `PSUBSCRIBE` before it runs. In a cluster messages also go to other nodes,
//!   and where those commands were renamed the filter would not know them: there somebody always listens.
//! - Replicas: what a new replica gets is a snapshot taken at a fork, then the stream from that fork on. So nothing needs to be
//!   replicated until a fork, or a replica that is already there, or a change of role, says otherwise.
//! - AOF: asked of the server for every command, in `ffi`.
//!
//! Once a second the server's own figures are looked at, and "somebody" becomes "nobody" again where they allow it.

use crate::ffi::Ctx;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

// Only the main thread comes here. Relaxed atomics cost as much as plain memory, and a thread's own variables cost a call each.
static LISTENERS: AtomicBool = AtomicBool::new(true);
static REPLICAS: AtomicBool = AtomicBool::new(true);
/// Set where "nobody" can never be known: in a cluster, and with renamed commands.
static ALWAYS_LISTENERS: AtomicBool = AtomicBool::new(true);
static CRONS: AtomicU32 = AtomicU32::new(0);

/// Cron runs ten times a second unless `hz` says otherwise.
const CRONS_BETWEEN_LOOKS: u32 = 10;

pub(crate) fn learn(ctx: &Ctx) {
    let known = !ctx.is_cluster() && ctx.knows_command(c"subscribe") && ctx.knows_command(c"psubscribe");
    ALWAYS_LISTENERS.store(!known, Relaxed);
    look(ctx);
}

/// Whether an event would reach anybody.
pub(crate) fn somebody_listens() -> bool {
    LISTENERS.load(Relaxed)
}

/// Whether effects go to a replica, or might have to.
pub(crate) fn has_replicas() -> bool {
    REPLICAS.load(Relaxed)
}

pub(crate) fn on_subscribe() {
    LISTENERS.store(true, Relaxed);
}

pub(crate) fn on_replication_may_begin() {
    REPLICAS.store(true, Relaxed);
}

pub(crate) fn on_cron(ctx: &Ctx) {
    if CRONS.fetch_add(1, Relaxed) >= CRONS_BETWEEN_LOOKS {
        CRONS.store(0, Relaxed);
        look(ctx);
    }
}

fn look(ctx: &Ctx) {
    if !ALWAYS_LISTENERS.load(Relaxed) && somebody_listens() {
        let nobody = ctx.info_is_zero(c"stats", &[c"pubsub_channels", c"pubsub_patterns"]);
        LISTENERS.store(!nobody, Relaxed);
    }
    // In a cluster a slot may be on its way to another node, which no figure here tells of.
    if has_replicas() && !ctx.is_cluster() && ctx.is_lone_master() {
        let nobody = ctx.info_is_zero(c"replication", &[c"connected_slaves", c"repl_backlog_active"]);
        REPLICAS.store(!nobody, Relaxed);
    }
}
