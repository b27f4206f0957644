//! A connection's socket: reading without a buffer of its own, writing all at once, and noticing that the client is gone. Part of
//! [`Connection`].

use crate::resp::request::FRAME_BYTES_MAX;
use crate::server::net::connection::{Connection, Disconnect, HELD_BYTES_MAX, UNREAD_BYTES_MAX};
use crate::server::net::in_flight::AwaitedReply;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};

const SCRATCH_BYTES: usize = 64 * 1024;
/// How long the upstream Redis may take to answer a client that has closed its sending side.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_millis(200);
/// How long a client may take to read its last replies.
const LAST_READS_WITHIN: Duration = Duration::from_secs(5);
/// How often a client that has filled its share of held bytes is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long, and for how many bytes, a client that is being disconnected may go on sending. Who sends a large request whole before it
/// reads the answer must be let to send it, or it never sees why it was refused.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The same for who has not logged in.
const STRANGER_LINGER: Duration = Duration::from_millis(500);
const STRANGER_LINGER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Read at a time meanwhile.
const LINGER_READ_BYTES: usize = 16 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

impl Connection {
    pub(in crate::server) fn poll_read(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        let held = self.held.len() - self.held_at;
        let goes_on = self.can_go_on();
        if self.client_closed || self.closing {
            return Ok(false);
        }
        if !goes_on && held >= HELD_BYTES_MAX {
            return self.watch_for_end(context).map(|()| false);
        }
        debug_assert!(held <= FRAME_BYTES_MAX + 2 * SCRATCH_BYTES);
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Err(Disconnect),
            }
            let bytes = buffer.filled();
            if bytes.is_empty() {
                return self.on_client_closed().map(|()| true);
            }
            if let Some(sessions) = &self.context.client.sessions {
                sessions.heard(self.context.server.now_us() / 1_000);
            }
            let taken = if held == 0 && goes_on { self.process(bytes)? } else { 0 };
            self.held.extend_from_slice(&bytes[taken..]);
            Ok(true)
        })
    }

    /// The client sends no more. What it waits for is pointless; what is about to be answered is still answered.
    fn on_client_closed(&mut self) -> Result<(), Disconnect> {
        self.client_closed = true;
        self.note_end();
        if self.context.replies.wait_for_client() || self.context.client.subscription_count() > 0 {
            return Err(Disconnect);
        }
        self.timer = Some(Box::pin(tokio::time::sleep(LAST_ANSWERS_WITHIN)));
        Ok(())
    }

    /// Its sessions may be taken over from now on.
    fn note_end(&self) {
        if let Some(sessions) = &self.context.client.sessions {
            sessions.ended(self.context.server.now_us() / 1_000);
        }
    }

    /// No more commands: the connection ends when the replies are sent, or when nobody reads them.
    pub(in crate::server) fn begin_close(&mut self) {
        self.closing = true;
        self.note_end();
        self.timer = Some(Box::pin(tokio::time::sleep(LAST_READS_WITHIN)));
    }

    /// Closes our side, and takes in what the client still sends: a socket closed with unread bytes would take our last words back.
    pub(in crate::server) async fn linger(&mut self) {
        if self.stream.shutdown().await.is_err() {
            return;
        }
        let (within, bytes_max) = match self.context.client.authenticated {
            true => (LINGER, LINGER_BYTES_MAX),
            false => (STRANGER_LINGER, STRANGER_LINGER_BYTES_MAX),
        };
        let drain = async {
            // On the heap: an array would be part of every connection's task, lingering or not.
            let mut scratch = vec![0; LINGER_READ_BYTES];
            let mut taken = 0;
            while taken < bytes_max {
                match self.stream.read(&mut scratch).await {
                    Ok(0) | Err(_) => return,
                    Ok(count) => taken += count,
                }
            }
        };
        // Whether it ended by itself or by the clock makes no difference.
        let _ = tokio::time::timeout(within, drain).await;
    }

    /// No bytes are taken from the client now; only its end is of interest.
    fn watch_for_end(&mut self, context: &mut Context<'_>) -> Result<(), Disconnect> {
        if let Some(socket) = self.stream.socket() {
            let ready = std::pin::pin!(socket.ready(Interest::READABLE)).poll(context);
            if matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed()) {
                return Err(Disconnect);
            }
        }
        if self.timer.is_none() {
            self.timer = Some(Box::pin(tokio::time::sleep(LOOK_EVERY)));
        }
        Ok(())
    }

    pub(in crate::server) fn poll_timer(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        let Some(timer) = &mut self.timer else { return Ok(false) };
        if timer.as_mut().poll(context).is_pending() {
            return Ok(false);
        }
        self.timer = None;
        // Only answers of the upstream Redis are limited by time: Tier 2 has its own limit.
        let at_redis = |item: &AwaitedReply| {
            matches!(item, AwaitedReply::OwnUpstream(_) | AwaitedReply::SharedUpstream(_))
        };
        if self.closing || self.client_closed && self.context.replies.awaited.iter().any(at_redis) {
            return Err(Disconnect);
        }
        Ok(!self.client_closed)
    }

    pub(in crate::server) fn poll_write(&mut self, context: &mut Context<'_>) -> Result<(), Disconnect> {
        while self.context.replies.out_at < self.context.replies.out.len() {
            match Pin::new(&mut self.stream)
                .poll_write(context, &self.context.replies.out[self.context.replies.out_at..])
            {
                Poll::Pending => break,
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.context.replies.out_at += count;
                    self.has_written(count);
                }
                Poll::Ready(Err(_)) => return Err(Disconnect),
                Poll::Ready(Ok(_)) => return Err(Disconnect),
            }
        }
        // Bytes that TLS still holds leave when the socket takes them; until then we are woken.
        if !self.stream.is_flushed() {
            if let Poll::Ready(Err(_)) = Pin::new(&mut self.stream).poll_flush(context) {
                return Err(Disconnect);
            }
        }
        self.context.replies.release_sent();
        Ok(())
    }

    /// Writes without waiting. Whether there is room again.
    pub(in crate::server) fn try_write_now(&mut self) -> Result<bool, Disconnect> {
        while self.context.replies.out_at < self.context.replies.out.len() {
            match self.stream.try_write(&self.context.replies.out[self.context.replies.out_at..]) {
                Ok(count) if count > 0 => {
                    self.context.replies.out_at += count;
                    self.has_written(count);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) | Ok(_) => return Err(Disconnect),
            }
        }
        self.context.replies.release_sent();
        Ok(self.context.replies.unread_bytes() <= UNREAD_BYTES_MAX)
    }
}
