//! `LOCK.RENEW resource fence ttl [TIER tier]`

use super::errors;
use super::words::{self, Known, Options};
use crate::reply::Refusal;
use crate::types::{Fence, Tier};

pub const NAME: &str = "LOCK.RENEW";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew<'a> {
    pub resource: &'a [u8],
    pub fence: Fence,
    pub ttl_ms: u64,
    pub tier: Option<Tier>,
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<Renew<'_>, Refusal> {
    let [_, resource, fence, ttl, options @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    let resource = words::resource(resource.as_ref())?;
    let fence = words::fence(fence.as_ref())?;
    let ttl_ms = words::ttl_ms(ttl.as_ref())?;
    let tier = Options::parse(options, Known::TierAlone)?.tier;
    Ok(Renew { resource, fence, ttl_ms, tier })
}
