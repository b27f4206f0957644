//! One file a command: grammar -> keys -> reply. The table that leads here is in `lib.rs`.

pub(crate) mod acquire;
pub(crate) mod fence;
pub(crate) mod force_release;
pub(crate) mod info;
pub(crate) mod macquire;
pub(crate) mod mrelease;
pub(crate) mod proxy_only;
pub(crate) mod queue;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod scan;

use crate::clock::Now;
use crate::ffi::{Arg, Ctx};
use crate::info::{command_took, count, sampled, Counter};
use redfence_core::grammar::words::Options;
use redfence_core::grammar::{self, errors};
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::{LockKind, Tier};

/// How a command is answered.
pub(crate) enum CommandOutcome {
    Reply(Reply),
    /// The client is blocked and will hear later, or another command's answer was passed on.
    Sent,
}

impl From<Reply> for CommandOutcome {
    fn from(reply: Reply) -> CommandOutcome {
        CommandOutcome::Reply(reply)
    }
}

/// What every command gets.
pub(crate) struct CommandContext<'a> {
    pub(crate) ctx: &'a Ctx,
    pub(crate) argv: &'a [Arg],
    pub(crate) now: Now,
}

/// Reads the command, runs it, and counts.
pub(crate) fn answer(ctx: &Ctx, argv: &[Arg]) -> CommandOutcome {
    let call = CommandContext { ctx, argv, now: Now::read() };
    let outcome = match grammar::parse(argv) {
        Some(Ok(request)) => crate::run(&call, &request),
        Some(Err(refusal)) => Err(refusal),
        None => Err(Refusal::new("ERR unknown command")),
    };
    if sampled() {
        command_took(Now::read().wall_us.saturating_sub(call.now.wall_us));
    }
    outcome.unwrap_or_else(|refusal| {
        count(Counter::Refused);
        CommandOutcome::Reply(Reply::Error(refusal))
    })
}

/// Tier 1 is all there is here.
fn check_tier(tier: Option<Tier>) -> Result<(), Refusal> {
    match tier {
        None | Some(Tier::Efficiency) => Ok(()),
        Some(Tier::Correctness) => Err(errors::tier_correctness_here()),
    }
}

fn check_options(options: &Options<'_>) -> Result<(), Refusal> {
    check_tier(options.tier)?;
    if options.kind != LockKind::Exclusive {
        return Err(errors::tier_kinds_here());
    }
    match options.session {
        None => Ok(()),
        Some(_) => Err(errors::tier_sessions_here()),
    }
}
