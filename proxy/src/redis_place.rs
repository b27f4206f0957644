//! Where the upstream Redis is: at a fixed address, or wherever the Sentinels say that the master is.

use std::fmt;

/// Sentinels that are asked, at most.
const SENTINELS_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisPlace {
    /// `host:port`. The name is resolved for every connection.
    Fixed(String),
    Sentinels {
        /// `host:port` each.
        addresses: Vec<String>,
        /// The name they know the master by.
        master: String,
    },
}

impl RedisPlace {
    /// Reads `host:port`, `redis://host:port`, `rediss://host:port` or `redis-sentinel://host:port,host:port/master` (`rediss-sentinel`
    /// for TLS). The error is one line, and shows no password.
    pub fn parse(text: &str) -> Result<RedisPlace, String> {
        if text.contains('@') {
            // Not shown: there is a password in it.
            return Err("redis has a user or a password in it: use host:port, with redis-username and redis-password-file".into());
        }
        match text.split_once("://") {
            None => Ok(RedisPlace::Fixed(address(text)?)),
            Some(("redis" | "rediss", rest)) => Ok(RedisPlace::Fixed(address(rest.trim_end_matches('/'))?)),
            Some(("redis-sentinel" | "rediss-sentinel", rest)) => sentinels(rest),
            Some(_) => Err(format!(
                "redis '{text}' is no address: use host:port, rediss://host:port for TLS, or redis-sentinel://host:port,host:port/master"
            )),
        }
    }

    /// Whether the text asks for TLS by its scheme.
    #[must_use]
    pub fn asks_for_tls(text: &str) -> bool {
        text.starts_with("rediss://") || text.starts_with("rediss-sentinel://")
    }

    /// The host whose name its certificate has. With Sentinels it may be any.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match self {
            RedisPlace::Fixed(address) => {
                address.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']))
            }
            RedisPlace::Sentinels { .. } => None,
        }
    }
}

impl fmt::Display for RedisPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedisPlace::Fixed(address) => f.write_str(address),
            RedisPlace::Sentinels { addresses, master } => {
                write!(f, "redis-sentinel://{}/{master}", addresses.join(","))
            }
        }
    }
}

fn address(text: &str) -> Result<String, String> {
    let port = text
        .rsplit_once(':')
        .and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok()).flatten());
    port.map(|_| text.to_owned()).ok_or_else(|| format!("redis '{text}' is no address: use host:port"))
}

fn sentinels(text: &str) -> Result<RedisPlace, String> {
    let wrong = || {
        format!("redis-sentinel://{text} names no master: use redis-sentinel://host:port,host:port/master")
    };
    let (list, master) = text.split_once('/').ok_or_else(wrong)?;
    if master.is_empty() || master.contains('/') {
        return Err(wrong());
    }
    let addresses = list.split(',').map(|part| address(part.trim())).collect::<Result<Vec<_>, _>>()?;
    if addresses.len() > SENTINELS_MAX {
        return Err(format!("redis names {} Sentinels; {SENTINELS_MAX} are enough", addresses.len()));
    }
    Ok(RedisPlace::Sentinels { addresses, master: master.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for (text, shown) in [
            ("db:6379", "db:6379"),
            ("redis://db:6379/", "db:6379"),
            ("rediss://[::1]:6379", "[::1]:6379"),
            ("redis-sentinel://a:1,b:2, c:3/main", "redis-sentinel://a:1,b:2,c:3/main"),
            ("rediss-sentinel://a:1/main", "redis-sentinel://a:1/main"),
        ] {
            assert_eq!(RedisPlace::parse(text).unwrap().to_string(), shown);
        }
        assert_eq!(RedisPlace::parse("rediss://[::1]:6379").unwrap().host(), Some("::1"));
        assert_eq!(RedisPlace::parse("redis-sentinel://a:1/m").unwrap().host(), None);
    }

    #[test]
    fn what_is_no_place_is_refused_without_its_password() {
        let many = format!("redis-sentinel://{}/main", vec!["a:1"; 17].join(","));
        for text in [
            "",
            "db",
            ":1",
            "db:x",
            "http://db:1",
            "redis-sentinel://a:1",
            "redis-sentinel://a:1/",
            "redis-sentinel://a/main",
            "redis-sentinel:///main",
            "redis-sentinel://a:1/b/c",
            &many,
        ] {
            assert!(RedisPlace::parse(text).is_err(), "{text}");
        }
        assert!(!RedisPlace::parse("redis://:secret@db:1").unwrap_err().contains("secret"));
    }
}
