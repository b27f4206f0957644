//! Routes: which tier serves which names. A replicated setting; the proxy's router decides by it.
//!
//! As text, a list of `glob=tier` separated by blanks, first match first: `wallet:hot:*=efficiency wallet:*=correctness`. The
//! glob ends at the last `=`. An empty list is no routes.

use crate::glob;
use crate::grammar::errors::shown;
use crate::reply::Refusal;
use crate::types::{Tier, PATTERN_BYTES_MAX};

/// Routes of one cluster.
pub const ROUTES_MAX: usize = 256;
/// Bytes of the whole list as text.
pub const ROUTES_BYTES_MAX: usize = 16 * 1024;

/// Names that match `pattern` are served by `tier`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub pattern: Vec<u8>,
    pub tier: Tier,
}

impl Route {
    /// Reads `glob=tier`.
    pub fn parse(text: &[u8]) -> Result<Route, Refusal> {
        let wrong = || {
            Refusal::new(format!(
                "ERR route '{}' must be a glob of 1 to {PATTERN_BYTES_MAX} bytes without blanks, '=' and correctness or efficiency, \
                 for example wallet:*=correctness",
                shown(text)
            ))
        };
        let at = text.iter().rposition(|byte| *byte == b'=').ok_or_else(wrong)?;
        let (pattern, tier) = (&text[..at], Tier::parse(&text[at + 1..]).ok_or_else(wrong)?);
        let fits = (1..=PATTERN_BYTES_MAX).contains(&pattern.len());
        if !fits || pattern.iter().any(u8::is_ascii_whitespace) {
            return Err(wrong());
        }
        Ok(Route { pattern: pattern.to_vec(), tier })
    }
}

/// Routes and the tier of names that none of them matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    pub routes: Vec<Route>,
    pub default_tier: Tier,
}

impl Default for Routing {
    fn default() -> Routing {
        Routing { routes: Vec::new(), default_tier: Tier::Correctness }
    }
}

impl Routing {
    /// The tier of the first route that matches.
    #[must_use]
    pub fn route_of(&self, name: &[u8]) -> Option<Tier> {
        self.routes.iter().find(|route| glob::matches(&route.pattern, name)).map(|route| route.tier)
    }

    /// The tier of a lock of this name where the command names none.
    #[must_use]
    pub fn tier_of(&self, name: &[u8]) -> Tier {
        self.route_of(name).unwrap_or(self.default_tier)
    }
}

/// Reads a list of routes.
pub fn parse_list(text: &[u8]) -> Result<Vec<Route>, Refusal> {
    if text.len() > ROUTES_BYTES_MAX {
        return Err(Refusal::new(format!("ERR route must be at most {ROUTES_BYTES_MAX} bytes in all")));
    }
    let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let routes = words.map(Route::parse).collect::<Result<Vec<Route>, Refusal>>()?;
    check_count(&routes)?;
    Ok(routes)
}

/// Routes that were read one by one, as flags are.
pub fn check(routes: &[Route]) -> Result<(), Refusal> {
    parse_list(&list(routes)).map(|_| ())
}

fn check_count(routes: &[Route]) -> Result<(), Refusal> {
    if routes.len() > ROUTES_MAX {
        return Err(Refusal::new(format!(
            "ERR route must name at most {ROUTES_MAX} globs, not {}",
            routes.len()
        )));
    }
    Ok(())
}

/// The list as text: [`parse_list`] reads it back.
#[must_use]
pub fn list(routes: &[Route]) -> Vec<u8> {
    let mut text = Vec::new();
    for route in routes {
        if !text.is_empty() {
            text.push(b' ');
        }
        text.extend_from_slice(&route.pattern);
        text.push(b'=');
        text.extend_from_slice(tier_word(route.tier).as_bytes());
    }
    text
}

/// The tier as settings show it.
#[must_use]
pub fn tier_word(tier: Tier) -> &'static str {
    match tier {
        Tier::Efficiency => "efficiency",
        Tier::Correctness => "correctness",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_back_as_it_was_written() {
        let text = b"wallet:hot:*=efficiency a=b*=correctness";
        let routes = parse_list(text).unwrap();
        assert_eq!(routes.len(), 2);
        assert_eq!(routes[1].pattern, b"a=b*");
        assert_eq!(list(&routes), text);
        assert_eq!(parse_list(b"  "), Ok(vec![]));
        let routing = Routing { routes, default_tier: Tier::Correctness };
        assert_eq!(routing.route_of(b"wallet:hot:1"), Some(Tier::Efficiency));
        assert_eq!(routing.tier_of(b"x"), Tier::Correctness);
    }

    #[test]
    fn lists_are_bounded_in_bytes_and_count() {
        for wrong in [&b"wallet:*"[..], b"=correctness", b"a=fast", b"a="] {
            assert!(parse_list(wrong).is_err(), "{wrong:?}");
        }
        let many = |count: usize| "a=correctness ".repeat(count).into_bytes();
        assert!(parse_list(&many(ROUTES_MAX)).is_ok());
        assert!(parse_list(&many(ROUTES_MAX + 1)).is_err());
        let mut long = vec![b'x'; PATTERN_BYTES_MAX];
        long.extend_from_slice(b"=correctness");
        assert!(parse_list(&long).is_ok());
        long.insert(0, b'x');
        assert!(parse_list(&long).is_err());
        assert!(parse_list(&[b' '; ROUTES_BYTES_MAX + 1]).is_err());
    }
}
