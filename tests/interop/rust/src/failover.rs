//! The leader is killed while a lock is held, while a client waits for one, and while workers take turns.

use crate::checks::{granted, wait_through};
use crate::locker::{check, require, Check, Fault, Held, Locker, Outcome};
use crate::trial::{eventually, Trial};
use crate::workers::Workers;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

pub(crate) const COMMON: &[Check] = &[
    check!("leader killed: holding", holding),
    check!("leader killed: waiting", waiting),
    check!("leader killed: working", working),
];

/// The ttl of a lock that is held when the leader dies. Where the dead node is one of N masters it does not hear of the
/// release, and what it granted stays until then.
const OVER_DEATH_TTL: Duration = Duration::from_secs(5);

/// Repeats what fails while there is no leader. That the lock is not held is an answer, not a failure.
pub(crate) async fn patiently<T, F, R>(work: F) -> Outcome<T>
where
    F: Fn() -> R,
    R: Future<Output = Outcome<T>>,
{
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        match work().await {
            Err(Fault::Other(_)) if Instant::now() < deadline => sleep(Duration::from_millis(50)).await,
            outcome => return outcome,
        }
    }
}

/// Waits for the lock and asks again where the library gives up on an error.
pub(crate) async fn wait_long(locker: Arc<dyn Locker>, name: &str) -> Outcome<Box<dyn Held>> {
    let outcome =
        patiently(|| async { Ok(timeout(Duration::from_secs(30), locker.wait(name)).await??) }).await?;
    Ok(outcome)
}

/// The two nodes that will live on; questions go to one of them.
async fn followers(t: &Trial) -> Outcome<(String, String)> {
    match &t.order("followers").await?[..] {
        [one, other] => {
            t.ask_at(one);
            Ok((one.clone(), other.clone()))
        }
        found => Err(Fault::Other(format!("expected two followers, not {found:?}"))),
    }
}

async fn holding(t: Trial) -> Outcome<()> {
    let outcome = hold_through(&t).await;
    t.order("restart-dead").await?;
    outcome
}

async fn hold_through(t: &Trial) -> Outcome<()> {
    let (one, other) = followers(t).await?;
    let (a, b) = (t.open_at(&one, OVER_DEATH_TTL).await?, t.open_at(&other, OVER_DEATH_TTL).await?);
    let name = t.name("killed-holding");
    let held = granted(&*a, &name).await?;
    let before = t.info(&name).await?.fence;
    t.order("kill-leader").await?;
    require!(patiently(|| b.try_lock(&name)).await?.is_none(), "granted to another client after the kill");
    patiently(|| held.extend()).await?;
    let after = t.info(&name).await?;
    require!(
        after.held && after.fence == before,
        "LOCK.INFO says {after:?}, the fence was {before} before the kill"
    );
    held.release().await?;
    let limit = if t.library.masters { 2 * OVER_DEATH_TTL } else { Duration::from_secs(2) };
    t.until_free(&name, limit).await
}

async fn waiting(t: Trial) -> Outcome<()> {
    let (one, other) = followers(&t).await?;
    let (a, b) = (t.open_at(&one, OVER_DEATH_TTL).await?, t.open_at(&other, OVER_DEATH_TTL).await?);
    let happens = async {
        sleep(Duration::from_millis(200)).await;
        t.order("kill-leader").await?;
        t.order("leader").await?;
        Ok(())
    };
    let outcome = wait_through(&t.name("killed-waiting"), a, b, happens).await;
    t.order("restart-dead").await?;
    outcome
}

/// The workers use all nodes: those of the dead one see broken connections until its restart.
async fn working(t: Trial) -> Outcome<()> {
    followers(&t).await?;
    let workers = Workers::new(t.clone(), t.name("killed-working"), Duration::from_secs(4), true);
    let run = tokio::spawn(workers.clone().run());
    let mut outcome = goes_on(&workers, "before the kill").await;
    if outcome.is_ok() {
        t.order("kill-leader").await?;
        outcome = goes_on(&workers, "after the kill").await;
    }
    t.order("restart-dead").await?;
    if outcome.is_ok() {
        outcome = goes_on(&workers, "after the restart").await;
    }
    workers.ended.store(true, Ordering::SeqCst);
    let ran = timeout(Duration::from_secs(20), run).await;
    outcome?;
    ran???;
    workers.judge()
}

async fn goes_on(workers: &Workers, when: &str) -> Outcome<()> {
    let target = workers.stayed() + 15;
    let what = format!("15 more turns {when}");
    eventually(Duration::from_secs(15), &what, || async { Ok(workers.stayed() >= target) }).await
}
