//! The high-water marks of `FENCE.*`: a plain integer in a side key, kept for ever unless a retention is set.

use super::names;
use crate::clock::Now;
use crate::config;
use crate::ffi::server::Expiry;
use crate::ffi::{Ctx, Key, KeyType};
use redfence_core::grammar::errors;
use redfence_core::grammar::words::decimal;
use redfence_core::reply::Refusal;
use redfence_core::types::Fence;

/// How far a fence may be ahead of this server's clock.
const FUTURE_US_MAX: u64 = 3_600_000_000;

/// The mark, if the fence can be real: one from the future would make every real one stale.
pub(crate) fn admit(ctx: &Ctx, resource: &[u8], fence: Fence, now: Now) -> Result<Fence, Refusal> {
    if fence.0 > now.wall_us.saturating_add(FUTURE_US_MAX) {
        return Err(errors::future_fence_at_redis(fence.0));
    }
    get(ctx, resource)
}

/// Raises the mark to `fence`. `Err(mark)` where the fence is behind it.
pub(crate) fn raise(
    ctx: &Ctx,
    resource: &[u8],
    fence: Fence,
    now: Now,
) -> Result<Result<(), Fence>, Refusal> {
    let name = names::side_key(names::MARK, resource)?;
    let mut key = Key::open_to_write(ctx, name.name());
    let kind = key.kind();
    let mark = value(&mut key, kind)?;
    if fence < mark {
        return Ok(Err(mark));
    }
    if fence > mark {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(fence.0).as_bytes();
        let forget_at_ms = config::mark_retention_ms().map(|ms| now.wall_ms() + ms);
        key.set_bytes(digits);
        let expiry = match forget_at_ms {
            Some(at_ms) => {
                key.set_expire_at_ms(at_ms);
                Expiry::At(at_ms)
            }
            None => {
                key.clear_expiry();
                Expiry::None
            }
        };
        ctx.replicate_set(name.name(), digits, expiry);
    }
    Ok(Ok(()))
}

/// 0 where there is none.
pub(crate) fn get(ctx: &Ctx, resource: &[u8]) -> Result<Fence, Refusal> {
    let name = names::side_key(names::MARK, resource)?;
    let Some(mut key) = Key::open_to_read(ctx, name.name()) else {
        return Ok(Fence(0));
    };
    let kind = key.kind();
    value(&mut key, kind)
}

fn value(key: &mut Key<'_>, kind: KeyType) -> Result<Fence, Refusal> {
    match kind {
        KeyType::Absent => Ok(Fence(0)),
        KeyType::Other => Err(errors::wrong_type()),
        KeyType::String => decimal(key.bytes())
            .map(Fence)
            .ok_or_else(|| Refusal::new("ERR the high-water mark of this resource is not an integer")),
    }
}
