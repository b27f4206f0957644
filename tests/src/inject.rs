//! Failing and slow system calls, injected by strace into an unmodified running program.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Process;

/// strace attached to a process; it lets go when this is dropped.
pub struct Injection {
    _strace: Process,
    trace: PathBuf,
}

/// Whether strace may attach to a process that is not its own child: a container or `ptrace_scope` may forbid it.
pub fn available() -> Result<(), String> {
    let mut target = Command::new("sleep").arg("60").spawn().map_err(|error| format!("sleep: {error}"))?;
    let pid = target.id().to_string();
    let tried = Command::new("timeout").args(["1", "strace", "-o", "/dev/null", "-p", &pid]).output();
    // It ends by itself anyway.
    let _ = target.kill();
    let _ = target.wait();
    let tried = tried.map_err(|error| format!("timeout: {error}"))?;
    // It was attached for as long as it might.
    match tried.status.code() {
        Some(124) => Ok(()),
        _ => Err(format!("strace: {}", String::from_utf8_lossy(&tried.stderr).trim())),
    }
}

impl Injection {
    /// `what` is strace's word for it: `error=EIO`, `delay_enter=200000`. `trace` is where strace writes.
    pub fn attach(pid: u32, syscall: &str, what: &str, trace: &Path) -> Result<Injection, String> {
        let mut command = Command::new("strace");
        command.args(["-f", "-p", &pid.to_string()]);
        command.args(["-e", &format!("trace={syscall}"), "-e", &format!("inject={syscall}:{what}")]);
        command.arg("-o").arg(trace);
        let strace = Process::start("strace", command, &trace.with_extension("log"))
            .map_err(|error| format!("{error}; strace is needed (scripts/install-deps strace)"))?;
        Ok(Injection { _strace: strace, trace: trace.to_owned() })
    }

    /// Whether the fault really happened: strace says nothing where it injects nothing.
    pub fn was_hit(&self) -> bool {
        std::fs::read_to_string(&self.trace)
            .is_ok_and(|trace| trace.contains("INJECTED") || trace.contains("DELAYED"))
    }
}
