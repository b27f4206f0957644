//! Commands that go to the upstream Redis on a connection shared with other clients ([`crate::tier1::shared_connection`]). Part of [`CommandContext`].
//!
//! A client begins with a connection of its own ([`crate::server::upstream::own`]) and comes here once it has shown that its replies are small; one
//! that ever gets a large reply stays with its own. Order is kept by [`InFlight`]: what must go by the client's own connection waits until
//! everything here is answered, and the other way round.

use crate::resp::encode::{self, Encoder};
use crate::server::access::audit;
use crate::server::client::session::ReplyMode;
use crate::server::context::CommandContext;
use crate::server::net::connection::{Disconnect, Progress, KEPT_BYTES_MAX, PASSING_BYTES_MAX};
use crate::server::net::in_flight::{AwaitedReply, InFlight, SharedUpstreamCalls, UpstreamCall};
use crate::tier1::own_connection;
use crate::tier1::reply_slot::{Arrivals, CommandResult, ReplySlot};
use crate::tier1::shared_connection::SharedConnection;
use redfence_core::reply::{Refusal, Reply};
use std::sync::Arc;
use std::task::Context;

/// Small replies a client must have had on its own connection before it shares one.
const SMALL_REPLIES_MIN: u32 = 32;
/// A reply larger than this is better not waited for by others.
const SMALL_REPLY_BYTES_MAX: usize = 64 * 1024;
/// A command larger than this takes the client's own connection.
const FRAME_BYTES_MAX: usize = 16 * 1024;
/// Bytes and commands one client may have in flight here. Above it no more are read from it until all are answered.
const DUE_BYTES_MAX: usize = 256 * 1024;
const DUE_MAX: u32 = 1024;

/// Nobody listens to it.
const WAIT_CHANNEL: &str = "__redfence__:wait";

/// What a connection has to do with shared connections.
#[derive(Debug, Default)]
pub(in crate::server) struct SharedUpstream {
    small_replies: u32,
    /// It has had a large reply.
    never: bool,
    /// Its commands have gone by a shared connection, so its own may not know of its writes.
    pub(in crate::server) has_shared: bool,
    place: Option<Box<SharedPlace>>,
}

#[derive(Debug)]
struct SharedPlace {
    connection: Arc<SharedConnection>,
    slot: Arc<ReplySlot>,
    /// Commands that leave at the end of this batch.
    staged: Vec<u8>,
    staged_commands: u32,
    due: u32,
    due_bytes: usize,
    arrivals: Arrivals,
    is_inside_reply: bool,
}

/// What a client may still send over the shared connection: commands, bytes, largest frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct SendBudget {
    pub(in crate::server) commands: u32,
    pub(in crate::server) bytes: usize,
    pub(in crate::server) frame_bytes: usize,
}

impl SharedUpstream {
    /// Whether this client has a place on a shared connection.
    pub(in crate::server) fn is_used(&self) -> bool {
        self.place.is_some()
    }

    /// A reply came on the client's own connection.
    pub(in crate::server) fn note_reply(&mut self, bytes: usize) {
        if bytes > SMALL_REPLY_BYTES_MAX {
            self.never = true;
        }
        self.small_replies = self.small_replies.saturating_add(1);
    }

    /// What may still go by the shared connection at once. `None`: it has no place there yet.
    pub(in crate::server) fn room(&self) -> Option<SendBudget> {
        let place = self.place.as_ref()?;
        Some(SendBudget {
            commands: DUE_MAX.saturating_sub(place.due),
            bytes: DUE_BYTES_MAX.saturating_sub(place.due_bytes),
            frame_bytes: FRAME_BYTES_MAX,
        })
    }

    pub(in crate::server) fn has_room(&self) -> bool {
        self.place.as_ref().is_none_or(|place| place.due < DUE_MAX && place.due_bytes < DUE_BYTES_MAX)
    }

    /// Commands in flight.
    pub(in crate::server) fn due(&self) -> usize {
        self.place.as_ref().map_or(0, |place| place.due as usize)
    }

    /// Bytes of commands in flight.
    pub(in crate::server) fn due_bytes(&self) -> usize {
        self.place.as_ref().map_or(0, |place| place.due_bytes)
    }

    /// Part of a reply has gone to the client, and more of it must follow before anything else.
    pub(in crate::server) fn is_inside_reply(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.is_inside_reply)
    }

    /// The client speaks another protocol from now on, or is as new. Nothing may be in flight.
    pub(in crate::server) fn leave(&mut self) {
        if let Some(place) = self.place.take() {
            place.slot.close();
        }
    }
}

impl CommandContext {
    /// Sends a command that answers at once and leaves no trace: on a shared connection, if the client may.
    pub(in crate::server) fn pass_shareable(
        &mut self,
        argv: &[&[u8]],
        frame: Option<&[u8]>,
        call: UpstreamCall,
    ) -> Progress {
        let Some(frame) = frame.filter(|frame| frame.len() <= FRAME_BYTES_MAX) else {
            return self.send_to_upstream(argv, frame, call);
        };
        if self.may_share() && !call.waits {
            self.share(frame, call)
        } else {
            self.send_to_upstream(argv, Some(frame), call)
        }
    }

    /// The same for words of ours.
    pub(in crate::server) fn pass_shareable_words(
        &mut self,
        words: &[&[u8]],
        call: UpstreamCall,
    ) -> Progress {
        let mut frame = Vec::new();
        encode::command(&mut frame, words);
        self.pass_shareable(words, Some(&frame), call)
    }

    /// Sends a command on the client's own connection alone.
    pub(in crate::server) fn pass_on_own_connection(
        &mut self,
        argv: &[&[u8]],
        frame: Option<&[u8]>,
    ) -> Progress {
        let waits_for_replicas =
            argv[0].eq_ignore_ascii_case(b"WAIT") || argv[0].eq_ignore_ascii_case(b"WAITAOF");
        if self.upstream.shared.has_shared && waits_for_replicas {
            if !self.can_join(InFlight::OwnUpstream) {
                return Progress::Stalled;
            }
            if let Some(connection) = self.own_connection() {
                // It waits for what its own connection wrote last. So that this is behind what went by the shared one, it writes something
                // that changes nothing.
                connection.send_ours(&["PUBLISH", WAIT_CHANNEL, ""]);
                self.upstream.shared.has_shared = false;
            }
        }
        if may_wait(argv[0]) {
            if let Some(connection) = self.own_connection() {
                connection.ask_number();
            }
        }
        self.pass_to_upstream(argv, frame)
    }

    fn may_share(&self) -> bool {
        !self.upstream.shared.never
            && self.upstream.shared.small_replies >= SMALL_REPLIES_MIN
            && self.client.db == 0
            && self.client.reply_mode == ReplyMode::On
            && !self.client.watches_upstream
            && !self.client.tracks_upstream
            && self.client.transaction.is_none()
    }

    fn share(&mut self, frame: &[u8], call: UpstreamCall) -> Progress {
        if !self.can_join(InFlight::SharedUpstream) {
            return Progress::Stalled;
        }
        let Some(place) = self.place() else {
            return self.refuse(Refusal::new("ERR no upstream Redis is configured (--redis)"));
        };
        place.staged.extend_from_slice(frame);
        place.staged_commands += 1;
        place.due += 1;
        place.due_bytes += frame.len();
        self.upstream.shared.has_shared = true;
        self.replies.in_flight = InFlight::SharedUpstream;
        self.push_shared(1, call);
        Progress::Done
    }

    /// Whether the next plain command may go there without waiting for others.
    pub(in crate::server) fn may_share_now(&self) -> bool {
        self.can_join(InFlight::SharedUpstream) && self.may_share()
    }

    /// Stages many commands whose replies nobody looks at. It has a place, and there is room for them.
    pub(in crate::server) fn share_run(&mut self, frames: &[u8], commands: u32) {
        let Some(place) = &mut self.upstream.shared.place else { return };
        place.staged.extend_from_slice(frames);
        place.staged_commands += commands;
        place.due += commands;
        place.due_bytes += frames.len();
        self.upstream.shared.has_shared = true;
        self.replies.in_flight = InFlight::SharedUpstream;
        self.push_shared(commands, UpstreamCall::default());
    }

    fn push_shared(&mut self, count: u32, call: UpstreamCall) {
        match self.replies.awaited.back_mut() {
            Some(AwaitedReply::SharedUpstream(last)) if last.call.is_plain() && call.is_plain() => {
                last.count += count
            }
            _ => self
                .replies
                .awaited
                .push_back(AwaitedReply::SharedUpstream(SharedUpstreamCalls { count, call })),
        }
    }

    fn place(&mut self) -> Option<&mut SharedPlace> {
        if self.upstream.shared.place.is_none() {
            let connection = self.server.upstream.as_ref()?.shared_connection(self.client.protocol);
            self.upstream.shared.place = Some(Box::new(SharedPlace {
                connection,
                slot: Arc::default(),
                staged: Vec::new(),
                staged_commands: 0,
                due: 0,
                due_bytes: 0,
                arrivals: Arrivals::default(),
                is_inside_reply: false,
            }));
        }
        self.upstream.shared.place.as_deref_mut()
    }

    /// All commands that came together leave together.
    pub(in crate::server) fn send_shared(&mut self) {
        let Some(place) = &mut self.upstream.shared.place else { return };
        if place.staged_commands == 0 {
            return;
        }
        while place.connection.send(&place.slot, &place.staged, place.staged_commands).is_err() {
            let Some(upstream) = &self.server.upstream else { return };
            place.connection = upstream.shared_connection(self.client.protocol);
        }
        place.staged_commands = 0;
        place.staged.clear();
        place.staged.shrink_to(KEPT_BYTES_MAX);
    }

    pub(super) fn poll_shared(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        let Some(place) = &mut self.upstream.shared.place else { return Ok(false) };
        if place.due == 0 || self.replies.unsent_bytes() >= PASSING_BYTES_MAX {
            return Ok(false);
        }
        if !place.slot.take(context.waker(), &mut place.arrivals) {
            return Ok(false);
        }
        let mut arrivals = std::mem::take(&mut place.arrivals);
        self.upstream.shared.never |= arrivals.had_large;
        if arrivals.cut {
            tracing::info!(
                client = self.client.info.id,
                "closing client: upstream failed mid-reply or client too slow"
            );
            return Err(Disconnect);
        }
        self.take_replies(&mut arrivals);
        arrivals.clear();
        if let Some(place) = &mut self.upstream.shared.place {
            place.arrivals = arrivals;
        }
        Ok(true)
    }

    fn take_replies(&mut self, arrivals: &mut Arrivals) {
        let Some(place) = &mut self.upstream.shared.place else { return };
        let was_inside = place.is_inside_reply;
        let whole = arrivals.results.iter().map(|result| match result {
            CommandResult::Reply { len } => *len as usize,
            CommandResult::Lost { .. } => 0,
        });
        let whole: usize = whole.sum();
        let has_more = whole < arrivals.bytes.len();
        place.is_inside_reply = has_more || (was_inside && arrivals.results.is_empty());
        place.due -= arrivals.results.len() as u32;
        if place.due == 0 {
            place.due_bytes = 0;
        }
        // The usual case: plain replies to plain commands pass as they are.
        let all_plain = arrivals.reason.is_none();
        if let (true, Some(AwaitedReply::SharedUpstream(front))) =
            (all_plain, self.replies.awaited.front_mut())
        {
            let count = arrivals.results.len() as u32;
            if front.call.is_plain() && front.count >= count {
                front.count -= count;
                if front.count == 0 {
                    self.replies.awaited.pop_front();
                }
                if self.replies.out.is_empty() {
                    std::mem::swap(&mut self.replies.out, &mut arrivals.bytes);
                } else {
                    self.replies.out.append(&mut arrivals.bytes);
                }
                return;
            }
        }
        let mut at = 0;
        for (number, result) in arrivals.results.iter().enumerate() {
            self.pass_encoded();
            let start = self.replies.out.len();
            match result {
                CommandResult::Reply { len } => {
                    self.replies.out.extend_from_slice(&arrivals.bytes[at..][..*len as usize]);
                    at += *len as usize;
                }
                CommandResult::Lost { had_left } => {
                    let reason = arrivals.reason.as_deref().unwrap_or("the upstream Redis is gone");
                    let protocol = self.client.protocol;
                    let refusal = own_connection::refusal(reason, *had_left);
                    Reply::Error(refusal).render(&mut Encoder { out: &mut self.replies.out, protocol });
                }
            }
            self.end_shared(start, was_inside && number == 0);
        }
        if at < arrivals.bytes.len() {
            self.pass_encoded();
            self.replies.out.extend_from_slice(&arrivals.bytes[at..]);
        }
    }

    /// Answers of ours that stand between.
    fn pass_encoded(&mut self) {
        while let Some(AwaitedReply::Encoded(bytes)) = self.replies.awaited.front_mut() {
            self.replies.encoded_bytes -= bytes.len();
            self.replies.out.append(bytes);
            self.replies.awaited.pop_front();
        }
    }

    /// The reply to the first command in flight ends `self.replies.out`, from `start`.
    fn end_shared(&mut self, start: usize, is_rest_of_reply: bool) {
        let Some(AwaitedReply::SharedUpstream(front)) = self.replies.awaited.front_mut() else {
            unreachable!("every reply has its command")
        };
        front.count -= 1;
        if front.count > 0 {
            return;
        }
        let Some(AwaitedReply::SharedUpstream(mut front)) = self.replies.awaited.pop_front() else {
            unreachable!("seen")
        };
        if is_rest_of_reply {
            self.audit_reply(&mut front.call, audit::PASSED);
        } else {
            self.look_at_reply(&mut front.call, start);
        }
    }
}

/// Whether the upstream Redis may let a client wait in this command of its own, so that `CLIENT UNBLOCK` needs to know it there.
fn may_wait(name: &[u8]) -> bool {
    const WAITING: [&[u8]; 12] = [
        b"BLPOP",
        b"BRPOP",
        b"BLMOVE",
        b"BRPOPLPUSH",
        b"BLMPOP",
        b"BZPOPMIN",
        b"BZPOPMAX",
        b"BZMPOP",
        b"XREAD",
        b"XREADGROUP",
        b"WAIT",
        b"WAITAOF",
    ];
    WAITING.iter().any(|known| known.eq_ignore_ascii_case(name))
}
