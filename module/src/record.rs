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
//! - [`marks`]: the high-water marks of `FENCE.*`
//! - here: looking at a lock, granting, ending and prolonging it

pub(crate) mod companion;
pub(crate) mod marks;
pub(crate) mod names;

use crate::clock::Now;
use crate::config;
use crate::ffi::server::Class;
use crate::ffi::{Ctx, Key, Kind, Name, OwnedString};
use crate::waiters;
use companion::{Companion, OwnerBytes, Packed, State};
use redfence_core::grammar::errors;
use redfence_core::reply::Refusal;
use redfence_core::types::{Fence, Reason, RESOURCE_BYTES_MAX};
use std::cell::Cell;

thread_local! {
    /// The highest fence this process has issued: a resource whose companion is lost starts above it, whatever the clock did.
    static FENCE_FLOOR: Cell<u64> = const { Cell::new(0) };
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
pub(crate) enum Taken {
    Granted(Grant),
    /// The owner holds it already: the same fence, perhaps more time.
    Again(Grant),
    Busy,
}

/// What a holder's fence is worth now.
#[allow(clippy::large_enum_variant)] // it lives on the stack of one command, and boxing would cost an allocation
pub(crate) enum Ended {
    /// It held the lock until this call.
    Now {
        owner: OwnerBytes,
    },
    Before(Reason),
}

/// Whether a lock could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freedom {
    Free,
    /// Held; `None` where the key does not expire.
    HeldUntil(Option<u64>),
}

/// What `LOCK.INFO` shows.
pub(crate) struct View {
    pub(crate) owner: Option<Vec<u8>>,
    pub(crate) fence: Fence,
    pub(crate) expire_at_ms: Option<u64>,
}

/// A lock's name with the name of its companion, made once per command.
pub(crate) struct Lock<'a> {
    name: Name<'a>,
    companion: OwnedString,
}

impl<'a> Lock<'a> {
    /// Refused in cluster mode where the companion could not live in the lock's slot.
    pub(crate) fn new(name: Name<'a>) -> Result<Lock<'a>, Refusal> {
        Ok(Lock { name, companion: names::side_key(names::COMPANION, name.bytes())? })
    }

    pub(crate) fn resource(&self) -> &'a [u8] {
        self.name.bytes()
    }

    /// Opens the lock's own key for writing; a key of another type is none of ours.
    fn open<'k>(&'k self, ctx: &'k Ctx) -> Result<(Key<'k>, Kind), Refusal> {
        let key = Key::open_to_write(ctx, self.name);
        match key.kind() {
            Kind::Other => Err(errors::wrong_type()),
            kind @ (Kind::Absent | Kind::String) => Ok((key, kind)),
        }
    }

    fn open_companion<'k>(&'k self, ctx: &'k Ctx) -> Result<Key<'k>, Refusal> {
        let key = Key::open_to_write(ctx, self.companion.name());
        match key.kind() {
            Kind::Other => Err(errors::wrong_type()),
            Kind::Absent | Kind::String => Ok(key),
        }
    }

    /// Whether [`Lock::take`] would be granted; an error where it would be refused.
    pub(crate) fn freedom(&self, ctx: &Ctx) -> Result<Freedom, Refusal> {
        let (key, kind) = self.open(ctx)?;
        if kind == Kind::String {
            return Ok(Freedom::HeldUntil(key.expire_at_ms()));
        }
        self.open_companion(ctx)?;
        Ok(Freedom::Free)
    }

    /// Whether `owner` holds the lock, by whichever way it got it.
    pub(crate) fn is_held_by(&self, ctx: &Ctx, owner: &[u8]) -> Result<bool, Refusal> {
        let (mut key, kind) = self.open(ctx)?;
        Ok(kind == Kind::String && key.bytes() == owner)
    }

    /// Takes the lock where it is free (and `may_take`: nobody is in line before the caller), or again where `owner` holds it.
    /// `owner` is asked for only when it is needed, because making one up is dear.
    pub(crate) fn take(
        &self,
        ctx: &Ctx,
        owner: Option<&[u8]>,
        ttl_ms: u64,
        may_take: bool,
        now: Now,
    ) -> Result<(Taken, OwnerBytes), Refusal> {
        let (mut key, kind) = self.open(ctx)?;
        let free = kind == Kind::Absent;
        if !free {
            let again = owner.is_some_and(|owner| key.bytes() == owner);
            return match owner {
                Some(owner) if again => {
                    let grant = self.take_again(ctx, &mut key, owner, ttl_ms, now)?;
                    Ok((Taken::Again(grant), OwnerBytes::new(owner)))
                }
                Some(_) | None => Ok((Taken::Busy, OwnerBytes::default())),
            };
        }
        if !may_take {
            return Ok((Taken::Busy, OwnerBytes::default()));
        }
        let owner = owner.map_or_else(OwnerBytes::random, OwnerBytes::new);
        let mut side = self.open_companion(ctx)?;
        let fence = next_fence(companion::parse(side.bytes()).map(|seen| seen.fence), now);
        let deadline_ms = now.wall_ms() + ttl_ms;
        key.set_bytes(owner.bytes());
        key.set_expire_at_ms(deadline_ms);
        ctx.replicate_set(self.name, owner.bytes(), Some(deadline_ms));
        self.write_held(ctx, &mut side, fence, Some(deadline_ms), owner.bytes(), now);
        drop((key, side));
        waiters::quietly(|| {
            ctx.notify(Class::String, c"set", self.name);
            ctx.notify(Class::Generic, c"expire", self.name);
        });
        Ok((Taken::Granted(Grant { fence, ttl_ms, deadline_ms: Some(deadline_ms) }), owner))
    }

    /// A retry: the same fence, at least the time asked. A plain client's lock of the same value is adopted: it gets a fence.
    fn take_again(
        &self,
        ctx: &Ctx,
        key: &mut Key<'_>,
        owner: &[u8],
        ttl_ms: u64,
        now: Now,
    ) -> Result<Grant, Refusal> {
        let mut side = self.open_companion(ctx)?;
        let seen = companion::parse(side.bytes());
        let known =
            seen.filter(|seen| seen.state == State::Held && seen.owner == owner).map(|seen| seen.fence);
        let last = seen.map(|seen| seen.fence);
        let fence = known.unwrap_or_else(|| next_fence(last, now));
        let asked_until_ms = now.wall_ms() + ttl_ms;
        let deadline_ms = match key.expire_at_ms() {
            None => None,
            Some(until_ms) if until_ms >= asked_until_ms => Some(until_ms),
            Some(_) => {
                self.prolong(ctx, key, asked_until_ms);
                Some(asked_until_ms)
            }
        };
        if known.is_none() || deadline_ms == Some(asked_until_ms) {
            self.write_held(ctx, &mut side, fence, deadline_ms, owner, now);
        }
        let left_ms = deadline_ms.map_or(ttl_ms, |until_ms| until_ms - now.wall_ms());
        Ok(Grant { fence, ttl_ms: left_ms, deadline_ms })
    }

    /// Ends the grant of `fence` where it is the holder's.
    pub(crate) fn end(&self, ctx: &Ctx, fence: Fence, now: Now) -> Result<Ended, Refusal> {
        let (mut key, _) = self.open(ctx)?;
        let mut side = self.open_companion(ctx)?;
        let owner = match holder(&mut key, &mut side, fence, now) {
            Ok(owner) => owner,
            Err(reason) => return Ok(Ended::Before(reason)),
        };
        self.delete(ctx, &mut key);
        self.write_released(ctx, &mut side, fence, now);
        drop((key, side));
        waiters::quietly(|| ctx.notify(Class::Generic, c"del", self.name));
        Ok(Ended::Now { owner })
    }

    /// Sets the time left of the grant of `fence`.
    pub(crate) fn renew(&self, ctx: &Ctx, fence: Fence, ttl_ms: u64, now: Now) -> Result<Ended, Refusal> {
        let (mut key, _) = self.open(ctx)?;
        let mut side = self.open_companion(ctx)?;
        let owner = match holder(&mut key, &mut side, fence, now) {
            Ok(owner) => owner,
            Err(reason) => return Ok(Ended::Before(reason)),
        };
        let deadline_ms = now.wall_ms() + ttl_ms;
        self.prolong(ctx, &mut key, deadline_ms);
        self.write_held(ctx, &mut side, fence, Some(deadline_ms), owner.bytes(), now);
        drop((key, side));
        waiters::quietly(|| ctx.notify(Class::Generic, c"expire", self.name));
        Ok(Ended::Now { owner })
    }

    /// Takes the lock away from whoever holds it. `None` where nobody did.
    pub(crate) fn end_by_force(&self, ctx: &Ctx, now: Now) -> Result<Option<(Fence, OwnerBytes)>, Refusal> {
        let (mut key, kind) = self.open(ctx)?;
        if kind == Kind::Absent {
            return Ok(None);
        }
        let mut side = self.open_companion(ctx)?;
        let owner = OwnerBytes::new(key.bytes());
        let seen = companion::parse(side.bytes());
        let fence = seen.map_or(Fence(0), |seen| seen.fence);
        let ours = seen.is_some_and(|seen| seen.state == State::Held && seen.owner == owner.bytes());
        self.delete(ctx, &mut key);
        if ours {
            self.write_released(ctx, &mut side, fence, now);
        }
        drop((key, side));
        waiters::quietly(|| ctx.notify(Class::Generic, c"del", self.name));
        Ok(Some((fence, owner)))
    }

    /// Looks without changing anything: also on a replica.
    pub(crate) fn view(&self, ctx: &Ctx) -> Result<View, Refusal> {
        let fence = match Key::open_to_read(ctx, self.companion.name()) {
            None => Fence(0),
            Some(side) if side.kind() == Kind::Other => return Err(errors::wrong_type()),
            Some(mut side) => companion::parse(side.bytes()).map_or(Fence(0), |seen| seen.fence),
        };
        match Key::open_to_read(ctx, self.name) {
            None => Ok(View { owner: None, fence, expire_at_ms: None }),
            Some(key) if key.kind() == Kind::Other => Err(errors::wrong_type()),
            Some(mut key) => {
                let owner = Some(key.bytes().to_vec());
                Ok(View { owner, fence, expire_at_ms: key.expire_at_ms() })
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

    fn write_held(
        &self,
        ctx: &Ctx,
        side: &mut Key<'_>,
        fence: Fence,
        deadline_ms: Option<u64>,
        owner: &[u8],
        now: Now,
    ) {
        let companion = Companion { fence, state: State::Held, deadline_ms: deadline_ms.unwrap_or(0), owner };
        let forget_at_ms = deadline_ms.unwrap_or(now.wall_ms()) + config::companion_retention_ms();
        self.write(ctx, side, &companion, forget_at_ms);
    }

    /// Keeps the companion's expiry, which lies a little behind the retention asked, unless it is far too late.
    fn write_released(&self, ctx: &Ctx, side: &mut Key<'_>, fence: Fence, now: Now) {
        let deadline_ms = companion::parse(side.bytes()).map_or(0, |seen| seen.deadline_ms);
        let companion = Companion { fence, state: State::Released, deadline_ms, owner: b"" };
        let wanted_ms = now.wall_ms() + config::companion_retention_ms();
        let forget_at_ms =
            side.expire_at_ms().filter(|at_ms| *at_ms <= wanted_ms + FORGET_SLACK_MS).unwrap_or(wanted_ms);
        self.write(ctx, side, &companion, forget_at_ms);
    }

    fn write(&self, ctx: &Ctx, side: &mut Key<'_>, companion: &Companion<'_>, forget_at_ms: u64) {
        let packed = Packed::new(companion);
        side.set_bytes(packed.bytes());
        if side.expire_at_ms() != Some(forget_at_ms) {
            side.set_expire_at_ms(forget_at_ms);
        }
        ctx.replicate_set(self.companion.name(), packed.bytes(), Some(forget_at_ms));
    }
}

/// How much longer than asked a released companion may live before its expiry is set anew.
const FORGET_SLACK_MS: u64 = 60_000;

/// The owner of the grant of `fence` where it holds the lock, or why it does not.
fn holder(key: &mut Key<'_>, side: &mut Key<'_>, fence: Fence, now: Now) -> Result<OwnerBytes, Reason> {
    let seen = companion::parse(side.bytes()).filter(|seen| seen.fence == fence).ok_or(Reason::NotOwner)?;
    match seen.state {
        State::Released => Err(Reason::AlreadyReleased),
        State::Held if key.kind() == Kind::String && key.bytes() == seen.owner => {
            Ok(OwnerBytes::new(seen.owner))
        }
        State::Held => Err(companion::how_it_ended(&seen, now.wall_ms())),
    }
}

fn next_fence(last: Option<Fence>, now: Now) -> Fence {
    FENCE_FLOOR.with(|floor| {
        let last = last.unwrap_or(Fence(floor.get()));
        let fence = Fence::next(last, now.wall_us);
        floor.set(floor.get().max(fence.0));
        fence
    })
}

/// The grant of `resource` that its key's expiry has just ended, for the event. Reads alone: we are inside a notification.
pub(crate) fn expired_grant(ctx: &Ctx, resource: &[u8], now: Now) -> Option<(Fence, OwnerBytes)> {
    let name = names::side_key(names::COMPANION, resource).ok()?;
    let mut side = Key::open_to_read(ctx, name.name())?;
    let seen = companion::parse(side.bytes())?;
    (seen.state == State::Held && seen.deadline_ms != 0 && seen.deadline_ms <= now.wall_ms())
        .then(|| (seen.fence, OwnerBytes::new(seen.owner)))
}

/// Whether the lock of this companion is held by a grant of ours: for `LOCK.SCAN`.
pub(crate) fn is_held(ctx: &Ctx, companion_key: &[u8], resource: &[u8]) -> bool {
    let (side, name) = (OwnedString::new(companion_key), OwnedString::new(resource));
    let Some(mut key) = Key::open_to_read(ctx, name.name()) else {
        return false;
    };
    let Some(mut side) = Key::open_to_read(ctx, side.name()) else {
        return false;
    };
    companion::parse(side.bytes()).is_some_and(|seen| {
        seen.state == State::Held && key.kind() == Kind::String && key.bytes() == seen.owner
    })
}

/// The last fence issued for a resource, 0 if none is known. For events.
pub(crate) fn last_fence(ctx: &Ctx, resource: &[u8]) -> Fence {
    let Ok(name) = names::side_key(names::COMPANION, resource) else {
        return Fence(0);
    };
    Key::open_to_read(ctx, name.name())
        .and_then(|mut side| companion::parse(side.bytes()).map(|seen| seen.fence))
        .unwrap_or_default()
}

/// Keys that cannot be a lock of ours: too long, empty, or side keys themselves.
pub(crate) fn may_be_resource(key: &[u8]) -> bool {
    (1..=RESOURCE_BYTES_MAX).contains(&key.len()) && names::resource_of(key).is_none()
}
