//! `LOCK.EXPLAIN resource [TIER tier]`

use super::errors;
use super::words::{self, Known, Options};
use crate::reply::Refusal;
use crate::types::Tier;

pub const NAME: &str = "LOCK.EXPLAIN";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explain<'a> {
    pub resource: &'a [u8],
    pub tier: Option<Tier>,
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<Explain<'_>, Refusal> {
    let [_, resource, options @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    let resource = words::resource(resource.as_ref())?;
    let tier = Options::parse(options, Known::TierAlone)?.tier;
    Ok(Explain { resource, tier })
}
