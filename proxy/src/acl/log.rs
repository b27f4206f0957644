//! What `ACL LOG` shows: refusals of the recent past, newest first, equal ones counted together.

use std::collections::VecDeque;

pub const ENTRIES_MAX: usize = 128;
/// Equal refusals within this time are one entry, as in Redis.
const GROUPED_MS: u64 = 60_000;
/// Bytes of an object or a client's line that are kept.
const TEXT_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: u64,
    pub count: u64,
    pub reason: &'static str,
    pub context: &'static str,
    pub object: Vec<u8>,
    pub user: Vec<u8>,
    pub client: String,
    pub created_ms: u64,
    pub updated_ms: u64,
}

/// A refusal as it is reported.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    pub reason: &'static str,
    pub context: &'static str,
    pub object: &'a [u8],
    pub user: &'a [u8],
}

#[derive(Debug, Default)]
pub struct AclLog {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl AclLog {
    /// `client` is asked for its line only where it is kept.
    pub fn add(&mut self, refused: Refused<'_>, now_ms: u64, client: impl FnOnce() -> String) {
        let cut = |text: &[u8]| text[..text.len().min(TEXT_BYTES_MAX)].to_vec();
        let (object, user) = (cut(refused.object), cut(refused.user));
        let is_same = |entry: &Entry| {
            entry.reason == refused.reason
                && entry.context == refused.context
                && entry.object == object
                && entry.user == user
                && now_ms.saturating_sub(entry.updated_ms) <= GROUPED_MS
        };
        if let Some(at) = self.entries.iter().position(is_same) {
            if let Some(mut entry) = self.entries.remove(at) {
                entry.count += 1;
                entry.updated_ms = now_ms;
                self.entries.push_front(entry);
            }
            return;
        }
        let mut client = client();
        client.truncate(
            (0..=TEXT_BYTES_MAX).rev().find(|at| client.is_char_boundary(*at)).unwrap_or(0).min(client.len()),
        );
        let Refused { reason, context, .. } = refused;
        let id = self.next_id;
        self.next_id += 1;
        self.entries.push_front(Entry {
            id,
            count: 1,
            reason,
            context,
            object,
            user,
            client,
            created_ms: now_ms,
            updated_ms: now_ms,
        });
        self.entries.truncate(ENTRIES_MAX);
    }

    /// Newest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    pub fn reset(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_refusals_are_counted_and_the_newest_is_first() {
        let mut log = AclLog::default();
        let refused = |object: &'static str| Refused {
            reason: "key",
            context: "toplevel",
            object: object.as_bytes(),
            user: b"app",
        };
        log.add(refused("a"), 0, String::new);
        log.add(refused("b"), 10, String::new);
        log.add(refused("a"), 20, String::new);
        let shown: Vec<(u64, &[u8])> = log.entries().map(|entry| (entry.count, &*entry.object)).collect();
        assert_eq!(shown, [(2, &b"a"[..]), (1, b"b")]);
        log.add(refused("a"), 20 + GROUPED_MS + 1, String::new);
        assert_eq!(log.entries().count(), 3);
    }

    #[test]
    fn it_is_bounded_in_entries_and_bytes() {
        let mut log = AclLog::default();
        for number in 0..2 * ENTRIES_MAX {
            let object = format!("{number}{}", "x".repeat(5_000));
            let refused =
                Refused { reason: "key", context: "toplevel", object: object.as_bytes(), user: b"app" };
            log.add(refused, 0, || "é".repeat(5_000));
        }
        assert_eq!(log.entries().count(), ENTRIES_MAX);
        assert!(log
            .entries()
            .all(|entry| entry.object.len() <= TEXT_BYTES_MAX && entry.client.len() <= TEXT_BYTES_MAX));
        log.reset();
        assert_eq!(log.entries().count(), 0);
    }
}
