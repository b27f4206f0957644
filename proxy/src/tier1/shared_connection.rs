//! One connection to the upstream Redis that many clients share.
//!
//! The kernel's work for a write and a read is most of what a passing command costs, here and in that Redis. Commands of clients that
//! come at the same moment therefore leave in one write, and their answers come back in one read. Only commands go this way that
//! answer at once and leave no trace on the connection ([`crate::server::routing::keys::may_share`]); the rest has [`super::own_connection`].
//!
//! Two tasks: one writes what has gathered, one reads and hands out. When either fails all unanswered commands get an error, and the next
//! command opens a new shared connection. So it is where nothing comes for long, and that Redis answers others: a connection whose other
//! end has forgotten it, which all clients would wait for.

use super::reply_slot::{ReplySlot, TAKE_WITHIN};
use super::stream::{within, ReadHalf, WriteHalf};
use super::upstream::{turns_away, Health, Upstream, TURNED_AWAY};
use crate::resp::encode::{self, Protocol};
use crate::resp::replies::{ReplyScanner, ScannedReply};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};

/// From the first byte to the answers to our greeting.
const GREET_WITHIN: Duration = Duration::from_secs(5);
/// Commands here are answered at once. One that has waited for this long, and as long again, will never be.
const SILENT_FOR: Duration = Duration::from_secs(10);
/// Read at once; a reply that does not fit is handed on in pieces, and its client gets a connection of its own.
const RECEIVED_BYTES: usize = 64 * 1024;
/// A buffer larger than this is given back once it is empty.
const KEPT_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug, Default)]
pub struct SharedConnection {
    queue: Mutex<CommandQueue>,
    /// There is something to send.
    work: Notify,
}

/// Commands of one client that went out together.
#[derive(Debug)]
struct SentBatch {
    slot: Arc<ReplySlot>,
    /// Answers still to come.
    due: u32,
    /// Where its first byte stands among all bytes ever queued.
    begin: u64,
}

/// No limit of its own: a client has at most so many bytes in flight (`server::sharing`).
#[derive(Debug, Default)]
struct CommandQueue {
    unsent: Vec<u8>,
    queued: u64,
    /// Bytes that have left, or are about to.
    sent: u64,
    batches: VecDeque<SentBatch>,
    stream: Option<Arc<WriteHalf>>,
    /// Bytes are out of the queue and not in the socket yet.
    is_writing: bool,
    is_down: bool,
}

/// The shared connection is gone; nothing was queued.
#[derive(Debug)]
pub struct ConnectionDown;

impl SharedConnection {
    #[must_use]
    pub fn open(upstream: &Arc<Upstream>, protocol: Protocol) -> Arc<SharedConnection> {
        let connection = Arc::new(SharedConnection::default());
        tokio::spawn(run(Arc::clone(&connection), Arc::clone(upstream), protocol));
        connection
    }

    #[must_use]
    pub fn is_down(&self) -> bool {
        self.queue().is_down
    }

    fn queue(&self) -> MutexGuard<'_, CommandQueue> {
        self.queue.lock().expect("mutex poisoned")
    }

    /// Queues whole commands. Their answers come to `slot`, in order.
    pub fn send(&self, slot: &Arc<ReplySlot>, frames: &[u8], commands: u32) -> Result<(), ConnectionDown> {
        let mut queue = self.queue();
        if queue.is_down {
            return Err(ConnectionDown);
        }
        let begin = queue.queued;
        let alone = queue.batches.is_empty() && queue.unsent.is_empty() && !queue.is_writing;
        queue.queued += frames.len() as u64;
        queue.batches.push_back(SentBatch { slot: Arc::clone(slot), due: commands, begin });
        let mut written = 0;
        if let (true, Some(stream)) = (alone, &queue.stream) {
            // Nobody to share with: no need to wake the task for it. What fails here will fail there too.
            written = stream.try_write(frames).unwrap_or(0);
            queue.sent += written as u64;
        }
        if written < frames.len() {
            queue.unsent.extend_from_slice(&frames[written..]);
            drop(queue);
            self.work.notify_one();
        }
        Ok(())
    }

    async fn write(&self, stream: &WriteHalf) -> io::Result<std::convert::Infallible> {
        let mut bytes = Vec::new();
        loop {
            self.work.notified().await;
            // The others whose bytes are here already get their turn first: what they send goes along.
            tokio::task::yield_now().await;
            loop {
                {
                    let mut queue = self.queue();
                    queue.is_writing = !queue.unsent.is_empty();
                    if !queue.is_writing {
                        break;
                    }
                    std::mem::swap(&mut queue.unsent, &mut bytes);
                    queue.sent = queue.queued;
                }
                write_all(stream, &bytes).await?;
                bytes.clear();
                bytes.shrink_to(KEPT_BYTES_MAX);
            }
        }
    }

    /// Tells everybody whose commands are unanswered.
    fn go_down(&self, front: Option<SentBatch>, is_inside_reply: bool, reason: &str) {
        let reason: Arc<str> = reason.into();
        // Under the lock: nobody may send elsewhere before it learns what is lost here.
        let mut queue = self.queue();
        queue.is_down = true;
        queue.unsent = Vec::new();
        queue.stream = None;
        let sent = queue.sent;
        let mut mid_reply = is_inside_reply;
        for batch in front.into_iter().chain(queue.batches.drain(..)) {
            batch.slot.lose(batch.due, batch.begin < sent, &reason, std::mem::take(&mut mid_reply));
        }
    }
}

async fn write_all(stream: &WriteHalf, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn run(connection: Arc<SharedConnection>, upstream: Arc<Upstream>, protocol: Protocol) {
    let mut reader = ReplyReader::default();
    let moves = upstream.moves();
    let greeting = within(GREET_WITHIN, "a login", greet(&upstream, protocol));
    let error = match upstream.unless_moved(moves, greeting).await {
        Err(error) => error,
        Ok((mut reading, writing)) => {
            let writing = Arc::new(writing);
            connection.queue().stream = Some(Arc::clone(&writing));
            connection.work.notify_one();
            let writer = {
                let connection = Arc::clone(&connection);
                tokio::spawn(async move { connection.write(&writing).await.map(|never| match never {}) })
            };
            let abort = writer.abort_handle();
            let outcome = tokio::select! {
                // The reader first: it knows better why.
                biased;
                outcome = reader.read(&connection, &upstream, &mut reading) => {
                    outcome.map(|never| match never {})
                }
                error = upstream.moved_since(moves) => Err(error),
                outcome = writer => outcome.unwrap_or_else(|_| Err(io::Error::other("the task that writes ended"))),
            };
            abort.abort();
            match outcome {
                Err(error) => error,
                Ok(()) => unreachable!("neither ends without an error"),
            }
        }
    };
    let reason = format!("upstream Redis at {}: {error}", upstream.place);
    connection.go_down(reader.front.take(), reader.passed_piece, &reason);
}

/// Connects and says who we are.
async fn greet(upstream: &Upstream, protocol: Protocol) -> io::Result<(ReadHalf, WriteHalf)> {
    let (mut reading, writing) = upstream.connect().await?.into_split();
    let mut greeting = Vec::new();
    let mut due = 0;
    if let Some(auth) = upstream.auth_words() {
        encode::command(&mut greeting, &auth);
        due += 1;
    }
    if protocol == Protocol::Resp3 {
        encode::command(&mut greeting, &["HELLO", "3"]);
        due += 1;
    }
    // A new client may be turned away: no command of a client's goes out before that is known. It may lack the right to PING.
    encode::command(&mut greeting, &["PING"]);
    due += 1;
    write_all(&writing, &greeting).await?;
    let mut scanner = ReplyScanner::default();
    let (mut byte, mut reply) = ([0], Vec::new());
    // Byte by byte, once in a shared connection's life: nothing behind the last reply may be taken.
    while due > 0 {
        if reading.read(&mut byte).await? == 0 {
            return Err(closed());
        }
        reply.push(byte[0]);
        match scanner.scan(&byte).map_err(|_| not_resp())?.1 {
            Some(ScannedReply::Reply { is_error: true }) if turns_away(&reply) => {
                return Err(io::Error::other(TURNED_AWAY));
            }
            Some(ScannedReply::Reply { is_error: true }) if due > 1 => {
                return Err(io::Error::other("it did not take our greeting (password or protocol)"));
            }
            Some(ScannedReply::Reply { .. }) => {
                due -= 1;
                reply.clear();
            }
            Some(ScannedReply::Push) | None => {}
        }
    }
    Ok((reading, writing))
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")
}

fn not_resp() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not speak RESP")
}

#[derive(Debug, Default)]
struct ReplyReader {
    scanner: ReplyScanner,
    /// Whose answers come now.
    front: Option<SentBatch>,
    /// Part of the reply in flight has gone to its client.
    passed_piece: bool,
    /// Bytes at the front of the buffer: of a reply that has not come whole.
    kept: usize,
    /// When the client of the front batch is cut off. Set once it has to be waited for.
    take_by: Option<Instant>,
}

impl ReplyReader {
    async fn read(
        &mut self,
        connection: &SharedConnection,
        upstream: &Upstream,
        stream: &mut ReadHalf,
    ) -> io::Result<std::convert::Infallible> {
        let mut buffer = vec![0; RECEIVED_BYTES];
        let mut looks = tokio::time::interval(SILENT_FOR);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Nothing has come since the last look, when something was due and that Redis was there.
        let mut is_silent = false;
        loop {
            let count = tokio::select! {
                biased;
                count = stream.read(&mut buffer[self.kept..]) => count?,
                _ = looks.tick() => {
                    let is_due = self.front.is_some() || !connection.queue().batches.is_empty();
                    let should_answer = is_due && matches!(upstream.health(), Health::Up(_));
                    if is_silent && should_answer {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
                    }
                    is_silent = should_answer;
                    continue;
                }
            };
            is_silent = false;
            match count {
                0 => return Err(closed()),
                count => self.hand_out(connection, &mut buffer, self.kept + count).await?,
            }
        }
    }

    /// Hands whole replies to those who wait for them, and keeps what is not whole.
    async fn hand_out(
        &mut self,
        connection: &SharedConnection,
        buffer: &mut [u8],
        filled: usize,
    ) -> io::Result<()> {
        let mut lens = SmallVec::<[u32; 64]>::new();
        // Where the replies for the front batch begin; where the reply in flight does; how far it was looked at.
        let (mut from, mut begin, mut at) = (0, 0, self.kept);
        self.kept = 0;
        while at < filled {
            let (taken, outcome) = self.scanner.scan(&buffer[at..filled]).map_err(|_| not_resp())?;
            at += taken;
            match outcome {
                None => break,
                Some(ScannedReply::Push) => {
                    return Err(io::Error::other("it pushed something nobody asked for"))
                }
                Some(ScannedReply::Reply { .. }) => {}
            }
            if self.front.is_none() {
                self.front = connection.queue().batches.pop_front();
            }
            let front =
                self.front.as_mut().ok_or_else(|| io::Error::other("it said something nobody asked for"))?;
            lens.push((at - begin) as u32);
            begin = at;
            self.passed_piece = false;
            front.due -= 1;
            if front.due == 0 {
                let full = front.slot.deliver(&buffer[from..at], &lens);
                self.end_batch(full).await;
                lens.clear();
                from = at;
            }
        }
        self.keep_rest(connection, buffer, from, begin, filled, &lens).await
    }

    async fn end_batch(&mut self, is_full: bool) {
        self.await_room(is_full).await;
        self.front = None;
        self.take_by = None;
    }

    /// The others wait as well, but not for long.
    async fn await_room(&mut self, is_full: bool) {
        if let (true, Some(front)) = (is_full, &self.front) {
            let deadline = *self.take_by.get_or_insert_with(|| Instant::now() + TAKE_WITHIN);
            front.slot.room(deadline).await;
        }
    }

    /// The front batch has more to come: what is whole of it goes to its client now.
    async fn keep_rest(
        &mut self,
        connection: &SharedConnection,
        buffer: &mut [u8],
        from: usize,
        begin: usize,
        filled: usize,
        lens: &[u32],
    ) -> io::Result<()> {
        let mut is_full = false;
        if let (Some(front), false) = (&self.front, lens.is_empty()) {
            is_full = front.slot.deliver(&buffer[from..begin], lens);
        }
        let rest = filled - begin;
        if rest == buffer.len() || (rest > 0 && self.passed_piece) {
            if self.front.is_none() {
                self.front = connection.queue().batches.pop_front();
            }
            let front =
                self.front.as_ref().ok_or_else(|| io::Error::other("it said something nobody asked for"))?;
            is_full |= front.slot.deliver_piece(&buffer[begin..filled]);
            self.passed_piece = true;
        } else if rest > 0 {
            buffer.copy_within(begin..filled, 0);
            self.kept = rest;
        }
        self.await_room(is_full).await;
        Ok(())
    }
}
