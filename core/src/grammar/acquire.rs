//! `LOCK.ACQUIRE resource ttl [WAIT ms] [OWNER owner] [SESSION id] [SHARED | PERMITS n OF max] [VALUE bytes] [TIER tier]`

use super::errors;
use super::words::{self, Known, Options};
use crate::reply::Refusal;

pub const NAME: &str = "LOCK.ACQUIRE";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire<'a> {
    pub resource: &'a [u8],
    /// 0 only with a session: as long as it lives.
    pub ttl_ms: u64,
    pub options: Options<'a>,
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<Acquire<'_>, Refusal> {
    let [_, resource, ttl, options @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    let resource = words::resource(resource.as_ref())?;
    let ttl_ms = words::ttl_ms_or_zero(ttl.as_ref())?;
    let options = Options::parse(options, Known::Acquire)?;
    options.check_ttl(ttl_ms)?;
    Ok(Acquire { resource, ttl_ms, options })
}
