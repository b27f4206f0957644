//! The checker thread: checks each finished epoch and drops it. An invalid history is written to a file.

use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::recorder::FinishedEpoch;
use crate::checker::{check, check_holds, jsonl, Answer, Call, Operation, Outcome, Rules};

/// Totals over all epochs.
#[derive(Debug, Default)]
pub struct CheckSummary {
    pub epochs: u64,
    pub operations: u64,
    pub unknown: u64,
    pub failed: u64,
    pub grants: u64,
    /// Grants to clients that are told no fence.
    pub plain_grants: u64,
    pub violations: Vec<String>,
    pub took: Duration,
}

/// The kept history has the rest.
const VIOLATIONS_SHOWN_MAX: usize = 20;

/// Server and clients round to milliseconds, and all processes share one machine's clock.
fn rules(multi: bool) -> Rules {
    Rules { slack_ns: 5_000_000, waits_for_several: multi, ..Rules::default() }
}

impl CheckSummary {
    pub fn of(finished: Receiver<FinishedEpoch>, out: &Path) -> CheckSummary {
        let mut summary = CheckSummary::default();
        for epoch in finished {
            summary.take(&epoch, out);
        }
        summary
    }

    fn take(&mut self, epoch: &FinishedEpoch, out: &Path) {
        let start = Instant::now();
        let rules = rules(epoch.multi);
        let mut violations = check_holds(&epoch.history, &rules);
        violations.extend(check(&epoch.history, &rules));
        self.took += start.elapsed();
        self.epochs += 1;
        for op in &epoch.history.operations {
            self.count(op);
        }
        if violations.is_empty() {
            return;
        }
        let path = out.join(format!("epoch-{}.jsonl", epoch.number));
        let kept = std::fs::create_dir_all(out)
            .and_then(|()| std::fs::File::create(&path))
            .and_then(|file| jsonl::write(&epoch.history, &mut std::io::BufWriter::new(file)));
        for violation in violations.iter().take(VIOLATIONS_SHOWN_MAX) {
            self.violations.push(format!("epoch {}: {violation}", epoch.number));
        }
        match kept {
            Ok(()) => {
                println!("epoch {} is not a valid history; it is kept in {}", epoch.number, path.display())
            }
            Err(error) => {
                println!("epoch {} is not a valid history; it could not be written: {error}", epoch.number)
            }
        }
    }

    fn count(&mut self, op: &Operation) {
        self.operations += u64::from(!matches!(op.call, Call::Orphan { .. }));
        match op.outcome {
            Outcome::Answered(Answer::Granted { .. }) => self.grants += 1,
            Outcome::Answered(Answer::Taken) => {
                self.grants += 1;
                self.plain_grants += 1;
            }
            Outcome::Answered(_) => {}
            Outcome::Failed => self.failed += 1,
            Outcome::Unknown => self.unknown += 1,
        }
    }
}
