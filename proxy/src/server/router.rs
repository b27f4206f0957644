//! Which tier answers. The only place that decides it; nothing behind it asks again.
//!
//! First `TIER` in the command (a session means Tier 2), then the routes, first match first, then the default tier. A command
//! that names a weaker tier than its resource's route is refused; so is one whose resources belong to both.

use redfence_core::glob;
use redfence_core::grammar::errors::{shown, tier_sessions_here};
use redfence_core::grammar::Request;
use redfence_core::reply::Refusal;
use redfence_core::types::Tier;

/// `glob=tier` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub pattern: Vec<u8>,
    pub tier: Tier,
}

/// Who answers a `LOCK.*` or `FENCE.*` command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    Tier1,
    Tier2,
    /// The node itself, also without quorum.
    Node,
}

/// Who answers a plain Redis command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainDestination {
    /// The Redis behind the proxy, byte for byte.
    Redis,
    /// The Raft keyspace: keys of correctness routes, of the correctness listener, and all keys where there is no Redis.
    Keyspace,
}

/// By which door a client came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Door {
    #[default]
    Main,
    /// Every key and every lock belongs to Tier 2.
    Correctness,
    /// The same, for Redlock clients: to them this node is one of N masters.
    Redlock,
}

impl Door {
    /// Whether all that comes in here belongs to Tier 2.
    fn is_correctness(self) -> bool {
        match self {
            Door::Main => false,
            Door::Correctness | Door::Redlock => true,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Router {
    routes: Vec<Route>,
    default_tier: Tier,
    /// Whether a Redis stands behind the proxy.
    has_redis: bool,
    /// Asked for every command that passes.
    has_correctness_routes: bool,
}

impl Router {
    #[must_use]
    pub fn new(routes: Vec<Route>, default_tier: Tier, has_redis: bool) -> Router {
        let has_correctness_routes = routes.iter().any(|route| route.tier == Tier::Correctness);
        Router { routes, default_tier, has_redis, has_correctness_routes }
    }

    /// Whether any key at all may belong to the Raft keyspace while a Redis is there.
    #[must_use]
    pub fn has_correctness_routes(&self) -> bool {
        self.has_correctness_routes
    }

    #[must_use]
    pub fn has_redis(&self) -> bool {
        self.has_redis
    }

    /// Whether what comes in by this door may reach the Redis behind.
    #[must_use]
    pub fn has_redis_at(&self, door: Door) -> bool {
        match door {
            Door::Main => self.has_redis,
            Door::Correctness | Door::Redlock => false,
        }
    }

    pub fn lock(&self, door: Door, request: &Request<'_>) -> Result<Destination, Refusal> {
        let named = request.tier();
        let resources: &[&[u8]] = match request {
            Request::Cluster(_) => return Ok(Destination::Node),
            Request::FenceCheck(_) | Request::FenceGet(_) | Request::FenceCall(_) => {
                return Ok(if self.has_redis { Destination::Tier1 } else { Destination::Tier2 })
            }
            Request::Session(_) => return Ok(Destination::Tier2),
            Request::Scan(_) => &[],
            Request::Acquire(request) => {
                return self.with_session(door, named, &[request.resource], request.options.session)
            }
            Request::MAcquire(request) => {
                return self.with_session(door, named, &request.resources, request.options.session)
            }
            Request::MRelease(request) => {
                let resources: Vec<&[u8]> = request.pairs.iter().map(|(resource, _)| *resource).collect();
                return self.tier_of(door, named, &resources);
            }
            Request::Release(request) => &[request.resource],
            Request::Renew(request) => &[request.resource],
            Request::Info(request) => &[request.resource],
            Request::Queue(request) => &[request.resource],
            Request::ForceRelease(request) => &[request.resource],
        };
        self.tier_of(door, named, resources)
    }

    fn with_session(
        &self,
        door: Door,
        named: Option<Tier>,
        resources: &[&[u8]],
        session: Option<&[u8]>,
    ) -> Result<Destination, Refusal> {
        match (session, named) {
            (None, _) => self.tier_of(door, named, resources),
            (Some(_), Some(Tier::Efficiency)) => Err(tier_sessions_here()),
            (Some(_), Some(Tier::Correctness) | None) => Ok(Destination::Tier2),
        }
    }

    fn tier_of(&self, door: Door, named: Option<Tier>, resources: &[&[u8]]) -> Result<Destination, Refusal> {
        let tier = match named {
            Some(Tier::Correctness) => Tier::Correctness,
            Some(Tier::Efficiency) => {
                if door.is_correctness() {
                    return Err(Refusal::new(
                        "TIER this listener serves the correctness tier only; ask the main listener",
                    ));
                }
                match resources.iter().find(|resource| self.route_of(resource) == Some(Tier::Correctness)) {
                    Some(resource) => return Err(weaker_than_route(resource)),
                    None => Tier::Efficiency,
                }
            }
            None if door.is_correctness() => Tier::Correctness,
            // One store serves all.
            None if !self.has_redis => Tier::Correctness,
            None => self.common_tier(resources)?,
        };
        Ok(match tier {
            Tier::Efficiency if self.has_redis => Destination::Tier1,
            // A table of this node alone would grant one name at every node.
            Tier::Efficiency | Tier::Correctness => Destination::Tier2,
        })
    }

    fn common_tier(&self, resources: &[&[u8]]) -> Result<Tier, Refusal> {
        let mut tiers = resources
            .iter()
            .map(|resource| (self.route_of(resource).unwrap_or(self.default_tier), *resource));
        let Some((tier, first)) = tiers.next() else {
            return Ok(self.default_tier);
        };
        match tiers.find(|(other, _)| *other != tier) {
            Some((_, second)) => Err(cross_tier(first, second)),
            None => Ok(tier),
        }
    }

    fn route_of(&self, resource: &[u8]) -> Option<Tier> {
        self.routes.iter().find(|route| glob::matches(&route.pattern, resource)).map(|route| route.tier)
    }

    /// Where a plain command with these keys goes. The default tier speaks of locks alone: only a route moves a plain key.
    pub fn plain<'k>(
        &self,
        door: Door,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Result<PlainDestination, Refusal> {
        if !self.has_redis || door.is_correctness() {
            return Ok(PlainDestination::Keyspace);
        }
        if !self.has_correctness_routes() {
            return Ok(PlainDestination::Redis);
        }
        let mut first: Option<(&[u8], PlainDestination)> = None;
        for key in keys {
            let destination = match self.route_of(key) {
                Some(Tier::Correctness) => PlainDestination::Keyspace,
                Some(Tier::Efficiency) | None => PlainDestination::Redis,
            };
            match first {
                None => first = Some((key, destination)),
                Some((other, seen)) if seen != destination => return Err(cross_tier(other, key)),
                Some(_) => {}
            }
        }
        Ok(first.map_or(PlainDestination::Redis, |(_, destination)| destination))
    }
}

fn weaker_than_route(resource: &[u8]) -> Refusal {
    Refusal::new(format!(
        "TIER the route of '{}' is correctness, and the command asks for less; leave TIER out",
        shown(resource)
    ))
}

fn cross_tier(one: &[u8], other: &[u8]) -> Refusal {
    Refusal::new(format!(
        "CROSSTIER '{}' and '{}' belong to different tiers; name one TIER for all or split the command",
        shown(one),
        shown(other)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::grammar;

    fn router() -> Router {
        let route = |pattern: &str, tier| Route { pattern: pattern.into(), tier };
        Router::new(
            vec![route("wallet:hot:*", Tier::Efficiency), route("wallet:*", Tier::Correctness)],
            Tier::Efficiency,
            true,
        )
    }

    fn lock(door: Door, line: &str) -> Result<Destination, String> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let request = grammar::parse(&words).unwrap().unwrap();
        router().lock(door, &request).map_err(|refusal| refusal.code().to_string())
    }

    #[test]
    fn word_then_route_then_default() {
        use Destination::{Node, Tier1, Tier2};
        for (line, expected) in [
            ("LOCK.ACQUIRE x 10", Ok(Tier1)),
            ("LOCK.ACQUIRE wallet:7 10", Ok(Tier2)),
            ("LOCK.ACQUIRE wallet:hot:7 10", Ok(Tier1)),
            ("LOCK.ACQUIRE x 10 TIER CORRECTNESS", Ok(Tier2)),
            ("LOCK.ACQUIRE wallet:7 10 TIER EFFICIENCY", Err("TIER")),
            ("LOCK.ACQUIRE wallet:hot:7 10 TIER correctness", Ok(Tier2)),
            ("LOCK.ACQUIRE x 10 SESSION 0123456789abcdef", Ok(Tier2)),
            ("LOCK.ACQUIRE x 10 SESSION 0123456789abcdef TIER EFFICIENCY", Err("TIER")),
            ("LOCK.MACQUIRE 2 x wallet:7 10", Err("CROSSTIER")),
            ("LOCK.MACQUIRE 2 x wallet:7 10 TIER CORRECTNESS", Ok(Tier2)),
            ("LOCK.MACQUIRE 2 x wallet:7 10 TIER EFFICIENCY", Err("TIER")),
            ("LOCK.MRELEASE 2 x 1 wallet:7 2", Err("CROSSTIER")),
            ("LOCK.SCAN 0", Ok(Tier1)),
            ("LOCK.SESSION OPEN 1000", Ok(Tier2)),
            ("LOCK.CLUSTER INFO", Ok(Node)),
            ("FENCE.CHECK wallet:7 1", Ok(Tier1)),
        ] {
            assert_eq!(lock(Door::Main, line), expected.map_err(String::from), "{line}");
        }
        for door in [Door::Correctness, Door::Redlock] {
            assert_eq!(lock(door, "LOCK.ACQUIRE x 10"), Ok(Tier2));
            assert_eq!(lock(door, "LOCK.ACQUIRE x 10 TIER EFFICIENCY"), Err("TIER".into()));
        }
    }

    #[test]
    fn plain_keys_follow_routes_alone() {
        use PlainDestination::{Keyspace, Redis};
        let plain = |keys: &[&str]| {
            router()
                .plain(Door::Main, keys.iter().map(|key| key.as_bytes()))
                .map_err(|refusal| refusal.code().to_string())
        };
        assert_eq!(plain(&["x"]), Ok(Redis));
        assert_eq!(plain(&[]), Ok(Redis));
        assert_eq!(plain(&["wallet:1", "wallet:2"]), Ok(Keyspace));
        assert_eq!(plain(&["wallet:1", "x"]), Err("CROSSTIER".into()));
        assert_eq!(router().plain(Door::Correctness, [&b"x"[..]]), Ok(Keyspace));
        assert_eq!(router().plain(Door::Redlock, [&b"x"[..]]), Ok(Keyspace));
        let alone = Router::new(vec![], Tier::Efficiency, false);
        for line in ["LOCK.ACQUIRE x 10", "LOCK.ACQUIRE x 10 TIER EFFICIENCY", "FENCE.CHECK x 1"] {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let request = grammar::parse(&words).unwrap().unwrap();
            assert_eq!(alone.lock(Door::Main, &request), Ok(Destination::Tier2), "{line}");
        }
        assert_eq!(alone.plain(Door::Main, [&b"x"[..]]), Ok(Keyspace));
    }
}
