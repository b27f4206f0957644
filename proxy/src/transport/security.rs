//! What protects the traffic between peers, and who may be reached without it.

use super::secret::SecretFile;
use super::tls::PeerTls;
use std::net::IpAddr;
use std::sync::Arc;

/// How peers prove who they are.
#[derive(Clone, Debug, Default)]
pub enum PeerSecurity {
    /// In clear, and whoever dials is believed: loopback alone.
    #[default]
    Plain,
    /// Everything is encrypted, with keys that only holders of the secret can agree on.
    Secret(Arc<SecretFile>),
    /// Everything goes over TLS, and both sides show a certificate of one authority.
    Tls(Arc<PeerTls>),
}

impl PeerSecurity {
    #[must_use]
    pub fn is_plain(&self) -> bool {
        match self {
            PeerSecurity::Plain => true,
            PeerSecurity::Secret(_) | PeerSecurity::Tls(_) => false,
        }
    }
}

/// Whether an address (host:port) is on this machine for certain.
#[must_use]
pub fn is_loopback(address: &str) -> bool {
    let Some((host, _)) = address.rsplit_once(':') else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_are_loopback() {
        for address in ["127.0.0.1:1", "127.9.9.9:1", "localhost:7380", "[::1]:1"] {
            assert!(is_loopback(address), "{address}");
        }
        for address in ["10.0.0.1:1", "0.0.0.0:1", "node1:7380", "[::]:1", "127.0.0.1", "localhost.example:1"]
        {
            assert!(!is_loopback(address), "{address}");
        }
    }
}
