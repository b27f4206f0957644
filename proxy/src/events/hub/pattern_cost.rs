//! What it may cost to match a pattern, and how many steps of that are done at a time.
//!
//! A pattern with a `*` before its end can take hundreds of steps for each of its bytes ([`glob`]). The sum over all patterns of a
//! node is bounded, and a message is matched against them in slices.

use super::{Subscriber, SubscriptionTable, PATTERN_BYTES_PER_NODE_MAX};
use bytes::Bytes;
use redfence_core::glob;
use redfence_core::types::CHANNEL_BYTES_MAX;
use std::ops::Bound;

/// Steps that matching one message against the costly patterns of all clients of a node may take: about an eighth of a second where the
/// channel's name is as long as it may be. Deliveries are made in slices; who publishes is told the number of receivers, and counts them at
/// once.
pub(super) const PATTERN_STEPS_PER_NODE_MAX: u64 = 32 * 1024 * 1024;
/// Of these, one client's share: fifteen of the longest patterns, or 400 of twenty bytes.
pub const PATTERN_STEPS_PER_CLIENT_MAX: u64 = 4 * 1024 * 1024;
/// Steps until the lock is released, or others get their turn: about 0.1 ms. One match of the costliest pattern may add 1 ms.
pub(super) const STEPS_PER_SLICE: u64 = 32 * 1024;
/// What a pattern takes that fails at its first byte, and what a delivery takes.
const PATTERN_STEPS: u64 = 4;
const DELIVERY_STEPS: u64 = 32;

/// How many steps a pattern may take with the longest channel, at most. 0 for those whose bytes bound it: a pattern without `*`
/// takes a step for each of its bytes, and of plain names with one `*` at the end only those get past their name that are a
/// beginning of the channel's.
#[must_use]
pub fn steps_max(pattern: &[u8]) -> u64 {
    let (name, stars) = match pattern.iter().rposition(|byte| *byte != b'*') {
        Some(last) => (&pattern[..=last], pattern.len() - last - 1),
        None => (&[][..], pattern.len()),
    };
    let is_plain = !name.iter().any(|byte| b"*?[\\".contains(byte));
    if stars == 0 && !name.contains(&b'*') || stars == 1 && is_plain {
        return 0;
    }
    let (bytes, channel) = (pattern.len() as u64, CHANNEL_BYTES_MAX as u64);
    if !name.contains(&b'*') {
        return bytes + channel;
    }
    // The walk until it is given up, a pass over the pattern for each byte there is, and the words of all states for each byte of the
    // channel.
    let walk = 4 * (bytes + channel) + 64 + bytes;
    walk + 256 * bytes + channel * (bytes / 64 + 1)
}

/// Which limit of a node more patterns would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternLimit {
    Bytes,
    Steps,
}

/// Bytes and steps of all patterns, each once.
#[derive(Debug, Default)]
pub(super) struct PatternLoad {
    bytes: usize,
    steps: u64,
}

impl PatternLoad {
    pub(super) fn add(&mut self, pattern: &[u8]) {
        self.bytes += pattern.len();
        self.steps += steps_max(pattern);
    }

    pub(super) fn take(&mut self, pattern: &[u8]) {
        self.bytes -= pattern.len();
        self.steps -= steps_max(pattern);
    }

    pub(super) fn check_room_for(&self, more: &PatternLoad) -> Result<(), PatternLimit> {
        match () {
            () if self.bytes + more.bytes > PATTERN_BYTES_PER_NODE_MAX => Err(PatternLimit::Bytes),
            () if more.steps > 0 && self.steps + more.steps > PATTERN_STEPS_PER_NODE_MAX => {
                Err(PatternLimit::Steps)
            }
            () => Ok(()),
        }
    }
}

/// How far a message has been matched.
#[derive(Debug, Default)]
pub(super) struct PatternCursor {
    /// The pattern that was matched last.
    after: Option<Bytes>,
    /// The newest pattern when the message began. Younger ones are not matched: whoever goes on adding some behind the last would keep
    /// the message, and all behind it, from ever ending.
    newest: Option<u64>,
    /// Done so far.
    pub(super) steps: u64,
}

impl SubscriptionTable {
    /// Visits the listeners of the patterns that match, in the order of the patterns, until the steps of a slice are done. False: there
    /// are more patterns. A pattern that comes or goes between two slices changes nothing for the others.
    pub(super) fn visit_matches(
        &self,
        channel: &[u8],
        cursor: &mut PatternCursor,
        mut visit: impl FnMut(&Bytes, &[Subscriber]),
    ) -> bool {
        let newest = *cursor.newest.get_or_insert(self.next_pattern);
        let first = cursor.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut steps = 0;
        let mut stopped_at = None;
        for (pattern, listeners) in self.patterns.range::<[u8], _>((first, Bound::Unbounded)) {
            steps += PATTERN_STEPS;
            if listeners.number <= newest && glob::matches_counted(pattern, channel, &mut steps) {
                let subscribers = &listeners.subscribers;
                steps += DELIVERY_STEPS * subscribers.len() as u64;
                visit(pattern, subscribers);
            }
            if steps >= STEPS_PER_SLICE {
                stopped_at = Some(pattern.clone());
                break;
            }
        }
        cursor.steps += steps;
        let is_done = stopped_at.is_none();
        cursor.after = stopped_at;
        is_done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns() -> Vec<Vec<u8>> {
        let of = |part: &str, count: usize| part.repeat(count).into_bytes();
        vec![
            of("*a", 512),
            of("?*", 512),
            of("a*", 511),
            [&b"*"[..], &of("a", 1022), b"b"].concat(),
            [&b"*"[..], &of("[a-z]", 204), b"b"].concat(),
            [&b"*"[..], &of("?", 1022), b"b"].concat(),
            [&of("?", 512)[..], b"*"].concat(),
            [&of("a", 100)[..], &of("*", 900)].concat(),
            b"*foo*".to_vec(),
            b"user:*:news".to_vec(),
            b"*a".to_vec(),
            b"?*".to_vec(),
        ]
    }

    #[test]
    fn no_match_takes_more_steps_than_its_pattern_is_counted_with() {
        let all_bytes: Vec<u8> = (0..CHANNEL_BYTES_MAX).map(|at| at as u8).collect();
        let channels = [b"a".repeat(CHANNEL_BYTES_MAX), all_bytes, b"ab".repeat(512), b"user:1:new".to_vec()];
        for pattern in patterns() {
            for channel in &channels {
                let mut steps = 0;
                let _ = glob::matches_counted(&pattern, channel, &mut steps);
                let most = steps_max(&pattern);
                assert!(steps <= most, "{steps} steps, not {most}: {}", pattern.escape_ascii());
            }
        }
    }

    #[test]
    fn usual_patterns_are_not_counted() {
        for usual in ["__lock__:*", "news.*", "*", "news", "news.?", "n[ae]ws", ""] {
            assert_eq!(steps_max(usual.as_bytes()), 0, "{usual}");
        }
        let longest = patterns().iter().map(|pattern| steps_max(pattern)).max().unwrap_or(0);
        assert!((12..=16).contains(&(PATTERN_STEPS_PER_CLIENT_MAX / longest)), "{longest} steps");
        assert!(steps_max(b"__keyspace@*__:app:*") < PATTERN_STEPS_PER_CLIENT_MAX / 400);
    }

    #[test]
    fn a_node_has_room_for_so_many_steps() {
        let mut load = PatternLoad::default();
        let of = |pattern: &[u8]| {
            let mut load = PatternLoad::default();
            load.add(pattern);
            load
        };
        let costly = b"*a".repeat(500);
        while load.check_room_for(&of(&costly)).is_ok() {
            load.add(&costly);
        }
        assert!(load.steps <= PATTERN_STEPS_PER_NODE_MAX && load.bytes < PATTERN_BYTES_PER_NODE_MAX / 32);
        assert_eq!(load.check_room_for(&of(&costly)), Err(PatternLimit::Steps));
        assert_eq!(load.check_room_for(&of(b"__lock__:*")), Ok(()), "a usual one is not refused");
        load.take(&costly);
        assert_eq!(load.check_room_for(&of(&costly)), Ok(()));
        load.bytes = PATTERN_BYTES_PER_NODE_MAX;
        assert_eq!(load.check_room_for(&of(b"a*")), Err(PatternLimit::Bytes));
    }
}
