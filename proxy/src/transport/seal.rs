//! How bytes between peers are protected: not at all (loopback), as Noise transport messages, or as TLS.
//!
//! A record is `u16 length | ciphertext`, little endian; its plaintext is a piece of the stream of frames, so lengths and kinds of
//! frames are encrypted, and everything that waits goes out in one record. [`Sealer`] and [`Opener`] are the two directions of one
//! session, on different threads; neither allocates for a record once its buffers have grown.
//!
//! The handshake is `NNpsk0` of the Noise protocol: the dialler proves in its first message that it has the secret, and gets an
//! answer only if it has. A replayed first message gets an answer that only the holder of its ephemeral key can use; nothing is
//! acted on before the first record, which shows that. The secret has 256 random bits, so nothing can be guessed from what was
//! recorded, and what was recorded stays closed when the secret leaks later.

use super::secret::{PeerSecret, SecretId};
use bytes::{Buf, BytesMut};
use snow::{Builder, HandshakeState, StatelessTransportState};
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SUITE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bound to the handshake: another protocol with the same secret is not this one.
const PROLOGUE: &[u8] = b"redfence peers 1";
const TAG_BYTES: usize = 16;
/// Largest transport message of the Noise protocol.
const RECORD_BYTES_MAX: usize = 65_535;
const LENGTH_BYTES: usize = 2;
/// Plaintext of one record.
pub(super) const PIECE_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;
/// Each of the two messages of the handshake: an ephemeral key and a tag.
pub(super) const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;

/// Why a session does not come about, or does not go on.
fn closed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn builder(secret: &PeerSecret) -> Result<Builder<'_>, snow::Error> {
    let suite = SUITE.parse().expect("the name of a Noise suite");
    Builder::new(suite).prologue(PROLOGUE)?.psk(0, secret.bytes())
}

/// The dialler's side of the handshake.
pub(super) struct Dialling {
    state: HandshakeState,
    secret: SecretId,
}

impl Dialling {
    /// Begins a session; the bytes are to be sent.
    pub(super) fn begin(secret: &PeerSecret) -> io::Result<(Dialling, [u8; HANDSHAKE_BYTES])> {
        let begun = || {
            let mut state = builder(secret)?.build_initiator()?;
            let mut first = [0; HANDSHAKE_BYTES];
            state.write_message(&[], &mut first)?;
            Ok((Dialling { state, secret: secret.id() }, first))
        };
        begun().map_err(|error: snow::Error| io::Error::other(error.to_string()))
    }

    pub(super) fn finish(mut self, answer: &[u8; HANDSHAKE_BYTES]) -> io::Result<PeerSession> {
        let wrong = |_| closed("the peer did not prove the secret");
        self.state.read_message(answer, &mut [0; HANDSHAKE_BYTES]).map_err(wrong)?;
        PeerSession::of(self.state, self.secret)
    }
}

/// The acceptor's side: `None` where no secret fits the first message, which says nothing of why.
pub(super) fn accept(
    secrets: &[PeerSecret],
    first: &[u8; HANDSHAKE_BYTES],
) -> io::Result<Option<(PeerSession, [u8; HANDSHAKE_BYTES])>> {
    for secret in secrets {
        let answered = || {
            let mut state = builder(secret)?.build_responder()?;
            if state.read_message(first, &mut [0; HANDSHAKE_BYTES]).is_err() {
                return Ok(None);
            }
            let mut answer = [0; HANDSHAKE_BYTES];
            state.write_message(&[], &mut answer)?;
            Ok(Some((state, answer)))
        };
        let answered = answered().map_err(|error: snow::Error| io::Error::other(error.to_string()))?;
        if let Some((state, answer)) = answered {
            return Ok(Some((PeerSession::of(state, secret.id())?, answer)));
        }
    }
    Ok(None)
}

/// Both directions of one connection.
pub(super) struct PeerSession {
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    /// What it was made with. `None`: nothing is protected.
    pub(super) secret: Option<SecretId>,
}

impl PeerSession {
    pub(super) fn plain() -> PeerSession {
        PeerSession { sealer: Sealer::Plain, opener: Opener::Plain, secret: None }
    }

    /// After the handshake.
    pub(super) fn tls(connection: rustls::Connection) -> PeerSession {
        let connection = Arc::new(Mutex::new(connection));
        let sealer = Sealer::Tls(connection.clone());
        PeerSession { sealer, opener: Opener::Tls(connection), secret: None }
    }

    fn of(state: HandshakeState, secret: SecretId) -> io::Result<PeerSession> {
        let state = state.into_stateless_transport_mode().map_err(|_| closed("the handshake did not end"))?;
        let state = Arc::new(state);
        let sealer = Sealer::Noise { state: state.clone(), number: 0 };
        Ok(PeerSession { sealer, opener: Opener::Noise { state, number: 0 }, secret: Some(secret) })
    }
}

/// The sending direction.
pub(super) enum Sealer {
    Plain,
    Noise { state: Arc<StatelessTransportState>, number: u64 },
    Tls(SharedTls),
}

/// rustls keeps both directions of a connection in one place.
type SharedTls = Arc<Mutex<rustls::Connection>>;

fn lock(connection: &SharedTls) -> MutexGuard<'_, rustls::Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sealer {
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Sealer::Plain)
    }

    /// Appends the next record (or, unprotected, the bytes) to `out`; answers how many bytes of `plain` it has taken.
    pub(super) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Sealer::Plain => {
                out.extend_from_slice(plain);
                Ok(plain.len())
            }
            Sealer::Noise { state, number } => {
                let piece = &plain[..plain.len().min(PIECE_BYTES_MAX)];
                let length = piece.len() + TAG_BYTES;
                let at = out.len();
                out.resize(at + LENGTH_BYTES + length, 0);
                out[at..at + LENGTH_BYTES].copy_from_slice(&(length as u16).to_le_bytes());
                let sealed = state.write_message(*number, piece, &mut out[at + LENGTH_BYTES..]);
                sealed.map_err(|_| closed("a record cannot be encrypted"))?;
                // A number is used once; the connection would have to last for centuries to run out of them.
                *number = number.checked_add(1).ok_or_else(|| closed("the session has no numbers left"))?;
                Ok(piece.len())
            }
            Sealer::Tls(connection) => {
                let piece = &plain[..plain.len().min(PIECE_BYTES_MAX)];
                let mut connection = lock(connection);
                connection.writer().write_all(piece)?;
                while connection.wants_write() {
                    connection.write_tls(out)?;
                }
                Ok(piece.len())
            }
        }
    }
}

/// The receiving direction.
pub(super) enum Opener {
    Plain,
    Noise { state: Arc<StatelessTransportState>, number: u64 },
    Tls(SharedTls),
}

impl Opener {
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Opener::Plain)
    }

    /// Moves what every whole record in `sealed` holds to the end of `plain`. An error ends the connection: what came was changed,
    /// repeated, left out, or put in another order.
    pub(super) fn open(&mut self, sealed: &mut BytesMut, plain: &mut BytesMut) -> io::Result<()> {
        match self {
            Opener::Plain => {
                plain.extend_from_slice(sealed);
                sealed.clear();
                Ok(())
            }
            Opener::Noise { state, number } => {
                while let Some(length) =
                    sealed.first_chunk().map(|bytes| usize::from(u16::from_le_bytes(*bytes)))
                {
                    if length <= TAG_BYTES {
                        return Err(closed("a record without content"));
                    }
                    let Some(record) = sealed.get(LENGTH_BYTES..LENGTH_BYTES + length) else { break };
                    let at = plain.len();
                    plain.resize(at + length, 0);
                    let opened = state.read_message(*number, record, &mut plain[at..]);
                    let opened = opened.map_err(|_| closed("a record that is not the peer's next"))?;
                    plain.truncate(at + opened);
                    *number =
                        number.checked_add(1).ok_or_else(|| closed("the session has no numbers left"))?;
                    sealed.advance(LENGTH_BYTES + length);
                }
                Ok(())
            }
            Opener::Tls(connection) => {
                let mut connection = lock(connection);
                loop {
                    if !sealed.is_empty() {
                        let read = connection.read_tls(&mut &sealed[..])?;
                        sealed.advance(read);
                    }
                    let state = connection.process_new_packets();
                    let state = state.map_err(|_| closed("a record that is not the peer's next"))?;
                    let at = plain.len();
                    plain.resize(at + state.plaintext_bytes_to_read(), 0);
                    connection.reader().read_exact(&mut plain[at..])?;
                    if sealed.is_empty() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(first: u8) -> PeerSecret {
        PeerSecret::parse(&format!(
            "{first:02x}112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210"
        ))
        .unwrap()
    }

    fn pair() -> (PeerSession, PeerSession) {
        let (dialling, first) = Dialling::begin(&secret(1)).unwrap();
        let (accepted, answer) = accept(&[secret(2), secret(1)], &first).unwrap().expect("the secret fits");
        (dialling.finish(&answer).unwrap(), accepted)
    }

    #[test]
    fn large_and_small_messages_come_back_in_order() {
        let (mut dialler, mut acceptor) = pair();
        assert_eq!(dialler.secret, acceptor.secret);
        for plain in [vec![1; 7], (0..200_000u32).map(|n| n as u8).collect()] {
            let (mut sealed, mut rest) = (Vec::new(), &plain[..]);
            while !rest.is_empty() {
                let taken = dialler.sealer.seal(rest, &mut sealed).unwrap();
                rest = &rest[taken..];
            }
            let (mut arrived, mut opened) = (BytesMut::new(), BytesMut::new());
            // In pieces that end anywhere.
            for piece in sealed.chunks(1_000) {
                arrived.extend_from_slice(piece);
                acceptor.opener.open(&mut arrived, &mut opened).unwrap();
            }
            assert!(arrived.is_empty() && opened == plain);
            assert!(!sealed.windows(7).any(|bytes| bytes == &plain[..7]), "nothing is readable on the way");
        }
    }

    #[test]
    fn a_wrong_secret_gets_no_answer_and_a_wrong_answer_no_session() {
        let (dialling, first) = Dialling::begin(&secret(1)).unwrap();
        assert!(accept(&[secret(2), secret(3)], &first).unwrap().is_none());
        assert!(accept(&[secret(1)], &[7; HANDSHAKE_BYTES]).unwrap().is_none());
        assert!(dialling.finish(&[7; HANDSHAKE_BYTES]).is_err());
    }

    #[test]
    fn a_replayed_session_leads_to_nothing() {
        let (dialling, first) = Dialling::begin(&secret(1)).unwrap();
        let (mut accepted, answer) = accept(&[secret(1)], &first).unwrap().unwrap();
        let mut dialler = dialling.finish(&answer).unwrap();
        let mut record = Vec::new();
        dialler.sealer.seal(b"hello", &mut record).unwrap();
        let mut plain = BytesMut::new();
        accepted.opener.open(&mut BytesMut::from(&record[..]), &mut plain).unwrap();
        assert_eq!(plain, "hello");
        // Everything the dialler sent, once more, to another acceptor and to the same session.
        let (mut again, _) = accept(&[secret(1)], &first).unwrap().unwrap();
        assert!(again.opener.open(&mut BytesMut::from(&record[..]), &mut plain).is_err());
        assert!(accepted.opener.open(&mut BytesMut::from(&record[..]), &mut plain).is_err());
        // Its own words come back to it.
        assert!(dialler.opener.open(&mut BytesMut::from(&record[..]), &mut plain).is_err());
    }

    #[test]
    fn a_changed_record_ends_the_session() {
        let (mut dialler, mut acceptor) = pair();
        let mut record = Vec::new();
        dialler.sealer.seal(b"hello", &mut record).unwrap();
        for at in 2..record.len() {
            let mut changed = record.clone();
            changed[at] ^= 1;
            assert!(acceptor.opener.open(&mut BytesMut::from(&changed[..]), &mut BytesMut::new()).is_err());
        }
        assert!(acceptor.opener.open(&mut BytesMut::from(&[16, 0][..]), &mut BytesMut::new()).is_err());
    }
}
