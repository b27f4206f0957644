//! Logging in, and what guessing costs: the answer to a failed login is delayed, longer each time, by connection, and by address and
//! user.
//!
//! A user with many recent failures from one address has every login from there delayed, right or wrong, so that a guesser cannot
//! tell a wrong password by the missing answer and hang up. The same holds for all users of an address with many failures,
//! whatever the names, but for those who have logged in from there lately: whoever guesses does not hold up who knows. The
//! number of logins that are being delayed is limited, by address and user and by address.

use crate::server::client::registry::network;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
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
/// From so many recent failures on every login is delayed: of one user at an address, and of all users there.
const SUSPECT_FAILURES: u32 = 10;
/// Recent failures are halved after this time.
const HALVED_AFTER_MS: u64 = 30_000;
/// Logins that are being delayed at the same time: of one user at a suspect address, of one who has logged in from there lately, and
/// of all users there.
const DELAYED_MAX: u32 = 128;
const DELAYED_KNOWN_MAX: u32 = 1_024;
const DELAYED_OF_ADDRESS_MAX: u32 = 512;
/// A login counts as recent for so long.
const KNOWN_FOR_MS: u64 = 24 * 60 * 60 * 1_000;
/// Addresses and users that are remembered, each.
const ADDRESSES_MAX: usize = 4_096;
const PAIRS_MAX: usize = 8_192;
/// Bytes of a user's name that are looked at: as many as a user may have.
const NAME_BYTES_MAX: usize = 256;

pub const TOO_MANY: &str = "ERR too many failed logins from this address; retry in a few seconds";

#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    failures: u32,
    updated_ms: u64,
    delayed: u32,
    /// When the right password came last.
    succeeded_ms: Option<u64>,
}

impl Failures {
    fn forget_old(&mut self, now_ms: u64) {
        let halvings = now_ms.saturating_sub(self.updated_ms) / HALVED_AFTER_MS;
        if halvings > 0 {
            self.failures =
                self.failures.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0);
            self.updated_ms = now_ms;
        }
        self.succeeded_ms = self.succeeded_ms.filter(|at_ms| now_ms.saturating_sub(*at_ms) < KNOWN_FOR_MS);
    }

    fn is_suspect(&self) -> bool {
        self.failures >= SUSPECT_FAILURES
    }

    fn is_known(&self) -> bool {
        self.succeeded_ms.is_some()
    }

    /// What is lost if it is forgotten, least first.
    fn weight(&self) -> (bool, u32, u64) {
        (self.is_known(), self.failures, self.updated_ms.max(self.succeeded_ms.unwrap_or(0)))
    }
}

type Pair = (IpAddr, Box<[u8]>);

#[derive(Debug, Default)]
struct Seen {
    by_address: BTreeMap<IpAddr, Failures>,
    by_pair: BTreeMap<Pair, Failures>,
}

#[derive(Debug, Default)]
pub struct LoginThrottle {
    seen: Mutex<Seen>,
}

/// A login whose answer has to wait. Whoever waits calls [`LoginThrottle::answered`] afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedLogin {
    pub wait: Duration,
    pair: Pair,
}

fn pair_of(address: IpAddr, user: &[u8]) -> Pair {
    (network(address), user[..user.len().min(NAME_BYTES_MAX)].into())
}

impl LoginThrottle {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a login may be tried at all now.
    #[must_use]
    pub fn admits(&self, address: IpAddr, user: &[u8], now_ms: u64) -> bool {
        let mut seen = self.seen();
        let pair = pair_of(address, user);
        let of_address = look(&mut seen.by_address, &pair.0, now_ms);
        let of_pair = look(&mut seen.by_pair, &pair, now_ms);
        if of_pair.is_known() {
            return !of_pair.is_suspect() || of_pair.delayed < DELAYED_KNOWN_MAX;
        }
        let pair_has_room = !of_pair.is_suspect() || of_pair.delayed < DELAYED_MAX;
        pair_has_room && (!of_address.is_suspect() || of_address.delayed < DELAYED_OF_ADDRESS_MAX)
    }

    /// How long the answer to a login waits. `failed_here`: failures of the same connection, this one included; 0 where it is right.
    pub fn delay(&self, address: IpAddr, user: &[u8], failed_here: u32, now_ms: u64) -> Option<DelayedLogin> {
        let mut seen = self.seen();
        let pair = pair_of(address, user);
        let was_known = look(&mut seen.by_pair, &pair, now_ms).is_known();
        let of_pair = entry(&mut seen.by_pair, &pair, PAIRS_MAX, now_ms);
        match failed_here {
            0 => of_pair.succeeded_ms = Some(now_ms),
            _ => of_pair.failures = of_pair.failures.saturating_add(1),
        }
        let of_pair = *of_pair;
        let of_address = match failed_here {
            0 => look(&mut seen.by_address, &pair.0, now_ms),
            _ => {
                let of_address = entry(&mut seen.by_address, &pair.0, ADDRESSES_MAX, now_ms);
                of_address.failures = of_address.failures.saturating_add(1);
                *of_address
            }
        };
        let is_suspect = of_pair.is_suspect() || (of_address.is_suspect() && !was_known);
        if failed_here == 0 && !is_suspect {
            return None;
        }
        let steps = failed_here.max(of_pair.failures).saturating_sub(1).min(5);
        let ms = if is_suspect { DELAY_MS_MAX } else { (FIRST_DELAY_MS << steps).min(DELAY_MS_MAX) };
        entry(&mut seen.by_pair, &pair, PAIRS_MAX, now_ms).delayed += 1;
        entry(&mut seen.by_address, &pair.0, ADDRESSES_MAX, now_ms).delayed += 1;
        Some(DelayedLogin { wait: Duration::from_millis(ms), pair })
    }

    /// A delayed answer was given.
    pub fn answered(&self, login: &DelayedLogin) {
        let mut seen = self.seen();
        let Seen { by_address, by_pair } = &mut *seen;
        let states = by_address.get_mut(&login.pair.0).into_iter().chain(by_pair.get_mut(&login.pair));
        states.for_each(|state| state.delayed = state.delayed.saturating_sub(1));
    }
}

/// What is known of it now.
fn look<K: Ord>(states: &mut BTreeMap<K, Failures>, key: &K, now_ms: u64) -> Failures {
    let Some(state) = states.get_mut(key) else { return Failures::default() };
    state.forget_old(now_ms);
    *state
}

fn entry<'a, K: Ord + Clone>(
    states: &'a mut BTreeMap<K, Failures>,
    key: &K,
    max: usize,
    now_ms: u64,
) -> &'a mut Failures {
    if states.len() >= max && !states.contains_key(key) {
        make_room(states, max, now_ms);
    }
    states.entry(key.clone()).or_insert(Failures { updated_ms: now_ms, ..Failures::default() })
}

/// Forgets an eighth: who never logged in and failed least, or longest ago.
fn make_room<K: Ord + Clone>(states: &mut BTreeMap<K, Failures>, max: usize, now_ms: u64) {
    states.values_mut().for_each(|state| state.forget_old(now_ms));
    states.retain(|_, state| state.failures > 0 || state.delayed > 0 || state.is_known());
    if states.len() < max {
        return;
    }
    let mut least: Vec<_> = states.iter().map(|(key, state)| (state.weight(), key.clone())).collect();
    least.sort_by_key(|(weight, _)| *weight);
    for (_, key) in least.into_iter().take(max / 8) {
        states.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn ms(login: Option<DelayedLogin>) -> u64 {
        login.map_or(0, |login| login.wait.as_millis() as u64)
    }

    fn fail(throttle: &LoginThrottle, failed_here: u32) -> u64 {
        ms(throttle.delay(HERE, b"app", failed_here, 0))
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
        assert_eq!(throttle.delay(elsewhere, b"app", 0, 0), None);
        let later_ms = 10 * HALVED_AFTER_MS;
        assert_eq!(throttle.delay(HERE, b"app", 0, later_ms), None, "it is forgotten in time");
    }

    #[test]
    fn few_logins_of_a_suspect_address_wait_at_once() {
        let throttle = LoginThrottle::default();
        let try_one = |user: &[u8]| match throttle.admits(HERE, user, 0) {
            true => throttle.delay(HERE, user, 1, 0),
            false => None,
        };
        let of_one: Vec<DelayedLogin> = (0..1_000).filter_map(|_| try_one(b"app")).collect();
        assert_eq!(of_one.len(), DELAYED_MAX as usize);
        throttle.answered(&of_one[0]);
        assert!(throttle.admits(HERE, b"app", 0));
        let of_many = (0..5_000_u32).filter(|number| try_one(&number.to_be_bytes()).is_some()).count();
        assert_eq!(of_many, (DELAYED_OF_ADDRESS_MAX - DELAYED_MAX + 1) as usize);
    }

    #[test]
    fn who_guesses_does_not_hold_up_who_has_logged_in() {
        let throttle = LoginThrottle::default();
        assert_eq!(throttle.delay(HERE, b"app", 0, 0), None);
        for number in 0..5_000_u32 {
            let guessed = number.to_be_bytes();
            if throttle.admits(HERE, &guessed, 0) {
                throttle.delay(HERE, &guessed, 1, 0);
            }
        }
        assert!(!throttle.admits(HERE, b"another", 0));
        assert!(throttle.admits(HERE, b"app", 0));
        assert_eq!(throttle.delay(HERE, b"app", 0, 0), None, "other names were guessed");
        for _ in 0..500 {
            assert!(throttle.admits(HERE, b"app", 0));
            fail(&throttle, 1);
        }
        assert!(throttle.admits(HERE, b"app", 0), "its own name was guessed: it waits, and is not refused");
        assert_eq!(fail(&throttle, 0), DELAY_MS_MAX);
    }

    #[test]
    fn memory_is_bounded_and_a_network_is_one() {
        let throttle = LoginThrottle::default();
        throttle.delay(HERE, b"app", 0, 0);
        for number in 0..3 * PAIRS_MAX as u32 {
            let address = IpAddr::V4(number.into());
            if let Some(login) = throttle.delay(address, &number.to_be_bytes(), 1, u64::from(number)) {
                throttle.answered(&login);
            }
        }
        let seen = throttle.seen();
        assert!(seen.by_address.len() <= ADDRESSES_MAX && seen.by_pair.len() <= PAIRS_MAX);
        assert!(seen.by_pair.contains_key(&pair_of(HERE, b"app")), "who has logged in is forgotten last");
        drop(seen);
        let (one, other): (IpAddr, IpAddr) =
            ("2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse().unwrap());
        assert_eq!(pair_of(one, b"a"), pair_of(other, b"a"));
    }
}
