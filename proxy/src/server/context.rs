//! What a command sees of its connection: the client's state, the replies, the upstream connections and the routes in force.
//!
//! The socket and the parser are not part of it ([`crate::server::net::connection`]). A command reads its words, changes the
//! client's state and then replies at once ([`CommandContext::reply`]), submits to Tier 2 ([`CommandContext::await_call`]) or
//! forwards to the upstream (`send_to_upstream`).

use crate::resp::encode::Encoder;
use crate::resp::request::ParseLimits;
use crate::server::client::session::Client;
use crate::server::client::shown::LastCommand;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{
    AfterReply, AwaitedCall, AwaitedReply, IfAbandoned, InFlight, SharedUpstreamCalls, Source,
};
use crate::server::net::replies::ReplyQueue;
use crate::server::routing::followed_routes::FollowedRoutes;
use crate::server::stats::CommandKind;
use crate::server::upstream::UpstreamConnections;
use crate::server::ServerState;
use redfence_core::reply::{Refusal, Reply};
use std::sync::Arc;

pub struct CommandContext {
    pub(in crate::server) server: Arc<ServerState>,
    pub(in crate::server) client: Client,
    pub(in crate::server) replies: ReplyQueue,
    pub(in crate::server) upstream: UpstreamConnections,
    pub(in crate::server) routes: FollowedRoutes,
    /// The error that the command was answered with at once, for the audit log; kept only where there is one.
    pub(in crate::server) refused_with: Option<Refusal>,
    /// The command that is being run, for metrics.
    pub(in crate::server) command: CommandKind,
    /// Commands run and not yet counted.
    pub(in crate::server) commands_run: u32,
    pub(in crate::server) last_command: LastCommand,
    /// What this poll of the connection has done so far, in units of about a microsecond.
    pub(in crate::server) work: u32,
    /// When those that are being run were read: one look at the clock for all that came together.
    pub(in crate::server) read_us: u64,
}

impl CommandContext {
    #[must_use]
    pub(in crate::server) fn new(server: Arc<ServerState>, client: Client) -> CommandContext {
        let routes = FollowedRoutes::new(server.routing.newest());
        CommandContext {
            server,
            client,
            replies: ReplyQueue::default(),
            upstream: UpstreamConnections::default(),
            routes,
            refused_with: None,
            command: CommandKind::Other,
            commands_run: 0,
            last_command: LastCommand::default(),
            work: 0,
            read_us: 0,
        }
    }

    /// What the parser lets through: depends on authentication and on the listener.
    pub(in crate::server) fn parse_limits(&self) -> ParseLimits {
        self.server.parse_limits_for(&self.client)
    }

    /// Answers the command just run, behind whatever is in flight.
    pub(in crate::server) fn reply(&mut self, reply: &Reply) {
        if let Reply::Error(refusal) = reply {
            self.server.stats.count_error(refusal.code());
            if self.server.access.audit.is_some() {
                self.refused_with = Some(refusal.clone());
            }
        }
        self.reply_with(|encoder| reply.render(encoder));
    }

    pub(in crate::server) fn reply_with(&mut self, write: impl FnOnce(&mut Encoder<'_>)) {
        if self.client.is_muted() {
            return;
        }
        let protocol = self.client.protocol;
        if self.replies.awaited.is_empty() {
            let is_next = self.replies.out_at == self.replies.out.len();
            write(&mut Encoder { out: &mut self.replies.out, protocol });
            if is_next {
                self.replies.reply_end = self.replies.out.len();
            }
        } else {
            self.replies.write_behind(|out| write(&mut Encoder { out, protocol }));
        }
    }

    pub(in crate::server) fn refuse(&mut self, refusal: Refusal) -> Progress {
        self.reply(&Reply::Error(refusal));
        Progress::Done
    }

    /// Awaits the answer to a command that was just submitted.
    pub(in crate::server) fn await_call(
        &mut self,
        in_flight: InFlight,
        source: Source,
        waits: bool,
        if_abandoned: IfAbandoned,
    ) {
        self.replies.in_flight = in_flight;
        if waits {
            self.client.begin_wait();
            match &source {
                Source::Tier2(_) | Source::Channel(_) => self.client.info.unblock.begin(),
                // It waits for a version of the cluster first, and stands in no queue.
                Source::Node(_) | Source::Deferred(_) | Source::Answered { .. } => {}
            }
        }
        let (muted, began_us) = (self.client.is_muted(), self.read_us);
        let kept_bytes = if_abandoned.bytes();
        self.replies.kept_bytes += kept_bytes;
        self.replies.awaited.push_back(AwaitedReply::Call(AwaitedCall {
            source,
            command: self.command,
            waits,
            is_routed: false,
            muted,
            began_us,
            if_abandoned,
            after_reply: AfterReply::Nothing,
            kept_bytes,
            audit: None,
            admin_acts: None,
            withdraw: None,
            unblocked: None,
        }));
    }

    /// What is to be done with the answer to the call that was just begun.
    pub(in crate::server) fn then(&mut self, then: AfterReply) {
        let Some(AwaitedReply::Call(call)) = self.replies.awaited.back_mut() else {
            unreachable!("the call was just begun")
        };
        let bytes = then.bytes();
        call.kept_bytes += bytes;
        call.after_reply = then;
        self.replies.kept_bytes += bytes;
    }

    /// Brings up to date what `CLIENT LIST` shows of this client.
    pub(in crate::server) fn show_state(&self) {
        self.client.info.shown.store(&self.last_command, &self.client);
    }

    /// Whether there is an upstream Redis. Where there is none the connection's part for it is not looked at: with many connections
    /// each of them is out of the CPU's caches when its turn comes, and every line of it that is touched counts.
    #[inline]
    pub(in crate::server) fn has_redis(&self) -> bool {
        self.server.upstream.is_some()
    }

    /// Whether neither Tier 2 nor an upstream connection has anything to say.
    pub(in crate::server) fn awaits_nothing(&self) -> bool {
        self.replies.awaited.is_empty() && (!self.has_redis() || self.upstream.are_none())
    }

    /// Whether a command of this kind may start now.
    pub(in crate::server) fn can_join(&self, in_flight: InFlight) -> bool {
        self.replies.in_flight == InFlight::Nothing
            || (self.replies.in_flight == in_flight && in_flight != InFlight::Alone)
    }
}

impl Drop for CommandContext {
    fn drop(&mut self) {
        for item in std::mem::take(&mut self.replies.awaited) {
            match item {
                AwaitedReply::Call(call) => call.abandon(&self.server),
                AwaitedReply::OwnUpstream(mut call)
                | AwaitedReply::SharedUpstream(SharedUpstreamCalls { mut call, .. }) => {
                    call.abandon(&self.server)
                }
                AwaitedReply::Subscription(awaited) => self.take_back_subscription(&awaited),
                AwaitedReply::Encoded(_) => {}
            }
        }
        self.upstream.shared.leave();
        self.drop_subscriptions();
        self.server.tracker.left(self.client.info.id);
        self.stop_notifying();
        self.client.leave_sessions(&self.server.session_keepalive);
        self.server.clients.leave(self.client.info.id);
        self.client.account.leave();
    }
}
