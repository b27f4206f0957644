//! Peers: how nodes of one cluster reach each other.
//!
//! Every node dials every other member twice: one ordered connection for raft's messages, one for pieces of snapshots, so
//! that heartbeats and votes never stand behind bulk. Whoever sends writes to the socket at once, from its own thread, if
//! the socket takes it; a task on the `peers` thread carries on where it does not. An answer may also travel back on a
//! connection the other side dialled: that is how a node nobody dials (removed, or about to join) is reached.
//!
//! Queues are bounded in bytes. What does not fit is dropped and reported as unreachable; raft repeats what it needs. When
//! a connection breaks, what was queued on it is dropped too, so a new connection always starts at a frame's first byte.
//!
//! # Layout
//!
//! - [`greeting`]: who are you; every reason to refuse
//! - [`book`]: what this node knows of itself and of the others, durably
//! - `lane`: one queue and its socket
//! - `link`: dialling, accepting, reading
//!
//! # Caveats
//!
//! Nothing is encrypted yet. The place for TLS is between `lane`'s buffer and its socket. A shared secret keeps strangers
//! out, it does not keep listeners from reading.

pub mod book;
pub mod greeting;
mod lane;
mod link;
#[cfg(test)]
mod tests;

use crate::node_api::{Member, NodeId, PeerMessage, PeerSink};
use book::Book;
use lane::{Lane, Limits, Pushed};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// Raft's messages to one peer. While it is being dialled only a vote or two need to wait; all else is soon stale.
const RAFT_LANE: Limits = Limits { connected_bytes: 16 << 20, dialling_bytes: 64 << 10 };
/// Pieces of snapshots to one peer: the node's own window is smaller. They start the dialling, so all of them wait for it.
const BULK_LANE: Limits = Limits { connected_bytes: 8 << 20, dialling_bytes: 8 << 20 };

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
            | PeerMessage::NotMember { .. } => Channel::Raft,
        }
    }
}

/// A member this node dials.
struct Peer {
    addr: String,
    raft: Arc<Lane>,
    bulk: Arc<Lane>,
    tasks: Vec<tokio::task::AbortHandle>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

pub(crate) struct Shared {
    book: Arc<Book>,
    sink: Arc<dyn PeerSink>,
    peers: Mutex<HashMap<NodeId, Peer>>,
    /// Connections dialled by the other side, by what they are for.
    inbound: Mutex<HashMap<(NodeId, Channel), Arc<Lane>>>,
}

/// Cheap to clone. Send from any thread.
#[derive(Clone)]
pub struct Transport {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
}

/// What the `peers` thread is told. Rare: changes of membership and the end.
enum Order {
    Members(Vec<Member>),
    Stop,
}

impl Transport {
    /// Binds the listener (where there is one) and starts the `peers` thread.
    pub fn start(
        book: Arc<Book>,
        listen: Option<std::net::TcpListener>,
        sink: Arc<dyn PeerSink>,
    ) -> std::io::Result<(Transport, JoinHandle<()>)> {
        let shared = Arc::new(Shared { book, sink, peers: Mutex::default(), inbound: Mutex::default() });
        let (orders, inbox) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        if let Some(listener) = &listen {
            listener.set_nonblocking(true)?;
        }
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("peers".to_string())
            .spawn(move || runtime.block_on(run(for_thread, listen, inbox)))?;
        Ok((Transport { shared, orders }, thread))
    }

    /// Sends all messages, in order for each peer; one write to the socket for all that go to one peer.
    pub fn send_all(&self, messages: impl IntoIterator<Item = (NodeId, PeerMessage)>) {
        let mut touched: Vec<(NodeId, Channel, Arc<Lane>)> = Vec::new();
        for (to, message) in messages {
            let channel = Channel::of(&message);
            let known = touched.iter().find(|(id, ch, _)| *id == to && *ch == channel);
            let lane = match known {
                Some((_, _, lane)) => lane.clone(),
                None => match self.shared.lane(to, channel) {
                    Some(lane) => {
                        touched.push((to, channel, lane.clone()));
                        lane
                    }
                    None => {
                        self.shared.sink.unreachable(to);
                        continue;
                    }
                },
            };
            if lane.push(&message) == Pushed::Dropped {
                self.shared.sink.unreachable(to);
            }
        }
        for (_, _, lane) in touched {
            lane.flush_now();
        }
    }

    /// Whom to talk to from now on. Connections to others are closed.
    pub fn set_members(&self, members: Vec<Member>) {
        let _ = self.orders.send(Order::Members(members));
    }

    /// Closes everything; the thread ends soon after.
    pub fn stop(&self) {
        let _ = self.orders.send(Order::Stop);
    }
}

impl Shared {
    /// The dialled connection if it stands, else one the peer dialled, else the dialled one's queue.
    fn lane(&self, to: NodeId, channel: Channel) -> Option<Arc<Lane>> {
        let dialled = lock(&self.peers).get(&to).map(|peer| match channel {
            Channel::Raft => peer.raft.clone(),
            Channel::Bulk => peer.bulk.clone(),
        });
        if dialled.as_ref().is_some_and(|lane| lane.is_connected()) {
            return dialled;
        }
        // Only raft's own answers take the way back: bulk always goes out on a connection of its own.
        let back =
            (channel == Channel::Raft).then(|| lock(&self.inbound).get(&(to, channel)).cloned()).flatten();
        back.or(dialled)
    }

    fn set_members(self: &Arc<Self>, members: Vec<Member>) {
        let fresh = self.book.set_members(&members);
        for ((id, _), lane) in lock(&self.inbound).iter() {
            if fresh.contains(id) {
                lane.end();
            }
        }
        let own = self.book.identity().node_id;
        let mut peers = lock(&self.peers);
        let stays = |id: NodeId, peer: &Peer| {
            members.iter().any(|member| member.id == id && member.addr == peer.addr)
        };
        peers.retain(|id, peer| !fresh.contains(id) && stays(*id, peer));
        for member in members.into_iter().filter(|member| member.id != own) {
            peers.entry(member.id).or_insert_with(|| self.dial(member));
        }
    }

    fn dial(self: &Arc<Self>, member: Member) -> Peer {
        let raft = Lane::new(RAFT_LANE);
        let bulk = Lane::new(BULK_LANE);
        let tasks = [(Channel::Raft, &raft), (Channel::Bulk, &bulk)]
            .into_iter()
            .map(|(channel, lane)| {
                let task =
                    link::keep_dialling(self.clone(), member.id, member.addr.clone(), channel, lane.clone());
                tokio::spawn(task).abort_handle()
            })
            .collect();
        Peer { addr: member.addr, raft, bulk, tasks }
    }
}

async fn run(
    shared: Arc<Shared>,
    listen: Option<std::net::TcpListener>,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    if let Some(listener) = listen {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => drop(tokio::spawn(link::keep_accepting(shared.clone(), listener))),
            Err(e) => tracing::error!("the peer listener cannot be used: {e}"),
        }
    }
    while let Some(order) = orders.recv().await {
        match order {
            Order::Members(members) => shared.set_members(members),
            Order::Stop => break,
        }
    }
    lock(&shared.peers).clear();
    lock(&shared.inbound).clear();
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
