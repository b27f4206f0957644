//! `redfence run` and `redfence elect`: a command that runs while a lock is held.
//!
//! # Caveats
//!
//! The command is ended when the lock is lost, but a machine can stand still at any moment: what the command writes is only safe where the
//! resource checks `REDFENCE_FENCE`.

use super::access::{Access, AccessArgs};
use super::child::{command_under, ended_by, Child, Signals};
use super::exit::{self, Failure};
use super::guard::{guarded, Tie};
use super::hold::{holder, now_ms, Hold, Loss, Released, Wish};
use super::output::tell;
use super::times::{parse_ms, parse_ttl_ms};
use clap::Args;
use rustix::process::Signal;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::Stdio;

pub const RUN_EXAMPLES: &str = "\
Examples:
  redfence run nightly-report -- /usr/local/bin/report            in the crontab of every machine: one of them runs it
  redfence run migrate:shop --wait 10m -- ./migrate.sh             the others wait their turn
  redfence run wallet -- sh -c 'PGOPTIONS=\"-c redfence.fence=$REDFENCE_FENCE\" psql -v ON_ERROR_STOP=1 -f job.sql'

The command gets REDFENCE_FENCE and REDFENCE_RESOURCE. Exit codes: the command's own; 128 + n where signal n ended it; 75: the lock
is busy; 76: the lock was lost, and the command ended or done; 69: no node serves the lock; 126, 127: the command cannot be run, is not found.";

pub const ELECT_EXAMPLES: &str = "\
Example, the same on every machine:
  redfence elect scheduler --value \"$(hostname):8080\" -- ./scheduler
  redis-cli -p 6380 LOCK.INFO scheduler            owner and value of the leader

One of them leads and runs the command. Where it loses the leadership its command is ended, and it stands for election again. Where the
command ends by itself the leadership is given up and its exit code handed on. The other exit codes are those of redfence run.";

/// How a command runs under a lock.
#[derive(Debug, Args)]
pub struct HoldArgs {
    /// How long the lock outlives a machine that dies. Renewed at a third of it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ttl_ms)]
    pub ttl: u64,

    /// How long after SIGTERM the command is killed when the lock is lost; a third of the ttl at most
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_ms)]
    pub kill_after: u64,

    /// Keep the command in the foreground of the terminal: it may read from it, but only the command itself is signalled, not what it starts
    #[arg(long)]
    pub foreground: bool,

    /// correctness or efficiency [default: what the cluster says of this name]
    #[arg(long, value_name = "TIER")]
    pub tier: Option<String>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The lock
    #[arg(value_name = "NAME")]
    pub name: String,

    /// How long to wait for the lock
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_ms)]
    pub wait: u64,

    #[command(flatten)]
    pub hold: HoldArgs,

    #[command(flatten)]
    pub access: AccessArgs,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct ElectArgs {
    /// The lock that the leader holds
    #[arg(value_name = "NAME")]
    pub name: String,

    /// What LOCK.INFO and events show of the leader: its address, say. Needs cluster version 2
    #[arg(long, value_name = "TEXT")]
    pub value: Option<String>,

    #[command(flatten)]
    pub hold: HoldArgs,

    #[command(flatten)]
    pub access: AccessArgs,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// How a command that ran under a lock has ended.
enum End {
    Exited(u8),
    Lost(Loss),
}

pub(crate) async fn run(args: &RunArgs) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let wish = Wish {
        name: args.name.clone(),
        ttl_ms: args.hold.ttl,
        wait_ms: Some(args.wait),
        value: None,
        tier: args.hold.tier.clone(),
    };
    let Some(hold) = acquire(access(&args.access)?, wish, &mut signals).await? else {
        let by = holder(&mut access(&args.access)?, &args.name).await;
        return Err(Failure::new(exit::BUSY, format!("{} is held{by}", args.name.escape_debug())));
    };
    match under(hold, &args.name, &args.command, &args.hold, &mut signals).await? {
        End::Exited(code) => exited(code),
        End::Lost(loss) => Err(Failure::new(exit::LOST, lost(&args.name, &loss))),
    }
}

pub(crate) async fn elect(args: &ElectArgs) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let name = args.name.escape_debug();
    loop {
        let wish = Wish {
            name: args.name.clone(),
            ttl_ms: args.hold.ttl,
            wait_ms: None,
            value: args.value.clone(),
            tier: args.hold.tier.clone(),
        };
        // Without a limit to the wait it ends with the lock.
        let Some(hold) = acquire(access(&args.access)?, wish, &mut signals).await? else { continue };
        tell(&format!("redfence: leads {name} with fence {}", hold.fence()));
        match under(hold, &args.name, &args.command, &args.hold, &mut signals).await? {
            End::Exited(code) => return exited(code),
            End::Lost(loss) => {
                tell(&format!("redfence: {}; stands for election again", lost(&args.name, &loss)));
            }
        }
    }
}

/// 1 is an exit code of the command.
fn access(args: &AccessArgs) -> Result<Access, Failure> {
    Access::new(args).map_err(|failure| failure.with_code(exit::NOT_DONE))
}

fn exited(code: u8) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err(Failure::new(code, "")),
    }
}

fn lost(name: &str, loss: &Loss) -> String {
    format!("the lock {} is lost, {}; the command has ended", name.escape_debug(), loss.cause)
}

/// A signal ends the wait.
async fn acquire(access: Access, wish: Wish, signals: &mut Signals) -> Result<Option<Hold>, Failure> {
    tokio::select! {
        acquired = Hold::acquire(access, wish) => acquired,
        signal = signals.next() => Err(ended_by(signal)),
    }
}

async fn under(
    mut hold: Hold,
    name: &str,
    command: &[OsString],
    args: &HoldArgs,
    signals: &mut Signals,
) -> Result<End, Failure> {
    let tie = if args.foreground { Tie::Kernel } else { Tie::Guard };
    let started = command_under(&guarded(command, tie), name, hold.fence()).and_then(|mut command| {
        // A process group in the background of a terminal is stopped when it reads from it, and would keep the lock for ever.
        if !args.foreground && io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        Child::start(command, !args.foreground)
    });
    let mut child = match started {
        Ok(child) => child,
        Err(failure) => {
            released(hold, name).await;
            return Err(failure);
        }
    };
    let grace_ms = args.kill_after.min(args.ttl / 3);
    let end = {
        let keep = hold.keep(grace_ms);
        tokio::pin!(keep);
        loop {
            tokio::select! {
                code = child.wait() => break End::Exited(code?),
                loss = &mut keep => break End::Lost(loss),
                signal = signals.next() => {
                    // The terminal has sent these to the command, too.
                    let is_known = args.foreground && matches!(signal, Signal::INT | Signal::QUIT);
                    if !is_known {
                        child.signal(signal);
                    }
                }
            }
        }
    };
    match end {
        End::Exited(code) => match end_rest(&mut hold, &mut child, grace_ms).await? {
            None => match released(hold, name).await {
                // Somebody else may have worked meanwhile: that is no success.
                Released::Lost if code == 0 => Ok(End::Lost(Loss {
                    cause: "it had ended before the command did".to_owned(),
                    is_certain: true,
                })),
                Released::Held | Released::Lost | Released::Unknown => Ok(End::Exited(code)),
            },
            Some(loss) if code == 0 => Ok(End::Lost(loss)),
            Some(_) => Ok(End::Exited(code)),
        },
        End::Lost(loss) => {
            end_without_lock(hold, &mut child, &loss, grace_ms).await?;
            Ok(End::Lost(loss))
        }
    }
}

/// What a command has left behind in its group works under the lock, too: it is ended before the lock is released. Answers with the loss
/// where the lock was lost meanwhile.
async fn end_rest(hold: &mut Hold, child: &mut Child, grace_ms: u64) -> Result<Option<Loss>, Failure> {
    if !child.is_at_work() {
        return Ok(None);
    }
    tell("redfence: the command has ended, but not all that it started; ending that, too");
    let loss = {
        let kill_at_ms = now_ms() + grace_ms;
        tokio::select! {
            ended = child.end(kill_at_ms) => return ended.map(|_| None),
            loss = hold.keep(grace_ms) => loss,
        }
    };
    child.end(kill_at_ms(hold, &loss, 0)).await?;
    Ok(Some(loss))
}

/// At the end of the lock where no node can be reached; `grace_ms` from now where the lock is lost for certain.
fn kill_at_ms(hold: &Hold, loss: &Loss, grace_ms: u64) -> u64 {
    if loss.is_certain {
        now_ms() + grace_ms
    } else {
        hold.must_be_over_at_ms()
    }
}

async fn end_without_lock(hold: Hold, child: &mut Child, loss: &Loss, grace_ms: u64) -> Result<(), Failure> {
    child.end(kill_at_ms(&hold, loss, grace_ms)).await?;
    if !loss.is_certain {
        // Nobody works under it any more: whoever waits need not wait for the ttl.
        hold.release().await;
    }
    Ok(())
}

async fn released(hold: Hold, name: &str) -> Released {
    let released = hold.release().await;
    if released == Released::Unknown {
        tell(&format!("redfence: no node answers: the lock {} ends with its ttl", name.escape_debug()));
    }
    released
}
