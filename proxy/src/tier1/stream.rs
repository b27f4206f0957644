//! A connection to the upstream Redis: plain TCP, or TLS.
//!
//! TLS runs in a task of its own, at the other end of a socket pair. Both kinds are then sockets of the kernel with the same calls
//! (write without waiting, split in halves), and the plain path is what it was. The pair costs one more copy, and back pressure
//! passes through it.

use crate::tls::upstream::Connector;
use socket2::{SockRef, TcpKeepalive};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{tcp, unix, TcpStream, UnixStream};

/// How long a connection may take, its TLS handshake with it.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// An idle connection is tried after this, and each time again: the other end's machine may be gone without a word.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Bytes that the other end's machine has not taken for this long end the connection.
const UNACKED_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub enum UpstreamStream {
    Plain(TcpStream),
    /// Our end of the pair; the task at the other end encrypts.
    Tls(UnixStream),
}

/// Connects without delay for small packets; through TLS where there is a connector.
pub async fn connect(address: &str, tls: Option<&Connector>) -> io::Result<UpstreamStream> {
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        tune(&stream)?;
        match tls {
            None => Ok(UpstreamStream::Plain(stream)),
            Some(connector) => {
                let mut encrypted = connector.connect(stream).await?;
                let (ours, mut theirs) = UnixStream::pair()?;
                tokio::spawn(async move {
                    // Either end closes both. The connection that breaks reports why.
                    let _ = tokio::io::copy_bidirectional(&mut encrypted, &mut theirs).await;
                });
                Ok(UpstreamStream::Tls(ours))
            }
        }
    };
    within(CONNECT_WITHIN, "a connection", connecting).await
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(2),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKED_TIMEOUT))?;
    Ok(())
}

/// An error where it takes longer. `what` was asked for.
pub async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer to {what} in time"));
    tokio::time::timeout(limit, work).await.map_err(late)?
}

impl UpstreamStream {
    /// Writes what can be written without waiting.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            UpstreamStream::Plain(stream) => stream.try_write(bytes),
            UpstreamStream::Tls(stream) => stream.try_write(bytes),
        }
    }

    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            UpstreamStream::Plain(stream) => stream.poll_write_ready(context),
            UpstreamStream::Tls(stream) => stream.poll_write_ready(context),
        }
    }

    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            UpstreamStream::Plain(stream) => {
                let (reading, writing) = stream.into_split();
                (ReadHalf::Plain(reading), WriteHalf::Plain(writing))
            }
            UpstreamStream::Tls(stream) => {
                let (reading, writing) = stream.into_split();
                (ReadHalf::Tls(reading), WriteHalf::Tls(writing))
            }
        }
    }
}

#[derive(Debug)]
pub enum ReadHalf {
    Plain(tcp::OwnedReadHalf),
    Tls(unix::OwnedReadHalf),
}

#[derive(Debug)]
pub enum WriteHalf {
    Plain(tcp::OwnedWriteHalf),
    Tls(unix::OwnedWriteHalf),
}

impl WriteHalf {
    /// Writes what can be written without waiting.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            WriteHalf::Plain(stream) => stream.try_write(bytes),
            WriteHalf::Tls(stream) => stream.try_write(bytes),
        }
    }

    pub async fn writable(&self) -> io::Result<()> {
        match self {
            WriteHalf::Plain(stream) => stream.writable().await,
            WriteHalf::Tls(stream) => stream.writable().await,
        }
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            ReadHalf::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            ReadHalf::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            UpstreamStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            UpstreamStream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            UpstreamStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            UpstreamStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            UpstreamStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            UpstreamStream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            UpstreamStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            UpstreamStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
