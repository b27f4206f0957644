//! The greeting: three small frames before anything else, and every reason to refuse.
//!
//! ```text
//! dialler  -> Hello    who I am, whom I want
//! acceptor -> Hello    who I am
//! dialler  -> Welcome  you are the one
//! ```
//!
//! With a peer secret all of it is encrypted (see `seal.rs`), and begins after the dialler has proved the secret: a stranger gets no
//! answer at all. Without one (loopback alone) it is in clear.
//!
//! Each `Hello` carries the range of cluster versions its node can run, and the one its cluster runs: frames, entries and snapshots
//! are in the format of that version, so a node that cannot run it is refused.
//!
//! Either side may answer with a `GreetingRefusal` instead, whose text both sides log. In clear the text names no id of a cluster or
//! a store, and whoever does not greet as a peer gets none.

use super::peer_registry::PeerRegistry;
use super::peer_stream::PeerStream;
use super::Channel;
use crate::node_api::wire::ADDR_BYTES_MAX;
use crate::node_api::NodeId;
use crate::storage::datadir::StoreId;
use bytes::{Buf, BufMut, BytesMut};
use redfence_core::machine::version::{ClusterVersion, VersionRange};
use std::fmt;
use std::io;
use tokio::net::TcpStream;

const MAGIC: &[u8; 8] = b"RFPEER1\n";
/// What programs from before release 1 said.
const MAGIC_BEFORE_RELEASE_1: &[u8; 8] = b"RFPEER\r\n";
const REFUSAL_TEXT_BYTES_MAX: usize = 400;

const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 3;
const KIND_REFUSAL: u8 = 4;

/// Why a peer is not let in. The text is the same in the logs of both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GreetingRefusal {
    NotAPeer(&'static str),
    BeforeRelease1,
    /// One of the two cannot run the version that the cluster runs.
    Version {
        id: NodeId,
        runs: ClusterVersion,
        can_run: VersionRange,
    },
    OtherCluster {
        theirs: u64,
        ours: u64,
    },
    OtherStore {
        id: NodeId,
        known: StoreId,
        shown: StoreId,
    },
    SameId(NodeId),
    WrongNode {
        wanted: NodeId,
        found: NodeId,
    },
    NotAdded(NodeId),
    Secret,
    /// It did not prove the secret.
    Stranger,
    Storage(String),
    /// What the other side wrote.
    ByPeer(String),
}

impl fmt::Display for GreetingRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GreetingRefusal::NotAPeer(what) => write!(f, "this is no greeting of a Redfence peer ({what})"),
            GreetingRefusal::BeforeRelease1 => f.write_str("the peer is a program from before release 1"),
            GreetingRefusal::Version { id, runs, can_run } => write!(
                f,
                "the cluster runs version {runs}, node {id} can run {can_run}: start it with a release that can"
            ),
            GreetingRefusal::OtherCluster { theirs, ours } => {
                write!(f, "cluster {theirs:016x} is not our cluster {ours:016x}")
            }
            GreetingRefusal::OtherStore { id, known, shown } => write!(
                f,
                "node {id} came with store {shown} but is known with store {known}: its disk was wiped or swapped; \
                 REMOVE the node, then ADD it again"
            ),
            GreetingRefusal::SameId(id) => write!(f, "both sides say they are node {id}"),
            GreetingRefusal::WrongNode { wanted, found } => {
                write!(f, "node {wanted} was wanted, but node {found} answers at this address")
            }
            GreetingRefusal::NotAdded(id) => write!(f, "node {id} was not added to this cluster; LOCK.CLUSTER ADD it first"),
            GreetingRefusal::Secret => write!(f, "the peer secret is missing or differs"),
            GreetingRefusal::Stranger => f.write_str("no proof of the peer secret"),
            GreetingRefusal::Storage(text) => write!(f, "{text}"),
            GreetingRefusal::ByPeer(text) => write!(f, "refused by the peer: {text}"),
        }
    }
}

impl GreetingRefusal {
    /// The text that the other side is sent. `is_sealed`: it has proved the secret. `None`: nothing.
    fn text_for_peer(&self, is_sealed: bool) -> Option<String> {
        match self {
            GreetingRefusal::NotAPeer(_)
            | GreetingRefusal::BeforeRelease1
            | GreetingRefusal::Secret
            | GreetingRefusal::Stranger
            | GreetingRefusal::ByPeer(_) => None,
            GreetingRefusal::OtherCluster { .. } if !is_sealed => {
                Some("the cluster of the dialler is not our cluster".to_string())
            }
            GreetingRefusal::OtherStore { id, .. } if !is_sealed => Some(format!(
                "node {id} came with another store than it is known with: its disk was wiped or swapped; \
                 REMOVE the node, then ADD it again"
            )),
            GreetingRefusal::Storage(_) if !is_sealed => {
                Some("the data directory cannot be written".to_string())
            }
            GreetingRefusal::OtherCluster { .. }
            | GreetingRefusal::OtherStore { .. }
            | GreetingRefusal::Storage(_)
            | GreetingRefusal::Version { .. }
            | GreetingRefusal::SameId(_)
            | GreetingRefusal::WrongNode { .. }
            | GreetingRefusal::NotAdded(_) => Some(self.to_string()),
        }
    }
}

/// How a greeting ends when it does not end well.
#[derive(Debug)]
pub enum GreetingError {
    Refused(GreetingRefusal),
    Io(io::Error),
}

impl From<io::Error> for GreetingError {
    fn from(e: io::Error) -> GreetingError {
        GreetingError::Io(e)
    }
}

impl From<GreetingRefusal> for GreetingError {
    fn from(refusal: GreetingRefusal) -> GreetingError {
        GreetingError::Refused(refusal)
    }
}

impl fmt::Display for GreetingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GreetingError::Refused(refusal) => refusal.fmt(f),
            GreetingError::Io(e) => e.fmt(f),
        }
    }
}

/// Who speaks, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What this node can run.
    pub versions: VersionRange,
    /// What its cluster runs, as far as it knows.
    pub cluster_version: ClusterVersion,
    pub cluster_id: u64,
    pub node_id: NodeId,
    pub to_node: NodeId,
    pub store_id: StoreId,
    pub(crate) channel: Channel,
    pub advertise: String,
}

impl Hello {
    fn of(registry: &PeerRegistry, to_node: NodeId, channel: Channel) -> Hello {
        let identity = registry.identity();
        Hello {
            versions: registry.versions,
            cluster_version: registry.cluster_version(),
            cluster_id: identity.cluster_id,
            node_id: identity.node_id,
            to_node,
            store_id: identity.store_id,
            channel,
            advertise: registry.advertise.clone(),
        }
    }

    pub fn encode(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(128);
        out.put_slice(MAGIC);
        out.put_u16_le(self.versions.oldest);
        out.put_u16_le(self.versions.newest);
        out.put_u16_le(self.cluster_version);
        out.put_u64_le(self.cluster_id);
        out.put_u64_le(self.node_id);
        out.put_u64_le(self.to_node);
        out.put_u128_le(self.store_id.0);
        out.put_u8(match self.channel {
            Channel::Raft => 0,
            Channel::Bulk => 1,
        });
        out.put_slice(self.advertise.as_bytes());
        out
    }

    /// Reads a stranger's first frame.
    pub fn decode(mut bytes: &[u8]) -> Result<Hello, GreetingRefusal> {
        if bytes.starts_with(MAGIC_BEFORE_RELEASE_1) {
            return Err(GreetingRefusal::BeforeRelease1);
        }
        if !bytes.starts_with(MAGIC) || bytes.len() < MAGIC.len() + 6 {
            return Err(GreetingRefusal::NotAPeer("wrong first bytes"));
        }
        bytes.advance(MAGIC.len());
        let versions = VersionRange { oldest: bytes.get_u16_le(), newest: bytes.get_u16_le() };
        let cluster_version = bytes.get_u16_le();
        if bytes.len() < 3 * 8 + 16 + 1 || bytes.len() > 3 * 8 + 16 + 1 + ADDR_BYTES_MAX {
            return Err(GreetingRefusal::NotAPeer("wrong length"));
        }
        let (cluster_id, node_id, to_node) = (bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u64_le());
        let store_id = StoreId(bytes.get_u128_le());
        let channel = match bytes.get_u8() {
            0 => Channel::Raft,
            1 => Channel::Bulk,
            _ => return Err(GreetingRefusal::NotAPeer("unknown channel")),
        };
        let advertise = String::from_utf8(bytes.to_vec())
            .map_err(|_| GreetingRefusal::NotAPeer("address is not text"))?;
        Ok(Hello { versions, cluster_version, cluster_id, node_id, to_node, store_id, channel, advertise })
    }
}

/// Greets a peer this node has dialled.
pub(super) async fn dial(
    stream: TcpStream,
    address: &str,
    registry: &PeerRegistry,
    peer: NodeId,
    channel: Channel,
) -> Result<PeerStream, GreetingError> {
    let mut stream = PeerStream::dial(stream, address, &registry.security).await?;
    stream.write_frame(KIND_HELLO, &Hello::of(registry, peer, channel).encode()).await?;
    let answer = expect_frame(&mut stream, KIND_HELLO).await?;
    let checked = Hello::decode(&answer).and_then(|theirs| {
        if theirs.node_id != peer {
            return Err(GreetingRefusal::WrongNode { wanted: peer, found: theirs.node_id });
        }
        registry.admit(&theirs)
    });
    if let Err(refusal) = checked {
        return refuse(&mut stream, refusal).await;
    }
    stream.write_frame(KIND_WELCOME, &[]).await?;
    Ok(stream)
}

/// Greets a peer that has dialled this node. Nothing is said, and nothing it says is looked at, before it has proved the secret.
pub(super) async fn accept(
    stream: TcpStream,
    registry: &PeerRegistry,
) -> Result<(Hello, PeerStream), GreetingError> {
    let mut stream = PeerStream::accept(stream, &registry.security).await?;
    let hello_bytes = expect_frame(&mut stream, KIND_HELLO).await?;
    let theirs = match Hello::decode(&hello_bytes).and_then(|theirs| registry.admit(&theirs).map(|()| theirs))
    {
        Ok(theirs) => theirs,
        Err(refusal) => return refuse(&mut stream, refusal).await,
    };
    // The cluster's id may have been learned just now: our own answer has it.
    let ours = Hello::of(registry, theirs.node_id, theirs.channel).encode();
    stream.write_frame(KIND_HELLO, &ours).await?;
    expect_frame(&mut stream, KIND_WELCOME).await?;
    Ok((theirs, stream))
}

/// Tells the other side why where it may know, then fails here with the reason.
async fn refuse<T>(stream: &mut PeerStream, refusal: GreetingRefusal) -> Result<T, GreetingError> {
    if let Some(mut text) = refusal.text_for_peer(stream.is_sealed()) {
        while text.len() > REFUSAL_TEXT_BYTES_MAX {
            text.pop();
        }
        // It may be gone already; our own reason counts.
        let _ = stream.write_frame(KIND_REFUSAL, text.as_bytes()).await;
    }
    Err(refusal.into())
}

async fn expect_frame(stream: &mut PeerStream, wanted: u8) -> Result<Vec<u8>, GreetingError> {
    let (kind, payload) = stream.read_frame().await?;
    match kind {
        KIND_REFUSAL => {
            let text: String =
                String::from_utf8_lossy(&payload).chars().filter(|c| !c.is_control()).collect();
            Err(GreetingRefusal::ByPeer(text).into())
        }
        kind if kind == wanted => Ok(payload),
        _ => Err(GreetingRefusal::NotAPeer("out of turn").into()),
    }
}
