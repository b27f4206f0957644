//! One client's connection: bytes in, commands run, replies out in order.
//!
//! One task a connection, no locks, no buffers while idle: reads go through a scratch buffer of the thread, and only what is not a
//! whole command is kept. [`Connection::poll`] turns until nothing moves: replies that have come, bytes of the Redis behind,
//! messages of channels, held commands, new bytes; then it writes all that has gathered at once.
//!
//! While the client waits for an answer its end of the connection is watched: a client that goes away leaves every queue it
//! stands in, and its sessions are orphaned (`Drop`). What a command does is in [`crate::server::routing::dispatch`].

use crate::resp::encode::Encoder;
use crate::resp::request::{ProtocolError, RequestParser, Sender, Step};
use crate::server::client::registry::Card;
use crate::server::client::session::Client;
use crate::server::net::deferring::Deferring;
use crate::server::net::pending::{Call, Confirm, Lane, Pending, Source, Then, PENDING_MAX};
use crate::server::routing::keys;
use crate::server::routing::router::Router;
use crate::server::routing::waiting::Waiting;
use crate::server::upstream::own::Large;
use crate::server::upstream::shared::Sharing;
use crate::server::Shared;
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
pub struct End;

/// Whether a command was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Done,
    /// Not yet: commands on another lane come first.
    Stall,
    /// Done, and the connection ends once its replies are sent.
    Last,
}

pub struct Connection {
    pub(in crate::server) shared: Arc<Shared>,
    pub(in crate::server) client: Client,
    pub(in crate::server) pending: VecDeque<Pending>,
    pub(in crate::server) lane: Lane,
    pub(in crate::server) own_upstream: Option<Box<OwnConnection>>,
    pub(in crate::server) sharing: Sharing,
    pub(in crate::server) stream: TcpStream,
    pub(in crate::server) parser: RequestParser,
    pub(in crate::server) sender: Sender,
    pub(in crate::server) held: Vec<u8>,
    pub(in crate::server) held_at: usize,
    pub(in crate::server) out: Vec<u8>,
    pub(in crate::server) out_at: usize,
    /// Where the last reply that was taken out ends: one reply alone may be larger than what may lie unread.
    pub(in crate::server) reply_end: usize,
    pub(in crate::server) large: Option<Large>,
    /// What has come of it, where all of it must be seen before it is passed on.
    pub(in crate::server) gathered: Vec<u8>,
    pub(in crate::server) stalled: bool,
    /// Bytes of [`Pending::Encoded`].
    pub(in crate::server) encoded_bytes: usize,
    /// Logged commands under way whose replies may be large.
    pub(in crate::server) large_calls: usize,
    pub(in crate::server) deferring: Deferring,
    /// What the client's account was last told.
    pub(in crate::server) reported_bytes: usize,
    /// Commands run and not yet counted.
    pub(in crate::server) commands_run: u32,
    pub(in crate::server) ending: bool,
    pub(in crate::server) gone: bool,
    pub(in crate::server) timer: Option<Pin<Box<Sleep>>>,
    /// By which commands are decided. Changes only while nothing is under way.
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
    pub fn new(shared: Arc<Shared>, stream: TcpStream, client: Client) -> Connection {
        let sender = shared.sender_for(&client);
        let router = shared.routing.newest();
        Connection {
            shared,
            client,
            pending: VecDeque::new(),
            lane: Lane::Free,
            own_upstream: None,
            sharing: Sharing::default(),
            stream,
            parser: RequestParser::default(),
            sender,
            held: Vec::new(),
            held_at: 0,
            out: Vec::new(),
            out_at: 0,
            reply_end: 0,
            large: None,
            gathered: Vec::new(),
            stalled: false,
            encoded_bytes: 0,
            large_calls: 0,
            deferring: Deferring::default(),
            reported_bytes: 0,
            commands_run: 0,
            ending: false,
            gone: false,
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
        if self.ending && !self.gone {
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
                Err(End) => return Poll::Ready(()),
            }
        }
        self.report_memory();
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks at everything once. `Ok(false)`: nothing moved, and everything will wake us.
    fn turn(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        self.check_routes_of_passing()?;
        let mut moved = self.poll_own_upstream(context)?;
        moved |= self.poll_shared(context)?;
        moved |= self.poll_pending(context)?;
        moved |= self.poll_inbox(context)?;
        moved |= self.poll_mailbox(context);
        moved |= self.resume()?;
        moved |= self.poll_read(context)?;
        if self.gone && self.waits_in_vain() {
            return Err(End);
        }
        let unsent = self.out.len() - self.out_at;
        if !moved || unsent > WRITE_BYTES_MIN {
            self.poll_write(context)?;
            let all_sent = self.out.is_empty() && self.pending.is_empty();
            if all_sent && (self.ending || (self.gone && !moved)) {
                return Err(End);
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

    /// Answers the command just run, behind whatever is under way.
    pub(in crate::server) fn reply(&mut self, reply: &Reply) {
        self.reply_with(|encoder| reply.render(encoder));
    }

    pub(in crate::server) fn reply_with(&mut self, write: impl FnOnce(&mut Encoder<'_>)) {
        if self.client.is_muted() {
            return;
        }
        let protocol = self.client.protocol;
        if self.pending.is_empty() {
            let is_next = self.out_at == self.out.len();
            write(&mut Encoder { out: &mut self.out, protocol });
            if is_next {
                self.reply_end = self.out.len();
            }
        } else {
            self.write_behind_pending(|out| write(&mut Encoder { out, protocol }));
        }
    }

    /// Bytes that stand behind every answer under way.
    pub(in crate::server) fn write_behind_pending(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let waits = !self.pending.is_empty();
        let out = self.place_behind_pending();
        let before = out.len();
        write(out);
        let written = out.len() - before;
        self.encoded_bytes += if waits { written } else { 0 };
    }

    /// Where bytes go that stand behind every answer under way.
    fn place_behind_pending(&mut self) -> &mut Vec<u8> {
        match self.pending.back() {
            None => return &mut self.out,
            Some(Pending::Encoded(_)) => {}
            Some(Pending::Call(_) | Pending::Redis(_) | Pending::Shared(_) | Pending::Confirm(_)) => {
                self.pending.push_back(Pending::Encoded(Vec::new()));
            }
        }
        match self.pending.back_mut() {
            Some(Pending::Encoded(bytes)) => bytes,
            _ => unreachable!("seen or just pushed"),
        }
    }

    fn poll_pending(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let mut moved = false;
        while let Some(front) = self.pending.front_mut() {
            // What the client has not read yet comes first: the rest waits where it is.
            if self.out.len() - self.out_at > UNREAD_BYTES_MAX {
                break;
            }
            match front {
                Pending::Encoded(bytes) => {
                    self.encoded_bytes -= bytes.len();
                    self.out.append(bytes);
                    self.pending.pop_front();
                }
                Pending::Call(Call { source: Source::Deferred(_), .. }) => {
                    if !self.ask_deferred(context) {
                        break;
                    }
                }
                Pending::Call(call) => {
                    if call.waits && crate::server::net::socket::has_hung_up(&self.stream) {
                        // Before a grant is taken out for it: nobody would be left to have it.
                        return Err(End);
                    }
                    match call.source.poll(context) {
                        Poll::Pending => break,
                        Poll::Ready(NodeAnswer::Deferred(query)) => {
                            call.source = Source::Deferred(query);
                            self.deferring.begin();
                        }
                        Poll::Ready(NodeAnswer::Reply { reply, counted }) => {
                            if call.is_routed && is_grant(&reply) {
                                match routes_still_hold(&self.shared, &self.router, &self.client.card) {
                                    Some(true) => {}
                                    holds => {
                                        // Where the connection ends it is given back.
                                        call.source = Source::Answered { reply, counted };
                                        return self.hold_answer(context, holds).map(|()| moved);
                                    }
                                }
                            }
                            let Some(Pending::Call(call)) = self.pending.pop_front() else {
                                unreachable!("seen")
                            };
                            self.client.account.take_reply(counted);
                            self.finish_call(call, reply);
                        }
                    }
                }
                Pending::Confirm(confirm) => {
                    let Poll::Ready(confirmed) = Pin::new(&mut confirm.confirmed).poll(context) else {
                        break;
                    };
                    let Some(Pending::Confirm(confirm)) = self.pending.pop_front() else {
                        unreachable!("seen")
                    };
                    self.finish_confirm(
                        confirm,
                        confirmed.unwrap_or_else(|_| Err("it is shutting down".into())),
                    );
                }
                Pending::Redis(_) | Pending::Shared(_) => break,
            }
            moved = true;
        }
        if self.pending.is_empty() && self.lane != Lane::Free {
            self.lane = Lane::Free;
            self.stalled = false;
            self.large_calls = 0;
            self.leave_routes();
            moved = true;
        }
        Ok(moved)
    }

    /// The first answer was decided by routes that are in force no more (`Some`), or may be.
    fn hold_answer(&self, context: &Context<'_>, holds: Option<bool>) -> Result<(), End> {
        if holds.is_some() {
            tracing::info!(
                client = self.client.card.id,
                "routes changed; a grant by the old ones is not told"
            );
            return Err(End);
        }
        // Until this node follows the routes that its state has.
        let waker = context.waker().clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            waker.wake();
        });
        Ok(())
    }

    fn finish_call(&mut self, call: Call, reply: Reply) {
        self.shared.stats.count(&reply, self.shared.now_us().saturating_sub(call.began_us));
        if call.waits {
            self.client.set_waiting(false);
        }
        let shown = self.follow(call.then, reply);
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
    fn follow(&mut self, then: Then, reply: Reply) -> Reply {
        match (then, reply) {
            (Then::Session(step), reply) => {
                if let (Some(sessions), Some(id)) = (&self.client.sessions, step.forgets(&reply)) {
                    sessions.forget(id);
                }
                reply
            }
            (Then::Say(said), reply) if !reply.is_error() => said,
            (Then::Watch { db, keys }, Reply::Array(tokens)) => {
                self.client.watch(db, keys, &tokens);
                Reply::OK
            }
            (Then::Select(places), Reply::Array(replies)) => {
                let moved = places.iter().rev().find(|(at, _)| replies.get(*at) == Some(&Reply::OK));
                if let Some((_, db)) = moved {
                    self.set_database(*db);
                }
                Reply::Array(replies)
            }
            (Then::Nothing | Then::Say(_) | Then::Watch { .. } | Then::Select(_), reply) => reply,
        }
    }

    fn finish_confirm(&mut self, confirm: Confirm, confirmed: Result<(), String>) {
        match confirmed {
            Ok(()) => self.confirm(confirm.kind, &confirm.names),
            Err(reason) => self.take_back_subscription(confirm, &reason),
        }
    }

    // ---- requests ----

    pub(in crate::server) fn can_go_on(&self) -> bool {
        !self.ending
            && !self.stalled
            && self.lane != Lane::Alone
            && self.pending.len() < PENDING_MAX
            && self.encoded_bytes <= UNREAD_BYTES_MAX
            && !self.deferring.is_under_way()
            && self.sharing.has_room()
            && self
                .own_upstream
                .as_ref()
                .is_none_or(|connection| connection.unsent_bytes() < own_connection::UNSENT_BYTES_MAX)
    }

    /// Goes on with commands that were held.
    fn resume(&mut self) -> Result<bool, End> {
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
    pub(in crate::server) fn process(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let outcome = self.process_each(bytes);
        self.send_shared();
        self.leave_routes();
        self.note_commands();
        outcome
    }

    fn process_each(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let mut at = 0;
        while at < bytes.len() && self.can_go_on() {
            if self.large.is_none() && !self.follow_routes() {
                self.stalled = true;
                break;
            }
            let step = match self.large {
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
                    self.begin_to_end();
                    return Ok(bytes.len());
                }
            }
            if self.unread_bytes() > UNREAD_BYTES_MAX && !self.try_write_now()? {
                tracing::info!(
                    client = self.client.card.id,
                    "a client does not read its replies; it is disconnected"
                );
                return Err(End);
            }
        }
        Ok(if self.ending { bytes.len() } else { at })
    }

    /// Runs the command at the front of `frame`. 0: it is not whole, or must wait.
    fn run_one(&mut self, frame: &[u8]) -> Result<usize, ProtocolError> {
        let (flow, len) = match self.parser.parse(frame, self.sender)? {
            Step::Incomplete => return Ok(0),
            Step::Nothing { len } => (Flow::Done, len),
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
            Flow::Done => Ok(len),
            Flow::Stall => {
                self.stalled = true;
                Ok(0)
            }
            Flow::Last => {
                self.begin_to_end();
                Ok(len)
            }
        }
    }

    // ---- routes ----

    /// Says on the card what is under way, if it is one command that may wait for long.
    fn note_waiting(&mut self, argv: &[&[u8]]) {
        let alone = self.pending.len() == 1 && matches!(self.lane, Lane::Alone | Lane::Redis);
        if !alone || !self.is_routed || !self.router.has_redis() || self.client.transaction.is_some() {
            return;
        }
        if grammar::is_ours(argv[0]) || !keys::may_share(argv[0]) {
            let waiting = Waiting::of(&self.router, self.client.door, argv);
            self.waiting_bytes = waiting.as_ref().map_or(0, Waiting::bytes);
            self.client.card.set_waiting(waiting);
        }
    }

    fn clear_waiting(&mut self) {
        if std::mem::take(&mut self.waiting_bytes) > 0 {
            self.client.card.set_waiting(None);
        }
    }

    /// Nothing that is under way depends on routes.
    pub(in crate::server) fn needs_no_routes(&mut self) {
        self.is_routed = false;
        self.client.card.clear_routed_by();
    }

    /// Whether the next command may be decided: by the newest router, which is taken when nothing is under way.
    pub(in crate::server) fn follow_routes(&mut self) -> bool {
        let newest = self.shared.routing.generation();
        let may_go_on = if self.is_routed {
            self.router.generation == newest || self.lane == Lane::Free && self.take_routes()
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
            if self.router.generation != self.shared.routing.generation() {
                self.router = self.shared.routing.newest();
                if let Some(transaction) = &mut self.client.transaction {
                    // What it has queued was decided by older routes.
                    transaction.spoilt = true;
                }
            }
            // First the card, then another look: a router put in force in between waits for us or is seen by us.
            self.client.card.set_routed_by(self.router.generation);
            if self.shared.routing.generation() == self.router.generation {
                break;
            }
        }
        self.is_routed = true;
        self.is_stale = self.shared.upstream.is_some() && !self.shared.routing.is_fresh(self.shared.now_ms());
        true
    }

    fn leave_routes(&mut self) {
        if self.is_routed && self.lane == Lane::Free {
            self.clear_waiting();
            self.needs_no_routes();
        }
    }

    /// What the Redis behind answers is told only while the routes hold by which it was asked: a name may belong to the other
    /// tier by now, and have another holder there.
    fn check_routes_of_passing(&self) -> Result<(), End> {
        let passes = match self.lane {
            Lane::Redis | Lane::Shared => !self.pending.is_empty(),
            // A wait in Lua. What else is alone there is asked of Tier 2.
            Lane::Alone => self.pending.iter().any(Pending::is_asked_of_redis),
            Lane::Free | Lane::Tier2 | Lane::Reads => false,
        };
        if passes && !self.shared.routing.is_fresh(self.shared.now_ms()) {
            tracing::info!(
                client = self.client.card.id,
                "no word from a leader: a client served by the Redis is disconnected"
            );
            return Err(End);
        }
        Ok(())
    }

    /// Authentication or the door decide what the parser lets through.
    pub(in crate::server) fn renew_limits(&mut self) {
        self.sender = self.shared.sender_for(&self.client);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for item in self.pending.drain(..) {
            if let Pending::Call(call) = item {
                call.abandon(&self.shared);
            }
        }
        self.sharing.leave();
        self.drop_subscriptions();
        self.shared.tracker.left(self.client.card.id);
        self.client.leave_sessions(&self.shared.session_keepalive);
        self.shared.clients.leave(self.client.card.id);
        self.client.account.leave();
    }
}

/// Whether it tells the client that it has something now.
fn is_grant(reply: &Reply) -> bool {
    !reply.is_error() && !matches!(reply, Reply::Nil | Reply::NilArray)
}

/// Whether the routes in force decide what is under way as it was decided. `None`: they are not known here yet.
fn routes_still_hold(shared: &Shared, router: &Router, card: &Card) -> Option<bool> {
    let version = shared.tier2.routing_version();
    if router.covers(version) {
        return Some(true);
    }
    let newest = shared.routing.newest();
    let alike = || card.waiting().as_ref().is_some_and(|waiting| waiting.is_decided_alike_by(&newest));
    newest.covers(version).then(alike)
}

pub(in crate::server) fn words_at<'a>(
    frame: &'a [u8],
    spans: &[crate::resp::request::Span],
) -> SmallVec<[&'a [u8]; 16]> {
    spans.iter().map(|(start, len)| &frame[*start as usize..][..*len as usize]).collect()
}
