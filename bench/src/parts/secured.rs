//! What encryption costs: between the nodes, and between them and their clients.
//!
//! The load generator speaks no TLS, so clients with TLS are those of `redis-benchmark`, and plain ones too where the two are compared:
//! one `SET` of a small value a request, on a Redis and on a cluster of three, each with a plain port and one with TLS.

use super::locks::LEADER;
use super::systems::{on_cluster, pairs, NodeSelection};
use crate::options::Options;
use crate::report::{table, Findings};
use crate::servers::redfence::{Cluster, Security};
use crate::servers::redis::Redis;
use crate::servers::site::Site;
use crate::target::{add, alternate, median};
use crate::work::pairs::LockCommands;
use redfence_certs::{Authority, Usage};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const CLIENTS: usize = 64;
const TURNS: (usize, Duration) = (12, Duration::from_millis(500));
const PEERS: &str = "pairs with encryption between nodes and without";
const ENCRYPTED: &str = "tier 2, 3 nodes, leader, peers encrypted";
const TLS: &str = "TLS of clients";
const TLS_TURNS: usize = 7;
const REQUESTS: usize = 60_000;
const REQUESTS_QUICK: usize = 2_000;

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let mut findings = between_nodes(options)?;
    findings.absorb(clients(options)?);
    Ok(findings)
}

/// Once with each of the two started first: what starts second is slower, by a few percent on a small machine.
fn between_nodes(options: &Options) -> Result<Findings, String> {
    let mut findings = Findings::default();
    let first = between_nodes_in_order(options, [LEADER, ENCRYPTED], &mut findings)?;
    let second = between_nodes_in_order(options, [ENCRYPTED, LEADER], &mut findings)?;
    let ratio = first.zip(second).map(|(first, second)| (first * second).sqrt());
    findings.goal_at_least("tier 2, peers encrypted / not, 64 clients, pairs", ratio, 0.95);
    Ok(findings)
}

fn between_nodes_in_order(
    options: &Options,
    order: [&str; 2],
    findings: &mut Findings,
) -> Result<Option<f64>, String> {
    let program = options.redfence()?;
    let clusters = order.map(|name| {
        let security = Security { peers: name == ENCRYPTED, ..Security::default() };
        Cluster::start_secured(&program, 3, &[], Site::Together, &security)
    });
    let mut targets = Vec::new();
    for (name, cluster) in order.iter().zip(&clusters) {
        let lock = pairs(LockCommands::Lock, CLIENTS);
        add(&mut targets, name, on_cluster(name, cluster, NodeSelection::Leader, lock));
    }
    let part = format!("{PEERS} ({} started first)", order[0]);
    println!("\n{part}, {CLIENTS} clients");
    let rows = alternate(&part, CLIENTS, targets, options, TURNS);
    print!("{}", table(&rows));
    findings.rows.extend(rows);
    Ok(findings.median_ratio(&part, CLIENTS, ENCRYPTED, LEADER))
}

fn clients(options: &Options) -> Result<Findings, String> {
    let directory = crate::servers::temporary_directory()?;
    write_certificates(directory.path())?;
    let redis = Redis::start_secured(None, Some(directory.path()))?;
    let security = Security { certificates: Some(directory.path().to_path_buf()), ..Security::default() };
    let cluster = Cluster::start_secured(&options.redfence()?, 3, &[], Site::Together, &security)?;
    let leader = cluster.await_leader()?;
    let authority = directory.path().join("ca.crt");
    let targets = [
        ("Redis, plain", redis.address, None),
        ("Redis, TLS", redis.tls, Some(authority.as_path())),
        ("tier 2, leader, plain", cluster.nodes[leader].address, None),
        ("tier 2, leader, TLS", cluster.tls_address(leader), Some(authority.as_path())),
    ];
    let requests = if options.quick { REQUESTS_QUICK } else { REQUESTS };
    let mut turns = [const { Vec::new() }; 4];
    for _ in 0..options.turns(TLS_TURNS) {
        for ((name, address, authority), found) in targets.iter().zip(&mut turns) {
            crate::report::progress(&format!("{TLS}: {name}"));
            found.push(redis_benchmark(*address, *authority, requests)?);
        }
    }
    crate::report::progress("");
    println!("\n{TLS}: SET of redis-benchmark, {CLIENTS} clients, median of turns");
    let mut findings = Findings::default();
    let [redis, redis_tls, plain, tls] = turns.map(|found| median(&found));
    for ((name, ..), per_s) in targets.iter().zip([redis, redis_tls, plain, tls]) {
        findings.figure("secured", name, per_s, "/s");
    }
    findings.figure("secured", "Redis, TLS / plain", redis_tls / redis, "x");
    findings.figure("secured", "tier 2, TLS / plain", tls / plain, "x");
    Ok(findings)
}

fn write_certificates(directory: &Path) -> Result<(), String> {
    let authority = Authority::new("bench").map_err(|error| error.to_string())?;
    let server = authority.issue("localhost", &["localhost", "127.0.0.1"], Usage::Server);
    let server = server.map_err(|error| error.to_string())?;
    let written = authority.pair().write(directory, "ca").and_then(|()| server.write(directory, "server"));
    written.map_err(|error| format!("the certificates: {error}"))
}

/// Requests a second.
fn redis_benchmark(address: SocketAddr, authority: Option<&Path>, requests: usize) -> Result<f64, String> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string(), "--csv"]);
    command.args(["-c", &CLIENTS.to_string(), "-n", &requests.to_string(), "-r", "100000"]);
    if let Some(authority) = authority {
        command.arg("--tls").arg("--cacert").arg(authority);
    }
    command.args(["SET", "value:__rand_int__", "0123456789"]);
    let output = command.output().map_err(|error| format!("redis-benchmark: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    per_s(&text).ok_or_else(|| {
        format!("redis-benchmark: {} {}", text.trim(), String::from_utf8_lossy(&output.stderr).trim())
    })
}

/// The second column of the last line; the first line names the columns.
fn per_s(csv: &str) -> Option<f64> {
    let line = csv.lines().filter(|line| line.starts_with('"')).nth(1)?;
    line.split("\",\"").nth(1)?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_report_is_found() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET value:__rand_int__ 0123456789\",\"71428.57\",\"0.436\"\n";
        assert_eq!(per_s(csv), Some(71_428.57));
        assert_eq!(per_s("\"test\",\"rps\"\n"), None);
        assert_eq!(per_s("Error: connection refused\n"), None);
    }
}
