//! The client: what it offers, and how long it lives.

use crate::acquire::LockRequest;
use crate::core::Core;
use crate::election::Election;
use crate::error::{Error, Failure};
use crate::fenced::Fenced;
use crate::links::Links;
use crate::lock::{Lock, Token};
use crate::options::{ClientBuilder, Settings};
use crate::protocol::{LockInfo, Waiter};
use crate::renewer::{self, Job};
use crate::watch::Watch;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::oneshot;

/// What clients and locks hold on to. When the last of them is gone, the background task finishes its work and ends.
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    jobs: UnboundedSender<Job>,
}

impl Handle {
    /// Leaves work to the background task. Where that has ended there is nothing left to do it.
    pub(crate) fn leave(&self, job: Job) {
        let _ = self.jobs.send(job);
    }
}

/// A client of one Redfence cluster, or of one Redis with the module or the Lua library. Cheap to clone; all clones share one background
/// task, one session and a few connections.
///
/// ```no_run
/// # async fn example() -> Result<(), redfence_client::Error> {
/// use std::time::Duration;
///
/// let client = redfence_client::Client::connect(["redis://n1:6380", "redis://n2:6380"]).await?;
/// let lock = client.lock("wallet:7").ttl(Duration::from_secs(30)).wait(Duration::from_secs(5)).acquire().await?;
/// println!("send {} along with every write", lock.fence());
/// lock.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) handle: Arc<Handle>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leases = self.handle.core.leases().len();
        f.debug_struct("Client").field("locks", &leases).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects with the default settings: see [`ClientBuilder`].
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::connect`].
    pub async fn connect<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Result<Client, Error> {
        Client::builder().addresses(addresses).connect().await
    }

    /// A client with other settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) async fn start(servers: Vec<redis::Client>, settings: Settings) -> Result<Client, Error> {
        let (notices, heard) = mpsc::unbounded_channel();
        let (jobs, given) = mpsc::unbounded_channel();
        let links = Links::new(servers, settings.clone(), notices);
        let core = Arc::new(Core::new(links, settings));
        core.links.shared().await.map_err(|failure| match failure {
            Failure::Server { text, .. } if text.contains("unction not found") || text.contains("unknown command") => {
                Error::Unsupported {
                    feature: "this client",
                    needs: "a Redfence proxy, or a Redis with the module or the Lua library (FUNCTION LOAD) of Redfence",
                }
            }
            failure => failure.into_error(),
        })?;
        tokio::spawn(renewer::drive(Arc::clone(&core), given, heard));
        Ok(Client { handle: Arc::new(Handle { core, jobs }) })
    }

    /// Asks for a lock: set what you need, then [`LockRequest::acquire`].
    pub fn lock(&self, name: impl AsRef<[u8]>) -> LockRequest<'_> {
        LockRequest::new(self, vec![name.as_ref().to_vec()], false)
    }

    /// Asks for several locks, all or nothing. Two such requests never deadlock each other.
    pub fn locks<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> LockRequest<'_> {
        LockRequest::new(self, names.into_iter().map(|name| name.as_ref().to_vec()).collect(), true)
    }

    /// Takes over a lock that another process handed on with [`Lock::hand_over`] or [`Lock::token`]. It is renewed once before it is yours.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] where it has ended meanwhile.
    pub async fn adopt(&self, token: &Token) -> Result<Lock, Error> {
        Lock::adopt(&self.handle, token).await
    }

    /// An election under this name.
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election<'_> {
        Election::new(self, name.as_ref())
    }

    /// Who holds a lock, and how many wait for it.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where no server answers.
    pub async fn info(&self, name: impl AsRef<[u8]>) -> Result<LockInfo, Error> {
        let core = &self.handle.core;
        core.admit()?;
        let value =
            core.ask(&core.links.dialect().info(name.as_ref(), None)).await.map_err(Failure::into_error)?;
        LockInfo::read(&value)
    }

    /// Who waits for a lock and since when, first in line first.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where no server answers.
    pub async fn queue(&self, name: impl AsRef<[u8]>) -> Result<Vec<Waiter>, Error> {
        let core = &self.handle.core;
        core.admit()?;
        let value =
            core.ask(&core.links.dialect().queue(name.as_ref(), None)).await.map_err(Failure::into_error)?;
        Waiter::read_all(&value)
    }

    /// Events of one lock, or of all whose names match a glob pattern. For dashboards, not for control flow: a subscriber that is not
    /// connected misses what happens.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where no server can be reached.
    pub async fn watch(&self, pattern: impl AsRef<[u8]>) -> Result<Watch, Error> {
        Watch::begin(self, pattern.as_ref()).await
    }

    /// Writes to data that lives in the same server, refused where the fence is stale.
    pub fn fenced(&self, resource: impl AsRef<[u8]>, fence: i64) -> Fenced {
        Fenced::new(Arc::clone(&self.handle), resource.as_ref().to_vec(), fence)
    }

    /// Releases every lock of this client, ends its waits with [`Error::Closed`], ends its watches, closes its session and its connections,
    /// and waits until that is done (5 s at most). Handles that are still around find their locks lost, with the cause `closed`.
    pub async fn close(self) {
        let core = &self.handle.core;
        for lease in core.lose_all() {
            self.handle.leave(Job::Release { lease, once: false });
        }
        let (sender, done) = oneshot::channel();
        self.handle.leave(Job::Close(sender));
        // An error means that the task has ended already.
        let _ = tokio::time::timeout(Duration::from_secs(12), done).await;
    }
}
