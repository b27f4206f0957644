//! rslock: with one address, and as Redlock with the Redlock listeners as its masters.

use crate::locker::{check, require, Fault, Held, Library, Locker, Outcome};
use crate::trial::{Trial, LONG_TTL};
use async_trait::async_trait;
use rslock::{Lock, LockError, LockManager};
use std::time::Duration;

pub(crate) fn library(masters: bool) -> Library {
    Library {
        id: if masters { "rslock-masters" } else { "rslock" },
        name: "rslock",
        variant: if masters { "3 masters" } else { "" },
        masters,
        open: |addresses, ttl| {
            Box::pin(async move { Ok(Box::new(RslockLocker::new(&addresses, ttl)) as Box<dyn Locker>) })
        },
        own: if masters {
            Vec::new()
        } else {
            vec![check!("using() renews", using_renews), check!("is_freed", is_freed)]
        },
    }
}

struct RslockLocker {
    manager: LockManager,
    /// Asks once.
    impatient: LockManager,
    ttl: Duration,
}

struct RslockHeld {
    manager: LockManager,
    lock: Lock,
    ttl: Duration,
}

impl RslockLocker {
    fn new(addresses: &[String], ttl: Duration) -> RslockLocker {
        let mut manager =
            LockManager::new(addresses.iter().map(|address| format!("redis://{address}/")).collect());
        manager.set_retry(3, Duration::from_millis(60));
        let mut impatient = manager.clone();
        impatient.set_retry(1, Duration::from_millis(60));
        RslockLocker { manager, impatient, ttl }
    }

    fn held(&self, lock: Lock) -> Box<dyn Held> {
        Box::new(RslockHeld { manager: self.impatient.clone(), lock, ttl: self.ttl })
    }
}

#[async_trait]
impl Locker for RslockLocker {
    /// The library does not tell a lock that is taken from a server that cannot be reached.
    async fn try_lock(&self, name: &str) -> Outcome<Option<Box<dyn Held>>> {
        match self.impatient.lock(name, self.ttl).await {
            Ok(lock) => Ok(Some(self.held(lock))),
            Err(LockError::Unavailable) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn wait(&self, name: &str) -> Outcome<Box<dyn Held>> {
        let guard = self.manager.acquire(name, self.ttl).await?;
        Ok(self.held(guard.lock))
    }
}

#[async_trait]
impl Held for RslockHeld {
    async fn extend(&self) -> Outcome<()> {
        match self.manager.extend(&self.lock, self.ttl).await {
            Ok(_) => Ok(()),
            Err(LockError::Unavailable) => Err(Fault::NotHeld),
            Err(error) => Err(error.into()),
        }
    }

    /// Best effort, by the library's own words: it does not say whether the lock was held.
    async fn release(&self) -> Outcome<()> {
        self.manager.unlock(&self.lock).await;
        Ok(())
    }
}

/// `using` renews for as long as the routine runs.
async fn using_renews(t: Trial) -> Outcome<()> {
    let name = t.name("using");
    let ttl = Duration::from_millis(1500);
    let (a, b) = (RslockLocker::new(&t.nodes[..1], ttl), t.open(1, ttl).await?);
    let seen = a
        .manager
        .using(name.as_bytes(), ttl, async || {
            tokio::time::sleep(ttl + Duration::from_millis(300)).await;
            b.try_lock(&name).await
        })
        .await?;
    require!(seen?.is_none(), "granted to another client although using() renews");
    t.until_free(&name, Duration::from_secs(1)).await
}

async fn is_freed(t: Trial) -> Outcome<()> {
    let name = t.name("is-freed");
    let a = RslockLocker::new(&t.nodes[..1], LONG_TTL);
    let lock = a.manager.lock(name.as_str(), LONG_TTL).await?;
    require!(!a.manager.is_freed(&lock).await?, "a held lock counts as freed");
    a.manager.unlock(&lock).await;
    let after = a.manager.is_freed(&lock).await;
    require!(matches!(after, Err(LockError::RedisKeyNotFound)), "after the release: {after:?}");
    Ok(())
}
