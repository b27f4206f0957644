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
/// Dials right after a connection was closed by the other side, to learn whether anybody still listens there: the wait before each, and
/// how long it may take, in milliseconds. A process that ends closes its connections and its listener one after the other, and while
/// strangers fill the queue of the listener, nothing answers at all.
const PROBES: [(u64, u64); 6] = [(0, 20), (2, 20), (4, 40), (8, 80), (16, 160), (32, 320)];
/// A peer is probed this often at once, and once a second after that: whoever closes each connection at once is dialled no faster than
/// others.
const PROBED_AT_ONCE: u32 = 4;
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
    let mut probes = Probes::new(Instant::now());
    // The peer closed a connection, and nobody knows yet whether it still listens.
    let mut is_missed = false;
    loop {
        if channel == Channel::Bulk {
            queue.wait_for_work().await;
        }
        let dialled = tokio::select! {
            dialled = dial(&shared, peer, &addr, channel, probes.patience()) => dialled,
            () = queue.missed() => {
                is_missed = true;
                probes.begin(Instant::now());
                Err("it has closed the connection that it had dialled".into())
            }
        };
        match dialled {
            Ok(stream) => {
                is_missed = false;
                last_complaint.clear();
                backoff_ms = BACKOFF_MS_MIN;
                tracing::info!(peer, %addr, ?channel, "connected");
                let end = run(&shared, peer, stream, &queue).await;
                tracing::info!(peer, %addr, ?channel, "connection lost: {end}");
                probes.end();
                if channel == Channel::Raft && is_closed_by_peer(&end) {
                    is_missed = true;
                    probes.begin(Instant::now());
                }
            }
            Err(DialError { complaint, is_refused }) => {
                // A process that ends closes the connection that it has dialled, too; a firewall in front of its port does not.
                // It stays missed: the node may have heard of it too lately to look again.
                if is_refused && is_missed && !shared.is_dialled_by(peer) {
                    probes.end();
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
        if let Some(wait) = probes.next() {
            sleep(wait).await;
            continue;
        }
        tokio::select! {
            () = sleep(jittered(backoff_ms)) => backoff_ms = (backoff_ms * 2).min(BACKOFF_MS_MAX),
            () = queue.dial_requested() => {}
            () = queue.missed() => {
                is_missed = true;
                probes.begin(Instant::now());
            }
        }
    }
}

/// The probes of one peer that are still to be made.
struct Probes {
    left: &'static [(u64, u64)],
    /// How long the next dial may take, if it is a probe.
    patience: Option<Duration>,
    /// How often they may begin, and since when that has not been counted up.
    allowed: u32,
    counted: Instant,
}

impl Probes {
    fn new(now: Instant) -> Probes {
        Probes { left: &[], patience: None, allowed: PROBED_AT_ONCE, counted: now }
    }

    /// Where the peer was probed too often of late, the next dial of its own time tells as well.
    fn begin(&mut self, now: Instant) {
        while self.allowed < PROBED_AT_ONCE && now.duration_since(self.counted) >= PROBED_EVERY {
            self.allowed += 1;
            self.counted += PROBED_EVERY;
        }
        if self.allowed == PROBED_AT_ONCE {
            self.counted = now;
        }
        if self.allowed > 0 {
            self.allowed -= 1;
            self.left = &PROBES;
        }
    }

    fn end(&mut self) {
        (self.left, self.patience) = (&[], None);
    }

    /// The wait before the next one, if there is one.
    fn next(&mut self) -> Option<Duration> {
        let ((wait_ms, patience_ms), left) = self.left.split_first()?;
        (self.left, self.patience) = (left, Some(Duration::from_millis(*patience_ms)));
        Some(Duration::from_millis(*wait_ms))
    }

    /// How long the dial that comes now may take.
    fn patience(&mut self) -> Duration {
        self.patience.take().unwrap_or(DIAL_TIMEOUT)
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
    patience: Duration,
) -> Result<PeerStream, DialError> {
    if shared.registry.security.is_plain() && !is_loopback(addr) {
        return Err("beyond this machine, and peers are not protected: start with --peer-secret-file or --peer-tls-cert".into());
    }
    let connected = timeout(patience, TcpStream::connect(addr)).await;
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
        drop(inbound);
        // The only connection there was, where its own port was too busy to be reached.
        if hello.channel == Channel::Raft && is_closed_by_peer(&end) {
            if let Some(peer) = lock(&shared.peers).get(&hello.node_id) {
                peer.raft.miss();
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_probed_a_few_times_at_once_and_then_once_a_second() {
        let start = Instant::now();
        let mut probes = Probes::new(start);
        assert_eq!((probes.next(), probes.patience()), (None, DIAL_TIMEOUT), "no connection has ended");
        let mut begin = |after_ms| {
            probes.end();
            probes.begin(start + Duration::from_millis(after_ms));
            let mut waits = 0;
            while probes.next().is_some() {
                assert!(probes.patience() < DIAL_TIMEOUT);
                waits += 1;
            }
            waits == PROBES.len()
        };
        assert_eq!([0, 1, 2, 3, 4].map(&mut begin), [true, true, true, true, false]);
        assert_eq!([1_100, 1_200, 2_100, 2_200].map(&mut begin), [true, false, true, false]);
        assert_eq!([9_000, 9_001, 9_002, 9_003, 9_004].map(&mut begin), [true, true, true, true, false]);
    }
}
