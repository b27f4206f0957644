//! Mutual TLS between peers: every node has a certificate of one authority and verifies the other's, whoever dials.
//!
//! The files are read again when they change; a set that cannot be used is logged, and the old one stays. Connections that are open
//! go on with the certificates they began with.

use crate::tls::files::{self, ClientAuth, Stamps, TlsFiles};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone)]
struct Configs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// The certificates in force.
pub struct PeerTls {
    files: TlsFiles,
    current: Mutex<(Stamps, Configs)>,
}

impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl PeerTls {
    /// Reads the files. The error is one line.
    pub fn open(certificate: &Path, key: &Path, ca: &Path) -> Result<PeerTls, String> {
        let own = |path: &Path| -> PathBuf { path.to_path_buf() };
        let files = TlsFiles {
            certificate: own(certificate),
            key: own(key),
            client_ca: Some(own(ca)),
            client_auth: ClientAuth::Required,
        };
        let stamps = files.stamps();
        let configs = load(&files, ca)?;
        Ok(PeerTls { files, current: Mutex::new((stamps, configs)) })
    }

    /// Reads the files again where they have changed. Answers whether new ones are in force.
    pub(super) fn reread(&self) -> Result<bool, String> {
        let stamps = self.files.stamps();
        if self.lock().0 == stamps {
            return Ok(false);
        }
        let ca = self.files.client_ca.as_deref().expect("peers have an authority");
        let loaded = load(&self.files, ca);
        let mut current = self.lock();
        // What was refused is looked at again once it has changed.
        current.0 = stamps;
        current.1 = loaded?;
        Ok(true)
    }

    /// `address`: host:port that was dialled; the certificate must be for this host.
    pub(super) fn dial(&self, address: &str) -> io::Result<Connection> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let config = self.lock().1.client.clone();
        Ok(Connection::Client(ClientConnection::new(config, name).map_err(io::Error::other)?))
    }

    pub(super) fn accept(&self) -> io::Result<Connection> {
        let config = self.lock().1.server.clone();
        Ok(Connection::Server(ServerConnection::new(config).map_err(io::Error::other)?))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Stamps, Configs)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn load(files: &TlsFiles, ca: &Path) -> Result<Configs, String> {
    let of_peers = |error: String| format!("TLS of peers: {error}");
    let mut server = files.load().map_err(of_peers)?;
    // Nothing is sent that nobody asked for: connections last, and none is resumed.
    server.send_tls13_tickets = 0;
    let (chain, key) = files.own_certificate().map_err(of_peers)?;
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| of_peers(error.to_string()))?
        .with_root_certificates(files::authorities("peer-tls-ca", ca).map_err(of_peers)?)
        .with_client_auth_cert(chain, key)
        .map_err(|error| of_peers(error.to_string()))?;
    Ok(Configs { server: Arc::new(server), client: Arc::new(client) })
}
