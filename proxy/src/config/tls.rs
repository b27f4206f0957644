//! The TLS settings: which files, and whether clients show a certificate.

use super::Refused;
use crate::cli::Settings;
use crate::tls::files::{ClientAuth, TlsFiles};

/// `None`: no TLS.
pub(super) fn resolve(settings: &Settings) -> Result<Option<TlsFiles>, Refused> {
    let (certificate, key) = match (&settings.tls_cert, &settings.tls_key) {
        (Some(certificate), Some(key)) => (certificate.clone(), key.clone()),
        (Some(_), None) => return Err("tls-cert without tls-key: give both".into()),
        (None, Some(_)) => return Err("tls-key without tls-cert: give both".into()),
        (None, None) => {
            let alone = [
                ("tls-client-ca", settings.tls_client_ca.is_some()),
                ("tls-client-auth", settings.tls_client_auth.is_some()),
                ("plain-listen", settings.plain_listen.is_some()),
            ];
            return match alone.into_iter().find(|(_, given)| *given) {
                Some((name, _)) => Err(format!("{name} without TLS: it needs tls-cert and tls-key")),
                None => Ok(None),
            };
        }
    };
    let client_auth = match (settings.tls_client_auth.as_deref(), &settings.tls_client_ca) {
        (None, None) | (Some("off"), _) => ClientAuth::Off,
        (Some("optional" | "required"), None) => {
            return Err(
                "tls-client-auth needs tls-client-ca: the authority that signs client certificates".into()
            );
        }
        (Some("optional"), Some(_)) => ClientAuth::Optional,
        (Some("required") | None, Some(_)) => ClientAuth::Required,
        (Some(other), _) => {
            return Err(format!("tls-client-auth is '{other}': use optional, required or off"));
        }
    };
    Ok(Some(TlsFiles { certificate, key, client_ca: settings.tls_client_ca.clone(), client_auth }))
}
