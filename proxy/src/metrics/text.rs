//! The text format that Prometheus reads (version 0.0.4): `HELP` and `TYPE` once for each family, then its samples. Times are in seconds.

use super::histogram::Snapshot;
use std::fmt::{Display, Write};

/// A page of metrics under construction.
#[derive(Debug, Default)]
pub struct Page(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// Names and values of labels. The program makes the values: none needs escaping.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Page {
        Page(String::with_capacity(bytes))
    }

    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }

    /// Opens a family. Its samples follow.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        debug_assert!(!help.contains(['\n', '\\']), "{name}: the help needs no escaping");
        debug_assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
        Family { text: &mut self.0, name }
    }

    /// A counter without labels.
    pub fn counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(name, Kind::Counter, help).sample(&[], value);
    }

    /// A gauge without labels.
    pub fn gauge(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, Kind::Gauge, help).sample(&[], value);
    }

    /// A histogram without labels.
    pub fn histogram(&mut self, name: &'static str, help: &str, snapshot: &Snapshot) {
        self.family(name, Kind::Histogram, help).histogram(&[], snapshot);
    }
}

/// Writes the samples of one family.
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Family<'_> {
    pub fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.line("", labels, None, value);
    }

    pub fn histogram(&mut self, labels: Labels<'_>, snapshot: &Snapshot) {
        let mut below = 0;
        for (bound_us, count) in snapshot.bounds_us.iter().zip(&snapshot.counts) {
            below += count;
            self.line("_bucket", labels, Some(&Seconds(*bound_us)), below);
        }
        let count = snapshot.count();
        self.line("_bucket", labels, Some(&"+Inf"), count);
        self.line("_sum", labels, None, Seconds(snapshot.sum_us));
        self.line("_count", labels, None, count);
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, le: Option<&dyn Display>, value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        let mut before = '{';
        for (label, value) in labels {
            let _ = write!(self.text, "{before}{label}=\"{value}\"");
            before = ',';
        }
        if let Some(le) = le {
            let _ = write!(self.text, "{before}le=\"{le}\"");
            before = ',';
        }
        let end = if before == ',' { "}" } else { "" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

/// Microseconds, shown as seconds without trailing zeros.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, part) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if part == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{part:06}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::histogram::{Histogram, LATENCY_BOUNDS_US};

    #[test]
    fn seconds_have_no_trailing_zeros() {
        let shown: Vec<String> =
            [0, 50, 2_500, 1_000_000, 61_000_001].map(|us| Seconds(us).to_string()).into();
        assert_eq!(shown, ["0", "0.00005", "0.0025", "1", "61.000001"]);
    }

    #[test]
    fn a_family_has_help_type_and_samples() {
        let mut page = Page::default();
        page.counter("redfence_grants_total", "Locks granted.", 7);
        page.family("redfence_locks_held", Kind::Gauge, "Holds.").sample(&[("mode", "shared")], 2);
        assert_eq!(
            page.into_text(),
            "# HELP redfence_grants_total Locks granted.\n# TYPE redfence_grants_total counter\nredfence_grants_total 7\n\
             # HELP redfence_locks_held Holds.\n# TYPE redfence_locks_held gauge\nredfence_locks_held{mode=\"shared\"} 2\n"
        );
    }

    #[test]
    fn buckets_of_a_histogram_add_up() {
        let histogram = Histogram::new(LATENCY_BOUNDS_US);
        histogram.observe_us(60);
        histogram.observe_us(20_000_000);
        let mut page = Page::default();
        page.histogram("redfence_apply_seconds", "Time.", &histogram.snapshot());
        let text = page.into_text();
        for line in [
            "redfence_apply_seconds_bucket{le=\"0.00005\"} 0",
            "redfence_apply_seconds_bucket{le=\"0.0001\"} 1",
            "redfence_apply_seconds_bucket{le=\"10\"} 1",
            "redfence_apply_seconds_bucket{le=\"+Inf\"} 2",
            "redfence_apply_seconds_sum 20.00006",
            "redfence_apply_seconds_count 2",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
    }
}
