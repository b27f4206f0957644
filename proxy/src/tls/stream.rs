//! A client's stream: plain TCP, TLS over it, or a pipe within this program. An enum, so that the plain path costs one predictable branch and no allocation.
//!
//! Bytes given to a TLS stream may still lie in its buffer: [`ClientStream::is_flushed`] says when they have left.

use crate::tls::acceptor::BUFFERED_BYTES_MAX;
use crate::tls::common_name;
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

#[derive(Debug)]
pub enum ClientStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// Of a part of this program.
    InProcess(DuplexStream),
}

impl ClientStream {
    /// The socket below, where there is one.
    #[must_use]
    pub fn socket(&self) -> Option<&TcpStream> {
        match self {
            ClientStream::Plain(stream) => Some(stream),
            ClientStream::Tls(stream) => Some(stream.get_ref().0),
            ClientStream::InProcess(_) => None,
        }
    }

    /// The common name of the certificate that the client has proved to own.
    #[must_use]
    pub fn certificate_name(&self) -> Option<String> {
        match self {
            ClientStream::Plain(_) | ClientStream::InProcess(_) => None,
            ClientStream::Tls(stream) => {
                stream.get_ref().1.peer_certificates()?.first().and_then(|der| common_name::of(der))
            }
        }
    }

    /// Whether all bytes that were written have left for the socket.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        match self {
            ClientStream::Plain(_) | ClientStream::InProcess(_) => true,
            ClientStream::Tls(stream) => !stream.get_ref().1.wants_write(),
        }
    }

    /// An upper bound of what is buffered here.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        if self.is_flushed() {
            0
        } else {
            BUFFERED_BYTES_MAX
        }
    }

    /// Writes what can be written without waiting. `WouldBlock`: nothing.
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ClientStream::Plain(stream) => stream.try_write(bytes),
            ClientStream::Tls(stream) => {
                let (socket, tls) = stream.get_mut();
                let count = tls.writer().write(bytes)?;
                while tls.wants_write() {
                    match tls.write_tls(&mut WithoutWaiting(socket)) {
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error),
                    }
                }
                match count {
                    0 => Err(io::ErrorKind::WouldBlock.into()),
                    count => Ok(count),
                }
            }
            ClientStream::InProcess(stream) => {
                // Whoever has more to write asks again with its own waker before it sleeps.
                match Pin::new(stream).poll_write(&mut Context::from_waker(Waker::noop()), bytes) {
                    Poll::Ready(written) => written,
                    Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
                }
            }
        }
    }

    /// Whether the client has closed its side and nothing it sent is unread. Asks the system, not the last event.
    pub fn has_hung_up(&mut self) -> bool {
        match self {
            ClientStream::Plain(stream) => {
                let mut byte = [MaybeUninit::uninit()];
                match SockRef::from(&*stream).peek(&mut byte) {
                    Ok(count) => count == 0,
                    Err(error) => error.kind() != io::ErrorKind::WouldBlock,
                }
            }
            ClientStream::Tls(stream) => tls_has_hung_up(stream),
            // Its end is seen by reading. It is never granted anything that it could leave behind.
            ClientStream::InProcess(_) => false,
        }
    }
}

/// A client that says goodbye in TLS leaves an alert in the socket: only who decrypts it knows. What else there is stays in the
/// session's buffer, where the next read finds it.
fn tls_has_hung_up(stream: &mut TlsStream<TcpStream>) -> bool {
    let (socket, tls) = stream.get_mut();
    loop {
        let ended = match tls.wants_read() {
            // Bytes for us are buffered, or it has said goodbye.
            false => false,
            true => match tls.read_tls(&mut WithoutWaiting(socket)) {
                Ok(count) => count == 0,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            },
        };
        match tls.process_new_packets() {
            Err(_) => return true,
            Ok(state) if state.plaintext_bytes_to_read() > 0 => return false,
            Ok(state) if ended || state.peer_has_closed() => return true,
            // A record that is not whole, or one that carries nothing for us.
            Ok(_) if tls.wants_read() => {}
            Ok(_) => return false,
        }
    }
}

/// A socket as rustls wants it: whatever would wait is `WouldBlock`.
pub(super) struct WithoutWaiting<'a>(pub(super) &'a TcpStream);

impl Read for WithoutWaiting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for WithoutWaiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for ClientStream {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            ClientStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            ClientStream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            ClientStream::InProcess(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ClientStream {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            ClientStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            ClientStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            ClientStream::InProcess(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            ClientStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            ClientStream::Tls(stream) => Pin::new(stream).poll_flush(context),
            ClientStream::InProcess(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            ClientStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            ClientStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            ClientStream::InProcess(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
