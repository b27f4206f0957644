//! `LOCK.SESSION`, `LOCK.CLUSTER`, and what comes with other kinds of locks: known here so that they are answered clearly, served by the proxy.

use super::CommandOutcome;
use redfence_core::grammar::errors;
use redfence_core::reply::Refusal;

pub(crate) fn session() -> Result<CommandOutcome, Refusal> {
    Err(errors::tier_sessions_here())
}

pub(crate) fn cluster() -> Result<CommandOutcome, Refusal> {
    Err(Refusal::new(
        "TIER LOCK.CLUSTER is not served here: it speaks of the Raft cluster; ask a Redfence proxy",
    ))
}

pub(crate) fn notify() -> Result<CommandOutcome, Refusal> {
    Err(errors::tier_notify_here())
}

pub(crate) fn kinds() -> Result<CommandOutcome, Refusal> {
    Err(errors::tier_kinds_here())
}
