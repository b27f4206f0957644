//! All clients of this node, as `CLIENT LIST` shows and `CLIENT KILL` ends them.

use crate::server::routing::waiting::Waiting;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;

/// What others may know of a client. Its connection keeps it up to date.
#[derive(Debug)]
pub struct ClientInfo {
    pub id: u64,
    pub address: SocketAddr,
    pub local_address: SocketAddr,
    pub since_ms: u64,
    pub seen_ms: AtomicU64,
    pub db: AtomicU64,
    pub protocol: AtomicU64,
    pub subscriptions: AtomicUsize,
    /// Whether it has said who it is, or need not.
    pub logged_in: AtomicBool,
    pub texts: Mutex<ClientTexts>,
    task: OnceLock<AbortHandle>,
    /// By which router the commands in flight were decided; 0 where none are.
    routed_by: AtomicU64,
    /// What that is, where it is one command that may wait for long.
    waiting: Mutex<Option<Waiting>>,
}

/// What the client says of itself.
#[derive(Clone, Debug, Default)]
pub struct ClientTexts {
    pub name: String,
    pub library: String,
    pub library_version: String,
    /// As which user it logged in; empty for the default user.
    pub user: String,
}

impl ClientInfo {
    /// The task that serves the client.
    pub fn set_task(&self, task: AbortHandle) {
        // Set once, by the listener that started it.
        let _ = self.task.set(task);
    }

    /// Commands are decided by this router from now on. Seen by whoever puts a newer router in force.
    pub fn set_routed_by(&self, generation: u64) {
        self.routed_by.store(generation, Ordering::SeqCst);
    }

    /// No command is in flight. Nothing is looked at afterwards, as it is above: all that was done before is seen with it,
    /// and that is enough.
    pub fn clear_routed_by(&self) {
        self.routed_by.store(0, Ordering::Release);
    }

    /// Whether something is in flight that an older router decided.
    #[must_use]
    pub fn is_behind(&self, generation: u64) -> bool {
        let by = self.routed_by.load(Ordering::SeqCst);
        by != 0 && by < generation
    }

    /// The command in flight. To be taken away before another is decided.
    pub fn set_waiting(&self, waiting: Option<Waiting>) {
        *self.waiting() = waiting;
    }

    pub fn waiting(&self) -> std::sync::MutexGuard<'_, Option<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the client's connection, soon.
    pub fn kill(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    pub fn texts(&self) -> std::sync::MutexGuard<'_, ClientTexts> {
        self.texts.lock().expect("mutex poisoned")
    }

    /// The name of its user.
    #[must_use]
    pub fn user(&self) -> Vec<u8> {
        let texts = self.texts();
        if texts.user.is_empty() {
            b"default".to_vec()
        } else {
            texts.user.clone().into_bytes()
        }
    }

    /// Closes the connection if it has not logged in within this time.
    pub fn close_without_login(self: &Arc<ClientInfo>, within: Duration) {
        let info = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(within).await;
            if !info.logged_in.load(Ordering::Acquire) {
                tracing::info!(client = %info.address, "closing client: it did not log in in time");
                info.kill();
            }
        });
    }

    /// One line of `CLIENT LIST`.
    #[must_use]
    pub fn line(&self, now_ms: u64) -> String {
        let texts = self.texts().clone();
        let mut line = String::with_capacity(200);
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={} db={} sub={} psub=0 ssub=0 multi=-1 \
             cmd=NULL user={} resp={} lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local_address,
            texts.name,
            now_ms.saturating_sub(self.since_ms) / 1000,
            now_ms.saturating_sub(self.seen_ms.load(Ordering::Relaxed)) / 1000,
            if self.subscriptions.load(Ordering::Relaxed) > 0 { "P" } else { "N" },
            self.db.load(Ordering::Relaxed),
            self.subscriptions.load(Ordering::Relaxed),
            if texts.user.is_empty() { "default" } else { &texts.user },
            self.protocol.load(Ordering::Relaxed),
            texts.library,
            texts.library_version,
        );
        line
    }
}

#[derive(Debug, Default)]
pub struct Registry {
    next_id: AtomicU64,
    infos: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
}

impl Registry {
    /// Writes an entry for a new client. `None` where there are `clients_max` already.
    #[must_use]
    pub fn enter(
        &self,
        address: SocketAddr,
        local_address: SocketAddr,
        now_ms: u64,
        clients_max: usize,
    ) -> Option<Arc<ClientInfo>> {
        let mut infos = self.infos.lock().expect("mutex poisoned");
        if infos.len() >= clients_max {
            return None;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let info = Arc::new(ClientInfo {
            id,
            address,
            local_address,
            since_ms: now_ms,
            seen_ms: AtomicU64::new(now_ms),
            db: AtomicU64::new(0),
            protocol: AtomicU64::new(2),
            subscriptions: AtomicUsize::new(0),
            logged_in: AtomicBool::new(false),
            texts: Mutex::default(),
            task: OnceLock::new(),
            routed_by: AtomicU64::new(0),
            waiting: Mutex::default(),
        });
        infos.insert(id, Arc::clone(&info));
        Some(info)
    }

    pub fn leave(&self, id: u64) {
        self.infos.lock().expect("mutex poisoned").remove(&id);
    }

    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        self.infos.lock().expect("mutex poisoned").contains_key(&id)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.infos.lock().expect("mutex poisoned").len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of the table, oldest first.
    #[must_use]
    pub fn infos(&self) -> Vec<Arc<ClientInfo>> {
        self.infos.lock().expect("mutex poisoned").values().cloned().collect()
    }
}
