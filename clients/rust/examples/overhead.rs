//! What the client costs beside the bare redis crate: acquire and release, by 1 and by 64 lockers, each with a name of its own.
//!
//! ```text
//! cargo run --release -p redfence-client --example overhead -- redis://127.0.0.1:6380
//! ```

use redfence_client::Client;
use std::future::Future;
use std::time::{Duration, Instant};

const MEASURED: Duration = Duration::from_millis(500);
const ROUNDS: usize = 15;

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn bare(
    connection: redis::aio::MultiplexedConnection,
    locker: usize,
    until: Instant,
) -> Result<u64, Failure> {
    let (mut connection, name, mut count) = (connection, format!("overhead:{locker}"), 0);
    while Instant::now() < until {
        let owner = uuid::Uuid::new_v4().to_string();
        let (fence, _): (i64, i64) = redis::cmd("LOCK.ACQUIRE")
            .arg(&name)
            .arg(30_000)
            .arg("OWNER")
            .arg(owner)
            .query_async(&mut connection)
            .await?;
        let (_, _): (i64, String) =
            redis::cmd("LOCK.RELEASE").arg(&name).arg(fence).query_async(&mut connection).await?;
        count += 1;
    }
    Ok(count)
}

async fn ours(client: Client, locker: usize, until: Instant) -> Result<u64, Failure> {
    let (name, mut count) = (format!("overhead:{locker}"), 0);
    while Instant::now() < until {
        // Without a session, as the bare commands.
        let lock = client.lock(&name).ttl(Duration::from_secs(30)).transferable().acquire().await?;
        lock.release().await?;
        count += 1;
    }
    Ok(count)
}

async fn all<F>(lockers: usize, one: impl Fn(usize, Instant) -> F) -> Result<f64, Failure>
where
    F: Future<Output = Result<u64, Failure>> + Send + 'static,
{
    let until = Instant::now() + MEASURED;
    let tasks: Vec<_> = (0..lockers).map(|locker| tokio::spawn(one(locker, until))).collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    // Counts are far below 2^52.
    #[allow(clippy::cast_precision_loss)]
    Ok(count as f64 / MEASURED.as_secs_f64())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6380".into());
    let client = Client::connect([address.clone()]).await?;
    let connection = redis::Client::open(address)?.get_multiplexed_async_connection().await?;
    for lockers in [1, 64] {
        let (mut plain, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        // By turns, and each is compared with its neighbour: machines change their pace.
        for _ in 0..ROUNDS {
            let bare = all(lockers, |locker, until| bare(connection.clone(), locker, until)).await?;
            let ours = all(lockers, |locker, until| ours(client.clone(), locker, until)).await?;
            plain.push(bare);
            with.push(ours);
            ratios.push(ours / bare);
        }
        let [plain, with, ratio] = [plain, with, ratios].map(median);
        println!("{lockers:>3} lockers: bare {plain:>8.0}/s, this client {with:>8.0}/s: {ratio:.2} x");
    }
    client.close().await;
    Ok(())
}
