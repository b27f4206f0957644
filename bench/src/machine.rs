//! The lock machine alone, on one core: pairs a second, bytes a lock, what one-shot names leave behind, snapshots.
//!
//! Memory is the resident size the system reports, so it includes what the allocator holds back.

use redfence_core::keyspace::Resp;
use redfence_core::machine::{Applied, Command, EntryBuilder, Machine};
use redfence_core::reply::Reply;
use redfence_core::script::{CpuMeter, Engine, Preparation};
use redfence_core::types::{Fence, Origin, RequestId, Stamp};
use std::time::{Duration, Instant};

const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };
const PAIRS: u64 = 3_000_000;
const REDIS_PAIRS: u64 = 300_000;
const HELD: u64 = 500_000;
const ONE_SHOT: u64 = 10_000_000;
const IDLE_MS: u64 = 600_000;

pub(crate) fn run() {
    println!("lock machine, one core");
    let base_bytes = resident_bytes();
    pairs("1 name", 1);
    pairs("10,000 names", 10_000);
    pairs_by_entry("10,000 names", 10_000);
    redis_pairs(REDIS_PAIRS);
    held_locks();
    one_shot_names(base_bytes);
}

/// Feeds commands with rising times and numbers, each acknowledged soon after.
struct Driver {
    machine: Machine,
    /// Turns scripts into what the log holds of them, as a leader does.
    engine: Engine,
    out: Applied,
    seq: u64,
}

impl Driver {
    fn new() -> Driver {
        Driver { machine: Machine::new(), engine: Engine::new(), out: Applied::default(), seq: 0 }
    }

    /// A microsecond a command: about what the machine can do.
    fn stamp(&self) -> Stamp {
        Stamp { term: 1, logical_ms: self.seq / 1000, wall_us: 1_700_000_000_000_000 + self.seq }
    }

    fn apply(&mut self, command: Command<'_>) -> Reply {
        self.seq += 1;
        let id = RequestId { origin: ORIGIN, seq: self.seq };
        self.out.clear();
        self.machine.apply(self.stamp(), Some(id), command, &mut self.out);
        self.out.replies.pop().expect("every command is answered").1
    }

    fn acquire(&mut self, name: &[u8], ttl_ms: u64) -> Fence {
        let owner = b"0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0";
        let command = Command::Acquire { db: 0, resource: name, ttl_ms, wait_ms: 0, owner, session: None };
        granted(&self.apply(command))
    }

    fn redis(&mut self, words: &[&[u8]]) -> Reply {
        let argv = words.iter().copied().collect();
        let command = Command::Redis { db: 0, resp: Resp::Two, member: None, argv };
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let logged = match self.engine.prepare(&self.machine, &blob) {
            Preparation::AsIs => return self.apply(command),
            Preparation::Native(native) => native,
            Preparation::Run => {
                let mut cpu = WallClock(Instant::now());
                self.engine.run(&self.machine, self.stamp(), &blob, &mut cpu).blob
            }
        };
        self.apply(Command::decode(&logged).expect("what is logged can be read"))
    }

    fn release(&mut self, name: &[u8], fence: Fence) {
        let reply = self.apply(Command::Release { db: 0, resource: name, fence });
        assert_eq!(reply, Reply::Released);
    }
}

/// One thread and nothing to wait for: the time that passes is the time that is used.
struct WallClock(Instant);

impl CpuMeter for WallClock {
    fn elapsed_us(&mut self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

fn granted(reply: &Reply) -> Fence {
    match reply {
        Reply::Granted { fence, .. } => *fence,
        other => panic!("expected a grant, got {other:?}"),
    }
}

fn names(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(name).collect()
}

/// 64 bytes, as an object path would be.
fn name(number: u64) -> Vec<u8> {
    format!("{:<52}{number:012}", "tenant:4711:invoices:settlement:").into_bytes()
}

fn pairs(label: &str, names_count: u64) {
    let names = names(names_count);
    let mut driver = Driver::new();
    let begun = Instant::now();
    for pair in 0..PAIRS {
        let name = &names[(pair * 7919 % names_count) as usize];
        let fence = driver.acquire(name, 30_000);
        driver.release(name, fence);
    }
    report_pairs(&format!("acquire+release, decoded, {label}"), begun.elapsed());
}

/// As the log brings them: 128 acquires in one entry, their releases in the next. Building the entries is not counted.
fn pairs_by_entry(label: &str, names_count: u64) {
    const BATCH: u64 = 256;
    let names = names(names_count);
    let mut machine = Machine::new();
    let mut out = Applied::default();
    let mut spent = Duration::ZERO;
    let mut seq = 0;
    let mut pair = 0;
    while pair < PAIRS {
        let batch: Vec<&Vec<u8>> =
            (pair..pair + BATCH).map(|pair| &names[(pair * 7919 % names_count) as usize]).collect();
        let acquires = batch.iter().map(|name| Command::Acquire {
            db: 0,
            resource: name,
            ttl_ms: 30_000,
            wait_ms: 0,
            owner: b"0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0",
            session: None,
        });
        spent += apply_batch(&mut machine, &mut out, &mut seq, acquires);
        let fences: Vec<Fence> = out.replies.iter().map(|(_, reply)| granted(reply)).collect();
        let releases =
            batch.iter().zip(fences).map(|(name, fence)| Command::Release { db: 0, resource: name, fence });
        spent += apply_batch(&mut machine, &mut out, &mut seq, releases);
        assert!(out.replies.iter().all(|(_, reply)| *reply == Reply::Released));
        pair += BATCH;
    }
    report_pairs(&format!("acquire+release, entries of {BATCH}, {label}"), spent);
}

fn apply_batch<'a>(
    machine: &mut Machine,
    out: &mut Applied,
    seq: &mut u64,
    commands: impl Iterator<Item = Command<'a>>,
) -> Duration {
    let first = *seq + 1;
    let stamp = Stamp { term: 1, logical_ms: *seq / 1000, wall_us: 1_700_000_000_000_000 + *seq };
    let mut entry = EntryBuilder::new(stamp);
    let blobs = commands.map(|command| {
        let mut blob = Vec::new();
        command.encode(&mut blob);
        *seq += 1;
        (*seq, blob)
    });
    entry.push_batch(ORIGIN, first, blobs);
    let bytes = entry.finish();
    out.clear();
    let begun = Instant::now();
    machine.apply_entry(&bytes, out).expect("a known entry");
    begun.elapsed()
}

/// What unchanged libraries send: `SET NX PX`, and a script that compares and deletes. 10,000 names.
fn redis_pairs(pairs: u64) {
    const NAMES: u64 = 10_000;
    const SCRIPT: &[u8] =
        b"if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end";
    let names = names(NAMES);
    let owner = b"0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0".as_slice();
    let mut driver = Driver::new();
    let sha = match driver.redis(&[b"SCRIPT", b"LOAD", SCRIPT]) {
        Reply::Bulk(sha) => sha,
        other => panic!("a script is loaded, not {other:?}"),
    };
    let releases: [(&str, Vec<&[u8]>); 3] = [
        ("DEL", vec![b"DEL".as_slice()]),
        ("EVALSHA", vec![b"EVALSHA".as_slice(), &sha, b"1"]),
        ("EVAL", vec![b"EVAL".as_slice(), SCRIPT, b"1"]),
    ];
    for (label, release) in releases {
        let mut releasing = Duration::ZERO;
        let begun = Instant::now();
        for pair in 0..pairs {
            let name = &names[(pair * 7919 % NAMES) as usize];
            assert_eq!(driver.redis(&[b"SET", name, owner, b"NX", b"PX", b"30000"]), Reply::OK);
            let mut words = release.clone();
            words.push(name);
            if release.len() > 1 {
                words.push(owner);
            }
            let half = Instant::now();
            assert_eq!(driver.redis(&words), Reply::Int(1));
            releasing += half.elapsed();
        }
        println!(
            "  SET NX PX + {label}: {:.2} M pairs/s; {label} alone {:.0} K/s",
            pairs as f64 / begun.elapsed().as_secs_f64() / 1e6,
            pairs as f64 / releasing.as_secs_f64() / 1e3
        );
    }
}

fn report_pairs(label: &str, spent: Duration) {
    println!("  {label}: {:.2} M pairs/s", PAIRS as f64 / spent.as_secs_f64() / 1e6);
}

fn held_locks() {
    let before = resident_bytes();
    let mut driver = Driver::new();
    let mut longest = Duration::ZERO;
    for number in 0..HELD {
        let begun = Instant::now();
        driver.acquire(&name(number), 3_600_000 + number % 1000);
        longest = longest.max(begun.elapsed());
    }
    let grown = resident_bytes() - before;
    println!(
        "  {HELD} held locks (64-byte names, 36-byte owners): {:.1} MB, {} bytes each; longest acquire {:.2} ms",
        grown as f64 / 1e6,
        grown / HELD,
        millis(longest)
    );
    snapshot(&mut driver.machine);
}

fn snapshot(machine: &mut Machine) {
    const SLOTS: usize = 1_000;
    let begun = Instant::now();
    machine.snapshot_begin();
    let mut longest = begun.elapsed();
    let mut pieces = Vec::new();
    loop {
        let step = Instant::now();
        let Some(piece) = machine.snapshot_step(SLOTS) else { break };
        longest = longest.max(step.elapsed());
        pieces.push(piece);
    }
    let written = begun.elapsed();
    let bytes: usize = pieces.iter().map(Vec::len).sum();
    println!(
        "  snapshot of {HELD} locks: {:.1} MB in {} pieces, written in {:.0} ms, longest pause {:.2} ms",
        bytes as f64 / 1e6,
        pieces.len(),
        millis(written),
        millis(longest)
    );
    let begun = Instant::now();
    let restored = Machine::restore(&pieces).expect("what was written can be read");
    println!("  restored and checked in {:.0} ms", millis(begun.elapsed()));
    assert_eq!(restored.state_hash(), machine.state_hash());
}

/// Names that are locked once and never again; then time passes until their records may be forgotten.
fn one_shot_names(base_bytes: u64) {
    let mut driver = Driver::new();
    let mut peak = 0;
    let begun = Instant::now();
    for number in 0..ONE_SHOT {
        let name = name(number);
        let fence = driver.acquire(&name, 30_000);
        driver.release(&name, fence);
        if number % 100_000 == 0 {
            peak = peak.max(resident_bytes());
        }
    }
    let rate = ONE_SHOT as f64 / begun.elapsed().as_secs_f64() / 1e6;
    let later = Stamp { term: 1, logical_ms: driver.seq / 1000 + IDLE_MS, wall_us: 1_700_000_600_000_000 };
    while driver.machine.stats().idle_records > 0 {
        driver.out.clear();
        driver.machine.apply(later, None, Command::Expire { idle_ms: IDLE_MS }, &mut driver.out);
    }
    let kept = resident_bytes();
    // SAFETY: takes no pointers; glibc's own lock guards the heap.
    unsafe { libc::malloc_trim(0) };
    let after = resident_bytes();
    println!(
        "  {ONE_SHOT} one-shot names: {rate:.2} M pairs/s; resident {:.1} MB at the start, {:.1} MB at the peak, \
         {:.1} MB after ({:.1} MB before glibc was told to trim)",
        base_bytes as f64 / 1e6,
        peak as f64 / 1e6,
        after as f64 / 1e6,
        kept as f64 / 1e6
    );
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells the resident size");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS is always there");
    let kilobytes = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    kilobytes.expect("VmRSS is a number") * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_unchanged_libraries_send_is_served() {
        redis_pairs(100);
    }
}
