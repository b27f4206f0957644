//! The companion's bytes: `<fence> <state> <deadline_ms> <owner>`, ASCII up to the owner, which is the rest.
//!
//! State `h` is held, `r` released; `deadline_ms` is the unix time at which the lock expires, 0 where it does not; a released
//! companion has no owner. A packed string costs one write and one replicated `SET`, where a hash costs two of each.

use redfence_core::grammar::words::decimal;
use redfence_core::types::{Fence, Reason, FENCE_BOUND};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Held,
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Companion<'a> {
    pub(crate) fence: Fence,
    pub(crate) state: State,
    pub(crate) deadline_ms: u64,
    pub(crate) owner: &'a [u8],
}

/// `None` where the bytes are not a companion; a stranger's key under that name counts as no record.
pub(crate) fn parse(bytes: &[u8]) -> Option<Companion<'_>> {
    let (fence, rest) = word(bytes)?;
    let (state, rest) = word(rest)?;
    let (deadline_ms, owner) = word(rest)?;
    let fence = decimal(fence).filter(|fence| (1..FENCE_BOUND).contains(fence))?;
    let state = match state {
        b"h" => State::Held,
        b"r" => State::Released,
        _ => return None,
    };
    Some(Companion { fence: Fence(fence), state, deadline_ms: decimal(deadline_ms)?, owner })
}

fn word(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().take(21).position(|byte| *byte == b' ')?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// How a grant ended whose key is gone, or belongs to somebody else now.
pub(crate) fn how_it_ended(companion: &Companion<'_>, now_ms: u64) -> Reason {
    match companion.state {
        State::Held if companion.deadline_ms != 0 && companion.deadline_ms <= now_ms => Reason::Expired,
        State::Held | State::Released => Reason::AlreadyReleased,
    }
}

impl Companion<'_> {
    /// Puts the bytes into `into`.
    pub(crate) fn pack(&self, into: &mut Vec<u8>) {
        let mut digits = itoa::Buffer::new();
        into.clear();
        into.extend_from_slice(digits.format(self.fence.0).as_bytes());
        into.extend_from_slice(match self.state {
            State::Held => b" h ",
            State::Released => b" r ",
        });
        into.extend_from_slice(digits.format(self.deadline_ms).as_bytes());
        into.push(b' ');
        into.extend_from_slice(self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::types::OWNER_BYTES_MAX;

    fn packed(companion: &Companion<'_>) -> Vec<u8> {
        let mut bytes = b"what was there before".to_vec();
        companion.pack(&mut bytes);
        bytes
    }

    #[test]
    fn packs_what_it_parses() {
        for owner in [&b""[..], b"me", b"with blanks  and \0 and \xff", &[b' '; OWNER_BYTES_MAX]] {
            for state in [State::Held, State::Released] {
                for (fence, deadline_ms) in [(1, 0), (FENCE_BOUND - 1, u64::MAX), (1_700_000_000_000_000, 5)]
                {
                    let companion = Companion { fence: Fence(fence), state, deadline_ms, owner };
                    assert_eq!(parse(&packed(&companion)), Some(companion));
                }
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_layout() {
        let companion =
            Companion { fence: Fence(42), state: State::Held, deadline_ms: 1_700_000_000_000, owner: b"me" };
        assert_eq!(packed(&companion), b"42 h 1700000000000 me");
        let released = Companion { state: State::Released, owner: b"", ..companion };
        assert_eq!(packed(&released), b"42 r 1700000000000 ");
    }

    #[test]
    fn strangers_bytes_are_no_record() {
        for bytes in [
            &b""[..],
            b"42",
            b"42 h",
            b"42 h 5",
            b"42 x 5 me",
            b"-1 h 5 me",
            b"0 h 5 me",
            b"042 h 5 me",
            b"9007199254740992 h 5 me",
            b"99999999999999999999999999 h 5 me",
            b"42 h -5 me",
            b" h 5 me",
        ] {
            assert_eq!(parse(bytes), None, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn the_end_is_told_by_the_deadline() {
        let held = Companion { fence: Fence(1), state: State::Held, deadline_ms: 100, owner: b"a" };
        assert_eq!(how_it_ended(&held, 99), Reason::AlreadyReleased);
        assert_eq!(how_it_ended(&held, 100), Reason::Expired);
        let endless = Companion { deadline_ms: 0, ..held };
        assert_eq!(how_it_ended(&endless, 100), Reason::AlreadyReleased);
    }
}
