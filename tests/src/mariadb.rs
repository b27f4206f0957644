//! A throw-away MariaDB: its own directory, socket and no port at all, as an unprivileged user, gone with its owner.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::postgres::{is_root, unprivileged, NOBODY};
use crate::process::{poll_until, Process};
use crate::sql_shell::SqlShell;

const READY_WITHIN: Duration = Duration::from_secs(60);
const DATABASE: &str = "shop";

pub struct MariaDb {
    folder: TempDir,
    client: PathBuf,
    _server: Process,
}

/// On the `PATH`, or where Debian puts servers.
fn program(name: &str) -> Result<PathBuf, String> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain([PathBuf::from("/usr/sbin")]);
    let mut programs = folders.map(|folder| folder.join(name));
    programs.find(|program| program.is_file()).ok_or_else(|| {
        format!("MariaDB is not installed (no {name}): scripts/install-deps mariadb, or apt-get install mariadb-server-core mariadb-client-core")
    })
}

impl MariaDb {
    /// Whether it can be had on this machine.
    pub fn is_installed() -> Result<(), String> {
        ["mariadb-install-db", "mariadbd", "mariadb"].iter().try_for_each(|name| program(name).map(drop))
    }

    pub fn start() -> Result<MariaDb, String> {
        let client = program("mariadb")?;
        let folder = TempDir::with_prefix("redfence-mariadb-").map_err(|error| error.to_string())?;
        if is_root() {
            std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).map_err(|e| e.to_string())?;
        }
        let data = folder.path().join("data");
        let made = unprivileged(&program("mariadb-install-db")?)
            .current_dir(folder.path())
            .args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"])
            .arg(option("--datadir", &data))
            .output()
            .map_err(|error| format!("mariadb-install-db: {error}"))?;
        if !made.status.success() {
            return Err(format!("mariadb-install-db: {}", String::from_utf8_lossy(&made.stderr)));
        }
        let mut command = unprivileged(&program("mariadbd")?);
        command.current_dir(folder.path()).args([
            "--no-defaults",
            "--skip-networking",
            "--skip-grant-tables",
        ]);
        command.arg("--innodb-flush-log-at-trx-commit=0").arg(option("--datadir", &data));
        command.arg(option("--socket", &folder.path().join("socket")));
        command.arg(option("--pid-file", &folder.path().join("pid")));
        let server = Process::start("mariadb", command, &folder.path().join("server.log"))?;
        let database = MariaDb { folder, client, _server: server };
        let make = format!("CREATE DATABASE IF NOT EXISTS {DATABASE}");
        let answers = || {
            let words = ["--no-defaults", "-S", &database.socket(), "-e", &make];
            unprivileged(&database.client).args(words).output().is_ok_and(|output| output.status.success())
        };
        match poll_until(READY_WITHIN, answers) {
            true => Ok(database),
            false => Err(format!("MariaDB did not start\n{}", database._server.log_tail())),
        }
    }

    /// One connection; columns are parted by tabs.
    pub fn connect(&self) -> Result<SqlShell, String> {
        let mut command = unprivileged(&self.client);
        command.current_dir(self.folder.path()).args([
            "--no-defaults",
            "-N",
            "-B",
            "--unbuffered",
            "--force",
        ]);
        command.args(["-S", &self.socket(), DATABASE]);
        SqlShell::start(command, |text| format!("SELECT '{text}';"))
    }

    /// How a shell runs the client here: the program, and the options that name the database.
    pub fn command_line(&self) -> String {
        format!("{} --no-defaults -S {} {DATABASE}", self.client.display(), self.socket())
    }

    fn socket(&self) -> String {
        self.folder.path().join("socket").to_string_lossy().into_owned()
    }
}

fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}
