//! One client's connection: bytes in, commands run, replies out in order.
//!
//! One task a connection, no locks, no buffers while idle: reads go through a scratch buffer of the thread, and only what is not a
//! whole command is kept. [`Connection::poll`] turns until nothing moves: replies that have come, bytes of the upstream Redis,
//! messages of channels, held commands, new bytes; then it writes all that has gathered at once.
//!
//! One poll does a bounded amount of work (`POLL_WORK_MAX`), then other tasks of the thread are polled: a client that sends without
//! end delays others by that much. What it has sent and was not run yet is held, and nothing more is read from it meanwhile.
//!
//! While the client waits for an answer its end of the connection is watched: a client that goes away leaves every queue it
//! stands in, and its sessions are orphaned (`Drop`). What a command does is in [`crate::server::routing::dispatch`].

use crate::client_memory::REPORT_BYTES;
use crate::resp::request::{ProtocolError, RequestParser, Step};
use crate::server::client::session::Client;
use crate::server::context::CommandContext;
use crate::server::ServerState;
use crate::tls::stream::ClientStream;
use redfence_core::limits::UNREAD_REPLIES_BYTES_MAX;
use redfence_core::reply::{Refusal, Reply};
use smallvec::SmallVec;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Sleep;

/// Bytes of replies a client may leave unread beyond the one that is being sent. No further reply is taken out for it meanwhile.
pub const UNREAD_BYTES_MAX: usize = UNREAD_REPLIES_BYTES_MAX;
/// Above this the upstream Redis is not read from until the client has taken some.
pub(in crate::server) const PASSING_BYTES_MAX: usize = 256 * 1024;
/// Bytes of further commands that are taken in while a client waits for an answer. Behind more of them its end cannot be seen.
pub(in crate::server) const HELD_BYTES_MAX: usize = 1024 * 1024;
/// Replies of this size are sent even if more are about to come.
const WRITE_BYTES_MIN: usize = 64 * 1024;
/// Buffers above this are given back once they are empty.
pub(in crate::server) const KEPT_BYTES_MAX: usize = 16 * 1024;
/// A client makes progress when it has taken this part of what is held for it.
const PROGRESS_PART: usize = 64;
/// Work of one poll. A unit is about a microsecond: one command. Counted, because a look at the clock for each command would be felt
/// in a pipeline.
const POLL_WORK_MAX: u32 = 512;
/// One turn: it looks at everything, and may read and write.
const TURN_WORK: u32 = 16;
/// Bytes of requests and replies that are as much work as one command.
const BYTES_PER_WORK: usize = 512;

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

/// The task of one client: its socket and its parser, and the context its commands run in.
pub struct Connection {
    pub(in crate::server) context: CommandContext,
    pub(in crate::server) stream: ClientStream,
    parser: RequestParser,
    /// Bytes received and not parsed yet; those before `held_at` have been.
    pub(in crate::server) held: Vec<u8>,
    pub(in crate::server) held_at: usize,
    /// What the client's account was last told.
    reported_bytes: usize,
    /// Sent since the client last made progress.
    written_bytes: usize,
    /// No more commands are read; it closes once its replies are sent.
    pub(in crate::server) closing: bool,
    /// The client has closed its sending side.
    pub(in crate::server) client_closed: bool,
    pub(in crate::server) timer: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    #[must_use]
    pub fn new(server: Arc<ServerState>, stream: ClientStream, client: Client) -> Connection {
        Connection {
            context: CommandContext::new(server, client),
            stream,
            parser: RequestParser::default(),
            held: Vec::new(),
            held_at: 0,
            reported_bytes: 0,
            written_bytes: 0,
            closing: false,
            client_closed: false,
            timer: None,
        }
    }

    /// Serves the client until either side ends it.
    pub async fn run(mut self) {
        std::future::poll_fn(|context| self.poll(context)).await;
        if self.closing && !self.client_closed {
            // It has ended for the client, who may read that before the lingering is over.
            self.context.client.leave_sessions(&self.context.server.session_keepalive);
            self.linger().await;
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.context.work = 0;
        while !self.is_work_spent() {
            self.context.work += TURN_WORK;
            match self.turn(context) {
                Ok(true) => {}
                Ok(false) => {
                    self.report_memory();
                    self.report_busy();
                    self.report_blocked();
                    return Poll::Pending;
                }
                Err(Disconnect) => return Poll::Ready(()),
            }
        }
        if self.poll_write(context).is_err() {
            return Poll::Ready(());
        }
        self.report_memory();
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether other tasks are to be polled before this one does more.
    fn is_work_spent(&self) -> bool {
        self.context.work >= POLL_WORK_MAX
    }

    /// Looks at everything once. `Ok(false)`: nothing moved, and everything will wake us.
    fn turn(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        let mut moved = self.context.has_redis() && self.context.poll_upstream(context)?;
        let answered = self.context.poll_awaited(context, &mut self.stream)?;
        moved |= self.context.poll_pushes(context)?;
        moved |= self.resume()?;
        // With its work spent the task is polled again soon, whatever there is to read.
        moved |= self.is_work_spent() || self.poll_read(context)?;
        // The last answer awaited, and nothing else: what it may have let go on was asked after it, so another look is needless.
        moved |= answered && !self.context.awaits_nothing();
        if self.client_closed && self.context.replies.wait_for_client() {
            return Err(Disconnect);
        }
        let unsent = self.context.replies.unsent_bytes();
        if !moved || unsent > WRITE_BYTES_MIN {
            self.poll_write(context)?;
            let all_sent = self.context.replies.out.is_empty()
                && self.context.replies.awaited.is_empty()
                && self.stream.is_flushed();
            if all_sent && (self.closing || (self.client_closed && !moved)) {
                return Err(Disconnect);
            }
            // There is room again for what the upstream Redis has to say.
            moved |= unsent >= PASSING_BYTES_MAX && self.context.replies.unsent_bytes() < PASSING_BYTES_MAX;
        }
        if !moved {
            moved = self.poll_timer(context)?;
        }
        Ok(moved)
    }

    // ---- requests ----

    pub(in crate::server) fn can_go_on(&self) -> bool {
        let has_room = self.context.replies.has_room();
        !self.closing && has_room && (!self.context.has_redis() || self.context.upstream.has_room())
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
        self.context.read_us = self.context.server.now_us();
        let outcome = self.process_each(bytes);
        if self.context.has_redis() {
            self.context.send_shared();
        }
        self.context.leave_routes();
        self.context.note_commands();
        let taken = outcome?;
        if !self.context.client.authenticated && !self.closing && self.context.is_beyond_login_bytes(taken) {
            self.begin_close();
            return Ok(bytes.len());
        }
        Ok(taken)
    }

    fn process_each(&mut self, bytes: &[u8]) -> Result<usize, Disconnect> {
        let mut at = 0;
        while at < bytes.len() && self.can_go_on() && !self.is_work_spent() {
            let replies_before = self.context.replies.encoded();
            let streamed = self.context.upstream.streamed;
            if streamed.is_none() && !self.context.follow_routes() {
                self.context.replies.stalled = true;
                break;
            }
            let step = match streamed {
                Some(large) => self.context.pass_piece(&mut self.parser, large, &bytes[at..]),
                None => match self.pass_run(&bytes[at..]) {
                    0 => self.run_one(&bytes[at..]),
                    passed => Ok(passed),
                },
            };
            match step {
                Ok(0) => break,
                Ok(taken) => {
                    at += taken;
                    let replied = self.context.replies.encoded().saturating_sub(replies_before);
                    self.context.work += 1 + ((taken + replied) / BYTES_PER_WORK) as u32;
                }
                Err(ProtocolError(text)) => {
                    self.context.reply(&Reply::Error(Refusal::new(format!("ERR Protocol error: {text}"))));
                    self.begin_close();
                    return Ok(bytes.len());
                }
            }
            if self.context.replies.unread_bytes() > UNREAD_BYTES_MAX && !self.try_write_now()? {
                tracing::info!(
                    client = self.context.client.info.id,
                    "closing client: output buffer limit reached"
                );
                return Err(Disconnect);
            }
        }
        Ok(if self.closing { bytes.len() } else { at })
    }

    /// Passes whole commands at the front of `bytes` that simply go to the upstream, and says how many bytes they have.
    fn pass_run(&mut self, bytes: &[u8]) -> usize {
        if self.parser.is_fresh() {
            self.context.pass_run(bytes)
        } else {
            0
        }
    }

    /// Runs the command at the front of `frame`. 0: it is not whole, or must wait.
    fn run_one(&mut self, frame: &[u8]) -> Result<usize, ProtocolError> {
        let (flow, len) = match self.parser.parse(frame, self.context.parse_limits())? {
            Step::Incomplete => return Ok(0),
            Step::Nothing { len } => (Progress::Done, len),
            Step::Command { len } => {
                let argv = words_at(frame, self.parser.words());
                let flow = self.context.execute(&argv, Some(&frame[..len]));
                self.context.note_waiting(&argv);
                (flow, len)
            }
            Step::Inline { len } => {
                let words = self.parser.take_inline_words();
                let argv: SmallVec<[&[u8]; 16]> = words.iter().map(Vec::as_slice).collect();
                let flow = self.context.execute(&argv, None);
                self.context.note_waiting(&argv);
                (flow, len)
            }
            Step::Large { seen } => return Ok(self.context.begin_large(&mut self.parser, &frame[..seen])),
        };
        self.parser.reset();
        match flow {
            Progress::Done => Ok(len),
            Progress::Stalled => {
                self.context.replies.stalled = true;
                Ok(0)
            }
            Progress::CloseAfterReply => {
                self.begin_close();
                Ok(len)
            }
        }
    }

    // ---- memory ----

    /// The client has taken bytes. Small replies to one that holds much are no progress.
    pub(in crate::server) fn has_written(&mut self, bytes: usize) {
        if let Some(sessions) = &self.context.client.sessions {
            sessions.written(self.context.server.tier2.entry_index());
        }
        if self.reported_bytes == 0 {
            return;
        }
        self.written_bytes += bytes;
        if self.written_bytes >= self.reported_bytes / PROGRESS_PART {
            self.written_bytes = 0;
            self.context.client.account.has_moved(self.context.server.now_ms());
        }
    }

    /// Tells the client's account what is held here, where it has changed by much.
    fn report_memory(&mut self) {
        let bytes = self.held_bytes();
        if bytes.abs_diff(self.reported_bytes) >= REPORT_BYTES {
            self.reported_bytes = bytes;
            Arc::clone(&self.context.client.account).report(bytes);
        }
    }

    /// A client that waits for a reply, or has not read one, is not idle.
    fn report_busy(&self) {
        if self.context.server.idle_timeout_ms > 0 {
            let replies = &self.context.replies;
            let busy = !replies.awaited.is_empty() || !replies.out.is_empty();
            self.context.client.info.busy.store(busy, Ordering::Relaxed);
        }
    }

    /// Who does not read its replies, or sent so much behind its `WAIT` that its end cannot be seen, may be gone.
    fn report_blocked(&self) {
        let reads = self.context.replies.unsent_bytes() <= UNREAD_BYTES_MAX;
        let is_seen = self.held.len() - self.held_at < HELD_BYTES_MAX || self.can_go_on();
        self.context.client.keep_alive_while_blocked(reads && is_seen);
    }

    fn held_bytes(&self) -> usize {
        self.held.capacity()
            + self.stream.buffered_bytes()
            + self.context.replies.held_bytes()
            + if self.context.has_redis() { self.context.upstream.held_bytes() } else { 0 }
            + self.context.routes.waiting_bytes
            + self.context.client.state_bytes()
    }
}

pub(in crate::server) fn words_at<'a>(
    frame: &'a [u8],
    spans: &[crate::resp::request::Span],
) -> SmallVec<[&'a [u8]; 16]> {
    spans.iter().map(|(start, len)| &frame[*start as usize..][..*len as usize]).collect()
}
