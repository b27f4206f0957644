//! A throw-away PostgreSQL: its own directory, socket and no port at all, as an unprivileged user, gone with its owner.
//!
//! Spoken to through `psql`, one process for each connection: real clients whose writes can be held up by stopping them.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{poll_until, Process};
use crate::sql_shell::SqlShell;

/// One connection; columns are parted by `|`.
pub type Psql = SqlShell;

const READY_WITHIN: Duration = Duration::from_secs(30);
const USER: &str = "redfence";
/// `nobody` on every Linux: PostgreSQL refuses to run as root.
pub(crate) const NOBODY: u32 = 65_534;

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
pub(crate) fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new(program);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

pub(crate) fn is_root() -> bool {
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
        let mut command = unprivileged(&self.programs.join("psql"));
        command.current_dir(self.folder.path()).args(["-X", "-q", "-A", "-t"]).args(self.words());
        SqlShell::start(command, |text| format!("\\echo {text}"))
    }

    /// How a shell runs psql here: the program, and the options that name the database.
    pub fn command_line(&self) -> String {
        let words = self.words().join(" ");
        format!("{} -X -q -v ON_ERROR_STOP=1 {words}", self.programs.join("psql").display())
    }

    fn words(&self) -> Vec<String> {
        let folder = self.folder.path().to_string_lossy().into_owned();
        ["-U", USER, "-d", "postgres", "-h", &folder].map(str::to_owned).to_vec()
    }
}
