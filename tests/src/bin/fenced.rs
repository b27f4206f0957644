//! `make fenced-resource`: a real PostgreSQL row behind a lock, holders paused past their ttl, writes that arrive late.
//!
//! Everybody adds one to a number: reads it, thinks, writes it back, with the lock held, on a cluster whose leader is killed
//! now and then. Some holders stand still until their lock is long gone and then write; some writes are held up on their way.
//! With the fence in the statement every such write is refused and no addition is lost. The same run without it shows
//! what a lock alone is worth.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::postgres::{Postgres, Psql};
use redfence_tests::resp::{Connection, Value};
use redfence_tests::rng::Rng;

const HOLDERS: u64 = 8;
const TTL_MS: u64 = 120;
const LATE_MS: u64 = 250;
const REPLY_WITHIN: Duration = Duration::from_secs(3);

/// What all holders of one run did.
#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    /// Writes the database took.
    accepted: AtomicU64,
    /// Writes it refused because a newer holder had been there.
    refused: AtomicU64,
    /// Holders that were paused, or whose write was held up, past the end of their lock.
    late: AtomicU64,
}

fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(15);
    let postgres = match Postgres::start() {
        Ok(postgres) => Arc::new(postgres),
        Err(error) => {
            eprintln!("fenced: {error}");
            return ExitCode::from(2);
        }
    };
    let with = run(&postgres, true, Duration::from_secs(seconds));
    let without = run(&postgres, false, Duration::from_secs(seconds));
    match (with, without) {
        (Ok((0, 0)), Ok((lost, stale))) if lost > 0 && stale > 0 => {
            println!("fenced: no stale write and nothing lost; without the fence {stale} stale writes, {lost} additions lost");
            ExitCode::SUCCESS
        }
        (with, without) => {
            println!("fenced: FAILED: (lost, stale) with the fence: {with:?}, without: {without:?}");
            ExitCode::FAILURE
        }
    }
}

/// Answers how many accepted additions the number does not show, and how many writes came after one of a newer holder.
fn run(postgres: &Arc<Postgres>, fenced: bool, duration: Duration) -> Result<(u64, u64), String> {
    let mut admin = postgres.connect()?;
    admin.ask("DROP TABLE IF EXISTS account, written")?;
    admin.ask("CREATE TABLE account (id int PRIMARY KEY, number bigint NOT NULL, fence bigint NOT NULL)")?;
    admin.ask("CREATE TABLE written (turn bigserial PRIMARY KEY, fence bigint NOT NULL)")?;
    admin.ask("INSERT INTO account VALUES (1, 0, 0)")?;
    let mut cluster = Cluster::start(&Options::nodes(3).flag("--deadline-ms", "1500"));
    let addresses = Arc::new(Mutex::new(cluster.nodes.iter().map(|node| node.address).collect::<Vec<_>>()));
    let tally = Arc::new(Tally::default());
    let holders: Vec<_> = (0..HOLDERS)
        .map(|number| {
            let (tally, postgres, addresses) =
                (Arc::clone(&tally), Arc::clone(postgres), Arc::clone(&addresses));
            std::thread::spawn(move || {
                let mut holder = Holder::new(number, fenced, postgres.connect()?);
                while !tally.stop.load(Ordering::Relaxed) {
                    let address = addresses.lock().expect("nobody panics with it")[number as usize % 3];
                    holder.turn(address, &tally)?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    let end = Instant::now() + duration;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_secs(4));
        let leader = cluster.wait_for_leader(Duration::from_secs(20));
        cluster.kill(leader);
        std::thread::sleep(Duration::from_millis(500));
        cluster.restart(leader);
    }
    tally.stop.store(true, Ordering::Relaxed);
    for holder in holders {
        holder.join().map_err(|_| "a holder panicked".to_string())??;
    }
    let number = first_number(&admin.ask("SELECT number FROM account")?)?;
    let stale = first_number(&admin.ask(
        "SELECT count(*) FROM written w WHERE EXISTS (SELECT 1 FROM written o WHERE o.turn < w.turn AND o.fence > w.fence)",
    )?)?;
    let accepted = tally.accepted.load(Ordering::Relaxed);
    println!(
        "{}: {accepted} writes accepted, {} refused, {} came late; the number is {number}, so {} additions are lost; {stale} stale writes",
        if fenced { "with the fence   " } else { "without the fence" },
        tally.refused.load(Ordering::Relaxed),
        tally.late.load(Ordering::Relaxed),
        accepted.saturating_sub(number)
    );
    Ok((accepted.saturating_sub(number), stale))
}

fn first_number(rows: &[String]) -> Result<u64, String> {
    rows.first().and_then(|row| row.parse().ok()).ok_or_else(|| format!("no number in {rows:?}"))
}

struct Holder {
    number: u64,
    fenced: bool,
    psql: Psql,
    rng: Rng,
    turns: u64,
}

impl Holder {
    fn new(number: u64, fenced: bool, psql: Psql) -> Holder {
        Holder { number, fenced, psql, rng: Rng::new(number), turns: 0 }
    }

    /// Takes the lock, reads, thinks, writes, gives it back. Without the lock: nothing.
    fn turn(&mut self, address: std::net::SocketAddr, tally: &Tally) -> Result<(), String> {
        self.turns += 1;
        let owner = format!("holder-{}-{}", self.number, self.turns);
        let Ok(mut lock) = Connection::open(address) else { return Ok(()) };
        let words = ["LOCK.ACQUIRE", "account", &TTL_MS.to_string(), "WAIT", "1000", "OWNER", &owner];
        let Ok(Value::Array(grant)) = lock.ask(&words, REPLY_WITHIN) else { return Ok(()) };
        let fence = grant[0].integer();
        // Whoever reads has to show the fence, too: from here on no older holder can write.
        let rows = match self.fenced {
            true => self.psql.ask(&format!(
                "UPDATE account SET fence = {fence} WHERE fence <= {fence} RETURNING number"
            ))?,
            false => self.psql.ask("SELECT number FROM account")?,
        };
        if rows.is_empty() {
            tally.refused.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let number = first_number(&rows)? + 1;
        let condition = if self.fenced { format!("WHERE fence <= {fence}") } else { String::new() };
        let write = format!(
            "WITH done AS (UPDATE account SET number = {number}, fence = {fence} {condition} RETURNING 1) \
             INSERT INTO written (fence) SELECT {fence} FROM done RETURNING fence"
        );
        self.write(&write, tally)?;
        // It may be over already: then the answer says so, and nothing happens.
        let _ = lock.ask(&["LOCK.RELEASE", "account", &fence.to_string()], REPLY_WITHIN);
        Ok(())
    }

    /// At once; or after a pause that outlasts the lock; or at once, but held up on its way.
    fn write(&mut self, statement: &str, tally: &Tally) -> Result<(), String> {
        let late = Duration::from_millis(LATE_MS);
        let rows = match self.rng.below(10) {
            0 => {
                tally.late.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(late);
                self.psql.ask(statement)?
            }
            1 => {
                tally.late.fetch_add(1, Ordering::Relaxed);
                self.psql.pause();
                self.psql.send(statement)?;
                std::thread::sleep(late);
                self.psql.resume();
                self.psql.receive()?
            }
            _ => self.psql.ask(statement)?,
        };
        let counter = if rows.is_empty() { &tally.refused } else { &tally.accepted };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
