//! Lock pairs on one Redis, four ways, in short turns: `SET NX PX` with a compare-and-delete script, the same with a fencing counter, the
//! module, and the module through a proxy in front of it. All on the very same server, which has the module loaded.

use super::systems::{fenced, on_redis, pairs, set_nx};
use crate::load_generator::LoadGenerator;
use crate::options::Options;
use crate::report::{table, Findings};
use crate::servers::redfence::Cluster;
use crate::servers::redis::Redis;
use crate::target::{alternate, Target};
use crate::work::pairs::LockCommands;
use std::time::Duration;

const CLIENTS: usize = 32;
const TURNS: (usize, Duration) = (60, Duration::from_millis(100));
const PART: &str = "tier 1 on one Redis";
const SET_NX: &str = "SET NX + script";
const FENCED: &str = "fenced script";
const MODULE: &str = "tier 1, module";
const THROUGH: &str = "tier 1, module, through the proxy";

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    println!("\n{PART}, {CLIENTS} clients (p50, p99: acquire; second: release)");
    let redis = Ok(Redis::start(Some(&options.module()?))?);
    let address = redis.as_ref().map(|redis: &Redis| redis.address).map_err(Clone::clone)?;
    let behind = address.to_string();
    let proxy = Cluster::start(
        &options.redfence()?,
        1,
        &["--redis", &behind, "--route", "wallet:*=correctness", "--default-tier", "efficiency"],
    )?;
    let mut processes = proxy.process_ids();
    processes.extend(redis.as_ref().map(|redis: &Redis| redis.process.id()));
    let through = LoadGenerator::connect(&proxy.addresses(), pairs(LockCommands::Lock, CLIENTS))?;
    let targets = vec![
        on_redis(SET_NX, &redis, pairs(set_nx(address)?, CLIENTS))?,
        on_redis(FENCED, &redis, pairs(fenced(address)?, CLIENTS))?,
        on_redis(MODULE, &redis, pairs(LockCommands::Lock, CLIENTS))?,
        Target::of_generator(THROUGH, through, processes),
    ];
    let rows = alternate(PART, CLIENTS, targets, options, TURNS);
    print!("{}", table(&rows));
    let mut findings = Findings { rows, ..Findings::default() };
    let plain = findings.ratio(PART, CLIENTS, MODULE, SET_NX);
    findings.goal_at_least("module / SET NX + script on one Redis, 32 clients, pairs", plain, 1.05);
    let counted = findings.ratio(PART, CLIENTS, MODULE, FENCED);
    findings.goal_at_least("module / fenced script on one Redis, 32 clients, pairs", counted, 1.1);
    let through = findings.ratio(PART, CLIENTS, THROUGH, MODULE);
    findings.goal_at_least("module through the proxy / module, 32 clients, pairs", through, 0.6);
    Ok(findings)
}
