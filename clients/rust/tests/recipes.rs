//! Recipes: what locks are mostly used for, each as a test. Take the function, not the test around it.

use redfence_client::testing::Harness;
use redfence_client::{Client, Error, Tier};
use redfence_testserver::TestServer;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

async fn start() -> (TestServer, Harness, Client, Client) {
    let server = TestServer::start().expect("a free port on loopback");
    let harness = Harness::connect(server.address()).await.expect("it listens");
    let (one, two) =
        (harness.client().await.expect("it listens"), harness.client().await.expect("it listens"));
    (server, harness, one, two)
}

/// A cron job on many machines: one runs it, the others see that it is taken. The lock is kept for the period, so that a machine whose clock
/// is late does not run it a second time.
async fn cron_job<T>(
    client: &Client,
    name: &str,
    period: Duration,
    job: impl Future<Output = T>,
) -> Result<Option<T>, Error> {
    let Some(lock) = client.lock(name).ttl(period).transferable().try_acquire().await? else {
        return Ok(None);
    };
    let done = lock.run(job).await?;
    // Not released: it ends with its ttl, and nobody renews it.
    lock.hand_over()?;
    Ok(Some(done))
}

#[tokio::test]
async fn a_cron_job_runs_once_a_period() {
    let (_server, harness, one, two) = start().await;
    let minute = Duration::from_secs(60);
    let runs = AtomicUsize::new(0);
    let job = || async { runs.fetch_add(1, Ordering::SeqCst) };
    let (first, second) =
        tokio::join!(cron_job(&one, "report", minute, job()), cron_job(&two, "report", minute, job()));
    assert_eq!([first.unwrap().is_some(), second.unwrap().is_some()].iter().filter(|ran| **ran).count(), 1);
    assert!(cron_job(&two, "report", minute, job()).await.unwrap().is_none(), "it ran already");
    harness.advance(minute + Duration::from_millis(1)).await;
    assert!(cron_job(&two, "report", minute, job()).await.unwrap().is_some());
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// A migration at start-up: everybody waits for whoever migrates, and then finds it done. `is_done` reads the schema's version, `migrate` gets
/// the fence and writes it with the new version.
async fn migration<D, M>(
    client: &Client,
    is_done: impl Fn() -> D,
    migrate: impl FnOnce(i64) -> M,
) -> Result<(), Error>
where
    D: Future<Output = bool>,
    M: Future<Output = ()>,
{
    if is_done().await {
        return Ok(());
    }
    let lock = client.lock("migration").wait(Duration::from_secs(600)).acquire().await?;
    // Somebody may have done it while we waited.
    if !is_done().await {
        lock.run(migrate(lock.fence())).await?;
    }
    lock.release().await.map(drop)
}

#[tokio::test]
async fn a_migration_runs_once_and_all_wait_for_it() {
    let (_server, _harness, one, two) = start().await;
    let version = AtomicUsize::new(0);
    let is_done = || async { version.load(Ordering::SeqCst) > 0 };
    let migrate = |_fence| async {
        version.fetch_add(1, Ordering::SeqCst);
    };
    let (first, second) = tokio::join!(migration(&one, is_done, migrate), migration(&two, is_done, migrate));
    first.unwrap();
    second.unwrap();
    assert_eq!(version.load(Ordering::SeqCst), 1);
}

/// A limit on how many may use something at once: permits. Needs cluster version 2.
async fn limited<T>(
    client: &Client,
    name: &str,
    at_once: u32,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    let permit = client.lock(name).permits(1, at_once).wait(Duration::from_secs(30)).acquire().await?;
    let done = permit.run(work).await;
    permit.release().await?;
    done
}

#[tokio::test]
async fn permits_limit_how_many_work_at_once() {
    let (_server, _harness, one, two) = start().await;
    let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || async {
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        now.fetch_sub(1, Ordering::SeqCst);
    };
    if let Err(Error::Unsupported { .. }) = limited(&one, "api", 2, work()).await {
        eprintln!("left out: this server has cluster version 1");
        return;
    }
    let all = (0..10).map(|n| limited(if n % 2 == 0 { &one } else { &two }, "api", 2, work()));
    futures_util::future::try_join_all(all).await.unwrap();
    assert!(most.load(Ordering::SeqCst) <= 2);
}

/// A cache whose entry ran out: one refills it, the others go on with the old value. Here a lock saves work and nothing more, so the
/// efficiency tier will do, and without any server each refills for itself.
async fn refill<T>(
    client: &Client,
    key: &str,
    old: Option<T>,
    load: impl Future<Output = T>,
) -> Result<T, Error> {
    let request = client.lock(format!("refill:{key}")).tier(Tier::Efficiency).ttl(Duration::from_secs(10));
    match (request.try_acquire().await, old) {
        (Ok(None), Some(old)) => Ok(old),
        (Ok(None) | Err(Error::Unavailable { .. } | Error::Indeterminate { .. }), _) => Ok(load.await),
        // Released when it is dropped.
        (Ok(Some(_lock)), _) => Ok(load.await),
        (Err(error), _) => Err(error),
    }
}

#[tokio::test]
async fn a_cache_is_refilled_by_one() {
    let (_server, harness, one, two) = start().await;
    let slow = async {
        let other = refill(&two, "k", Some("old"), async { "new" }).await.unwrap();
        assert_eq!(other, "old", "somebody refills already");
        "new"
    };
    assert_eq!(Box::pin(refill(&one, "k", Some("old"), slow)).await.unwrap(), "new");
    harness.partition().await;
    let impatient = Client::builder().operation_timeout(Duration::from_millis(50));
    let third = harness.client_with(impatient).await.unwrap();
    assert_eq!(refill(&third, "k", None, async { "for itself" }).await.unwrap(), "for itself");
}

/// An item of a work queue: whoever takes it writes its result under the lock's fence. A worker that was paused and lost the item cannot
/// overwrite the result of the one that took it over.
async fn work_on(client: &Client, item: &str, work: impl Future<Output = String>) -> Result<bool, Error> {
    let Some(lock) = client.lock(item).ttl(Duration::from_secs(30)).try_acquire().await? else {
        return Ok(false);
    };
    let result = work.await;
    let mut write = redis::cmd("SET");
    write.arg(format!("result:{item}")).arg(result);
    lock.fenced().call::<()>(&write).await?;
    lock.release().await?;
    Ok(true)
}

#[tokio::test]
async fn a_paused_worker_cannot_overwrite_the_result_of_the_next_one() {
    let (server, harness, one, two) = start().await;
    let paused = async {
        // The lock is taken away while this worker sleeps; the next one works.
        assert!(harness.lose("item:1").await);
        assert!(work_on(&two, "item:1", async { "by the second".into() }).await.unwrap());
        "by the first".to_owned()
    };
    assert!(matches!(Box::pin(work_on(&one, "item:1", paused)).await, Err(Error::Stale { .. })));
    let mut connection =
        redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let result: String = redis::cmd("GET").arg("result:item:1").query_async(&mut connection).await.unwrap();
    assert_eq!(result, "by the second");
}
