//! Failing and slow system calls, injected by strace into an unmodified running program.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Process;

/// strace attached to a process; it lets go when this is dropped.
pub struct Injection {
    _strace: Process,
    trace: PathBuf,
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
