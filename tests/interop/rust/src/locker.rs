//! What the common checks need of a lock library: each library's file fits its own words to these.

use crate::trial::Trial;
use async_trait::async_trait;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

#[derive(Debug)]
pub(crate) enum Fault {
    /// The lock is no longer, or never was, the caller's: an answer, not a failure.
    NotHeld,
    Other(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotHeld => write!(f, "not held"),
            Fault::Other(text) => write!(f, "{text}"),
        }
    }
}

impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault::Other(error.to_string())
    }
}

pub(crate) type Outcome<T> = Result<T, Fault>;

/// One lock in the hand of one owner.
#[async_trait]
pub(crate) trait Held: Send + Sync {
    /// Gives the lock its locker's ttl anew.
    async fn extend(&self) -> Outcome<()>;
    async fn release(&self) -> Outcome<()>;
}

/// One client of a lock library, with connections of its own and one ttl for all its locks.
#[async_trait]
pub(crate) trait Locker: Send + Sync {
    /// Asks once; `None` where another holds the lock.
    async fn try_lock(&self, name: &str) -> Outcome<Option<Box<dyn Held>>>;

    /// Asks until it gets the lock. Libraries without a way to wait poll.
    async fn wait(&self, name: &str) -> Outcome<Box<dyn Held>> {
        loop {
            if let Some(held) = self.try_lock(name).await? {
                return Ok(held);
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
}

pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send>>;

#[derive(Clone, Copy)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) body: fn(Trial) -> Boxed<()>,
}

/// One row of the table.
pub(crate) struct Library {
    pub(crate) id: &'static str,
    /// As the registry knows it.
    pub(crate) name: &'static str,
    pub(crate) variant: &'static str,
    /// Speaks to the Redlock listeners as to N masters.
    pub(crate) masters: bool,
    /// Connects a new client to these addresses: one, or as many as there are masters.
    pub(crate) open: fn(Vec<String>, Duration) -> Boxed<Box<dyn Locker>>,
    /// The checks of what this library alone offers.
    pub(crate) own: Vec<Check>,
}

/// Makes a [`Check`] of an async function.
macro_rules! check {
    ($name:expr, $body:path) => {
        $crate::locker::Check { name: $name, body: |trial| Box::pin($body(trial)) }
    };
}
pub(crate) use check;

/// Ends the check with a text unless the condition holds.
macro_rules! require {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err($crate::locker::Fault::Other(format!($($text)*)));
        }
    };
}
pub(crate) use require;
