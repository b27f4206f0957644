//! One lock: its record, its holders, the transitions of a grant, and the high-water marks of `FENCE.*`.

pub(crate) mod acquire;
pub(crate) mod convert;
pub(crate) mod ending;
mod expire;
pub(crate) mod holder;
pub(crate) mod lock;
pub mod marks;
pub(crate) mod multi;
mod release;
mod renew;
pub(crate) mod several;
