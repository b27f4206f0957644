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
//! - here: granting, ending and prolonging a lock

pub(crate) mod companion;
mod fences;
pub(crate) mod inspect;
pub(crate) mod marks;
pub(crate) mod names;
pub(crate) mod owner;

use crate::clock::Now;
use crate::ffi::server::{Class, Expiry};
use crate::ffi::{Ctx, Key, KeyType, Name, OwnedString};
use crate::info::{count, Counter};
use crate::waiters;
use crate::{config, events};
use companion::{Companion, EndCause, EndedGrant, GrantState};
use owner::Owner;
use redfence_core::event::EventKind;
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

/// What a holder's fence is worth now.
pub(crate) enum EndOutcome {
    /// It held the lock until this call.
    Now {
        /// For the event; empty where nobody listens.
        owner: Vec<u8>,
    },
    Before(Reason),
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
}

/// What `LOCK.INFO` shows.
pub(crate) struct LockView {
    pub(crate) owner: Option<Vec<u8>>,
    pub(crate) fence: Fence,
    pub(crate) expire_at_ms: Option<u64>,
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
        ttl_ms: u64,
        may_take: bool,
        now: Now,
    ) -> Result<AcquireOutcome, Refusal> {
        let (mut key, kind) = self.open(ctx)?;
        if kind != KeyType::Absent {
            return match owner.given().filter(|owner| key.bytes() == *owner) {
                Some(owner) => self.take_again(ctx, &mut key, owner, ttl_ms, now).map(AcquireOutcome::Again),
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
        self.tell_unseen_end(ctx, seen, ended);
        let deadline_ms = now.wall_ms() + ttl_ms;
        key.set_bytes(owner);
        key.set_expire_at_ms(deadline_ms);
        ctx.replicate_set(self.name, owner, Expiry::At(deadline_ms));
        self.write_held(
            ctx,
            &mut side,
            GrantRecord { fence, deadline_ms: Some(deadline_ms), ended, owner },
            now,
        );
        drop((key, side));
        waiters::ignoring_own_changes(|| {
            ctx.notify(Class::String, c"set", self.name);
            ctx.notify(Class::Generic, c"expire", self.name);
        });
        Ok(AcquireOutcome::Granted(Grant { fence, ttl_ms, deadline_ms: Some(deadline_ms) }))
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
        let ours = seen.filter(|seen| seen.state == GrantState::Held && seen.owner == owner);
        let (fence, ended) = match ours {
            Some(ours) => (ours.fence, ours.ended),
            None => {
                let ended = seen.map(|seen| seen.end_beside_other(now.wall_ms()));
                (fences::next(seen.map(|seen| seen.fence), now)?, ended)
            }
        };
        let is_new = ours.is_none();
        if is_new {
            self.tell_unseen_end(ctx, seen, seen.map(|seen| seen.end(now.wall_ms())));
        }
        let asked_until_ms = now.wall_ms() + ttl_ms;
        let deadline_ms = match key.expire_at_ms() {
            None => None,
            Some(until_ms) if until_ms >= asked_until_ms => Some(until_ms),
            Some(_) => {
                self.prolong(ctx, key, asked_until_ms);
                Some(asked_until_ms)
            }
        };
        if is_new || deadline_ms == Some(asked_until_ms) {
            self.write_held(ctx, &mut side, GrantRecord { fence, deadline_ms, ended, owner }, now);
        }
        let left_ms = deadline_ms.map_or(ttl_ms, |until_ms| until_ms - now.wall_ms());
        Ok(Grant { fence, ttl_ms: left_ms, deadline_ms })
    }

    /// Ends the grant of `fence` where it is the holder's.
    pub(crate) fn end(&self, ctx: &Ctx, fence: Fence, now: Now) -> Result<EndOutcome, Refusal> {
        let (mut key, _) = self.open(ctx)?;
        let mut side = self.open_companion(ctx)?;
        let (deadline_ms, owner) = match holder(&mut key, &mut side, fence, now) {
            Ok(held) => (held.deadline_ms, copy_for_event(held.owner)),
            Err(reason) => return Ok(EndOutcome::Before(reason)),
        };
        self.delete(ctx, &mut key);
        self.write_ended(ctx, &mut side, fence, GrantState::Released, deadline_ms, now);
        drop((key, side));
        waiters::ignoring_own_changes(|| ctx.notify(Class::Generic, c"del", self.name));
        Ok(EndOutcome::Now { owner })
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
        let (ended, owner) = match holder(&mut key, &mut side, fence, now) {
            Ok(held) => (held.ended, held.owner.to_vec()),
            Err(reason) => return Ok(EndOutcome::Before(reason)),
        };
        let deadline_ms = now.wall_ms() + ttl_ms;
        self.prolong(ctx, &mut key, deadline_ms);
        let held = GrantRecord { fence, deadline_ms: Some(deadline_ms), ended, owner: &owner };
        self.write_held(ctx, &mut side, held, now);
        drop((key, side));
        waiters::ignoring_own_changes(|| ctx.notify(Class::Generic, c"expire", self.name));
        Ok(EndOutcome::Now { owner })
    }

    /// Takes the lock away from whoever holds it. `None` where nobody did.
    pub(crate) fn end_by_force(&self, ctx: &Ctx, now: Now) -> Result<Option<(Fence, Vec<u8>)>, Refusal> {
        let (mut key, kind) = self.open(ctx)?;
        if kind == KeyType::Absent {
            return Ok(None);
        }
        let mut side = self.open_companion(ctx)?;
        let owner = key.bytes().to_vec();
        let seen = companion::parse(side.bytes());
        let fence = seen.map_or(Fence(0), |seen| seen.fence);
        let ours = seen.filter(|seen| seen.state == GrantState::Held && seen.owner == owner);
        let deadline_ms = ours.map(|ours| ours.deadline_ms);
        self.delete(ctx, &mut key);
        if let Some(deadline_ms) = deadline_ms {
            self.write_ended(ctx, &mut side, fence, GrantState::Forced, deadline_ms, now);
        }
        drop((key, side));
        waiters::ignoring_own_changes(|| ctx.notify(Class::Generic, c"del", self.name));
        Ok(Some((fence, owner)))
    }

    /// Looks without changing anything: also on a replica.
    pub(crate) fn view(&self, ctx: &Ctx) -> Result<LockView, Refusal> {
        let fence = match Key::open_to_read(ctx, self.companion.name()) {
            None => Fence(0),
            Some(side) if side.kind() == KeyType::Other => return Err(errors::wrong_type()),
            Some(mut side) => companion::parse(side.bytes()).map_or(Fence(0), |seen| seen.fence),
        };
        match Key::open_to_read(ctx, self.name) {
            None => Ok(LockView { owner: None, fence, expire_at_ms: None }),
            Some(key) if key.kind() == KeyType::Other => Err(errors::wrong_type()),
            Some(mut key) => {
                let owner = Some(key.bytes().to_vec());
                Ok(LockView { owner, fence, expire_at_ms: key.expire_at_ms() })
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

    /// A plain client ended our grant by deleting its key. No event was published then (of an expiry one is, when it happens).
    fn tell_unseen_end(&self, ctx: &Ctx, seen: Option<Companion<'_>>, ended: Option<EndedGrant>) {
        let deleted = ended.is_some_and(|ended| ended.how == EndCause::Released);
        if let Some(seen) = seen.filter(|seen| deleted && seen.state == GrantState::Held) {
            count(Counter::Released);
            events::publish(ctx, EventKind::Released, self.resource(), seen.fence, seen.owner);
        }
    }

    fn write_held(&self, ctx: &Ctx, side: &mut Key<'_>, held: GrantRecord<'_>, now: Now) {
        let GrantRecord { fence, deadline_ms, ended, owner } = held;
        let companion =
            Companion { fence, state: GrantState::Held, deadline_ms: deadline_ms.unwrap_or(0), ended, owner };
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
        let ended = Companion { fence, state, deadline_ms, ended: None, owner: b"" };
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

/// An owner that only an event would show.
fn copy_for_event(owner: &[u8]) -> Vec<u8> {
    if events::is_on() {
        owner.to_vec()
    } else {
        Vec::new()
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
    if seen.fence != fence {
        let ended = seen.ended.filter(|ended| ended.fence == fence);
        return Err(ended.map_or(Reason::NotOwner, |ended| ended.how.reason()));
    }
    match seen.state {
        GrantState::Held if key.kind() == KeyType::String && key.bytes() == seen.owner => Ok(seen),
        GrantState::Held if key.kind() != KeyType::Absent => {
            Err(seen.end_beside_other(now.wall_ms()).how.reason())
        }
        GrantState::Held | GrantState::Released | GrantState::Forced => {
            Err(seen.end(now.wall_ms()).how.reason())
        }
    }
}
