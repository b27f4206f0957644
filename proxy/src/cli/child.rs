//! The command that runs under a lock: a process group of its own, signals that are passed on, and its end.

use super::exit::{self, Failure};
use super::guard::{self, cannot_run};
use super::hold::now_ms;
use super::output::tell;
use super::processes;
use rustix::io::Errno;
use rustix::process::{
    kill_process, kill_process_group, test_kill_process_group, Pid, Signal as ProcessSignal,
};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tokio::signal::unix::{signal, Signal, SignalKind};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

const LOOK_EVERY_MS: u64 = 20;
/// A process that is still there so long after SIGKILL is told of; from then on it is looked at less often.
const DIES_WITHIN_MS: u64 = 5_000;
const LOOK_AT_UNDEAD_EVERY_MS: u64 = 1_000;

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
    /// Once it has ended.
    code: Option<u8>,
}

impl Child {
    /// With `has_group` the command is in a process group of its own, so that whatever it starts ends with it. A guard makes its group itself.
    pub(crate) fn start(mut command: Command, has_group: bool) -> Result<Child, Failure> {
        if has_group && !guard::is_there() {
            command.process_group(0);
        }
        let spawned = command.spawn();
        let mut process = spawned.map_err(|error| cannot_run(command.get_program(), &error))?;
        let pid = Pid::from_child(&process);
        let (sender, exit) = oneshot::channel();
        // One thread for one command: it ends with it. Nobody listens where the program ends first.
        std::thread::spawn(move || drop(sender.send(process.wait())));
        Ok(Child { pid, has_group, exit, code: None })
    }

    /// The exit code as a shell would give it. It may be dropped and asked for again.
    pub(crate) async fn wait(&mut self) -> Result<u8, Failure> {
        if let Some(code) = self.code {
            return Ok(code);
        }
        let failed =
            |error: String| Failure::new(exit::CANNOT_EXECUTE, format!("the command is lost: {error}"));
        let status = (&mut self.exit).await.map_err(|_| failed("no exit code".to_owned()))?;
        let code = exit_code(status.map_err(|error| failed(error.to_string()))?);
        self.code = Some(code);
        Ok(code)
    }

    /// A process that has ended gets none; that is no error.
    pub(crate) fn signal(&self, signal: ProcessSignal) {
        let sent = if self.has_group { kill_process_group(self.pid, signal) } else { Err(Errno::SRCH) };
        // A guard that has just been started has no group yet.
        if sent == Err(Errno::SRCH) && self.code.is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Whether the command, or anybody of its group, is still at work.
    pub(crate) fn is_at_work(&self) -> bool {
        self.code.is_none() || self.group_is_alive()
    }

    /// SIGTERM, and at `kill_at_ms` (of [`now_ms`]) SIGKILL to whatever is left. Ends when nobody is left: a process that cannot be killed is
    /// waited for, since it goes on working. It may be dropped and begun again.
    pub(crate) async fn end(&mut self, kill_at_ms: u64) -> Result<u8, Failure> {
        if self.is_at_work() {
            self.signal(ProcessSignal::TERM);
        }
        let mut is_told = false;
        while self.is_at_work() {
            let now = now_ms();
            if now >= kill_at_ms {
                self.kill();
            }
            if now >= kill_at_ms.saturating_add(DIES_WITHIN_MS) && !is_told {
                is_told = true;
                let left = processes::of_group(self.pid).unwrap_or_default();
                tell(&format!(
                    "redfence: processes of the command cannot be killed: {left:?}; waiting for their end"
                ));
            }
            let pause_ms = match kill_at_ms.checked_sub(now) {
                Some(left_ms @ 1..) => left_ms.min(LOOK_EVERY_MS),
                Some(0) | None if is_told => LOOK_AT_UNDEAD_EVERY_MS,
                Some(0) | None => LOOK_EVERY_MS,
            };
            self.pause(Duration::from_millis(pause_ms)).await?;
        }
        self.wait().await
    }

    /// Until the command ends, at most; where it has ended already, all of the time.
    async fn pause(&mut self, pause: Duration) -> Result<(), Failure> {
        if self.code.is_some() {
            sleep(pause).await;
        } else if let Ok(ended) = timeout(pause, self.wait()).await {
            ended?;
        }
        Ok(())
    }

    fn kill(&self) {
        if self.has_group {
            kill_below(self.pid);
        }
        self.signal(ProcessSignal::KILL);
    }

    /// Whoever is dead and only waits to be reaped does not count: in a container there may be nobody who does that.
    fn group_is_alive(&self) -> bool {
        self.has_group
            && test_kill_process_group(self.pid) != Err(Errno::SRCH)
            && processes::of_group(self.pid).is_none_or(|members| !members.is_empty())
    }
}

/// SIGKILL to whoever descends from the leader of a group, in other groups and sessions too. The leader itself comes later: while it
/// lives, nobody below it gets lost.
pub(crate) fn kill_below(leader: Pid) {
    let mut killed = BTreeSet::new();
    loop {
        let mut has_found = false;
        for pid in processes::below(leader) {
            // A process that has a SIGKILL cannot start others any more.
            has_found |= killed.insert(pid.as_raw_nonzero());
            let _ = kill_process(pid, ProcessSignal::KILL);
        }
        if !has_found {
            return;
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let signal = || status.signal().map_or(i32::from(exit::FAILED), |signal| 128 + signal);
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(exit::FAILED)
}

/// The signals that are passed on to the command. SIGTSTP is not obeyed: a program that stands still loses its lock.
///
/// A signal that was ignored when this program started stays ignored, by the command too: that is what `nohup` asks for.
pub(crate) struct Signals {
    forwarded: Vec<(Signal, ProcessSignal)>,
    _suspend: Option<Signal>,
}

impl Signals {
    pub(crate) fn new() -> Result<Signals, Failure> {
        let ignored = processes::ignored_signals();
        let is_ignored = |signal: ProcessSignal| ignored & (1 << (signal.as_raw() - 1)) != 0;
        let caught = |kind: ProcessSignal| {
            signal(SignalKind::from_raw(kind.as_raw()))
                .map_err(|error| Failure::from(format!("cannot catch signals: {error}")))
        };
        let mut forwarded = Vec::new();
        for kind in [
            ProcessSignal::TERM,
            ProcessSignal::INT,
            ProcessSignal::HUP,
            ProcessSignal::QUIT,
            ProcessSignal::USR1,
            ProcessSignal::USR2,
        ] {
            if !is_ignored(kind) {
                forwarded.push((caught(kind)?, kind));
            }
        }
        let suspend = ProcessSignal::TSTP;
        let _suspend = if is_ignored(suspend) { None } else { Some(caught(suspend)?) };
        Ok(Signals { forwarded, _suspend })
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
