//! `LOCK.RELEASE resource fence [TIER tier]`

use super::errors;
use super::words::{self, Known, Options};
use crate::reply::Refusal;
use crate::types::{Fence, Tier};

pub const NAME: &str = "LOCK.RELEASE";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release<'a> {
    pub resource: &'a [u8],
    pub fence: Fence,
    pub tier: Option<Tier>,
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<Release<'_>, Refusal> {
    let [_, resource, fence, options @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    let resource = words::resource(resource.as_ref())?;
    let fence = words::fence(fence.as_ref())?;
    let tier = Options::parse(options, Known::TierAlone)?.tier;
    Ok(Release { resource, fence, tier })
}
