//! The script cache: state, because `EVALSHA` must find on every node what any node was sent.
//!
//! Bounded by count and by bytes. A script that has no room pushes out the one loaded longest ago; its client is told
//! `NOSCRIPT` and loads it again, as after a restart of Redis.

use ::bytes::Bytes;
use std::collections::BTreeMap;

pub const SCRIPTS_MAX: usize = 10_000;
pub const SCRIPT_BYTES_TOTAL_MAX: usize = 64 * 1024 * 1024;
/// Longest script.
pub const SCRIPT_BYTES_MAX: usize = 1024 * 1024;

/// A script's SHA-1.
pub type Sha = [u8; 20];

#[must_use]
pub fn sha1(body: &[u8]) -> Sha {
    sha1_smol::Sha1::from(body).digest().bytes()
}

#[must_use]
pub fn sha_hex(sha: &Sha) -> String {
    sha.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads 40 hexadecimal digits of either case.
#[must_use]
pub fn parse_sha(text: &[u8]) -> Option<Sha> {
    if text.len() != 40 {
        return None;
    }
    let mut sha = [0; 20];
    for (byte, pair) in sha.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(sha)
}

/// Script bodies by SHA-1, oldest out first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scripts {
    bodies: BTreeMap<Sha, (u64, Bytes)>,
    by_age: BTreeMap<u64, Sha>,
    next_age: u64,
    bytes: usize,
}

impl Scripts {
    #[must_use]
    pub fn get(&self, sha: &Sha) -> Option<&Bytes> {
        self.bodies.get(sha).map(|(_, body)| body)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.bodies.len()
    }

    /// Bytes of all bodies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Whether so many more would push out none.
    #[must_use]
    pub fn has_room_for(&self, count: usize, bytes: usize) -> bool {
        self.bodies.len() + count <= SCRIPTS_MAX && self.bytes + bytes <= SCRIPT_BYTES_TOTAL_MAX
    }

    /// Keeps a script. One that is known stays where it is.
    pub fn insert(&mut self, sha: Sha, body: &[u8]) {
        if self.bodies.contains_key(&sha) {
            return;
        }
        while self.bodies.len() >= SCRIPTS_MAX || self.bytes + body.len() > SCRIPT_BYTES_TOTAL_MAX {
            let Some((_, oldest)) = self.by_age.pop_first() else { break };
            if let Some((_, gone)) = self.bodies.remove(&oldest) {
                self.bytes -= gone.len();
            }
        }
        self.bytes += body.len();
        self.by_age.insert(self.next_age, sha);
        self.bodies.insert(sha, (self.next_age, Bytes::copy_from_slice(body)));
        self.next_age += 1;
    }

    pub fn flush(&mut self) {
        *self = Scripts::default();
    }

    /// Oldest first: inserting them in this order into an empty cache makes the same cache.
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.by_age.values().filter_map(|sha| self.get(sha))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_as_redis_does() {
        assert_eq!(sha_hex(&sha1(b"return 1")), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(parse_sha(b"E0E1F9FABFC9D4800C877A703B823AC0578FF8DB"), Some(sha1(b"return 1")));
        assert_eq!(parse_sha(b"xyz"), None);
    }

    #[test]
    fn the_oldest_goes_when_there_is_no_room() {
        let mut scripts = Scripts::default();
        let body = vec![b' '; SCRIPT_BYTES_MAX];
        for number in 0..=64_u8 {
            let mut body = body.clone();
            body[0] = number;
            scripts.insert(sha1(&body), &body);
        }
        assert_eq!(scripts.len(), 64);
        let mut first = body.clone();
        first[0] = 0;
        assert!(scripts.get(&sha1(&first)).is_none());
        let mut copy = Scripts::default();
        for body in scripts.iter() {
            copy.insert(sha1(body), body);
        }
        assert!(copy.iter().eq(scripts.iter()));
    }
}
