//! One connection during its greeting: the handshake that protects it, then single frames.
//!
//! What was read beyond the greeting goes on with the connection.

use super::greeting::{GreetingError, GreetingRefusal};
use super::seal::{self, Dialling, PeerSession, HANDSHAKE_BYTES};
use super::security::PeerSecurity;
use bytes::{Buf, BufMut, BytesMut};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const FRAME_BYTES_MAX: usize = 1_024;
/// A record that holds one frame of the greeting, or several.
const READ_BYTES: usize = 2_048;

/// `S` is a socket of the standard library while the connection moves from one thread's runtime to another's.
pub(super) struct PeerStream<S = TcpStream> {
    pub(super) socket: S,
    pub(super) session: PeerSession,
    /// Read, and not yet decrypted.
    pub(super) sealed: BytesMut,
    /// Decrypted, and not yet taken.
    pub(super) plain: BytesMut,
    is_dialled: bool,
}

impl<S> PeerStream<S> {
    /// The same connection with its socket turned into another type.
    pub(super) fn with_socket<T>(self, turn: impl FnOnce(S) -> io::Result<T>) -> io::Result<PeerStream<T>> {
        let PeerStream { socket, session, sealed, plain, is_dialled } = self;
        Ok(PeerStream { socket: turn(socket)?, session, sealed, plain, is_dialled })
    }
}

impl PeerStream {
    fn new(socket: TcpStream, session: PeerSession, is_dialled: bool) -> PeerStream {
        PeerStream { socket, session, sealed: BytesMut::new(), plain: BytesMut::new(), is_dialled }
    }

    /// The dialler proves the secret first.
    pub(super) async fn dial(
        mut socket: TcpStream,
        address: &str,
        security: &PeerSecurity,
    ) -> Result<PeerStream, GreetingError> {
        let session = match security {
            PeerSecurity::Plain => PeerSession::plain(),
            PeerSecurity::Tls(tls) => tls_handshake(&mut socket, tls.dial(address)?).await?,
            PeerSecurity::Secret(file) => {
                let (dialling, first) = Dialling::begin(&file.secrets()[0])?;
                socket.write_all(&first).await?;
                let mut answer = [0; HANDSHAKE_BYTES];
                // Somebody with another secret closes without a word.
                socket.read_exact(&mut answer).await.map_err(|_| GreetingRefusal::Secret)?;
                dialling.finish(&answer).map_err(|_| GreetingRefusal::Secret)?
            }
        };
        Ok(PeerStream::new(socket, session, true))
    }

    pub(super) async fn accept(
        mut socket: TcpStream,
        security: &PeerSecurity,
    ) -> Result<PeerStream, GreetingError> {
        let session = match security {
            PeerSecurity::Plain => PeerSession::plain(),
            PeerSecurity::Tls(tls) => {
                let strange = |_| GreetingRefusal::Stranger;
                tls_handshake(&mut socket, tls.accept()?).await.map_err(strange)?
            }
            PeerSecurity::Secret(file) => {
                let mut first = [0; HANDSHAKE_BYTES];
                socket.read_exact(&mut first).await?;
                let accepted = seal::accept(&file.secrets(), &first)?;
                let (session, answer) = accepted.ok_or(GreetingRefusal::Stranger)?;
                socket.write_all(&answer).await?;
                session
            }
        };
        Ok(PeerStream::new(socket, session, false))
    }

    pub(super) fn is_sealed(&self) -> bool {
        !self.session.sealer.is_plain()
    }

    pub(super) async fn write_frame(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = BytesMut::with_capacity(payload.len() + 7);
        frame.put_u32_le(payload.len() as u32 + 3);
        frame.put_u8(kind);
        frame.put_u16_le(0);
        frame.put_slice(payload);
        let mut sealed = Vec::new();
        // A frame of the greeting fits into one record.
        self.session.sealer.seal(&frame, &mut sealed)?;
        self.socket.write_all(&sealed).await
    }

    pub(super) async fn read_frame(&mut self) -> Result<(u8, Vec<u8>), GreetingError> {
        self.open_read()?;
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(frame);
            }
            self.sealed.reserve(READ_BYTES);
            match self.socket.read_buf(&mut self.sealed).await {
                Ok(0) => return Err(self.closed_early(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) => return Err(self.closed_early(error)),
            }
            self.session.opener.open(&mut self.sealed, &mut self.plain)?;
        }
    }

    /// TLS may have read the beginning of the greeting with the end of its handshake.
    fn open_read(&mut self) -> io::Result<()> {
        match self.session.opener.is_plain() {
            true => Ok(()),
            false => self.session.opener.open(&mut self.sealed, &mut self.plain),
        }
    }

    fn take_frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, GreetingRefusal> {
        let Some(length) = self.plain.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize) else {
            return Ok(None);
        };
        if !(3..=FRAME_BYTES_MAX).contains(&length) {
            return Err(GreetingRefusal::NotAPeer("wrong length"));
        }
        if self.plain.len() < 4 + length {
            return Ok(None);
        }
        self.plain.advance(4);
        let frame = self.plain.split_to(length);
        Ok(Some((frame[0], frame[3..].to_vec())))
    }

    /// A node with a secret says nothing to a dialler without one.
    fn closed_early(&self, error: io::Error) -> GreetingError {
        match self.is_dialled && !self.is_sealed() {
            true => GreetingRefusal::Secret.into(),
            false => error.into(),
        }
    }
}

/// Ends when both sides have verified each other's certificate, as far as this one can know.
async fn tls_handshake(
    socket: &mut TcpStream,
    mut connection: rustls::Connection,
) -> io::Result<PeerSession> {
    connection.set_buffer_limit(None);
    let (mut out, mut read) = (Vec::new(), BytesMut::new());
    loop {
        while connection.wants_write() {
            connection.write_tls(&mut out)?;
        }
        socket.write_all(&out).await?;
        out.clear();
        if !connection.is_handshaking() {
            return Ok(PeerSession::tls(connection));
        }
        read.reserve(READ_BYTES);
        if socket.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !read.is_empty() {
            let taken = connection.read_tls(&mut &read[..])?;
            read.advance(taken);
            connection
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}
