//! The bytes of a reply: in remembered replies, script effects and snapshots. Tags are never reused.

use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::reply::{Refusal, Reply};
use crate::types::{Fence, Reason, MULTI_RESOURCES_MAX};
use bytes::Bytes;

/// How deep arrays in a remembered reply may be nested.
const REPLY_DEPTH_MAX: u32 = 160;

/// At least as many bytes as [`write_reply`] writes.
#[cfg(feature = "scripts")]
pub(crate) fn reply_bytes(reply: &Reply) -> usize {
    const HEAD: usize = 10;
    match reply {
        Reply::Bulk(bytes) | Reply::Verbatim(bytes) => HEAD + bytes.len(),
        Reply::Text(text) => HEAD + text.len(),
        Reply::Status(text) => HEAD + text.len(),
        Reply::Error(refusal) => HEAD + refusal.0.len(),
        Reply::Array(items) | Reply::Set(items) => HEAD + items.iter().map(reply_bytes).sum::<usize>(),
        Reply::Map(pairs) => {
            HEAD + pairs.iter().map(|(key, value)| reply_bytes(key) + reply_bytes(value)).sum::<usize>()
        }
        Reply::Granted { .. } | Reply::Renewed { .. } => 2 * HEAD,
        Reply::GrantedMany { fences, .. } => (2 + fences.len()) * HEAD,
        Reply::Released
        | Reply::Refused(_)
        | Reply::Nil
        | Reply::NilArray
        | Reply::Int(_)
        | Reply::Double(_)
        | Reply::Bool(_)
        | Reply::Info(_) => HEAD,
    }
}

pub(crate) fn write_reply(reply: &Reply, out: &mut Vec<u8>) {
    match reply {
        Reply::Granted { fence, ttl_ms } => {
            out.push(1);
            put_varint(out, fence.0);
            put_varint(out, *ttl_ms);
        }
        Reply::GrantedMany { fences, ttl_ms } => {
            out.push(17);
            put_varint(out, *ttl_ms);
            put_varint(out, fences.len() as u64);
            fences.iter().for_each(|fence| put_varint(out, fence.0));
        }
        Reply::Released => out.push(2),
        Reply::Renewed { ttl_ms } => {
            out.push(3);
            put_varint(out, *ttl_ms);
        }
        Reply::Refused(reason) => {
            out.push(4);
            out.push(match reason {
                Reason::NotOwner => 0,
                Reason::AlreadyReleased => 1,
                Reason::Expired => 2,
            });
        }
        Reply::Nil => out.push(5),
        Reply::NilArray => out.push(6),
        Reply::Int(value) => {
            out.push(7);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Reply::Double(value) => {
            out.push(8);
            out.extend_from_slice(&value.to_bits().to_le_bytes());
        }
        Reply::Bool(value) => out.extend_from_slice(&[9, u8::from(*value)]),
        Reply::Bulk(value) => {
            out.push(10);
            put_bytes(out, value);
        }
        // The same on the wire.
        Reply::Text(value) => {
            out.push(10);
            put_bytes(out, value.as_bytes());
        }
        Reply::Status(value) => {
            out.push(11);
            put_bytes(out, value.as_bytes());
        }
        Reply::Error(refusal) => {
            out.push(12);
            put_bytes(out, refusal.0.as_bytes());
        }
        Reply::Array(items) => write_items(13, items, out),
        Reply::Set(items) => write_items(14, items, out),
        Reply::Map(pairs) => {
            out.push(15);
            put_varint(out, pairs.len() as u64);
            for (key, value) in pairs {
                write_reply(key, out);
                write_reply(value, out);
            }
        }
        Reply::Verbatim(value) => {
            out.push(16);
            put_bytes(out, value);
        }
        // The same on the wire.
        Reply::Info(info) => write_reply(&Reply::Map(info.pairs()), out),
    }
}

fn write_items(tag: u8, items: &[Reply], out: &mut Vec<u8>) {
    out.push(tag);
    put_varint(out, items.len() as u64);
    items.iter().for_each(|item| write_reply(item, out));
}

pub(crate) fn read_reply(reader: &mut Reader<'_>) -> Option<Reply> {
    read_reply_at(reader, 0)
}

fn read_reply_at(reader: &mut Reader<'_>, depth: u32) -> Option<Reply> {
    if depth > REPLY_DEPTH_MAX {
        return None;
    }
    Some(match reader.u8()? {
        1 => Reply::Granted { fence: Fence(reader.varint()?), ttl_ms: reader.varint()? },
        2 => Reply::Released,
        3 => Reply::Renewed { ttl_ms: reader.varint()? },
        4 => Reply::Refused(match reader.u8()? {
            0 => Reason::NotOwner,
            1 => Reason::AlreadyReleased,
            2 => Reason::Expired,
            _ => return None,
        }),
        5 => Reply::Nil,
        6 => Reply::NilArray,
        7 => Reply::Int(reader.u64_fixed()? as i64),
        8 => Reply::Double(f64::from_bits(reader.u64_fixed()?)),
        9 => Reply::Bool(reader.flag()?),
        10 => Reply::Bulk(Bytes::copy_from_slice(reader.bytes()?)),
        11 => Reply::Status(text(reader)?.into()),
        12 => Reply::Error(Refusal::new(text(reader)?)),
        13 => Reply::Array(items(reader, depth)?),
        14 => Reply::Set(items(reader, depth)?),
        15 => {
            let mut pairs = Vec::new();
            for _ in 0..reader.varint()? {
                pairs.push((read_reply_at(reader, depth + 1)?, read_reply_at(reader, depth + 1)?));
            }
            Reply::Map(pairs)
        }
        16 => Reply::Verbatim(Bytes::copy_from_slice(reader.bytes()?)),
        17 => {
            let ttl_ms = reader.varint()?;
            let count = reader.varint().filter(|count| *count <= MULTI_RESOURCES_MAX as u64)?;
            let fences = (0..count).map(|_| reader.varint().map(Fence)).collect::<Option<_>>()?;
            Reply::GrantedMany { fences, ttl_ms }
        }
        _ => return None,
    })
}

fn items(reader: &mut Reader<'_>, depth: u32) -> Option<Vec<Reply>> {
    let mut items = Vec::new();
    for _ in 0..reader.varint()? {
        items.push(read_reply_at(reader, depth + 1)?);
    }
    Some(items)
}

fn text(reader: &mut Reader<'_>) -> Option<String> {
    std::str::from_utf8(reader.bytes()?).ok().map(str::to_owned)
}
