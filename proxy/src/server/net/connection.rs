//! One client's connection: bytes in, commands run, replies out in order.
//!
//! One task a connection, no locks, no buffers while idle: reads go through a scratch buffer of the thread, and only what is not a
//! whole command is kept. [`Connection::poll`] turns until nothing moves: replies that have come, bytes of the Redis behind,
//! messages of channels, held commands, new bytes; then it writes all that has gathered at once.
//!
//! While the client waits for an answer its end of the connection is watched: a client that goes away leaves every queue it
//! stands in, and its sessions are orphaned (`Drop`). What a command does is in [`crate::server::routing::dispatch`].

use crate::resp::encode::Encoder;
use crate::resp::request::{ParseLimits, ProtocolError, RequestParser, Step};
use crate::server::client::registry::ClientInfo;
use crate::server::client::session::Client;
use crate::server::net::deferred_reads::DeferredReads;
use crate::server::net::in_flight::{
    AfterReply, AwaitedCall, AwaitedReply, AwaitedSubscription, InFlight, Source, PENDING_MAX,
};
use crate::server::routing::keys;
use crate::server::routing::router::Router;
use crate::server::routing::waiting::Waiting;
use crate::server::upstream::own::StreamedCommand;
use crate::server::upstream::shared::SharedUpstream;
use crate::server::ServerState;
use crate::tier1::own_connection::{self, OwnConnection};
use crate::tier2::handle::NodeAnswer;
use redfence_core::grammar;
use redfence_core::limits::UNREAD_REPLIES_BYTES_MAX;
use redfence_core::reply::{Refusal, Reply};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Bytes of replies a client may leave unread beyond the one that is being sent. No further reply is taken out for it meanwhile.
pub const UNREAD_BYTES_MAX: usize = UNREAD_REPLIES_BYTES_MAX;
/// Above this the Redis behind is not read from until the client has taken some.
pub(in crate::server) const PASSING_BYTES_MAX: usize = 256 * 1024;
/// Bytes of further commands that are taken in while a client waits for an answer. Behind more of them its end cannot be seen.
pub(in crate::server) const HELD_BYTES_MAX: usize = 1024 * 1024;
/// Replies of this size are sent even if more are about to come.
const WRITE_BYTES_MIN: usize = 64 * 1024;
/// Buffers above this are given back once they are empty.
pub(in crate::server) const KEPT_BYTES_MAX: usize = 16 * 1024;
/// Turns before other tasks get theirs.
const TURNS_MAX: usize = 64;

/// The connection ends. Nothing more is sent.
#[derive(Debug)]
pub struct Disconnect;

/// Whether a command was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Done,
    /// Not run yet: commands in flight elsewhere must be answered first.
    Stalled,
    /// Done. The connection closes once its replies are sent.
    CloseAfterReply,
}

pub struct Connection {
    pub(in crate::server) server: Arc<ServerState>,
    pub(in crate::server) client: Client,
    pub(in crate::server) awaited: VecDeque<AwaitedReply>,
    pub(in crate::server) in_flight: InFlight,
    pub(in crate::server) own_upstream: Option<Box<OwnConnection>>,
    pub(in crate::server) shared_upstream: SharedUpstream,
    pub(in crate::server) stream: TcpStream,
    pub(in crate::server) parser: RequestParser,
    pub(in crate::server) limits: ParseLimits,
    pub(in crate::server) held: Vec<u8>,
    pub(in crate::server) held_at: usize,
    pub(in crate::server) out: Vec<u8>,
    pub(in crate::server) out_at: usize,
    /// Where the last reply that was taken out ends: one reply alone may be larger than what may lie unread.
    pub(in crate::server) reply_end: usize,
    pub(in crate::server) streamed: Option<StreamedCommand>,
    /// What has come of it, where all of it must be seen before it is passed on.
    pub(in crate::server) gathered: Vec<u8>,
    pub(in crate::server) stalled: bool,
    /// Bytes of [`AwaitedReply::Encoded`].
    pub(in crate::server) encoded_bytes: usize,
    /// Logged commands in flight whose replies may be large.
    pub(in crate::server) large_calls: usize,
    pub(in crate::server) deferred_reads: DeferredReads,
    /// What the client's account was last told.
    pub(in crate::server) reported_bytes: usize,
    /// Commands run and not yet counted.
    pub(in crate::server) commands_run: u32,
    pub(in crate::server) closing: bool,
    pub(in crate::server) client_closed: bool,
    pub(in crate::server) timer: Option<Pin<Box<Sleep>>>,
    /// By which commands are decided. Changes only while nothing is in flight.
    pub(in crate::server) router: Arc<Router>,
    /// The card says so.
    is_routed: bool,
    /// The routes were not confirmed lately: what depends on them is refused.
    pub(in crate::server) is_stale: bool,
    /// Of the words on the card.
    pub(in crate::server) waiting_bytes: usize,
}

impl Connection {
    #[must_use]
    pub fn new(server: Arc<ServerState>, stream: TcpStream, client: Client) -> Connection {
        let limits = server.parse_limits_for(&client);
        let router = server.routing.newest();
        Connection {
            server,
            client,
            awaited: VecDeque::new(),
            in_flight: InFlight::Nothing,
            own_upstream: None,
            shared_upstream: SharedUpstream::default(),
            stream,
            parser: RequestParser::default(),
            limits,
            held: Vec::new(),
            held_at: 0,
            out: Vec::new(),
            out_at: 0,
            reply_end: 0,
            streamed: None,
            gathered: Vec::new(),
            stalled: false,
            encoded_bytes: 0,
            large_calls: 0,
            deferred_reads: DeferredReads::default(),
            reported_bytes: 0,
            commands_run: 0,
            closing: false,
            client_closed: false,
            timer: None,
            router,
            is_routed: false,
            is_stale: false,
            waiting_bytes: 0,
        }
    }

    /// Serves the client until either side ends it.
    pub async fn run(mut self) {
        std::future::poll_fn(|context| self.poll(context)).await;
        if self.closing && !self.client_closed {
            self.linger().await;
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for _ in 0..TURNS_MAX {
            match self.turn(context) {
                Ok(true) => {}
                Ok(false) => {
                    self.report_memory();
                    return Poll::Pending;
                }
                Err(Disconnect) => return Poll::Ready(()),
            }
        }
        self.report_memory();
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks at everything once. `Ok(false)`: nothing moved, and everything will wake us.
    fn turn(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        self.check_routes_of_passing()?;
        let mut moved = self.poll_own_upstream(context)?;
        moved |= self.poll_shared(context)?;
        moved |= self.poll_pending(context)?;
        moved |= self.poll_inbox(context)?;
        moved |= self.poll_mailbox(context);
        moved |= self.resume()?;
        moved |= self.poll_read(context)?;
        if self.client_closed && self.waits_without_client() {
            return Err(Disconnect);
        }
        let unsent = self.out.len() - self.out_at;
        if !moved || unsent > WRITE_BYTES_MIN {
            self.poll_write(context)?;
            let all_sent = self.out.is_empty() && self.awaited.is_empty();
            if all_sent && (self.closing || (self.client_closed && !moved)) {
                return Err(Disconnect);
            }
            // There is room again for what the Redis behind has to say.
            moved |= unsent >= PASSING_BYTES_MAX && self.out.len() - self.out_at < PASSING_BYTES_MAX;
        }
        if !moved {
            moved = self.poll_timer(context)?;
        }
        Ok(moved)
    }

    // ---- replies ----

    /// Answers the command just run, behind whatever is in flight.
    pub(in crate::server) fn reply(&mut self, reply: &Reply) {
        self.reply_with(|encoder| reply.render(encoder));
    }

    pub(in crate::server) fn reply_with(&mut self, write: impl FnOnce(&mut Encoder<'_>)) {
        if self.client.is_muted() {
            return;
        }
        let protocol = self.client.protocol;
        if self.awaited.is_empty() {
            let is_next = self.out_at == self.out.len();
            write(&mut Encoder { out: &mut self.out, protocol });
            if is_next {
                self.reply_end = self.out.len();
            }
        } else {
            self.write_behind_pending(|out| write(&mut Encoder { out, protocol }));
        }
    }

    /// Bytes that stand behind every answer in flight.
    pub(in crate::server) fn write_behind_pending(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let waits = !self.awaited.is_empty();
        let out = self.place_behind_pending();
        let before = out.len();
        write(out);
        let written = out.len() - before;
        self.encoded_bytes += if waits { written } else { 0 };
    }

    /// Where bytes go that stand behind every answer in flight.
    fn place_behind_pending(&mut self) -> &mut Vec<u8> {
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

    fn poll_pending(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        let mut moved = false;
        while let Some(front) = self.awaited.front_mut() {
            // What the client has not read yet comes first: the rest waits where it is.
            if self.out.len() - self.out_at > UNREAD_BYTES_MAX {
                break;
            }
            match front {
                AwaitedReply::Encoded(bytes) => {
                    self.encoded_bytes -= bytes.len();
                    self.out.append(bytes);
                    self.awaited.pop_front();
                }
                AwaitedReply::Call(AwaitedCall { source: Source::Deferred(_), .. }) => {
                    if !self.ask_deferred(context) {
                        break;
                    }
                }
                AwaitedReply::Call(call) => {
                    if call.waits && crate::server::net::socket::has_hung_up(&self.stream) {
                        // Before a grant is taken out for it: nobody would be left to have it.
                        return Err(Disconnect);
                    }
                    match call.source.poll(context) {
                        Poll::Pending => break,
                        Poll::Ready(NodeAnswer::Deferred(query)) => {
                            call.source = Source::Deferred(query);
                            self.deferred_reads.begin();
                        }
                        Poll::Ready(NodeAnswer::Reply { reply, counted }) => {
                            if call.is_routed && is_grant(&reply) {
                                match routes_still_hold(&self.server, &self.router, &self.client.info) {
                                    Some(true) => {}
                                    holds => {
                                        // Where the connection ends it is given back.
                                        call.source = Source::Answered { reply, counted };
                                        return self.hold_answer(context, holds).map(|()| moved);
                                    }
                                }
                            }
                            let Some(AwaitedReply::Call(call)) = self.awaited.pop_front() else {
                                unreachable!("seen")
                            };
                            self.client.account.take_reply(counted);
                            self.finish_call(call, reply);
                        }
                    }
                }
                AwaitedReply::Subscription(confirm) => {
                    let Poll::Ready(confirmed) = Pin::new(&mut confirm.confirmed).poll(context) else {
                        break;
                    };
                    let Some(AwaitedReply::Subscription(confirm)) = self.awaited.pop_front() else {
                        unreachable!("seen")
                    };
                    self.finish_confirm(
                        confirm,
                        confirmed.unwrap_or_else(|_| Err("it is shutting down".into())),
                    );
                }
                AwaitedReply::OwnUpstream(_) | AwaitedReply::SharedUpstream(_) => break,
            }
            moved = true;
        }
        if self.awaited.is_empty() && self.in_flight != InFlight::Nothing {
            self.in_flight = InFlight::Nothing;
            self.stalled = false;
            self.large_calls = 0;
            self.leave_routes();
            moved = true;
        }
        Ok(moved)
    }

    /// The first answer was decided by routes that are in force no more (`Some`), or may be.
    fn hold_answer(&self, context: &Context<'_>, holds: Option<bool>) -> Result<(), Disconnect> {
        if holds.is_some() {
            tracing::info!(
                client = self.client.info.id,
                "routes changed; a grant by the old ones is not told"
            );
            return Err(Disconnect);
        }
        // Until this node follows the routes that its state has.
        let waker = context.waker().clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            waker.wake();
        });
        Ok(())
    }

    fn finish_call(&mut self, call: AwaitedCall, reply: Reply) {
        self.server.stats.count(&reply, self.server.now_us().saturating_sub(call.began_us));
        if call.waits {
            self.client.set_waiting(false);
        }
        let shown = self.follow(call.after_reply, reply);
        if !call.muted {
            let protocol = self.client.protocol;
            shown.render(&mut Encoder { out: &mut self.out, protocol });
            self.reply_end = self.out.len();
        }
    }

    /// Bytes beyond the reply that is being sent.
    pub(in crate::server) fn unread_bytes(&self) -> usize {
        self.out.len() - self.out_at.max(self.reply_end)
    }

    /// Carries an answer over into the state of the client; gives back what the client is to see of it.
    fn follow(&mut self, then: AfterReply, reply: Reply) -> Reply {
        match (then, reply) {
            (AfterReply::Session(step), reply) => {
                if let (Some(sessions), Some(id)) = (&self.client.sessions, step.forgets(&reply)) {
                    sessions.forget(id);
                }
                reply
            }
            (AfterReply::Say(said), reply) if !reply.is_error() => said,
            (AfterReply::Watch { db, keys }, Reply::Array(tokens)) => {
                self.client.watch(db, keys, &tokens);
                Reply::OK
            }
            (AfterReply::Select(places), Reply::Array(replies)) => {
                let moved = places.iter().rev().find(|(at, _)| replies.get(*at) == Some(&Reply::OK));
                if let Some((_, db)) = moved {
                    self.set_database(*db);
                }
                Reply::Array(replies)
            }
            (
                AfterReply::Nothing | AfterReply::Say(_) | AfterReply::Watch { .. } | AfterReply::Select(_),
                reply,
            ) => reply,
        }
    }

    fn finish_confirm(&mut self, confirm: AwaitedSubscription, confirmed: Result<(), String>) {
        match confirmed {
            Ok(()) => self.confirm(confirm.kind, &confirm.names),
            Err(reason) => self.take_back_subscription(confirm, &reason),
        }
    }

    // ---- requests ----

    pub(in crate::server) fn can_go_on(&self) -> bool {
        !self.closing
            && !self.stalled
            && self.in_flight != InFlight::Alone
            && self.awaited.len() < PENDING_MAX
            && self.encoded_bytes <= UNREAD_BYTES_MAX
            && !self.deferred_reads.is_under_way()
            && self.shared_upstream.has_room()
            && self
                .own_upstream
                .as_ref()
                .is_none_or(|connection| connection.unsent_bytes() < own_connection::UNSENT_BYTES_MAX)
    }

    /// Goes on with commands that were held.
    fn resume(&mut self) -> Result<bool, Disconnect> {
        if self.held_at == self.held.len() || !self.can_go_on() {
            return Ok(false);
        }
        let held = std::mem::take(&mut self.held);
        let taken = self.process(&held[self.held_at..])?;
        self.held = held;
        self.held_at += taken;
        if self.held_at == self.held.len() {
            self.held_at = 0;
            self.held.clear();
            if self.held.capacity() > KEPT_BYTES_MAX {
                self.held = Vec::new();
            }
        } else if self.held_at > HELD_BYTES_MAX {
            self.held.drain(..self.held_at);
            self.held_at = 0;
        }
        Ok(taken > 0)
    }

    /// Runs whole commands from the front of `bytes`; answers how many bytes are dealt with.
    pub(in crate::server) fn process(&mut self, bytes: &[u8]) -> Result<usize, Disconnect> {
        let outcome = self.process_each(bytes);
        self.send_shared();
        self.leave_routes();
        self.note_commands();
        outcome
    }

    fn process_each(&mut self, bytes: &[u8]) -> Result<usize, Disconnect> {
        let mut at = 0;
        while at < bytes.len() && self.can_go_on() {
            if self.streamed.is_none() && !self.follow_routes() {
                self.stalled = true;
                break;
            }
            let step = match self.streamed {
                Some(large) => self.pass_piece(large, &bytes[at..]),
                None => match self.pass_run(&bytes[at..]) {
                    0 => self.run_one(&bytes[at..]),
                    passed => Ok(passed),
                },
            };
            match step {
                Ok(0) => break,
                Ok(taken) => at += taken,
                Err(ProtocolError(text)) => {
                    self.reply(&Reply::Error(Refusal::new(format!("ERR Protocol error: {text}"))));
                    self.begin_close();
                    return Ok(bytes.len());
                }
            }
            if self.unread_bytes() > UNREAD_BYTES_MAX && !self.try_write_now()? {
                tracing::info!(
                    client = self.client.info.id,
                    "a client does not read its replies; it is disconnected"
                );
                return Err(Disconnect);
            }
        }
        Ok(if self.closing { bytes.len() } else { at })
    }

    /// Runs the command at the front of `frame`. 0: it is not whole, or must wait.
    fn run_one(&mut self, frame: &[u8]) -> Result<usize, ProtocolError> {
        let (flow, len) = match self.parser.parse(frame, self.limits)? {
            Step::Incomplete => return Ok(0),
            Step::Nothing { len } => (Progress::Done, len),
            Step::Command { len } => {
                let argv = words_at(frame, self.parser.words());
                let flow = self.execute(&argv, Some(&frame[..len]));
                self.note_waiting(&argv);
                (flow, len)
            }
            Step::Inline { len } => {
                let words = self.parser.take_inline_words();
                let argv: SmallVec<[&[u8]; 16]> = words.iter().map(Vec::as_slice).collect();
                let flow = self.execute(&argv, None);
                self.note_waiting(&argv);
                (flow, len)
            }
            Step::Large { seen } => return Ok(self.begin_large(&frame[..seen])),
        };
        self.parser.reset();
        match flow {
            Progress::Done => Ok(len),
            Progress::Stalled => {
                self.stalled = true;
                Ok(0)
            }
            Progress::CloseAfterReply => {
                self.begin_close();
                Ok(len)
            }
        }
    }

    // ---- routes ----

    /// Says on the card what is in flight, if it is one command that may wait for long.
    fn note_waiting(&mut self, argv: &[&[u8]]) {
        let alone =
            self.awaited.len() == 1 && matches!(self.in_flight, InFlight::Alone | InFlight::OwnUpstream);
        if !alone || !self.is_routed || !self.router.has_upstream() || self.client.transaction.is_some() {
            return;
        }
        if grammar::is_ours(argv[0]) || !keys::may_share(argv[0]) {
            let waiting = Waiting::of(&self.router, self.client.listener_kind, argv);
            self.waiting_bytes = waiting.as_ref().map_or(0, Waiting::bytes);
            self.client.info.set_waiting(waiting);
        }
    }

    fn clear_waiting(&mut self) {
        if std::mem::take(&mut self.waiting_bytes) > 0 {
            self.client.info.set_waiting(None);
        }
    }

    /// Nothing that is in flight depends on routes.
    pub(in crate::server) fn needs_no_routes(&mut self) {
        self.is_routed = false;
        self.client.info.clear_routed_by();
    }

    /// Whether the next command may be decided: by the newest router, which is taken when nothing is in flight.
    pub(in crate::server) fn follow_routes(&mut self) -> bool {
        let newest = self.server.routing.generation();
        let may_go_on = if self.is_routed {
            self.router.generation == newest || self.in_flight == InFlight::Nothing && self.take_routes()
        } else {
            self.take_routes()
        };
        if may_go_on {
            self.clear_waiting();
        }
        may_go_on
    }

    fn take_routes(&mut self) -> bool {
        loop {
            if self.router.generation != self.server.routing.generation() {
                self.router = self.server.routing.newest();
                if let Some(transaction) = &mut self.client.transaction {
                    // What it has queued was decided by older routes.
                    transaction.must_abort = true;
                }
            }
            // First the card, then another look: a router put in force in between waits for us or is seen by us.
            self.client.info.set_routed_by(self.router.generation);
            if self.server.routing.generation() == self.router.generation {
                break;
            }
        }
        self.is_routed = true;
        self.is_stale = self.server.upstream.is_some() && !self.server.routing.is_fresh(self.server.now_ms());
        true
    }

    fn leave_routes(&mut self) {
        if self.is_routed && self.in_flight == InFlight::Nothing {
            self.clear_waiting();
            self.needs_no_routes();
        }
    }

    /// What the Redis behind answers is told only while the routes hold by which it was asked: a name may belong to the other
    /// tier by now, and have another holder there.
    fn check_routes_of_passing(&self) -> Result<(), Disconnect> {
        let passes = match self.in_flight {
            InFlight::OwnUpstream | InFlight::SharedUpstream => !self.awaited.is_empty(),
            // A wait in Lua. What else is alone there is asked of Tier 2.
            InFlight::Alone => self.awaited.iter().any(AwaitedReply::is_asked_of_upstream),
            InFlight::Nothing | InFlight::Tier2 | InFlight::Reads => false,
        };
        if passes && !self.server.routing.is_fresh(self.server.now_ms()) {
            tracing::info!(
                client = self.client.info.id,
                "no word from a leader: a client served by the Redis is disconnected"
            );
            return Err(Disconnect);
        }
        Ok(())
    }

    /// Authentication or the listener decide what the parser lets through.
    pub(in crate::server) fn renew_limits(&mut self) {
        self.limits = self.server.parse_limits_for(&self.client);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for item in self.awaited.drain(..) {
            if let AwaitedReply::Call(call) = item {
                call.abandon(&self.server);
            }
        }
        self.shared_upstream.leave();
        self.drop_subscriptions();
        self.server.tracker.left(self.client.info.id);
        self.client.leave_sessions(&self.server.session_keepalive);
        self.server.clients.leave(self.client.info.id);
        self.client.account.leave();
    }
}

/// Whether it tells the client that it has something now.
fn is_grant(reply: &Reply) -> bool {
    !reply.is_error() && !matches!(reply, Reply::Nil | Reply::NilArray)
}

/// Whether the routes in force decide what is in flight as it was decided. `None`: they are not known here yet.
fn routes_still_hold(server: &ServerState, router: &Router, info: &ClientInfo) -> Option<bool> {
    let version = server.tier2.routing_version();
    if router.covers(version) {
        return Some(true);
    }
    let newest = server.routing.newest();
    let alike = || info.waiting().as_ref().is_some_and(|waiting| waiting.is_decided_alike_by(&newest));
    newest.covers(version).then(alike)
}

pub(in crate::server) fn words_at<'a>(
    frame: &'a [u8],
    spans: &[crate::resp::request::Span],
) -> SmallVec<[&'a [u8]; 16]> {
    spans.iter().map(|(start, len)| &frame[*start as usize..][..*len as usize]).collect()
}
