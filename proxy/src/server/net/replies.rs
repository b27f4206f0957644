//! The replies of one client: encoded bytes that wait to be sent, and behind them the replies that are still awaited, in the
//! order of their commands.

use crate::server::net::connection::{KEPT_BYTES_MAX, UNREAD_BYTES_MAX};
use crate::server::net::deferred_reads::{DeferredReads, LARGE_CALLS_MAX};
use crate::server::net::in_flight::{AwaitedReply, InFlight, PENDING_MAX};
use std::collections::VecDeque;

/// With more kept of commands in flight, no further command is read until some are answered.
const KEPT_IN_FLIGHT_BYTES_MAX: usize = 1024 * 1024;
/// What an awaited reply takes besides what is kept of its command.
const AWAITED_BYTES: usize = 128;

#[derive(Debug, Default)]
pub(in crate::server) struct ReplyQueue {
    /// Encoded replies, next to be sent; those before `out_at` have been.
    pub(in crate::server) out: Vec<u8>,
    pub(in crate::server) out_at: usize,
    /// Where the last reply in `out` ends: one reply alone may be larger than the limit on unread bytes.
    pub(in crate::server) reply_end: usize,
    pub(in crate::server) awaited: VecDeque<AwaitedReply>,
    /// Where the awaited replies come from.
    pub(in crate::server) in_flight: InFlight,
    /// The next command must wait until nothing is in flight.
    pub(in crate::server) stalled: bool,
    /// Bytes of [`AwaitedReply::Encoded`].
    pub(in crate::server) encoded_bytes: usize,
    /// Logged commands in flight whose replies may be large.
    pub(in crate::server) large_calls: usize,
    pub(in crate::server) deferred_reads: DeferredReads,
    pub(in crate::server) asked_names: AskedNames,
    /// Bytes kept of the commands in flight until they are answered ([`AwaitedCall::kept_bytes`]).
    pub(in crate::server) kept_bytes: usize,
}

/// The names of locks that were asked for one by one and are not answered yet, in the order of their commands. One buffer for all: to
/// keep each with its awaited reply would cost an allocation for every acquire.
#[derive(Debug, Default)]
pub(in crate::server) struct AskedNames {
    bytes: Vec<u8>,
    /// Those before it have been taken.
    at: usize,
}

impl AskedNames {
    /// The buffer is given back above this, once all are answered.
    const KEPT_BYTES_MAX: usize = 256;

    pub(in crate::server) fn push(&mut self, name: &[u8]) {
        self.bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(name);
    }

    /// Lends the first to `visit` and forgets it.
    pub(in crate::server) fn take_first<R>(&mut self, visit: impl FnOnce(&[u8]) -> R) -> R {
        let (length, rest) = self.bytes[self.at..].split_first_chunk().expect("asked before it is answered");
        let length = u32::from_le_bytes(*length) as usize;
        let visited = visit(&rest[..length]);
        self.at += size_of::<u32>() + length;
        if self.at == self.bytes.len() {
            self.at = 0;
            self.bytes.clear();
            self.bytes.shrink_to(AskedNames::KEPT_BYTES_MAX);
        }
        visited
    }

    fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

impl ReplyQueue {
    /// Whether there is room for another command's reply.
    pub(in crate::server) fn has_room(&self) -> bool {
        !self.stalled
            && self.in_flight != InFlight::Alone
            && self.awaited.len() < PENDING_MAX
            && self.encoded_bytes <= UNREAD_BYTES_MAX
            && self.kept_bytes <= KEPT_IN_FLIGHT_BYTES_MAX
            && !self.deferred_reads.is_under_way()
    }

    /// Bytes that stand behind every answer in flight.
    pub(in crate::server) fn write_behind(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let waits = !self.awaited.is_empty();
        let out = self.place_behind();
        let before = out.len();
        write(out);
        let written = out.len() - before;
        self.encoded_bytes += if waits { written } else { 0 };
    }

    /// Where bytes go that stand behind every answer in flight.
    fn place_behind(&mut self) -> &mut Vec<u8> {
        match self.awaited.back() {
            None => return &mut self.out,
            Some(AwaitedReply::Encoded(_)) => {}
            Some(
                AwaitedReply::Call(_)
                | AwaitedReply::OwnUpstream(_)
                | AwaitedReply::SharedUpstream(_)
                | AwaitedReply::Subscription(_),
            ) => {
                self.awaited.push_back(AwaitedReply::Encoded(Vec::new()));
            }
        }
        match self.awaited.back_mut() {
            Some(AwaitedReply::Encoded(bytes)) => bytes,
            _ => unreachable!("seen or just pushed"),
        }
    }

    /// Bytes beyond the reply that is being sent.
    pub(in crate::server) fn unread_bytes(&self) -> usize {
        self.out.len() - self.out_at.max(self.reply_end)
    }

    /// Bytes of all replies that are encoded and held.
    pub(in crate::server) fn encoded(&self) -> usize {
        self.out.len() + self.encoded_bytes
    }

    pub(in crate::server) fn unsent_bytes(&self) -> usize {
        self.out.len() - self.out_at
    }

    /// Gives memory back after bytes were sent.
    pub(in crate::server) fn release_sent(&mut self) {
        if self.out_at == self.out.len() {
            self.out.clear();
            (self.out_at, self.reply_end) = (0, 0);
            if self.out.capacity() > KEPT_BYTES_MAX {
                self.out = Vec::new();
            }
        } else if self.out_at > UNREAD_BYTES_MAX {
            self.out.drain(..self.out_at);
            self.reply_end = self.reply_end.saturating_sub(self.out_at);
            self.out_at = 0;
        }
    }

    /// Whether a command is in flight that makes no sense without its client.
    pub(in crate::server) fn wait_for_client(&self) -> bool {
        self.awaited.iter().any(|item| match item {
            AwaitedReply::Call(call) => call.dies_with_client(),
            AwaitedReply::OwnUpstream(call) => call.waits,
            AwaitedReply::Encoded(_) | AwaitedReply::SharedUpstream(_) | AwaitedReply::Subscription(_) => {
                false
            }
        })
    }

    pub(in crate::server) fn has_room_for_large_reply(&self) -> bool {
        self.large_calls < LARGE_CALLS_MAX
    }

    /// Memory held for replies.
    pub(in crate::server) fn held_bytes(&self) -> usize {
        let kept = self.kept_bytes + self.asked_names.held_bytes();
        self.out.capacity() + self.encoded_bytes + self.awaited.len() * AWAITED_BYTES + kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_commands_in_flight_is_held_and_bounded() {
        let mut replies = ReplyQueue::default();
        let before = replies.held_bytes();
        replies.kept_bytes = KEPT_IN_FLIGHT_BYTES_MAX;
        assert!(replies.has_room());
        assert_eq!(replies.held_bytes(), before + KEPT_IN_FLIGHT_BYTES_MAX);
        replies.kept_bytes += 1;
        assert!(!replies.has_room());
    }

    #[test]
    fn names_come_back_in_their_order_and_leave_no_large_buffer() {
        let mut names = AskedNames::default();
        let long = vec![b'n'; 1_024];
        for round in 0..3 {
            names.push(b"first");
            names.push(b"");
            names.push(&long);
            assert!(names.take_first(|name| name == b"first"), "{round}");
            names.push(b"last");
            assert!(names.take_first(<[u8]>::is_empty));
            assert!(names.take_first(|name| name == long));
            assert!(!names.bytes.is_empty());
            assert!(names.take_first(|name| name == b"last"));
            assert!(names.bytes.is_empty());
            assert!(names.held_bytes() <= AskedNames::KEPT_BYTES_MAX);
        }
    }
}
