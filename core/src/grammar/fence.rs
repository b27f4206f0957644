//! `FENCE.CHECK resource fence`, `FENCE.GET resource`, `FENCE.CALL resource fence command [arg …]`. The high-water marks
//! are in the upstream Redis where there is one, else in Tier 2.

use super::errors;
use super::words;
use crate::reply::Refusal;
use crate::types::Fence;

pub const CHECK: &str = "FENCE.CHECK";
pub const GET: &str = "FENCE.GET";
pub const CALL: &str = "FENCE.CALL";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceCheck<'a> {
    pub resource: &'a [u8],
    pub fence: Fence,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceGet<'a> {
    pub resource: &'a [u8],
}

/// The guarded command itself is `argv[FenceCall::COMMAND_AT..]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceCall<'a> {
    pub resource: &'a [u8],
    pub fence: Fence,
}

impl FenceCall<'_> {
    pub const COMMAND_AT: usize = 3;
}

pub(super) fn parse_check<A: AsRef<[u8]>>(argv: &[A]) -> Result<FenceCheck<'_>, Refusal> {
    let [_, resource, fence] = argv else {
        return Err(errors::wrong_arity(CHECK));
    };
    Ok(FenceCheck { resource: words::resource(resource.as_ref())?, fence: words::fence(fence.as_ref())? })
}

pub(super) fn parse_get<A: AsRef<[u8]>>(argv: &[A]) -> Result<FenceGet<'_>, Refusal> {
    let [_, resource] = argv else {
        return Err(errors::wrong_arity(GET));
    };
    Ok(FenceGet { resource: words::resource(resource.as_ref())? })
}

pub(super) fn parse_call<A: AsRef<[u8]>>(argv: &[A]) -> Result<FenceCall<'_>, Refusal> {
    let [_, resource, fence, _command, ..] = argv else {
        return Err(errors::wrong_arity(CALL));
    };
    Ok(FenceCall { resource: words::resource(resource.as_ref())?, fence: words::fence(fence.as_ref())? })
}
