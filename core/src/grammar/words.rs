//! Reading single words: strict integers, names within their limits, and options in any order, each once.

use super::errors;
use crate::reply::Refusal;
use crate::types::{
    Fence, LockKind, Tier, FENCE_BOUND, OWNER_BYTES_MAX, PERMITS_MAX, RESOURCE_BYTES_MAX, TTL_MS_MAX,
    VALUE_BYTES_MAX, WAIT_MS_MAX,
};

/// A decimal number with no sign, no blanks and no leading zeros (but `0` itself). `None` for all else.
#[must_use]
pub fn decimal(word: &[u8]) -> Option<u64> {
    if word.is_empty() || word.len() > 20 || (word.len() > 1 && word[0] == b'0') {
        return None;
    }
    word.iter().try_fold(0u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

pub(super) fn resource(word: &[u8]) -> Result<&[u8], Refusal> {
    if word.is_empty() || word.len() > RESOURCE_BYTES_MAX {
        return Err(errors::resource_length());
    }
    Ok(word)
}

pub(super) fn fence(word: &[u8]) -> Result<Fence, Refusal> {
    match decimal(word) {
        Some(value) if (1..FENCE_BOUND).contains(&value) => Ok(Fence(value)),
        Some(_) | None => Err(errors::fence_range()),
    }
}

pub(super) fn ttl_ms(word: &[u8]) -> Result<u64, Refusal> {
    match decimal(word) {
        Some(value) if (1..=TTL_MS_MAX).contains(&value) => Ok(value),
        Some(_) | None => Err(errors::ttl_range()),
    }
}

/// Where a session may stand in for the ttl, 0 is read too; [`Options::check_ttl`] decides once all options are known.
pub(super) fn ttl_ms_or_zero(word: &[u8]) -> Result<u64, Refusal> {
    match decimal(word) {
        Some(value) if value <= TTL_MS_MAX => Ok(value),
        Some(_) | None => Err(errors::ttl_range()),
    }
}

/// The options of the `LOCK.*` commands. Which of them a command knows is in its [`Known`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    pub wait_ms: Option<u64>,
    pub owner: Option<&'a [u8]>,
    /// As the client wrote it: only Tier 2 knows whether such a session lives.
    pub session: Option<&'a [u8]>,
    pub kind: LockKind,
    pub value: Option<&'a [u8]>,
    pub tier: Option<Tier>,
}

/// The options a command takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// WAIT, OWNER, SESSION, SHARED, PERMITS, VALUE, TIER
    Acquire,
    /// WAIT, OWNER, SESSION, SHARED, TIER
    MAcquire,
    /// TIER
    TierAlone,
}

impl<'a> Options<'a> {
    pub(super) fn parse<A: AsRef<[u8]>>(words: &'a [A], known: Known) -> Result<Options<'a>, Refusal> {
        let mut options = Options::default();
        let mut words = words.iter().map(AsRef::as_ref);
        while let Some(word) = words.next() {
            if word.eq_ignore_ascii_case(b"TIER") {
                let value = value_of("TIER", options.tier.is_some(), words.next())?;
                options.tier = Some(Tier::parse(value).ok_or_else(|| errors::unknown_tier(value))?);
            } else if known == Known::TierAlone {
                return Err(errors::unknown_option(word));
            } else if word.eq_ignore_ascii_case(b"WAIT") {
                let value = value_of("WAIT", options.wait_ms.is_some(), words.next())?;
                options.wait_ms = Some(wait_ms(value)?);
            } else if word.eq_ignore_ascii_case(b"OWNER") {
                let value = value_of("OWNER", options.owner.is_some(), words.next())?;
                options.owner = Some(owner(value)?);
            } else if word.eq_ignore_ascii_case(b"SESSION") {
                options.session = Some(value_of("SESSION", options.session.is_some(), words.next())?);
            } else if word.eq_ignore_ascii_case(b"SHARED") {
                options.set_kind("SHARED", LockKind::Shared)?;
            } else if known == Known::MAcquire {
                return Err(errors::unknown_option(word));
            } else if word.eq_ignore_ascii_case(b"PERMITS") {
                let (count, of, max) = (words.next(), words.next(), words.next());
                options.set_kind("PERMITS", permits(count, of, max)?)?;
            } else if word.eq_ignore_ascii_case(b"VALUE") {
                options.value = Some(value(value_of("VALUE", options.value.is_some(), words.next())?)?);
            } else {
                return Err(errors::unknown_option(word));
            }
        }
        Ok(options)
    }

    fn set_kind(&mut self, word: &str, kind: LockKind) -> Result<(), Refusal> {
        if self.kind == LockKind::Exclusive {
            self.kind = kind;
            return Ok(());
        }
        match self.kind.mode() == kind.mode() {
            true => Err(errors::repeated_option(word)),
            false => Err(errors::two_kinds()),
        }
    }

    pub(super) fn check_ttl(&self, ttl_ms: u64) -> Result<(), Refusal> {
        if ttl_ms == 0 && self.session.is_none() {
            return Err(errors::ttl_zero_needs_session());
        }
        Ok(())
    }
}

pub(super) fn value_of<'a>(name: &str, seen: bool, value: Option<&'a [u8]>) -> Result<&'a [u8], Refusal> {
    if seen {
        return Err(errors::repeated_option(name));
    }
    value.ok_or_else(|| errors::missing_value(name))
}

fn owner(word: &[u8]) -> Result<&[u8], Refusal> {
    if word.is_empty() || word.len() > OWNER_BYTES_MAX {
        return Err(errors::owner_length());
    }
    Ok(word)
}

fn permits(count: Option<&[u8]>, of: Option<&[u8]>, max: Option<&[u8]>) -> Result<LockKind, Refusal> {
    let (Some(count), Some(of), Some(max)) = (count, of, max) else {
        return Err(errors::permits_syntax());
    };
    if !of.eq_ignore_ascii_case(b"OF") {
        return Err(errors::permits_syntax());
    }
    let number = |word: &[u8]| {
        let in_range = decimal(word).filter(|value| (1..=u64::from(PERMITS_MAX)).contains(value));
        in_range.map(|value| value as u32).ok_or_else(errors::permits_range)
    };
    let (count, max) = (number(count)?, number(max)?);
    if count > max {
        return Err(errors::permits_range());
    }
    Ok(LockKind::Permits { count, max })
}

fn value(word: &[u8]) -> Result<&[u8], Refusal> {
    if word.len() > VALUE_BYTES_MAX {
        return Err(errors::value_length());
    }
    Ok(word)
}

pub(super) fn wait_ms(word: &[u8]) -> Result<u64, Refusal> {
    match decimal(word) {
        Some(value) if value <= WAIT_MS_MAX => Ok(value),
        Some(_) | None => Err(errors::wait_range()),
    }
}
