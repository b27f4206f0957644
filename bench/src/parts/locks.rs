//! Lock pairs on private names, one hot lock with waiting and readers of one name, against all systems; renewals, sessions and multi-locks.

use super::systems::{
    fenced, on_cluster, on_etcd, on_proxy, on_redis, on_zookeeper, pairs, set_nx, NodeSelection, Systems,
};
use crate::etcd::EtcdMethod;
use crate::options::Options;
use crate::plot::Plot;
use crate::report::{table, Findings, Row};
use crate::target::{add, alternate, Target};
use crate::work::hot::{HotLockClient, LastRelease};
use crate::work::keepalive::{RenewClient, SessionClient};
use crate::work::multi::MultiLockClient;
use crate::work::pairs::LockCommands;
use crate::work::HOT_NAME;
use crate::zookeeper::ZooKeeperWork;
use std::rc::Rc;
use std::time::Duration;

const CLIENTS: [usize; 4] = [1, 16, 64, 256];
const HOT_CLIENTS: usize = 64;
const TURNS: (usize, Duration) = (4, Duration::from_millis(500));
const HOT_TURNS: (usize, Duration) = (4, Duration::from_millis(700));

const READERS: &str = "readers of one name";
const BUSY: &str = "pairs on private names, one core busy";
pub(crate) const SET_NX: &str = "Redis, SET NX + script";
const FENCED: &str = "Redis, fenced script";
const MODULE: &str = "tier 1, module";
const FUNCTIONS: &str = "tier 1, Lua functions";
const PROXY: &str = "tier 1, proxy to module";
pub(crate) const ONE: &str = "tier 2, 1 node";
pub(crate) const LEADER: &str = "tier 2, 3 nodes, leader";
const FOLLOWERS: &str = "tier 2, 3 nodes, followers";
const ALL: &str = "tier 2, 3 nodes, all";
const FIVE: &str = "tier 2, 5 nodes, leader";
const TIER2_SET_NX: &str = "tier 2, 3 nodes, SET NX + script";
pub(crate) const ETCD: &str = "etcd, transaction";
const OTHER_ETCD: &str = "etcd of the system, transaction";
const ETCD_LOCK: &str = "etcd, lock API";
const ETCD_READ: &str = "etcd, its recipe's read lock";
const ZOOKEEPER: &str = "ZooKeeper, Curator's recipe";
const ZOOKEEPER_READ: &str = "ZooKeeper, Curator's read lock";

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let systems = Systems::start(options)?;
    let mut findings = private_names(&systems, options);
    findings.absorb(hot_name(&systems, options));
    findings.absorb(readers(&systems, options));
    findings.absorb(keeping(&systems, options));
    findings.absorb(busy_core(&systems, options));
    judge(&mut findings);
    draw(&mut findings);
    Ok(findings)
}

fn private_targets(systems: &Systems, clients: usize) -> Vec<Target> {
    let mut targets = Vec::new();
    let lock = || pairs(LockCommands::Lock, clients);
    let on = |redis: &Result<crate::servers::redis::Redis, String>| {
        redis.as_ref().map(|redis| redis.address).map_err(Clone::clone)
    };
    let plain = on(&systems.redis);
    let made = plain
        .clone()
        .and_then(set_nx)
        .and_then(|words| on_redis(SET_NX, &systems.redis, pairs(words, clients)));
    add(&mut targets, SET_NX, made);
    let made =
        plain.and_then(fenced).and_then(|words| on_redis(FENCED, &systems.redis, pairs(words, clients)));
    add(&mut targets, FENCED, made);
    add(&mut targets, MODULE, on_redis(MODULE, &systems.module, lock()));
    add(
        &mut targets,
        FUNCTIONS,
        on_redis(FUNCTIONS, &systems.functions, pairs(LockCommands::Functions, clients)),
    );
    add(&mut targets, PROXY, on_proxy(PROXY, systems, lock()));
    add(&mut targets, ONE, on_cluster(ONE, &systems.one, NodeSelection::Leader, lock()));
    add(&mut targets, LEADER, on_cluster(LEADER, &systems.three, NodeSelection::Leader, lock()));
    add(&mut targets, FOLLOWERS, on_cluster(FOLLOWERS, &systems.three, NodeSelection::Followers, lock()));
    add(&mut targets, ALL, on_cluster(ALL, &systems.three, NodeSelection::All, lock()));
    add(&mut targets, FIVE, on_cluster(FIVE, &systems.five, NodeSelection::Leader, lock()));
    let made = systems.three.as_ref().map_err(Clone::clone).and_then(|cluster| {
        let leader = cluster.nodes[cluster.await_leader()?].address;
        on_cluster(TIER2_SET_NX, &systems.three, NodeSelection::Leader, pairs(set_nx(leader)?, clients))
    });
    add(&mut targets, TIER2_SET_NX, made);
    add(&mut targets, ETCD, on_etcd(ETCD, &systems.etcd, EtcdMethod::Transaction, clients));
    add(&mut targets, ETCD_LOCK, on_etcd(ETCD_LOCK, &systems.etcd, EtcdMethod::LockApi, clients));
    if let Some(etcd) = &systems.other_etcd {
        add(&mut targets, OTHER_ETCD, on_etcd(OTHER_ETCD, etcd, EtcdMethod::Transaction, clients));
    }
    add(&mut targets, ZOOKEEPER, on_zookeeper(ZOOKEEPER, systems, ZooKeeperWork::Private, clients));
    targets
}

fn private_names(systems: &Systems, options: &Options) -> Findings {
    let mut findings = Findings::default();
    for clients in CLIENTS {
        println!("\npairs on private names, {clients} clients (p50, p99: acquire; second: release)");
        let rows = alternate("private", clients, private_targets(systems, clients), options, TURNS);
        print!("{}", table(&rows));
        findings.rows.extend(rows);
    }
    findings
}

fn hot_name(systems: &Systems, options: &Options) -> Findings {
    let clients = || {
        let (name, last_release) = (Rc::new(crate::work::name(HOT_NAME)), LastRelease::default());
        (0..HOT_CLIENTS).map(|number| HotLockClient::new(&name, &last_release, number)).collect::<Vec<_>>()
    };
    let mut targets = Vec::new();
    add(&mut targets, MODULE, on_redis(MODULE, &systems.module, clients()));
    add(&mut targets, PROXY, on_proxy(PROXY, systems, clients()));
    add(&mut targets, ONE, on_cluster(ONE, &systems.one, NodeSelection::Leader, clients()));
    add(&mut targets, LEADER, on_cluster(LEADER, &systems.three, NodeSelection::Leader, clients()));
    add(&mut targets, ALL, on_cluster(ALL, &systems.three, NodeSelection::All, clients()));
    add(&mut targets, FIVE, on_cluster(FIVE, &systems.five, NodeSelection::Leader, clients()));
    add(&mut targets, ETCD_LOCK, on_etcd(ETCD_LOCK, &systems.etcd, EtcdMethod::HotLockApi, HOT_CLIENTS));
    add(&mut targets, ZOOKEEPER, on_zookeeper(ZOOKEEPER, systems, ZooKeeperWork::Hot, HOT_CLIENTS));
    println!("\none hot name, {HOT_CLIENTS} clients waiting (p50, p99: the whole wait; second: release to the next one's grant)");
    let rows = alternate("hot", HOT_CLIENTS, targets, options, HOT_TURNS);
    print!("{}", table(&rows));
    Findings { rows, ..Findings::default() }
}

/// All clients hold one name at once, as readers.
fn readers(systems: &Systems, options: &Options) -> Findings {
    let clients = HOT_CLIENTS;
    let shared = || pairs(LockCommands::SharedLock, clients);
    let mut targets = Vec::new();
    add(&mut targets, LEADER, on_cluster(LEADER, &systems.three, NodeSelection::Leader, shared()));
    add(&mut targets, ALL, on_cluster(ALL, &systems.three, NodeSelection::All, shared()));
    add(&mut targets, ETCD_READ, on_etcd(ETCD_READ, &systems.etcd, EtcdMethod::ReadLock, clients));
    let made = on_zookeeper(ZOOKEEPER_READ, systems, ZooKeeperWork::Readers, clients);
    add(&mut targets, ZOOKEEPER_READ, made);
    println!("\n{READERS}, {clients} clients (p50, p99: acquire; second: release)");
    let rows = alternate(READERS, clients, targets, options, TURNS);
    print!("{}", table(&rows));
    Findings { rows, ..Findings::default() }
}

fn keeping(systems: &Systems, options: &Options) -> Findings {
    let clients = HOT_CLIENTS;
    let renewing = || (0..clients).map(RenewClient::new).collect::<Vec<_>>();
    let multi = || (0..clients).map(MultiLockClient::new).collect::<Vec<_>>();
    let sessions = || (0..clients).map(|_| SessionClient::new()).collect::<Vec<_>>();
    let mut findings = Findings::default();
    let mut measure = |part: &str, targets: Vec<Target>| {
        println!("\n{part}, {clients} clients");
        let rows = alternate(part, clients, targets, options, TURNS);
        print!("{}", table(&rows));
        findings.rows.extend(rows);
    };
    let mut targets = Vec::new();
    add(&mut targets, MODULE, on_redis(MODULE, &systems.module, renewing()));
    add(&mut targets, LEADER, on_cluster(LEADER, &systems.three, NodeSelection::Leader, renewing()));
    add(&mut targets, ALL, on_cluster(ALL, &systems.three, NodeSelection::All, renewing()));
    measure("renew", targets);
    let mut targets = Vec::new();
    add(&mut targets, LEADER, on_cluster(LEADER, &systems.three, NodeSelection::Leader, sessions()));
    add(&mut targets, ALL, on_cluster(ALL, &systems.three, NodeSelection::All, sessions()));
    measure("session keep-alive", targets);
    let mut targets = Vec::new();
    add(&mut targets, MODULE, on_redis(MODULE, &systems.module, multi()));
    add(&mut targets, LEADER, on_cluster(LEADER, &systems.three, NodeSelection::Leader, multi()));
    add(&mut targets, ALL, on_cluster(ALL, &systems.three, NodeSelection::All, multi()));
    measure("multi-lock of four", targets);
    findings
}

/// Pairs while another program takes one of the cores, as on a shared machine.
fn busy_core(systems: &Systems, options: &Options) -> Findings {
    let clients = 64;
    let lock = || pairs(LockCommands::Lock, clients);
    let mut targets = Vec::new();
    add(&mut targets, LEADER, on_cluster(LEADER, &systems.three, NodeSelection::Leader, lock()));
    add(&mut targets, ALL, on_cluster(ALL, &systems.three, NodeSelection::All, lock()));
    add(&mut targets, ETCD, on_etcd(ETCD, &systems.etcd, EtcdMethod::Transaction, clients));
    println!("\n{BUSY}, {clients} clients");
    let spinning = Spinner::start();
    let rows = alternate(BUSY, clients, targets, options, TURNS);
    drop(spinning);
    print!("{}", table(&rows));
    Findings { rows, ..Findings::default() }
}

/// A process that keeps one core busy until it is dropped.
struct Spinner(Option<std::process::Child>);

impl Spinner {
    fn start() -> Spinner {
        let spinning = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        Spinner(spinning.map_err(|error| eprintln!("  no core is busy: {error}")).ok())
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The goals that this part can measure.
fn judge(findings: &mut Findings) {
    let best = |rows: &[Row], part: &str, clients: usize, names: &[&str]| {
        let among =
            |row: &&Row| row.part == part && row.clients == clients && names.contains(&row.target.as_str());
        let rates = rows.iter().filter(among).filter(|row| row.left_out.is_none()).map(|row| row.per_s);
        rates.fold(None, |best: Option<f64>, rate| Some(best.map_or(rate, |best| best.max(rate))))
    };
    let rows = findings.rows.clone();
    let ours = best(&rows, "private", 64, &[LEADER, ALL, FOLLOWERS]);
    let at_leader = best(&rows, "private", 64, &[LEADER]);
    let at_all = best(&rows, "private", 64, &[ALL]);
    let etcd = best(&rows, "private", 64, &[ETCD, ETCD_LOCK]);
    let over = |ours: Option<f64>, theirs: Option<f64>| Some(ours? / theirs?);
    let p50 = |target, clients| findings.row("private", target, clients).map(|row| row.p50_us);
    let p99 = |part: &str, target| findings.row(part, target, 64).map(|row| row.p99_us);
    let latency_of_one = over(p50(LEADER, 1), p50(ETCD, 1));
    let tail = over(p99("private", LEADER), p50(ETCD, 64));
    let busy_tail = over(p99(BUSY, LEADER), findings.row(BUSY, ETCD, 64).map(|row| row.p50_us));
    let hot = best(&rows, "hot", 64, &[LEADER, ALL]);
    let hot_tail = over(p99("hot", LEADER), findings.row("hot", ETCD_LOCK, 64).map(|row| row.p50_us));
    let redis = best(&rows, "private", 64, &[SET_NX]);
    findings.goal_at_least("tier 2, leader / etcd's best, 64 clients, pairs", over(at_leader, etcd), 12.0);
    findings.goal_at_least("tier 2, all nodes / etcd's best, 64 clients, pairs", over(at_all, etcd), 10.0);
    findings.goal_at_least("tier 2 (3 nodes) / Redis SET NX, 64 clients, pairs", over(ours, redis), 0.8);
    let set_nx = findings.ratio("private", 64, TIER2_SET_NX, LEADER);
    findings.goal_at_least("SET NX + script on tier 2 / LOCK there, 64 clients, pairs", set_nx, 0.85);
    let functions = findings.ratio("private", 64, FUNCTIONS, FENCED);
    findings.goal_at_least("tier 1 by Lua / fenced script, 64 clients, pairs", functions, 0.7);
    let cpu = findings.row("private", LEADER, 64).map(|row| row.server_cpu_us);
    findings.goal_at_most("server CPU a pair, three nodes together, 64 clients, us", cpu, 28.0);
    let renew = findings.row("renew", LEADER, 64).map(|row| row.p50_us);
    findings.goal_at_most("renewals on tier 2, 64 clients, p50, us", renew, 600.0);
    let busy = findings.ratio(BUSY, 64, LEADER, ETCD);
    findings.goal_at_least("one core busy: tier 2, leader / etcd, 64 clients, pairs", busy, 8.0);
    findings.goal_at_most("one core busy: tier 2 p99 / etcd p50, 64 clients, acquire", busy_tail, 1.0);
    findings.goal_at_most("tier 2 / etcd, one client, acquire p50", latency_of_one, 0.6);
    findings.goal_at_most("tier 2 p99 / etcd p50, 64 clients, acquire", tail, 1.0);
    let etcd_hot = best(&rows, "hot", 64, &[ETCD_LOCK]);
    findings.goal_at_least("tier 2 / etcd's lock API, hand-overs of one hot lock", over(hot, etcd_hot), 5.0);
    let zookeeper_hot = best(&rows, "hot", 64, &[ZOOKEEPER]);
    findings.goal_at_least("tier 2 / ZooKeeper, hand-overs of one hot lock", over(hot, zookeeper_hot), 3.0);
    findings.goal_at_most("tier 2 p99 / etcd p50, the wait for one hot lock", hot_tail, 1.0);
    let read = best(&rows, READERS, 64, &[LEADER, ALL]);
    let etcd_read = best(&rows, READERS, 64, &[ETCD_READ]);
    findings.goal_at_least("tier 2 / etcd's read lock, 64 readers of one name", over(read, etcd_read), 5.0);
    let zookeeper_read = best(&rows, READERS, 64, &[ZOOKEEPER_READ]);
    findings.goal_at_least("tier 2 / ZooKeeper's read lock, 64 readers", over(read, zookeeper_read), 3.0);
    let proxy = findings.ratio("private", 64, PROXY, MODULE);
    findings.goal_at_least("tier 1 through the proxy / direct, 64 clients, pairs", proxy, 0.6);
    let of_three = |clients| best(&rows, "private", clients, &[LEADER, ALL, FOLLOWERS]).unwrap_or(0.0);
    let operations = 2.0 * of_three(64).max(of_three(256));
    findings.goal_at_least("lock operations a second on three nodes", Some(operations), 50_000.0);
}

fn draw(findings: &mut Findings) {
    let bars = |part: &str, clients: usize| -> Vec<(String, f64)> {
        let rows = findings.rows.iter().filter(|row| row.part == part && row.clients == clients);
        rows.map(|row| (row.target.clone(), row.per_s)).collect()
    };
    let (private, hot) = (bars("private", 64), bars("hot", HOT_CLIENTS));
    let of = |target: &str| -> Vec<(f64, f64)> {
        let rows = findings.rows.iter().filter(|row| row.part == "private" && row.target == target);
        rows.map(|row| (row.clients as f64, row.per_s)).collect()
    };
    let names = [SET_NX, MODULE, PROXY, LEADER, FIVE, TIER2_SET_NX, ETCD, ZOOKEEPER];
    let lines = names.iter().map(|name| ((*name).to_string(), of(name))).collect();
    let by_clients = Plot::Lines {
        title: "Pairs a second as clients grow".into(),
        x_label: "clients".into(),
        y_label: "pairs/s".into(),
        lines,
    };
    let private = Plot::Bars {
        title: "Acquire + release, 64 clients, private names".into(),
        unit: "/s".into(),
        bars: private,
    };
    let hot = Plot::Bars {
        title: "Hand-overs of one hot lock, 64 clients waiting".into(),
        unit: "/s".into(),
        bars: hot,
    };
    findings.plots.extend([("pairs".into(), private), ("hot".into(), hot), ("clients".into(), by_clients)]);
}
