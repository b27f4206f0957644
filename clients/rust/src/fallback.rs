//! What to do where no server answers, for locks that only save work. Never silent.

use crate::error::{Busy, Error};
use crate::lock::Lock;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// What to do where no server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnUnavailable {
    /// Fail, as [`crate::LockRequest::acquire`] does.
    Fail,
    /// Go on without a lock.
    ProceedWithout,
    /// Take a lock that excludes this process alone.
    LocalLock,
}

/// What [`crate::LockRequest::acquire_or`] got. There is no fence but in the first case.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub enum Acquired {
    /// The lock.
    Locked(Lock),
    /// Nothing: no server answered, and the caller said that this will do.
    Without(Error),
    /// A lock of this process: no server answered.
    Local(LocalLock),
}

/// A lock that excludes this process alone. Dropping it gives it back.
#[derive(Debug)]
pub struct LocalLock {
    guards: Vec<OwnedMutexGuard<()>>,
    reason: Error,
}

impl LocalLock {
    /// Why it is no more than that.
    #[must_use]
    pub fn reason(&self) -> &Error {
        &self.reason
    }
}

type Table = HashMap<Vec<u8>, Arc<AsyncMutex<()>>>;

static LOCAL: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// The lock of this name; names that nobody uses any more are forgotten.
fn local(name: Vec<u8>) -> Arc<AsyncMutex<()>> {
    let mut table = LOCAL.lock().unwrap_or_else(PoisonError::into_inner);
    table.retain(|_, lock| Arc::strong_count(lock) > 1);
    Arc::clone(table.entry(name).or_default())
}

impl OnUnavailable {
    pub(crate) async fn apply(
        self,
        error: Error,
        mut names: Vec<Vec<u8>>,
        wait: Duration,
    ) -> Result<Acquired, Error> {
        match self {
            OnUnavailable::Fail => Err(error),
            OnUnavailable::ProceedWithout => {
                tracing::warn!(%error, "redfence: no server answers; going on without a lock, as asked for");
                Ok(Acquired::Without(error))
            }
            OnUnavailable::LocalLock => {
                tracing::warn!(%error, "redfence: no server answers; taking a lock of this process alone, as asked for");
                // In one order, so that two of them never wait for each other.
                names.sort();
                let all = async {
                    let mut guards = Vec::new();
                    for name in names {
                        guards.push(local(name).lock_owned().await);
                    }
                    guards
                };
                match tokio::time::timeout(wait, all).await {
                    Ok(guards) => Ok(Acquired::Local(LocalLock { guards, reason: error })),
                    Err(_) => Err(Error::Busy(Busy::default())),
                }
            }
        }
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        self.guards.clear();
    }
}
