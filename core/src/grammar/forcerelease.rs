//! `LOCK.FORCERELEASE resource [FENCE fence] [TIER tier]`. With a fence, of the one holder who has it.

use super::errors;
use super::words::{self, value_of};
use crate::reply::Refusal;
use crate::types::{Fence, Tier};

pub const NAME: &str = "LOCK.FORCERELEASE";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForceRelease<'a> {
    pub resource: &'a [u8],
    pub fence: Option<Fence>,
    pub tier: Option<Tier>,
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<ForceRelease<'_>, Refusal> {
    let [_, resource, options @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    let resource = words::resource(resource.as_ref())?;
    let (mut fence, mut tier) = (None, None);
    let mut options = options.iter().map(AsRef::as_ref);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"FENCE") {
            fence = Some(words::fence(value_of("FENCE", fence.is_some(), options.next())?)?);
        } else if word.eq_ignore_ascii_case(b"TIER") {
            let value = value_of("TIER", tier.is_some(), options.next())?;
            tier = Some(Tier::parse(value).ok_or_else(|| errors::unknown_tier(value))?);
        } else {
            return Err(errors::unknown_option(word));
        }
    }
    Ok(ForceRelease { resource, fence, tier })
}
