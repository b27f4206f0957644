//! The clock that deadlines are counted on: monotonic, and going on while the machine sleeps.

use std::time::Duration;

#[cfg(feature = "testing")]
use crate::testing::ManualClock;

/// Time since some moment in the past.
pub(crate) type Time = Duration;

#[derive(Clone, Debug, Default)]
pub(crate) enum Clock {
    #[default]
    System,
    #[cfg(feature = "testing")]
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn now(&self) -> Time {
        match self {
            Clock::System => system_now(),
            #[cfg(feature = "testing")]
            Clock::Manual(clock) => clock.now(),
        }
    }

    pub(crate) async fn sleep_until(&self, at: Time) {
        match self {
            // Tokio's own clock may stand still while the machine sleeps: wakes up to look at least every minute.
            Clock::System => {
                tokio::time::sleep(at.saturating_sub(system_now()).min(Duration::from_secs(60))).await;
            }
            #[cfg(feature = "testing")]
            Clock::Manual(clock) => clock.sleep_until(at).await,
        }
    }
}

/// A suspended virtual machine must find its leases ended when it wakes up: `CLOCK_MONOTONIC` would have stood still.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn system_now() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn system_now() -> Time {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
