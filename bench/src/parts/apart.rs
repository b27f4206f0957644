//! Lock pairs where machines are not one machine: a delay between nodes, and a disk that takes its time. How the ratio changes.

use super::locks::{ETCD, LEADER};
use super::systems::{on_cluster, on_etcd, pairs, NodeSelection};
use crate::etcd::EtcdMethod;
use crate::options::Options;
use crate::report::{table, Findings};
use crate::servers::etcd::Etcd;
use crate::servers::redfence::Cluster;
use crate::servers::site::Site;
use crate::target::{add, alternate};
use crate::work::pairs::LockCommands;
use std::time::Duration;

const CLIENTS: usize = 64;
const TURNS: (usize, Duration) = (4, Duration::from_millis(1_000));

type MakeSite = fn() -> Site;

/// The first is what the others are compared with.
const SITES: [(&str, MakeSite); 4] = [
    ("side by side", || Site::Together),
    ("0.5 ms apart", || Site::apart(Duration::from_micros(500))),
    ("2 ms apart", || Site::apart(Duration::from_millis(2))),
    ("with syncs 2 ms longer", || Site::SlowDisk(Duration::from_millis(2))),
];

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let binary = options.redfence()?;
    let mut findings = Findings::default();
    for (name, site) in SITES {
        println!("\npairs on private names, nodes {name}, {CLIENTS} clients");
        let cluster = Cluster::start_at(&binary, 3, &[], site());
        let etcd = Etcd::start_at(&options.etcd(), site());
        let mut targets = Vec::new();
        let clients = pairs(LockCommands::Lock, CLIENTS);
        add(&mut targets, LEADER, on_cluster(LEADER, &cluster, NodeSelection::Leader, clients));
        add(&mut targets, ETCD, on_etcd(ETCD, &etcd, EtcdMethod::Transaction, CLIENTS));
        let part = format!("nodes {name}");
        let rows = alternate(&part, CLIENTS, targets, options, TURNS);
        print!("{}", table(&rows));
        findings.rows.extend(rows);
        if let Some(ratio) = findings.ratio(&part, CLIENTS, LEADER, ETCD) {
            findings.figure("apart", &format!("tier 2 / etcd, nodes {name}, {CLIENTS} clients"), ratio, "x");
        }
    }
    Ok(findings)
}
