//! RESP, the Redis wire protocol: used by the server and by the upstream connections, knows neither.
//!
//! # Layout
//!
//! - [`request`], [`inline`]: bytes from a client to the words of one command; [`canonical`]: a quick look at the usual frames
//! - [`encode`]: replies to bytes, in the client's protocol version
//! - [`replies`]: where a reply of a Redis ends

pub mod canonical;
pub mod encode;
pub mod inline;
pub mod replies;
pub mod request;
