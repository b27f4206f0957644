//! `LOCK.MRELEASE count resource fence … [TIER tier]`

use super::errors;
use super::macquire;
use super::words::{self, Known, Options};
use crate::reply::Refusal;
use crate::types::{Fence, Tier};
use smallvec::SmallVec;

pub const NAME: &str = "LOCK.MRELEASE";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MRelease<'a> {
    pub pairs: SmallVec<[(&'a [u8], Fence); 4]>,
    pub tier: Option<Tier>,
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<MRelease<'_>, Refusal> {
    let [_, count, rest @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    if rest.len() < 2 {
        return Err(errors::wrong_arity(NAME));
    }
    let count = macquire::count(count.as_ref())?;
    if rest.len() < 2 * count {
        return Err(errors::multi_count_mismatch());
    }
    let (words, options) = rest.split_at(2 * count);
    let mut pairs = SmallVec::with_capacity(count);
    for pair in words.chunks_exact(2) {
        pairs.push((words::resource(pair[0].as_ref())?, words::fence(pair[1].as_ref())?));
    }
    let tier = Options::parse(options, Known::TierAlone)?.tier;
    Ok(MRelease { pairs, tier })
}
