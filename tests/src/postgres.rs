//! A throw-away PostgreSQL: its own directory, socket and no port at all, as an unprivileged user, gone with its owner.
//!
//! Spoken to through `psql`, one process for each connection: real clients whose writes can be held up by stopping them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{poll_until, Process};

const READY_WITHIN: Duration = Duration::from_secs(30);
const USER: &str = "redfence";
/// `nobody` on every Linux: PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;
/// After each answer, so that its end is seen.
const END: &str = "--end--";

pub struct Postgres {
    folder: TempDir,
    programs: PathBuf,
    _server: Process,
}

/// Where Debian and Ubuntu put the server's programs, newest first; else wherever `PATH` says.
fn programs() -> Result<PathBuf, String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort();
    let paths = std::env::var_os("PATH").unwrap_or_default();
    folders
        .into_iter()
        .rev()
        .chain(std::env::split_paths(&paths))
        .find(|folder| folder.join("initdb").is_file())
        .ok_or_else(|| {
            "PostgreSQL is not installed: scripts/install-deps postgres, or apt-get install postgresql".into()
        })
}

/// The program as an unprivileged user, where this process is root.
fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new(program);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn is_root() -> bool {
    // SAFETY: geteuid takes nothing, touches nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

impl Postgres {
    pub fn start() -> Result<Postgres, String> {
        let programs = programs()?;
        let folder = TempDir::with_prefix("redfence-postgres-").map_err(|error| error.to_string())?;
        if is_root() {
            std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).map_err(|e| e.to_string())?;
        }
        let data = folder.path().join("data");
        let made = unprivileged(&programs.join("initdb"))
            .current_dir(folder.path())
            .args(["-A", "trust", "-U", USER, "--no-sync", "-D"])
            .arg(&data)
            .output()
            .map_err(|error| format!("initdb: {error}"))?;
        if !made.status.success() {
            return Err(format!("initdb: {}", String::from_utf8_lossy(&made.stderr)));
        }
        let mut command = unprivileged(&programs.join("postgres"));
        command.current_dir(folder.path()).arg("-D").arg(&data);
        command.args(["-c", "listen_addresses=", "-c", "fsync=off", "-k"]).arg(folder.path());
        let server = Process::start("postgres", command, &folder.path().join("server.log"))?;
        let postgres = Postgres { folder, programs, _server: server };
        let answers =
            || postgres.connect().and_then(|mut psql| psql.ask("SELECT 1")).is_ok_and(|rows| rows == ["1"]);
        match poll_until(READY_WITHIN, answers) {
            true => Ok(postgres),
            false => Err(format!("PostgreSQL did not start\n{}", postgres._server.log_tail())),
        }
    }

    pub fn connect(&self) -> Result<Psql, String> {
        let mut child = unprivileged(&self.programs.join("psql"))
            .current_dir(self.folder.path())
            .args(["-X", "-q", "-A", "-t", "-U", USER, "-d", "postgres", "-h"])
            .arg(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("psql: {error}"))?;
        let (words, rows) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Ok(Psql { child, words, rows: BufReader::new(rows) })
    }
}

/// One connection.
pub struct Psql {
    child: Child,
    words: ChildStdin,
    rows: BufReader<ChildStdout>,
}

impl Psql {
    /// The rows of one statement, columns parted by `|`.
    pub fn ask(&mut self, statement: &str) -> Result<Vec<String>, String> {
        self.send(statement)?;
        self.receive()
    }

    /// Hands the statement over and does not wait.
    pub fn send(&mut self, statement: &str) -> Result<(), String> {
        writeln!(self.words, "{statement};\n\\echo {END}").map_err(|error| format!("psql: {error}"))
    }

    pub fn receive(&mut self) -> Result<Vec<String>, String> {
        let mut rows = Vec::new();
        loop {
            let mut row = String::new();
            if self.rows.read_line(&mut row).map_err(|error| format!("psql: {error}"))? == 0 {
                return Err("psql has ended".into());
            }
            match row.trim_end() {
                END => return Ok(rows),
                row => rows.push(row.to_string()),
            }
        }
    }

    /// From here to [`Psql::resume`] whatever is sent waits on its way to the database.
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill takes two integers; the child was not waited for, so its number is still its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        // An error here means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
