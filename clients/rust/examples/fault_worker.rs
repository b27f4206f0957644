//! One client process of the fault runs in `clients/python/tests/test_faults.py`: the Rust client among those of Python.
//!
//! It takes locks, writes under their fences, and writes down what it believes, on a clock of the whole machine.
//! `fault_worker LOG NAMES URL...`, with a `PostgreSQL` in `REDFENCE_FAULTS_DSN`, if any. It ends when its input does.

use redfence_client::{postgres, Client, Error, Lock};
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(2);
const WORKERS: usize = 2;
/// With this state the trigger of `redfence fence-sql` refuses a stale fence.
const STALE_STATE: &str = "RF001";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Seconds on the clock that every process of this machine shares.
fn now() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default()).as_secs_f64()
}

/// Below `limit`.
fn random(limit: u32) -> u32 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    u32::try_from((high ^ low) % u64::from(limit)).unwrap_or_default()
}

async fn sleep_up_to(ms: u32) {
    tokio::time::sleep(Duration::from_millis(random(ms + 1).into())).await;
}

/// One JSON line for each event; whole lines only, whoever is killed when.
struct Diary(File);

impl Diary {
    fn write(
        &self,
        what: &str,
        name: &str,
        fence: i64,
        at: f64,
        more: &serde_json::Value,
    ) -> Result<(), Failure> {
        let mut event = serde_json::json!({ "what": what, "name": name, "fence": fence, "at": at });
        if let (Some(event), Some(more)) = (event.as_object_mut(), more.as_object()) {
            event.extend(more.clone());
        }
        (&self.0).write_all(format!("{event}\n").as_bytes())?;
        Ok(())
    }

    fn event(&self, what: &str, name: &str, fence: i64) -> Result<(), Failure> {
        self.write(what, name, fence, now(), &serde_json::Value::Null)
    }
}

struct Worker {
    client: Client,
    diary: Arc<Diary>,
    names: Vec<String>,
    database: Option<tokio_postgres::Client>,
}

impl Worker {
    async fn run(mut self, stop: Arc<AtomicBool>) -> Result<(), Failure> {
        while !stop.load(Ordering::Relaxed) {
            let name = self.names[random(u32::try_from(self.names.len())?) as usize].clone();
            match self.acquire(&name).await {
                Ok(Some(lock)) => self.hold(&name, &lock).await?,
                Ok(None) | Err(Error::Busy(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => {
                    let error = serde_json::json!({ "error": error.to_string() });
                    self.diary.write("failed", &name, 0, now(), &error)?;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        Ok(())
    }

    /// One in five is dropped in the middle: it must leave nothing.
    async fn acquire(&self, name: &str) -> Result<Option<Lock>, Error> {
        let wait = Duration::from_secs([0, 1, 3][random(3) as usize]);
        let acquire = self.client.lock(name).ttl(TTL).wait(wait).acquire();
        if random(5) > 0 {
            return acquire.await.map(Some);
        }
        let patience = Duration::from_millis(random(300).into());
        tokio::time::timeout(patience, acquire).await.map_or(Ok(None), |lock| lock.map(Some))
    }

    async fn hold(&mut self, name: &str, lock: &Lock) -> Result<(), Failure> {
        let fence = lock.fence();
        self.diary.event("acquired", name, fence)?;
        let mut ended = false;
        for _ in 0..=random(11) {
            let at = now(); // before the look: it says nothing about later
            if let Some(loss) = lock.loss() {
                let cause = serde_json::json!({ "cause": loss.cause.as_str() });
                self.diary.write("lost", name, fence, at, &cause)?;
                ended = true;
                break;
            }
            if !lock.remaining().is_zero() {
                self.diary.write("believes", name, fence, at, &serde_json::Value::Null)?;
            }
            self.write(name, lock).await?;
            sleep_up_to(250).await;
        }
        if !ended {
            self.diary.event("released", name, fence)?;
        }
        let _ = lock.release().await; // a lost one cannot be released; the diary tells of it
        if random(2) == 0 {
            // A late write: somebody who does not look whether the lock is still held.
            sleep_up_to(500).await;
            self.write(name, lock).await?;
        }
        Ok(())
    }

    async fn write(&mut self, name: &str, lock: &Lock) -> Result<(), Failure> {
        let began = now();
        let result = match &mut self.database {
            Some(database) => to_postgres(database, name, lock).await,
            None => to_redis(name, lock).await,
        };
        let more = serde_json::json!({ "until": now(), "result": result });
        self.diary.write("wrote", name, lock.fence(), began, &more)
    }
}

async fn to_redis(name: &str, lock: &Lock) -> &'static str {
    let mut command = redis::cmd("SET");
    command.arg(format!("{{data}}{name}")).arg(lock.fence());
    match lock.fenced().call::<()>(&command).await {
        Ok(()) => "ok",
        Err(Error::Stale { .. }) => "stale",
        Err(_) => "unknown",
    }
}

async fn to_postgres(database: &mut tokio_postgres::Client, name: &str, lock: &Lock) -> &'static str {
    let written = async {
        let transaction = database.transaction().await?;
        postgres::bind(&transaction, lock).await?;
        transaction.execute("UPDATE faults SET writes = writes + 1 WHERE name = $1", &[&name]).await?;
        transaction.commit().await
    };
    match written.await {
        Ok(()) => "ok",
        Err(error) if error.code().is_some_and(|code| code.code() == STALE_STATE) => "stale",
        Err(_) => "unknown",
    }
}

async fn database() -> Result<Option<tokio_postgres::Client>, Failure> {
    let Ok(address) = std::env::var("REDFENCE_FAULTS_DSN") else { return Ok(None) };
    let (client, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(Some(client))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let (log, names) = (words.next().ok_or("LOG")?, words.next().ok_or("NAMES")?);
    let diary = Arc::new(Diary(File::options().create(true).append(true).open(log)?));
    let stop = Arc::new(AtomicBool::new(false));
    let input_ended = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        input_ended.store(true, Ordering::Relaxed);
    });
    diary.event("started", "", 0)?;
    let client = Client::builder()
        .addresses(words)
        .session_ttl(TTL)
        .operation_timeout(Duration::from_secs(8))
        .attempt_timeout(Duration::from_secs(2))
        .connect_timeout(Duration::from_secs(1))
        .connect()
        .await?;
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let worker = Worker {
            client: client.clone(),
            diary: Arc::clone(&diary),
            names: names.split(',').map(str::to_owned).collect(),
            database: database().await?,
        };
        workers.push(tokio::spawn(worker.run(Arc::clone(&stop))));
    }
    for worker in workers {
        worker.await??;
    }
    client.close().await;
    diary.event("ended", "", 0)
}
