//! Ordinary traffic (four GETs to a SET, values of 100 bytes) straight to a Redis, and through a proxy in front of it whose routes name
//! other keys. In turns, so that both see the same conditions.

use crate::load_generator::{Client, LoadGenerator, NextStep, Tally};
use crate::options::Options;
use crate::report::{table, Findings, Row};
use crate::resp;
use crate::servers::call;
use crate::servers::redfence::Cluster;
use crate::servers::redis::Redis;
use crate::target::{alternate, Target};
use std::rc::Rc;
use std::time::{Duration, Instant};

const KEYS: usize = 10_000;
const VALUE: [u8; 100] = [b'v'; 100];
const BATCHES: usize = 64;
const TURNS: (usize, Duration) = (8, Duration::from_millis(250));
const STRAIGHT: &str = "Redis, straight";
const THROUGH: &str = "proxy in front of it";
const THROUGH_OTHER: &str = "the other proxy (--other)";
const SHAPES: [(usize, usize); 6] = [(8, 1), (8, 16), (8, 64), (32, 1), (32, 16), (32, 64)];
/// What pipelined traffic through the proxy must keep of Redis's own speed.
const GOAL: f64 = 0.7;
const GOAL_ONE_AT_A_TIME: f64 = 0.75;

/// Requests are built once: what the generator spends is taken from the servers.
struct Pipeline {
    batches: Rc<Vec<Vec<u8>>>,
    depth: usize,
    next: usize,
    asked_at: Instant,
    due: usize,
}

impl Client for Pipeline {
    fn ask(&mut self, now: Instant, out: &mut Vec<u8>) {
        self.next = (self.next + 1) % self.batches.len();
        out.extend_from_slice(&self.batches[self.next]);
        self.asked_at = now;
        self.due = self.depth;
    }

    fn take(&mut self, reply: &[u8], now: Instant, tally: &mut Tally) -> Result<NextStep, String> {
        if resp::is_error(reply) {
            return Err(resp::shown(reply));
        }
        self.due -= 1;
        tally.done += 1;
        if self.due > 0 {
            return Ok(NextStep::AwaitReply);
        }
        tally.latencies.record(now - self.asked_at);
        Ok(NextStep::MayStop)
    }
}

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let redis = Redis::start(None)?;
    let behind = redis.address.to_string();
    let arguments = ["--redis", &behind, "--route", "wallet:*=correctness", "--default-tier", "efficiency"];
    let mut proxies = vec![(THROUGH, Cluster::start(&options.redfence()?, 1, &arguments)?)];
    if let Some(other) = &options.other {
        proxies.push((THROUGH_OTHER, Cluster::start(other, 1, &arguments)?));
    }
    fill(&redis)?;
    println!("passthrough: GET and SET (4:1, 100 bytes), straight to Redis and through the proxy, in turns");
    let mut findings = Findings::default();
    let shapes =
        SHAPES.into_iter().filter(|(connections, _)| options.clients.is_none_or(|only| only == *connections));
    for (connections, depth) in shapes {
        findings.rows.extend(compare(options, &redis, &proxies, connections, depth)?);
        let ratio = findings.ratio(&part(depth), connections, THROUGH, STRAIGHT);
        let name = format!("passthrough / straight, {connections} connections, {depth} commands at a time");
        match (connections, depth) {
            (8, 1) => findings.goal_at_least(&name, ratio, GOAL_ONE_AT_A_TIME),
            (_, 1) => {}
            _ => findings.goal_at_least(&name, ratio, GOAL),
        }
        findings.figure("passthrough", &name, ratio.unwrap_or(f64::NAN), "x");
    }
    print!("{}", table(&findings.rows));
    Ok(findings)
}

/// One row straight, and one through each proxy.
fn compare(
    options: &Options,
    redis: &Redis,
    proxies: &[(&str, Cluster)],
    connections: usize,
    depth: usize,
) -> Result<Vec<Row>, String> {
    let batches = Rc::new((0..BATCHES).map(|batch| batch_of(batch, depth)).collect::<Vec<_>>());
    let clients = || -> Vec<Pipeline> {
        let client = |number: usize| Pipeline {
            batches: Rc::clone(&batches),
            depth,
            next: number,
            asked_at: Instant::now(),
            due: 0,
        };
        (0..connections).map(client).collect()
    };
    let straight = LoadGenerator::connect(&[redis.address], clients())?;
    let mut targets = vec![Target::of_generator(STRAIGHT, straight, vec![redis.process.id()])];
    for (name, proxy) in proxies {
        let mut processes = proxy.process_ids();
        processes.push(redis.process.id());
        targets.push(Target::of_generator(
            name,
            LoadGenerator::connect(&proxy.addresses(), clients())?,
            processes,
        ));
    }
    Ok(alternate(&part(depth), connections, targets, options, TURNS))
}

fn part(depth: usize) -> String {
    format!("passthrough, {depth} commands at a time")
}

/// All keys are there, so that a GET is a GET.
fn fill(redis: &Redis) -> Result<(), String> {
    let names: Vec<String> = (0..KEYS).map(|key| format!("cache:{key}")).collect();
    for some in names.chunks(500) {
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        words.extend(some.iter().flat_map(|name| [name.as_bytes(), &VALUE]));
        call(redis.address, &words)?;
    }
    Ok(())
}

fn batch_of(batch: usize, depth: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for at in 0..depth {
        let number = batch * depth + at;
        let key = format!("cache:{}", number * 7919 % KEYS);
        if number.is_multiple_of(5) {
            resp::encode(&[b"SET", key.as_bytes(), &VALUE], &mut out);
        } else {
            resp::encode(&[b"GET", key.as_bytes()], &mut out);
        }
    }
    out
}
