//! A lock as text, for another process: base64 of a JSON object, the same in all clients of Redfence.

use crate::error::Error;
use crate::lease::Lease;
use crate::protocol::{whole_ms, Kind, Tier};
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use base64::Engine;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A lock on its way to another process. Whoever has it can renew and release the lock: treat it as a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The text to send.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn fields(&self) -> Result<Fields, Error> {
        let invalid = || Error::invalid("this is not a token of a lock");
        let json = URL_SAFE_NO_PAD.decode(self.0.trim_end_matches('=')).map_err(|_| invalid())?;
        let raw: Raw = serde_json::from_slice(&json).map_err(|_| invalid())?;
        if raw.v != 1 {
            return Err(Error::invalid(format!(
                "this token is of version {}, and this client knows 1",
                raw.v
            )));
        }
        let names: Result<Vec<_>, _> = raw.names.iter().map(|name| STANDARD.decode(name)).collect();
        let names = names.map_err(|_| invalid())?;
        if names.is_empty() || names.len() != raw.fences.len() || raw.ttl_ms == 0 {
            return Err(invalid());
        }
        Ok(Fields {
            parts: names.into_iter().zip(raw.fences).collect(),
            is_multi: raw.multi,
            owner: raw.owner,
            ttl: Duration::from_millis(raw.ttl_ms),
            kind: match raw.kind.as_str() {
                "exclusive" => Kind::Exclusive,
                "shared" => Kind::Shared,
                "permits" => Kind::Permits { count: 1, of: 1 },
                _ => return Err(invalid()),
            },
            tier: match raw.tier.map(|tier| tier.to_ascii_uppercase()).as_deref() {
                None => None,
                Some("CORRECTNESS") => Some(Tier::Correctness),
                Some("EFFICIENCY") => Some(Tier::Efficiency),
                Some(_) => return Err(invalid()),
            },
        })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Token, Error> {
        let token = Token(text.trim().to_owned());
        token.fields()?;
        Ok(token)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Raw {
    v: u32,
    names: Vec<String>,
    multi: bool,
    fences: Vec<i64>,
    owner: String,
    ttl_ms: u64,
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) parts: Vec<(Vec<u8>, i64)>,
    pub(crate) is_multi: bool,
    pub(crate) owner: String,
    pub(crate) ttl: Duration,
    pub(crate) kind: Kind,
    pub(crate) tier: Option<Tier>,
}

impl Fields {
    pub(crate) fn of(lease: &Lease) -> Fields {
        Fields {
            parts: lease.parts.iter().map(|part| (part.name.clone(), part.fence())).collect(),
            is_multi: lease.parts.len() > 1,
            owner: lease.owner.clone(),
            ttl: lease.ttl,
            kind: lease.kind(),
            tier: lease.tier,
        }
    }

    pub(crate) fn into_token(self) -> Token {
        let raw = Raw {
            v: 1,
            names: self.parts.iter().map(|(name, _)| STANDARD.encode(name)).collect(),
            multi: self.is_multi,
            fences: self.parts.iter().map(|(_, fence)| *fence).collect(),
            owner: self.owner,
            ttl_ms: whole_ms(self.ttl),
            kind: match self.kind {
                Kind::Exclusive => "exclusive",
                Kind::Shared => "shared",
                Kind::Permits { .. } => "permits",
            }
            .to_owned(),
            tier: self.tier.map(|tier| tier.word().to_owned()),
        };
        // Numbers and text: there is nothing that JSON could not hold.
        Token(URL_SAFE_NO_PAD.encode(serde_json::to_vec(&raw).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        Fields {
            parts: vec![(b"a\xff".to_vec(), 7), (b"b".to_vec(), 8)],
            is_multi: true,
            owner: "o".into(),
            ttl: Duration::from_millis(1500),
            kind: Kind::Exclusive,
            tier: Some(Tier::Correctness),
        }
    }

    #[test]
    fn a_token_comes_back_as_it_went() {
        let token = fields().into_token();
        let read: Token = token.as_str().parse().unwrap();
        assert_eq!(read.fields().unwrap(), fields());
        assert!(!format!("{token:?}").contains(token.as_str()));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let json = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let newer = r#"{"v":2,"names":["YQ=="],"multi":false,"fences":[7],"owner":"o","ttl_ms":1,"kind":"exclusive"}"#;
        let empty = newer.replace("\"v\":2", "\"v\":1").replace("[\"YQ==\"]", "[]");
        for text in ["", "%%%", &json("{}"), &json(newer), &json(&empty)] {
            assert!(matches!(text.parse::<Token>(), Err(Error::Invalid { .. })), "{text}");
        }
    }
}
