//! Refusals that repeat: equal ones (event, user, address, command, object) become one line a second with their number.
//!
//! The first of them is due at once, those that follow at the end of their second. Their number is bounded: refusals that differ in
//! their object alone share a line where there are too many, and where even those are too many all others share one.

use super::audit::{cut, AuditEvent};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Time between two lines about the same.
const APART_MS: u64 = 1_000;
/// Lines that may wait at a time. Of these the last are kept for refusals that share a line.
const GROUPS_MAX: usize = 512;
const OWN_GROUPS_MAX: usize = 256;
/// What stands for the objects of refusals that share a line.
const OTHERS: &[u8] = b"(others)";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    event: &'static str,
    user: Box<[u8]>,
    address: IpAddr,
    command: Box<str>,
    object: Box<[u8]>,
}

/// So many refusals alike.
#[derive(Clone, Debug)]
pub struct Repeated {
    key: GroupKey,
    /// Of the first of them.
    client: SocketAddr,
    result: Box<str>,
    pub first_ms: u64,
    pub count: u64,
}

impl Repeated {
    #[must_use]
    pub fn event(&self) -> AuditEvent<'_> {
        AuditEvent {
            event: self.key.event,
            user: &self.key.user,
            client: self.client,
            command: &self.key.command,
            arguments: &[],
            result: &self.result,
            object: &self.key.object,
        }
    }
}

#[derive(Debug)]
struct Group {
    repeated: Repeated,
    due_ms: u64,
}

#[derive(Debug, Default)]
pub struct Repeats {
    groups: BTreeMap<GroupKey, Group>,
}

impl Repeats {
    /// Counts one. True: it is due at once.
    pub fn add(&mut self, event: &AuditEvent<'_>, now_ms: u64) -> bool {
        let key = self.key_of(event);
        if let Some(Group { repeated, .. }) = self.groups.get_mut(&key) {
            if repeated.count == 0 {
                (repeated.client, repeated.first_ms) = (event.client, now_ms);
            }
            repeated.count += 1;
            return false;
        }
        let (client, result) = (event.client, event.result.into());
        let repeated = Repeated { key: key.clone(), client, result, first_ms: now_ms, count: 1 };
        self.groups.insert(key, Group { repeated, due_ms: now_ms });
        true
    }

    fn key_of(&self, event: &AuditEvent<'_>) -> GroupKey {
        let key = GroupKey {
            event: event.event,
            user: cut(event.user).into(),
            address: event.client.ip(),
            command: event.command.into(),
            object: cut(event.object).into(),
        };
        if self.groups.len() < OWN_GROUPS_MAX || self.groups.contains_key(&key) {
            return key;
        }
        let shared = GroupKey { object: OTHERS.into(), ..key };
        if self.groups.len() < GROUPS_MAX || self.groups.contains_key(&shared) {
            return shared;
        }
        let address = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        GroupKey { user: OTHERS.into(), address, command: "(others)".into(), ..shared }
    }

    /// When there may be something to take.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        self.groups.values().map(|group| group.due_ms).min()
    }

    /// What is due. A line about more of the same comes a second later at the earliest.
    pub fn take_due(&mut self, now_ms: u64) -> Vec<Repeated> {
        let mut due = Vec::new();
        self.groups.retain(|_, group| {
            // A clock that was set back holds nothing up.
            if group.due_ms > now_ms && group.due_ms <= now_ms + APART_MS {
                return true;
            }
            if group.repeated.count == 0 {
                return false;
            }
            due.push(group.repeated.clone());
            group.repeated.count = 0;
            group.due_ms = now_ms + APART_MS;
            true
        });
        due
    }

    /// Everything, due or not.
    pub fn take_all(&mut self) -> Vec<Repeated> {
        let all = std::mem::take(&mut self.groups).into_values().map(|group| group.repeated);
        all.filter(|repeated| repeated.count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied<'a>(user: &'a [u8], object: &'a [u8]) -> AuditEvent<'a> {
        AuditEvent {
            event: "denied",
            user,
            client: "127.0.0.1:5".parse().unwrap(),
            command: "get",
            arguments: &[],
            result: "NOPERM",
            object,
        }
    }

    #[test]
    fn the_first_is_told_at_once_and_the_others_once_a_second() {
        let mut repeats = Repeats::default();
        assert!(repeats.add(&denied(b"a", b"k"), 0));
        assert!(!repeats.add(&denied(b"a", b"k"), 0));
        assert!(repeats.add(&denied(b"a", b"other"), 0));
        let counts = |repeated: Vec<Repeated>| repeated.iter().map(|one| one.count).collect::<Vec<_>>();
        assert_eq!(counts(repeats.take_due(0)), [2, 1]);
        assert!((0..50).all(|_| !repeats.add(&denied(b"a", b"k"), 10)));
        assert!(repeats.take_due(999).is_empty());
        assert_eq!(repeats.next_due_ms(), Some(1_000));
        assert_eq!(counts(repeats.take_due(1_000)), [50]);
        assert!(!repeats.add(&denied(b"a", b"k"), 1_001));
        assert_eq!(counts(repeats.take_all()), [1]);
        assert_eq!(repeats.next_due_ms(), None);
    }

    #[test]
    fn what_stays_away_is_forgotten() {
        let mut repeats = Repeats::default();
        repeats.add(&denied(b"a", b"k"), 0);
        repeats.take_due(0);
        assert!(repeats.take_due(1_000).is_empty());
        assert_eq!(repeats.next_due_ms(), None);
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut repeats = Repeats::default();
        for number in 0..5_000_u32 {
            repeats.add(&denied(b"a", &number.to_be_bytes()), 0);
            repeats.add(&denied(&number.to_be_bytes(), b"k"), 0);
        }
        assert!(repeats.groups.len() <= GROUPS_MAX + 1, "{}", repeats.groups.len());
        assert_eq!(repeats.take_all().iter().map(|one| one.count).sum::<u64>(), 10_000);
    }
}
