//! One child process: started on behalf of a test, its output kept, never left behind.
//!
//! Children get `PR_SET_PDEATHSIG`, so even a test binary that is killed leaves nothing running. That signal is
//! tied to the *thread* that forked, so all children are forked by one thread that lives as long as the process.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How much of a log a failing test prints.
const LOG_TAIL_BYTES: usize = 6_000;
pub const POLL_EVERY: Duration = Duration::from_millis(5);

type Order = (Command, Sender<std::io::Result<Child>>);

fn fork_on_lasting_thread(command: Command) -> std::io::Result<Child> {
    static ORDERS: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, receiver) = channel::<Order>();
        std::thread::Builder::new()
            .name("forks-children".into())
            .spawn(move || {
                for (mut command, answer) in receiver {
                    // The asker may have panicked meanwhile; the child then dies with the dropped handle's owner.
                    let _ = answer.send(command.spawn());
                }
            })
            .expect("a thread to fork children from");
        Mutex::new(sender)
    });
    let (answer, child) = channel();
    orders.lock().unwrap().send((command, answer)).expect("the forking thread lives for ever");
    child.recv().expect("the forking thread answers every order")
}

/// Below the range the system takes for outgoing connections, one of which could otherwise sit on a server's port
/// between its choice, or its restart, and its bind.
const PORTS: std::ops::Range<u16> = 11_000..31_000;

/// A port that was free a moment ago, never given out twice by this process. Another process may still take it first:
/// callers start again on another.
pub fn free_address() -> SocketAddr {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let spread = u32::from(PORTS.end - PORTS.start);
    // Test binaries that run side by side begin far apart.
    let start = std::process::id().wrapping_mul(7_919) % spread;
    for _ in 0..spread {
        let offset = (start + TRIED.fetch_add(1, Ordering::Relaxed)) % spread;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORTS.start + offset as u16));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port on 127.0.0.1 between {} and {}", PORTS.start, PORTS.end);
}

/// Polls until `done` or the deadline; true when done.
pub fn poll_until(timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(POLL_EVERY);
    }
}

/// Raises the soft limit on open files of this process and of the children it starts from now on.
pub fn allow_open_files(count: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the one struct given to them, which lives on this stack.
    let raised = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_cur.max(count.min(limit.rlim_max));
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0
        }
    };
    assert!(raised && limit.rlim_cur >= count, "this test needs {count} open files; see ulimit -Hn");
}

pub struct Process {
    child: Mutex<Child>,
    log: PathBuf,
    title: String,
}

impl Process {
    /// Starts `command` with its output appended to `log`.
    pub fn start(title: &str, mut command: Command, log: &Path) -> Result<Process, String> {
        let explain = |error: std::io::Error| format!("cannot start {title}: {error}");
        let output = File::options().create(true).append(true).open(log).map_err(explain)?;
        let errors = output.try_clone().map_err(explain)?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // SAFETY: prctl with these arguments touches no memory of this process and is async-signal-safe.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = fork_on_lasting_thread(command).map_err(explain)?;
        Ok(Process { child: Mutex::new(child), log: log.to_owned(), title: title.to_owned() })
    }

    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    /// Sends a signal, e.g. `libc::SIGSTOP`. Only while the child has not been waited for, so the pid is ours.
    pub fn signal(&self, signal: i32) {
        let child = self.child.lock().unwrap();
        // SAFETY: kill takes two integers; the pid belongs to a child that was not reaped, so it cannot be reused.
        let sent = unsafe { libc::kill(child.id() as i32, signal) };
        assert_eq!(sent, 0, "signal {signal} to {} failed", self.title);
    }

    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().ok().flatten()
    }

    pub fn wait(&self, timeout: Duration) -> Option<ExitStatus> {
        let mut status = None;
        poll_until(timeout, || {
            status = self.exit_status();
            status.is_some()
        });
        status
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        // An error here means that it has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// All that the process printed.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The end of what the process printed.
    pub fn log_tail(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let start = bytes.len().saturating_sub(LOG_TAIL_BYTES);
        format!("--- log of {} ---\n{}", self.title, String::from_utf8_lossy(&bytes[start..]))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
    }
}
