//! What has no line of its own: equal events (event, user, address, command, object) become one line a second with their number.
//!
//! Each second has room for the lines of [`LINES_PER_SECOND`] refusals and [`BYTES_PER_SECOND`] bytes. What comes beyond is counted,
//! and told a second later: a flood of refusals cannot fill the disk, and none is missing. The number of groups is bounded too:
//! events that differ in their object alone share a line where there are too many, and where even those are too many all others
//! share one.

use super::audit::{cut, AuditEvent};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Lines of their own that refusals may have in a second, and the bytes of those.
pub const LINES_PER_SECOND: u64 = 100;
pub const BYTES_PER_SECOND: usize = 128 * 1024;
const SECOND_MS: u64 = 1_000;
/// Lines for what is beyond. Of these the last are kept for refusals that share a line.
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

#[derive(Debug, Default)]
pub struct Repeats {
    /// The second that lines are counted for.
    begun_ms: u64,
    lines: u64,
    bytes: usize,
    groups: BTreeMap<GroupKey, Repeated>,
    /// When the groups are told, if there are any.
    due_ms: u64,
}

impl Repeats {
    /// Whether a refusal may have a line now, if it is not too long.
    #[must_use]
    pub fn has_room(&self, now_ms: u64) -> bool {
        self.is_over(now_ms) || (self.lines < LINES_PER_SECOND && self.bytes < BYTES_PER_SECOND)
    }

    /// Whether a refusal may have a line of so many bytes, which it has then.
    pub fn takes_line(&mut self, bytes: usize, now_ms: u64) -> bool {
        if self.is_over(now_ms) {
            (self.begun_ms, self.lines, self.bytes) = (now_ms, 0, 0);
        }
        let has_room = self.lines < LINES_PER_SECOND && self.bytes + bytes <= BYTES_PER_SECOND;
        if has_room {
            self.lines += 1;
            self.bytes += bytes;
        }
        has_room
    }

    /// Whether the second is. A clock that was set back holds nothing up.
    fn is_over(&self, now_ms: u64) -> bool {
        !(self.begun_ms..self.begun_ms + SECOND_MS).contains(&now_ms)
    }

    /// Counts one that has no line of its own. True: it is the first, and there was nothing to wait for.
    pub fn add(&mut self, event: &AuditEvent<'_>, now_ms: u64) -> bool {
        let was_empty = self.groups.is_empty();
        if was_empty {
            self.due_ms = now_ms + SECOND_MS;
        }
        let key = self.key_of(event);
        if let Some(repeated) = self.groups.get_mut(&key) {
            repeated.count += 1;
            return was_empty;
        }
        let (client, result) = (event.client, event.result.into());
        let repeated = Repeated { key: key.clone(), client, result, first_ms: now_ms, count: 1 };
        self.groups.insert(key, repeated);
        was_empty
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

    /// When there is something to take.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        (!self.groups.is_empty()).then_some(self.due_ms)
    }

    /// What was counted, once it is due. A clock that was set back holds nothing up.
    pub fn take_due(&mut self, now_ms: u64) -> Vec<Repeated> {
        if now_ms < self.due_ms && self.due_ms <= now_ms + SECOND_MS {
            return Vec::new();
        }
        self.take_all()
    }

    /// What was counted, due or not.
    pub fn take_all(&mut self) -> Vec<Repeated> {
        std::mem::take(&mut self.groups).into_values().collect()
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
    fn a_second_has_room_for_so_many_lines_and_bytes() {
        let mut repeats = Repeats::default();
        let taken = |repeats: &mut Repeats, bytes, now_ms| {
            (0..1_000).filter(|_| repeats.takes_line(bytes, now_ms)).count() as u64
        };
        assert_eq!(taken(&mut repeats, 200, 5_000), LINES_PER_SECOND);
        assert_eq!(taken(&mut repeats, 200, 5_999), 0);
        assert_eq!(taken(&mut repeats, 200, 6_000), LINES_PER_SECOND);
        assert_eq!(taken(&mut repeats, BYTES_PER_SECOND / 4, 7_000), 4);
        assert_eq!(taken(&mut repeats, 200, 1_000), LINES_PER_SECOND, "the clock was set back");
    }

    #[test]
    fn what_is_beyond_is_told_once_a_second() {
        let mut repeats = Repeats::default();
        assert!(repeats.add(&denied(b"a", b"k"), 5_010));
        assert!((0..50).all(|_| !repeats.add(&denied(b"a", b"k"), 5_020)));
        assert!(!repeats.add(&denied(b"a", b"other"), 5_030));
        let counts = |repeated: Vec<Repeated>| repeated.iter().map(|one| one.count).collect::<Vec<_>>();
        assert!(repeats.take_due(6_009).is_empty());
        assert_eq!(repeats.next_due_ms(), Some(6_010));
        assert_eq!(counts(repeats.take_due(6_010)), [51, 1]);
        assert!(repeats.take_due(6_010).is_empty());
        assert_eq!(repeats.next_due_ms(), None);
        repeats.add(&denied(b"a", b"k"), 6_011);
        assert_eq!(counts(repeats.take_all()), [1]);
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
