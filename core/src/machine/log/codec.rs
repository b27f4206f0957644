//! The bytes of one command and of one reply. Entries and snapshots are made of them.
//!
//! A front encodes its client's command on the client's own task; the leader only puts such blobs together
//! ([`crate::machine::log::entry::EntryBuilder`]). Decoding borrows, checks every length against what is there, and never panics.
//! Tags are never reused: a new meaning takes a new number.

use crate::keyspace::args::is;
use crate::keyspace::{table, Resp};
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::log::command::{Command, Watched, Words};
use crate::machine::log::conditional::{conditional, put_conditional};
#[cfg(feature = "scripts")]
use crate::machine::log::effects::Recorder;
use crate::machine::log::effects::{effects, put_effects};
use crate::machine::queue::waiter::{origin, put_origin, put_request_id, request_id};
use crate::machine::settings::SettingsCommand;
use crate::reply::{Refusal, Reply};
use crate::types::{Fence, Member, Reason, SessionId, MULTI_RESOURCES_MAX};
use bytes::Bytes;
use smallvec::SmallVec;

mod tag {
    pub(crate) const ACQUIRE: u8 = 1;
    pub(crate) const RELEASE: u8 = 2;
    pub(crate) const RENEW: u8 = 3;
    pub(crate) const MACQUIRE: u8 = 4;
    pub(crate) const MRELEASE: u8 = 5;
    pub(crate) const FORCE_RELEASE: u8 = 6;
    pub(crate) const SESSION_OPEN: u8 = 7;
    pub(crate) const SESSION_KEEP_ALIVE: u8 = 8;
    pub(crate) const SESSION_CLOSE: u8 = 9;
    pub(crate) const SESSIONS_TOUCH: u8 = 10;
    pub(crate) const SESSIONS_ORPHAN: u8 = 11;
    pub(crate) const CANCEL: u8 = 12;
    pub(crate) const EXPIRE: u8 = 13;
    pub(crate) const ORIGIN_START: u8 = 14;
    pub(crate) const ORIGIN_GONE: u8 = 15;
    pub(crate) const REDIS: u8 = 16;
    pub(crate) const TRANSACTION: u8 = 17;
    pub(crate) const EFFECTS: u8 = 18;
    pub(crate) const CONDITIONAL: u8 = 19;
    pub(crate) const SETTINGS: u8 = 20;
    pub(crate) const FENCE_CHECK: u8 = 21;
    pub(crate) const FENCE_CALL: u8 = 22;
}

/// Whether an encoded command acts on one lock: told by its tag alone, without decoding it.
pub(crate) fn acts_on_one_lock(blob: &[u8]) -> bool {
    const TAGS: [u8; 6] =
        [tag::ACQUIRE, tag::RELEASE, tag::RENEW, tag::FORCE_RELEASE, tag::CONDITIONAL, tag::FENCE_CHECK];
    blob.first().is_some_and(|first| TAGS.contains(first))
}

impl<'a> Command<'a> {
    /// Appends the command's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Command::Acquire { db, resource, ttl_ms, wait_ms, owner, session } => {
                out.push(tag::ACQUIRE);
                put_varint(out, u64::from(*db));
                put_bytes(out, resource);
                put_terms(out, *ttl_ms, *wait_ms, owner, *session);
            }
            Command::Release { db, resource, fence } => {
                out.push(tag::RELEASE);
                put_varint(out, u64::from(*db));
                put_bytes(out, resource);
                put_varint(out, fence.0);
            }
            Command::Renew { db, resource, fence, ttl_ms } => {
                out.push(tag::RENEW);
                put_varint(out, u64::from(*db));
                put_bytes(out, resource);
                put_varint(out, fence.0);
                put_varint(out, *ttl_ms);
            }
            Command::MAcquire { db, resources, ttl_ms, wait_ms, owner, session } => {
                out.push(tag::MACQUIRE);
                put_varint(out, u64::from(*db));
                put_varint(out, resources.len() as u64);
                resources.iter().for_each(|resource| put_bytes(out, resource));
                put_terms(out, *ttl_ms, *wait_ms, owner, *session);
            }
            Command::MRelease { db, pairs } => {
                out.push(tag::MRELEASE);
                put_varint(out, u64::from(*db));
                put_varint(out, pairs.len() as u64);
                for (resource, fence) in pairs {
                    put_bytes(out, resource);
                    put_varint(out, fence.0);
                }
            }
            Command::ForceRelease { db, resource } => {
                out.push(tag::FORCE_RELEASE);
                put_varint(out, u64::from(*db));
                put_bytes(out, resource);
            }
            Command::SessionOpen { id, ttl_ms, label } => {
                out.push(tag::SESSION_OPEN);
                put_session(out, *id);
                put_varint(out, *ttl_ms);
                put_bytes(out, label);
            }
            Command::SessionKeepAlive { id } => {
                out.push(tag::SESSION_KEEP_ALIVE);
                put_session(out, *id);
            }
            Command::SessionClose { id } => {
                out.push(tag::SESSION_CLOSE);
                put_session(out, *id);
            }
            Command::SessionsTouch { ids } => {
                out.push(tag::SESSIONS_TOUCH);
                put_sessions(out, ids);
            }
            Command::SessionsOrphan { ids, grace_ms } => {
                out.push(tag::SESSIONS_ORPHAN);
                put_varint(out, *grace_ms);
                put_sessions(out, ids);
            }
            Command::Cancel { request } => {
                out.push(tag::CANCEL);
                put_request_id(out, *request);
            }
            Command::Expire { idle_ms } => {
                out.push(tag::EXPIRE);
                put_varint(out, *idle_ms);
            }
            Command::OriginStart { origin } => {
                out.push(tag::ORIGIN_START);
                put_origin(out, *origin);
            }
            Command::OriginGone { origin } => {
                out.push(tag::ORIGIN_GONE);
                put_origin(out, *origin);
            }
            Command::FenceCheck { db, resource, fence } => {
                out.push(tag::FENCE_CHECK);
                put_varint(out, u64::from(*db));
                put_bytes(out, resource);
                put_varint(out, fence.0);
            }
            Command::FenceCall { db, resp, resource, fence, argv } => {
                out.push(tag::FENCE_CALL);
                put_varint(out, u64::from(*db));
                put_face(out, *resp, None);
                put_bytes(out, resource);
                put_varint(out, fence.0);
                put_words(out, argv);
            }
            Command::Settings(command) => {
                out.push(tag::SETTINGS);
                command.encode(out);
            }
            Command::Redis { db, resp, member, argv } => {
                out.push(tag::REDIS);
                put_varint(out, u64::from(*db));
                put_face(out, *resp, *member);
                put_words(out, argv);
            }
            Command::Transaction { db, resp, member, watched, commands } => {
                out.push(tag::TRANSACTION);
                put_varint(out, u64::from(*db));
                put_face(out, *resp, *member);
                put_varint(out, watched.len() as u64);
                for key in watched {
                    put_varint(out, u64::from(key.db));
                    put_bytes(out, key.key);
                    out.extend_from_slice(&key.token.to_le_bytes());
                }
                put_varint(out, commands.len() as u64);
                commands.iter().for_each(|argv| put_words(out, argv));
            }
            Command::Conditional(conditional) => {
                out.push(tag::CONDITIONAL);
                put_conditional(out, conditional);
            }
            Command::Effects(effects) => {
                out.push(tag::EFFECTS);
                put_effects(out, effects);
            }
        }
    }

    /// Appends the bytes of a [`Command::Effects`] that was written down while a script ran.
    #[cfg(feature = "scripts")]
    pub(crate) fn put_recorded(recorder: Recorder, member: Option<Member>, reply: &Reply, out: &mut Vec<u8>) {
        out.push(tag::EFFECTS);
        recorder.finish(member, reply, out);
    }

    /// Whether this is what a client asked for and not yet what may be logged: it holds a script, which the leader runs or
    /// turns into a native command first.
    #[must_use]
    pub fn is_request(&self) -> bool {
        let holds_script = |argv: &Words<'_>| match argv.as_slice() {
            [name, word, ..] if is(name, "SCRIPT") => is(word, "LOAD"),
            [name, ..] => names_script(name),
            [] => false,
        };
        match self {
            Command::Redis { argv, .. } => holds_script(argv),
            Command::Transaction { commands, .. } => {
                commands.iter().any(|argv| argv.first().is_some_and(|name| names_script(name)))
            }
            Command::Acquire { .. }
            | Command::Release { .. }
            | Command::Renew { .. }
            | Command::MAcquire { .. }
            | Command::MRelease { .. }
            | Command::ForceRelease { .. }
            | Command::SessionOpen { .. }
            | Command::SessionKeepAlive { .. }
            | Command::SessionClose { .. }
            | Command::SessionsTouch { .. }
            | Command::SessionsOrphan { .. }
            | Command::Cancel { .. }
            | Command::Expire { .. }
            | Command::OriginStart { .. }
            | Command::OriginGone { .. }
            | Command::FenceCheck { .. }
            | Command::FenceCall { .. }
            | Command::Settings(_)
            | Command::Conditional(_)
            | Command::Effects(_) => false,
        }
    }

    /// Reads a command that takes up all of `bytes`. `None` where they are not one.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Command<'a>> {
        let mut reader = Reader::new(bytes);
        let command = read_command(&mut reader)?;
        reader.is_empty().then_some(command)
    }
}

fn read_command<'a>(reader: &mut Reader<'a>) -> Option<Command<'a>> {
    Some(match reader.u8()? {
        tag::ACQUIRE => {
            let (db, resource) = (reader.varint_u32()?, reader.bytes()?);
            let (ttl_ms, wait_ms, owner, session) = terms(reader)?;
            Command::Acquire { db, resource, ttl_ms, wait_ms, owner, session }
        }
        tag::RELEASE => Command::Release {
            db: reader.varint_u32()?,
            resource: reader.bytes()?,
            fence: Fence(reader.varint()?),
        },
        tag::RENEW => Command::Renew {
            db: reader.varint_u32()?,
            resource: reader.bytes()?,
            fence: Fence(reader.varint()?),
            ttl_ms: reader.varint()?,
        },
        tag::MACQUIRE => {
            let db = reader.varint_u32()?;
            let mut resources = SmallVec::new();
            for _ in 0..multi_count(reader)? {
                resources.push(reader.bytes()?);
            }
            let (ttl_ms, wait_ms, owner, session) = terms(reader)?;
            Command::MAcquire { db, resources, ttl_ms, wait_ms, owner, session }
        }
        tag::MRELEASE => {
            let db = reader.varint_u32()?;
            let mut pairs = SmallVec::new();
            for _ in 0..multi_count(reader)? {
                pairs.push((reader.bytes()?, Fence(reader.varint()?)));
            }
            Command::MRelease { db, pairs }
        }
        tag::FORCE_RELEASE => Command::ForceRelease { db: reader.varint_u32()?, resource: reader.bytes()? },
        tag::SESSION_OPEN => {
            Command::SessionOpen { id: session(reader)?, ttl_ms: reader.varint()?, label: reader.bytes()? }
        }
        tag::SESSION_KEEP_ALIVE => Command::SessionKeepAlive { id: session(reader)? },
        tag::SESSION_CLOSE => Command::SessionClose { id: session(reader)? },
        tag::SESSIONS_TOUCH => Command::SessionsTouch { ids: sessions(reader)? },
        tag::SESSIONS_ORPHAN => {
            Command::SessionsOrphan { grace_ms: reader.varint()?, ids: sessions(reader)? }
        }
        tag::CANCEL => Command::Cancel { request: request_id(reader)? },
        tag::EXPIRE => Command::Expire { idle_ms: reader.varint()? },
        tag::ORIGIN_START => Command::OriginStart { origin: origin(reader)? },
        tag::ORIGIN_GONE => Command::OriginGone { origin: origin(reader)? },
        tag::FENCE_CHECK => Command::FenceCheck {
            db: reader.varint_u32()?,
            resource: reader.bytes()?,
            fence: Fence(reader.varint()?),
        },
        tag::FENCE_CALL => {
            let (db, (resp, None)) = (reader.varint_u32()?, face(reader)?) else { return None };
            let (resource, fence) = (reader.bytes()?, Fence(reader.varint()?));
            Command::FenceCall { db, resp, resource, fence, argv: words(reader)? }
        }
        tag::SETTINGS => Command::Settings(SettingsCommand::decode(reader)?),
        tag::REDIS => {
            let (db, (resp, member)) = (reader.varint_u32()?, face(reader)?);
            Command::Redis { db, resp, member, argv: words(reader)? }
        }
        tag::TRANSACTION => {
            let (db, (resp, member)) = (reader.varint_u32()?, face(reader)?);
            let mut watched = Vec::new();
            for _ in 0..reader.varint()? {
                let (db, key) = (reader.varint_u32()?, reader.bytes()?);
                watched.push(Watched { db, key, token: reader.u64_fixed()? });
            }
            let mut commands = Vec::new();
            for _ in 0..reader.varint()? {
                commands.push(words(reader)?);
            }
            Command::Transaction { db, resp, member, watched, commands }
        }
        tag::CONDITIONAL => Command::Conditional(Box::new(conditional(reader)?)),
        tag::EFFECTS => Command::Effects(effects(reader)?),
        _ => return None,
    })
}

/// What an encoded request has to do with scripts.
#[cfg(feature = "scripts")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    /// `EVAL` and its relatives, or `SCRIPT`.
    Script,
    /// A transaction that holds one of them.
    TransactionWithScript,
}

/// Looks at no more than the tag and the names of commands.
#[cfg(feature = "scripts")]
pub(crate) fn kind(bytes: &[u8]) -> Kind {
    let mut reader = Reader::new(bytes);
    match reader.u8() {
        Some(tag::REDIS) if redis_holds_script(&mut reader).unwrap_or(false) => Kind::Script,
        Some(tag::TRANSACTION) if transaction_holds_script(&mut reader).unwrap_or(false) => {
            Kind::TransactionWithScript
        }
        Some(_) | None => Kind::Plain,
    }
}

#[cfg(feature = "scripts")]
fn redis_holds_script(reader: &mut Reader<'_>) -> Option<bool> {
    reader.varint_u32()?;
    face(reader)?;
    reader.varint()?;
    Some(names_script(reader.bytes()?))
}

#[cfg(feature = "scripts")]
fn transaction_holds_script(reader: &mut Reader<'_>) -> Option<bool> {
    reader.varint_u32()?;
    face(reader)?;
    for _ in 0..reader.varint()? {
        reader.varint_u32()?;
        reader.bytes()?;
        reader.u64_fixed()?;
    }
    for _ in 0..reader.varint()? {
        for at in 0..reader.varint()? {
            let word = reader.bytes()?;
            if at == 0 && names_script(word) {
                return Some(true);
            }
        }
    }
    Some(false)
}

/// Whether a command's name is one of those that run or manage scripts.
pub(crate) fn names_script(name: &[u8]) -> bool {
    // Nearly every name is told apart by its first two letters.
    match name {
        [b'e' | b'E', b'v' | b'V', ..] | [b's' | b'S', b'c' | b'C', ..] => {
            table::find(name).is_some_and(|row| row.is(table::SCRIPT))
        }
        _ => false,
    }
}

/// What a client's connection adds to its words: bit 0, its protocol; bit 1, that a member's number follows.
pub(crate) fn put_face(out: &mut Vec<u8>, resp: Resp, member: Option<Member>) {
    let resp = match resp {
        Resp::Two => 0,
        Resp::Three => 1,
    };
    out.push(resp | u8::from(member.is_some()) << 1);
    if let Some(member) = member {
        put_varint(out, member.0);
    }
}

pub(crate) fn face(reader: &mut Reader<'_>) -> Option<(Resp, Option<Member>)> {
    let bits = reader.u8().filter(|bits| *bits < 4)?;
    let resp = if bits & 1 == 0 { Resp::Two } else { Resp::Three };
    let member = if bits & 2 == 0 { None } else { Some(Member(reader.varint()?)) };
    Some((resp, member))
}

pub(crate) fn put_words<W: AsRef<[u8]>>(out: &mut Vec<u8>, argv: &[W]) {
    put_varint(out, argv.len() as u64);
    argv.iter().for_each(|word| put_bytes(out, word.as_ref()));
}

pub(crate) fn words<'a>(reader: &mut Reader<'a>) -> Option<Words<'a>> {
    let mut argv = SmallVec::new();
    for _ in 0..reader.varint()? {
        argv.push(reader.bytes()?);
    }
    Some(argv)
}

/// What single and multi-acquires have in common.
fn put_terms(out: &mut Vec<u8>, ttl_ms: u64, wait_ms: u64, owner: &[u8], session: Option<SessionId>) {
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

fn terms<'a>(reader: &mut Reader<'a>) -> Option<(u64, u64, &'a [u8], Option<SessionId>)> {
    let (ttl_ms, wait_ms, owner) = (reader.varint()?, reader.varint()?, reader.bytes()?);
    let session = if reader.flag()? { Some(session(reader)?) } else { None };
    Some((ttl_ms, wait_ms, owner, session))
}

fn multi_count(reader: &mut Reader<'_>) -> Option<u64> {
    reader.varint().filter(|count| *count <= MULTI_RESOURCES_MAX as u64)
}

fn put_session(out: &mut Vec<u8>, id: SessionId) {
    out.extend_from_slice(&id.0.to_le_bytes());
}

fn session(reader: &mut Reader<'_>) -> Option<SessionId> {
    reader.u64_fixed().map(SessionId)
}

fn put_sessions(out: &mut Vec<u8>, ids: &[SessionId]) {
    ids.iter().for_each(|id| put_session(out, *id));
}

/// Ids to the end of the command: their number is what is there.
fn sessions(reader: &mut Reader<'_>) -> Option<SmallVec<[SessionId; 8]>> {
    let mut ids = SmallVec::new();
    while !reader.is_empty() {
        ids.push(session(reader)?);
    }
    Some(ids)
}

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
