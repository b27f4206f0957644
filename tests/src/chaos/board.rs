//! What the load and the faults know of each other: where the nodes are, when each last granted, which connections are cut.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::process::poll_until;

/// One node as clients see it.
#[derive(Debug)]
pub struct Face {
    pub id: u64,
    pub address: SocketAddr,
    /// When a grant last came by way of this node.
    granted_ns: AtomicU64,
    /// Rung when all client connections to this node are to break.
    pub cut: Notify,
}

pub struct Board {
    start: Instant,
    faces: Mutex<Vec<Arc<Face>>>,
    stop: AtomicBool,
    /// What went wrong beyond what the checker sees, e.g. an answer that no client can read. Any of it fails the run.
    surprises: Mutex<Vec<String>>,
}

/// More say no more than these.
const SURPRISES_MAX: usize = 50;

impl Default for Board {
    fn default() -> Board {
        Board {
            start: Instant::now(),
            faces: Mutex::default(),
            stop: AtomicBool::new(false),
            surprises: Mutex::default(),
        }
    }
}

impl Board {
    /// The one clock of the run.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a run of less than 500 years")
    }

    pub fn show(&self, id: u64, address: SocketAddr) {
        let face = Face { id, address, granted_ns: AtomicU64::new(0), cut: Notify::new() };
        self.faces.lock().expect("no panic under it").push(Arc::new(face));
    }

    pub fn hide(&self, id: u64) {
        self.faces.lock().expect("no panic under it").retain(|face| face.id != id);
    }

    pub fn faces(&self) -> Vec<Arc<Face>> {
        self.faces.lock().expect("no panic under it").clone()
    }

    /// One face by a draw: cheaper than all of them.
    pub fn face(&self, draw: u64) -> Option<Arc<Face>> {
        let faces = self.faces.lock().expect("no panic under it");
        let count = faces.len().max(1) as u64;
        faces.get((draw % count) as usize).cloned()
    }

    /// Breaks the clients' connections to one node, or to all (0), whatever is under way on them.
    pub fn cut(&self, id: u64) {
        for face in self.faces().iter().filter(|face| id == 0 || face.id == id) {
            face.cut.notify_waiters();
        }
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn surprise(&self, text: String) {
        let mut surprises = self.surprises.lock().expect("no panic under it");
        if surprises.len() < SURPRISES_MAX {
            surprises.push(text);
        }
    }

    pub fn surprises(&self) -> Vec<String> {
        self.surprises.lock().expect("no panic under it").clone()
    }

    /// Waits until some client got a lock after `since_ns`; answers when.
    pub fn grant_since(&self, since_ns: u64, within: Duration) -> Option<u64> {
        let mut seen = None;
        poll_until(within, || {
            seen = self.faces().iter().map(|face| face.granted_ns()).max().filter(|at| *at > since_ns);
            seen.is_some()
        });
        seen
    }

    /// Waits until clients of every node got a lock after `since_ns`; answers when the last did.
    pub fn grants_everywhere_since(&self, since_ns: u64, within: Duration) -> Option<u64> {
        let mut seen = None;
        poll_until(within, || {
            seen = self.faces().iter().map(|face| face.granted_ns()).min().filter(|at| *at > since_ns);
            seen.is_some()
        });
        seen
    }
}

impl Face {
    pub fn granted(&self, at_ns: u64) {
        self.granted_ns.store(at_ns, Ordering::Relaxed);
    }

    fn granted_ns(&self) -> u64 {
        self.granted_ns.load(Ordering::Relaxed)
    }
}
