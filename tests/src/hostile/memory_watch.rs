//! Watches the memory of the nodes: records the peak, and kills a node above the limit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cluster::Cluster;

const EVERY: Duration = Duration::from_millis(20);
const PAGE_BYTES: u64 = 4096;

#[derive(Default)]
struct WatchedNodes {
    stop: AtomicBool,
    nodes: Mutex<Vec<(u64, u32)>>,
    peak_bytes: AtomicU64,
    ended: Mutex<Vec<String>>,
}

pub struct MemoryWatch {
    shared: Arc<WatchedNodes>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryWatch {
    /// A node beyond `bytes_max` is killed before it takes the machine with it, and named.
    #[must_use]
    pub fn start(bytes_max: u64) -> MemoryWatch {
        let shared = Arc::new(WatchedNodes::default());
        let watched = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !watched.stop.load(Ordering::SeqCst) {
                watched.look(bytes_max);
                std::thread::sleep(EVERY);
            }
        });
        MemoryWatch { shared, thread: Some(thread) }
    }

    /// Watches these processes from now on. Called after every start.
    pub fn follow(&self, cluster: &Cluster) {
        let nodes =
            cluster.nodes.iter().filter(|node| node.runs()).map(|node| (node.id, node.process().pid()));
        *self.shared.nodes.lock().expect("mutex poisoned") = nodes.collect();
    }

    /// Watches nothing, e.g. while nodes are stopped.
    pub fn rest(&self) {
        self.shared.nodes.lock().expect("mutex poisoned").clear();
    }

    /// The peak of any node since the last call.
    pub fn peak_bytes(&self) -> u64 {
        self.shared.peak_bytes.swap(0, Ordering::SeqCst)
    }

    pub fn ended(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.ended.lock().expect("mutex poisoned"))
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // It does nothing that can fail.
            let _ = thread.join();
        }
    }
}

impl WatchedNodes {
    fn look(&self, bytes_max: u64) {
        let mut nodes = self.nodes.lock().expect("mutex poisoned");
        nodes.retain(|(id, pid)| {
            let Some(bytes) = resident_bytes(*pid) else { return false };
            self.peak_bytes.fetch_max(bytes, Ordering::SeqCst);
            if bytes <= bytes_max || !is_our_child(*pid) {
                return true;
            }
            // SAFETY: kill takes two integers; the process is a child of this one and was alive a moment ago.
            unsafe { libc::kill(*pid as i32, libc::SIGKILL) };
            let text = format!("node {id} had {} MB of memory and was ended by the test", bytes >> 20);
            self.ended.lock().expect("mutex poisoned").push(text);
            false
        });
    }
}

fn resident_bytes(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    text.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * PAGE_BYTES)
}

fn is_our_child(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    behind_name.split(' ').nth(2).and_then(|parent| parent.parse().ok()) == Some(std::process::id())
}
