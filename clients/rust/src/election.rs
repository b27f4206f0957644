//! Leader election: a lock whose value says who leads.

use crate::client::Client;
use crate::error::Error;
use crate::lock::{Lock, Released};
use crate::protocol::{LockInfo, WAIT_MAX};
use crate::watch::{Event, Watch};
use std::ops::Deref;
use std::time::Duration;

/// An observer looks again this often, also without an event: events are delivered at most once.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// One election. Made by [`Client::election`].
///
/// ```no_run
/// # async fn example(client: redfence_client::Client) -> Result<(), redfence_client::Error> {
/// let leadership = client.election("scheduler").value("host-1:8080").campaign().await?;
/// leadership.run(async { /* lead */ }).await?;
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "call campaign, leader or observe"]
pub struct Election<'c> {
    client: &'c Client,
    name: Vec<u8>,
    value: Option<Vec<u8>>,
    ttl: Duration,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// What it campaigned with; `None` where it gave nothing, or the server has no values.
    pub value: Option<Vec<u8>>,
    /// The fence of its term: a later term has a higher one.
    pub fence: i64,
    /// The owner of its acquisition.
    pub owner: Vec<u8>,
}

/// The leadership: a lock, with everything a lock can do. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership(Lock);

impl Deref for Leadership {
    type Target = Lock;

    fn deref(&self) -> &Lock {
        &self.0
    }
}

impl Leadership {
    /// Gives the leadership back; the next candidate has it in the same step.
    ///
    /// # Errors
    ///
    /// As [`Lock::release`].
    pub async fn resign(&self) -> Result<Released, Error> {
        self.0.release().await
    }

    /// The lock itself.
    pub fn into_lock(self) -> Lock {
        self.0
    }
}

impl<'c> Election<'c> {
    pub(crate) fn new(client: &'c Client, name: &[u8]) -> Election<'c> {
        Election { client, name: name.to_vec(), value: None, ttl: Duration::from_secs(10) }
    }

    /// What others see of this candidate once it leads: its address, say. Needs cluster version 2.
    pub fn value(mut self, value: impl AsRef<[u8]>) -> Self {
        self.value = Some(value.as_ref().to_vec());
        self
    }

    /// How long a leader that went silent still leads (10 s).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Waits until this client leads, however long that takes. Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// Those of [`crate::LockRequest::acquire`] that no waiting mends; never [`Error::Busy`] or [`Error::Unavailable`].
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        loop {
            let mut request = self.client.lock(&self.name).ttl(self.ttl).wait(WAIT_MAX).max_hold(None);
            if let Some(value) = &self.value {
                request = request.value(value);
            }
            match request.acquire().await {
                Ok(lock) => return Ok(Leadership(lock)),
                Err(Error::Busy(_)) => {}
                Err(Error::Unavailable { .. } | Error::Indeterminate { .. }) => {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Who leads now.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where no server answers.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        Ok(leader_of(self.client.info(&self.name).await?))
    }

    /// Follows the leadership, beginning with who leads now.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where no server can be reached.
    pub async fn observe(&self) -> Result<Observer, Error> {
        let watch = self.client.watch(&self.name).await?;
        Ok(Observer {
            client: self.client.clone(),
            name: self.name.clone(),
            watch,
            has_told: false,
            last: None,
        })
    }
}

/// Follows who leads. Made by [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    client: Client,
    name: Vec<u8>,
    watch: Watch,
    /// Whether anything was told yet.
    has_told: bool,
    last: Option<Leader>,
}

impl Observer {
    /// The leader at first, and then each change: `None` while there is none, and at once when the client is closed.
    pub async fn next(&mut self) -> Option<Leader> {
        loop {
            // Who cannot be asked now is asked again: an observer has nothing better to tell than what it told last.
            match self.client.info(&self.name).await {
                Ok(info) => {
                    let leader = leader_of(info);
                    if !self.has_told || self.last != leader {
                        self.has_told = true;
                        self.last.clone_from(&leader);
                        return leader;
                    }
                }
                Err(Error::Closed) => return None,
                Err(_) => {}
            }
            let change = async {
                loop {
                    match self.watch.next().await {
                        Event::Change(change)
                            if matches!(change.event.as_str(), "renewed" | "queued" | "abandoned") => {}
                        Event::Change(_) | Event::Gap | Event::Closed => return,
                    }
                }
            };
            let _ = tokio::time::timeout(LOOK_EVERY, change).await;
        }
    }
}

fn leader_of(info: LockInfo) -> Option<Leader> {
    let holder = info.holders.into_iter().next().filter(|_| info.is_held)?;
    Some(Leader { value: holder.value, fence: holder.fence, owner: holder.owner })
}
