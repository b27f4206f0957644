//! A connection that is ended where its client takes nothing of what is written to it for some time: else its answer stays in memory
//! for as long as the client likes.

use super::{Stage, LIVE};
use crate::tls::stream::ClientStream;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How long a client may take nothing: of an answer, and of live events.
const ANSWER_STALLED_FOR: Duration = Duration::from_secs(10);
const EVENTS_STALLED_FOR: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct GuardedStream {
    stream: ClientStream,
    stage: Arc<Stage>,
    /// Runs while something waits to be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl GuardedStream {
    pub(super) fn new(stream: ClientStream, stage: Arc<Stage>) -> GuardedStream {
        GuardedStream { stream, stage, stalled: None }
    }

    /// Looks at the time where nothing could be written.
    fn guard<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = match self.stage.is(LIVE) {
            true => EVENTS_STALLED_FOR,
            false => ANSWER_STALLED_FOR,
        };
        let stalled =
            self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.guard(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.guard(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.guard(context, ended)
    }
}
