//! The TLS settings, for clients and towards the upstream Redis: which files, and who shows a certificate.

use super::Refused;
use crate::cli::Settings;
use crate::redis_place::RedisPlace;
use crate::tls::files::{ClientAuth, TlsFiles};
use crate::tls::upstream::UpstreamTls;

/// TLS towards the upstream Redis. `None`: none.
pub(super) fn resolve_upstream(settings: &Settings) -> Result<Option<UpstreamTls>, Refused> {
    let address = settings.redis.as_deref().unwrap_or_default();
    let is_wanted = settings.redis_tls == Some(true) || RedisPlace::asks_for_tls(address);
    let files = [
        ("redis-tls-ca", &settings.redis_tls_ca),
        ("redis-tls-cert", &settings.redis_tls_cert),
        ("redis-tls-key", &settings.redis_tls_key),
    ];
    if !is_wanted {
        return match files.into_iter().find(|(_, file)| file.is_some()) {
            Some((name, _)) => {
                Err(format!("{name} without redis-tls: say --redis-tls or --redis rediss://host:port"))
            }
            None => Ok(None),
        };
    }
    if address.is_empty() {
        return Err("redis-tls without redis: name the upstream Redis".into());
    }
    let Some(ca) = settings.redis_tls_ca.clone() else {
        return Err(
            "TLS towards the upstream Redis needs redis-tls-ca: the authority of its certificate".into()
        );
    };
    let client = match (&settings.redis_tls_cert, &settings.redis_tls_key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        (Some(_), None) | (None, Some(_)) => {
            return Err("redis-tls-cert and redis-tls-key belong together: give both".into());
        }
    };
    let place = RedisPlace::parse(address)?;
    let server_name = settings.redis_tls_name.clone().or_else(|| place.host().map(str::to_owned));
    let Some(server_name) = server_name else {
        return Err("TLS with Sentinels needs redis-tls-name: the name in the certificates of every Redis and Sentinel".into());
    };
    Ok(Some(UpstreamTls { ca, client, server_name }))
}

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
