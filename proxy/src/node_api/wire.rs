//! Encoding of messages between nodes ([`PeerMessage`], in frames) and of [`SnapshotMeta`] (in messages and on disk).
//!
//! A frame is `u32 length of the rest | u8 kind | u16 group | payload`, little endian. Kinds below 16 belong to the
//! transport (greeting and the like). Only peers that passed the greeting reach the decoder, and every length is checked
//! against the bytes that are there before anything is allocated for it.

use crate::node_api::{
    AdminRequest, ClusterMember, Forward, Forwarded, GroupId, LogPosition, MemberProgress, PeerMessage,
    SnapshotAck, SnapshotChunk, SnapshotId, SnapshotMeta, TransferState,
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use protobuf::Message as _;
use raft::eraftpb::{ConfState, Message};
use redfence_core::limits::PEER_FRAME_BYTES_MAX;
use redfence_core::machine::version::VersionRange;
use redfence_core::types::Origin;

/// Largest frame, without its length field: see [`redfence_core::limits`].
pub const FRAME_BYTES_MAX: usize = PEER_FRAME_BYTES_MAX;
/// Most commands in one forwarded batch.
pub const FORWARD_COMMANDS_MAX: usize = 8_192;
/// What each command of it takes besides its own bytes: number, connection, length.
const FORWARDED_BYTES_MIN: usize = 8 + 8 + 4;
/// Longest address of a member.
pub const ADDR_BYTES_MAX: usize = 255;
/// Most members a snapshot may name.
pub const MEMBERS_MAX: usize = 64;

// Frame kinds below 16 belong to the transport.
const KIND_RAFT: u8 = 16;
const KIND_FORWARD: u8 = 17;
const KIND_SNAPSHOT_CHUNK: u8 = 18;
const KIND_SNAPSHOT_ACK: u8 = 19;
const KIND_ADMIN: u8 = 20;
const KIND_NOT_MEMBER: u8 = 21;
const KIND_PROGRESS: u8 = 22;
const KIND_VERSIONS: u8 = 23;

/// Why bytes are not a message. The connection they came from is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedFrame(pub &'static str);

/// A message too large for a frame. Requests are bounded where they enter, so none is ever built; if one were, dropping it is better
/// than losing the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTooLarge {
    pub length: usize,
}

/// Appends one whole frame, or nothing where it would exceed [`FRAME_BYTES_MAX`].
pub fn encode_frame(group: GroupId, message: &PeerMessage, out: &mut BytesMut) -> Result<(), FrameTooLarge> {
    let start = out.len();
    out.put_u32_le(0);
    let kind_at = out.len();
    out.put_u8(0);
    out.put_u16_le(group);
    out[kind_at] = encode_payload(message, out);
    let length = out.len() - start - 4;
    if length > FRAME_BYTES_MAX {
        out.truncate(start);
        return Err(FrameTooLarge { length });
    }
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

fn encode_payload(message: &PeerMessage, out: &mut BytesMut) -> u8 {
    match message {
        PeerMessage::Raft(message) => {
            put_protobuf(message.as_ref(), out);
            KIND_RAFT
        }
        PeerMessage::Forward(forward) => {
            put_origin(forward.origin, out);
            out.put_u64_le(forward.term);
            out.put_u64_le(forward.prev);
            out.put_u64_le(forward.acked_below);
            out.put_u32_le(forward.commands.len() as u32);
            for command in &forward.commands {
                out.put_u64_le(command.seq);
                out.put_u64_le(command.connection);
                put_bytes(&command.blob, out);
            }
            KIND_FORWARD
        }
        PeerMessage::SnapshotChunk(chunk) => {
            out.put_u64_le(chunk.transfer);
            out.put_u64_le(chunk.offset);
            match &chunk.message {
                None => out.put_u32_le(0),
                Some(message) => {
                    out.put_u32_le(message.compute_size());
                    put_protobuf(message.as_ref(), out);
                }
            }
            out.put_slice(&chunk.bytes);
            KIND_SNAPSHOT_CHUNK
        }
        PeerMessage::SnapshotAck(ack) => {
            out.put_u64_le(ack.transfer);
            out.put_u64_le(ack.received_bytes);
            out.put_u8(match ack.state {
                TransferState::InProgress => 0,
                TransferState::Done => 1,
                TransferState::Failed => 2,
            });
            KIND_SNAPSHOT_ACK
        }
        PeerMessage::Admin { applied, request } => {
            out.put_u64_le(*applied);
            put_admin(request, out);
            KIND_ADMIN
        }
        PeerMessage::NotMember { conf_index } => {
            out.put_u64_le(*conf_index);
            KIND_NOT_MEMBER
        }
        PeerMessage::Progress(rows) => {
            out.put_u8(rows.len() as u8);
            for MemberProgress { id, matched, up, version, users } in rows {
                out.put_u64_le(*id);
                out.put_u64_le(*matched);
                out.put_u8(u8::from(*up));
                out.put_u16_le(*version);
                out.put_u64_le(*users);
            }
            KIND_PROGRESS
        }
        PeerMessage::Versions { term, range, users } => {
            out.put_u64_le(*term);
            out.put_u16_le(range.oldest);
            out.put_u16_le(range.newest);
            out.put_u64_le(*users);
            KIND_VERSIONS
        }
    }
}

/// Reads what follows the length field of a frame: kind, group and payload.
pub fn decode_frame(mut frame: Bytes) -> Result<(GroupId, PeerMessage), MalformedFrame> {
    if frame.len() > FRAME_BYTES_MAX {
        return Err(MalformedFrame("frame too long"));
    }
    let kind = get_u8(&mut frame)?;
    let group = need(&mut frame, 2)?.get_u16_le();
    let message = match kind {
        KIND_RAFT => PeerMessage::Raft(Box::new(get_protobuf(&frame, &RAFT_MESSAGE)?)),
        KIND_FORWARD => PeerMessage::Forward(decode_forward(frame)?),
        KIND_SNAPSHOT_CHUNK => PeerMessage::SnapshotChunk(decode_chunk(frame)?),
        KIND_SNAPSHOT_ACK => PeerMessage::SnapshotAck(decode_ack(frame)?),
        KIND_ADMIN => {
            PeerMessage::Admin { applied: get_u64(&mut frame)?, request: decode_admin(&mut frame)? }
        }
        KIND_NOT_MEMBER => PeerMessage::NotMember { conf_index: get_u64(&mut frame)? },
        KIND_PROGRESS => PeerMessage::Progress(decode_progress(frame)?),
        KIND_VERSIONS => decode_versions(frame)?,
        _ => return Err(MalformedFrame("unknown kind of frame")),
    };
    Ok((group, message))
}

fn decode_forward(mut frame: Bytes) -> Result<Forward, MalformedFrame> {
    let origin = Origin { node: get_u64(&mut frame)?, incarnation: get_u64(&mut frame)? };
    let (term, prev) = (get_u64(&mut frame)?, get_u64(&mut frame)?);
    let acked_below = get_u64(&mut frame)?;
    let count = get_u32(&mut frame)? as usize;
    // A count that lies is found out before it is believed.
    if count > FORWARD_COMMANDS_MAX || frame.len() < count * FORWARDED_BYTES_MIN {
        return Err(MalformedFrame("forwarded batch: count does not fit"));
    }
    let mut commands: Vec<Forwarded> = Vec::with_capacity(count);
    for _ in 0..count {
        let (seq, connection) = (get_u64(&mut frame)?, get_u64(&mut frame)?);
        if commands.last().is_some_and(|before| before.seq >= seq) {
            return Err(MalformedFrame("forwarded batch: numbers do not rise"));
        }
        commands.push(Forwarded { seq, connection, blob: get_bytes(&mut frame)? });
    }
    finished(&frame)?;
    Ok(Forward { origin, term, prev, acked_below, commands })
}

fn decode_chunk(mut frame: Bytes) -> Result<SnapshotChunk, MalformedFrame> {
    let transfer = get_u64(&mut frame)?;
    let offset = get_u64(&mut frame)?;
    let message_bytes = get_bytes(&mut frame)?;
    let message = match message_bytes.is_empty() {
        true => None,
        false => Some(Box::new(get_protobuf(&message_bytes, &RAFT_MESSAGE)?)),
    };
    Ok(SnapshotChunk { transfer, offset, bytes: frame, message })
}

fn decode_ack(mut frame: Bytes) -> Result<SnapshotAck, MalformedFrame> {
    let transfer = get_u64(&mut frame)?;
    let received_bytes = get_u64(&mut frame)?;
    let state = match get_u8(&mut frame)? {
        0 => TransferState::InProgress,
        1 => TransferState::Done,
        2 => TransferState::Failed,
        _ => return Err(MalformedFrame("unknown state of a transfer")),
    };
    Ok(SnapshotAck { transfer, received_bytes, state })
}

fn decode_progress(mut frame: Bytes) -> Result<Vec<MemberProgress>, MalformedFrame> {
    let count = usize::from(get_u8(&mut frame)?);
    if count > MEMBERS_MAX {
        return Err(MalformedFrame("more members than there can be"));
    }
    let mut rows = Vec::with_capacity(count);
    for _ in 0..count {
        let (id, matched) = (get_u64(&mut frame)?, get_u64(&mut frame)?);
        let (up, version) = (get_u8(&mut frame)? != 0, get_u16(&mut frame)?);
        let users = get_u64(&mut frame)?;
        rows.push(MemberProgress { id, matched, up, version, users });
    }
    finished(&frame)?;
    Ok(rows)
}

fn decode_versions(mut frame: Bytes) -> Result<PeerMessage, MalformedFrame> {
    let term = get_u64(&mut frame)?;
    let range = VersionRange { oldest: get_u16(&mut frame)?, newest: get_u16(&mut frame)? };
    let users = get_u64(&mut frame)?;
    finished(&frame)?;
    Ok(PeerMessage::Versions { term, range, users })
}

fn put_admin(request: &AdminRequest, out: &mut BytesMut) {
    match request {
        AdminRequest::Add { id, addr } => {
            out.put_u8(0);
            out.put_u64_le(*id);
            put_bytes(addr.as_bytes(), out);
        }
        AdminRequest::Remove { id } => {
            out.put_u8(1);
            out.put_u64_le(*id);
        }
        AdminRequest::Transfer { id } => {
            out.put_u8(2);
            out.put_u64_le(*id);
        }
    }
}

fn decode_admin(frame: &mut Bytes) -> Result<AdminRequest, MalformedFrame> {
    let verb = get_u8(frame)?;
    let id = get_u64(frame)?;
    match verb {
        0 => Ok(AdminRequest::Add { id, addr: get_addr(frame)? }),
        1 => Ok(AdminRequest::Remove { id }),
        2 => Ok(AdminRequest::Transfer { id }),
        _ => Err(MalformedFrame("unknown change of membership")),
    }
}

const META_VERSION: u8 = 1;

/// What a snapshot's raft message carries as its data, and what storage keeps as the record of the snapshot to start from.
#[must_use]
pub fn encode_meta(meta: &SnapshotMeta) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(META_VERSION);
    out.put_u64_le(meta.id.0);
    out.put_u64_le(meta.at.index);
    out.put_u64_le(meta.at.term);
    out.put_u64_le(meta.size_bytes);
    out.put_u32_le(meta.crc32);
    out.put_u32_le(meta.conf_state.compute_size());
    put_protobuf(&meta.conf_state, &mut out);
    out.put_u32_le(meta.members.len() as u32);
    for member in &meta.members {
        out.put_u64_le(member.id);
        out.put_u64_le(member.added_at);
        out.put_u8(u8::from(member.voter));
        put_bytes(member.addr.as_bytes(), &mut out);
    }
    out.freeze()
}

pub fn decode_meta(bytes: &[u8]) -> Result<SnapshotMeta, MalformedFrame> {
    let mut frame = Bytes::copy_from_slice(bytes);
    if get_u8(&mut frame)? != META_VERSION {
        return Err(MalformedFrame("snapshot record of an unknown version"));
    }
    let id = SnapshotId(get_u64(&mut frame)?);
    let at = LogPosition { index: get_u64(&mut frame)?, term: get_u64(&mut frame)? };
    let size_bytes = get_u64(&mut frame)?;
    let crc32 = get_u32(&mut frame)?;
    let conf_state: ConfState = get_protobuf(&get_bytes(&mut frame)?, &FLAT)?;
    let count = get_u32(&mut frame)? as usize;
    if count > MEMBERS_MAX {
        return Err(MalformedFrame("snapshot record: too many members"));
    }
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        let (id, added_at) = (get_u64(&mut frame)?, get_u64(&mut frame)?);
        let voter = get_u8(&mut frame)? != 0;
        members.push(ClusterMember { id, addr: get_addr(&mut frame)?, added_at, voter });
    }
    finished(&frame)?;
    Ok(SnapshotMeta { id, at, conf_state, members, size_bytes, crc32 })
}

fn put_origin(origin: Origin, out: &mut BytesMut) {
    out.put_u64_le(origin.node);
    out.put_u64_le(origin.incarnation);
}

fn put_bytes(bytes: &[u8], out: &mut BytesMut) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

fn put_protobuf(message: &impl protobuf::Message, out: &mut BytesMut) {
    // Straight into its place: the library's own writer for this would allocate a buffer for each message.
    let start = out.len();
    out.resize(start + message.compute_size() as usize, 0);
    let mut stream = protobuf::CodedOutputStream::bytes(&mut out[start..]);
    // Memory of the right size cannot fail, and every field of these messages is optional in protobuf 3.
    message.write_to_with_cached_sizes(&mut stream).expect("a raft message is encoded into memory");
    stream.check_eof();
}

/// Which fields of a protobuf message are messages themselves. Others are not looked into.
pub struct Nested(&'static [(u64, &'static Nested)]);

static FLAT: Nested = Nested(&[]);
static SNAPSHOT_METADATA: Nested = Nested(&[(1, &FLAT)]);
static SNAPSHOT: Nested = Nested(&[(2, &SNAPSHOT_METADATA)]);
static RAFT_MESSAGE: Nested = Nested(&[(7, &FLAT), (9, &SNAPSHOT)]);
pub static CONF_CHANGE: Nested = Nested(&[(2, &FLAT)]);

/// False where a protobuf message has groups, which no raft message has and which protobuf 2.28 reads by unbounded recursion
/// (RUSTSEC-2024-0437), or where its fields do not fit.
#[must_use]
pub fn is_without_groups(mut bytes: &[u8], nested: &Nested) -> bool {
    while !bytes.is_empty() {
        let Some(tag) = get_varint(&mut bytes) else { return false };
        let skipped = match tag & 7 {
            0 => get_varint(&mut bytes).map(|_| 0),
            1 => Some(8),
            2 => get_varint(&mut bytes),
            5 => Some(4),
            _ => None,
        };
        let field = skipped.and_then(|length| bytes.split_at_checked(usize::try_from(length).ok()?));
        let Some((field, rest)) = field else { return false };
        let inner = nested.0.iter().find(|(number, _)| *number == tag >> 3 && tag & 7 == 2);
        if inner.is_some_and(|(_, inner)| !is_without_groups(field, inner)) {
            return false;
        }
        bytes = rest;
    }
    true
}

fn get_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for at in 0..10 {
        let byte = *bytes.get(at)?;
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *bytes = &bytes[at + 1..];
            return Some(value);
        }
    }
    None
}

fn get_protobuf<M: protobuf::Message>(bytes: &Bytes, nested: &Nested) -> Result<M, MalformedFrame> {
    if !is_without_groups(bytes, nested) {
        return Err(MalformedFrame("not a raft message"));
    }
    M::parse_from_carllerche_bytes(bytes).map_err(|_| MalformedFrame("not a raft message"))
}

fn need(frame: &mut Bytes, len: usize) -> Result<Bytes, MalformedFrame> {
    if frame.len() < len {
        return Err(MalformedFrame("frame ends early"));
    }
    Ok(frame.split_to(len))
}

fn get_u8(frame: &mut Bytes) -> Result<u8, MalformedFrame> {
    Ok(need(frame, 1)?.get_u8())
}

fn get_u16(frame: &mut Bytes) -> Result<u16, MalformedFrame> {
    Ok(need(frame, 2)?.get_u16_le())
}

fn get_u32(frame: &mut Bytes) -> Result<u32, MalformedFrame> {
    Ok(need(frame, 4)?.get_u32_le())
}

fn get_u64(frame: &mut Bytes) -> Result<u64, MalformedFrame> {
    Ok(need(frame, 8)?.get_u64_le())
}

fn get_bytes(frame: &mut Bytes) -> Result<Bytes, MalformedFrame> {
    let len = get_u32(frame)? as usize;
    need(frame, len)
}

fn get_addr(frame: &mut Bytes) -> Result<String, MalformedFrame> {
    let bytes = get_bytes(frame)?;
    if bytes.len() > ADDR_BYTES_MAX {
        return Err(MalformedFrame("address too long"));
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| MalformedFrame("address is not text"))
}

fn finished(frame: &Bytes) -> Result<(), MalformedFrame> {
    match frame.is_empty() {
        true => Ok(()),
        false => Err(MalformedFrame("frame has bytes left over")),
    }
}

/// A `MsgSnapshot` names its file in the snapshot's data.
pub fn meta_of(message: &Message) -> Result<SnapshotMeta, MalformedFrame> {
    let snapshot = message.get_snapshot();
    let meta = decode_meta(&snapshot.data)?;
    let raft_meta = snapshot.get_metadata();
    if (meta.at.index, meta.at.term) != (raft_meta.index, raft_meta.term) {
        return Err(MalformedFrame("snapshot record and raft message differ"));
    }
    Ok(meta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use raft::eraftpb::{Entry, MessageType};

    fn samples() -> Vec<PeerMessage> {
        let mut raft_message = Message::default();
        raft_message.set_msg_type(MessageType::MsgAppend);
        let entry = Entry { data: Bytes::from_static(b"entry"), index: 9, ..Entry::default() };
        raft_message.set_entries(vec![entry].into());
        let origin = Origin { node: 3, incarnation: 77 };
        vec![
            PeerMessage::Raft(Box::new(raft_message.clone())),
            PeerMessage::Forward(Forward {
                origin,
                term: 2,
                prev: 4,
                acked_below: 5,
                commands: vec![
                    Forwarded { seq: 5, connection: 1, blob: Bytes::from_static(b"a") },
                    Forwarded { seq: 9, connection: 2, blob: Bytes::new() },
                ],
            }),
            PeerMessage::SnapshotChunk(SnapshotChunk {
                transfer: 1,
                offset: 0,
                bytes: Bytes::from_static(b"piece"),
                message: Some(Box::new(raft_message)),
            }),
            PeerMessage::SnapshotChunk(SnapshotChunk {
                transfer: 1,
                offset: 5,
                bytes: Bytes::new(),
                message: None,
            }),
            PeerMessage::SnapshotAck(SnapshotAck {
                transfer: 1,
                received_bytes: 5,
                state: TransferState::Done,
            }),
            PeerMessage::Admin {
                applied: 7,
                request: AdminRequest::Add { id: 4, addr: "host:1".to_owned() },
            },
            PeerMessage::Admin { applied: 7, request: AdminRequest::Remove { id: 4 } },
            PeerMessage::Admin { applied: 0, request: AdminRequest::Transfer { id: 4 } },
            PeerMessage::NotMember { conf_index: 8 },
            PeerMessage::Progress(vec![
                MemberProgress { id: 1, matched: 9, up: true, version: 2, users: u64::MAX },
                MemberProgress { id: 2, matched: 0, up: false, version: 0, users: 0 },
            ]),
            PeerMessage::Versions { term: 7, range: VersionRange { oldest: 1, newest: 2 }, users: 3 },
        ]
    }

    #[test]
    fn every_message_comes_back() {
        for message in samples() {
            let mut frame = BytesMut::new();
            encode_frame(3, &message, &mut frame).unwrap();
            let length = frame.get_u32_le() as usize;
            assert_eq!(length, frame.len());
            assert_eq!(decode_frame(frame.freeze()), Ok((3, message)));
        }
    }

    #[test]
    fn no_cut_and_no_flipped_byte_panics() {
        for message in samples() {
            let mut frame = BytesMut::new();
            encode_frame(0, &message, &mut frame).unwrap();
            let frame = frame.freeze().slice(4..);
            for cut in 0..frame.len() {
                let _ = decode_frame(frame.slice(..cut));
            }
            for at in 0..frame.len() {
                for bit in 0..8 {
                    let mut bent = frame.to_vec();
                    bent[at] ^= 1 << bit;
                    let _ = decode_frame(bent.into());
                }
            }
        }
    }

    #[test]
    fn nested_groups_are_refused_before_they_are_read() {
        // Depth that would overflow the stack of the thread that reads it.
        let groups = vec![0x9b; 4 << 20];
        let mut entry = vec![0x3a];
        entry.extend([0x80 | (groups.len() & 0x7f) as u8, 0x80 | ((groups.len() >> 7) & 0x7f) as u8]);
        entry.extend([0x80 | ((groups.len() >> 14) & 0x7f) as u8, (groups.len() >> 21) as u8]);
        entry.extend(&groups);
        for payload in [groups, entry] {
            let mut frame = BytesMut::new();
            frame.put_u8(KIND_RAFT);
            frame.put_u16_le(0);
            frame.put_slice(&payload);
            assert_eq!(decode_frame(frame.freeze()), Err(MalformedFrame("not a raft message")));
        }
    }

    #[test]
    fn a_count_that_lies_allocates_nothing() {
        let mut frame = BytesMut::new();
        frame.put_u8(KIND_FORWARD);
        frame.put_u16_le(0);
        frame.put_slice(&[0; 40]);
        frame.put_u32_le(u32::MAX);
        assert_eq!(decode_frame(frame.freeze()), Err(MalformedFrame("forwarded batch: count does not fit")));
    }

    #[test]
    fn a_snapshot_record_comes_back() {
        let mut meta = SnapshotMeta::founding(&[(2, "b:1".to_owned()), (1, "a:1".to_owned())]);
        meta.size_bytes = 7;
        meta.crc32 = 9;
        assert_eq!(decode_meta(&encode_meta(&meta)), Ok(meta));
    }
}
