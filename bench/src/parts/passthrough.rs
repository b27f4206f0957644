//! Ordinary traffic (four GETs to a SET, values of 100 bytes) straight to a Redis, and through a proxy in front of it whose routes name
//! other keys. In turns, so that both see the same weather.

use crate::fleet::{Client, Fleet, Tally, Then};
use crate::options::Options;
use crate::resp;
use crate::servers::redfence::Cluster;
use crate::servers::redis::Redis;
use crate::servers::{call, cpu_of_self};
use std::rc::Rc;
use std::time::{Duration, Instant};

const KEYS: usize = 10_000;
const VALUE: [u8; 100] = [b'v'; 100];
const BATCHES: usize = 64;
const TURNS: usize = 10;
const TURN: Duration = Duration::from_millis(300);
const SHAPES: [(usize, usize); 6] = [(8, 1), (8, 16), (8, 64), (32, 1), (32, 16), (32, 64)];
/// What pipelined traffic through the proxy must keep of Redis's own speed.
const GOAL: f64 = 0.7;

/// Requests are built once: what the generator spends is taken from the servers.
struct Pipeline {
    batches: Rc<Vec<Vec<u8>>>,
    depth: usize,
    next: usize,
    asked_at: Instant,
    due: usize,
}

impl Client for Pipeline {
    fn ask(&mut self, now: Instant, out: &mut Vec<u8>) -> usize {
        self.next = (self.next + 1) % self.batches.len();
        out.extend_from_slice(&self.batches[self.next]);
        self.asked_at = now;
        self.due = self.depth;
        self.depth
    }

    fn take(&mut self, reply: &[u8], now: Instant, tally: &mut Tally) -> Result<Then, String> {
        if resp::is_error(reply) {
            return Err(resp::shown(reply));
        }
        self.due -= 1;
        tally.done += 1;
        if self.due == 0 {
            tally.latencies.record(now - self.asked_at);
        }
        Ok(Then::MayRest)
    }
}

/// One way to reach the Redis, and what it has shown so far.
struct Way {
    name: &'static str,
    fleet: Fleet<Pipeline>,
    tally: Tally,
    redis_cpu: Duration,
    proxy_cpu: Duration,
    load_cpu: Duration,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let redis = Redis::start(None)?;
    let behind = redis.address.to_string();
    let proxy = Cluster::start(
        &options.redfence()?,
        1,
        &["--redis", &behind, "--route", "wallet:*=correctness", "--default-tier", "efficiency"],
    )?;
    fill(&redis)?;
    println!("passthrough: GET and SET (4:1, 100 bytes), straight to Redis and through the proxy, in turns");
    for (connections, depth) in SHAPES {
        let ratio = compare(options, &redis, &proxy, connections, depth)?;
        if depth > 1 {
            println!(
                "  through / straight {ratio:.2} x (goal {GOAL}: {})",
                if ratio >= GOAL { "met" } else { "NOT met" }
            );
        } else {
            println!("  through / straight {ratio:.2} x (no goal without pipelining)");
        }
    }
    Ok(())
}

fn compare(
    options: &Options,
    redis: &Redis,
    proxy: &Cluster,
    connections: usize,
    depth: usize,
) -> Result<f64, String> {
    let batches = Rc::new((0..BATCHES).map(|batch| batch_of(batch, depth)).collect::<Vec<_>>());
    let way = |name, address| -> Result<Way, String> {
        let client = |number: usize| Pipeline {
            batches: Rc::clone(&batches),
            depth,
            next: number,
            asked_at: Instant::now(),
            due: 0,
        };
        let fleet = Fleet::connect(&[address], (0..connections).map(client).collect())?;
        let zero = Duration::ZERO;
        Ok(Way { name, fleet, tally: Tally::default(), redis_cpu: zero, proxy_cpu: zero, load_cpu: zero })
    };
    let mut ways = [way("straight", redis.address)?, way("through", proxy.nodes[0].address)?];
    for turn in 0..=options.turns(TURNS) {
        for way in &mut ways {
            let before = (redis.process.cpu(), proxy.cpu(), cpu_of_self());
            let tally = way.fleet.turn(options.turn_length(TURN))?;
            if turn > 0 {
                way.tally.absorb(&tally);
                way.redis_cpu += redis.process.cpu() - before.0;
                way.proxy_cpu += proxy.cpu() - before.1;
                way.load_cpu += cpu_of_self() - before.2;
            }
        }
    }
    for way in &ways {
        let each_us = |cpu: Duration| cpu.as_secs_f64() * 1e6 / way.tally.done.max(1) as f64;
        println!(
            "  {connections:>2} connections x {depth:>2}, {:>8}: {:>9.0} commands/s; batch p50 {:>6.0} us, p99 {:>6.0} us; us a command: redis {:.2}, proxy {:.2}, load {:.2}",
            way.name,
            way.tally.per_s(),
            way.tally.latencies.quantile_us(0.5),
            way.tally.latencies.quantile_us(0.99),
            each_us(way.redis_cpu),
            each_us(way.proxy_cpu),
            each_us(way.load_cpu),
        );
    }
    Ok(ways[1].tally.per_s() / ways[0].tally.per_s())
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
