//! The tasks of the `peers` thread: dial each member and keep at it, serve who has dialled us, read frames.

use super::accepting::GREETING_TIMEOUT;
use super::greeting::{self, Hello};
use super::peer_stream::PeerStream;
use super::seal::Opener;
use super::security::{is_loopback, PeerSecurity};
use super::send_queue::SendQueue;
use super::{lock, Channel, TransportShared, RAFT_QUEUE};
use crate::node_api::wire::{decode_frame, FRAME_BYTES_MAX};
use crate::node_api::NodeId;
use bytes::{Buf, Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

const BACKOFF_MS_MIN: u64 = 50;
const BACKOFF_MS_MAX: u64 = 1_000;
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Closes a connection with bytes unacknowledged for this long: after a partition heals, TCP's own retransmission back-off would
/// delay recovery.
const UNACKED_TIMEOUT: Duration = Duration::from_millis(1_500);
/// TCP keep-alive interval of an idle connection.
const KEEPALIVE: Duration = Duration::from_secs(1);
/// Dials right after a connection was closed by the other side, to learn whether anybody still listens there, and the wait before
/// each: a process that ends closes its connections and its listener one after the other.
const PROBE_WAITS_MS: [u64; 6] = [0, 2, 4, 8, 16, 32];
/// A peer is not probed more often: whoever closes each connection at once is dialled no faster than others.
const PROBED_EVERY: Duration = Duration::from_secs(1);
const SECRETS_READ_EVERY: Duration = Duration::from_secs(1);
/// The reading buffer grows in these steps, whatever length a frame announces.
const READ_STEP_BYTES: usize = 64 << 10;

/// Dials `peer` until the task is aborted. The bulk channel is dialled when there is something to send.
pub(super) async fn keep_dialling(
    shared: Arc<TransportShared>,
    peer: NodeId,
    addr: String,
    channel: Channel,
    queue: Arc<SendQueue>,
) {
    let mut backoff_ms = BACKOFF_MS_MIN;
    let mut last_complaint = String::new();
    let mut probes: &[u64] = &[];
    let mut probed_at: Option<Instant> = None;
    loop {
        if channel == Channel::Bulk {
            queue.wait_for_work().await;
        }
        match dial(&shared, peer, &addr, channel).await {
            Ok(stream) => {
                last_complaint.clear();
                backoff_ms = BACKOFF_MS_MIN;
                tracing::info!(peer, %addr, ?channel, "connected");
                let end = run(&shared, peer, stream, &queue).await;
                tracing::info!(peer, %addr, ?channel, "connection lost: {end}");
                let is_due = probed_at.is_none_or(|at| at.elapsed() >= PROBED_EVERY);
                probes = &[];
                if channel == Channel::Raft && is_closed_by_peer(&end) && is_due {
                    probes = &PROBE_WAITS_MS;
                    probed_at = Some(Instant::now());
                }
            }
            Err(DialError { complaint, is_refused }) => {
                // A process that ends closes the connection that it has dialled, too; a firewall in front of its port does not.
                if is_refused && !probes.is_empty() && !shared.is_dialled_by(peer) {
                    probes = &[];
                    shared.sink.refused(peer);
                }
                // Log once per reason, not once per attempt.
                if complaint != last_complaint {
                    tracing::warn!(peer, %addr, "cannot reach peer: {complaint}");
                    last_complaint = complaint;
                }
            }
        }
        queue.detach();
        shared.sink.unreachable(peer);
        if let Some((wait_ms, rest)) = probes.split_first() {
            probes = rest;
            sleep(Duration::from_millis(*wait_ms)).await;
            continue;
        }
        tokio::select! {
            () = sleep(jittered(backoff_ms)) => backoff_ms = (backoff_ms * 2).min(BACKOFF_MS_MAX),
            () = queue.dial_requested() => {}
        }
    }
}

/// The other side closed the connection, or its machine says that there is none.
fn is_closed_by_peer(end: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(end.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

struct DialError {
    complaint: String,
    /// Nobody listens there.
    is_refused: bool,
}

impl<T: Into<String>> From<T> for DialError {
    fn from(complaint: T) -> DialError {
        DialError { complaint: complaint.into(), is_refused: false }
    }
}

async fn dial(
    shared: &TransportShared,
    peer: NodeId,
    addr: &str,
    channel: Channel,
) -> Result<PeerStream, DialError> {
    if shared.registry.security.is_plain() && !is_loopback(addr) {
        return Err("beyond this machine, and peers are not protected: start with --peer-secret-file or --peer-tls-cert".into());
    }
    let connected = timeout(DIAL_TIMEOUT, TcpStream::connect(addr)).await;
    let stream = connected.map_err(|_| "no answer")?.map_err(|e| DialError {
        is_refused: e.kind() == io::ErrorKind::ConnectionRefused,
        complaint: e.to_string(),
    })?;
    tune(&stream).map_err(|e| e.to_string())?;
    let greeted =
        timeout(GREETING_TIMEOUT, greeting::dial(stream, addr, &shared.registry, peer, channel)).await;
    Ok(greeted.map_err(|_| "no greeting in time")?.map_err(|e| e.to_string())?)
}

/// Half to one and a half times the back-off, so that nodes do not dial in lock-step.
fn jittered(backoff_ms: u64) -> Duration {
    let mut random = [0; 8];
    let drawn = getrandom::getrandom(&mut random).map_or(0, |()| u64::from_le_bytes(random));
    Duration::from_millis(backoff_ms / 2 + drawn % backoff_ms)
}

pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(2),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKED_TIMEOUT))?;
    Ok(())
}

/// Serves a connection that the peer has dialled, until it ends.
pub(super) async fn serve(shared: &Arc<TransportShared>, hello: &Hello, stream: PeerStream) {
    let queue = SendQueue::new(RAFT_QUEUE);
    let key = (hello.node_id, hello.channel);
    // The newest connection wins; an older one of the same peer is dead but not yet closed.
    if let Some(older) = lock(&shared.inbound).insert(key, queue.clone()) {
        older.end();
    }
    // A peer that dials us is up: dial it now instead of waiting for the back-off.
    if let Some(peer) = lock(&shared.peers).get(&hello.node_id) {
        peer.raft.dial_now();
    }
    let end = run(shared, hello.node_id, stream, &queue).await;
    tracing::debug!(peer = hello.node_id, channel = ?hello.channel, "connection of a peer ended: {end}");
    let mut inbound = lock(&shared.inbound);
    if inbound.get(&key).is_some_and(|current| Arc::ptr_eq(current, &queue)) {
        inbound.remove(&key);
    }
}

/// Reads the peer secrets or certificates again and again. A connection that was greeted with a secret that is no longer in the file
/// is closed, and dialled again with one that is.
pub(super) async fn keep_secrets_fresh(shared: Arc<TransportShared>) {
    let mut last_complaint = String::new();
    loop {
        sleep(SECRETS_READ_EVERY).await;
        let security = shared.registry.security.clone();
        // On a thread of its own: the file may be on a disk that hangs.
        let reread = tokio::task::spawn_blocking(move || match security {
            PeerSecurity::Plain => Ok(None),
            PeerSecurity::Secret(file) => file.reread(),
            PeerSecurity::Tls(tls) => tls.reread().map(|changed| changed.then(Vec::new)),
        });
        let Ok(reread) = reread.await else { continue };
        match reread {
            Ok(None) => {}
            Ok(Some(gone)) => {
                last_complaint.clear();
                tracing::info!(removed = gone.len(), "peer secrets read again");
                shared.end_greeted_with(&gone);
            }
            Err(complaint) => {
                if complaint != last_complaint {
                    tracing::error!("the peer secrets in use stay: {complaint}");
                    last_complaint = complaint;
                }
            }
        }
    }
}

/// Reads and writes until either fails.
async fn run(
    shared: &TransportShared,
    peer: NodeId,
    stream: PeerStream,
    queue: &Arc<SendQueue>,
) -> io::Error {
    let PeerStream { socket, session, sealed, plain, .. } = stream;
    let (reading, writing) = socket.into_split();
    let writing = Arc::new(writing);
    queue.attach(writing.clone(), session.sealer, session.secret);
    let incoming = Incoming { socket: reading, opener: session.opener, sealed, plain };
    let end = tokio::select! {
        end = keep_reading(shared, peer, incoming) => end,
        end = queue.keep_flushing(&writing) => end,
        end = queue.ended() => end,
    };
    queue.detach();
    end
}

/// The receiving half of a connection, and what was read of it.
struct Incoming {
    socket: OwnedReadHalf,
    opener: Opener,
    sealed: BytesMut,
    plain: BytesMut,
}

impl Incoming {
    async fn read(&mut self) -> io::Result<usize> {
        if self.opener.is_plain() {
            self.plain.reserve(READ_STEP_BYTES);
            return self.socket.read_buf(&mut self.plain).await;
        }
        self.sealed.reserve(READ_STEP_BYTES);
        let read = self.socket.read_buf(&mut self.sealed).await?;
        self.opener.open(&mut self.sealed, &mut self.plain)?;
        Ok(read)
    }
}

async fn keep_reading(shared: &TransportShared, peer: NodeId, mut incoming: Incoming) -> io::Error {
    loop {
        if let Err(e) = take_frames(shared, peer, &mut incoming.plain) {
            return e;
        }
        match incoming.read().await {
            Ok(0) => return io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the peer"),
            Ok(_) => {}
            Err(e) => return e,
        }
    }
}

/// Hands every whole frame in the buffer to the node.
fn take_frames(shared: &TransportShared, peer: NodeId, buffer: &mut BytesMut) -> io::Result<()> {
    while let Some(length) = buffer.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize) {
        if length > FRAME_BYTES_MAX {
            return Err(bad_frame(peer, &format!("a frame of {length} bytes")));
        }
        if buffer.len() < 4 + length {
            break;
        }
        // A copy of its own: a frame that is kept (entries are) must not pin the whole reading buffer.
        let frame = Bytes::copy_from_slice(&buffer[4..4 + length]);
        buffer.advance(4 + length);
        let (_group, message) = decode_frame(frame).map_err(|e| bad_frame(peer, e.0))?;
        shared.sink.message(peer, message);
    }
    Ok(())
}

fn bad_frame(peer: NodeId, what: &str) -> io::Error {
    tracing::warn!(peer, "closing peer connection: malformed frame ({what})");
    io::Error::new(io::ErrorKind::InvalidData, "malformed frame")
}
