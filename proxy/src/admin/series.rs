//! The last fifteen minutes of this node, for the overview: a point every ten seconds. Starts empty, and is lost with the program.

use crate::clock;
use crate::metrics::histogram::Snapshot;
use crate::metrics::ServedBy;
use crate::server::stats::CommandKind;
use crate::server::ServerState;
use redfence_core::types::LossCause;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Samples from one point to the next.
const SAMPLES_PER_POINT: usize = 5;
const POINTS_MAX: usize = 90;

/// What happened in ten seconds, and how things stood at their end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Point {
    /// Unix time in milliseconds.
    pub(super) t: u64,
    pub(super) grants_per_s: f64,
    /// Of acquires that this node answered; null where there were none.
    pub(super) p99_ms: Option<f64>,
    pub(super) held: u64,
    pub(super) waiters: u64,
    pub(super) losses: u64,
}

/// Counters as they were.
#[derive(Clone, Debug)]
struct Sample {
    at_us: u64,
    grants: u64,
    losses: u64,
    acquires: Snapshot,
}

#[derive(Debug, Default)]
struct Kept {
    /// Of the last ten seconds, oldest first.
    samples: VecDeque<Sample>,
    points: VecDeque<Point>,
    taken: usize,
}

#[derive(Debug, Default)]
pub(super) struct Series(Mutex<Kept>);

impl Series {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn points(&self) -> Vec<Point> {
        self.kept().points.iter().cloned().collect()
    }

    /// The last ten seconds, up to now.
    pub(super) fn current(&self, server: &ServerState) -> Point {
        let before = self.kept().samples.front().cloned();
        point(before.as_ref(), &sample(server), server)
    }

    fn take(&self, server: &ServerState) {
        let sample = sample(server);
        let mut kept = self.kept();
        if kept.taken > 0 && kept.taken.is_multiple_of(SAMPLES_PER_POINT) {
            let point = point(kept.samples.front(), &sample, server);
            kept.points.push_back(point);
            if kept.points.len() > POINTS_MAX {
                kept.points.pop_front();
            }
        }
        kept.taken += 1;
        kept.samples.push_back(sample);
        if kept.samples.len() > SAMPLES_PER_POINT {
            kept.samples.pop_front();
        }
    }
}

/// Samples for ever.
pub(super) async fn follow(server: Arc<ServerState>, series: Arc<Series>) {
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        series.take(&server);
    }
}

fn sample(server: &ServerState) -> Sample {
    let metrics = server.tier2.metrics();
    let mut acquires = Snapshot::default();
    for by in ServedBy::ALL {
        acquires.add(&server.stats.latency(by, CommandKind::Acquire));
        acquires.add(&server.stats.latency(by, CommandKind::MAcquire));
    }
    Sample {
        at_us: server.now_us(),
        grants: server.tier2.status().stats.grants,
        losses: LossCause::ALL.into_iter().map(|cause| metrics.losses(cause).get()).sum(),
        acquires,
    }
}

fn point(before: Option<&Sample>, after: &Sample, server: &ServerState) -> Point {
    let stats = server.tier2.status().stats;
    let (grants_per_s, p99_ms, losses) = before.map_or((0.0, None, 0), |before| {
        // Right after a start there is less than a second: a rate made of that says nothing.
        let seconds = (after.at_us.saturating_sub(before.at_us) as f64 / 1e6).max(1.0);
        let mut acquires = after.acquires.clone();
        acquires.subtract(&before.acquires);
        let p99_ms = (acquires.count() > 0).then(|| acquires.percentile_us(99) as f64 / 1e3);
        let grants = after.grants.saturating_sub(before.grants) as f64 / seconds;
        ((grants * 10.0).round() / 10.0, p99_ms, after.losses.saturating_sub(before.losses))
    });
    Point {
        t: clock::wall_us() / 1_000,
        grants_per_s,
        p99_ms,
        held: stats.exclusive_holds + stats.shared_holds + stats.permit_holds,
        waiters: stats.waiters,
        losses,
    }
}
