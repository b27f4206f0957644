//! What stands between `redfence run` and its command, so that a `run` that is killed (out of memory, say) leaves nobody behind who
//! works without the lock.
//!
//! ```text
//! redfence run ── guard, leads session and group ── the command ── whatever it starts
//! ```
//!
//! The guard ends with its command, under the same exit code. When `run` has died it kills the command and whatever descends from it: it is the
//! kernel's "child subreaper", so a process whose parent has ended stays below it. The kernel's own way, a signal at the death of the
//! parent, is not enough: it ends the command alone, and the kernel forgets it where the command changes its user (`su`, `setpriv`). It
//! stays as the second line, for a guard that is killed itself.
//!
//! The session is one without a terminal: a command that asks at `/dev/tty` would be stopped there by the kernel, and keep the lock for ever.
//!
//! With `--foreground` there is no group and no guard, only the kernel's way.
//!
//! # Caveats
//!
//! What has other rights than `run` (`sudo` in the command of a plain user) cannot be killed.

use super::child::{ended_by, kill_below, Signals};
use super::exit::{self, Failure};
use clap::Args;
use rustix::io::retry_on_intr;
use rustix::process::{
    getpid, getppid, kill_process_group, set_child_subreaper, set_parent_process_death_signal, setsid, wait,
    Pid, Signal as ProcessSignal, WaitOptions,
};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::oneshot;

const THIS_PROGRAM: &str = "/proc/self/exe";
/// Tells a guard of the death of its parent. Nobody else means anything by it, and a process that does not catch it is not ended by it.
const PARENT_HAS_DIED: ProcessSignal = ProcessSignal::URG;
/// Beside the kernel's signal.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct GuardArgs {
    /// The process that must live
    pub parent: i32,
    /// Stay as the parent of the command, and end whatever it has started
    #[arg(long)]
    pub stay: bool,
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// How a command is tied to the life of `redfence run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tie {
    /// By a guard, with all that it starts.
    Guard,
    /// By the kernel, the command alone.
    Kernel,
}

/// Without `/proc` there is no guard.
pub(crate) fn is_there() -> bool {
    Path::new(THIS_PROGRAM).exists()
}

/// The words that run a command tied to this process; the command alone where there is no `/proc`.
pub(crate) fn guarded(words: &[OsString], tie: Tie) -> Vec<OsString> {
    if !is_there() {
        return words.to_vec();
    }
    let mut guard = vec![THIS_PROGRAM.to_owned(), "guarded-exec".to_owned(), std::process::id().to_string()];
    guard.extend((tie == Tie::Guard).then(|| "--stay".to_owned()));
    guard.push("--".to_owned());
    guard.into_iter().map(OsString::from).chain(words.iter().cloned()).collect()
}

pub(crate) async fn run(args: &GuardArgs) -> Result<(), Failure> {
    let signal = if args.stay { PARENT_HAS_DIED } else { ProcessSignal::KILL };
    let tied = set_parent_process_death_signal(Some(signal));
    tied.map_err(|error| cannot_tie(&error.into()))?;
    if args.stay {
        return stay(args).await;
    }
    // It may have died before the kernel knew.
    if has_died(args.parent) {
        return Err(ended_by(ProcessSignal::KILL));
    }
    let (program, arguments) = split(&args.command)?;
    let error = Command::new(program).args(arguments).exec();
    Err(cannot_run(program, &error))
}

async fn stay(args: &GuardArgs) -> Result<(), Failure> {
    setsid().map_err(|error| cannot_tie(&error.into()))?;
    set_child_subreaper(Some(getpid())).map_err(|error| cannot_tie(&error.into()))?;
    // Signals of the group are for the command, which has got them, too.
    let mut for_the_command = Signals::new()?;
    let caught = signal(SignalKind::from_raw(PARENT_HAS_DIED.as_raw()));
    let mut parent_has_died = caught.map_err(|error| cannot_tie(&error))?;
    let words = guarded(&args.command, Tie::Kernel);
    let (program, arguments) = split(&words)?;
    let spawned = Command::new(program).args(arguments).spawn();
    let command = Pid::from_child(&spawned.map_err(|error| cannot_run(program, &error))?);
    let mut end = end_of(command);
    loop {
        if has_died(args.parent) {
            kill_below(getpid());
            let _ = kill_process_group(getpid(), ProcessSignal::KILL);
        }
        tokio::select! {
            code = &mut end => return match code {
                Ok(0) => Ok(()),
                Ok(code) => Err(Failure::new(code, "")),
                Err(_) => Err(Failure::new(exit::CANNOT_EXECUTE, "the command is lost: no exit code")),
            },
            _ = parent_has_died.recv() => {}
            _ = for_the_command.next() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// The exit code of the command, as a shell would give it. Whoever else ends below the guard is reaped.
fn end_of(command: Pid) -> oneshot::Receiver<u8> {
    let (sender, end) = oneshot::channel();
    std::thread::spawn(move || {
        while let Ok(ended) = retry_on_intr(|| wait(WaitOptions::empty())) {
            let Some((_, status)) = ended.filter(|(pid, _)| *pid == command) else { continue };
            let signal =
                || status.terminating_signal().map_or(i32::from(exit::FAILED), |signal| 128 + signal);
            let code = status.exit_status().unwrap_or_else(signal);
            // Nobody listens where the guard ends first.
            let _ = sender.send(u8::try_from(code).unwrap_or(exit::FAILED));
            return;
        }
    });
    end
}

fn has_died(parent: i32) -> bool {
    getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(parent)
}

fn split(words: &[OsString]) -> Result<(&OsString, &[OsString]), Failure> {
    words.split_first().ok_or_else(|| Failure::new(exit::NOT_DONE, "no command is given"))
}

fn cannot_tie(error: &io::Error) -> Failure {
    Failure::new(exit::CANNOT_EXECUTE, format!("cannot tie the command to its lock: {error}"))
}

pub(crate) fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::CANNOT_EXECUTE };
    Failure::new(code, format!("cannot run {}: {error}", program.to_string_lossy().escape_debug()))
}
