//! Logging in, and what guessing costs: the answer to a failed login is delayed, longer each time, by connection, and by address and
//! user.
//!
//! A user with many recent failures from one address has every login from there delayed, right or wrong, so that a guesser cannot
//! tell a wrong password by the missing answer and hang up. The same holds for all users of an address with many failures, whatever
//! the names, and for a user with many failures, from wherever they came: but for users at addresses from which they have logged in
//! lately, so that whoever guesses does not hold up who knows.
//!
//! The number of logins that are being delayed is limited in each of the three ways, and with it the number of guesses a second.

use crate::server::client::registry::network;
use std::collections::hash_map::RandomState;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
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
/// From so many recent failures on every login is delayed: of one user at an address, of all users there, of a user anywhere.
const SUSPECT_FAILURES: u32 = 10;
const SUSPECT_FAILURES_OF_USER: u32 = 100;
/// Recent failures are halved after this time.
const HALVED_AFTER_MS: u64 = 30_000;
/// Logins of one user at a suspect address that are being delayed at the same time; of one who has logged in from there lately.
const DELAYED_MAX: u32 = 64;
const DELAYED_KNOWN_MAX: u32 = 128;
/// The same for all users of an address, and for a user at all addresses. The last of these are for a user and address of whom none
/// waits yet, so that one guesser does not take them all, and for users who have logged in from there lately.
const DELAYED_TOTAL_MAX: u32 = 128;
const DELAYED_TOTAL_FIRST_MAX: u32 = 256;
const DELAYED_TOTAL_KNOWN_MAX: u32 = 512;
/// A login counts as recent for so long.
const KNOWN_FOR_MS: u64 = 24 * 60 * 60 * 1_000;
/// Addresses, users, and users at addresses that are remembered: about 100 bytes each.
const ADDRESSES_MAX: usize = 4_096;
const USERS_MAX: usize = 4_096;
const PAIRS_MAX: usize = 8_192;

pub const TOO_MANY: &str =
    "ERR too many failed logins from this address or of this user; retry in a few seconds";

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

    fn is_known(&self) -> bool {
        self.succeeded_ms.is_some()
    }

    /// What is lost if it is forgotten, least first.
    fn weight(&self) -> (bool, u32, u64) {
        let latest_ms = self.updated_ms.max(self.succeeded_ms.unwrap_or(0));
        (self.is_known(), self.failures.max(self.delayed), latest_ms)
    }
}

/// Of a user the hash of the name.
type UserHash = u64;
type Pair = (IpAddr, UserHash);

#[derive(Debug, Default)]
struct Seen {
    by_address: BTreeMap<IpAddr, Failures>,
    by_user: BTreeMap<UserHash, Failures>,
    by_pair: BTreeMap<Pair, Failures>,
}

/// What is known of a user at an address.
#[derive(Clone, Copy, Debug)]
struct Standing {
    pair: Failures,
    address: Failures,
    user: Failures,
}

impl Standing {
    /// Whether logins are delayed for guesses at this user from this address; for others there, or from elsewhere.
    fn is_pair_suspect(&self) -> bool {
        self.pair.failures >= SUSPECT_FAILURES
    }

    fn is_address_suspect(&self) -> bool {
        self.address.failures >= SUSPECT_FAILURES
    }

    fn is_user_suspect(&self) -> bool {
        self.user.failures >= SUSPECT_FAILURES_OF_USER
    }

    fn has_room(&self) -> bool {
        let is_first = self.pair.delayed == 0;
        let (of_pair, of_total) = match (self.pair.is_known(), is_first) {
            (true, true) => return true,
            (true, false) => (DELAYED_KNOWN_MAX, DELAYED_TOTAL_KNOWN_MAX),
            (false, true) => (DELAYED_MAX, DELAYED_TOTAL_FIRST_MAX),
            (false, false) => (DELAYED_MAX, DELAYED_TOTAL_MAX),
        };
        (!self.is_pair_suspect() || self.pair.delayed < of_pair)
            && (!self.is_address_suspect() || self.address.delayed < of_total)
            && (!self.is_user_suspect() || self.user.delayed < of_total)
    }
}

impl Seen {
    fn standing(&mut self, pair: Pair, now_ms: u64) -> Standing {
        Standing {
            pair: look(&mut self.by_pair, pair, now_ms),
            address: look(&mut self.by_address, pair.0, now_ms),
            user: look(&mut self.by_user, pair.1, now_ms),
        }
    }

    fn change(&mut self, pair: Pair, now_ms: u64, change: impl Fn(&mut Failures)) {
        change(entry(&mut self.by_pair, pair, PAIRS_MAX, now_ms));
        change(entry(&mut self.by_address, pair.0, ADDRESSES_MAX, now_ms));
        change(entry(&mut self.by_user, pair.1, USERS_MAX, now_ms));
    }
}

#[derive(Debug, Default)]
pub struct LoginThrottle {
    seen: Mutex<Seen>,
    /// Names are kept as hashes of one size. Its key is secret: nobody can name two users that share one.
    hasher: RandomState,
}

/// A login whose answer has to wait. Whoever waits calls [`LoginThrottle::answered`] afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedLogin {
    pub wait: Duration,
    pair: Pair,
}

impl LoginThrottle {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pair_of(&self, address: IpAddr, user: &[u8]) -> Pair {
        (network(address), self.hasher.hash_one(user))
    }

    /// Whether a login may be tried at all now.
    #[must_use]
    pub fn admits(&self, address: IpAddr, user: &[u8], now_ms: u64) -> bool {
        self.seen().standing(self.pair_of(address, user), now_ms).has_room()
    }

    /// How long the answer to a login waits. `failed_here`: failures of the same connection, this one included; 0 where it is right.
    pub fn delay(&self, address: IpAddr, user: &[u8], failed_here: u32, now_ms: u64) -> Option<DelayedLogin> {
        let pair = self.pair_of(address, user);
        let mut seen = self.seen();
        let was_known = look(&mut seen.by_pair, pair, now_ms).is_known();
        match failed_here {
            0 => entry(&mut seen.by_pair, pair, PAIRS_MAX, now_ms).succeeded_ms = Some(now_ms),
            _ => seen.change(pair, now_ms, |state| state.failures = state.failures.saturating_add(1)),
        }
        let standing = seen.standing(pair, now_ms);
        let by_others = standing.is_address_suspect() || standing.is_user_suspect();
        let is_suspect = standing.is_pair_suspect() || (by_others && !was_known);
        if failed_here == 0 && !is_suspect {
            return None;
        }
        let steps = failed_here.max(standing.pair.failures).saturating_sub(1).min(5);
        let ms = if is_suspect { DELAY_MS_MAX } else { (FIRST_DELAY_MS << steps).min(DELAY_MS_MAX) };
        seen.change(pair, now_ms, |state| state.delayed = state.delayed.saturating_add(1));
        Some(DelayedLogin { wait: Duration::from_millis(ms), pair })
    }

    /// A delayed answer was given.
    pub fn answered(&self, login: &DelayedLogin) {
        let mut seen = self.seen();
        let Seen { by_address, by_user, by_pair } = &mut *seen;
        let (address, user) = login.pair;
        let states = [by_address.get_mut(&address), by_user.get_mut(&user), by_pair.get_mut(&login.pair)];
        states.into_iter().flatten().for_each(|state| state.delayed = state.delayed.saturating_sub(1));
    }
}

/// What is known of it now.
fn look<K: Ord>(states: &mut BTreeMap<K, Failures>, key: K, now_ms: u64) -> Failures {
    let Some(state) = states.get_mut(&key) else { return Failures::default() };
    state.forget_old(now_ms);
    *state
}

fn entry<K: Ord + Copy>(
    states: &mut BTreeMap<K, Failures>,
    key: K,
    max: usize,
    now_ms: u64,
) -> &mut Failures {
    if states.len() >= max && !states.contains_key(&key) {
        make_room(states, max, now_ms);
    }
    states.entry(key).or_insert(Failures { updated_ms: now_ms, ..Failures::default() })
}

/// Forgets an eighth: who never logged in and failed least, or longest ago.
fn make_room<K: Ord + Copy>(states: &mut BTreeMap<K, Failures>, max: usize, now_ms: u64) {
    states.values_mut().for_each(|state| state.forget_old(now_ms));
    states.retain(|_, state| state.failures > 0 || state.delayed > 0 || state.is_known());
    if states.len() < max {
        return;
    }
    let mut least: Vec<_> = states.iter().map(|(key, state)| (state.weight(), *key)).collect();
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
        assert_eq!(
            fail(&throttle, 0),
            DELAY_MS_MAX,
            "the reply to a right password is as late as that to a wrong one"
        );
        let elsewhere = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(throttle.delay(elsewhere, b"app", 0, 0), None);
        let later_ms = 10 * HALVED_AFTER_MS;
        assert_eq!(throttle.delay(HERE, b"app", 0, later_ms), None, "it is forgotten in time");
    }

    /// Guesses as often as it is let, and never gets an answer: how many wait then.
    fn guess(throttle: &LoginThrottle, tries: impl Iterator<Item = (IpAddr, Vec<u8>)>) -> Vec<DelayedLogin> {
        let admitted = tries.filter(|(address, user)| throttle.admits(*address, user, 0));
        admitted.filter_map(|(address, user)| throttle.delay(address, &user, 1, 0)).collect()
    }

    fn names(count: u32) -> impl Iterator<Item = Vec<u8>> {
        (0..count).map(|number| number.to_be_bytes().to_vec())
    }

    fn addresses(count: u32) -> impl Iterator<Item = IpAddr> {
        (1..=count).map(|number| IpAddr::V4(number.into()))
    }

    #[test]
    fn few_guesses_of_one_address_wait_at_once_whomever_they_are_about() {
        let throttle = LoginThrottle::default();
        let of_one = guess(&throttle, (0..1_000).map(|_| (HERE, b"app".to_vec())));
        assert_eq!(of_one.len(), DELAYED_MAX as usize);
        throttle.answered(&of_one[0]);
        assert!(throttle.admits(HERE, b"app", 0));
        let of_ten = guess(&throttle, (0..1_000).flat_map(|_| names(10).map(|name| (HERE, name)))).len();
        assert_eq!(of_one.len() - 1 + of_ten, DELAYED_TOTAL_MAX as usize);
        let of_many = guess(&throttle, names(5_000).map(|name| (HERE, name))).len();
        assert_eq!(of_one.len() - 1 + of_ten + of_many, DELAYED_TOTAL_FIRST_MAX as usize);
    }

    #[test]
    fn few_guesses_at_one_user_wait_at_once_from_wherever_they_come() {
        let throttle = LoginThrottle::default();
        assert_eq!(throttle.delay(HERE, b"app", 0, 0), None);
        let waiting = guess(&throttle, addresses(10_000).map(|address| (address, b"app".to_vec()))).len();
        assert_eq!(waiting, DELAYED_TOTAL_FIRST_MAX as usize);
        let again = (0..3).flat_map(|_| addresses(10_000).map(|address| (address, b"app".to_vec())));
        assert_eq!(guess(&throttle, again).len(), 0);
        assert!(throttle.admits(HERE, b"app", 0));
        assert_eq!(throttle.delay(HERE, b"app", 0, 0), None, "it has logged in from here before");
        let elsewhere = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
        assert!(throttle.admits(elsewhere, b"another", 0));
        assert_eq!(throttle.delay(elsewhere, b"another", 0, 0), None);
    }

    #[test]
    fn guesses_from_where_the_user_logs_in_are_bounded_too() {
        let throttle = LoginThrottle::default();
        for address in addresses(20) {
            assert_eq!(throttle.delay(address, b"app", 0, 0), None);
        }
        let tries = (0..500).flat_map(|_| addresses(20).map(|address| (address, b"app".to_vec())));
        assert_eq!(guess(&throttle, tries).len(), DELAYED_TOTAL_KNOWN_MAX as usize);
    }

    #[test]
    fn who_guesses_some_users_keeps_no_other_out() {
        let throttle = LoginThrottle::default();
        guess(&throttle, (0..1_000).flat_map(|_| names(10).map(|name| (HERE, name))));
        assert!(throttle.admits(HERE, b"app", 0));
        assert_eq!(fail(&throttle, 0), DELAY_MS_MAX, "it may be one more guess");
        assert!(throttle.admits(HERE, b"app", 0));
        assert_eq!(fail(&throttle, 0), 0, "it was none");
    }

    #[test]
    fn who_guesses_does_not_hold_up_who_has_logged_in() {
        let throttle = LoginThrottle::default();
        assert_eq!(throttle.delay(HERE, b"app", 0, 0), None);
        guess(&throttle, names(5_000).map(|name| (HERE, name)));
        assert!(!throttle.admits(HERE, b"another", 0));
        assert!(throttle.admits(HERE, b"app", 0));
        assert_eq!(throttle.delay(HERE, b"app", 0, 0), None, "other names were guessed");
        guess(&throttle, (0..20).map(|_| (HERE, b"app".to_vec())));
        assert!(throttle.admits(HERE, b"app", 0), "its own name was guessed: it waits");
        assert_eq!(fail(&throttle, 0), DELAY_MS_MAX);
    }

    #[test]
    fn memory_is_bounded_and_a_network_is_one() {
        let throttle = LoginThrottle::default();
        throttle.delay(HERE, b"app", 0, 0);
        for number in 0..3 * PAIRS_MAX as u32 {
            let (address, user) = (IpAddr::V4(number.into()), number.to_be_bytes());
            if let Some(login) = throttle.delay(address, &user, 1, u64::from(number)) {
                throttle.answered(&login);
            }
        }
        let app = throttle.pair_of(HERE, b"app");
        let seen = throttle.seen();
        assert!(seen.by_address.len() <= ADDRESSES_MAX && seen.by_pair.len() <= PAIRS_MAX);
        assert!(seen.by_user.len() <= USERS_MAX);
        assert!(std::mem::size_of::<(Pair, Failures)>() <= 100, "whatever the name");
        assert!(seen.by_pair.contains_key(&app), "who has logged in is forgotten last");
        drop(seen);
        let (one, other): (IpAddr, IpAddr) =
            ("2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse().unwrap());
        assert_eq!(throttle.pair_of(one, b"a"), throttle.pair_of(other, b"a"));
    }

    #[test]
    fn a_flood_of_names_and_addresses_does_not_make_guesses_forgotten() {
        let throttle = LoginThrottle::default();
        guess(&throttle, addresses(1_000).map(|address| (address, b"app".to_vec())));
        for (number, address) in addresses(20_000).enumerate() {
            throttle.delay(address, &number.to_be_bytes(), 1, 0);
        }
        let fresh = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
        assert!(!throttle.admits(fresh, b"app", 0));
    }
}
