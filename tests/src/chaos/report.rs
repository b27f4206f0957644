//! The figures of a run: for people on the screen, for programs as `report.json`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{json, Value};

use super::epoch_checker::CheckSummary;
use super::faults::{FaultKind, InjectedFault};
use super::nemesis::Nemesis;
use super::recorder::{Bucket, BUCKET_MS};
use super::settings::Settings;
use super::timeline;

pub struct Report {
    settings: Settings,
    faults: Vec<InjectedFault>,
    missing: Vec<String>,
    seen: Vec<Bucket>,
    summary: CheckSummary,
    pub failures: Vec<String>,
    took: Duration,
}

/// What faults of one kind came to, in milliseconds.
#[derive(Default)]
struct KindSummary {
    count: u64,
    /// The longest time without any grant around each.
    outages_ms: Vec<u64>,
    /// From the healing until clients of all nodes had got a lock.
    served_ms: Vec<u64>,
}

impl Report {
    pub fn new(
        settings: &Settings,
        nemesis: &Nemesis,
        seen: Vec<Bucket>,
        summary: CheckSummary,
        mut failures: Vec<String>,
        took: Duration,
    ) -> Report {
        failures.extend(summary.violations.iter().cloned());
        Report {
            settings: settings.clone(),
            faults: nemesis.injected.clone(),
            missing: nemesis.environment.missing.clone(),
            seen,
            summary,
            failures,
            took,
        }
    }

    /// The longest run of tenths without a grant between the two times.
    fn outage_ms(&self, from_ns: u64, to_ns: u64) -> u64 {
        let bucket = |ns: u64| (ns / (BUCKET_MS * 1_000_000)) as usize;
        let span = bucket(from_ns)..=bucket(to_ns).min(self.seen.len().saturating_sub(1));
        let (mut longest, mut now) = (0, 0);
        for at in span {
            now = if self.seen.get(at).is_some_and(|bucket| bucket.grants == 0) { now + 1 } else { 0 };
            longest = longest.max(now);
        }
        longest * BUCKET_MS
    }

    fn by_kind(&self) -> BTreeMap<FaultKind, KindSummary> {
        let mut kinds: BTreeMap<FaultKind, KindSummary> = BTreeMap::new();
        for fault in &self.faults {
            let kind = kinds.entry(fault.kind).or_default();
            kind.count += 1;
            kind.outages_ms.push(self.outage_ms(fault.from_ns, fault.served_ns));
            kind.served_ms.push((fault.served_ns - fault.healed_ns) / 1_000_000);
        }
        for kind in kinds.values_mut() {
            kind.outages_ms.sort_unstable();
            kind.served_ms.sort_unstable();
        }
        kinds
    }

    fn longest_outage_ms(&self) -> u64 {
        let first = self.seen.iter().position(|bucket| bucket.grants > 0).unwrap_or(0) as u64;
        let last = self.seen.iter().rposition(|bucket| bucket.grants > 0).unwrap_or(0) as u64;
        self.outage_ms(first * BUCKET_MS * 1_000_000, last * BUCKET_MS * 1_000_000)
    }

    pub fn print(&self) {
        let summary = &self.summary;
        println!("\nfaults            count   no grant ms (median, most)   all nodes served after ms (median, most)");
        for (kind, of) in self.by_kind() {
            println!(
                "{:<17} {:5}   {:8} {:8}             {:8} {:8}",
                kind.name(),
                of.count,
                middle(&of.outages_ms),
                last(&of.outages_ms),
                middle(&of.served_ms),
                last(&of.served_ms)
            );
        }
        println!(
            "{} faults in {:.0} s; longest time without a grant {} ms",
            self.faults.len(),
            self.took.as_secs_f64(),
            self.longest_outage_ms()
        );
        println!(
            "{} operations checked ({:.0}/s) in {} epochs, {:.1} s of checking: {} grants ({} to plain clients), {} of unknown outcome, {} refused for certain, undecided 0",
            summary.operations,
            summary.operations as f64 / self.took.as_secs_f64(),
            summary.epochs,
            summary.took.as_secs_f64(),
            summary.grants,
            summary.plain_grants,
            summary.unknown,
            summary.failed
        );
        for failure in &self.failures {
            println!("FAILED: {failure}");
        }
        match self.failures.is_empty() {
            true => println!("nothing wrong"),
            false => println!("repeat: {}", self.settings.line()),
        }
    }

    fn json(&self) -> Value {
        let kinds: BTreeMap<&str, Value> = self
            .by_kind()
            .into_iter()
            .map(|(kind, of)| {
                let figures = json!({
                    "count": of.count,
                    "no_grant_ms_median": middle(&of.outages_ms), "no_grant_ms_max": last(&of.outages_ms),
                    "served_ms_median": middle(&of.served_ms), "served_ms_max": last(&of.served_ms),
                });
                (kind.name(), figures)
            })
            .collect();
        let summary = &self.summary;
        json!({
            "repeat": self.settings.line(), "seed": self.settings.seed, "nodes": self.settings.nodes,
            "clients": self.settings.clients, "seconds": self.took.as_secs_f64(),
            "operations": summary.operations, "grants": summary.grants, "plain_grants": summary.plain_grants,
            "unknown": summary.unknown, "failed": summary.failed, "undecided": 0, "epochs": summary.epochs,
            "faults": self.faults.len(), "by_kind": kinds, "no_grant_ms_max": self.longest_outage_ms(),
            "left_out": self.missing, "failures": self.failures,
        })
    }

    /// Writes `report.json` and `timeline.svg`.
    pub fn write(&self) -> std::io::Result<()> {
        let out = &self.settings.out;
        std::fs::create_dir_all(out)?;
        std::fs::write(out.join("report.json"), format!("{:#}\n", self.json()))?;
        std::fs::write(
            out.join("timeline.svg"),
            timeline::draw(&self.settings.line(), &self.seen, &self.faults),
        )?;
        println!("report.json and timeline.svg are in {}", out.display());
        Ok(())
    }
}

fn middle(sorted: &[u64]) -> u64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

fn last(sorted: &[u64]) -> u64 {
    sorted.last().copied().unwrap_or(0)
}
