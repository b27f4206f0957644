//! A client that speaks TLS, and certificates for a node.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use super::{command, show, PATIENCE};
use redfence_certs::{Authority, Pair, Usage};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// An authority, and a directory with the certificates it has signed.
pub struct Certificates {
    pub authority: Authority,
    pub folder: TempDir,
}

impl Certificates {
    pub fn new() -> Certificates {
        let folder = TempDir::with_prefix("redfence-certs-").unwrap();
        let certificates = Certificates { authority: Authority::new("test").unwrap(), folder };
        certificates.write_server(&certificates.authority);
        certificates.authority.pair().write(certificates.path(), "ca").unwrap();
        certificates
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts a server certificate of an authority in place.
    pub fn write_server(&self, authority: &Authority) {
        server_pair(authority).write(self.path(), "server").unwrap();
    }

    pub fn file(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }

    /// `--tls-cert` and `--tls-key` with what follows.
    pub fn flags(&self, more: &[&str]) -> Vec<String> {
        let own = ["--tls-cert".into(), self.file("server.crt"), "--tls-key".into(), self.file("server.key")];
        own.into_iter().chain(more.iter().map(|flag| (*flag).to_owned())).collect()
    }

    pub fn connect(&self, address: SocketAddr) -> TlsClient {
        TlsClient::connect(address, &client_config(&self.authority, None)).unwrap()
    }
}

pub fn server_pair(authority: &Authority) -> Pair {
    authority.issue("node", &["127.0.0.1", "localhost"], Usage::Server).unwrap()
}

/// Trusts one authority, and may have a certificate to show.
pub fn client_config(trusted: &Authority, own: Option<&Pair>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pair().certificate.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

pub struct TlsClient {
    pub stream: StreamOwned<ClientConnection, TcpStream>,
    received: Vec<u8>,
}

impl TlsClient {
    pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<TlsClient> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        Ok(TlsClient { stream: StreamOwned::new(tls, socket), received: Vec::new() })
    }

    pub fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.stream.write_all(&command(&words))?;
        self.stream.flush()
    }

    pub fn receive(&mut self) -> io::Result<String> {
        let mut piece = vec![0; 65_536];
        loop {
            let mut at = 0;
            if let Some(text) = show(&self.received, &mut at) {
                self.received.drain(..at);
                return Ok(text);
            }
            match self.stream.read(&mut piece)? {
                0 => return Ok("(closed)".into()),
                count => self.received.extend_from_slice(&piece[..count]),
            }
        }
    }

    pub fn try_ask(&mut self, words: &[&str]) -> io::Result<String> {
        self.send(words)?;
        self.receive()
    }

    #[track_caller]
    pub fn ask(&mut self, words: &[&str]) -> String {
        self.try_ask(words).unwrap_or_else(|error| panic!("no reply to {words:?}: {error}"))
    }

    /// Says goodbye as TLS does, and closes.
    pub fn close(mut self) {
        self.stream.conn.send_close_notify();
        // The other side may be gone already.
        let _ = self.stream.flush();
    }
}

/// The body of an HTTP answer.
pub fn http_get(stream: &mut (impl Read + Write), path: &str) -> io::Result<String> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")?;
    stream.flush()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}
