//! What this node has counted since it started, for `INFO`.

use redfence_core::reply::Reply;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of the latency histogram: bucket `n` holds calls of less than 2^n microseconds.
const LATENCY_BUCKETS: usize = 32;

/// How a reply is to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOperation {
    Acquire,
    Release,
    Renew,
    Other,
}

#[derive(Debug, Default)]
pub struct Stats {
    pub connections: AtomicU64,
    pub connections_refused: AtomicU64,
    pub tls_handshakes_failed: AtomicU64,
    pub idle_disconnected: AtomicU64,
    pub commands: AtomicU64,
    pub grants: AtomicU64,
    pub releases: AtomicU64,
    pub renewals: AtomicU64,
    pub refusals: AtomicU64,
    pub expiries: AtomicU64,
    pub errors: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Stats {
    /// Counts an answer to a `LOCK.*` command.
    pub fn count(&self, reply: &Reply, took_us: u64) {
        match reply {
            Reply::Granted { .. } => bump(&self.grants),
            Reply::Released => bump(&self.releases),
            Reply::Renewed { .. } => bump(&self.renewals),
            Reply::Refused(_) | Reply::Nil => bump(&self.refusals),
            Reply::Error(_) => bump(&self.errors),
            Reply::GrantedMany { .. }
            | Reply::NilArray
            | Reply::Int(_)
            | Reply::Double(_)
            | Reply::Bool(_)
            | Reply::Bulk(_)
            | Reply::Text(_)
            | Reply::Status(_)
            | Reply::Array(_)
            | Reply::Map(_)
            | Reply::Set(_)
            | Reply::Verbatim(_)
            | Reply::Info(_) => {}
        }
        self.count_latency(took_us);
    }

    /// Counts a reply that passed through as bytes.
    pub fn count_bytes(&self, operation: LockOperation, reply: &[u8], took_us: u64) {
        let nil = reply.starts_with(b"$-1") || reply.starts_with(b"_");
        let refused = nil || reply.starts_with(b"*2\r\n:0");
        if reply.starts_with(b"-") {
            bump(&self.errors);
        } else if refused {
            bump(&self.refusals);
        } else {
            match operation {
                LockOperation::Acquire => bump(&self.grants),
                LockOperation::Release => bump(&self.releases),
                LockOperation::Renew => bump(&self.renewals),
                LockOperation::Other => {}
            }
        }
        self.count_latency(took_us);
    }

    fn count_latency(&self, took_us: u64) {
        let bucket = (64 - took_us.leading_zeros()) as usize;
        bump(&self.latency[bucket.min(LATENCY_BUCKETS - 1)]);
    }

    /// The upper bound of the bucket that holds the given share of all calls, in microseconds; 0 where there were none.
    #[must_use]
    pub fn latency_us(&self, percent: u64) -> u64 {
        let counts = self.latency.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
        let total: u64 = counts.iter().sum();
        let mut left = (total * percent).div_ceil(100);
        for (bucket, count) in counts.iter().enumerate() {
            if left <= *count && *count > 0 {
                return 1 << bucket;
            }
            left = left.saturating_sub(*count);
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::types::Fence;

    #[test]
    fn counts_by_reply() {
        let stats = Stats::default();
        stats.count(&Reply::Granted { fence: Fence(1), ttl_ms: 1 }, 100);
        stats.count(&Reply::Nil, 100);
        stats.count_bytes(LockOperation::Release, b"*2\r\n:1\r\n$2\r\nok\r\n", 100);
        stats.count_bytes(LockOperation::Acquire, b"_\r\n", 5000);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((read(&stats.grants), read(&stats.releases), read(&stats.refusals)), (1, 1, 2));
        assert_eq!(stats.latency_us(50), 128);
        assert_eq!(stats.latency_us(99), 8192);
        assert_eq!(Stats::default().latency_us(50), 0);
    }
}
