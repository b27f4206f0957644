//! Programs of two releases in one cluster of real processes: every mixture of three nodes, rolling up and, under a hold, back,
//! with clients at work and leaders killed.
//!
//! The older program is the one under test (cluster version 2), and every release that `tests/releases.toml` names; the newer one
//! is `redfence-next` with its made-up version 3. Building that takes as long as the program itself, so `make mixed-versions`
//! does it and runs these tests; where it is not built they are left out, and listed (`left_out`).

use redfence_tests::artifacts;
use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::cluster::{Cluster, Host, Options};
use redfence_tests::left_out;
use redfence_tests::process::poll_until;
use redfence_tests::resp::{Connection, Value};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Generous: what is asserted only tells working from broken.
const PATIENCE: Duration = Duration::from_secs(60);
const CLIENTS: usize = 8;
const NEEDS_3: &str = "ERR LOCK.CLUSTER NEXT needs cluster version 3 (the cluster runs 2)";

/// `LOCK.CLUSTER VERSION` of one node.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    cluster: i64,
    node: i64,
    members: Vec<(i64, i64)>,
    hold: i64,
}

fn shown(cluster: &Cluster, id: u64) -> Option<Shown> {
    let reply = cluster.node(id).ask(&["LOCK.CLUSTER", "VERSION"], REPLY_WITHIN)?;
    let fields = reply.array();
    let names: Vec<&Value> = fields.iter().step_by(2).collect();
    let wanted = ["cluster_version", "node_version", "members", "hold"].map(Value::bulk);
    assert_eq!(names, wanted.iter().collect::<Vec<_>>(), "{reply:?}");
    let members = fields[5].array();
    Some(Shown {
        cluster: fields[1].integer(),
        node: fields[3].integer(),
        members: members.chunks_exact(2).map(|pair| (pair[0].integer(), pair[1].integer())).collect(),
        hold: fields[7].integer(),
    })
}

fn await_shown(cluster: &Cluster, what: &str, wanted: impl Fn(&Shown) -> bool) {
    let ids: Vec<u64> = cluster.nodes.iter().filter(|node| node.runs()).map(|node| node.id).collect();
    let all = || ids.iter().all(|id| shown(cluster, *id).is_some_and(|shown| wanted(&shown)));
    let seen = poll_until(PATIENCE, all);
    let now: Vec<_> = ids.iter().map(|id| shown(cluster, *id)).collect();
    assert!(seen, "{what}: {now:?}\n{}", cluster.log());
}

/// Asks one node until it is neither UNAVAILABLE nor INDETERMINATE.
fn ask_node(cluster: &Cluster, id: u64, words: &[&str]) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match cluster.node(id).ask(words, REPLY_WITHIN) {
            Some(Value::Error(line)) if is_retried(&line) => {}
            Some(reply) => return reply,
            None => {}
        }
        assert!(Instant::now() < deadline, "{words:?} was never answered\n{}", cluster.log());
    }
}

/// Asks any running node until it is neither UNAVAILABLE nor INDETERMINATE.
fn ask(cluster: &Cluster, words: &[&str]) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for node in cluster.nodes.iter().filter(|node| node.runs()) {
            match node.ask(words, REPLY_WITHIN) {
                Some(Value::Error(line)) if is_retried(&line) => {}
                Some(reply) => return reply,
                None => {}
            }
        }
        assert!(Instant::now() < deadline, "{words:?} was never answered\n{}", cluster.log());
    }
}

fn is_retried(line: &str) -> bool {
    line.starts_with("UNAVAILABLE") || line.starts_with("INDETERMINATE")
}

#[test]
fn every_node_shows_version_and_hold_and_a_restart_keeps_them() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    let all = vec![(1, 2), (2, 2), (3, 2)];
    await_shown(&cluster, "what members can run", |shown| shown.members == all);
    assert_eq!(ask(&cluster, &["LOCK.CLUSTER", "UPGRADE", "HOLD"]), Value::Simple("OK".into()));
    await_shown(&cluster, "the hold", |shown| (shown.node, shown.hold) == (2, 1));
    (1..=3).for_each(|id| cluster.kill(id));
    (1..=3).for_each(|id| cluster.restart(id));
    cluster.wait_for_leader(PATIENCE);
    await_shown(&cluster, "the hold after a restart", |shown| shown.hold == 1 && shown.members == all);
    assert_eq!(ask(&cluster, &["LOCK.CLUSTER", "UPGRADE", "FINISH"]), Value::Simple("OK".into()));
    await_shown(&cluster, "no hold", |shown| (shown.cluster, shown.hold) == (2, 0));
}

#[test]
fn a_single_node_has_a_version_too() {
    let cluster = Cluster::start(&Options::nodes(1));
    let wanted = Shown { cluster: 2, node: 2, members: vec![(1, 2)], hold: 0 };
    await_shown(&cluster, "version", |shown| *shown == wanted);
}

/// The newer program, or `None` after saying aloud that it is not there.
fn next() -> Option<PathBuf> {
    match artifacts::redfence_next() {
        Ok(program) => Some(program),
        Err(error) => {
            left_out::or_fail(&format!("two releases in one cluster (run `make mixed-versions`): {error}"));
            None
        }
    }
}

/// The older programs: the one under test, and every release there is. Those are built where `make mixed-versions` asks for it.
fn older_programs() -> Vec<PathBuf> {
    let mut programs = vec![artifacts::redfence().expect("the program under test")];
    if std::env::var_os("REDFENCE_RELEASES").is_none() {
        left_out::note("releases of the past beside this one: make mixed-versions builds and runs them");
        return programs;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/release-build");
    let output = |name: Option<&str>| {
        let output = std::process::Command::new(&script).args(name).output().expect("scripts/release-build");
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "scripts/release-build failed");
        String::from_utf8(output.stdout).expect("text")
    };
    for line in output(None).lines() {
        let name = line.split_whitespace().next().expect("a name");
        programs.push(PathBuf::from(output(Some(name)).trim()));
    }
    programs
}

#[test]
fn every_mixture_of_three_nodes_serves_and_only_a_whole_one_rises() {
    let Some(new) = next() else { return };
    let old = artifacts::redfence().expect("the program under test");
    for mixture in 0..8u64 {
        let is_new = |id: u64| mixture >> (id - 1) & 1 == 1;
        let programs = (1..=3).map(|id| if is_new(id) { new.clone() } else { old.clone() }).collect();
        let mut cluster = Cluster::start(&Options { programs, ..Options::nodes(3) });
        let version = if mixture == 7 { 3 } else { 2 };
        let members: Vec<(i64, i64)> = (1..=3).map(|id| (id as i64, 2 + i64::from(is_new(id)))).collect();
        await_shown(&cluster, "members and version", |shown| {
            shown.members == members && shown.cluster == version
        });
        for id in 1..=3 {
            let reply = ask_node(&cluster, id, &["LOCK.CLUSTER", "NEXT"]);
            match (is_new(id), version) {
                (true, 3) => assert!(reply.integer() >= id as i64, "{reply:?}"),
                (true, _) => assert_eq!(reply, Value::Error(NEEDS_3.into())),
                (false, _) => {
                    assert!(matches!(&reply, Value::Error(line) if line.starts_with("ERR unknown")))
                }
            }
        }
        let held: Vec<Value> = ["a", "b", "c"]
            .map(|name| ask(&cluster, &["LOCK.ACQUIRE", name, "600000", "OWNER", name]))
            .into_iter()
            .collect();
        let leader = cluster.wait_for_leader(PATIENCE);
        cluster.kill(leader);
        for (name, held) in ["a", "b", "c"].into_iter().zip(&held) {
            let again = ask(&cluster, &["LOCK.ACQUIRE", name, "600000", "OWNER", name]);
            assert_eq!(again.array()[0], held.array()[0], "mixture {mixture}: a lock lost its fence");
        }
        cluster.restart(leader);
        cluster.wait_for_leader(PATIENCE);
        await_shown(&cluster, "version after the restart", |shown| shown.cluster == version);
    }
}

#[test]
fn rolling_up_and_back_and_up_under_load_loses_nothing() {
    let Some(new) = next() else { return };
    for old in older_programs() {
        let programs = vec![old.clone(); 3];
        let mut cluster = Cluster::start(&Options { programs, ..Options::nodes(3) });
        let load = Load::start(&cluster);
        await_shown(&cluster, "its newest version", |shown| shown.cluster == shown.node);
        let runs = shown(&cluster, 1).expect("it was shown before").node;
        assert_eq!(ask(&cluster, &["LOCK.CLUSTER", "UPGRADE", "HOLD"]), Value::Simple("OK".into()));
        let held = ask(&cluster, &["LOCK.ACQUIRE", "held-throughout", "3600000", "OWNER", "me"]);
        for program in [&new, &old, &new] {
            roll(&mut cluster, program);
            await_shown(&cluster, "held version", |shown| (shown.cluster, shown.hold) == (runs, 1));
        }
        for id in 1..=3 {
            let refused = ask_node(&cluster, id, &["LOCK.CLUSTER", "NEXT"]);
            let line = format!("ERR LOCK.CLUSTER NEXT needs cluster version 3 (the cluster runs {runs})");
            assert_eq!(refused, Value::Error(line));
        }
        assert_eq!(ask(&cluster, &["LOCK.CLUSTER", "UPGRADE", "FINISH"]), Value::Simple("OK".into()));
        await_shown(&cluster, "the raised version", |shown| (shown.cluster, shown.hold) == (3, 0));
        let counted = ask(&cluster, &["LOCK.CLUSTER", "NEXT"]).integer();
        let leader = cluster.wait_for_leader(PATIENCE);
        cluster.kill(leader);
        assert!(ask(&cluster, &["LOCK.CLUSTER", "NEXT"]).integer() > counted, "a count was lost");
        cluster.restart(leader);
        roll(&mut cluster, &new);
        let again = ask(&cluster, &["LOCK.ACQUIRE", "held-throughout", "3600000", "OWNER", "me"]);
        assert_eq!(again.array()[0], held.array()[0]);
        load.finish(&cluster);
        the_old_program_is_refused(&mut cluster, &old, runs);
    }
}

/// From each release to this program: what is new is refused before it is logged until the version has risen, and works then.
#[test]
fn kinds_of_locks_come_with_the_last_node_of_a_rolling_upgrade() {
    let new = artifacts::redfence().expect("the program under test");
    for old in older_programs().into_iter().skip(1) {
        let programs = vec![old.clone(); 3];
        let mut cluster = Cluster::start(&Options { programs, ..Options::nodes(3) });
        let load = Load::start(&cluster);
        await_shown(&cluster, "its newest version", |shown| shown.cluster == shown.node);
        let runs = shown(&cluster, 1).expect("it was shown before").node;
        assert_eq!(ask(&cluster, &["LOCK.CLUSTER", "UPGRADE", "HOLD"]), Value::Simple("OK".into()));
        let held = ask(&cluster, &["LOCK.ACQUIRE", "held-throughout", "3600000", "OWNER", "me"]);
        let shared = ["LOCK.ACQUIRE", "read", "3600000", "SHARED"];
        for program in [&new, &old, &new] {
            roll(&mut cluster, program);
            await_shown(&cluster, "held version", |shown| (shown.cluster, shown.hold) == (runs, 1));
            if program == &new && runs < 2 {
                let refused = ask(&cluster, &shared);
                assert!(
                    matches!(&refused, Value::Error(line) if line.contains("needs cluster version 2")),
                    "{refused:?}"
                );
            }
        }
        assert_eq!(ask(&cluster, &["LOCK.CLUSTER", "UPGRADE", "FINISH"]), Value::Simple("OK".into()));
        await_shown(&cluster, "the raised version", |shown| (shown.cluster, shown.hold) == (shown.node, 0));
        let readers: Vec<Value> = (1..=3).map(|id| ask_node(&cluster, id, &shared)).collect();
        let leader = cluster.wait_for_leader(PATIENCE);
        cluster.kill(leader);
        assert_eq!(
            ask(&cluster, &["LOCK.ACQUIRE", "read", "60000"]),
            Value::NullBulk,
            "three readers hold it"
        );
        cluster.restart(leader);
        roll(&mut cluster, &new);
        for reader in &readers {
            let fence = reader.array()[0].integer().to_string();
            let released = ask(&cluster, &["LOCK.RELEASE", "read", &fence]);
            assert_eq!(released.array()[0], Value::Integer(1), "a reader was lost: {released:?}");
        }
        let again = ask(&cluster, &["LOCK.ACQUIRE", "held-throughout", "3600000", "OWNER", "me"]);
        assert_eq!(again.array()[0], held.array()[0]);
        load.finish(&cluster);
    }
}

/// One node after the other gets this program; the leader, whoever that is by then, is killed and not asked to stop.
fn roll(cluster: &mut Cluster, program: &Path) {
    for id in 1..=3 {
        let leader = cluster.wait_for_leader(PATIENCE);
        if id == leader {
            cluster.kill(id);
        } else {
            cluster.node(id).process().signal(libc::SIGTERM);
            cluster.wait_for_end(id, PATIENCE);
        }
        cluster.set_program(id, program);
        cluster.restart(id);
        let leader = cluster.wait_for_leader(PATIENCE);
        let number = |id: u64, field: &str| cluster.node(id).cluster_info(field).map(|value| value.integer());
        let commit = number(leader, "commit");
        let caught_up = poll_until(PATIENCE, || number(id, "applied") >= commit);
        assert!(caught_up, "node {id} does not catch up\n{}", cluster.log());
    }
}

/// On the data of a raised cluster, and as a newcomer. Both sides of a greeting say why.
fn the_old_program_is_refused(cluster: &mut Cluster, old: &Path, newest: i64) {
    cluster.kill(3);
    cluster.set_program(3, old);
    cluster.restart(3);
    let (status, log) = cluster.wait_for_end(3, PATIENCE);
    assert!(!status.success() && log.contains("cluster version"), "{log}");
    let address = cluster.join_as(4, Host::default(), Some(old.to_owned()));
    let added = ask(cluster, &["LOCK.CLUSTER", "ADD", "4", &address.to_string()]);
    assert_eq!(added, Value::Simple("OK".into()));
    let can_run = if newest == 1 { "version 1".to_owned() } else { format!("versions 1 to {newest}") };
    let why = &format!("the cluster runs version 3, node 4 can run {can_run}");
    let both_say = || {
        let says = |id| cluster.node(id).process().log_tail().contains(why);
        says(4) && (says(1) || says(2))
    };
    assert!(poll_until(PATIENCE, both_say), "{}", cluster.log());
}

/// Clients that lock, count and release, each its own names, at any node that answers.
struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Tally>>,
}

#[derive(Default)]
struct Tally {
    key: String,
    rounds: u64,
    acknowledged: i64,
    unknown: i64,
    longest_gap: Duration,
}

impl Load {
    fn start(cluster: &Cluster) -> Load {
        let addresses: Vec<SocketAddr> = cluster.nodes.iter().map(|node| node.address).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let client = |number| {
            let (addresses, stop) = (addresses.clone(), stop.clone());
            std::thread::spawn(move || Worker::new(number, addresses).work(&stop))
        };
        Load { clients: (0..CLIENTS).map(client).collect(), stop }
    }

    fn finish(self, cluster: &Cluster) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            let tally = client.join().expect("a client met an error it must not meet");
            let value = ask(cluster, &["GET", &tally.key]);
            let count: i64 = value.text().parse().expect("a number");
            let Tally { key, rounds, acknowledged, unknown, longest_gap } = tally;
            println!(
                "{key}: {rounds} rounds, {unknown} unknown, longest time without a grant {longest_gap:?}"
            );
            assert!(rounds > 0, "{key}: nothing was served");
            assert!(
                (acknowledged..=acknowledged + unknown).contains(&count),
                "{key} counts {count}: {acknowledged} were acknowledged, {unknown} are unknown"
            );
        }
    }
}

struct Worker {
    number: usize,
    addresses: Vec<SocketAddr>,
    at: usize,
    connection: Option<Connection>,
}

impl Worker {
    fn new(number: usize, addresses: Vec<SocketAddr>) -> Worker {
        Worker { number, addresses, at: number, connection: None }
    }

    fn work(mut self, stop: &AtomicBool) -> Tally {
        let mut tally = Tally { key: format!("counter-{}", self.number), ..Tally::default() };
        let name = format!("lock-{}", self.number);
        let (mut last_fence, mut last_grant) = (0, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let owner = format!("owner-{}-{}", self.number, tally.rounds);
            let grant =
                self.until_answered(&["LOCK.ACQUIRE", &name, "60000", "WAIT", "5000", "OWNER", &owner]);
            let fence = grant.array()[0].integer();
            assert!(fence > last_fence, "{name}: fence {fence} after {last_fence}");
            last_fence = fence;
            tally.longest_gap = tally.longest_gap.max(last_grant.elapsed());
            last_grant = Instant::now();
            match self.once(&["INCR", &tally.key]) {
                Some(Value::Integer(_)) => tally.acknowledged += 1,
                Some(Value::Error(line)) if line.starts_with("UNAVAILABLE") => {}
                Some(Value::Error(line)) if line.starts_with("INDETERMINATE") => tally.unknown += 1,
                None => tally.unknown += 1,
                Some(other) => panic!("INCR: {other:?}"),
            }
            let released = self.until_answered(&["LOCK.RELEASE", &name, &fence.to_string()]);
            let reason = released.array()[1].text();
            assert!(["ok", "already_released"].contains(&reason.as_str()), "{released:?}");
            tally.rounds += 1;
        }
        tally
    }

    /// Retries UNAVAILABLE, INDETERMINATE and lost connections, at another node each time.
    fn until_answered(&mut self, words: &[&str]) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.once(words) {
                Some(Value::Error(line)) if is_retried(&line) => self.connection = None,
                Some(Value::Error(line)) => panic!("{words:?}: {line}"),
                Some(reply) => return reply,
                None => {}
            }
            assert!(Instant::now() < deadline, "{words:?} was never answered");
        }
    }

    /// `None`: the connection was lost.
    fn once(&mut self, words: &[&str]) -> Option<Value> {
        if self.connection.is_none() {
            self.at += 1;
            self.connection = Connection::open(self.addresses[self.at % self.addresses.len()]).ok();
        }
        let Some(connection) = &mut self.connection else {
            // Refused: that node is being exchanged.
            std::thread::sleep(Duration::from_millis(10));
            return None;
        };
        let reply = connection.ask(words, REPLY_WITHIN).ok();
        if reply.is_none() {
            self.connection = None;
        }
        reply
    }
}
