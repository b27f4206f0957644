//! `LOCK.CONVERT resource fence SHARED | EXCLUSIVE [WAIT ms]`

use super::errors;
use super::words::{self, value_of};
use crate::reply::Refusal;
use crate::types::Fence;

pub const NAME: &str = "LOCK.CONVERT";

/// What a held lock becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertTo {
    Shared,
    Exclusive,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convert<'a> {
    pub resource: &'a [u8],
    pub fence: Fence,
    pub to: ConvertTo,
    pub wait_ms: Option<u64>,
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<Convert<'_>, Refusal> {
    let [_, resource, fence, to, options @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    let resource = words::resource(resource.as_ref())?;
    let fence = words::fence(fence.as_ref())?;
    let to = match to.as_ref() {
        word if word.eq_ignore_ascii_case(b"SHARED") => ConvertTo::Shared,
        word if word.eq_ignore_ascii_case(b"EXCLUSIVE") => ConvertTo::Exclusive,
        word => return Err(errors::convert_mode(word)),
    };
    let mut wait_ms = None;
    let mut options = options.iter().map(AsRef::as_ref);
    while let Some(word) = options.next() {
        if !word.eq_ignore_ascii_case(b"WAIT") {
            return Err(errors::unknown_option(word));
        }
        wait_ms = Some(words::wait_ms(value_of("WAIT", wait_ms.is_some(), options.next())?)?);
    }
    Ok(Convert { resource, fence, to, wait_ms })
}
