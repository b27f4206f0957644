//! A redis-server in a directory of its own, with or without the module.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::artifacts;
use crate::process::{free_address, Process, POLL_EVERY};
use crate::resp::{Connection, Protocol, Value};

const READY_WITHIN: Duration = Duration::from_secs(20);
const ASK_WITHIN: Duration = Duration::from_secs(10);
/// A port found free may be taken before the server binds it.
const STARTS_MAX: usize = 5;

/// How to start a server. The defaults persist nothing and listen on loopback.
#[derive(Clone, Default)]
pub struct Options {
    pub module: Option<PathBuf>,
    /// Settings as on the command line: `["--appendonly", "yes"]`.
    pub settings: Vec<String>,
    /// Where it keeps its data; a directory of its own without.
    pub folder: Option<PathBuf>,
}

impl Options {
    pub fn plain() -> Options {
        Options::default()
    }

    pub fn with_module() -> Options {
        Options {
            module: Some(artifacts::module().unwrap_or_else(|missing| panic!("{missing}"))),
            ..Options::default()
        }
    }

    pub fn set(mut self, name: &str, value: &str) -> Options {
        self.settings.push(format!("--{name}"));
        self.settings.push(value.to_owned());
        self
    }
}

pub struct Redis {
    process: Option<Process>,
    address: SocketAddr,
    data: PathBuf,
    folder: TempDir,
}

impl Redis {
    pub fn start(options: &Options) -> Redis {
        let folder = TempDir::with_prefix("redfence-redis-").expect("a temporary directory");
        let data = options.folder.clone().unwrap_or_else(|| folder.path().to_owned());
        let mut redis = Redis { process: None, address: free_address(), data, folder };
        redis.launch(options).unwrap_or_else(|error| panic!("{error}"));
        redis
    }

    /// Starts again on the same data, perhaps with other options; the server must be stopped.
    pub fn restart(&mut self, options: &Options) {
        assert!(self.process.is_none(), "stop the server first");
        self.launch(options).unwrap_or_else(|error| panic!("{error}"));
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn folder(&self) -> &Path {
        &self.data
    }

    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }

    /// SIGKILL: nothing is saved that was not.
    pub fn kill(&mut self) {
        self.process = None;
    }

    pub fn connect(&self, protocol: Protocol) -> Connection {
        Connection::open_with(self.address, protocol)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// One command on a connection of its own, in RESP2.
    pub fn ask(&self, args: &[&str]) -> Value {
        self.connect(Protocol::Resp2)
            .ask(args, ASK_WITHIN)
            .unwrap_or_else(|error| panic!("{args:?} answered {error:?}\n{}", self.log()))
    }

    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log_tail).unwrap_or_default()
    }

    fn launch(&mut self, options: &Options) -> Result<(), String> {
        let program = artifacts::redis_server()?;
        let mut last = String::new();
        for _ in 0..STARTS_MAX {
            let process = Process::start(
                "redis-server",
                self.command(&program, options),
                &self.folder.path().join("redis.log"),
            )?;
            match wait_until_ready(&process, self.address) {
                Ok(()) => {
                    self.process = Some(process);
                    return Ok(());
                }
                Err(error) => last = format!("{error}\n{}", process.log_tail()),
            }
            if !last.contains("Address already in use") {
                break;
            }
            self.address = free_address();
        }
        Err(format!("redis-server did not start: {last}"))
    }

    fn command(&self, program: &Path, options: &Options) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.data);
        command.args(["--port", &self.address.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--enable-debug-command", "yes"]);
        command.args(&options.settings);
        if let Some(module) = &options.module {
            command.arg("--loadmodule").arg(module);
        }
        command
    }
}

fn wait_until_ready(process: &Process, address: SocketAddr) -> Result<(), String> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        if let Some(status) = process.exit_status() {
            return Err(format!("it ended with {status}"));
        }
        if let Ok(mut connection) = Connection::open(address) {
            if connection.ask(&["PING"], Duration::from_secs(1)) == Ok(Value::Simple(b"PONG".to_vec())) {
                return Ok(());
            }
        }
        if Instant::now() > deadline {
            return Err(format!("not ready within {READY_WITHIN:?}"));
        }
        std::thread::sleep(POLL_EVERY);
    }
}
