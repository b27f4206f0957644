//! The TLS configuration in force, shared by all listeners, and the task that follows the files.
//!
//! The files are looked at every two seconds, and at once on SIGHUP. A pair that cannot be used is logged and the old one stays; a
//! certificate and its key that are replaced one after the other are therefore taken once both are in place.

use crate::tls::files::{Stamps, TlsFiles};
use crate::tls::handshakes::{Done, Handshakes};
use rustls::ServerConfig;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::signal::unix::{signal, SignalKind};
use tokio_rustls::server::TlsStream;
use tokio_rustls::TlsAcceptor;

const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a client may take for its handshake.
pub const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Encrypted bytes that one connection buffers before its writes wait.
pub const BUFFERED_BYTES_MAX: usize = 32 * 1024;

#[derive(Debug)]
pub struct Acceptor {
    files: TlsFiles,
    current: RwLock<Arc<ServerConfig>>,
    handshakes: Handshakes,
}

impl Acceptor {
    /// Reads the files, and follows them from now on. The error is one line.
    pub fn start(files: TlsFiles) -> Result<Arc<Acceptor>, String> {
        let seen = files.stamps();
        let current = RwLock::new(Arc::new(files.load()?));
        let handshakes = Handshakes::start().map_err(|error| format!("cannot start a thread: {error}"))?;
        let acceptor = Arc::new(Acceptor { files, current, handshakes });
        let hangup =
            signal(SignalKind::hangup()).map_err(|error| format!("cannot listen for SIGHUP: {error}"))?;
        tokio::spawn(follow(Arc::downgrade(&acceptor), seen, hangup));
        Ok(acceptor)
    }

    /// The handshake of one client, within [`HANDSHAKE_WITHIN`]. Those of one `network` share turns.
    pub async fn accept(&self, stream: TcpStream, network: IpAddr) -> io::Result<Box<TlsStream<TcpStream>>> {
        match tokio::time::timeout(HANDSHAKE_WITHIN, self.hand_over(stream, network)).await {
            Ok(stream) => stream.map(Box::new),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    async fn hand_over(&self, stream: TcpStream, network: IpAddr) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        let Done { socket, connection } = self.handshakes.run(stream, network, Arc::clone(&config)).await?;
        let socket = TcpStream::from_std(socket)?;
        // tokio-rustls makes streams only by a handshake: it is given the connection whose handshake is done.
        TlsAcceptor::from(config).accept_with(socket, |fresh| *fresh = connection).await
    }

    fn replace(&self, config: ServerConfig) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }
}

/// Reads the files again whenever they have changed, until nobody listens any more.
async fn follow(
    acceptor: std::sync::Weak<Acceptor>,
    mut seen: Stamps,
    mut hangup: tokio::signal::unix::Signal,
) {
    loop {
        let asked = tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => false,
            received = hangup.recv() => received.is_some(),
        };
        let Some(acceptor) = acceptor.upgrade() else { return };
        let files = acceptor.files.clone();
        let before = seen.clone();
        let look = tokio::task::spawn_blocking(move || {
            // Before they are read: a change in between is seen the next time.
            let stamps = files.stamps();
            let loaded = (asked || stamps != before).then(|| files.load());
            (stamps, loaded)
        });
        let Ok((stamps, loaded)) = look.await else { continue };
        seen = stamps;
        match loaded {
            None => {}
            Some(Ok(config)) => {
                acceptor.replace(config);
                tracing::info!("TLS certificates were read again; new connections use them");
            }
            Some(Err(error)) => {
                tracing::warn!(error, "TLS certificates have changed and cannot be used; the old ones stay");
            }
        }
    }
}
