//! The bytes of one command. Entries are made of them.
//!
//! A front encodes its client's command on the client's own task; the leader only puts such blobs together
//! ([`crate::machine::log::entry::EntryBuilder`]). Decoding borrows, checks every length against what is there, and never panics.
//! Tags are never reused: a new meaning takes a new number.

use crate::grammar::convert::ConvertTo;
use crate::machine::digest::DigestCommand;
use crate::machine::locks::holder::{put_kind, read_kind};
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::log::command::{Command, OfUser, Watched};
use crate::machine::log::conditional::{put_conditional, read_conditional};
#[cfg(feature = "scripts")]
use crate::machine::log::effects::Recorder;
use crate::machine::log::effects::{put_effects, read_effects};
use crate::machine::log::fields::{
    put_acquire_params, put_argv, put_protocol, put_resources, put_session, put_sessions,
    read_acquire_params, read_argv, read_multi_count, read_protocol, read_resources, read_session,
    read_sessions, skip_acquire_params,
};
use crate::machine::queue::waiter::{put_origin, put_request_id, read_origin, read_request_id};
use crate::machine::sessions::policy::read_policy;
use crate::machine::settings::SettingsCommand;
use crate::machine::version::UpgradeCommand;
#[cfg(feature = "scripts")]
use crate::reply::Reply;
#[cfg(feature = "scripts")]
use crate::types::Member;
use crate::types::{Fence, UserTag};
use smallvec::SmallVec;

pub(crate) mod tag {
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
    pub(crate) const DIGEST: u8 = 23;
    pub(crate) const UPGRADE: u8 = 24;
    pub(crate) const OF_USER: u8 = 25;
    pub(crate) const ACQUIRE_WITH: u8 = 26;
    pub(crate) const MACQUIRE_SHARED: u8 = 27;
    pub(crate) const CONVERT: u8 = 28;
    pub(crate) const FORCE_RELEASE_ONE: u8 = 29;
    pub(crate) const SESSION_OPEN_WITH: u8 = 30;
    pub(crate) const SESSIONS_ORPHAN_SINCE: u8 = 31;
    pub(crate) const SESSION_KEEP_ALIVE_OWN: u8 = 32;
    /// Far from the numbers of real commands.
    #[cfg(feature = "next-version")]
    pub(crate) const NEXT: u8 = 200;
}

/// Bytes before the command itself in one of [`tag::OF_USER`].
const OF_USER_BYTES: usize = 1 + size_of::<UserTag>();

/// Puts the user of its client before an encoded command that may take locks (`Acquire`, `MAcquire`, `Redis` or `Transaction`,
/// without a script) or names one session (`SessionOpen`, `SessionKeepAlive`, `SessionClose`).
pub fn put_user(out: &mut Vec<u8>, user: UserTag) {
    if user != UserTag::DEFAULT {
        out.push(tag::OF_USER);
        out.extend_from_slice(&user.0.to_le_bytes());
    }
}

/// An encoded command as it would be for the user `default`.
#[inline]
pub(crate) fn without_user(blob: &[u8]) -> &[u8] {
    match blob {
        [tag::OF_USER, ..] => blob.get(OF_USER_BYTES..).unwrap_or_default(),
        _ => blob,
    }
}

/// Whether an encoded command acts on one lock: told by its tag alone, without decoding it.
#[inline]
pub(crate) fn acts_on_one_lock(blob: &[u8]) -> bool {
    matches!(
        without_user(blob).first(),
        Some(
            &(tag::ACQUIRE
                | tag::RELEASE
                | tag::RENEW
                | tag::FORCE_RELEASE
                | tag::ACQUIRE_WITH
                | tag::CONVERT
                | tag::CONDITIONAL
                | tag::FENCE_CHECK)
        )
    )
}

impl<'a> Command<'a> {
    /// Appends the command's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Command::Acquire { db, resource, ttl_ms, wait_ms, owner, session } => {
                out.push(tag::ACQUIRE);
                put_varint(out, u64::from(*db));
                put_bytes(out, resource);
                put_acquire_params(out, *ttl_ms, *wait_ms, owner, *session);
            }
            Command::AcquireWith { db, resource, ttl_ms, wait_ms, owner, session, kind, value } => {
                out.push(tag::ACQUIRE_WITH);
                put_varint(out, u64::from(*db));
                put_bytes(out, resource);
                put_acquire_params(out, *ttl_ms, *wait_ms, owner, *session);
                put_kind(out, *kind);
                put_bytes(out, value);
            }
            Command::MAcquireShared { db, resources, ttl_ms, wait_ms, owner, session } => {
                out.push(tag::MACQUIRE_SHARED);
                put_resources(out, *db, resources);
                put_acquire_params(out, *ttl_ms, *wait_ms, owner, *session);
            }
            Command::Convert { db, resource, fence, to, wait_ms } => {
                out.push(tag::CONVERT);
                put_varint(out, u64::from(*db));
                put_bytes(out, resource);
                put_varint(out, fence.0);
                out.push(match to {
                    ConvertTo::Shared => 0,
                    ConvertTo::Exclusive => 1,
                });
                put_varint(out, *wait_ms);
            }
            Command::ForceReleaseOne { db, resource, fence } => {
                out.push(tag::FORCE_RELEASE_ONE);
                put_varint(out, u64::from(*db));
                put_bytes(out, resource);
                put_varint(out, fence.0);
            }
            Command::SessionOpenWith { id, ttl_ms, label, policy, age } => {
                out.push(tag::SESSION_OPEN_WITH);
                put_session(out, *id);
                put_varint(out, *ttl_ms);
                put_bytes(out, label);
                out.push(*policy as u8);
                put_varint(out, *age);
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
                put_resources(out, *db, resources);
                put_acquire_params(out, *ttl_ms, *wait_ms, owner, *session);
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
            Command::SessionKeepAlive { id, own } => {
                out.push(if *own { tag::SESSION_KEEP_ALIVE_OWN } else { tag::SESSION_KEEP_ALIVE });
                put_session(out, *id);
            }
            Command::SessionClose { id, any_user } => {
                out.push(tag::SESSION_CLOSE);
                put_session(out, *id);
                out.push(u8::from(*any_user));
            }
            Command::SessionsTouch { ids } => {
                out.push(tag::SESSIONS_TOUCH);
                put_sessions(out, ids);
            }
            Command::SessionsOrphan { ids, grace_ms, heard_index } => {
                match heard_index {
                    None => out.push(tag::SESSIONS_ORPHAN),
                    Some(heard_index) => {
                        out.push(tag::SESSIONS_ORPHAN_SINCE);
                        put_varint(out, *heard_index);
                    }
                }
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
                put_protocol(out, *resp, None);
                put_bytes(out, resource);
                put_varint(out, fence.0);
                put_argv(out, argv);
            }
            Command::Settings(command) => {
                out.push(tag::SETTINGS);
                command.encode(out);
            }
            Command::Upgrade(command) => {
                out.push(tag::UPGRADE);
                command.encode(out);
            }
            #[cfg(feature = "next-version")]
            Command::Next => out.push(tag::NEXT),
            Command::Redis { db, resp, member, argv } => {
                out.push(tag::REDIS);
                put_varint(out, u64::from(*db));
                put_protocol(out, *resp, *member);
                put_argv(out, argv);
            }
            Command::Transaction { db, resp, member, watched, commands } => {
                out.push(tag::TRANSACTION);
                put_varint(out, u64::from(*db));
                put_protocol(out, *resp, *member);
                put_varint(out, watched.len() as u64);
                for key in watched {
                    put_varint(out, u64::from(key.db));
                    put_bytes(out, key.key);
                    out.extend_from_slice(&key.token.to_le_bytes());
                }
                put_varint(out, commands.len() as u64);
                commands.iter().for_each(|argv| put_argv(out, argv));
            }
            Command::Conditional(conditional) => {
                out.push(tag::CONDITIONAL);
                put_conditional(out, conditional);
            }
            Command::Effects(effects) => {
                out.push(tag::EFFECTS);
                put_effects(out, effects);
            }
            Command::Digest(command) => {
                out.push(tag::DIGEST);
                command.encode(out);
            }
            Command::OfUser(of_user) => {
                put_user(out, of_user.user);
                of_user.command.encode(out);
            }
        }
    }

    /// Appends the bytes of a [`Command::Effects`] that was written down while a script ran.
    #[cfg(feature = "scripts")]
    pub(crate) fn put_recorded(recorder: Recorder, member: Option<Member>, reply: &Reply, out: &mut Vec<u8>) {
        out.push(tag::EFFECTS);
        recorder.finish(member, reply, out);
    }

    /// Reads a command that takes up all of `bytes`. `None` where they are not one.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Command<'a>> {
        let mut reader = Reader::new(bytes);
        let command = read_command(&mut reader);
        if reader.is_empty() {
            command
        } else {
            None
        }
    }

    /// Lends a command to `visit` where it was decoded: it is large, and a copy of it is felt. `None` as with [`Command::decode`].
    #[inline]
    pub(crate) fn visit<R>(bytes: &'a [u8], visit: impl FnOnce(&Command<'a>) -> R) -> Option<R> {
        let mut reader = Reader::new(bytes);
        let command = read_command(&mut reader);
        let visited = match &command {
            Some(command) if reader.is_empty() => Some(visit(command)),
            Some(_) | None => None,
        };
        if let Some(Command::Acquire { .. } | Command::Release { .. } | Command::Renew { .. }) = &command {
            // They own nothing, which the compiler does not see: looking for what to drop is felt.
            std::mem::forget(command);
        }
        visited
    }
}

/// Whether the bytes are an acquire of one exclusive lock, a release or a renewal. Most of the log is these, so they are read here without
/// being made; they are as old as the first version, and hold no Redis command.
pub(crate) fn is_plain_lock_command(bytes: &[u8]) -> bool {
    fn read(reader: &mut Reader<'_>) -> Option<()> {
        let tag = reader.u8()?;
        if !matches!(tag, tag::ACQUIRE | tag::RELEASE | tag::RENEW) {
            return None;
        }
        let (_db, _resource) = (reader.varint_u32()?, reader.bytes()?);
        if tag == tag::ACQUIRE {
            return skip_acquire_params(reader);
        }
        // The fence.
        reader.skip_varint()?;
        if tag == tag::RENEW {
            // The ttl.
            reader.skip_varint()?;
        }
        Some(())
    }
    let mut reader = Reader::new(bytes);
    read(&mut reader).is_some() && reader.is_empty()
}

/// Never nested: only what may take locks or names one session, and no script.
fn read_command_of_user<'a>(reader: &mut Reader<'a>) -> Option<Command<'a>> {
    let mut ahead = reader.clone();
    let may_have_user = matches!(
        ahead.u8()?,
        tag::ACQUIRE
            | tag::MACQUIRE
            | tag::ACQUIRE_WITH
            | tag::MACQUIRE_SHARED
            | tag::SESSION_OPEN
            | tag::SESSION_OPEN_WITH
            | tag::SESSION_KEEP_ALIVE
            | tag::SESSION_CLOSE
            | tag::REDIS
            | tag::TRANSACTION
    );
    if !may_have_user {
        return None;
    }
    read_command(reader).filter(|command| !command.is_request())
}

fn read_command<'a>(reader: &mut Reader<'a>) -> Option<Command<'a>> {
    Some(match reader.u8()? {
        tag::ACQUIRE => {
            let (db, resource) = (reader.varint_u32()?, reader.bytes()?);
            let (ttl_ms, wait_ms, owner, session) = read_acquire_params(reader)?;
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
        tag::ACQUIRE_WITH => {
            let (db, resource) = (reader.varint_u32()?, reader.bytes()?);
            let (ttl_ms, wait_ms, owner, session) = read_acquire_params(reader)?;
            let (kind, value) = (read_kind(reader)?, reader.bytes()?);
            Command::AcquireWith { db, resource, ttl_ms, wait_ms, owner, session, kind, value }
        }
        tag::MACQUIRE_SHARED => {
            let (db, resources) = read_resources(reader)?;
            let (ttl_ms, wait_ms, owner, session) = read_acquire_params(reader)?;
            Command::MAcquireShared { db, resources, ttl_ms, wait_ms, owner, session }
        }
        tag::CONVERT => Command::Convert {
            db: reader.varint_u32()?,
            resource: reader.bytes()?,
            fence: Fence(reader.varint()?),
            to: match reader.u8()? {
                0 => ConvertTo::Shared,
                1 => ConvertTo::Exclusive,
                _ => return None,
            },
            wait_ms: reader.varint()?,
        },
        tag::FORCE_RELEASE_ONE => Command::ForceReleaseOne {
            db: reader.varint_u32()?,
            resource: reader.bytes()?,
            fence: Fence(reader.varint()?),
        },
        tag::SESSION_OPEN_WITH => Command::SessionOpenWith {
            id: read_session(reader)?,
            ttl_ms: reader.varint()?,
            label: reader.bytes()?,
            policy: read_policy(reader)?,
            age: reader.varint()?,
        },
        tag::MACQUIRE => {
            let (db, resources) = read_resources(reader)?;
            let (ttl_ms, wait_ms, owner, session) = read_acquire_params(reader)?;
            Command::MAcquire { db, resources, ttl_ms, wait_ms, owner, session }
        }
        tag::MRELEASE => {
            let db = reader.varint_u32()?;
            let mut pairs = SmallVec::new();
            for _ in 0..read_multi_count(reader)? {
                pairs.push((reader.bytes()?, Fence(reader.varint()?)));
            }
            Command::MRelease { db, pairs }
        }
        tag::FORCE_RELEASE => Command::ForceRelease { db: reader.varint_u32()?, resource: reader.bytes()? },
        tag::SESSION_OPEN => Command::SessionOpen {
            id: read_session(reader)?,
            ttl_ms: reader.varint()?,
            label: reader.bytes()?,
        },
        tag::SESSION_KEEP_ALIVE => Command::SessionKeepAlive { id: read_session(reader)?, own: false },
        tag::SESSION_KEEP_ALIVE_OWN => Command::SessionKeepAlive { id: read_session(reader)?, own: true },
        tag::SESSION_CLOSE => Command::SessionClose { id: read_session(reader)?, any_user: reader.flag()? },
        tag::SESSIONS_TOUCH => Command::SessionsTouch { ids: read_sessions(reader)? },
        tag::SESSIONS_ORPHAN => Command::SessionsOrphan {
            heard_index: None,
            grace_ms: reader.varint()?,
            ids: read_sessions(reader)?,
        },
        tag::SESSIONS_ORPHAN_SINCE => Command::SessionsOrphan {
            heard_index: Some(reader.varint()?),
            grace_ms: reader.varint()?,
            ids: read_sessions(reader)?,
        },
        tag::CANCEL => Command::Cancel { request: read_request_id(reader)? },
        tag::EXPIRE => Command::Expire { idle_ms: reader.varint()? },
        tag::ORIGIN_START => Command::OriginStart { origin: read_origin(reader)? },
        tag::ORIGIN_GONE => Command::OriginGone { origin: read_origin(reader)? },
        tag::FENCE_CHECK => Command::FenceCheck {
            db: reader.varint_u32()?,
            resource: reader.bytes()?,
            fence: Fence(reader.varint()?),
        },
        tag::FENCE_CALL => {
            let (db, (resp, None)) = (reader.varint_u32()?, read_protocol(reader)?) else { return None };
            let (resource, fence) = (reader.bytes()?, Fence(reader.varint()?));
            Command::FenceCall { db, resp, resource, fence, argv: read_argv(reader)? }
        }
        tag::SETTINGS => Command::Settings(SettingsCommand::decode(reader)?),
        tag::UPGRADE => Command::Upgrade(UpgradeCommand::decode(reader)?),
        #[cfg(feature = "next-version")]
        tag::NEXT => Command::Next,
        tag::REDIS => {
            let (db, (resp, member)) = (reader.varint_u32()?, read_protocol(reader)?);
            Command::Redis { db, resp, member, argv: read_argv(reader)? }
        }
        tag::TRANSACTION => {
            let (db, (resp, member)) = (reader.varint_u32()?, read_protocol(reader)?);
            let mut watched = Vec::new();
            for _ in 0..reader.varint()? {
                let (db, key) = (reader.varint_u32()?, reader.bytes()?);
                watched.push(Watched { db, key, token: reader.u64_fixed()? });
            }
            let mut commands = Vec::new();
            for _ in 0..reader.varint()? {
                commands.push(read_argv(reader)?);
            }
            Command::Transaction { db, resp, member, watched, commands }
        }
        tag::CONDITIONAL => Command::Conditional(Box::new(read_conditional(reader)?)),
        tag::EFFECTS => Command::Effects(read_effects(reader)?),
        tag::DIGEST => Command::Digest(DigestCommand::decode(reader)?),
        tag::OF_USER => {
            let user = UserTag(reader.u64_fixed().filter(|tag| *tag != UserTag::DEFAULT.0)?);
            let command = read_command_of_user(reader)?;
            Command::OfUser(Box::new(OfUser { user, command }))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SessionId;

    /// What is taken for a plain lock command without being made is one, and every one is.
    #[test]
    fn plain_lock_commands_are_those_that_decode_as_such() {
        let owner = b"0b1c2d3e-4f50";
        let (db, resource, fence) = (3, b"orders:42".as_slice(), Fence(1 << 40));
        let acquire = |session| Command::Acquire { db, resource, ttl_ms: 30_000, wait_ms: 0, owner, session };
        let commands = [
            acquire(None),
            acquire(Some(SessionId(7))),
            Command::Release { db, resource, fence },
            Command::Renew { db, resource, fence, ttl_ms: 500 },
            Command::FenceCheck { db, resource, fence },
        ];
        let mut seed = 1u64;
        let mut draw = |bound: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % bound
        };
        for round in 0..50_000 {
            let mut blob = Vec::new();
            commands[draw(commands.len())].encode(&mut blob);
            // Now and then as it was.
            for _ in 0..round % 4 {
                match draw(3) {
                    0 => blob.truncate(draw(blob.len() + 1)),
                    1 => blob.push(draw(256) as u8),
                    _ if blob.is_empty() => {}
                    _ => {
                        let at = draw(blob.len());
                        blob[at] = draw(256) as u8;
                    }
                }
            }
            let decoded = Command::decode(&blob);
            let is_plain = matches!(
                decoded,
                Some(Command::Acquire { .. } | Command::Release { .. } | Command::Renew { .. })
            );
            assert_eq!(is_plain_lock_command(&blob), is_plain, "{blob:02x?}: {decoded:?}");
        }
    }
}
