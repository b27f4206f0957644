//! Fields that several commands have in common, written and read.

use crate::keyspace::Resp;
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::log::command::{Db, Words};
use crate::types::{Member, SessionId, MULTI_RESOURCES_MAX};
use smallvec::SmallVec;

/// What a client's connection adds to its words: bit 0, its protocol; bit 1, that a member's number follows.
pub(crate) fn put_protocol(out: &mut Vec<u8>, resp: Resp, member: Option<Member>) {
    let resp = match resp {
        Resp::Two => 0,
        Resp::Three => 1,
    };
    out.push(resp | u8::from(member.is_some()) << 1);
    if let Some(member) = member {
        put_varint(out, member.0);
    }
}

pub(crate) fn read_protocol(reader: &mut Reader<'_>) -> Option<(Resp, Option<Member>)> {
    let bits = reader.u8().filter(|bits| *bits < 4)?;
    let resp = if bits & 1 == 0 { Resp::Two } else { Resp::Three };
    let member = if bits & 2 == 0 { None } else { Some(Member(reader.varint()?)) };
    Some((resp, member))
}

pub(crate) fn put_argv<W: AsRef<[u8]>>(out: &mut Vec<u8>, argv: &[W]) {
    put_varint(out, argv.len() as u64);
    argv.iter().for_each(|word| put_bytes(out, word.as_ref()));
}

pub(crate) fn read_argv<'a>(reader: &mut Reader<'a>) -> Option<Words<'a>> {
    let mut argv = SmallVec::new();
    for _ in 0..reader.varint()? {
        argv.push(reader.bytes()?);
    }
    Some(argv)
}

/// What single and multi-acquires have in common.
pub(crate) fn put_acquire_params(
    out: &mut Vec<u8>,
    ttl_ms: u64,
    wait_ms: u64,
    owner: &[u8],
    session: Option<SessionId>,
) {
    put_varint(out, ttl_ms);
    put_varint(out, wait_ms);
    put_bytes(out, owner);
    match session {
        None => out.push(0),
        Some(id) => {
            out.push(1);
            put_session(out, id);
        }
    }
}

#[inline]
pub(crate) fn read_acquire_params<'a>(
    reader: &mut Reader<'a>,
) -> Option<(u64, u64, &'a [u8], Option<SessionId>)> {
    let (ttl_ms, wait_ms, owner) = (reader.varint()?, reader.varint()?, reader.bytes()?);
    let session = if reader.flag()? { Some(read_session(reader)?) } else { None };
    Some((ttl_ms, wait_ms, owner, session))
}

/// The same, checked and not looked at.
#[inline]
pub(crate) fn skip_acquire_params(reader: &mut Reader<'_>) -> Option<()> {
    // The ttl, the wait and the owner.
    reader.skip_varint()?;
    reader.skip_varint()?;
    reader.bytes()?;
    if reader.flag()? {
        read_session(reader)?;
    }
    Some(())
}

/// The database and the names of a multi-lock.
pub(crate) fn put_resources(out: &mut Vec<u8>, db: Db, resources: &[&[u8]]) {
    put_varint(out, u64::from(db));
    put_varint(out, resources.len() as u64);
    resources.iter().for_each(|resource| put_bytes(out, resource));
}

pub(crate) fn read_resources<'a>(reader: &mut Reader<'a>) -> Option<(Db, SmallVec<[&'a [u8]; 4]>)> {
    let db = reader.varint_u32()?;
    let mut resources = SmallVec::new();
    for _ in 0..read_multi_count(reader)? {
        resources.push(reader.bytes()?);
    }
    Some((db, resources))
}

pub(crate) fn read_multi_count(reader: &mut Reader<'_>) -> Option<u64> {
    reader.varint().filter(|count| *count <= MULTI_RESOURCES_MAX as u64)
}

pub(crate) fn put_session(out: &mut Vec<u8>, id: SessionId) {
    out.extend_from_slice(&id.0.to_le_bytes());
}

pub(crate) fn read_session(reader: &mut Reader<'_>) -> Option<SessionId> {
    reader.u64_fixed().map(SessionId)
}

pub(crate) fn put_sessions(out: &mut Vec<u8>, ids: &[SessionId]) {
    ids.iter().for_each(|id| put_session(out, *id));
}

/// Ids to the end of the command: their number is what is there.
pub(crate) fn read_sessions(reader: &mut Reader<'_>) -> Option<SmallVec<[SessionId; 4]>> {
    let mut ids = SmallVec::new();
    while !reader.is_empty() {
        ids.push(read_session(reader)?);
    }
    Some(ids)
}
