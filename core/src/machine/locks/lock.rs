//! One resource: its holder, the fence last issued, how the grant before ended, and the queue. Only this file knows what a
//! holder is made of; a grant brings one into being ([`Lock::hold`]), an end takes it away ([`Lock::end`]).
//!
//! A holder is an owner's bytes, an optional deadline and an optional session. None of the three is tied to
//! `LOCK.ACQUIRE`: any command that brings a key to life may call `hold`.

use crate::keyspace::KEY_BYTES_MAX;
use crate::machine::locks::ending::LastEnd;
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::log::command::Db;
use crate::machine::snapshot::write::kind;
use crate::machine::store::deadlines::NEVER;
use crate::machine::store::hash_key::HashKey;
use crate::machine::store::list::{Linked, Links, List};
use crate::machine::store::slab::{Image, Slab, SLOTS_MAX};
use crate::machine::{LockSlot, QueueEntry, SessionSlot, Slot};
use crate::mutant;
use crate::types::{Fence, LockMode, OwnerIdentity, Reason, UserTag};
use hashbrown::HashTable;

/// What a record is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Somebody holds it until the deadline, or as long as the session lives ([`SessionSlot::NONE`]: no session). The epoch is that
    /// of its database at the grant: see `sweep.rs`.
    Held { deadline_ms: u64, session: SessionSlot, epoch: u16 },
    /// Held in another mode than exclusive. Its holders, one or more, are records of their own: see `holder.rs`. The sum is that of
    /// their permits, or their number.
    Several { mode: LockMode, sum: u32, holders: u32, epoch: u16 },
    /// Free, but reserved: the first waiter is a multi-lock that also waits for another resource.
    Awaited,
    /// Free and in the idle list, kept for its last fence.
    Idle { since_ms: u64 },
}

/// How long the last grant or renewal was for: what a restored lock is held for. Milliseconds below 2^31, whole seconds (rounded up)
/// above. [`GrantedTime::NONE`] for a grant without an end of its own, and before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantedTime(u32);

impl GrantedTime {
    pub(crate) const NONE: GrantedTime = GrantedTime(0);
    const IN_SECONDS: u32 = 1 << 31;

    pub(crate) fn until(deadline_ms: u64, now_ms: u64) -> GrantedTime {
        if deadline_ms == NEVER {
            return GrantedTime::NONE;
        }
        let ms = deadline_ms.saturating_sub(now_ms);
        match u32::try_from(ms) {
            Ok(ms) if ms < GrantedTime::IN_SECONDS => GrantedTime(ms),
            Ok(_) | Err(_) => {
                let seconds = ms.div_ceil(1_000).min(u64::from(GrantedTime::IN_SECONDS - 1));
                GrantedTime(GrantedTime::IN_SECONDS | seconds as u32)
            }
        }
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.0));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<GrantedTime> {
        reader.varint_u32().map(GrantedTime)
    }

    pub(crate) fn ms(self) -> u64 {
        match self.0 & GrantedTime::IN_SECONDS {
            0 => u64::from(self.0),
            _ => 1_000 * u64::from(self.0 & !GrantedTime::IN_SECONDS),
        }
    }
}

/// Room for an owner that a free lock keeps for the next one. More is given back: it would count for nothing.
const OWNER_BYTES_KEPT: usize = 64;

/// 80 bytes; name and owner share one allocation.
pub(crate) struct Lock {
    /// The name, then the owner, then the user's tag if `has_user`. Behind a free lock's name stand the bytes of its last owner, which
    /// mean nothing.
    text: Box<[u8]>,
    /// Last issued, 0 if none; the holder's while held.
    pub(crate) fence: Fence,
    /// Of the grant that ended last.
    ended_fence: Fence,
    pub(crate) phase: Phase,
    db: u16,
    /// In the session's list while held, in the idle list while idle.
    links: Links<Lock>,
    /// Queue entries, first in line first.
    pub(crate) queue: List<QueueEntry>,
    name_len: u32,
    granted: GrantedTime,
    ended: LastEnd,
    /// The holder's user is not `default`.
    has_user: bool,
}

const USER_BYTES: usize = size_of::<UserTag>();

const _: () = assert!(size_of::<Lock>() == 80 && size_of::<Option<Lock>>() == 80);

impl Lock {
    /// A record nobody holds yet.
    pub(crate) fn new(db: Db, name: &[u8]) -> Lock {
        Lock {
            text: name.into(),
            fence: Fence(0),
            ended_fence: Fence(0),
            db: db as u16,
            links: Links::UNLINKED,
            queue: List::EMPTY,
            name_len: name.len() as u32,
            phase: Phase::Awaited,
            granted: GrantedTime::NONE,
            ended: LastEnd::Unknown,
            has_user: false,
        }
    }

    pub(crate) fn db(&self) -> Db {
        Db::from(self.db)
    }

    /// When the grant ends; [`NEVER`] where it has no end of its own, and for a free lock.
    #[inline]
    pub(crate) fn deadline_ms(&self) -> u64 {
        match self.phase {
            Phase::Held { deadline_ms, .. } => deadline_ms,
            Phase::Several { .. } | Phase::Awaited | Phase::Idle { .. } => NEVER,
        }
    }

    /// Moves the end of a grant.
    pub(crate) fn set_deadline(&mut self, at_ms: u64, now_ms: u64) {
        match &mut self.phase {
            Phase::Held { deadline_ms, .. } => {
                *deadline_ms = at_ms;
                self.granted = GrantedTime::until(at_ms, now_ms);
            }
            Phase::Several { .. } | Phase::Awaited | Phase::Idle { .. } => {}
        }
    }

    /// How long the last grant or renewal of a held lock was for; `None` where it has no end of its own, and for a free lock.
    pub(crate) fn granted_ms(&self) -> Option<u64> {
        (self.deadline_ms() != NEVER).then(|| self.granted.ms())
    }

    /// The holder's session, if any.
    #[inline]
    pub(crate) fn session(&self) -> SessionSlot {
        match self.phase {
            Phase::Held { session, .. } => session,
            Phase::Several { .. } | Phase::Awaited | Phase::Idle { .. } => SessionSlot::NONE,
        }
    }

    pub(crate) fn set_session(&mut self, to: SessionSlot) {
        match &mut self.phase {
            Phase::Held { session, .. } => *session = to,
            Phase::Several { .. } | Phase::Awaited | Phase::Idle { .. } => {}
        }
    }

    /// The epoch of the grant; 0 for a free lock.
    pub(crate) fn epoch(&self) -> u16 {
        match self.phase {
            Phase::Held { epoch, .. } | Phase::Several { epoch, .. } => epoch,
            Phase::Awaited | Phase::Idle { .. } => 0,
        }
    }

    /// Since when it has been in the idle list.
    pub(crate) fn idle_since_ms(&self) -> Option<u64> {
        match self.phase {
            Phase::Idle { since_ms } => Some(since_ms),
            Phase::Held { .. } | Phase::Several { .. } | Phase::Awaited => None,
        }
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.text[..self.name_len as usize]
    }

    /// Whether anybody holds it, in whatever mode.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        match self.phase {
            Phase::Held { .. } | Phase::Several { .. } => true,
            Phase::Awaited | Phase::Idle { .. } => false,
        }
    }

    #[inline]
    pub(crate) fn is_exclusive(&self) -> bool {
        matches!(self.phase, Phase::Held { .. })
    }

    /// Whether it is held in another mode than exclusive.
    #[inline]
    pub(crate) fn is_several(&self) -> bool {
        matches!(self.phase, Phase::Several { .. })
    }

    /// The mode it is held in.
    pub(crate) fn mode(&self) -> Option<LockMode> {
        match self.phase {
            Phase::Held { .. } => Some(LockMode::Exclusive),
            Phase::Several { mode, .. } => Some(mode),
            Phase::Awaited | Phase::Idle { .. } => None,
        }
    }

    /// Bytes of the name, and of the exclusive holder's owner and user.
    #[inline]
    pub(crate) fn text_bytes(&self) -> usize {
        match self.phase {
            Phase::Held { .. } => self.text.len(),
            Phase::Several { .. } | Phase::Awaited | Phase::Idle { .. } => self.name_len as usize,
        }
    }

    /// The exclusive holder's owner; nothing where there is none.
    pub(crate) fn owner(&self) -> &[u8] {
        match self.phase {
            Phase::Held { .. } => {
                let end = self.text.len() - if self.has_user { USER_BYTES } else { 0 };
                &self.text[self.name_len as usize..end]
            }
            Phase::Several { .. } | Phase::Awaited | Phase::Idle { .. } => &[],
        }
    }

    /// The user of the holder; of a free lock, `default`.
    pub(crate) fn user(&self) -> UserTag {
        match self.text.last_chunk() {
            Some(tag) if self.has_user && self.is_exclusive() => UserTag(u64::from_le_bytes(*tag)),
            Some(_) | None => UserTag::DEFAULT,
        }
    }

    /// Whether this owner of this user holds the lock: who asks again gets the same grant.
    #[inline]
    pub(crate) fn is_held_by(&self, asker: OwnerIdentity<'_>) -> bool {
        self.is_exclusive() && self.owner() == asker.owner && self.user() == asker.user
    }

    /// Brings a holder into being. Lists and deadlines are the caller's business.
    pub(crate) fn hold(
        &mut self,
        fence: Fence,
        holder: OwnerIdentity<'_>,
        deadline_ms: u64,
        now_ms: u64,
        session: SessionSlot,
        epoch: u16,
    ) {
        let (owner, tag) = (holder.owner, holder.user.0.to_le_bytes());
        self.has_user = holder.user != UserTag::DEFAULT;
        let tag: &[u8] = if self.has_user { &tag } else { &[] };
        let owner_at = self.name_len as usize;
        let tag_at = owner_at + owner.len();
        if self.text.len() == tag_at + tag.len() {
            self.text[owner_at..tag_at].copy_from_slice(owner);
            self.text[tag_at..].copy_from_slice(tag);
        } else {
            self.text = [self.name(), owner, tag].concat().into_boxed_slice();
        }
        self.fence = fence;
        self.phase = Phase::Held { deadline_ms, session, epoch };
        self.granted = GrantedTime::until(deadline_ms, now_ms);
    }

    /// Counts one holder more of a lock that is free or held in this mode; `epoch` is that of the first.
    pub(crate) fn add_holder(&mut self, fence: Fence, mode: LockMode, count: u32, epoch: u16) {
        self.fence = self.fence.max(fence);
        self.granted = GrantedTime::NONE;
        self.phase = match self.phase {
            Phase::Several { sum, holders, epoch, .. } => {
                Phase::Several { mode, sum: sum + count, holders: holders + 1, epoch }
            }
            Phase::Held { .. } | Phase::Awaited | Phase::Idle { .. } => {
                Phase::Several { mode, sum: count, holders: 1, epoch }
            }
        };
        self.drop_owner();
    }

    /// Counts one holder less, and remembers how it ended. The last one leaves the lock free.
    pub(crate) fn end_holder(&mut self, fence: Fence, count: u32, how: LastEnd) {
        (self.ended_fence, self.ended) = (fence, how);
        let leaks = mutant!(PermitsLeak) && how == LastEnd::SeveralExpired;
        let count = if leaks { 0 } else { count };
        self.phase = match self.phase {
            Phase::Several { mode, sum, holders, epoch } if holders > 1 => {
                Phase::Several { mode, sum: sum - count, holders: holders - 1, epoch }
            }
            Phase::Several { .. } | Phase::Held { .. } | Phase::Awaited | Phase::Idle { .. } => {
                Phase::Awaited
            }
        };
    }

    /// Takes the holder away and remembers how.
    pub(crate) fn end(&mut self, how: LastEnd) {
        (self.ended_fence, self.ended) = (self.fence, how);
        self.phase = Phase::Awaited;
        self.drop_owner();
    }

    fn drop_owner(&mut self) {
        let name_len = self.name_len as usize;
        if self.text.len() > name_len + OWNER_BYTES_KEPT {
            self.text = self.text[..name_len].into();
        }
    }

    /// The holder and the memory of the last one, to be put back by [`Lock::put_back`].
    pub(crate) fn before(&self) -> SavedLock {
        SavedLock {
            text: self.text.clone(),
            fence: self.fence,
            ended_fence: self.ended_fence,
            phase: self.phase,
            granted: self.granted,
            ended: self.ended,
            has_user: self.has_user,
        }
    }

    /// As if nothing had happened since. Lists and deadlines are the caller's business.
    pub(crate) fn put_back(&mut self, before: SavedLock) {
        self.text = before.text;
        self.fence = before.fence;
        self.ended_fence = before.ended_fence;
        self.phase = before.phase;
        self.granted = before.granted;
        self.ended = before.ended;
        self.has_user = before.has_user;
    }

    /// Why this fence is not, or no longer, the holder's.
    pub(crate) fn reason_against(&self, fence: Fence) -> Reason {
        match fence == self.ended_fence {
            true => self.ended.reason(),
            false => Reason::NotOwner,
        }
    }

    /// Whether the grant that ended last had this fence, and a plain command ended it.
    pub(crate) fn was_deleted(&self, fence: Fence) -> bool {
        fence == self.ended_fence && self.ended == LastEnd::Deleted
    }

    /// Whether the grant that ended last had this fence, and was one of several.
    pub(crate) fn ended_beside_others(&self, fence: Fence) -> bool {
        fence == self.ended_fence && self.ended.is_of_several()
    }

    /// Whether the exclusive holder is the one that held the lock shared under this fence before.
    pub(crate) fn was_converted_from(&self, fence: Fence) -> bool {
        self.is_exclusive() && fence == self.ended_fence && self.ended == LastEnd::Converted
    }
}

/// What a script that runs over may have changed of a lock.
pub(crate) struct SavedLock {
    text: Box<[u8]>,
    fence: Fence,
    ended_fence: Fence,
    pub(crate) phase: Phase,
    granted: GrantedTime,
    ended: LastEnd,
    has_user: bool,
}

impl SavedLock {
    pub(crate) fn session(&self) -> SessionSlot {
        match self.phase {
            Phase::Held { session, .. } => session,
            Phase::Several { .. } | Phase::Awaited | Phase::Idle { .. } => SessionSlot::NONE,
        }
    }
}

impl Linked for Lock {
    fn links(&self) -> Links<Lock> {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links<Lock> {
        &mut self.links
    }
}

/// In the first byte of a record: the user's tag follows the owner.
const USER_FLAG: u8 = 1 << 7;

impl Image for Lock {
    const KIND: u8 = kind::LOCK;

    fn write(&self, out: &mut Vec<u8>) {
        let (phase, at_ms) = match self.phase {
            Phase::Held { deadline_ms, .. } => (0u8, deadline_ms),
            Phase::Awaited => (1, NEVER),
            Phase::Idle { since_ms } => (2, since_ms),
            Phase::Several { .. } => (3, NEVER),
        };
        let user = self.user();
        let user_flag = if user == UserTag::DEFAULT { 0 } else { USER_FLAG };
        out.push(user_flag | phase << 4 | self.ended.tag());
        put_varint(out, u64::from(self.db));
        put_varint(out, u64::from(self.epoch()));
        put_bytes(out, self.name());
        put_bytes(out, self.owner());
        if user != UserTag::DEFAULT {
            out.extend_from_slice(&user.0.to_le_bytes());
        }
        put_varint(out, self.fence.0);
        put_varint(out, self.ended_fence.0);
        put_varint(out, at_ms.wrapping_add(1));
        self.granted.write(out);
        self.session().write(out);
        self.links.write(out);
        self.queue.write(out);
        if let Phase::Several { mode, sum, holders, .. } = self.phase {
            out.push(mode as u8);
            put_varint(out, u64::from(sum));
            put_varint(out, u64::from(holders));
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Lock> {
        let bits = reader.u8()?;
        let (tag, has_user) = (bits & !USER_FLAG, bits & USER_FLAG != 0);
        let ended = LastEnd::of_tag(tag & 15)?;
        let db = u16::try_from(reader.varint()?).ok()?;
        let epoch = u16::try_from(reader.varint()?).ok()?;
        let name = reader.bytes()?;
        let owner = reader.bytes()?;
        let user = if has_user { reader.u64_fixed()?.to_le_bytes() } else { [0; USER_BYTES] };
        let (fence, ended_fence) = (Fence(reader.varint()?), Fence(reader.varint()?));
        let (at_ms, granted) = (reader.varint()?.wrapping_sub(1), GrantedTime::read(reader)?);
        let session = Slot::read(reader)?;
        let (links, queue) = (Links::read(reader)?, List::read(reader)?);
        let phase = match tag >> 4 {
            0 => Phase::Held { deadline_ms: at_ms, session, epoch },
            1 if at_ms == NEVER => Phase::Awaited,
            2 => Phase::Idle { since_ms: at_ms },
            3 if at_ms == NEVER => {
                let mode = read_mode(reader)?;
                Phase::Several { mode, sum: reader.varint_u32()?, holders: reader.varint_u32()?, epoch }
            }
            _ => return None,
        };
        let (is_free, is_inline) = (matches!(tag >> 4, 1 | 2), tag >> 4 == 0);
        let has_holder = !owner.is_empty() || session.is_some() || has_user;
        if has_user && user == [0; USER_BYTES] {
            return None;
        }
        if name.len() > KEY_BYTES_MAX || (!is_inline && has_holder) || (is_free && epoch != 0) {
            return None;
        }
        Some(Lock {
            text: [name, owner, if has_user { &user } else { &[] }].concat().into_boxed_slice(),
            name_len: name.len() as u32,
            db,
            phase,
            granted,
            ended,
            has_user,
            fence,
            ended_fence,
            links,
            queue,
        })
    }
}

/// A mode that several may hold a lock in.
fn read_mode(reader: &mut Reader<'_>) -> Option<LockMode> {
    match reader.u8()? {
        1 => Some(LockMode::Shared),
        2 => Some(LockMode::Permits),
        _ => None,
    }
}

const SHARDS: usize = 256;

/// (db, name) → slot. Many small tables instead of one, so that growing never takes long. Never iterated.
pub(crate) struct Names {
    key: HashKey,
    shards: Box<[HashTable<NamedSlot>]>,
}

/// A slot, which takes 24 bits, and 8 bits of its name's hash that the table does not go by: with the 7 that the table keeps, hardly another's
/// record is looked at in a search. No more of the hash is kept: it would cost every lock eight bytes. A table that grows reads the names.
#[derive(Clone, Copy, PartialEq, Eq)]
struct NamedSlot(u32);

const _: () = assert!(SLOTS_MAX == 1 << 24);

impl NamedSlot {
    #[inline]
    fn new(hash: u64, slot: LockSlot) -> NamedSlot {
        NamedSlot((hash >> 48) as u32 & 0xff | slot.number() << 8)
    }

    #[inline]
    fn slot(self) -> LockSlot {
        LockSlot::new(self.0 >> 8)
    }

    #[inline]
    fn may_have(self, hash: u64) -> bool {
        self.0 & 0xff == (hash >> 48) as u32 & 0xff
    }
}

/// A table goes by the lowest and the seven highest bits.
#[inline]
fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

/// The hash of a record's name.
fn hash_by(key: HashKey, locks: &Slab<Lock>) -> impl Fn(LockSlot) -> u64 + '_ {
    move |slot| {
        let lock = &locks[slot];
        key.of_name(lock.db(), lock.name())
    }
}

impl Default for Names {
    fn default() -> Names {
        Names { key: HashKey::default(), shards: (0..SHARDS).map(|_| HashTable::new()).collect() }
    }
}

impl Names {
    #[inline]
    pub(crate) fn find(&self, locks: &Slab<Lock>, db: Db, name: &[u8]) -> Option<LockSlot> {
        let hash = self.key.of_name(db, name);
        let same = |named: &NamedSlot| {
            let is_it = || {
                let lock = &locks[named.slot()];
                lock.db() == db && lock.name() == name
            };
            named.may_have(hash) && is_it()
        };
        self.shards[shard_of(hash)].find(hash, same).map(|named| named.slot())
    }

    pub(crate) fn insert(&mut self, locks: &Slab<Lock>, slot: LockSlot) {
        let hash_of = hash_by(self.key, locks);
        let hash = hash_of(slot);
        let shard = &mut self.shards[shard_of(hash)];
        shard.insert_unique(hash, NamedSlot::new(hash, slot), |other| hash_of(other.slot()));
    }

    /// Call before the record goes.
    pub(crate) fn remove(&mut self, locks: &Slab<Lock>, slot: LockSlot) {
        let hash_of = hash_by(self.key, locks);
        let hash = hash_of(slot);
        let shard = &mut self.shards[shard_of(hash)];
        if let Ok(entry) = shard.find_entry(hash, |other| other.slot() == slot) {
            entry.remove();
        }
        if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
            shard.shrink_to(shard.len() * 2, |other| hash_of(other.slot()));
        }
    }
}
