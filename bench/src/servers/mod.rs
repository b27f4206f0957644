//! The servers a run needs, as processes of our own: free ports, data in temporary directories, stopped when dropped.
//!
//! # Layout
//!
//! - [`redis`]: a redis-server in memory, perhaps with the module or the Lua library
//! - [`redfence`]: one to five `redfence serve`
//! - [`etcd`], [`zookeeper`]: three servers of each
//! - [`site`]: where the nodes of a cluster run; [`relay`]: a network with a delay
//!
//! Ports are asked of the system and closed again before the server opens them; another program may be quicker, so starting is tried again.

pub(crate) mod etcd;
pub(crate) mod flapping;
pub(crate) mod redfence;
pub(crate) mod redis;
mod relay;
pub(crate) mod site;
pub(crate) mod zookeeper;

use crate::connection::BlockingConnection;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const STARTS_WITHIN: Duration = Duration::from_secs(30);
pub(crate) const START_ATTEMPTS: usize = 3;

/// A child process, killed when dropped: what it would write at its end is of no use to anybody.
pub(crate) struct Process {
    child: Child,
    program: String,
}

impl Process {
    /// Output goes to a file beside the data, for when it does not start.
    pub(crate) fn start(command: &mut Command, log: &std::path::Path) -> Result<Process, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let file =
            std::fs::File::create(log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let copy = file.try_clone().map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        // A bench that is killed leaves no servers behind.
        // SAFETY: between fork and exec only one system call is made, which allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn();
        let child = child.map_err(|error| format!("cannot start {program}: {error}"))?;
        Ok(Process { child, program })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and waits for its end.
    pub(crate) fn terminate(&mut self, within: Duration) -> Result<(), String> {
        self.signal(libc::SIGTERM);
        let deadline = Instant::now() + within;
        while self.is_running() {
            if Instant::now() > deadline {
                return Err(format!("{} runs {} s after SIGTERM", self.program, within.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// SIGSTOP, or SIGCONT.
    pub(crate) fn pause(&self, paused: bool) {
        self.signal(if paused { libc::SIGSTOP } else { libc::SIGCONT });
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child has not been waited for, so its process id is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        resident_bytes_of(self.id())
    }

    /// Until something listens there, or the process has ended.
    pub(crate) fn await_listening(&mut self, address: SocketAddr) -> Result<(), String> {
        self.await_until(|| TcpStream::connect(address).is_ok())
    }

    pub(crate) fn await_until(&mut self, mut is_ready: impl FnMut() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + STARTS_WITHIN;
        while Instant::now() < deadline {
            if !self.is_running() {
                return Err(format!("{} ended at its start", self.program));
            }
            if is_ready() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("{} is not ready after {} s", self.program, STARTS_WITHIN.as_secs()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn cpu_of_self() -> Duration {
    cpu_of(std::process::id())
}

/// Processor time of all threads so far. In steps of a clock tick (10 ms): measure over a second or more.
pub(crate) fn cpu_of(pid: u32) -> Duration {
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    TICK * ticks(&stat)
}

/// User and system time, the 14th and 15th systems. The 2nd may hold spaces, so counting begins behind its bracket.
fn ticks(stat: &str) -> u32 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u32>().ok()).sum()
}

pub(crate) fn resident_bytes_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    let kilobytes = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Different ones: all are held until the last is found.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N], String> {
    let found = free_port_list(N)?;
    found.try_into().map_err(|_| "as many ports as asked for".to_string())
}

pub(crate) fn free_port_list(count: usize) -> Result<Vec<u16>, String> {
    let bind = |_| TcpListener::bind(local(0)).map_err(|error| format!("no free port: {error}"));
    let listeners = (0..count).map(bind).collect::<Result<Vec<_>, _>>()?;
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    listeners
        .iter()
        .map(|listener| port(listener).map_err(|error| format!("no free port: {error}")))
        .collect()
}

pub(crate) fn temporary_directory() -> Result<tempfile::TempDir, String> {
    let made = tempfile::Builder::new().prefix("redfence-bench-").tempdir();
    made.map_err(|error| format!("no temporary directory: {error}"))
}

/// Asks one thing on a connection of its own and answers the whole reply.
pub(crate) fn call(address: SocketAddr, words: &[&[u8]]) -> Result<Vec<u8>, String> {
    let asked =
        BlockingConnection::open(address, STARTS_WITHIN).and_then(|mut connection| connection.ask(words));
    asked.map_err(|error| format!("{address}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_a_name_with_spaces() {
        let stat = "123 (a (odd) name) S 1 2 3 4 5 6 7 8 9 10 700 42 0 0 20 0 1 0 100";
        assert_eq!(ticks(stat), 742);
    }

    #[test]
    fn free_ports_differ() {
        let [one, other] = free_ports::<2>().expect("two ports");
        assert_ne!(one, other);
    }
}
