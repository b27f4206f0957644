//! Tier 1 under crashes: a Redis with the module, killed and power-cut again and again, under every persistence setting.
//!
//! Tier 1 may forget who held a lock. It may never issue a fence twice, nor one that is not above all that were issued before:
//! that is what this checks, across all restarts of the Redis, in real-time order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::environment::Environment;
use super::settings::Settings;
use crate::redis::{Options, Redis};
use crate::resp::{Connection, Value};
use crate::rng::Rng;

const CLIENTS: usize = 8;
const NAMES: u64 = 40;
const REPLY_WITHIN: Duration = Duration::from_secs(5);

/// A grant that a client received.
#[derive(Clone, Copy, Debug)]
struct ObservedGrant {
    name: u64,
    fence: i64,
    asked: Instant,
    told: Instant,
}

#[derive(Default)]
struct CrashTally {
    power_cuts: u64,
    kills: u64,
    grants: u64,
    /// The highest fence of each name before the last restart.
    highest: HashMap<u64, i64>,
}

/// Returns a summary line, or what is wrong.
pub fn run(settings: &Settings) -> Result<String, String> {
    let environment = Environment::set_up(1);
    environment.note_missing();
    let folder = environment.disks.as_ref().map(|disks| disks.folder(0));
    let mut rng = Rng::new(settings.seed);
    let options = |rng: &mut Rng| persistence(rng, folder.clone());
    let mut redis = Redis::start(&options(&mut rng));
    let mut tally = CrashTally::default();
    let end = Instant::now() + settings.duration;
    while Instant::now() < end {
        let clients = ClientThreads::start(&redis, &mut rng);
        std::thread::sleep(Duration::from_millis(rng.between(50, 700)));
        crash(&mut redis, &environment, &mut rng, &mut tally)?;
        tally.check(clients.end()?)?;
        redis.restart(&options(&mut rng));
    }
    Ok(format!(
        "tier 1: {} power cuts, {} kills, {} grants of {NAMES} names: no fence twice, none below an earlier one",
        tally.power_cuts, tally.kills, tally.grants
    ))
}

/// From "every write synced" to "nothing persisted".
fn persistence(rng: &mut Rng, folder: Option<std::path::PathBuf>) -> Options {
    let mut options = Options::with_module();
    options.folder = folder;
    match rng.below(4) {
        0 => options.set("appendonly", "yes").set("appendfsync", "always"),
        1 | 2 => options.set("appendonly", "yes").set("appendfsync", "everysec"),
        _ => options.set("appendonly", "no"),
    }
}

fn crash(
    redis: &mut Redis,
    environment: &Environment,
    rng: &mut Rng,
    tally: &mut CrashTally,
) -> Result<(), String> {
    match &environment.disks {
        Some(disks) if rng.per_mille(800) => {
            redis.process().signal(libc::SIGSTOP);
            disks.cut(0)?;
            redis.kill();
            disks.come_back(0)?;
            tally.power_cuts += 1;
        }
        Some(_) | None => {
            redis.kill();
            tally.kills += 1;
        }
    }
    Ok(())
}

impl CrashTally {
    /// The grants between two restarts, all requested after the previous crash.
    fn check(&mut self, mut grants: Vec<ObservedGrant>) -> Result<(), String> {
        self.grants += grants.len() as u64;
        grants.sort_by_key(|grant| grant.asked);
        let mut told = grants.clone();
        told.sort_by_key(|grant| grant.told);
        let mut seen: HashMap<(u64, i64), ObservedGrant> = HashMap::new();
        let mut before = told.iter().peekable();
        for grant in &grants {
            while let Some(earlier) = before.next_if(|earlier| earlier.told < grant.asked) {
                let highest = self.highest.entry(earlier.name).or_insert(0);
                *highest = (*highest).max(earlier.fence);
            }
            let highest = self.highest.get(&grant.name).copied().unwrap_or(0);
            if grant.fence <= highest {
                return Err(format!("{grant:?} though {highest} had been issued before it was asked for"));
            }
            if let Some(twin) = seen.insert((grant.name, grant.fence), *grant) {
                return Err(format!("one fence twice: {grant:?} and {twin:?}"));
            }
        }
        for grant in told {
            let highest = self.highest.entry(grant.name).or_insert(0);
            *highest = (*highest).max(grant.fence);
        }
        Ok(())
    }
}

/// Threads that acquire and release as fast as they can, until the Redis is gone.
struct ClientThreads {
    threads: Vec<std::thread::JoinHandle<Result<Vec<ObservedGrant>, String>>>,
    gone: Arc<AtomicBool>,
}

impl ClientThreads {
    fn start(redis: &Redis, rng: &mut Rng) -> ClientThreads {
        let gone = Arc::new(AtomicBool::new(false));
        let threads = (0..CLIENTS)
            .map(|_| {
                let (mut rng, gone) = (rng.fork(), Arc::clone(&gone));
                let connection = redis.connect(crate::resp::Protocol::Resp2);
                std::thread::spawn(move || client(connection, &mut rng, &gone))
            })
            .collect();
        ClientThreads { threads, gone }
    }

    /// The Redis is dead: pending reads fail at once.
    fn end(self) -> Result<Vec<ObservedGrant>, String> {
        self.gone.store(true, Ordering::Relaxed);
        let mut grants = Vec::new();
        for thread in self.threads {
            grants.extend(thread.join().map_err(|_| "a client panicked".to_string())??);
        }
        Ok(grants)
    }
}

fn client(mut redis: Connection, rng: &mut Rng, gone: &AtomicBool) -> Result<Vec<ObservedGrant>, String> {
    let mut grants = Vec::new();
    while !gone.load(Ordering::Relaxed) {
        let number = rng.below(NAMES);
        let (name, asked) = (format!("tier1:{number}"), Instant::now());
        let words = ["LOCK.ACQUIRE", &name, "1000"];
        let fence = match redis.ask(&words, REPLY_WITHIN) {
            Ok(Value::Array(items)) => items[0].integer(),
            Ok(Value::NullBulk) => continue,
            Ok(other) => return Err(format!("{words:?} was answered {other:?}")),
            Err(_) => break,
        };
        grants.push(ObservedGrant { name: number, fence, asked, told: Instant::now() });
        if rng.per_mille(900)
            && redis.ask(&["LOCK.RELEASE", &name, &fence.to_string()], REPLY_WITHIN).is_err()
        {
            break;
        }
    }
    Ok(grants)
}
