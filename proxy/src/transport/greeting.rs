//! The greeting: four small frames before anything else, and every reason to refuse.
//!
//! ```text
//! dialler  -> Hello   who I am, whom I want, a nonce
//! acceptor -> Hello   who I am, a nonce, proof that I know the secret
//! dialler  -> Proof   that I know it too
//! acceptor -> Welcome
//! ```
//!
//! Each `Hello` carries the range of cluster versions its node can run, and the one its cluster runs: frames, entries and snapshots
//! are in the format of that version, so a node that cannot run it is refused.
//!
//! Either side may answer with a `GreetingRefusal` instead, whose text both sides log. Without a configured secret the proofs are
//! made with an empty one, so a node with a secret and a node without refuse each other.

use super::peer_registry::PeerRegistry;
use super::Channel;
use crate::node_api::wire::ADDR_BYTES_MAX;
use crate::node_api::NodeId;
use crate::storage::datadir::StoreId;
use bytes::{Buf, BufMut, BytesMut};
use hmac::{Hmac, Mac};
use redfence_core::machine::version::{ClusterVersion, VersionRange};
use sha2::Sha256;
use std::fmt;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MAGIC: &[u8; 8] = b"RFPEER1\n";
/// What programs from before release 1 said.
const MAGIC_BEFORE_RELEASE_1: &[u8; 8] = b"RFPEER\r\n";
const GREETING_FRAME_BYTES_MAX: usize = 1024;
const NONCE_BYTES: usize = 16;
const PROOF_BYTES: usize = 32;
const REFUSAL_TEXT_BYTES_MAX: usize = 400;

const KIND_HELLO: u8 = 1;
const KIND_PROOF: u8 = 2;
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
            GreetingRefusal::Storage(text) => write!(f, "{text}"),
            GreetingRefusal::ByPeer(text) => write!(f, "refused by the peer: {text}"),
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
    pub nonce: [u8; NONCE_BYTES],
    pub advertise: String,
}

impl Hello {
    fn of(registry: &PeerRegistry, to_node: NodeId, channel: Channel) -> Result<Hello, GreetingError> {
        let identity = registry.identity();
        let mut nonce = [0; NONCE_BYTES];
        getrandom::getrandom(&mut nonce).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(Hello {
            versions: registry.versions,
            cluster_version: registry.cluster_version(),
            cluster_id: identity.cluster_id,
            node_id: identity.node_id,
            to_node,
            store_id: identity.store_id,
            channel,
            nonce,
            advertise: registry.advertise.clone(),
        })
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
        out.put_slice(&self.nonce);
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
        if bytes.len() < 3 * 8 + 16 + 1 + NONCE_BYTES || bytes.len() > 64 + NONCE_BYTES + ADDR_BYTES_MAX {
            return Err(GreetingRefusal::NotAPeer("wrong length"));
        }
        let (cluster_id, node_id, to_node) = (bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u64_le());
        let store_id = StoreId(bytes.get_u128_le());
        let channel = match bytes.get_u8() {
            0 => Channel::Raft,
            1 => Channel::Bulk,
            _ => return Err(GreetingRefusal::NotAPeer("unknown channel")),
        };
        let mut nonce = [0; NONCE_BYTES];
        bytes.copy_to_slice(&mut nonce);
        let advertise = String::from_utf8(bytes.to_vec())
            .map_err(|_| GreetingRefusal::NotAPeer("address is not text"))?;
        Ok(Hello {
            versions,
            cluster_version,
            cluster_id,
            node_id,
            to_node,
            store_id,
            channel,
            nonce,
            advertise,
        })
    }
}

/// Greets a peer this node has dialled.
pub(super) async fn dial(
    stream: &mut TcpStream,
    registry: &PeerRegistry,
    peer: NodeId,
    channel: Channel,
) -> Result<(), GreetingError> {
    let ours = Hello::of(registry, peer, channel)?.encode();
    write_frame(stream, KIND_HELLO, &ours).await?;
    let answer = expect_frame(stream, KIND_HELLO).await?;
    let (hello_bytes, proof) =
        answer.split_last_chunk::<PROOF_BYTES>().ok_or(GreetingRefusal::NotAPeer("wrong length"))?;
    let checked = Hello::decode(hello_bytes).and_then(|theirs| {
        check_proof(registry, b"acceptor", &ours, hello_bytes, proof)?;
        if theirs.node_id != peer {
            return Err(GreetingRefusal::WrongNode { wanted: peer, found: theirs.node_id });
        }
        registry.admit(&theirs)
    });
    if let Err(refusal) = checked {
        return refuse(stream, refusal).await;
    }
    write_frame(stream, KIND_PROOF, &proof_of(registry, b"dialler", &ours, hello_bytes)).await?;
    expect_frame(stream, KIND_WELCOME).await?;
    Ok(())
}

/// Greets a peer that has dialled this node.
pub(super) async fn accept(stream: &mut TcpStream, registry: &PeerRegistry) -> Result<Hello, GreetingError> {
    let hello_bytes = expect_frame(stream, KIND_HELLO).await?;
    let theirs = match Hello::decode(&hello_bytes) {
        Ok(theirs) => theirs,
        Err(refusal) => return refuse(stream, refusal).await,
    };
    // The cluster's id may be learned here, so it is looked at before our own answer is written; but nothing is believed
    // of somebody without the secret.
    if registry.secret.is_none() {
        if let Err(refusal) = registry.admit(&theirs) {
            return refuse(stream, refusal).await;
        }
    }
    let ours = Hello::of(registry, theirs.node_id, theirs.channel)?.encode();
    let mut answer = ours.clone();
    answer.put_slice(&proof_of(registry, b"acceptor", &hello_bytes, &ours));
    write_frame(stream, KIND_HELLO, &answer).await?;
    let proof = expect_frame(stream, KIND_PROOF).await?;
    let checked =
        check_proof(registry, b"dialler", &hello_bytes, &ours, &proof).and_then(|()| registry.admit(&theirs));
    if let Err(refusal) = checked {
        return refuse(stream, refusal).await;
    }
    write_frame(stream, KIND_WELCOME, &[]).await?;
    Ok(theirs)
}

fn mac(registry: &PeerRegistry, side: &[u8], dialler_hello: &[u8], acceptor_hello: &[u8]) -> Hmac<Sha256> {
    let secret = registry.secret.as_deref().unwrap_or_default();
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length will do");
    for part in [side, dialler_hello, acceptor_hello] {
        mac.update(&(part.len() as u32).to_le_bytes());
        mac.update(part);
    }
    mac
}

fn proof_of(
    registry: &PeerRegistry,
    side: &[u8],
    dialler_hello: &[u8],
    acceptor_hello: &[u8],
) -> [u8; PROOF_BYTES] {
    mac(registry, side, dialler_hello, acceptor_hello).finalize().into_bytes().into()
}

/// Compares in constant time.
fn check_proof(
    registry: &PeerRegistry,
    side: &[u8],
    dialler: &[u8],
    acceptor: &[u8],
    proof: &[u8],
) -> Result<(), GreetingRefusal> {
    mac(registry, side, dialler, acceptor).verify_slice(proof).map_err(|_| GreetingRefusal::Secret)
}

/// Tells the other side why, then fails here with the same reason.
async fn refuse<T>(stream: &mut TcpStream, refusal: GreetingRefusal) -> Result<T, GreetingError> {
    let mut text = refusal.to_string();
    while text.len() > REFUSAL_TEXT_BYTES_MAX {
        text.pop();
    }
    // It may be gone already; our own reason counts.
    let _ = write_frame(stream, KIND_REFUSAL, text.as_bytes()).await;
    Err(refusal.into())
}

async fn write_frame(stream: &mut TcpStream, kind: u8, payload: &[u8]) -> io::Result<()> {
    let mut frame = BytesMut::with_capacity(payload.len() + 7);
    frame.put_u32_le(payload.len() as u32 + 3);
    frame.put_u8(kind);
    frame.put_u16_le(0);
    frame.put_slice(payload);
    stream.write_all(&frame).await
}

async fn expect_frame(stream: &mut TcpStream, wanted: u8) -> Result<Vec<u8>, GreetingError> {
    let length = stream.read_u32_le().await? as usize;
    if !(3..=GREETING_FRAME_BYTES_MAX).contains(&length) {
        return Err(GreetingRefusal::NotAPeer("wrong length").into());
    }
    let kind = stream.read_u8().await?;
    let _group = stream.read_u16_le().await?;
    let mut payload = vec![0; length - 3];
    stream.read_exact(&mut payload).await?;
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
