//! What an entry of the log holds, and its bytes.

pub(crate) mod bytes;
pub(crate) mod codec;
pub mod command;
pub mod conditional;
pub mod effects;
pub(crate) mod entry;
pub mod request;
