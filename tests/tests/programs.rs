//! Programs against real databases and under faults.
//!
//! `redfence fence-sql` and `redfence drill`: with the trigger a table refuses the write of a paused holder without a changed statement;
//! without it the write is taken, and the drill says so and exits with 1. `redfence run`: commands exclude each other while leaders are killed.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redfence_tests::artifacts;
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::left_out;
use redfence_tests::mariadb::MariaDb;
use redfence_tests::postgres::Postgres;
use redfence_tests::process::poll_until;
use redfence_tests::resp::Connection;
use redfence_tests::sql_shell::SqlShell;

const REPLY_WITHIN: Duration = Duration::from_secs(20);
const RERUNS: u64 = 20;
const MINUTE_US: i64 = 60_000_000;
const STATEMENT: &str = "UPDATE wallets SET balance = balance + 1 WHERE id = 7";

/// What a test needs to know of a database.
struct Database {
    connect: Box<dyn Fn() -> SqlShell>,
    /// How a shell runs its client, which reads statements from standard input.
    client: String,
    /// The statement that tells a connection its fence.
    tell: fn(fence: &str) -> String,
    /// The shell command that runs [`STATEMENT`] under `$REDFENCE_FENCE`.
    probe: String,
    dialect: &'static str,
}

fn postgresql() -> Option<Database> {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => {
            left_out::or_fail(&format!("fence-sql and drill with PostgreSQL: {why}"));
            return None;
        }
    };
    let client = postgres.command_line();
    Some(Database {
        // The fence is in the environment of the client: the statement is the application's own.
        probe: format!("PGOPTIONS=\"-c redfence.fence=$REDFENCE_FENCE\" {client} -c '{STATEMENT}'"),
        client,
        connect: Box::new(move || postgres.connect().expect("a connection")),
        tell: |fence| format!("SELECT set_config('redfence.fence', '{fence}', false)"),
        dialect: "postgresql",
    })
}

fn mariadb() -> Option<Database> {
    if let Err(why) = MariaDb::is_installed() {
        left_out::note(&format!("fence-sql and drill with MariaDB: {why}"));
        return None;
    }
    let mariadb = MariaDb::start().unwrap_or_else(|why| panic!("{why}"));
    let client = mariadb.command_line();
    Some(Database {
        probe: format!("{client} --init-command=\"SET @redfence_fence = $REDFENCE_FENCE\" -e '{STATEMENT}'"),
        client,
        connect: Box::new(move || mariadb.connect().expect("a connection")),
        tell: |fence| format!("SET @redfence_fence = {fence}"),
        dialect: "mysql",
    })
}

fn program() -> PathBuf {
    artifacts::redfence().unwrap_or_else(|missing| panic!("{missing}"))
}

fn redfence(cluster: &Cluster, args: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(args).env("REDFENCE_ADDR", cluster.nodes[0].address.to_string());
    command.env_remove("REDFENCE_PASSWORD").stdin(Stdio::null()).output().expect("redfence runs")
}

#[track_caller]
fn drill(cluster: &Cluster, probe: &str) -> (Option<i32>, serde_json::Value, String) {
    let output = redfence(cluster, &["drill", "wallet:7", "--json", "--probe", probe]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), serde_json::from_str(&text).unwrap_or_default(), said)
}

/// Takes the lock, tells the connection the fence, and stands still with a write under way.
fn paused_holder(cluster: &Cluster, database: &Database) -> (SqlShell, i64) {
    let words = ["LOCK.ACQUIRE", "wallet:7", "600000", "OWNER", "application"];
    let fence = cluster.nodes[0].ask(&words, REPLY_WITHIN).expect("a grant").array()[0].integer();
    let mut shell = (database.connect)();
    shell.ask(&(database.tell)(&fence.to_string())).expect("an answer");
    shell.pause();
    shell.send("UPDATE wallets SET balance = 1000000 WHERE id = 7").expect("a pipe");
    (shell, fence)
}

fn balance(database: &Database) -> i64 {
    let rows = (database.connect)().ask("SELECT balance FROM wallets WHERE id = 7").expect("an answer");
    rows.first().and_then(|row| row.parse().ok()).expect("a number")
}

fn install_trigger(database: &Database) {
    let sql = Command::new(program()).args(["fence-sql", "wallets", "--dialect", database.dialect]).output();
    let sql = sql.expect("redfence runs");
    assert!(sql.status.success(), "{}", String::from_utf8_lossy(&sql.stderr));
    let mut client =
        Command::new("sh").args(["-c", &database.client]).stdin(Stdio::piped()).spawn().expect("sh");
    client.stdin.take().expect("piped").write_all(&sql.stdout).expect("a pipe");
    assert!(client.wait().expect("a child").success(), "the database takes the text");
}

fn with_and_without_the_trigger(database: &Database) {
    let cluster = Cluster::start(&Options::nodes(1));
    let mut admin = (database.connect)();
    admin.ask("CREATE TABLE wallets (id int PRIMARY KEY, balance int NOT NULL)").expect("an answer");
    admin.ask("INSERT INTO wallets (id, balance) VALUES (7, 100)").expect("an answer");

    let (mut holder, fence) = paused_holder(&cluster, database);
    let (code, result, said) = drill(&cluster, &database.probe);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(result["old_fence_was"], "written", "{result}");
    assert_eq!((result["old_fence"].as_i64(), result["holder"].as_str()), (Some(fence), Some("application")));
    holder.resume();
    holder.receive().expect("an answer");
    assert_eq!(
        balance(database),
        1_000_000,
        "without the trigger the late write is taken: what the drill foretold"
    );

    install_trigger(database);
    install_trigger(database);
    admin.ask("UPDATE wallets SET balance = 100").expect("an answer");
    let (mut holder, fence) = paused_holder(&cluster, database);
    let (code, result, said) = drill(&cluster, &database.probe);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(result["old_fence_was"], "refused", "{result}");
    assert_eq!(result["old_fence"].as_i64(), Some(fence));
    let after = balance(database);
    assert_eq!(after, 104, "the probes with the four newer fences were taken");
    holder.resume();
    holder.receive().expect("an answer");
    assert_eq!(balance(database), after, "the same statement is refused now");
    for statement in [STATEMENT, "DELETE FROM wallets"] {
        holder.ask(statement).expect("an answer");
        admin.ask(statement).expect("an answer");
    }
    assert_eq!(balance(database), after, "as is a DELETE, and whoever has no fence at all");
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as i64;
    let mut writer = (database.connect)();
    for (fence, insert) in
        [(now_us + 70 * MINUTE_US, false), (i64::MAX, false), (now_us + 50 * MINUTE_US, true)]
    {
        writer.ask(&(database.tell)(&fence.to_string())).expect("an answer");
        for statement in ["INSERT INTO wallets (id, balance) VALUES (8, 1)", STATEMENT] {
            writer.ask(statement).expect("an answer");
        }
        let rows = admin.ask("SELECT count(*) FROM wallets").expect("an answer");
        assert_eq!(rows, [if insert { "2" } else { "1" }], "fence {fence}");
    }
    assert_eq!(balance(database), after + 1, "only a fence within the hour was taken");
}

#[test]
fn postgresql_refuses_a_paused_holder_with_the_trigger_and_is_corrupted_without() {
    if let Some(database) = postgresql() {
        with_and_without_the_trigger(&database);
    }
}

#[test]
fn mariadb_refuses_a_paused_holder_with_the_trigger_and_is_corrupted_without() {
    if let Some(database) = mariadb() {
        with_and_without_the_trigger(&database);
    }
}

/// A stale holder that never stops trying must not get in while the text is run again.
fn is_guarded_while_the_text_is_run_again(database: &Database) {
    let mut admin = (database.connect)();
    admin.ask("CREATE TABLE wallets (id int PRIMARY KEY, balance int NOT NULL)").expect("an answer");
    admin.ask("INSERT INTO wallets (id, balance) VALUES (7, 100)").expect("an answer");
    install_trigger(database);
    admin.ask(&(database.tell)("200")).expect("an answer");
    admin.ask("UPDATE wallets SET balance = 1").expect("an answer");
    let mut stale = (database.connect)();
    stale.ask(&(database.tell)("100")).expect("an answer");
    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    let trying = std::thread::spawn(move || {
        let mut tries = 0;
        while !told.load(Ordering::Relaxed) {
            stale.ask("UPDATE wallets SET balance = 66").expect("an answer");
            tries += 1;
        }
        tries
    });
    for _ in 0..RERUNS {
        install_trigger(database);
    }
    is_over.store(true, Ordering::Relaxed);
    let tries = trying.join().expect("no panic");
    assert!(tries > RERUNS, "the stale holder has tried: {tries}");
    assert_eq!(balance(database), 1, "after {tries} tries");
}

#[test]
fn postgresql_refuses_a_stale_holder_while_the_text_is_run_again() {
    if let Some(database) = postgresql() {
        is_guarded_while_the_text_is_run_again(&database);
    }
}

#[test]
fn mariadb_refuses_a_stale_holder_while_the_text_is_run_again() {
    if let Some(database) = mariadb() {
        is_guarded_while_the_text_is_run_again(&database);
    }
}

/// From PostgreSQL 15 on nobody may create a function in `public` by default: it is made where the table is.
#[test]
fn the_owner_of_a_schema_needs_no_right_elsewhere() {
    let Some(database) = postgresql() else { return };
    let mut owner = (database.connect)();
    owner.ask("REVOKE CREATE ON SCHEMA public FROM PUBLIC").expect("an answer");
    owner.ask("CREATE ROLE dev").expect("an answer");
    owner.ask("CREATE SCHEMA sales AUTHORIZATION dev").expect("an answer");
    owner.ask("SET ROLE dev").expect("an answer");
    owner.ask("CREATE TABLE sales.w (id int, n int)").expect("an answer");
    owner.ask("INSERT INTO sales.w VALUES (1, 0)").expect("an answer");
    let sql = Command::new(program()).args(["fence-sql", "sales.w"]).output().expect("redfence runs").stdout;
    owner.ask(String::from_utf8_lossy(&sql).trim().trim_end_matches(';')).expect("an answer");
    for (fence, n) in [("200", 1), ("100", 66)] {
        owner.ask(&(database.tell)(fence)).expect("an answer");
        owner.ask(&format!("UPDATE sales.w SET n = {n}")).expect("an answer");
    }
    assert_eq!(owner.ask("SELECT n FROM sales.w").expect("an answer"), ["1"]);
}

#[test]
fn a_drill_that_cannot_be_carried_out_is_none_that_was_passed_or_failed() {
    let cluster = Cluster::start(&Options::nodes(1));
    // Nobody holds the lock: the drill plays the old holder. The resource is Redfence's own register.
    let address = cluster.nodes[0].address;
    let call = format!(
        "redis-cli -e -h {} -p {} FENCE.CALL wallet:7 $REDFENCE_FENCE SET balance $REDFENCE_FENCE",
        address.ip(),
        address.port()
    );
    let (code, result, said) = drill(&cluster, &call);
    assert_eq!((code, result["old_fence_was"].as_str()), (Some(0), Some("refused")), "{said}");
    let (code, _, said) = drill(&cluster, "true");
    assert_eq!(code, Some(1), "a resource that takes everything: {said}");
    let (code, _, said) = drill(&cluster, "false");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("the probe fails with the new fence"), "{said}");
    // Taken with the first fence it sees, and then with none.
    let folder = tempfile::tempdir().expect("a folder");
    let (code, _, said) = drill(&cluster, &format!("mkdir {}/once", folder.path().display()));
    assert_eq!(code, Some(2), "a resource that goes down in between: {said}");
    assert!(said.contains("the resource is down"), "{said}");
    let at = folder.path().display();
    // Every second write fails, whatever its fence.
    let odd = format!("mkdir {at}/odd 2>&- && exit 0; rmdir {at}/odd; exit 1");
    let (code, _, said) = drill(&cluster, &odd);
    assert_eq!(code, Some(2), "a resource that fails every second write: {said}");
    assert!(said.contains("fails now and then"), "{said}");
    let gone = format!("mkdir {at}/a 2>&- && exit 0; mkdir {at}/c 2>&- && exec no-such-program; true");
    let (code, _, said) = drill(&cluster, &gone);
    assert_eq!(code, Some(2), "a probe that is not found is not one that is refused: {said}");
    let late = ["drill", "wallet:7", "--probe", "sleep 60", "--probe-timeout", "200ms"];
    assert_eq!(redfence(&cluster, &late).status.code(), Some(2));
    let ask = |words: &[&str]| cluster.nodes[0].ask(words, REPLY_WITHIN).expect("an answer");
    assert!(
        poll_until(REPLY_WITHIN, || ask(&["LOCK.INFO", "wallet:7"]).text_of("state") == "free"),
        "it is given back"
    );

    // A signal ends the probe, and the lock is given back.
    let probe = folder.path().join("probe");
    let script = format!("echo $$ > {}; exec sleep 600", probe.display());
    let mut interrupted = Command::new(program());
    interrupted.args(["drill", "wallet:7", "--probe", &script, "--probe-timeout", "10m"]);
    let mut interrupted = interrupted
        .env("REDFENCE_ADDR", cluster.nodes[0].address.to_string())
        .spawn()
        .expect("redfence runs");
    let pid = || std::fs::read_to_string(&probe).unwrap_or_default().trim().to_owned();
    assert!(poll_until(REPLY_WITHIN, || !pid().is_empty()), "the probe runs");
    let kill = Command::new("kill").args(["-TERM", &interrupted.id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
    assert_eq!(interrupted.wait().expect("a child").code(), Some(128 + 15));
    assert_eq!(ask(&["LOCK.INFO", "wallet:7"]).text_of("state"), "free");
    assert!(!std::path::Path::new("/proc").join(pid()).exists(), "the probe has ended");

    // Whoever stands in line gets the lock first; the drill waits behind it.
    let waiting = cluster.nodes[0].address;
    ask(&["LOCK.ACQUIRE", "wallet:7", "600000", "OWNER", "first"]);
    let second = std::thread::spawn(move || {
        let mut connection = Connection::open(waiting).expect("a connection");
        connection
            .ask(&["LOCK.ACQUIRE", "wallet:7", "600000", "WAIT", "20000", "OWNER", "second"], REPLY_WITHIN)
    });
    assert!(
        poll_until(REPLY_WITHIN, || !ask(&["LOCK.QUEUE", "wallet:7"]).array().is_empty()),
        "it is in line"
    );
    let busy = redfence(&cluster, &["drill", "wallet:7", "--probe", "true", "--wait", "200ms"]);
    assert_eq!(busy.status.code(), Some(75), "{}", String::from_utf8_lossy(&busy.stderr));
    assert!(second.join().expect("no panic").is_ok(), "the one in line has it");
    ask(&["LOCK.FORCERELEASE", "wallet:7"]);

    let shared = ["LOCK.ACQUIRE", "wallet:7", "600000", "SHARED"];
    assert!(poll_until(REPLY_WITHIN, || !ask(&shared).is_error()), "the cluster has version 2");
    let (code, _, said) = drill(&cluster, "true");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("mode shared"), "{said}");
    assert_eq!(ask(&["LOCK.INFO", "wallet:7"]).text_of("state"), "held", "and nobody lost anything");
}

/// A field of a flat array.
trait Fields {
    fn text_of(&self, field: &str) -> String;
}

impl Fields for redfence_tests::resp::Value {
    fn text_of(&self, field: &str) -> String {
        let pair = self.array().chunks_exact(2).find(|pair| pair[0].text() == field);
        pair.map(|pair| pair[1].text()).unwrap_or_default()
    }
}

const WORKERS: usize = 4;
const ADDITIONS: u64 = 6;

/// Every command reads a number, takes its time, and writes it back with one added: two at a time would lose an addition.
#[test]
fn commands_under_one_lock_exclude_each_other_while_leaders_are_killed() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let addresses: Vec<String> = cluster.nodes.iter().map(|node| node.address.to_string()).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let number = folder.path().join("number");
    std::fs::write(&number, "0").expect("a file");
    let script = format!("n=$(cat {0}) && sleep 0.1 && echo $((n + 1)) > {0}", number.display());
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let mut addresses = addresses.clone();
            addresses.rotate_left(worker % 3);
            let (addresses, script) = (addresses.join(","), script.clone());
            std::thread::spawn(move || {
                let mut codes = Vec::new();
                for _ in 0..ADDITIONS {
                    let mut command = Command::new(program());
                    command
                        .args(["run", "number", "--ttl", "10s", "--wait", "2m", "--", "sh", "-c", &script]);
                    let output = command.env("REDFENCE_ADDR", &addresses).output().expect("redfence runs");
                    codes.push((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()));
                }
                codes
            })
        })
        .collect();
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(800));
        let leader = cluster.wait_for_leader(REPLY_WITHIN);
        cluster.kill(leader);
        std::thread::sleep(Duration::from_millis(300));
        cluster.restart(leader);
    }
    let ends: Vec<_> = workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect();
    let done = ends.iter().filter(|(code, _)| *code == Some(0)).count() as u64;
    let text = std::fs::read_to_string(&number).expect("a file");
    let total: u64 = text.trim().parse().unwrap_or_else(|_| panic!("two wrote at once: {text:?}"));
    // A command that was ended because its lock was lost may have written before.
    assert!((done..=ends.len() as u64).contains(&total), "{total} after {done} successes: {ends:?}");
    assert!(done >= ends.len() as u64 / 2, "hardly any command ran: {ends:?}");
}

/// The SDK prints the same text: a table may be prepared by either.
#[test]
fn the_trigger_is_that_of_the_python_sdk() {
    let sdk = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python/src");
    let script = "import importlib.util, sys, types\n\
                  sys.modules['redfence'] = types.ModuleType('redfence'); sys.modules['redfence'].__path__ = [sys.argv[1] + '/redfence']\n\
                  from redfence.postgres import trigger_sql\n\
                  print(trigger_sql('shop.wallets', 'token'), end='')";
    let theirs = Command::new("python3").args(["-c", script]).arg(&sdk).output().expect("python3 runs");
    assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
    let ours = Command::new(program()).args(["fence-sql", "shop.wallets", "--column", "token"]).output();
    assert_eq!(
        String::from_utf8_lossy(&ours.expect("redfence runs").stdout),
        String::from_utf8_lossy(&theirs.stdout)
    );
}
