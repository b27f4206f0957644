//! A span and two histograms by the OpenTelemetry API, with the feature `opentelemetry`. Names of resources are never labels.

use std::time::Duration;

/// Without the feature, and unless the application installs a provider, nothing happens.
#[derive(Debug)]
pub(crate) struct Telemetry {
    #[cfg(feature = "opentelemetry")]
    wait: opentelemetry::metrics::Histogram<f64>,
    #[cfg(feature = "opentelemetry")]
    hold: opentelemetry::metrics::Histogram<f64>,
}

/// One acquisition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acquired {
    pub(crate) waited: Duration,
    pub(crate) tier: &'static str,
    pub(crate) outcome: &'static str,
    pub(crate) fence: Option<i64>,
}

#[cfg_attr(not(feature = "opentelemetry"), allow(clippy::unused_self))]
impl Telemetry {
    pub(crate) fn acquired(&self, acquired: Acquired) {
        let Acquired { waited, tier, outcome, fence } = acquired;
        tracing::debug!(target: "redfence", ?waited, tier, outcome, fence, "lock.acquire");
        #[cfg(feature = "opentelemetry")]
        self.record(acquired);
    }
}

#[cfg(feature = "opentelemetry")]
mod with_api {
    use super::{Acquired, Telemetry};
    use opentelemetry::trace::{Span, Tracer};
    use opentelemetry::{global, KeyValue};
    use std::time::{Duration, SystemTime};

    impl Default for Telemetry {
        fn default() -> Telemetry {
            let meter = global::meter("redfence");
            let histogram = |name: &'static str, what: &'static str| {
                meter.f64_histogram(name).with_unit("s").with_description(what).build()
            };
            Telemetry {
                wait: histogram("redfence.lock.wait", "How long an acquisition took"),
                hold: histogram("redfence.lock.hold", "How long a lock was held"),
            }
        }
    }

    impl Telemetry {
        pub(super) fn record(&self, acquired: Acquired) {
            let labels = [KeyValue::new("tier", acquired.tier), KeyValue::new("outcome", acquired.outcome)];
            self.wait.record(acquired.waited.as_secs_f64(), &labels);
            let tracer = global::tracer("redfence");
            let began = SystemTime::now().checked_sub(acquired.waited).unwrap_or_else(SystemTime::now);
            let mut span = tracer.span_builder("lock.acquire").with_start_time(began).start(&tracer);
            span.set_attribute(KeyValue::new("redfence.wait_ms", acquired.waited.as_secs_f64() * 1000.0));
            span.set_attributes(
                labels.map(|label| KeyValue::new(format!("redfence.{}", label.key), label.value)),
            );
            if let Some(fence) = acquired.fence {
                span.set_attribute(KeyValue::new("redfence.fence", fence));
            }
            span.end();
        }

        pub(crate) fn held(&self, held: Duration, outcome: &'static str) {
            self.hold.record(held.as_secs_f64(), &[KeyValue::new("outcome", outcome)]);
        }
    }
}

#[cfg(not(feature = "opentelemetry"))]
#[allow(clippy::unused_self, clippy::derivable_impls)] // the same face as with the feature
mod without_api {
    use super::Telemetry;
    use std::time::Duration;

    impl Default for Telemetry {
        fn default() -> Telemetry {
            Telemetry {}
        }
    }

    impl Telemetry {
        pub(crate) fn held(&self, held: Duration, outcome: &'static str) {
            tracing::debug!(target: "redfence", ?held, outcome, "a lock ended");
        }
    }
}
