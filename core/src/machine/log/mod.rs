//! What an entry of the log holds, and its bytes.

pub(crate) mod bytes;
pub(crate) mod codec;
pub mod command;
pub mod conditional;
pub mod effects;
pub(crate) mod entry;
pub(crate) mod fields;
pub(crate) mod reply_codec;
pub mod request;
pub(crate) mod script_use;
