//! What a node measures: counters, gauges and histograms made of relaxed atomics, and their text for Prometheus.
//!
//! Own types instead of the crate `prometheus-client`: its histogram takes a lock for every observation and its registry has one
//! more indirection for every label, while here all series are known when the program is built. The text format is a page
//! ([`text`]).
//!
//! [`NodeMetrics`] is filled by the threads of the Raft node, `crate::server::stats` by those that serve clients. `crate::admin::metrics`
//! reads both. Nothing is decided by what is counted here.
//!
//! # Layout
//!
//! - [`histogram`]: [`Counter`], [`Gauge`], [`Histogram`]
//! - [`node`]: what the Raft node measures
//! - [`text`]: the text format of Prometheus

pub mod histogram;
pub mod node;
pub mod text;

pub use histogram::{Counter, Gauge, Histogram};
pub use node::{NodeMetrics, PeerMetrics, Queue, SnapshotStep};

/// Who answered a command. The router decides it; this only names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// The upstream Redis.
    Upstream,
    /// The Raft cluster.
    Cluster,
}

impl ServedBy {
    pub const ALL: [ServedBy; 2] = [ServedBy::Upstream, ServedBy::Cluster];

    /// As the label `tier` says it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ServedBy::Upstream => "efficiency",
            ServedBy::Cluster => "correctness",
        }
    }
}
