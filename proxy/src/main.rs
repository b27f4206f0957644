//! `redfence`: reads the command line, starts the log, runs the node or an operator's program. Everything else is in the library.

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use redfence::cli::exit::Failure;
use redfence::cli::{Cli, Command, Program, TestserverArgs};
use redfence::config::{Config, Refused};
use redfence::log_text::OneLine;
use redfence::serve::READY_TARGET;
use std::io::Write;
use std::process::ExitCode;
use std::sync::LazyLock;
use tracing_subscriber::EnvFilter;

/// Names and answers are made on one thread and dropped on another, the case glibc's allocator is slowest at; and it keeps the memory
/// of a flood for ever. See `docs/internals/performance-notes.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The commit and the build come from `scripts/build`. They are read here, not in the library, so that a new commit costs a link and
/// no more. A build without that script does not know them.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("REDFENCE_COMMIT").filter(|commit| !commit.is_empty()).unwrap_or("unknown");
    let build =
        option_env!("REDFENCE_PROFILE").unwrap_or(if cfg!(debug_assertions) { "debug" } else { "release" });
    let (version, arch, os) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, std::env::consts::OS);
    format!("{version} (commit {commit}, {build} build, {arch}-{os})")
});

pub(crate) fn main() -> ExitCode {
    let cli = Cli::command().version(VERSION.as_str()).try_get_matches();
    let command = match cli.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli.command,
        Err(error) => return refuse_words(&error),
    };
    // Whatever this process creates, the log engine's files too, is for its own user alone. The command of `run` keeps its user's umask.
    if !matches!(command, Command::Run(_) | Command::Elect(_) | Command::Drill(_) | Command::GuardedExec(_)) {
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    }
    let outcome = match command {
        Command::Serve(args) => Config::from_args(&args).and_then(run).map_err(Failure::from),
        Command::Backup(args) => redfence::backup::run(&args).map_err(Failure::from),
        Command::Restore(args) => redfence::backup::restore::restore(&args).map_err(Failure::from),
        Command::Health(args) => redfence::health::run(&args).map_err(Failure::from),
        Command::Join(args) => redfence::join::run(&args).map_err(Failure::from),
        Command::Testserver(args) => run_testserver(&args).map_err(Failure::from),
        Command::Locks(args) => args.run(),
        Command::Cluster(args) => args.run(),
        Command::Watch(args) => args.run(),
        Command::Run(args) => args.run(),
        Command::Elect(args) => args.run(),
        Command::Drill(args) => args.run(),
        Command::FenceSql(args) => args.run(),
        Command::GuardedExec(args) => args.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, line }) => {
            if !line.is_empty() {
                redfence::cli::output::tell(&format!("redfence: {line}"));
            }
            ExitCode::from(code)
        }
    }
}

/// Help and version as they are; what is wrong with the words of the command line in one line.
fn refuse_words(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    redfence::cli::output::tell(&format!("redfence: {}", redfence::cli::usage_line(&error.to_string())));
    ExitCode::from(error.exit_code() as u8)
}

fn run(config: Config) -> Result<(), Refused> {
    start_log(&config)?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let (None, Ok(cores)) =
        (std::env::var_os("TOKIO_WORKER_THREADS"), std::thread::available_parallelism())
    {
        runtime.worker_threads(redfence::threads::for_clients(
            cores.get(),
            config.redis.as_ref().and_then(redfence::redis_place::RedisPlace::host),
        ));
    }
    runtime.event_interval(redfence::threads::POLLS_PER_LOOK);
    let runtime = runtime.enable_all().thread_name("clients").build();
    let runtime = runtime.map_err(|error| format!("cannot start threads: {error}"))?;
    let outcome = runtime.block_on(redfence::serve::serve(config));
    // Connections still open are cut: their clients have had their answers.
    runtime.shutdown_background();
    outcome
}

/// Serves until a signal ends the process, or its standard input ends.
fn run_testserver(args: &TestserverArgs) -> Result<(), Refused> {
    let options = redfence_testserver::Options { listen: args.listen, real_time: args.real_time };
    let server = redfence_testserver::TestServer::with_options(options)
        .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "ready {}", server.address())
        .and_then(|()| stdout.flush())
        .map_err(|error| format!("cannot write to standard output: {error}"))?;
    if args.until_stdin_closes {
        // What comes is of no interest, only that it ends.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        return Ok(());
    }
    loop {
        std::thread::park();
    }
}

fn start_log(config: &Config) -> Result<(), Refused> {
    let filter =
        EnvFilter::try_new(&config.log).map_err(|error| format!("log filter '{}': {error}", config.log))?;
    // That a node serves is always said.
    let ready = format!("{READY_TARGET}=info").parse().expect("a directive");
    let filter = filter.add_directive(ready);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| OneLine(std::io::stderr()))
        .with_ansi(false);
    let started = if config.log_is_json { builder.json().try_init() } else { builder.try_init() };
    started.map_err(|error| format!("cannot start the log: {error}"))
}
