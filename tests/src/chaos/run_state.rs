//! State shared by the load and the fault injection: node addresses, the time of the last grant by each, connections to cut.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::process::poll_until;

/// One node as clients see it.
#[derive(Debug)]
pub struct NodeEndpoint {
    pub id: u64,
    pub address: SocketAddr,
    /// When this node last granted a lock to a client.
    granted_ns: AtomicU64,
    /// Notified when all client connections to this node must be cut.
    pub cut: Notify,
}

pub struct RunState {
    start: Instant,
    endpoints: Mutex<Vec<Arc<NodeEndpoint>>>,
    stop: AtomicBool,
    /// Failures that the checker cannot see, e.g. a malformed reply. Any of them fails the run.
    unexpected: Mutex<Vec<String>>,
}

/// Further failures are not kept.
const UNEXPECTED_MAX: usize = 50;

impl Default for RunState {
    fn default() -> RunState {
        RunState {
            start: Instant::now(),
            endpoints: Mutex::default(),
            stop: AtomicBool::new(false),
            unexpected: Mutex::default(),
        }
    }
}

impl RunState {
    /// The one clock of the run.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a run of less than 500 years")
    }

    pub fn add_node(&self, id: u64, address: SocketAddr) {
        let endpoint = NodeEndpoint { id, address, granted_ns: AtomicU64::new(0), cut: Notify::new() };
        self.endpoints.lock().expect("mutex poisoned").push(Arc::new(endpoint));
    }

    pub fn remove_node(&self, id: u64) {
        self.endpoints.lock().expect("mutex poisoned").retain(|endpoint| endpoint.id != id);
    }

    pub fn endpoints(&self) -> Vec<Arc<NodeEndpoint>> {
        self.endpoints.lock().expect("mutex poisoned").clone()
    }

    /// One endpoint, chosen by a random number. Cheaper than `endpoints`.
    pub fn endpoint(&self, draw: u64) -> Option<Arc<NodeEndpoint>> {
        let endpoints = self.endpoints.lock().expect("mutex poisoned");
        let count = endpoints.len().max(1) as u64;
        endpoints.get((draw % count) as usize).cloned()
    }

    /// Cuts the client connections to one node, or to all (0), with requests in flight.
    pub fn cut(&self, id: u64) {
        for endpoint in self.endpoints().iter().filter(|endpoint| id == 0 || endpoint.id == id) {
            endpoint.cut.notify_waiters();
        }
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn report_unexpected(&self, text: String) {
        let mut unexpected = self.unexpected.lock().expect("mutex poisoned");
        if unexpected.len() < UNEXPECTED_MAX {
            unexpected.push(text);
        }
    }

    pub fn unexpected(&self) -> Vec<String> {
        self.unexpected.lock().expect("mutex poisoned").clone()
    }

    /// Waits until clients of every node got a lock after `since_ns`; returns when the last did.
    pub fn grants_everywhere_since(&self, since_ns: u64, within: Duration) -> Option<u64> {
        let mut seen = None;
        poll_until(within, || {
            seen = self
                .endpoints()
                .iter()
                .map(|endpoint| endpoint.granted_ns())
                .min()
                .filter(|at| *at > since_ns);
            seen.is_some()
        });
        seen
    }
}

impl NodeEndpoint {
    pub fn granted(&self, at_ns: u64) {
        self.granted_ns.store(at_ns, Ordering::Relaxed);
    }

    fn granted_ns(&self) -> u64 {
        self.granted_ns.load(Ordering::Relaxed)
    }
}
