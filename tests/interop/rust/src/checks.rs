//! The checks every lock library must pass; `../README.md` says what each means.

use crate::failover::{patiently, wait_long};
use crate::locker::{check, require, Check, Fault, Held, Locker, Outcome};
use crate::trial::{Trial, LONG_TTL, SHORT_TTL};
use crate::workers::exclusion;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

pub(crate) const COMMON: &[Check] = &[
    check!("acquire", acquire),
    check!("contention", contention),
    check!("extend", extend),
    check!("expiry", expiry),
    check!("stranger", stranger),
    check!("waiting", waiting),
    check!("lock.acquire", lock_acquire),
    check!("exclusion", exclusion),
];

pub(crate) async fn granted(locker: &dyn Locker, name: &str) -> Outcome<Box<dyn Held>> {
    locker.try_lock(name).await?.ok_or(Fault::Other("a free lock was refused".into()))
}

pub(crate) async fn refused(locker: &dyn Locker, name: &str, when: &str) -> Outcome<()> {
    require!(locker.try_lock(name).await?.is_none(), "granted {when}");
    Ok(())
}

async fn acquire(t: Trial) -> Outcome<()> {
    let name = t.name("acquire");
    let held = granted(&*t.open(0, LONG_TTL).await?, &name).await?;
    let info = t.info(&name).await?;
    require!(info.held && info.fence > 0, "LOCK.INFO says {info:?}");
    held.release().await?;
    t.until_free(&name, Duration::from_secs(1)).await
}

async fn contention(t: Trial) -> Outcome<()> {
    let name = t.name("contention");
    let (a, b) = (t.open(0, LONG_TTL).await?, t.open(1, LONG_TTL).await?);
    let held = granted(&*a, &name).await?;
    refused(&*b, &name, "to a second client while the first held it").await?;
    held.release().await?;
    granted(&*b, &name).await?.release().await
}

async fn extend(t: Trial) -> Outcome<()> {
    let name = t.name("extend");
    let ttl = Duration::from_millis(1500);
    let (a, b) = (t.open(0, ttl).await?, t.open(1, ttl).await?);
    let held = granted(&*a, &name).await?;
    let since = Instant::now();
    let before = t.info(&name).await?.fence;
    sleep(ttl / 2 - since.elapsed().min(ttl / 2)).await;
    held.extend().await?;
    sleep((ttl + Duration::from_millis(100)).saturating_sub(since.elapsed())).await;
    refused(&*b, &name, "to another client although it was extended").await?;
    let after = t.info(&name).await?.fence;
    require!(after == before, "the renewal changed the fence from {before} to {after}");
    held.release().await
}

async fn expiry(t: Trial) -> Outcome<()> {
    let (old, _next) = after_expiry(&t, &t.name("expiry")).await?;
    require!(old.extend().await.is_err(), "extending the expired lock was allowed");
    Ok(())
}

async fn stranger(t: Trial) -> Outcome<()> {
    let name = t.name("stranger");
    let (old, _next) = after_expiry(&t, &name).await?;
    let told = old.release().await;
    require!(t.info(&name).await?.held, "the release by the former holder freed the lock ({told:?})");
    Ok(())
}

/// Lets a lock of one client run out and takes it with another: the old lock and the next.
async fn after_expiry(t: &Trial, name: &str) -> Outcome<(Box<dyn Held>, Box<dyn Held>)> {
    let (a, b) = (t.open(0, SHORT_TTL).await?, t.open(1, LONG_TTL).await?);
    let asked = Instant::now();
    let old = granted(&*a, name).await?;
    let before = t.info(name).await?.fence;
    let next = loop {
        if let Some(next) = b.try_lock(name).await? {
            break next;
        }
        require!(asked.elapsed() < Duration::from_secs(6), "nobody else got the expired lock");
        sleep(Duration::from_millis(20)).await;
    };
    let lasted = asked.elapsed();
    require!(lasted >= SHORT_TTL, "passed to another after {lasted:?}, before its ttl of {SHORT_TTL:?}");
    let after = t.info(name).await?.fence;
    require!(after > before, "fence {after} after the expiry, {before} before it");
    Ok((old, next))
}

async fn waiting(t: Trial) -> Outcome<()> {
    let (a, b) = (t.open(0, LONG_TTL).await?, t.open(1, LONG_TTL).await?);
    let happens = async {
        sleep(Duration::from_millis(300)).await;
        Ok(())
    };
    wait_through(&t.name("waiting"), a, b, happens).await
}

/// a holds, b waits, something happens: b must not come through before a's release, and must after it.
pub(crate) async fn wait_through<F>(
    name: &str,
    a: Box<dyn Locker>,
    b: Box<dyn Locker>,
    happens: F,
) -> Outcome<()>
where
    F: Future<Output = Outcome<()>>,
{
    let held = granted(&*a, name).await?;
    let waited_for = name.to_string();
    let waiter = tokio::spawn(async move {
        let held = wait_long(Arc::from(b), &waited_for).await?;
        patiently(|| held.release()).await
    });
    happens.await?;
    require!(!waiter.is_finished(), "the waiter came through while the lock was held");
    patiently(|| held.release()).await?;
    match tokio::time::timeout(Duration::from_secs(12), waiter).await {
        Ok(outcome) => outcome?,
        Err(_) => Err(Fault::Other("the waiter did not get the lock within 12 s of the release".into())),
    }
}

async fn lock_acquire(t: Trial) -> Outcome<()> {
    let a = t.open(1, LONG_TTL).await?;
    refuses_lock_acquire(&t, &*a, &t.name("lock.acquire")).await?;
    refused_by_lock_acquire(&t, &*a, &t.name("lock.acquire:other")).await
}

async fn refuses_lock_acquire(t: &Trial, a: &dyn Locker, name: &str) -> Outcome<()> {
    let second = Duration::from_secs(1);
    let held = granted(a, name).await?;
    let before = t.info(name).await?.fence;
    let at_once = t.lock_acquire(name, second, Duration::ZERO).await?;
    require!(at_once.is_none(), "LOCK.ACQUIRE was granted {at_once:?} while the library held the lock");
    let release = async {
        sleep(Duration::from_millis(200)).await;
        held.release().await
    };
    let (fence, released) = tokio::join!(t.lock_acquire(name, second, Duration::from_secs(5)), release);
    let fence = fence?;
    require!(fence > Some(before), "LOCK.ACQUIRE WAIT gave {fence:?} after the library's fence {before}");
    released
}

async fn refused_by_lock_acquire(t: &Trial, a: &dyn Locker, name: &str) -> Outcome<()> {
    let fence = t.lock_acquire(name, LONG_TTL, Duration::ZERO).await?;
    let fence = fence.ok_or(Fault::Other("LOCK.ACQUIRE of a free name was refused".into()))?;
    refused(a, name, "while LOCK.ACQUIRE held the name").await?;
    t.lock_release(name, fence).await?;
    granted(a, name).await?.release().await
}
