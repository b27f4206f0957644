//! TLS towards the upstream Redis: whom we trust, which name we expect, and the certificate we show.
//!
//! The files are read for every connection that is opened: a replaced certificate is in use with the next one, without a restart.

use crate::tls::files;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::ClientConfig;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::TlsConnector;

/// The settings of TLS towards the upstream Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// The authority of its certificate.
    pub ca: PathBuf,
    /// Our certificate and its key, where it wants one.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name in its certificate, which is also sent (SNI).
    pub server_name: String,
}

#[derive(Debug)]
pub struct Connector {
    settings: UpstreamTls,
    name: ServerName<'static>,
}

/// What a client needs for TLS: the authority of the server's certificate, and our own certificate where the server wants one.
/// `options` is how the names of the options begin, for errors.
pub fn client_config(
    options: &str,
    ca: &Path,
    client: Option<(&Path, &Path)>,
) -> Result<ClientConfig, String> {
    let roots = files::authorities(&format!("{options}-ca"), ca)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = client else { return Ok(builder.with_no_client_auth()) };
    let chain = files::certificates(&format!("{options}-cert"), certificate)?;
    let key = files::private_key(&format!("{options}-key"), key)?;
    builder.with_client_auth_cert(chain, key).map_err(|error| format!("{options}-cert: {error}"))
}

impl Connector {
    /// Reads the files once, so that errors in them are reported at the start. The error is one line.
    pub fn new(settings: UpstreamTls) -> Result<Connector, String> {
        let name = ServerName::try_from(settings.server_name.clone())
            .map_err(|_| format!("redis-tls-name '{}' is no host name or address", settings.server_name))?;
        let connector = Connector { settings, name };
        connector.config()?;
        Ok(connector)
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let client = self.settings.client.as_ref();
        client_config(
            "redis-tls",
            &self.settings.ca,
            client.map(|(cert, key)| (cert.as_path(), key.as_path())),
        )
    }

    pub async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        // Small files, and connections to the upstream are few: no thread of its own is worth it.
        let config = self.config().map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(config)).connect(self.name.clone(), stream).await
    }
}
