//! TLS for clients, and towards the upstream Redis: certificates from files, read again when they change, and a stream that is plain or encrypted.
//!
//! # Layout
//!
//! - [`files`]: which files, and what they hold: a certificate chain, its key, the authority of client certificates
//! - [`acceptor`]: the configuration in force, and the task that replaces it when the files change
//! - `handshakes`: the thread of the handshakes, and what it may cost
//! - [`stream`]: a client's stream, plain or TLS, without dynamic dispatch
//! - [`upstream`]: TLS towards the upstream Redis
//! - [`common_name`]: the name in a client certificate
//!
//! # Caveats
//!
//! There is no revocation of client certificates: replace the authority to lock somebody out. Connections that are open go on
//! with the certificates they began with.

pub mod acceptor;
pub mod common_name;
pub mod files;
mod handshakes;
pub mod stream;
pub mod upstream;
