//! One cluster, attacks one after the other, and the verdict on it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::attacker::{Attacker, ReplyTally};
use super::background_clients::BackgroundClients;
use super::memory_watch::MemoryWatch;
use super::{equality, Attack};
use crate::chaos::replicas;
use crate::cluster::{Cluster, Options};
use crate::process::poll_until;
use crate::resp::{Connection, Value};
use crate::words;

/// No background client may wait longer, whatever else the machine is doing.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A node on a small machine. Its replicated state is held far below.
const NODE_BYTES_MAX: u64 = 1_600 << 20;
/// The setting of the cluster where it has one.
const MAX_MEMORY: &str = "268435456";
const SNAPSHOT_ENTRIES: u64 = 150;
/// All nodes are killed and started again after so many attacks.
const ATTACKS_PER_RESTART: usize = 12;
/// Of the keys that attacks leave behind, one in so many stays.
const KEPT_ONE_IN: usize = 20;
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const ASK_WITHIN: Duration = Duration::from_secs(10);

/// What came of one attack.
pub struct AttackResult {
    pub attack: Attack,
    pub tally: ReplyTally,
    pub took: Duration,
    pub longest_wait: Duration,
    pub rounds: u64,
    pub peak_bytes: u64,
    pub failures: Vec<String>,
}

impl AttackResult {
    #[must_use]
    pub fn line(&self) -> String {
        let answers: Vec<String> =
            self.tally.answers.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let bitten = if self.failures.is_empty() {
            String::new()
        } else {
            format!("  FAILED: {}", self.failures.join("; "))
        };
        format!(
            "#{:<2} {:<52} {:6.2} s  wait {:5} ms  slowest answer {:5} ms  {:5} MB  {}{bitten}",
            self.attack.item,
            self.attack.name,
            self.took.as_secs_f64(),
            self.longest_wait.as_millis(),
            self.tally.slowest.as_millis(),
            self.peak_bytes >> 20,
            answers.join(", "),
        )
    }
}

pub struct Campaign {
    cluster: Cluster,
    background: BackgroundClients,
    watch: MemoryWatch,
    rounds: u64,
    /// A node died: everything after that says nothing.
    pub dead: bool,
}

fn addresses(cluster: &Cluster) -> Vec<SocketAddr> {
    cluster.nodes.iter().map(|node| node.address).collect()
}

impl Campaign {
    /// Three nodes that make snapshots all the time.
    #[must_use]
    pub fn start() -> Campaign {
        let options = Options::nodes(3)
            .flag("--snapshot-entries", &SNAPSHOT_ENTRIES.to_string())
            .flag("--log-keep-entries", "30")
            .flag("--deadline-ms", "5000");
        let cluster = Cluster::start(&options);
        // A program without the setting says so; the limit on its memory is then its own.
        cluster.nodes[0].ask(&["LOCK.CLUSTER", "SET", "max-memory", MAX_MEMORY], ASK_WITHIN);
        let background = BackgroundClients::start(&addresses(&cluster));
        let watch = MemoryWatch::start(NODE_BYTES_MAX);
        watch.follow(&cluster);
        Campaign { cluster, background, watch, rounds: 0, dead: false }
    }

    /// All of them, with restarts in between and at the end. What failed; each line is told as it comes.
    pub fn run(&mut self, attacks: &[Attack], tell: &mut dyn FnMut(String)) -> Vec<String> {
        let mut failures = Vec::new();
        let mut longest = (Duration::ZERO, "none");
        for (at, attack) in attacks.iter().enumerate() {
            let row = self.attack(*attack);
            tell(row.line());
            if row.longest_wait > longest.0 {
                longest = (row.longest_wait, attack.name);
            }
            failures.extend(row.failures.iter().map(|failure| format!("{}: {failure}", attack.name)));
            if self.dead {
                return failures;
            }
            if (at + 1) % ATTACKS_PER_RESTART == 0 || at + 1 == attacks.len() {
                let began = Instant::now();
                if let Err(error) = self.restart_all() {
                    self.dead = true;
                    failures.push(format!("after {}: {error}", attack.name));
                    return failures;
                }
                tell(format!(
                    "all nodes killed; all serve again after {:.1} s",
                    began.elapsed().as_secs_f64()
                ));
                self.sweep();
            }
        }
        match self.compare_what_nodes_show() {
            Ok(keys) => tell(format!("all nodes show the same {keys} keys")),
            Err(error) => failures.push(error),
        }
        tell(format!(
            "{} attacks; background clients did {} rounds and waited {} ms at most, during {}",
            attacks.len(),
            self.rounds,
            longest.0.as_millis(),
            longest.1
        ));
        failures
    }

    pub fn attack(&mut self, attack: Attack) -> AttackResult {
        let peers = self.cluster.nodes.iter().map(|node| node.peer_address()).collect();
        let mut attacker = Attacker::new(addresses(&self.cluster), peers, attack.name);
        self.background.watch_shared(!attack.flushes);
        self.background.longest_wait();
        self.watch.peak_bytes();
        let began = Instant::now();
        attack.run(&mut attacker);
        let took = began.elapsed();
        let mut failures = self.after(&attacker.tally, attack);
        let (longest_wait, rounds) = self.background.longest_wait();
        if longest_wait > WAIT_MAX {
            failures.push(format!("a background client waited {longest_wait:?}"));
        }
        let done = rounds.saturating_sub(std::mem::replace(&mut self.rounds, rounds));
        let (tally, peak_bytes) = (attacker.tally, self.watch.peak_bytes());
        AttackResult { attack, tally, took, longest_wait, rounds: done, peak_bytes, failures }
    }

    /// What must hold after every attack.
    fn after(&mut self, tally: &ReplyTally, attack: Attack) -> Vec<String> {
        let mut failures = self.watch.ended();
        for node in &self.cluster.nodes {
            if let Some(status) = node.process().exit_status() {
                let log = node.process().log();
                let why = log.lines().rev().find(|line| line.contains("panicked") || line.contains("ERROR"));
                failures.push(format!(
                    "node {} ended ({status}): {}",
                    node.id,
                    why.unwrap_or("without a word")
                ));
            }
        }
        self.dead = !failures.is_empty();
        if self.dead {
            return failures;
        }
        if tally.silent > 0 {
            failures.push(format!("{} commands were never answered", tally.silent));
        }
        if tally.closed > 0 && !attack.may_be_cut {
            failures.push(format!("{} connections were closed", tally.closed));
        }
        failures.extend(self.panics());
        failures.extend(self.background.wrong());
        failures.extend(self.one_holder(attack.name).err());
        failures
    }

    fn panics(&self) -> Vec<String> {
        let logs = self.cluster.nodes.iter().map(|node| node.process().log());
        let lines: Vec<String> =
            logs.flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        lines.into_iter().filter(|line| line.contains("panicked at")).take(2).collect()
    }

    /// `SET NX` at every node: one of them takes it, and all show the same value.
    fn one_holder(&self, name: &str) -> Result<(), String> {
        let key = format!("one_holder:{name}");
        let mut taken = Vec::new();
        for node in &self.cluster.nodes {
            let value = format!("node-{}", node.id);
            let mut reply = None;
            poll_until(ASK_WITHIN, || {
                reply = node.ask(&["SET", &key, &value, "NX"], ASK_WITHIN);
                reply.as_ref().is_some_and(|reply| !reply.is_error())
            });
            match reply {
                Some(Value::Simple(_)) => taken.push(value),
                Some(Value::NullBulk) => {}
                other => return Err(format!("SET NX at node {}: {other:?}", node.id)),
            }
        }
        let shown: Vec<Option<Value>> =
            self.cluster.nodes.iter().map(|node| node.ask(&["GET", &key], ASK_WITHIN)).collect();
        match taken.len() <= 1 && shown.windows(2).all(|pair| pair[0] == pair[1]) {
            true => Ok(()),
            false => Err(format!("{key}: taken by {taken:?}, shown as {shown:?}")),
        }
    }

    /// kill -9 of all nodes at once; all must come back on their own data, without a word of complaint, and show the same.
    pub fn restart_all(&mut self) -> Result<(), String> {
        if self.dead {
            self.background.give_up();
        } else {
            self.all_make_snapshots()?;
            self.background.pause();
        }
        self.watch.rest();
        let ids: Vec<u64> = self.cluster.nodes.iter().map(|node| node.id).collect();
        ids.iter().for_each(|id| self.cluster.kill(*id));
        ids.iter().for_each(|id| self.cluster.restart(*id));
        self.watch.follow(&self.cluster);
        let back = self.all_serve();
        if back.is_ok() {
            self.background.go_on();
        }
        back
    }

    /// Writes until every node has made a snapshot of all that there is.
    fn all_make_snapshots(&self) -> Result<(), String> {
        let since = SystemTime::now();
        let mut number = 0u64;
        let made = poll_until(STARTS_WITHIN, || {
            for node in &self.cluster.nodes {
                number += 1;
                node.ask(&["SET", "snapshots", &number.to_string()], ASK_WITHIN);
            }
            number > 2 * SNAPSHOT_ENTRIES
                && self.cluster.nodes.iter().all(|node| self.has_snapshot_since(node.id, since))
        });
        match made {
            true => Ok(()),
            false => {
                Err(format!("some node made no snapshot within {STARTS_WITHIN:?}\n{}", self.cluster.log()))
            }
        }
    }

    fn has_snapshot_since(&self, id: u64, since: SystemTime) -> bool {
        fn newest(folder: &Path) -> Option<SystemTime> {
            let files = std::fs::read_dir(folder).ok()?.flatten();
            files
                .filter_map(|file| match file.path() {
                    path if path.is_dir() => newest(&path),
                    path if path.extension().is_some_and(|suffix| suffix == "snap") => {
                        file.metadata().ok()?.modified().ok()
                    }
                    _ => None,
                })
                .max()
        }
        newest(&self.cluster.data(id)).is_some_and(|written| written > since)
    }

    /// Deletes most of what attacks have left, so that the next have room. What fails is seen elsewhere.
    fn sweep(&self) {
        let Some(mut node) = Connection::open(self.cluster.nodes[0].address).ok() else { return };
        let mut cursor = b"0".to_vec();
        loop {
            let scan = words!["SCAN", cursor, "MATCH", "hostile:*", "COUNT", 1000];
            let Ok(Value::Array(parts)) = node.ask(&scan, ASK_WITHIN) else { return };
            let [next, Value::Array(names)] = &parts[..] else { return };
            for names in names.chunks(KEPT_ONE_IN) {
                let del: Vec<Vec<u8>> = words!["DEL"]
                    .into_iter()
                    .chain(names[1..].iter().map(|name| name.bytes().to_vec()))
                    .collect();
                if del.len() > 1 && node.ask(&del, ASK_WITHIN).is_err() {
                    return;
                }
            }
            cursor = next.bytes().to_vec();
            if cursor == b"0" {
                return;
            }
        }
    }

    fn all_serve(&self) -> Result<(), String> {
        let serves = poll_until(STARTS_WITHIN, || {
            let alive = self.cluster.nodes.iter().all(|node| node.process().exit_status().is_none());
            !alive || self.cluster.agreed_leader().is_some()
        });
        for node in &self.cluster.nodes {
            if node.process().exit_status().is_some() {
                return Err(format!("node {} does not start again\n{}", node.id, node.process().log_tail()));
            }
        }
        match serves {
            true => Ok(()),
            false => Err(format!("no leader {STARTS_WITHIN:?} after the restart\n{}", self.cluster.log())),
        }
    }

    /// A member is thrown away with its disk, and a new one gets everything by snapshot.
    pub fn replace_a_member(&mut self) -> Result<(), String> {
        let leader = self.cluster.wait_for_leader(STARTS_WITHIN);
        let (gone, new) = (self.cluster.followers(leader)[0], 4);
        self.background.pause();
        self.watch.rest();
        self.admin(leader, &["REMOVE", &gone.to_string()])?;
        self.cluster.discard(gone);
        let address = self.cluster.join(new).to_string();
        self.admin(leader, &["ADD", &new.to_string(), &address])?;
        self.watch.follow(&self.cluster);
        let follows = poll_until(STARTS_WITHIN, || {
            let applied = |id: u64| match self.cluster.node(id).cluster_info("applied") {
                Some(Value::Integer(index)) => index,
                _ => -1,
            };
            self.cluster.agreed_leader().is_some() && applied(new) >= applied(leader) && applied(new) > 0
        });
        match follows {
            true => Ok(()),
            false => Err(format!(
                "the new member did not catch up within {STARTS_WITHIN:?}\n{}",
                self.cluster.log()
            )),
        }
    }

    fn admin(&self, leader: u64, words: &[&str]) -> Result<(), String> {
        let words = [&["LOCK.CLUSTER"], words].concat();
        let mut last = None;
        let done = poll_until(STARTS_WITHIN, || {
            last = self.cluster.node(leader).ask(&words, ASK_WITHIN);
            last == Some(Value::Simple(b"OK".to_vec()))
        });
        match done {
            true => Ok(()),
            false => Err(format!("{words:?}: {last:?}")),
        }
    }

    /// Everything is read through every node, and must be the same. The number of keys.
    pub fn compare_what_nodes_show(&self) -> Result<usize, String> {
        self.background.pause();
        let compared = equality::compare(&self.cluster);
        self.background.go_on();
        compared
    }

    /// Ends the nodes and compares their disks by hash. Only for a program that writes the formats of this source tree.
    pub fn compare_disks(self) -> Result<String, String> {
        let Campaign { mut cluster, background, watch, .. } = self;
        background.pause();
        drop(background);
        drop(watch);
        replicas::compare(&mut cluster)
    }
}
