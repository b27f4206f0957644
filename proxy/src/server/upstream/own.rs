//! A connection's traffic with the upstream Redis: replies that pass through, commands too large to hold, and what is said
//! when that Redis is gone. Part of [`CommandContext`].

use crate::metrics::ServedBy;
use crate::resp::encode::Encoder;
use crate::resp::request::{words_of, Excess, ProtocolError, RequestParser};
use crate::server::access::audit;
use crate::server::context::CommandContext;
use crate::server::net::connection::{Disconnect, Progress, PASSING_BYTES_MAX};
use crate::server::net::in_flight::{AwaitedReply, IfRefused, InFlight, UpstreamCall};
use crate::server::stats::Answered;
use crate::tier1::lua;
use crate::tier1::own_connection::{self, ConnectionLost, OwnConnection, ReplyPart};
use redfence_core::reply::{Refusal, Reply};
use std::sync::Arc;
use std::task::{Context, Poll};

/// Bytes of a command that is held because a route may send some of its keys to Tier 2.
const GATHERED_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A command that comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum StreamedCommand {
    ToUpstream,
    /// Not all of its keys are known: it is held until they are, in [`UpstreamConnections::gathered`].
    Gathered,
    /// It was answered with an error already; the rest of it is dropped.
    Discarded,
}

impl CommandContext {
    /// The client's own connection to the upstream Redis; opened when first needed.
    pub(in crate::server) fn own_connection(&mut self) -> Option<&mut OwnConnection> {
        if self.upstream.own.is_none() {
            let upstream = self.server.upstream.as_ref()?;
            let number = Arc::clone(&self.client.info.upstream_number);
            let own = OwnConnection::open(upstream, self.client.protocol, self.client.db, number);
            self.upstream.own = Some(Box::new(own));
        }
        self.upstream.own.as_deref_mut()
    }

    /// Takes what the upstream Redis has to say, where there is one.
    pub(in crate::server) fn poll_upstream(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        self.check_routes_of_passing()?;
        let moved = self.poll_own_upstream(context)?;
        Ok(moved | self.poll_shared(context)?)
    }

    fn poll_own_upstream(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        let Some(connection) = &mut self.upstream.own else { return Ok(false) };
        let mut moved = match connection.poll_send(context) {
            Ok(moved) => moved,
            Err(down) => return self.lose_own_upstream(down).map(|()| true),
        };
        while self.replies.unsent_bytes() < PASSING_BYTES_MAX {
            let muted = match self.replies.awaited.front() {
                Some(AwaitedReply::OwnUpstream(call)) => call.muted,
                None => false,
                // Nothing but invalidations can come, and they must not wait for as long as the client does.
                Some(AwaitedReply::Call(_)) if self.client.tracks_upstream && !self.awaits_own_upstream() => {
                    false
                }
                Some(
                    AwaitedReply::Encoded(_)
                    | AwaitedReply::Call(_)
                    | AwaitedReply::SharedUpstream(_)
                    | AwaitedReply::Subscription(_),
                ) => break,
            };
            let Some(connection) = &mut self.upstream.own else { break };
            let begins = !connection.is_inside_reply();
            let start = self.replies.out.len();
            match connection.poll_reply(context, &mut self.replies.out) {
                Poll::Pending => break,
                Poll::Ready(Ok(ReplyPart::Bytes)) => {
                    let front = self.replies.awaited.front_mut();
                    let edit = if let Some(AwaitedReply::OwnUpstream(call)) = front {
                        call.edit.take()
                    } else {
                        None
                    };
                    if let Some(mut edit) = edit {
                        self.edit_reply(&mut edit, start, false);
                        if let Some(AwaitedReply::OwnUpstream(call)) = self.replies.awaited.front_mut() {
                            call.edit = Some(edit);
                        }
                    }
                }
                // No answer: a client that wants none of those still wants to hear of this.
                Poll::Ready(Ok(ReplyPart::Unasked)) => {
                    moved = true;
                    continue;
                }
                Poll::Ready(Ok(ReplyPart::Reply { is_error })) => {
                    let Some(AwaitedReply::OwnUpstream(mut call)) = self.replies.awaited.pop_front() else {
                        // It said something nobody asked for, such as why it hangs up.
                        return Err(Disconnect);
                    };
                    if is_error {
                        self.undo(call.if_refused);
                    }
                    if let Some(mut edit) = call.edit.take() {
                        self.edit_reply(&mut edit, start, true);
                    }
                    if begins {
                        self.upstream.shared.note_reply(self.replies.out.len() - start);
                        self.look_at_reply(&mut call, start);
                    } else {
                        self.upstream.shared.note_reply(usize::MAX);
                        self.audit_reply(&mut call, audit::PASSED);
                    }
                    if call.waits {
                        self.client.end_wait();
                    }
                }
                Poll::Ready(Err(down)) => return self.lose_own_upstream(down).map(|()| true),
            }
            if muted {
                self.replies.out.truncate(start);
            }
            moved = true;
        }
        Ok(moved)
    }

    /// The upstream Redis has refused a command that had changed the client's state.
    fn undo(&mut self, if_refused: IfRefused) {
        match if_refused {
            IfRefused::Nothing => {}
            IfRefused::StopMonitoring => {
                self.client.monitors = false;
                if let Some(connection) = &mut self.upstream.own {
                    connection.set_monitors(false);
                }
            }
            IfRefused::StopTracking => self.stop_tracking(),
        }
    }

    fn awaits_own_upstream(&self) -> bool {
        self.replies.awaited.iter().any(|item| matches!(item, AwaitedReply::OwnUpstream(_)))
    }

    /// Counts a reply to one of our own commands; notices that the Lua library is gone.
    pub(in crate::server) fn look_at_reply(&mut self, call: &mut UpstreamCall, start: usize) {
        let reply = &self.replies.out[start..];
        if call.audit.is_some() {
            self.audit_reply(call, audit::result_of_bytes(reply));
        }
        if call.added > 0 {
            if let Some(count) = positive_integer(reply) {
                self.replies.out.truncate(start);
                let added = i64::try_from(call.added).unwrap_or(i64::MAX);
                let protocol = self.client.protocol;
                Reply::Int(count.saturating_add(added))
                    .render(&mut Encoder { out: &mut self.replies.out, protocol });
            }
        } else if call.by_lua && lua::says_library_is_gone(reply) {
            if let Some(upstream) = &self.server.upstream {
                upstream.library_is_gone();
            }
            self.replies.out.truncate(start);
            let refusal = Refusal::new("UNAVAILABLE the Lua library of the upstream Redis was flushed and is being loaded again; nothing was done; retry");
            let protocol = self.client.protocol;
            Reply::Error(refusal).render(&mut Encoder { out: &mut self.replies.out, protocol });
        } else if let Some(command) = call.operation {
            let took_us = self.server.now_us().saturating_sub(call.began_us);
            let answered = Answered { command, by: ServedBy::Upstream, waits: call.waits, took_us };
            self.server.stats.count_bytes(answered, reply);
        }
    }

    pub(in crate::server) fn audit_reply(&self, call: &mut UpstreamCall, result: &str) {
        if let (Some(draft), Some(audit)) = (call.audit.take(), &self.server.access.audit) {
            audit.finish(*draft, result);
        }
    }

    /// The upstream Redis is gone: answers what was in flight there, truthfully.
    fn lose_own_upstream(&mut self, down: ConnectionLost) -> Result<(), Disconnect> {
        self.upstream.own = None;
        if down.mid_reply || self.client.depends_on_upstream() {
            return Err(Disconnect);
        }
        if self.upstream.streamed == Some(StreamedCommand::ToUpstream) {
            self.upstream.streamed = Some(StreamedCommand::Discarded);
        }
        let mut had_left = down.unanswered.into_iter();
        let protocol = self.client.protocol;
        for item in &mut self.replies.awaited {
            let AwaitedReply::OwnUpstream(call) = item else { continue };
            call.abandon(&self.server);
            let mut bytes = Vec::new();
            if !call.muted {
                let refusal = own_connection::refusal(&down.reason, had_left.next().unwrap_or(true));
                Reply::Error(refusal).render(&mut Encoder { out: &mut bytes, protocol });
            }
            self.replies.encoded_bytes += bytes.len();
            *item = AwaitedReply::Encoded(bytes);
        }
        self.client.end_all_waits();
        Ok(())
    }

    /// A command too large to hold: its first piece. Goes to the upstream Redis, or is refused and dropped as it comes.
    pub(in crate::server) fn begin_large(&mut self, parser: &mut RequestParser, head: &[u8]) -> usize {
        let excess = parser.excess();
        if !parser.may_stream() {
            self.refuse_large(excess.refusal());
            self.upstream.streamed = Some(StreamedCommand::Discarded);
            return head.len();
        }
        let argv = crate::server::net::connection::words_at(head, parser.words());
        if self.must_see_all_keys(&argv) {
            if self.replies.in_flight != InFlight::Nothing {
                // At its end it is decided by the routes of then, which are taken only when nothing is in flight.
                self.replies.stalled = true;
                parser.reset();
                return 0;
            }
            self.upstream.gathered = head.to_vec();
            self.upstream.streamed = Some(StreamedCommand::Gathered);
            return head.len();
        }
        match self.admit_large(&argv, excess) {
            Ok(Progress::Stalled) => {
                self.replies.stalled = true;
                parser.reset();
                return 0;
            }
            Ok(Progress::Done | Progress::CloseAfterReply) => {
                if let Some(connection) = self.own_connection() {
                    connection.begin_stream(head);
                }
                self.upstream.streamed = Some(StreamedCommand::ToUpstream);
            }
            Err(refusal) => {
                self.refuse_large(refusal);
                self.upstream.streamed = Some(StreamedCommand::Discarded);
            }
        }
        head.len()
    }

    pub(in crate::server) fn pass_piece(
        &mut self,
        parser: &mut RequestParser,
        large: StreamedCommand,
        bytes: &[u8],
    ) -> Result<usize, ProtocolError> {
        let (taken, whole) = parser.stream(bytes)?;
        if large == StreamedCommand::Gathered {
            self.gather(&bytes[..taken], whole, parser.excess());
        }
        if let (StreamedCommand::ToUpstream, Some(connection)) = (large, &mut self.upstream.own) {
            connection.stream(&bytes[..taken]);
            if whole {
                connection.end_stream();
            }
        }
        if whole {
            self.upstream.streamed = None;
            parser.reset();
        }
        Ok(taken)
    }

    fn gather(&mut self, bytes: &[u8], whole: bool, excess: Excess) {
        if self.upstream.gathered.len() + bytes.len() > GATHERED_BYTES_MAX {
            self.upstream.gathered = Vec::new();
            self.upstream.streamed = Some(StreamedCommand::Discarded);
            self.refuse_large(Refusal::new(format!(
                "ERR a command with many keys may have {GATHERED_BYTES_MAX} bytes where routes send keys to the correctness tier or a user's keys are limited; nothing was done; split it"
            )));
            return;
        }
        self.upstream.gathered.extend_from_slice(bytes);
        if !whole {
            return;
        }
        let frame = std::mem::take(&mut self.upstream.gathered);
        assert!(self.follow_routes(), "nothing is under way");
        match self.admit_large(&words_of(&frame), excess) {
            Ok(_) => {
                if let Some(connection) = self.own_connection() {
                    connection.send(&frame);
                }
            }
            Err(refusal) => self.refuse_large(refusal),
        }
    }
}

/// The number of an integer reply, where it is above 0.
fn positive_integer(reply: &[u8]) -> Option<i64> {
    let digits = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|number| *number > 0)
}
