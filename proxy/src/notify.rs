//! Tells systemd how far the node is (`Type=notify`, sd_notify(3)): it serves, it stops. Nothing where nobody asked for it.
//!
//! One datagram to the socket that `$NOTIFY_SOCKET` names, a path or, behind an `@`, a name of the abstract namespace. A service manager
//! that does not listen is no reason not to serve: failures are logged.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const VARIABLE: &str = "NOTIFY_SOCKET";

/// The node serves.
pub fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}\n"));
}

/// A signal has asked for the end.
pub fn stopping() {
    tell("STOPPING=1\nSTATUS=handing leadership over\n");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os(VARIABLE).filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(socket.as_bytes(), state) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

fn send(socket: &[u8], state: &str) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    let datagram = UnixDatagram::unbound()?;
    // The manager's queue may be full: a node must not hang on it.
    datagram.set_nonblocking(true)?;
    datagram.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
