//! One direction of one connection: a bounded buffer of encoded frames, and the socket it drains into.
//!
//! [`SendQueue::push`] encodes into the buffer, [`SendQueue::flush_now`] encrypts all that waits as one record (or a few) and writes as
//! much as the socket takes, both on the caller's thread. Where the socket is full the queue's task ([`SendQueue::keep_flushing`]) goes on. The lock is held over a write, so
//! bytes leave in the order they came; no write blocks.

use super::seal::Sealer;
use super::secret::SecretId;
use crate::node_api::wire::{encode_frame, FrameTooLarge, FRAME_BYTES_MAX};
use crate::node_api::{PeerMessage, GROUP};
use bytes::{Buf, BytesMut};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

/// A buffer that grew beyond this is given back once it is empty.
const KEPT_CAPACITY_BYTES: usize = 1 << 20;
/// Encrypted ahead of the socket.
const SEALED_AT_ONCE_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    Taken,
    Dropped,
}

pub(super) struct SendQueue {
    state: Mutex<SendQueueState>,
    /// There are bytes the socket did not take, or somebody wants the queue connected.
    wanted: Notify,
    /// The peer is known to be up: dial without waiting.
    dial_now: Notify,
    /// The peer closed the connection that it had dialled: look whether it still listens.
    missed: Notify,
    /// Close the connection although it is healthy.
    end: Notify,
    /// Bytes that may wait for the socket, and bytes that may wait for a connection.
    limits: QueueLimits,
}

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLimits {
    pub(super) connected_bytes: usize,
    pub(super) dialling_bytes: usize,
}

struct SendQueueState {
    /// Frames that are not encrypted yet.
    buffer: BytesMut,
    /// Records on their way to the socket, and how many of their bytes it has taken.
    sealed: Vec<u8>,
    written: usize,
    sealer: Sealer,
    /// What the connection was greeted with.
    secret: Option<SecretId>,
    socket: Option<Arc<OwnedWriteHalf>>,
    broken: bool,
}

impl SendQueue {
    pub(super) fn new(limits: QueueLimits) -> Arc<SendQueue> {
        let state = SendQueueState {
            buffer: BytesMut::new(),
            sealed: Vec::new(),
            written: 0,
            sealer: Sealer::Plain,
            secret: None,
            socket: None,
            broken: false,
        };
        let (wanted, dial_now, missed, end) = (Notify::new(), Notify::new(), Notify::new(), Notify::new());
        Arc::new(SendQueue { state: Mutex::new(state), wanted, dial_now, missed, end, limits })
    }

    pub(super) fn dial_now(&self) {
        self.dial_now.notify_waiters();
    }

    pub(super) async fn dial_requested(&self) {
        self.dial_now.notified().await;
    }

    /// Heard by whoever is dialling the peer, or about to; a connection that stands tells by itself.
    pub(super) fn miss(&self) {
        self.missed.notify_waiters();
    }

    pub(super) async fn missed(&self) {
        self.missed.notified().await;
    }

    /// Closes the connection that drains this queue.
    pub(super) fn end(&self) {
        self.end.notify_one();
    }

    /// Closes the connection if it was greeted with one of these.
    pub(super) fn end_of(&self, gone: &[SecretId]) {
        let secret = self.state().secret;
        if secret.is_some_and(|secret| gone.contains(&secret)) {
            self.end();
        }
    }

    pub(super) async fn ended(&self) -> io::Error {
        self.end.notified().await;
        io::Error::other("the peer must greet again")
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state().socket.is_some()
    }

    /// Queues one message. A message alone may exceed the limit, or large ones would never leave.
    pub(super) fn push(&self, message: &PeerMessage) -> Pushed {
        let mut state = self.state();
        let limit = match state.socket.is_some() {
            true => self.limits.connected_bytes,
            false => self.limits.dialling_bytes,
        };
        let before = state.buffer.len();
        let waiting = state.sealed.len() - state.written;
        if before + waiting >= limit {
            return Pushed::Dropped;
        }
        if let Err(FrameTooLarge { length }) = encode_frame(GROUP, message, &mut state.buffer) {
            tracing::error!(length, limit = FRAME_BYTES_MAX, "dropping a peer message above the frame limit");
            return Pushed::Dropped;
        }
        if before + waiting > 0 && state.buffer.len() + waiting > limit {
            state.buffer.truncate(before);
            return Pushed::Dropped;
        }
        Pushed::Taken
    }

    /// Writes what the socket takes. What it does not take is left to the queue's task.
    pub(super) fn flush_now(&self) {
        let mut state = self.state();
        if !matches!(state.flush(), Ok(true)) {
            drop(state);
            self.wanted.notify_one();
        }
    }

    pub(super) fn attach(&self, socket: Arc<OwnedWriteHalf>, sealer: Sealer, secret: Option<SecretId>) {
        let mut state = self.state();
        state.socket = Some(socket);
        state.sealer = sealer;
        state.secret = secret;
        state.broken = false;
        drop(state);
        self.wanted.notify_one();
    }

    /// The connection is gone; its queue is dropped, because the peer may have received half a frame.
    pub(super) fn detach(&self) {
        let mut state = self.state();
        state.socket = None;
        state.sealer = Sealer::Plain;
        state.secret = None;
        state.broken = false;
        state.buffer = BytesMut::new();
        state.sealed = Vec::new();
        state.written = 0;
    }

    /// Waits until there is something to send.
    pub(super) async fn wait_for_work(&self) {
        while self.state().buffer.is_empty() {
            self.wanted.notified().await;
        }
    }

    /// Drains the buffer whenever the socket did not take all at once. Ends when the connection does.
    pub(super) async fn keep_flushing(&self, socket: &OwnedWriteHalf) -> io::Error {
        loop {
            let outcome = self.state().flush();
            match outcome {
                Ok(true) => self.wanted.notified().await,
                Ok(false) => {
                    if let Err(e) = socket.writable().await {
                        return e;
                    }
                }
                Err(e) => return e,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, SendQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SendQueueState {
    /// `Ok(true)`: nothing is left. `Ok(false)`: the socket is full, or there is none.
    fn flush(&mut self) -> io::Result<bool> {
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let Some(socket) = self.socket.clone() else { return Ok(self.buffer.is_empty()) };
        let flushed = match self.sealer.is_plain() {
            true => self.flush_plain(&socket),
            false => self.flush_sealed(&socket),
        };
        self.broken = flushed.is_err();
        flushed
    }

    fn flush_plain(&mut self, socket: &OwnedWriteHalf) -> io::Result<bool> {
        while !self.buffer.is_empty() {
            let Some(written) = write_some(socket, &self.buffer)? else { return Ok(false) };
            self.buffer.advance(written);
        }
        self.shrink();
        Ok(true)
    }

    fn flush_sealed(&mut self, socket: &OwnedWriteHalf) -> io::Result<bool> {
        loop {
            while self.written < self.sealed.len() {
                let Some(written) = write_some(socket, &self.sealed[self.written..])? else {
                    return Ok(false);
                };
                self.written += written;
            }
            self.sealed.clear();
            self.written = 0;
            if self.buffer.is_empty() {
                self.shrink();
                return Ok(true);
            }
            // A few records at once: fewer system calls, and a bounded second copy of what waits.
            while !self.buffer.is_empty() && self.sealed.len() < SEALED_AT_ONCE_BYTES {
                let taken = self.sealer.seal(&self.buffer, &mut self.sealed)?;
                self.buffer.advance(taken);
            }
        }
    }

    fn shrink(&mut self) {
        if self.buffer.capacity() > KEPT_CAPACITY_BYTES {
            self.buffer = BytesMut::new();
        }
    }
}

/// `None`: the socket is full.
fn write_some(socket: &OwnedWriteHalf, bytes: &[u8]) -> io::Result<Option<usize>> {
    loop {
        match socket.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => return Ok(Some(written)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
