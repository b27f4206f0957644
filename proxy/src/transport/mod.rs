//! Peers: how nodes of one cluster reach each other.
//!
//! Every node dials every other member twice: one ordered connection for raft's messages, one for chunks of snapshots, so
//! that heartbeats and votes are never queued behind bulk data. The sending thread writes to the socket directly; if the
//! socket is full, a task on the `peers` thread continues. A reply may also use a connection the other side dialled: this
//! is how a node that is not a member (removed, or about to join) is reached.
//!
//! Queues are bounded in bytes. A message that does not fit is dropped and the peer reported as unreachable; raft resends what it
//! needs. When a connection breaks, its queue is dropped too, so a new connection always starts at a frame boundary.
//!
//! # Layout
//!
//! - [`security`]: what protects the traffic, and whom a node without protection may talk to
//! - [`secret`]: the file with the peer secrets
//! - [`tls`]: certificates, where peers use mutual TLS instead
//! - `seal`: encryption of the two directions of a connection
//! - `peer_stream`: a connection during its greeting
//! - [`greeting`]: who greets whom, and every reason to refuse
//! - [`peer_registry`]: what this node knows of itself and its peers, durably
//! - `send_queue`: one queue and its socket
//! - `accepting`: the thread that accepts and greets, so that strangers' handshakes delay no peer
//! - `link`: dialling, serving, reading
//!
//! # Caveats
//!
//! A peer secret shows that somebody belongs to the cluster, not which node it is: whoever has it may greet as any node. The store
//! id that a member is known by keeps mistakes out, not a holder of the secret.

pub mod accepting;
pub mod greeting;
mod link;
pub mod peer_registry;
mod peer_stream;
mod seal;
pub mod secret;
pub mod security;
mod send_queue;
#[cfg(test)]
mod tests;
pub mod tls;

use crate::node_api::{ClusterMember, NodeId, PeerMessage, PeerSink};
use accepting::Greeted;
use peer_registry::PeerRegistry;
use redfence_core::machine::version::ClusterVersion;
use secret::SecretId;
use send_queue::{Pushed, QueueLimits, SendQueue};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Raft's messages to one peer. While it is being dialled only a vote or two need to wait; all else is soon stale.
const RAFT_QUEUE: QueueLimits = QueueLimits { connected_bytes: 16 << 20, dialling_bytes: 64 << 10 };
/// Pieces of snapshots to one peer: the node's own window is smaller. They start the dialling, so all of them wait for it.
const BULK_QUEUE: QueueLimits = QueueLimits { connected_bytes: 8 << 20, dialling_bytes: 8 << 20 };

/// The two connections to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    Raft,
    Bulk,
}

impl Channel {
    fn of(message: &PeerMessage) -> Channel {
        match message {
            PeerMessage::SnapshotChunk(_) => Channel::Bulk,
            PeerMessage::Raft(_)
            | PeerMessage::Forward(_)
            | PeerMessage::SnapshotAck(_)
            | PeerMessage::Admin { .. }
            | PeerMessage::NotMember { .. }
            | PeerMessage::Progress(_)
            | PeerMessage::Versions { .. } => Channel::Raft,
        }
    }
}

/// A member this node dials.
struct DialledPeer {
    addr: String,
    raft: Arc<SendQueue>,
    bulk: Arc<SendQueue>,
    tasks: Vec<tokio::task::AbortHandle>,
}

impl Drop for DialledPeer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

pub(crate) struct TransportShared {
    registry: Arc<PeerRegistry>,
    sink: Arc<dyn PeerSink>,
    peers: Mutex<HashMap<NodeId, DialledPeer>>,
    /// Connections dialled by the other side, by what they are for.
    inbound: Mutex<HashMap<(NodeId, Channel), Arc<SendQueue>>>,
    refusals: Mutex<RefusalLog>,
}

/// Anybody who reaches the port can have a line of the log, so there are few: a burst, then one in a while.
#[derive(Default)]
struct RefusalLog {
    lines: u32,
    unlogged: u64,
    since: Option<Instant>,
}

const REFUSAL_LINES_MAX: u32 = 5;
const REFUSAL_LINES_EVERY: Duration = Duration::from_secs(10);

impl RefusalLog {
    /// How many went without a line since the last one, where this one may have one.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= REFUSAL_LINES_EVERY) {
            self.since = Some(now);
            self.lines = 0;
        }
        if self.lines >= REFUSAL_LINES_MAX {
            self.unlogged += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// Cheap to clone. Send from any thread.
#[derive(Clone)]
pub struct Transport {
    shared: Arc<TransportShared>,
    commands: mpsc::UnboundedSender<TransportCommand>,
}

/// Commands to the `peers` thread: membership changes and stop.
enum TransportCommand {
    Members(Vec<ClusterMember>),
    Stop,
}

impl Transport {
    /// Starts the `peers` thread and, where there is a listener, the one that accepts.
    pub fn start(
        registry: Arc<PeerRegistry>,
        listen: Option<std::net::TcpListener>,
        sink: Arc<dyn PeerSink>,
    ) -> std::io::Result<(Transport, JoinHandle<()>)> {
        let shared = Arc::new(TransportShared {
            registry,
            sink,
            peers: Mutex::default(),
            inbound: Mutex::default(),
            refusals: Mutex::default(),
        });
        let (commands, inbox) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let accepting = listen.map(|listener| accepting::start(shared.clone(), listener)).transpose()?;
        let (greeted, accepting) = accepting.unzip();
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new().name("peers".to_string()).spawn(move || {
            runtime.block_on(run(for_thread, greeted, inbox));
            // It ends because nobody takes what it has greeted; the port is free afterwards.
            if accepting.is_some_and(|thread| thread.join().is_err()) {
                tracing::error!("the thread that accepts peers has panicked");
            }
        })?;
        Ok((Transport { shared, commands }, thread))
    }

    /// Sends all messages, in order for each peer; one write to the socket for all that go to one peer.
    pub fn send_all(&self, messages: impl IntoIterator<Item = (NodeId, PeerMessage)>) {
        let mut touched: Vec<(NodeId, Channel, Arc<SendQueue>)> = Vec::new();
        for (to, message) in messages {
            let channel = Channel::of(&message);
            let known = touched.iter().find(|(id, ch, _)| *id == to && *ch == channel);
            let queue = match known {
                Some((_, _, queue)) => queue.clone(),
                None => match self.shared.queue(to, channel) {
                    Some(queue) => {
                        touched.push((to, channel, queue.clone()));
                        queue
                    }
                    None => {
                        self.shared.sink.unreachable(to);
                        continue;
                    }
                },
            };
            match queue.push(&message) {
                Pushed::Taken => {}
                // Not connected: nothing is wrong with the queue.
                Pushed::Dropped if !queue.is_connected() => self.shared.sink.unreachable(to),
                Pushed::Dropped => self.shared.sink.dropped(to),
            }
        }
        for (_, _, queue) in touched {
            queue.flush_now();
        }
    }

    /// Whom to talk to from now on. Connections to others are closed.
    pub fn set_members(&self, members: Vec<ClusterMember>) {
        let _ = self.commands.send(TransportCommand::Members(members));
    }

    /// What the cluster runs from now on: whoever cannot run it is refused when it greets.
    pub fn set_cluster_version(&self, runs: ClusterVersion) {
        self.shared.registry.set_cluster_version(runs);
    }

    /// Closes everything; the thread ends soon after.
    pub fn stop(&self) {
        let _ = self.commands.send(TransportCommand::Stop);
    }
}

impl TransportShared {
    /// The dialled connection if it stands, else one the peer dialled, else the dialled one's queue.
    fn queue(&self, to: NodeId, channel: Channel) -> Option<Arc<SendQueue>> {
        let dialled = lock(&self.peers).get(&to).map(|peer| match channel {
            Channel::Raft => peer.raft.clone(),
            Channel::Bulk => peer.bulk.clone(),
        });
        if dialled.as_ref().is_some_and(|queue| queue.is_connected()) {
            return dialled;
        }
        // Only raft messages use an inbound connection: snapshot chunks always use one of their own.
        let back =
            (channel == Channel::Raft).then(|| lock(&self.inbound).get(&(to, channel)).cloned()).flatten();
        back.or(dialled)
    }

    /// Whether this peer has a connection open that it has dialled.
    fn is_dialled_by(&self, peer: NodeId) -> bool {
        lock(&self.inbound).contains_key(&(peer, Channel::Raft))
    }

    /// A connection that was not let in.
    fn refused(&self, from: SocketAddr, reason: &str) {
        if let Some(unlogged) = lock(&self.refusals).admit(Instant::now()) {
            tracing::warn!(%from, unlogged, "peer refused: {reason}");
        }
    }

    /// Closes every connection that was greeted with one of these secrets.
    fn end_greeted_with(&self, gone: &[SecretId]) {
        for peer in lock(&self.peers).values() {
            peer.raft.end_of(gone);
            peer.bulk.end_of(gone);
        }
        lock(&self.inbound).values().for_each(|queue| queue.end_of(gone));
    }

    fn set_members(self: &Arc<Self>, members: Vec<ClusterMember>) {
        let fresh = self.registry.set_members(&members);
        for ((id, _), queue) in lock(&self.inbound).iter() {
            if fresh.contains(id) {
                queue.end();
            }
        }
        let own = self.registry.identity().node_id;
        let mut peers = lock(&self.peers);
        let stays = |id: NodeId, peer: &DialledPeer| {
            members.iter().any(|member| member.id == id && member.addr == peer.addr)
        };
        peers.retain(|id, peer| !fresh.contains(id) && stays(*id, peer));
        for member in members.into_iter().filter(|member| member.id != own) {
            peers.entry(member.id).or_insert_with(|| self.dial(member));
        }
    }

    fn dial(self: &Arc<Self>, member: ClusterMember) -> DialledPeer {
        let raft = SendQueue::new(RAFT_QUEUE);
        let bulk = SendQueue::new(BULK_QUEUE);
        let tasks = [(Channel::Raft, &raft), (Channel::Bulk, &bulk)]
            .into_iter()
            .map(|(channel, queue)| {
                let task =
                    link::keep_dialling(self.clone(), member.id, member.addr.clone(), channel, queue.clone());
                tokio::spawn(task).abort_handle()
            })
            .collect();
        DialledPeer { addr: member.addr, raft, bulk, tasks }
    }
}

async fn run(
    shared: Arc<TransportShared>,
    greeted: Option<mpsc::Receiver<Greeted>>,
    mut commands: mpsc::UnboundedReceiver<TransportCommand>,
) {
    // Aborted at the end: it holds the receiver, without which the thread that accepts ends.
    let serving = greeted.map(|greeted| tokio::spawn(serve_greeted(shared.clone(), greeted)));
    if !shared.registry.security.is_plain() {
        drop(tokio::spawn(link::keep_secrets_fresh(shared.clone())));
    }
    while let Some(command) = commands.recv().await {
        match command {
            TransportCommand::Members(members) => shared.set_members(members),
            TransportCommand::Stop => break,
        }
    }
    lock(&shared.peers).clear();
    lock(&shared.inbound).clear();
    if let Some(serving) = serving {
        serving.abort();
        // It was aborted: there is nothing to learn.
        let _ = serving.await;
    }
}

/// Serves every connection that has greeted.
async fn serve_greeted(shared: Arc<TransportShared>, mut greeted: mpsc::Receiver<Greeted>) {
    while let Some(greeted) = greeted.recv().await {
        let shared = shared.clone();
        match greeted.into_stream() {
            Ok((hello, stream, place)) => drop(tokio::spawn(async move {
                link::serve(&shared, &hello, stream).await;
                drop(place);
            })),
            Err(e) => tracing::warn!("cannot serve a peer: {e}"),
        }
    }
}

/// Binds the address peers are to reach this node at.
pub fn bind(addr: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(128)?;
    Ok(socket.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
