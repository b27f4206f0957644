//! The files of TLS: what they are, and a server configuration from what they hold.
//!
//! Everything is checked when it is read: a key that does not belong to its certificate, an empty file or an authority that is
//! none is an error of one line, which names the file.

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// A file of certificates or a key. A larger one is none.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// Not asked for.
    #[default]
    Off,
    /// Verified where it is shown.
    Optional,
    Required,
}

/// The files of one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authority of client certificates, unless [`ClientAuth::Off`].
    pub client_ca: Option<PathBuf>,
    pub client_auth: ClientAuth,
}

/// What tells one version of a file from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

/// The versions of all files; `None` for one that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps([Option<FileStamp>; 3]);

impl TlsFiles {
    /// What the files look like now. Blocks for as long as the file system does.
    #[must_use]
    pub fn stamps(&self) -> Stamps {
        let stamp = |path: &Path| {
            let meta = std::fs::metadata(path).ok()?;
            Some(FileStamp { inode: meta.ino(), bytes: meta.len(), modified: meta.modified().ok() })
        };
        Stamps([stamp(&self.certificate), stamp(&self.key), self.client_ca.as_deref().and_then(stamp)])
    }

    /// The certificate with its chain, and its key.
    pub fn own_certificate(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
        let chain = certificates("tls-cert", &self.certificate)?;
        let key = private_key("tls-key", &self.key)?;
        Ok((chain, key))
    }

    /// Reads the files and puts a configuration together. The error is one line.
    pub fn load(&self) -> Result<ServerConfig, String> {
        let (chain, key) = self.own_certificate()?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?;
        let builder = match (&self.client_ca, self.client_auth) {
            (None, _) | (Some(_), ClientAuth::Off) => builder.with_no_client_auth(),
            (Some(path), auth @ (ClientAuth::Optional | ClientAuth::Required)) => {
                let roots = Arc::new(authorities("tls-client-ca", path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier =
                    if auth == ClientAuth::Optional { verifier.allow_unauthenticated() } else { verifier };
                let verifier =
                    verifier.build().map_err(|error| format!("tls-client-ca {}: {error}", path.display()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        builder.with_single_cert(chain, key).map_err(|error| {
            let (certificate, key) = (self.certificate.display(), self.key.display());
            if matches!(error, rustls::Error::InconsistentKeys(_)) {
                return format!("tls-key {key} does not belong to tls-cert {certificate}");
            }
            format!("tls-cert {certificate} with tls-key {key}: {error}")
        })
    }
}

/// The authorities in a file: each of them is trusted. `name` is the setting.
pub fn authorities(name: &str, path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(name, path)? {
        roots.add(certificate).map_err(|error| format!("{name} {}: {error}", path.display()))?;
    }
    Ok(roots)
}

pub(super) fn private_key(name: &str, path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = read(name, path)?;
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|error| format!("{name} {}: {}", path.display(), pem_problem(&error, "private key")))
}

pub(super) fn certificates(name: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(name, path)?;
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain
        .map_err(|error| format!("{name} {}: {}", path.display(), pem_problem(&error, "certificate")))?;
    if chain.is_empty() {
        return Err(format!("{name} {}: no certificate in it (PEM is expected)", path.display()));
    }
    Ok(chain)
}

fn pem_problem(error: &pem::Error, what: &str) -> String {
    if matches!(error, pem::Error::NoItemsFound) {
        return format!("no {what} in it (PEM is expected)");
    }
    // The library's text may quote bytes of the file, which may be a key.
    format!("no {what} that can be read (PEM is expected)")
}

fn read(name: &str, path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let file = std::fs::File::open(path).map_err(|error| format!("{name} {shown}: {error}"))?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("{name} {shown}: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{name} {shown}: more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}
