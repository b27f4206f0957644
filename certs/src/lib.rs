//! A certificate authority in a few lines, for tests and for a first try of TLS (`make certs`).
//!
//! Not for production: the authority's key lies beside the certificates it signs, and nothing can be revoked.

#![forbid(unsafe_code)]

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
    /// A node of a cluster: it dials others and is dialled by them.
    Peer,
}

/// A certificate and its private key, both as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Pair {
    /// Writes `<name>.crt` and `<name>.key` (mode 0600) into a directory, each in one step.
    pub fn write(&self, directory: &Path, name: &str) -> io::Result<()> {
        replace(&directory.join(format!("{name}.key")), &self.key, 0o600)?;
        replace(&directory.join(format!("{name}.crt")), &self.certificate, 0o644)
    }
}

/// A self-signed authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pair: Pair,
}

impl Authority {
    pub fn new(name: &str) -> Result<Authority, rcgen::Error> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        let pair = Pair { certificate: certificate.pem(), key: key.serialize_pem() };
        Ok(Authority { issuer: Issuer::new(params, key), pair })
    }

    /// The authority's own certificate and key.
    #[must_use]
    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// A certificate with this common name, valid for these host names and addresses.
    pub fn issue(&self, common_name: &str, hosts: &[&str], usage: Usage) -> Result<Pair, rcgen::Error> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_string()).collect();
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match usage {
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Peer => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// Writes a file under another name and renames it: a reader sees the old or the new one.
fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    // What a broken run left behind may have another mode.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}
