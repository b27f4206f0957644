//! The companion's bytes: `<fence> <state> <deadline_ms> <ended_fence> <how> <owner>`, ASCII up to the owner, which is the rest.
//!
//! The grant last issued: its fence, state `h` (held), `v` (held, with a VALUE), `r` (released) or `f` (released by force), and the unix time at which its
//! lock expires, 0 where it does not; a released one has no owner. In state `v` the rest is `<owner_len> <owner><value>`. Beside it the grant that ended last: its fence, 0 where there is none, and how it ended,
//! `r` (released), `x` (expired) or `-`. A packed string costs one write and one replicated `SET`, where a hash costs two of each.

use redfence_core::grammar::words::decimal;
use redfence_core::types::{Fence, Reason, FENCE_BOUND};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantState {
    Held,
    Released,
    /// Taken from its holder by an operator.
    Forced,
}

/// The grant that ended last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedGrant {
    pub(crate) fence: Fence,
    pub(crate) how: EndCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    Released,
    Expired,
}

impl EndCause {
    pub(crate) fn reason(self) -> Reason {
        match self {
            EndCause::Released => Reason::AlreadyReleased,
            EndCause::Expired => Reason::Expired,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Companion<'a> {
    pub(crate) fence: Fence,
    pub(crate) state: GrantState,
    pub(crate) deadline_ms: u64,
    pub(crate) ended: Option<EndedGrant>,
    pub(crate) owner: &'a [u8],
    /// The VALUE of a grant that is held; empty where it has none.
    pub(crate) value: &'a [u8],
}

/// `None` where the bytes are not a companion; a stranger's key under that name counts as no record.
pub(crate) fn parse(bytes: &[u8]) -> Option<Companion<'_>> {
    let (fence, rest) = word(bytes)?;
    let (state, rest) = word(rest)?;
    let (deadline_ms, rest) = word(rest)?;
    let (ended_fence, rest) = word(rest)?;
    let (how, rest) = word(rest)?;
    let fence = decimal(fence).filter(|fence| (1..FENCE_BOUND).contains(fence))?;
    let (state, owner, value) = match state {
        b"h" => (GrantState::Held, rest, &[][..]),
        b"v" => {
            let (owner_len, rest) = word(rest)?;
            let (owner, value) = rest.split_at_checked(usize::try_from(decimal(owner_len)?).ok()?)?;
            (GrantState::Held, owner, value)
        }
        b"r" => (GrantState::Released, rest, &[][..]),
        b"f" => (GrantState::Forced, rest, &[][..]),
        _ => return None,
    };
    let ended_fence = Fence(decimal(ended_fence)?);
    let ended = match how {
        b"r" => Some(EndedGrant { fence: ended_fence, how: EndCause::Released }),
        b"x" => Some(EndedGrant { fence: ended_fence, how: EndCause::Expired }),
        b"-" => None,
        _ => return None,
    };
    Some(Companion { fence: Fence(fence), state, deadline_ms: decimal(deadline_ms)?, ended, owner, value })
}

fn word(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().take(21).position(|byte| *byte == b' ')?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

impl Companion<'_> {
    /// The end of the grant last issued, where its key belongs to somebody else now: not released by its holder.
    pub(crate) fn end_beside_other(&self, now_ms: u64) -> EndedGrant {
        match self.state {
            GrantState::Held => EndedGrant { fence: self.fence, how: EndCause::Expired },
            GrantState::Released | GrantState::Forced => self.end(now_ms),
        }
    }

    /// The end of the grant last issued, where its key is gone.
    pub(crate) fn end(&self, now_ms: u64) -> EndedGrant {
        let expired = match self.state {
            GrantState::Held => self.deadline_ms != 0 && self.deadline_ms <= now_ms,
            GrantState::Released => false,
            GrantState::Forced => true,
        };
        EndedGrant { fence: self.fence, how: if expired { EndCause::Expired } else { EndCause::Released } }
    }

    /// Puts the bytes into `into`.
    pub(crate) fn pack(&self, into: &mut Vec<u8>) {
        let mut digits = itoa::Buffer::new();
        into.clear();
        into.extend_from_slice(digits.format(self.fence.0).as_bytes());
        into.extend_from_slice(match self.state {
            GrantState::Held if self.value.is_empty() => b" h ",
            GrantState::Held => b" v ",
            GrantState::Released => b" r ",
            GrantState::Forced => b" f ",
        });
        into.extend_from_slice(digits.format(self.deadline_ms).as_bytes());
        into.push(b' ');
        let (ended_fence, how) = match self.ended {
            Some(EndedGrant { fence, how: EndCause::Released }) => (fence.0, b" r "),
            Some(EndedGrant { fence, how: EndCause::Expired }) => (fence.0, b" x "),
            None => (0, b" - "),
        };
        into.extend_from_slice(digits.format(ended_fence).as_bytes());
        into.extend_from_slice(how);
        if !self.value.is_empty() {
            into.extend_from_slice(digits.format(self.owner.len()).as_bytes());
            into.push(b' ');
        }
        into.extend_from_slice(self.owner);
        into.extend_from_slice(self.value);
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
        let ends = [
            None,
            Some(EndedGrant { fence: Fence(7), how: EndCause::Released }),
            Some(EndedGrant { fence: Fence(FENCE_BOUND - 1), how: EndCause::Expired }),
        ];
        for owner in [&b""[..], b"me", b"with blanks  and \0 and \xff", &[b' '; OWNER_BYTES_MAX]] {
            for state in [GrantState::Held, GrantState::Released, GrantState::Forced] {
                for ended in ends {
                    for (fence, deadline_ms) in
                        [(1, 0), (FENCE_BOUND - 1, u64::MAX), (1_700_000_000_000_000, 5)]
                    {
                        let value = &b""[..];
                        let plain =
                            Companion { fence: Fence(fence), state, deadline_ms, ended, owner, value };
                        assert_eq!(parse(&packed(&plain)), Some(plain));
                        let with_value =
                            Companion { state: GrantState::Held, value: b"10.0.0.1:80 \0\xff", ..plain };
                        assert_eq!(parse(&packed(&with_value)), Some(with_value));
                    }
                }
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_layout() {
        let held = Companion {
            fence: Fence(42),
            state: GrantState::Held,
            deadline_ms: 1_700_000_000_000,
            ended: None,
            owner: b"me",
            value: b"",
        };
        let with_value = Companion { value: b"10.0.0.1:80", ..held };
        assert_eq!(packed(&with_value), b"42 v 1700000000000 0 - 2 me10.0.0.1:80");
        assert_eq!(packed(&held), b"42 h 1700000000000 0 - me");
        let expired =
            Companion { ended: Some(EndedGrant { fence: Fence(41), how: EndCause::Expired }), ..held };
        assert_eq!(packed(&expired), b"42 h 1700000000000 41 x me");
        let end = Some(EndedGrant { fence: Fence(42), how: EndCause::Released });
        let released = Companion { state: GrantState::Released, owner: b"", ended: end, ..held };
        assert_eq!(packed(&released), b"42 r 1700000000000 42 r ");
    }

    #[test]
    fn strangers_bytes_are_no_record() {
        for bytes in [
            &b""[..],
            b"42",
            b"42 h",
            b"42 h 5",
            b"42 h 5 0",
            b"42 h 5 0 -",
            b"42 h 5 me",
            b"42 x 5 0 - me",
            b"42 h 5 0 y me",
            b"42 h 5 -1 r me",
            b"-1 h 5 0 - me",
            b"0 h 5 0 - me",
            b"042 h 5 0 - me",
            b"9007199254740992 h 5 0 - me",
            b"99999999999999999999999999 h 5 0 - me",
            b"42 h -5 0 - me",
            b" h 5 0 - me",
            b"42 v 5 0 - me",
            b"42 v 5 0 - 3 me",
            b"42 v 5 0 - -1 me",
        ] {
            assert_eq!(parse(bytes), None, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn the_end_is_told_by_the_deadline() {
        let held = Companion {
            fence: Fence(1),
            state: GrantState::Held,
            deadline_ms: 100,
            ended: None,
            owner: b"a",
            value: b"",
        };
        assert_eq!(held.end(99).how, EndCause::Released);
        assert_eq!(held.end_beside_other(99).how, EndCause::Expired);
        assert_eq!(held.end(100).how, EndCause::Expired);
        assert_eq!(Companion { deadline_ms: 0, ..held }.end(100).how, EndCause::Released);
        assert_eq!(Companion { state: GrantState::Released, ..held }.end(100).how, EndCause::Released);
        assert_eq!(Companion { state: GrantState::Forced, ..held }.end(0).how, EndCause::Expired);
    }
}
