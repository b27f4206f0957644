//! The lock machine beside that of the pinned baseline, in one process: `make machine-versus`.
//!
//! Both do the same work in turns, so that whatever else the machine does meets both; what counts is the median of the ratios
//! of the turns. The memory of a held lock is measured in a process of its own for each of the two: `machine-versus memory WHICH`.

use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TURNS: usize = 61;
const PAIRS_PER_TURN: u64 = 50_000;
const BATCH: u64 = 256;
const OWNER: &[u8] = b"0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0";

/// What is measured of a machine. Times are those of the machine alone.
trait Subject {
    fn new() -> Self;
    fn pairs(&mut self, names: &[Vec<u8>]) -> Duration;
    fn pairs_by_entry(&mut self, names: &[Vec<u8>]) -> Duration;
    fn hold(&mut self, name: &[u8], ttl_ms: u64);
}

macro_rules! subject {
    ($core:ident, $newest:expr) => {
        pub mod $core {
            use super::{Duration, Instant, Subject, BATCH, OWNER, PAIRS_PER_TURN};
            use $core::machine::{Applied, Command, EntryBuilder, Machine};
            use $core::reply::Reply;
            use $core::types::{Fence, Origin, RequestId, Stamp};

            const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };

            pub struct Driver {
                machine: Machine,
                out: Applied,
                seq: u64,
                pair: u64,
            }

            impl Driver {
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

                fn apply_batch<'a>(&mut self, commands: impl Iterator<Item = Command<'a>>) -> Duration {
                    let first = self.seq + 1;
                    let mut entry = EntryBuilder::new(self.stamp());
                    let blobs: Vec<_> = commands
                        .map(|command| {
                            let mut blob = Vec::new();
                            command.encode(&mut blob);
                            self.seq += 1;
                            (self.seq, blob)
                        })
                        .collect();
                    entry.push_batch(ORIGIN, first, blobs.into_iter());
                    let bytes = entry.finish();
                    self.out.clear();
                    let begun = Instant::now();
                    // One of the two answers nothing. Whether it was applied, the replies tell.
                    let _ = self.machine.apply_entry(&bytes, &mut self.out);
                    begun.elapsed()
                }

                /// Spreads over the names as a hash would.
                fn next<'n>(&mut self, names: &'n [Vec<u8>]) -> &'n [u8] {
                    let at = self.pair * 7919 % names.len() as u64;
                    self.pair += 1;
                    &names[at as usize]
                }
            }

            fn acquire(resource: &[u8], ttl_ms: u64) -> Command<'_> {
                Command::Acquire { db: 0, resource, ttl_ms, wait_ms: 0, owner: OWNER, session: None }
            }

            fn granted(reply: &Reply) -> Fence {
                match reply {
                    Reply::Granted { fence, .. } => *fence,
                    other => panic!("expected a grant, got {other:?}"),
                }
            }

            impl Subject for Driver {
                fn new() -> Driver {
                    let machine = Machine::new();
                    let mut driver = Driver { machine, out: Applied::default(), seq: 0, pair: 0 };
                    if let Some(raise) = $newest {
                        driver.apply(raise);
                    }
                    driver
                }

                fn pairs(&mut self, names: &[Vec<u8>]) -> Duration {
                    let begun = Instant::now();
                    for _ in 0..PAIRS_PER_TURN {
                        let resource = self.next(names);
                        let fence = granted(&self.apply(acquire(resource, 30_000)));
                        let reply = self.apply(Command::Release { db: 0, resource, fence });
                        assert_eq!(reply, Reply::Released);
                    }
                    begun.elapsed()
                }

                fn pairs_by_entry(&mut self, names: &[Vec<u8>]) -> Duration {
                    let mut spent = Duration::ZERO;
                    for _ in 0..PAIRS_PER_TURN / BATCH {
                        let batch: Vec<&[u8]> = (0..BATCH).map(|_| self.next(names)).collect();
                        spent += self.apply_batch(batch.iter().map(|name| acquire(name, 30_000)));
                        let fences: Vec<Fence> =
                            self.out.replies.iter().map(|(_, reply)| granted(reply)).collect();
                        let releases = batch
                            .iter()
                            .zip(fences)
                            .map(|(resource, fence)| Command::Release { db: 0, resource, fence });
                        spent += self.apply_batch(releases);
                        assert!(self.out.replies.iter().all(|(_, reply)| *reply == Reply::Released));
                    }
                    spent
                }

                fn hold(&mut self, name: &[u8], ttl_ms: u64) {
                    granted(&self.apply(acquire(name, ttl_ms)));
                }
            }
        }
    };
}

mod subjects {
    use super::{Duration, Instant, Subject, BATCH, OWNER, PAIRS_PER_TURN};
    // From before there were cluster versions.
    subject!(baseline, None::<Command<'_>>);
    subject!(
        now,
        Some(Command::Upgrade(::now::machine::version::UpgradeCommand::Raise {
            to: ::now::machine::version::NEWEST
        }))
    );
}

use subjects::{baseline, now};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["memory", "baseline"] => memory::<baseline::Driver>(),
        ["memory", "now"] => memory::<now::Driver>(),
        [] => speed(),
        _ => panic!("usage: machine-versus [memory baseline|now]"),
    }
}

fn speed() {
    let one = names(1);
    let many = names(10_000);
    compare("one name", |driver: &mut baseline::Driver| driver.pairs(&one), |driver| driver.pairs(&one));
    compare("10,000 names", |driver: &mut baseline::Driver| driver.pairs(&many), |driver| driver.pairs(&many));
    compare(
        "entries of 256",
        |driver: &mut baseline::Driver| driver.pairs_by_entry(&many),
        |driver| driver.pairs_by_entry(&many),
    );
}

fn compare(
    label: &str,
    mut of_baseline: impl FnMut(&mut baseline::Driver) -> Duration,
    mut of_now: impl FnMut(&mut now::Driver) -> Duration,
) {
    let (mut before, mut now) = (baseline::Driver::new(), now::Driver::new());
    // Warm both up.
    of_baseline(&mut before);
    of_now(&mut now);
    let mut ratios = Vec::new();
    let mut times = Vec::new();
    for turn in 0..TURNS {
        let (baseline_took, now_took) = if turn % 2 == 0 {
            let first = of_baseline(&mut before);
            (first, of_now(&mut now))
        } else {
            let first = of_now(&mut now);
            (of_baseline(&mut before), first)
        };
        ratios.push(baseline_took.as_secs_f64() / now_took.as_secs_f64());
        times.push(now_took.as_nanos() as u64 / PAIRS_PER_TURN);
    }
    ratios.sort_by(f64::total_cmp);
    times.sort_unstable();
    println!(
        "{label}: {:.3} x the baseline (median of {TURNS} turns; quartiles {:.3} to {:.3}); {} ns a pair",
        ratios[TURNS / 2],
        ratios[TURNS / 4],
        ratios[TURNS * 3 / 4],
        times[TURNS / 2]
    );
}

fn memory<D: Subject>() {
    let mut driver = D::new();
    let mut last = resident_bytes();
    let mut held = 0_u64;
    for upto in [10_000_u64, 500_000, 1_000_000] {
        let base = (held, last);
        while held < upto {
            driver.hold(&name(held), 3_600_000 + held % 1000);
            held += 1;
        }
        last = resident_bytes();
        println!("{} to {held} held locks: {} bytes each", base.0, (last - base.1) / (held - base.0));
    }
}

fn names(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(name).collect()
}

/// 64 bytes, as an object path would be.
fn name(number: u64) -> Vec<u8> {
    format!("{:<52}{number:012}", "tenant:4711:invoices:settlement:").into_bytes()
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells the resident size");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS is always there");
    let kilobytes = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    kilobytes.expect("VmRSS is a number") * 1024
}
