//! One lock: its record and the transitions of a grant, and the high-water marks of `FENCE.*`.

pub(crate) mod acquire;
mod expire;
pub(crate) mod lock;
pub mod marks;
pub(crate) mod multi;
mod release;
mod renew;
