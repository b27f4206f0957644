//! What a run came to, as a table.

use std::collections::BTreeMap;
use std::fmt;

/// Answers, latencies and errors of one minute.
#[derive(Clone, Debug, Default)]
pub struct Minute {
    pub served: u64,
    /// By the first word of the error; `connection` where there was no answer.
    pub errors: BTreeMap<String, u64>,
    /// Number of answers by their latency: bucket `n` holds those below 1.25^n microseconds.
    latencies: BTreeMap<u32, u64>,
    /// Resident memory of each node in MB, as last seen.
    pub memory_mb: BTreeMap<u64, u64>,
}

const BUCKET_BASE: f64 = 1.25;

impl Minute {
    pub fn took(&mut self, us: u64) {
        self.served += 1;
        let bucket = (us.max(1) as f64).log(BUCKET_BASE).ceil() as u32;
        *self.latencies.entry(bucket).or_default() += 1;
    }

    pub fn failed(&mut self, code: &str) {
        *self.errors.entry(code.to_owned()).or_default() += 1;
    }

    fn unserved(&self) -> u64 {
        self.errors.values().sum()
    }

    fn percentile_ms(&self, permille: u64) -> f64 {
        let wanted = self.latencies.values().sum::<u64>() * permille / 1_000;
        let mut seen = 0;
        for (bucket, count) in &self.latencies {
            seen += count;
            if seen > wanted {
                return BUCKET_BASE.powi(*bucket as i32) / 1_000.0;
            }
        }
        0.0
    }

    fn add(&mut self, other: &Minute) {
        self.served += other.served;
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
        for (bucket, count) in &other.latencies {
            *self.latencies.entry(*bucket).or_default() += count;
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub minutes: Vec<Minute>,
    /// What was done to the cluster, and when.
    pub notes: Vec<String>,
    /// Answers that no correct service gives. Empty: all is well.
    pub wrong: Vec<String>,
    pub sessions_lost: u64,
    pub looks: u64,
}

impl Report {
    pub fn minute(&mut self, number: usize) -> &mut Minute {
        if self.minutes.len() <= number {
            self.minutes.resize_with(number + 1, Minute::default);
        }
        &mut self.minutes[number]
    }

    #[must_use]
    pub fn total(&self) -> Minute {
        let mut total = Minute::default();
        self.minutes.iter().for_each(|minute| total.add(minute));
        total
    }

    /// Requests that were served, of all.
    #[must_use]
    pub fn availability(&self) -> f64 {
        share(&self.total())
    }
}

fn share(minute: &Minute) -> f64 {
    minute.served as f64 / (minute.served + minute.unserved()).max(1) as f64
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))?;
        writeln!(f, "| minute | served | available | p50 ms | p99 ms | errors | MB by node |")?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- |")?;
        let line = |f: &mut fmt::Formatter<'_>, name: &str, minute: &Minute| {
            let (p50, p99) = (minute.percentile_ms(500), minute.percentile_ms(990));
            let (available, errors, memory) = (100.0 * share(minute), &minute.errors, &minute.memory_mb);
            writeln!(
                f,
                "| {name} | {} | {available:.4} % | {p50:.2} | {p99:.2} | {errors:?} | {memory:?} |",
                minute.served
            )
        };
        for (number, minute) in self.minutes.iter().enumerate() {
            line(f, &number.to_string(), minute)?;
        }
        line(f, "all", &self.total())?;
        writeln!(f, "{} looks at held locks, {} sessions lost with a node", self.looks, self.sessions_lost)?;
        match self.wrong.is_empty() {
            true => writeln!(f, "every answer was right"),
            false => {
                writeln!(f, "{} WRONG ANSWERS", self.wrong.len())?;
                self.wrong.iter().take(20).try_for_each(|text| writeln!(f, "  {text}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn availability_and_latency_are_those_of_all_minutes() {
        let mut report = Report::default();
        (0..98).for_each(|_| report.minute(0).took(1_000));
        report.minute(1).took(50_000);
        report.minute(1).failed("UNAVAILABLE");
        assert!((report.availability() - 0.99).abs() < 1e-9);
        let total = report.total();
        assert!((0.8..1.3).contains(&total.percentile_ms(500)), "{}", total.percentile_ms(500));
        assert!(total.percentile_ms(999) >= 40.0);
        let text = report.to_string();
        assert!(text.contains("UNAVAILABLE") && text.contains("every answer was right"), "{text}");
    }
}
