//! The peers: what protects the traffic between nodes, and that there is none beyond this machine without it.

use super::{Config, Refused};
use crate::cli::Settings;
use crate::secret;
use crate::transport::secret::SecretFile;
use crate::transport::security::{is_loopback, PeerSecurity};
use crate::transport::tls::PeerTls;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of mutual TLS between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

/// `None`: no TLS between nodes.
pub(super) fn tls_files(settings: &Settings) -> Result<Option<PeerTlsFiles>, Refused> {
    match (&settings.peer_tls_cert, &settings.peer_tls_key, &settings.peer_tls_ca) {
        (None, None, None) => Ok(None),
        (Some(_), Some(_), Some(_)) if settings.peer_secret_file.is_some() => {
            Err("peer-secret-file and peer-tls-cert: use one of them".into())
        }
        (Some(certificate), Some(key), Some(ca)) => {
            Ok(Some(PeerTlsFiles { certificate: certificate.clone(), key: key.clone(), ca: ca.clone() }))
        }
        _ => Err("peer-tls-cert, peer-tls-key and peer-tls-ca: give all three".into()),
    }
}

impl Config {
    /// The address of a peer, or for peers, that is not on this machine. Whatever protected-mode says.
    fn peer_beyond_loopback(&self) -> Option<String> {
        let listen = self.peer_listen.filter(|address| !address.ip().is_loopback());
        let listen = listen.map(|address| format!("peer-listen {address}"));
        let advertise = self.advertise.as_ref().filter(|address| !is_loopback(address));
        let advertise = advertise.map(|address| format!("advertise {address}"));
        let member = self.cluster.iter().find(|(_, address)| !is_loopback(address));
        let member = member.map(|(id, address)| format!("cluster member {id}={address}"));
        listen.or(advertise).or(member)
    }

    pub(super) fn check_peers(&self) -> Result<(), Refused> {
        match self.peer_beyond_loopback() {
            Some(what) if self.peer_secret_file.is_none() && self.peer_tls.is_none() => Err(format!(
                "{what} is beyond this machine: traffic between nodes needs --peer-secret-file FILE, the same on every \
                 node (make one with: openssl rand -hex 32), or --peer-tls-cert, --peer-tls-key and --peer-tls-ca; --protected-mode no does not lift this"
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// What protects the traffic between nodes. Reads the files.
    pub fn peer_security(&self) -> Result<PeerSecurity, Refused> {
        if let Some(PeerTlsFiles { certificate, key, ca }) = &self.peer_tls {
            self.check_private("peer-tls-key", key)?;
            return Ok(PeerSecurity::Tls(Arc::new(PeerTls::open(certificate, key, ca)?)));
        }
        let Some(path) = &self.peer_secret_file else { return Ok(PeerSecurity::Plain) };
        let file = SecretFile::open(path)?;
        self.check_private("peer-secret-file", path)?;
        Ok(PeerSecurity::Secret(Arc::new(file)))
    }

    fn check_private(&self, name: &str, path: &Path) -> Result<(), Refused> {
        if !secret::is_open_to_others(path) {
            return Ok(());
        }
        let line = format!("{name} {} can be read by every user: chmod 600 it", path.display());
        if self.peer_beyond_loopback().is_some() {
            return Err(line);
        }
        tracing::warn!("{line}");
        Ok(())
    }
}
