//! A lock as Redis keeps it: the only code that knows the layout (the Lua library is its twin).
//!
//! The lock itself is the string key `K` = the resource: its value is the owner, its expiry the ttl, so that plain
//! `SET K owner NX PX ttl` clients and we exclude each other. Beside it, in the same cluster slot, a companion remembers the
//! last fence and how its grant ended ([`companion`]). Everything that changes a key replicates the effect with absolute
//! times, as commands any Redis understands, and nothing where nothing changed.
//!
//! A companion that says "held" is believed only as long as `K` is there with the same owner; so whatever plain clients, expiry,
//! eviction or a flush do to `K`, the two cannot contradict each other.
//!
//! # Caveats
//!
//! The lock's key is always opened before its companion: opening it may end it, which runs our own listener, which reads the
//! companion; a companion already open would then have two handles.
//!
//! # Layout
//!
//! - [`companion`]: the companion's bytes
//! - [`names`]: the names of side keys
//! - [`owner`]: the client's word, or one made up
//! - [`marks`]: the high-water marks of `FENCE.*`
//! - [`fences`]: the next fence
//! - [`look`]: questions asked from outside a lock's command
//! - [`taken_away`]: ends that are not their holder's doing
//! - here: granting, ending and prolonging a lock

pub(crate) mod companion;
mod fences;
pub(crate) mod inspect;
pub(crate) mod marks;
pub(crate) mod names;
pub(crate) mod owner;
mod taken_away;

pub(crate) use taken_away::ForcedEnd;

use crate::clock::Now;
use crate::ffi::server::{Class, Expiry};
use crate::ffi::{Ctx, Key, KeyType, Name, OwnedString};
use crate::waiters;
use crate::{config, events};
use companion::{Companion, EndedGrant, GrantState};
use owner::Owner;
use redfence_core::grammar::errors;
use redfence_core::reply::Refusal;
use redfence_core::types::{Fence, Reason, FENCE_BOUND};
use std::cell::RefCell;

thread_local! {
    /// A companion is packed here: no allocation.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A grant: what the holder gets to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) fence: Fence,
    pub(crate) ttl_ms: u64,
    /// When it ends by itself; `None` where a plain client made the key without an expiry.
    pub(crate) deadline_ms: Option<u64>,
}

/// What came of an attempt to take a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireOutcome {
    Granted(Grant),
    /// The owner holds it already: the same fence, perhaps more time.
    Again(Grant),
    Busy,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) ttl_ms: u64,
    /// Kept with the grant; empty where there is none.
    pub(crate) value: &'a [u8],
}

/// What a holder's fence is worth now.
pub(crate) enum EndOutcome {
    /// It held the lock until this call.
    Now(EndedHold),
    Before(Reason),
}

/// A hold that has ended, for those who are told. Owner and value are empty where nobody listens.
pub(crate) struct EndedHold {
    pub(crate) fence: Fence,
    pub(crate) owner: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl EndedHold {
    pub(crate) fn of(held: &Companion<'_>) -> EndedHold {
        EndedHold { fence: held.fence, owner: held.owner.to_vec(), value: held.value.to_vec() }
    }

    /// Without a copy where only an event would show it.
    fn for_event(held: &Companion<'_>) -> EndedHold {
        if events::is_on() {
            EndedHold::of(held)
        } else {
            EndedHold { fence: held.fence, owner: Vec::new(), value: Vec::new() }
        }
    }
}

/// Whether a lock could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    Free,
    /// Held by the very owner that asks: it may have it again.
    OwnedByCaller,
    /// Held by another; `None` where the key does not expire.
    HeldUntil(Option<u64>),
}

/// A grant as its companion is to tell it.
struct GrantRecord<'a> {
    fence: Fence,
    deadline_ms: Option<u64>,
    ended: Option<EndedGrant>,
    owner: &'a [u8],
    value: &'a [u8],
}

/// What `LOCK.INFO` shows.
pub(crate) struct LockView {
    pub(crate) owner: Option<Vec<u8>>,
    pub(crate) fence: Fence,
    pub(crate) expire_at_ms: Option<u64>,
    /// The VALUE of the holder, empty where it has none. `None` where it is free, or a plain client holds it without a fence.
    pub(crate) value: Option<Vec<u8>>,
}

/// A lock's name with the name of its companion, made once per command.
pub(crate) struct LockKeys<'a> {
    name: Name<'a>,
    companion: OwnedString,
}

impl<'a> LockKeys<'a> {
    /// Refused in cluster mode where the companion could not live in the lock's slot.
    pub(crate) fn new(name: Name<'a>) -> Result<LockKeys<'a>, Refusal> {
        Ok(LockKeys { name, companion: names::side_key(names::COMPANION, name.bytes())? })
    }

    pub(crate) fn resource(&self) -> &'a [u8] {
        self.name.bytes()
    }

    /// Opens the lock's own key for writing; a key of another type is none of ours.
    fn open<'k>(&'k self, ctx: &'k Ctx) -> Result<(Key<'k>, KeyType), Refusal> {
        let key = Key::open_to_write(ctx, self.name);
        match key.kind() {
            KeyType::Other => Err(errors::wrong_type()),
            kind @ (KeyType::Absent | KeyType::String) => Ok((key, kind)),
        }
    }

    fn open_companion<'k>(&'k self, ctx: &'k Ctx) -> Result<Key<'k>, Refusal> {
        let key = Key::open_to_write(ctx, self.companion.name());
        match key.kind() {
            KeyType::Other => Err(errors::wrong_type()),
            KeyType::Absent | KeyType::String => Ok(key),
        }
    }

    /// Whether [`Lock::take`] would be granted to `owner`; an error where it would be refused.
    pub(crate) fn availability(&self, ctx: &Ctx, owner: Option<&[u8]>) -> Result<Availability, Refusal> {
        let (mut key, kind) = self.open(ctx)?;
        if kind == KeyType::String && owner.is_none_or(|owner| key.bytes() != owner) {
            return Ok(Availability::HeldUntil(key.expire_at_ms()));
        }
        let mut side = self.open_companion(ctx)?;
        match companion::parse(side.bytes()) {
            Some(seen) if seen.fence.0 + 1 >= FENCE_BOUND => Err(fences::used_up()),
            Some(_) | None if kind == KeyType::String => Ok(Availability::OwnedByCaller),
            Some(_) | None => Ok(Availability::Free),
        }
    }

    /// Takes the lock where it is free (and `may_take`: nobody is in the queue before the caller), or again where `owner` holds it.
    pub(crate) fn take(
        &self,
        ctx: &Ctx,
        owner: &mut Owner<'_>,
        terms: Terms<'_>,
        may_take: bool,
        now: Now,
    ) -> Result<AcquireOutcome, Refusal> {
        let (mut key, kind) = self.open(ctx)?;
        if kind != KeyType::Absent {
            return match owner.given().filter(|owner| key.bytes() == *owner) {
                Some(owner) => self.take_again(ctx, &mut key, owner, terms, now).map(AcquireOutcome::Again),
                None => Ok(AcquireOutcome::Busy),
            };
        }
        if !may_take {
            return Ok(AcquireOutcome::Busy);
        }
        let owner = owner.settle();
        let mut side = self.open_companion(ctx)?;
        let seen = companion::parse(side.bytes());
        let fence = fences::next(seen.map(|seen| seen.fence), now)?;
        let ended = seen.map(|seen| seen.end(now.wall_ms()));
        self.tell_unseen_end(ctx, seen, ended, fence);
        let deadline_ms = now.wall_ms() + terms.ttl_ms;
        key.set_bytes(owner);
        key.set_expire_at_ms(deadline_ms);
        ctx.replicate_set(self.name, owner, Expiry::At(deadline_ms));
        self.write_held(
            ctx,
            &mut side,
            GrantRecord { fence, deadline_ms: Some(deadline_ms), ended, owner, value: terms.value },
            now,
        );
        drop((key, side));
        waiters::ignoring_own_changes(|| {
            ctx.notify(Class::String, c"set", self.name);
            ctx.notify(Class::Generic, c"expire", self.name);
        });
        Ok(AcquireOutcome::Granted(Grant { fence, ttl_ms: terms.ttl_ms, deadline_ms: Some(deadline_ms) }))
    }

    /// A retry: the same fence and VALUE, at least the time asked. A plain client's lock of the same value is adopted: it gets a fence.
    fn take_again(
        &self,
        ctx: &Ctx,
        key: &mut Key<'_>,
        owner: &[u8],
        terms: Terms<'_>,
        now: Now,
    ) -> Result<Grant, Refusal> {
        let mut side = self.open_companion(ctx)?;
        let seen = companion::parse(side.bytes());
        let ours = seen.filter(|seen| seen.state == GrantState::Held && seen.owner == owner);
        let (fence, ended, value) = match ours {
            // Copied, because it is written where it is read. Nothing is allocated for the many without one.
            Some(ours) => (ours.fence, ours.ended, ours.value.to_vec()),
            None => {
                let ended = seen.map(|seen| seen.end_beside_other(now.wall_ms()));
                (fences::next(seen.map(|seen| seen.fence), now)?, ended, terms.value.to_vec())
            }
        };
        let is_new = ours.is_none();
        if is_new {
            self.tell_unseen_end(ctx, seen, seen.map(|seen| seen.end(now.wall_ms())), fence);
        }
        let asked_until_ms = now.wall_ms() + terms.ttl_ms;
        let deadline_ms = match key.expire_at_ms() {
            None => None,
            Some(until_ms) if until_ms >= asked_until_ms => Some(until_ms),
            Some(_) => {
                self.prolong(ctx, key, asked_until_ms);
                Some(asked_until_ms)
            }
        };
        if is_new || deadline_ms == Some(asked_until_ms) {
            self.write_held(
                ctx,
                &mut side,
                GrantRecord { fence, deadline_ms, ended, owner, value: &value },
                now,
            );
        }
        let left_ms = deadline_ms.map_or(terms.ttl_ms, |until_ms| until_ms - now.wall_ms());
        Ok(Grant { fence, ttl_ms: left_ms, deadline_ms })
    }

    /// Ends the grant of `fence` where it is the holder's.
    pub(crate) fn end(&self, ctx: &Ctx, fence: Fence, now: Now) -> Result<EndOutcome, Refusal> {
        let (mut key, _) = self.open(ctx)?;
        let mut side = self.open_companion(ctx)?;
        let (deadline_ms, hold) = match holder(&mut key, &mut side, fence, now) {
            Ok(held) => (held.deadline_ms, EndedHold::for_event(&held)),
            Err(reason) => return Ok(EndOutcome::Before(reason)),
        };
        self.delete(ctx, &mut key);
        self.write_ended(ctx, &mut side, fence, GrantState::Released, deadline_ms, now);
        drop((key, side));
        waiters::ignoring_own_changes(|| ctx.notify(Class::Generic, c"del", self.name));
        Ok(EndOutcome::Now(hold))
    }

    /// Sets the time left of the grant of `fence`.
    pub(crate) fn renew(
        &self,
        ctx: &Ctx,
        fence: Fence,
        ttl_ms: u64,
        now: Now,
    ) -> Result<EndOutcome, Refusal> {
        let (mut key, _) = self.open(ctx)?;
        let mut side = self.open_companion(ctx)?;
        let (ended, hold) = match holder(&mut key, &mut side, fence, now) {
            Ok(held) => (held.ended, EndedHold::of(&held)),
            Err(reason) => return Ok(EndOutcome::Before(reason)),
        };
        let deadline_ms = now.wall_ms() + ttl_ms;
        self.prolong(ctx, &mut key, deadline_ms);
        let (owner, value) = (&hold.owner, &hold.value);
        let held = GrantRecord { fence, deadline_ms: Some(deadline_ms), ended, owner, value };
        self.write_held(ctx, &mut side, held, now);
        drop((key, side));
        waiters::ignoring_own_changes(|| ctx.notify(Class::Generic, c"expire", self.name));
        Ok(EndOutcome::Now(hold))
    }

    /// Looks without changing anything: also on a replica.
    pub(crate) fn view(&self, ctx: &Ctx) -> Result<LockView, Refusal> {
        let mut side = Key::open_to_read(ctx, self.companion.name());
        let seen = match &mut side {
            None => None,
            Some(side) if side.kind() == KeyType::Other => return Err(errors::wrong_type()),
            Some(side) => companion::parse(side.bytes()),
        };
        let fence = seen.map_or(Fence(0), |seen| seen.fence);
        match Key::open_to_read(ctx, self.name) {
            None => Ok(LockView { owner: None, fence, expire_at_ms: None, value: None }),
            Some(key) if key.kind() == KeyType::Other => Err(errors::wrong_type()),
            Some(mut key) => {
                let owner = key.bytes().to_vec();
                let ours = seen.filter(|seen| seen.state == GrantState::Held && seen.owner == owner);
                let value = ours.map(|ours| ours.value.to_vec());
                Ok(LockView { owner: Some(owner), fence, expire_at_ms: key.expire_at_ms(), value })
            }
        }
    }

    fn prolong(&self, ctx: &Ctx, key: &mut Key<'_>, deadline_ms: u64) {
        key.set_expire_at_ms(deadline_ms);
        ctx.replicate_expire(self.name, deadline_ms);
    }

    fn delete(&self, ctx: &Ctx, key: &mut Key<'_>) {
        key.delete();
        ctx.replicate_delete(self.name);
    }

    fn write_held(&self, ctx: &Ctx, side: &mut Key<'_>, held: GrantRecord<'_>, now: Now) {
        let GrantRecord { fence, deadline_ms, ended, owner, value } = held;
        let companion = Companion {
            fence,
            state: GrantState::Held,
            deadline_ms: deadline_ms.unwrap_or(0),
            ended,
            owner,
            value,
        };
        let forget_at_ms = deadline_ms.unwrap_or(now.wall_ms()) + config::companion_retention_ms();
        self.write(ctx, side, &companion, Some(forget_at_ms));
    }

    /// Leaves the companion's expiry alone, which lies a little behind the retention asked, unless it is far too late.
    fn write_ended(
        &self,
        ctx: &Ctx,
        side: &mut Key<'_>,
        fence: Fence,
        state: GrantState,
        deadline_ms: u64,
        now: Now,
    ) {
        let ended = Companion { fence, state, deadline_ms, ended: None, owner: b"", value: b"" };
        let companion = Companion { ended: Some(ended.end(now.wall_ms())), ..ended };
        let far_too_late = deadline_ms == 0 || deadline_ms > now.wall_ms() + FORGET_SLACK_MS;
        let forget_at_ms = far_too_late.then(|| now.wall_ms() + config::companion_retention_ms());
        self.write(ctx, side, &companion, forget_at_ms);
    }

    /// `forget_at_ms`: the new expiry; `None` leaves the one there is.
    fn write(&self, ctx: &Ctx, side: &mut Key<'_>, companion: &Companion<'_>, forget_at_ms: Option<u64>) {
        SCRATCH.with(|scratch| {
            let mut packed = scratch.borrow_mut();
            companion.pack(&mut packed);
            side.set_bytes(&packed);
            let expiry = match forget_at_ms {
                Some(at_ms) => {
                    side.set_expire_at_ms(at_ms);
                    Expiry::At(at_ms)
                }
                None => Expiry::AsBefore,
            };
            ctx.replicate_set(self.companion.name(), &packed, expiry);
        });
    }
}

/// How much longer than asked a released companion may live before its expiry is set anew.
const FORGET_SLACK_MS: u64 = 60_000;

/// The companion of the grant of `fence` where it holds the lock, or why it does not.
fn holder<'k>(
    key: &mut Key<'_>,
    side: &'k mut Key<'_>,
    fence: Fence,
    now: Now,
) -> Result<Companion<'k>, Reason> {
    let seen = companion::parse(side.bytes()).ok_or(Reason::NotOwner)?;
    let is_held =
        seen.state == GrantState::Held && key.kind() == KeyType::String && key.bytes() == seen.owner;
    if seen.fence != fence {
        // While a grant is held, the one before it is the last that ended; afterwards it is one of the older ones.
        let ended = seen.ended.filter(|ended| is_held && ended.fence == fence);
        return Err(ended.map_or(Reason::NotOwner, |ended| ended.how.reason()));
    }
    match seen.state {
        GrantState::Held if is_held => Ok(seen),
        GrantState::Held if key.kind() != KeyType::Absent => {
            Err(seen.end_beside_other(now.wall_ms()).how.reason())
        }
        GrantState::Held | GrantState::Released | GrantState::Forced => {
            Err(seen.end(now.wall_ms()).how.reason())
        }
    }
}
