//! The command that runs under a lock: a process group of its own, signals that are passed on, and its end.

use super::exit::{self, Failure};
use clap::Args;
use rustix::io::Errno;
use rustix::process::{
    getppid, kill_process, kill_process_group, set_parent_process_death_signal, test_kill_process_group, Pid,
    Signal as ProcessSignal,
};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tokio::signal::unix::{signal, Signal, SignalKind};
use tokio::sync::oneshot;
use tokio::time::{sleep, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What stands between `redfence run` and its command: see [`guarded`].
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// The process that must live
    pub parent: i32,
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Becomes the command, which the kernel kills when the process that holds its lock dies: a killed `redfence run` (out of memory, say) leaves
/// nobody behind who works without the lock. It ends only the command itself, not what that has started.
pub(crate) fn become_guarded(args: &GuardArgs) -> Failure {
    let (program, arguments) = match args.command.split_first() {
        Some(split) => split,
        None => return Failure::new(exit::NOT_DONE, "no command is given"),
    };
    if let Err(error) = set_parent_process_death_signal(Some(ProcessSignal::KILL)) {
        return Failure::new(exit::CANNOT_EXECUTE, format!("cannot tie the command to its lock: {error}"));
    }
    // It may have died before the kernel knew.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(args.parent) {
        return ended_by(ProcessSignal::KILL);
    }
    let error = Command::new(program).args(arguments).exec();
    cannot_run(program, &error)
}

fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::CANNOT_EXECUTE };
    Failure::new(code, format!("cannot run {}: {error}", program.to_string_lossy().escape_debug()))
}

const THIS_PROGRAM: &str = "/proc/self/exe";

/// The command by way of [`become_guarded`]; the command alone where there is no `/proc`.
pub(crate) fn guarded(words: &[OsString]) -> Vec<OsString> {
    if !Path::new(THIS_PROGRAM).exists() {
        return words.to_vec();
    }
    let parent = std::process::id().to_string();
    let guard = [THIS_PROGRAM, "guarded-exec", &parent, "--"].map(OsString::from);
    guard.into_iter().chain(words.iter().cloned()).collect()
}

/// The command with what it has to know: which lock, and its fence.
pub(crate) fn command_under<S: AsRef<OsStr>>(
    words: &[S],
    resource: &str,
    fence: i64,
) -> Result<Command, Failure> {
    let (program, arguments) =
        words.split_first().ok_or_else(|| Failure::new(exit::NOT_DONE, "no command is given"))?;
    let mut command = Command::new(program);
    command.args(arguments).env("REDFENCE_FENCE", fence.to_string()).env("REDFENCE_RESOURCE", resource);
    Ok(command)
}

/// A running command.
pub(crate) struct Child {
    pid: Pid,
    has_group: bool,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
}

impl Child {
    /// With `has_group` the command leads a process group, so that whatever it starts ends with it.
    pub(crate) fn start(mut command: Command, has_group: bool) -> Result<Child, Failure> {
        if has_group {
            command.process_group(0);
        }
        let spawned = command.spawn();
        let mut process = spawned.map_err(|error| cannot_run(command.get_program(), &error))?;
        let pid = Pid::from_child(&process);
        let (sender, exit) = oneshot::channel();
        // One thread for one command: it ends with it. Nobody listens where the program ends first.
        std::thread::spawn(move || drop(sender.send(process.wait())));
        Ok(Child { pid, has_group, exit })
    }

    /// The exit code as a shell would give it. It may be dropped and asked for again until it has answered.
    pub(crate) async fn wait(&mut self) -> Result<u8, Failure> {
        let failed =
            |error: String| Failure::new(exit::CANNOT_EXECUTE, format!("the command is lost: {error}"));
        let status = (&mut self.exit).await.map_err(|_| failed("no exit code".to_owned()))?;
        Ok(exit_code(status.map_err(|error| failed(error.to_string()))?))
    }

    /// A process that has ended gets none; that is no error.
    pub(crate) fn signal(&self, signal: ProcessSignal) {
        let _ = if self.has_group {
            kill_process_group(self.pid, signal)
        } else {
            kill_process(self.pid, signal)
        };
    }

    /// SIGTERM, and after `grace` SIGKILL to whatever of the group is left.
    pub(crate) async fn end(&mut self, grace: Duration) -> Result<u8, Failure> {
        self.signal(ProcessSignal::TERM);
        let deadline = Instant::now() + grace;
        let ended = tokio::time::timeout(grace, self.wait()).await;
        while self.has_group && self.group_is_alive() && Instant::now() < deadline {
            sleep(LOOK_EVERY).await;
        }
        if ended.is_err() || (self.has_group && self.group_is_alive()) {
            self.signal(ProcessSignal::KILL);
        }
        match ended {
            Ok(code) => code,
            Err(_) => self.wait().await,
        }
    }

    fn group_is_alive(&self) -> bool {
        test_kill_process_group(self.pid) != Err(Errno::SRCH)
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let signal = || status.signal().map_or(i32::from(exit::FAILED), |signal| 128 + signal);
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(exit::FAILED)
}

/// The signals that are passed on to the command. SIGTSTP is not obeyed: a program that stands still loses its lock.
pub(crate) struct Signals {
    forwarded: [(Signal, ProcessSignal); 6],
    _suspend: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Signals, Failure> {
        let caught =
            |kind| signal(kind).map_err(|error| Failure::from(format!("cannot catch signals: {error}")));
        Ok(Signals {
            forwarded: [
                (caught(SignalKind::terminate())?, ProcessSignal::TERM),
                (caught(SignalKind::interrupt())?, ProcessSignal::INT),
                (caught(SignalKind::hangup())?, ProcessSignal::HUP),
                (caught(SignalKind::quit())?, ProcessSignal::QUIT),
                (caught(SignalKind::user_defined1())?, ProcessSignal::USR1),
                (caught(SignalKind::user_defined2())?, ProcessSignal::USR2),
            ],
            _suspend: caught(SignalKind::from_raw(ProcessSignal::TSTP.as_raw()))?,
        })
    }

    pub(crate) async fn next(&mut self) -> ProcessSignal {
        std::future::poll_fn(|context| {
            for (caught, signal) in &mut self.forwarded {
                if caught.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*signal);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// How a program ends that a signal has ended.
pub(crate) fn ended_by(signal: ProcessSignal) -> Failure {
    Failure::new(u8::try_from(128 + signal.as_raw()).unwrap_or(exit::FAILED), "")
}
