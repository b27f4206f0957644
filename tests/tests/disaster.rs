//! The disaster drill: a cluster under load, a backup, more load, all data lost, a restore, and clients go on. No fence comes again,
//! and what was held in the backup is still held.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redfence_core::machine::version::VersionRange;
use redfence_tests::artifacts;
use redfence_tests::ask;
use redfence_tests::checker::{check, check_holds, Answer, Call, History, Operation, Outcome, Rules};
use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::process::poll_until;
use redfence_tests::resp::{Connection, Value};

const WITHIN: Duration = Duration::from_secs(60);
const LONG_MS: u64 = 600_000;
/// Of the clients under load: over long before the restored cluster serves.
const TTL_MS: u64 = 300;
const WORKERS: u64 = 4;
const RESOURCES: u64 = 6;

fn redfence(args: &[&str]) -> Output {
    let program = artifacts::redfence().unwrap_or_else(|missing| panic!("{missing}"));
    Command::new(program).args(args).output().expect("redfence runs")
}

#[track_caller]
fn succeeds(args: &[&str]) -> String {
    let output = redfence(args);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}\n{stdout}{stderr}");
    stdout.into_owned()
}

#[track_caller]
fn fails_in_one_line(args: &[&str]) -> String {
    let output = redfence(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

fn line<'a>(output: &'a str, name: &str) -> &'a str {
    let found = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no line {name} in\n{output}")).trim()
}

/// Clients that take and give back locks, and write down what they see, on one clock for the whole drill.
struct Load {
    stop: Arc<AtomicBool>,
    grants: Arc<AtomicU64>,
    workers: Vec<JoinHandle<Vec<Operation>>>,
}

impl Load {
    fn start(cluster: &Cluster, begin: Instant, first_process: u64) -> Load {
        let (stop, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let workers = (0..WORKERS)
            .map(|number| {
                let address = cluster.nodes[number as usize % cluster.nodes.len()].address;
                let (stop, grants) = (Arc::clone(&stop), Arc::clone(&grants));
                std::thread::spawn(move || {
                    let mut worker = Worker {
                        connection: None,
                        begin,
                        process: first_process + number,
                        turn: 0,
                        operations: Vec::new(),
                    };
                    while !stop.load(Ordering::Relaxed) {
                        let reached = Connection::open(address);
                        worker.connection = worker.connection.take().or(reached.ok());
                        worker.turn(&grants);
                    }
                    worker.operations
                })
            })
            .collect();
        Load { stop, grants, workers }
    }

    /// Until this many more locks were granted.
    fn goes_on(&self, grants: u64) {
        let target = self.grants.load(Ordering::Relaxed) + grants;
        assert!(
            poll_until(WITHIN, || self.grants.load(Ordering::Relaxed) >= target),
            "the load stands still"
        );
    }

    fn stop(self) -> Vec<Operation> {
        self.stop.store(true, Ordering::Relaxed);
        self.workers.into_iter().flat_map(|worker| worker.join().expect("a worker ends")).collect()
    }
}

struct Worker {
    connection: Option<Connection>,
    begin: Instant,
    /// Rises by so many that no other worker has the number, whenever an outcome is not known.
    process: u64,
    turn: u64,
    operations: Vec<Operation>,
}

impl Worker {
    fn turn(&mut self, grants: &AtomicU64) {
        self.turn += 1;
        let resource = (self.process + self.turn) % RESOURCES;
        let owner = self.process * 1_000_000 + self.turn;
        let call = Call::Acquire { owner, ttl_ms: TTL_MS, wait_ms: 50, session: 0 };
        let (name, ttl_ms, owner) = (format!("load:{resource}"), TTL_MS.to_string(), format!("o{owner}"));
        let words = ["LOCK.ACQUIRE", &name, &ttl_ms, "WAIT", "50", "OWNER", &owner];
        let granted = self.operate(resource, call, &words, |reply| match reply {
            Value::Array(items) => {
                let (fence, ttl_ms) = (items[0].integer() as u64, items[1].integer() as u64);
                Outcome::Answered(Answer::Granted { fence, ttl_ms })
            }
            // A lock of the backup that was released after it is held again, by nobody the history knows of: nil says nothing.
            Value::NullBulk | Value::NullArray => Outcome::Failed,
            error => outcome_of_error(&error),
        });
        let Outcome::Answered(Answer::Granted { fence, .. }) = granted else { return };
        grants.fetch_add(1, Ordering::Relaxed);
        let words = ["LOCK.RELEASE", &name, &fence.to_string()];
        self.operate(resource, Call::Release { fence }, &words, |reply| match reply {
            Value::Array(items) if items[0] == Value::Integer(1) => Outcome::Answered(Answer::Done),
            // Too late: its ttl was over.
            Value::Array(_) => Outcome::Failed,
            error => outcome_of_error(&error),
        });
    }

    fn operate(
        &mut self,
        resource: u64,
        call: Call,
        words: &[&str],
        read: impl FnOnce(Value) -> Outcome,
    ) -> Outcome {
        let Some(connection) = &mut self.connection else {
            // Its node is down.
            std::thread::sleep(Duration::from_millis(10));
            return Outcome::Failed;
        };
        let invoke_ns = self.begin.elapsed().as_nanos() as u64;
        let outcome = connection.ask(words, Duration::from_secs(10)).map_or(Outcome::Unknown, read);
        let now_ns = self.begin.elapsed().as_nanos() as u64;
        let complete_ns = if outcome == Outcome::Unknown { u64::MAX } else { now_ns };
        let (process, resource) = (self.process, resource as u32);
        self.operations.push(Operation {
            process,
            resource,
            invoke_ns,
            complete_ns,
            call,
            outcome,
            group: 0,
        });
        if outcome == Outcome::Unknown {
            self.process += WORKERS;
            self.connection = None;
        }
        outcome
    }
}

fn outcome_of_error(reply: &Value) -> Outcome {
    match reply.is_error() && reply.error_code() != "INDETERMINATE" {
        true => Outcome::Failed,
        false => Outcome::Unknown,
    }
}

fn fences(operations: &[Operation]) -> Vec<u64> {
    let fence = |operation: &Operation| match operation.outcome {
        Outcome::Answered(Answer::Granted { fence, .. }) => Some(fence),
        _ => None,
    };
    operations.iter().filter_map(fence).collect()
}

#[test]
fn a_cluster_that_lost_all_its_data_goes_on_from_a_backup_and_no_fence_comes_again() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let begin = Instant::now();
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file: PathBuf = folder.path().join("locks.backup");

    let mut client = cluster.node(leader).client();
    let kept = client.acquire_as("kept", LONG_MS, "keeper");
    let session = ask!(client, "LOCK.SESSION", "OPEN", LONG_MS).text();
    let bound = ask!(client, "LOCK.ACQUIRE", "bound", 0, "SESSION", &session).array()[0].integer();
    let free = client.acquire("free", LONG_MS);
    assert_eq!(ask!(client, "FENCE.CHECK", "free", free.fence), Value::Integer(1));
    client.release("free", free.fence);
    ask!(client, "SET", "settings", "x");

    let load = Load::start(&cluster, begin, 1);
    load.goes_on(200);
    // Any member can be asked.
    let from = cluster.follower(leader).address.to_string();
    let said = succeeds(&["backup", "--from", &from, "--out", text(&file)]);
    assert!(said.contains("backup of cluster"), "{said}");
    load.goes_on(200);
    let later = client.acquire("later", LONG_MS);
    drop(client);

    // The disaster: every disk at once, in the middle of the load.
    for id in 1..=3 {
        cluster.kill(id);
        std::fs::remove_dir_all(cluster.data(id)).expect("its data");
    }
    let before = load.stop();

    let shown = succeeds(&["backup", "verify", text(&file)]);
    assert_eq!(line(&shown, "cluster version"), VersionRange::PROGRAM.newest.to_string(), "{shown}");
    assert_eq!(line(&shown, "marks"), "1", "{shown}");
    let founders = cluster.founders().to_owned();
    let mut listed = String::new();
    for id in 1..=3 {
        let data = cluster.data(id);
        let (id, data) = (id.to_string(), text(&data));
        let from = text(&file);
        let words = ["restore", "--from", from, "--data", data, "--id", &id, "--cluster", &founders];
        listed.push_str(&succeeds(&words));
        let again = fails_in_one_line(&words);
        assert!(again.contains("is not empty"), "{again}");
    }
    assert!(listed.contains("resource \"bound\"") && listed.contains(&session), "{listed}");
    assert!(listed.contains("resource \"settings\""), "{listed}");
    assert!(!listed.contains("resource \"kept\""), "it has a ttl: {listed}");
    (1..=3).for_each(|id| cluster.restart(id));
    cluster.wait_for_leader(WITHIN);

    let load = Load::start(&cluster, begin, 1_000);
    load.goes_on(200);
    let mut client = cluster.node(2).client();
    let info = client.info("kept");
    assert_eq!((info.state.as_str(), info.fence), ("held", kept.fence));
    client.is_refused("kept", 1_000);
    assert_eq!(client.info("bound").fence, bound);
    assert_eq!(ask!(client, "LOCK.SESSION", "KEEPALIVE", &session), Value::Integer(LONG_MS as i64));
    assert_eq!(ask!(client, "GET", "settings"), Value::bulk("x"));
    assert_eq!(ask!(client, "FENCE.CHECK", "free", free.fence), Value::Integer(0));
    assert_eq!(
        ask!(client, "FENCE.CHECK", "later", later.fence),
        Value::Integer(0),
        "it was lost, and is stale"
    );
    assert_eq!(ask!(client, "FENCE.CHECK", "kept", kept.fence), Value::Integer(1), "its holder may go on");
    let mut new = vec![client.acquire("free", LONG_MS).fence, client.acquire("later", LONG_MS).fence];
    assert_eq!(ask!(client, "FENCE.CHECK", "free", new[0]), Value::Integer(1));

    // The state is on a majority: the node that brought it can go.
    cluster.kill(1);
    cluster.wait_for_leader(WITHIN);
    load.goes_on(100);
    let after = load.stop();

    new.extend(fences(&after).iter().map(|fence| *fence as i64));
    let mut old: Vec<i64> = fences(&before).iter().map(|fence| *fence as i64).collect();
    old.extend([kept.fence, bound, free.fence, later.fence]);
    let (newest, oldest) = (old.iter().max().expect("some"), new.iter().min().expect("some"));
    assert!(newest < oldest, "fence {oldest} was issued after {newest}");
    assert!(old.len() > 400 && new.len() > 200);
    let history = History { operations: [before, after].concat(), ..History::default() };
    let rules = Rules { forgets: true, ..Rules::default() };
    let violations = [check(&history, &rules), check_holds(&history, &rules)].concat();
    assert!(violations.is_empty(), "{violations:#?}");

    let second = folder.path().join("second.backup");
    let from = cluster.node(2).address.to_string();
    succeeds(&["backup", "--from", &from, "--out", text(&second)]);
    let shown_again = succeeds(&["backup", "verify", text(&second)]);
    assert_ne!(line(&shown_again, "cluster"), line(&shown, "cluster"), "it is a new cluster");
}
