//! Logging in, and what guessing costs: the answer to a failed login is delayed, longer each time, by connection and by address.
//!
//! An address with many recent failures has every login delayed, right or wrong, so that a guesser cannot tell a wrong password by
//! the missing answer and hang up. The number of logins that are being delayed for one address is limited too.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A connection that has not logged in is closed after this.
pub const LOGIN_WITHIN: Duration = Duration::from_secs(10);
/// Commands and bytes that a client may send without being logged in, failed logins included. Then its connection is closed.
pub const COMMANDS_BEFORE_MAX: u32 = 64;
pub const BYTES_BEFORE_MAX: usize = 64 * 1024;
pub const TOO_MUCH_BEFORE: &str =
    "NOAUTH Authentication required: at most 64 commands and 64 KiB may come before AUTH; connect again";

const FIRST_DELAY_MS: u64 = 100;
const DELAY_MS_MAX: u64 = 2_000;
/// From so many recent failures on every login of the address is delayed.
const SUSPECT_FAILURES: u32 = 10;
/// Recent failures are halved after this time.
const HALVED_AFTER_MS: u64 = 30_000;
/// Logins of one suspect address that are being delayed at the same time.
const DELAYED_MAX: u32 = 64;
const ADDRESSES_MAX: usize = 4_096;

pub const TOO_MANY: &str = "ERR too many failed logins from this address; retry in a few seconds";

#[derive(Clone, Copy, Debug, Default)]
struct AddressState {
    failures: u32,
    updated_ms: u64,
    delayed: u32,
}

impl AddressState {
    fn forget_old(&mut self, now_ms: u64) {
        let halvings = now_ms.saturating_sub(self.updated_ms) / HALVED_AFTER_MS;
        if halvings > 0 {
            self.failures =
                self.failures.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0);
            self.updated_ms = now_ms;
        }
    }
}

#[derive(Debug, Default)]
pub struct LoginThrottle {
    by_address: Mutex<BTreeMap<IpAddr, AddressState>>,
}

impl LoginThrottle {
    /// Whether a login may be tried at all now.
    #[must_use]
    pub fn admits(&self, address: IpAddr, now_ms: u64) -> bool {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = by_address.get_mut(&network(address)) else { return true };
        state.forget_old(now_ms);
        state.failures < SUSPECT_FAILURES || state.delayed < DELAYED_MAX
    }

    /// How long the answer to a login waits. `failed_here`: failures of the same connection, this one included; 0 where it is right.
    /// Whoever waits calls [`LoginThrottle::answered`] afterwards.
    pub fn delay(&self, address: IpAddr, failed_here: u32, now_ms: u64) -> Option<Duration> {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let address = network(address);
        if failed_here == 0 && !by_address.contains_key(&address) {
            return None;
        }
        if by_address.len() >= ADDRESSES_MAX && !by_address.contains_key(&address) {
            make_room(&mut by_address, now_ms);
        }
        let state = by_address
            .entry(address)
            .or_insert(AddressState { updated_ms: now_ms, ..AddressState::default() });
        state.forget_old(now_ms);
        if failed_here > 0 {
            state.failures = state.failures.saturating_add(1);
        }
        let is_suspect = state.failures >= SUSPECT_FAILURES;
        if failed_here == 0 && !is_suspect {
            return None;
        }
        let steps = failed_here.max(state.failures).saturating_sub(1).min(5);
        let ms = if is_suspect { DELAY_MS_MAX } else { (FIRST_DELAY_MS << steps).min(DELAY_MS_MAX) };
        state.delayed += 1;
        Some(Duration::from_millis(ms))
    }

    /// A delayed answer was given.
    pub fn answered(&self, address: IpAddr) {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = by_address.get_mut(&network(address)) {
            state.delayed = state.delayed.saturating_sub(1);
        }
    }
}

/// Whoever has an IPv6 network has all addresses in it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let bits = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(bits.into())
        }
    }
}

/// Forgets who failed least, or longest ago.
fn make_room(by_address: &mut BTreeMap<IpAddr, AddressState>, now_ms: u64) {
    by_address.values_mut().for_each(|state| state.forget_old(now_ms));
    by_address.retain(|_, state| state.failures > 0 || state.delayed > 0);
    while by_address.len() >= ADDRESSES_MAX {
        let least = by_address.iter().min_by_key(|(_, state)| (state.failures, state.updated_ms));
        let Some((&address, _)) = least else { return };
        by_address.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn fail(throttle: &LoginThrottle, failed_here: u32) -> u64 {
        throttle.delay(HERE, failed_here, 0).map_or(0, |delay| delay.as_millis() as u64)
    }

    #[test]
    fn each_failure_waits_longer_and_the_wait_is_bounded() {
        let throttle = LoginThrottle::default();
        let delays: Vec<u64> = (1..=12).map(|failed| fail(&throttle, failed)).collect();
        assert_eq!(delays[..5], [100, 200, 400, 800, 1600]);
        assert!(delays[5..].iter().all(|delay| *delay == DELAY_MS_MAX), "{delays:?}");
    }

    #[test]
    fn a_new_connection_does_not_begin_anew_and_right_ones_wait_too() {
        let throttle = LoginThrottle::default();
        assert_eq!(fail(&throttle, 0), 0);
        for _ in 0..20 {
            fail(&throttle, 1);
        }
        assert_eq!(fail(&throttle, 1), DELAY_MS_MAX);
        assert_eq!(fail(&throttle, 0), DELAY_MS_MAX, "a right password is told as late as a wrong one");
        let elsewhere = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(throttle.delay(elsewhere, 0, 0), None);
        assert_eq!(throttle.delay(HERE, 0, 10 * HALVED_AFTER_MS), None, "it is forgotten in time");
    }

    #[test]
    fn few_logins_of_a_suspect_address_wait_at_once() {
        let throttle = LoginThrottle::default();
        let tried =
            (0..1_000).filter(|_| throttle.admits(HERE, 0) && throttle.delay(HERE, 1, 0).is_some()).count();
        assert_eq!(tried, DELAYED_MAX as usize);
        throttle.answered(HERE);
        assert!(throttle.admits(HERE, 0));
    }

    #[test]
    fn addresses_are_bounded_and_a_network_is_one() {
        let throttle = LoginThrottle::default();
        for number in 0..2 * ADDRESSES_MAX as u32 {
            let address = IpAddr::V4(number.into());
            throttle.delay(address, 1, u64::from(number));
            throttle.answered(address);
        }
        assert!(throttle.by_address.lock().unwrap().len() <= ADDRESSES_MAX);
        let (one, other): (IpAddr, IpAddr) =
            ("2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse().unwrap());
        assert_eq!(network(one), network(other));
    }
}
