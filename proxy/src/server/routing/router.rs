//! Which tier answers. Asked by [`super::plan`], which makes the decision a value; [`super::waiting`] asks new routes about a wait.
//! Nobody outside this folder asks (`proxy/tests/module_graph.rs` checks it).
//!
//! Routes and default tier are the cluster's (replicated settings), not this node's. While a change of them is pending, names
//! whose tier it changes are refused; so is the upstream Redis where it is not the one of the cluster.
//!
//! First `TIER` in the command, then the routes, first match first, then the default tier. A command that names a weaker tier than
//! its resource's route is refused; so is one whose resources belong to both, and a session where that is Tier 1.

use redfence_core::grammar::errors::{shown, tier_sessions_here};
use redfence_core::grammar::Request;
use redfence_core::machine::settings::Settings;
use redfence_core::reply::Refusal;
pub use redfence_core::routes::Route;
use redfence_core::routes::Routing;
use redfence_core::types::Tier;

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
    /// The upstream Redis, byte for byte.
    Upstream,
    /// The Raft keyspace: keys of correctness routes, of the correctness listener, and all keys where there is no Redis.
    Keyspace,
}

/// By which listener a client came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerKind {
    #[default]
    Main,
    /// Every key and every lock belongs to Tier 2.
    Correctness,
    /// The same, for Redlock clients: to them this node is one of N masters.
    Redlock,
}

impl ListenerKind {
    /// Whether all that comes in here belongs to Tier 2.
    fn is_correctness(self) -> bool {
        match self {
            ListenerKind::Main => false,
            ListenerKind::Correctness | ListenerKind::Redlock => true,
        }
    }
}

/// Whether routes decide who answers it, and not the command itself.
pub(super) fn depends_on_routes(request: &Request<'_>) -> bool {
    !matches!(request, Request::Cluster(_)) && request.tier() != Some(Tier::Correctness)
}

/// How the upstream Redis, or its absence, stands to that of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamMatch {
    /// Not known yet: its Redis or the settings of the cluster have not been reached.
    Unknown,
    Same,
    Other,
}

#[derive(Clone, Debug)]
pub struct Router {
    /// Rises with every router of this node.
    pub generation: u64,
    /// Versions of the routes in force and of the pending ones.
    version: u64,
    next_version: Option<u64>,
    /// In force.
    routing: Routing,
    /// Pending: names it gives another tier are served by neither.
    next: Option<Routing>,
    /// Whether a Redis stands behind the proxy.
    has_upstream: bool,
    upstream_match: UpstreamMatch,
    /// Asked for every command that passes.
    has_correctness_routes: bool,
}

impl Router {
    #[must_use]
    pub fn new(routes: Vec<Route>, default_tier: Tier, has_upstream: bool) -> Router {
        Router::of(Routing { routes, default_tier }, None, has_upstream, UpstreamMatch::Same)
    }

    #[must_use]
    pub fn of(
        routing: Routing,
        next: Option<Routing>,
        has_upstream: bool,
        upstream_match: UpstreamMatch,
    ) -> Router {
        let mut all = routing.routes.iter().chain(next.iter().flat_map(|next| &next.routes));
        let has_correctness_routes = all.any(|route| route.tier == Tier::Correctness);
        Router {
            generation: 0,
            version: 0,
            next_version: None,
            routing,
            next,
            has_upstream,
            upstream_match,
            has_correctness_routes,
        }
    }

    /// The router of the cluster's settings.
    #[must_use]
    pub fn of_settings(settings: &Settings, has_upstream: bool, upstream_match: UpstreamMatch) -> Router {
        let next = settings.pending.as_ref().map(|pending| pending.routing.clone());
        let next_version = settings.pending.as_ref().map(|pending| pending.version);
        let router = Router::of(settings.routing.clone(), next, has_upstream, upstream_match);
        Router { version: settings.routing_version, next_version, ..router }
    }

    /// Whether what it decides holds by the routes of this version.
    #[must_use]
    pub fn covers(&self, version: u64) -> bool {
        self.version == version || self.next_version == Some(version)
    }

    /// Whether it follows the routes of this version or later ones, and no change is pending.
    #[must_use]
    pub fn has_settled(&self, version: u64) -> bool {
        self.version >= version && self.next_version.is_none()
    }

    /// The same router as the one of this number.
    #[must_use]
    pub fn numbered(self, generation: u64) -> Router {
        Router { generation, ..self }
    }

    /// Before the settings of the cluster are known.
    #[must_use]
    pub fn unfounded(flags: Routing, has_upstream: bool) -> Router {
        Router::of(flags, None, has_upstream, UpstreamMatch::Unknown)
    }

    /// Whether any key at all may belong to the Raft keyspace while a Redis is there.
    #[must_use]
    pub fn has_correctness_routes(&self) -> bool {
        self.has_correctness_routes
    }

    /// Whether the upstream Redis may be used. Without one: whether the cluster has none either.
    pub fn check_upstream(&self) -> Result<(), Refusal> {
        match (self.upstream_match, self.has_upstream) {
            (UpstreamMatch::Same, _) | (UpstreamMatch::Unknown, false) => Ok(()),
            (UpstreamMatch::Unknown, true) => Err(Refusal::new(
                "UNAVAILABLE this node does not reach its Redis, or does not know yet whether that Redis and the routes are those of the cluster; nothing was done; retry",
            )),
            (UpstreamMatch::Other, true) => Err(Refusal::new(
                "TIER the upstream Redis of this node is not the leader's; start the node with the same --redis",
            )),
            (UpstreamMatch::Other, false) => Err(Refusal::new(
                "TIER the leader has an upstream Redis and this node has none; start it with the same --redis, or name TIER CORRECTNESS",
            )),
        }
    }

    #[must_use]
    pub fn has_upstream(&self) -> bool {
        self.has_upstream
    }

    /// Whether what comes in by this listener may reach the upstream Redis.
    #[must_use]
    pub fn has_upstream_for(&self, listener_kind: ListenerKind) -> bool {
        match listener_kind {
            ListenerKind::Main => self.has_upstream,
            ListenerKind::Correctness | ListenerKind::Redlock => false,
        }
    }

    /// Whether the routes decide where a plain key lives that comes in by this listener.
    #[must_use]
    pub fn divides_keys(&self, listener_kind: ListenerKind) -> bool {
        !listener_kind.is_correctness() && (self.has_upstream || self.upstream_match == UpstreamMatch::Other)
    }

    /// Whether a lock of this name belongs to Tier 1 where the command names no tier.
    #[must_use]
    pub fn is_of_tier1(&self, listener_kind: ListenerKind, resource: &[u8]) -> bool {
        self.tier_of(listener_kind, None, &[resource]) == Ok(Destination::Tier1)
    }

    pub fn lock(&self, listener_kind: ListenerKind, request: &Request<'_>) -> Result<Destination, Refusal> {
        let named = request.tier();
        let resources: &[&[u8]] = match request {
            Request::Cluster(_) | Request::Notify(_) => return Ok(Destination::Node),
            Request::FenceCheck(_) | Request::FenceGet(_) | Request::FenceCall(_) => {
                self.check_upstream()?;
                return Ok(if self.has_upstream { Destination::Tier1 } else { Destination::Tier2 });
            }
            Request::Session(_) | Request::Convert(_) => return Ok(Destination::Tier2),
            Request::Scan(_) => &[],
            Request::Acquire(request) => {
                return self.with_session(listener_kind, named, &[request.resource], request.options.session)
            }
            Request::MAcquire(request) => {
                return self.with_session(listener_kind, named, &request.resources, request.options.session)
            }
            Request::MRelease(request) => {
                let resources: Vec<&[u8]> = request.pairs.iter().map(|(resource, _)| *resource).collect();
                return self.tier_of(listener_kind, named, &resources);
            }
            Request::Release(request) => &[request.resource],
            Request::Renew(request) => &[request.resource],
            Request::Info(request) => &[request.resource],
            Request::Queue(request) => &[request.resource],
            Request::Explain(request) => &[request.resource],
            Request::ForceRelease(request) => &[request.resource],
        };
        self.tier_of(listener_kind, named, resources)
    }

    fn with_session(
        &self,
        listener_kind: ListenerKind,
        named: Option<Tier>,
        resources: &[&[u8]],
        session: Option<&[u8]>,
    ) -> Result<Destination, Refusal> {
        // Not a reason to go to the other tier: the name would have two holders.
        let destination = self.tier_of(listener_kind, named, resources)?;
        if session.is_some() && destination == Destination::Tier1 {
            return Err(tier_sessions_here());
        }
        Ok(destination)
    }

    fn tier_of(
        &self,
        listener_kind: ListenerKind,
        named: Option<Tier>,
        resources: &[&[u8]],
    ) -> Result<Destination, Refusal> {
        let tier = match named {
            Some(Tier::Correctness) => Tier::Correctness,
            Some(Tier::Efficiency) => {
                if listener_kind.is_correctness() {
                    return Err(Refusal::new(
                        "TIER this listener serves the correctness tier only; ask the main listener",
                    ));
                }
                for resource in resources {
                    let is_strong = |routing: &Routing| routing.route_of(resource) == Some(Tier::Correctness);
                    self.check_settled(resource, is_strong)?;
                    if is_strong(&self.routing) {
                        return Err(weaker_than_route(resource));
                    }
                }
                Tier::Efficiency
            }
            None if listener_kind.is_correctness() => Tier::Correctness,
            None => self.common_tier(resources)?,
        };
        if tier == Tier::Efficiency {
            self.check_upstream()?;
        }
        Ok(match tier {
            Tier::Efficiency if self.has_upstream => Destination::Tier1,
            // A table of this node alone would grant one name at every node.
            Tier::Efficiency | Tier::Correctness => Destination::Tier2,
        })
    }

    fn common_tier(&self, resources: &[&[u8]]) -> Result<Tier, Refusal> {
        let Some((first, rest)) = resources.split_first() else {
            return Ok(self.routing.default_tier);
        };
        let tier = self.settled_tier(first)?;
        for resource in rest {
            // Where there is no Redis one store serves all.
            if self.settled_tier(resource)? != tier && self.has_upstream {
                return Err(cross_tier(first, resource));
            }
        }
        Ok(tier)
    }

    fn settled_tier(&self, resource: &[u8]) -> Result<Tier, Refusal> {
        self.check_settled(resource, |routing| routing.tier_of(resource))?;
        Ok(self.routing.tier_of(resource))
    }

    /// Refuses a name for which pending routes decide otherwise: another node may follow them already.
    fn check_settled<T: PartialEq>(
        &self,
        name: &[u8],
        decide: impl Fn(&Routing) -> T,
    ) -> Result<(), Refusal> {
        match &self.next {
            Some(next) if self.has_upstream && decide(next) != decide(&self.routing) => {
                Err(Refusal::new(format!(
                    "UNAVAILABLE the route of '{}' is being changed; nothing was done; retry in a moment",
                    shown(name)
                )))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Where a plain command with these keys goes. The default tier speaks of locks alone: only a route moves a plain key.
    pub fn plain<'k>(
        &self,
        listener_kind: ListenerKind,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Result<PlainDestination, Refusal> {
        if !self.divides_keys(listener_kind) {
            return Ok(PlainDestination::Keyspace);
        }
        if !self.has_correctness_routes() {
            self.check_upstream()?;
            return Ok(PlainDestination::Upstream);
        }
        let mut first: Option<(&[u8], PlainDestination)> = None;
        for key in keys {
            let decide = |routing: &Routing| match routing.route_of(key) {
                Some(Tier::Correctness) => PlainDestination::Keyspace,
                Some(Tier::Efficiency) | None => PlainDestination::Upstream,
            };
            self.check_settled(key, decide)?;
            let destination = decide(&self.routing);
            match first {
                None => first = Some((key, destination)),
                Some((other, seen)) if seen != destination => return Err(cross_tier(other, key)),
                Some(_) => {}
            }
        }
        let destination = first.map_or(PlainDestination::Upstream, |(_, destination)| destination);
        if destination == PlainDestination::Upstream {
            self.check_upstream()?;
        }
        Ok(destination)
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

    fn lock(listener_kind: ListenerKind, line: &str) -> Result<Destination, String> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let request = grammar::parse(&words).unwrap().unwrap();
        router().lock(listener_kind, &request).map_err(|refusal| refusal.code().to_string())
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
            ("LOCK.ACQUIRE x 10 SESSION 0123456789abcdef", Err("TIER")),
            ("LOCK.ACQUIRE x 10 SESSION 0123456789abcdef TIER CORRECTNESS", Ok(Tier2)),
            ("LOCK.ACQUIRE wallet:7 10 SESSION 0123456789abcdef", Ok(Tier2)),
            ("LOCK.MACQUIRE 2 x wallet:7 10 SESSION 0123456789abcdef", Err("CROSSTIER")),
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
            assert_eq!(lock(ListenerKind::Main, line), expected.map_err(String::from), "{line}");
        }
        for listener_kind in [ListenerKind::Correctness, ListenerKind::Redlock] {
            assert_eq!(lock(listener_kind, "LOCK.ACQUIRE x 10"), Ok(Tier2));
            assert_eq!(lock(listener_kind, "LOCK.ACQUIRE x 10 TIER EFFICIENCY"), Err("TIER".into()));
        }
    }

    fn changing() -> Router {
        let routes = |text: &str| redfence_core::routes::parse_list(text.as_bytes()).unwrap();
        let now =
            Routing { routes: routes("a:*=efficiency b:*=correctness"), default_tier: Tier::Correctness };
        let next =
            Routing { routes: routes("a:*=correctness b:*=efficiency"), default_tier: Tier::Correctness };
        Router::of(now, Some(next), true, UpstreamMatch::Same)
    }

    #[test]
    fn a_name_whose_route_is_being_changed_is_served_by_neither_tier() {
        for (line, expected) in [
            ("LOCK.ACQUIRE a:1 10", Err("UNAVAILABLE")),
            ("LOCK.ACQUIRE a:1 10 TIER EFFICIENCY", Err("UNAVAILABLE")),
            ("LOCK.ACQUIRE b:1 10", Err("UNAVAILABLE")),
            ("LOCK.ACQUIRE b:1 10 TIER CORRECTNESS", Ok(Destination::Tier2)),
            ("LOCK.ACQUIRE c:1 10", Ok(Destination::Tier2)),
            ("LOCK.MACQUIRE 2 c:1 a:1 10", Err("UNAVAILABLE")),
        ] {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let request = grammar::parse(&words).unwrap().unwrap();
            let routed =
                changing().lock(ListenerKind::Main, &request).map_err(|refusal| refusal.code().to_string());
            assert_eq!(routed, expected.map_err(String::from), "{line}");
        }
        let plain = |key: &str| {
            changing()
                .plain(ListenerKind::Main, [key.as_bytes()])
                .map_err(|refusal| refusal.code().to_string())
        };
        assert_eq!(plain("a:1"), Err("UNAVAILABLE".into()));
        assert_eq!(plain("b:1"), Err("UNAVAILABLE".into()));
        assert_eq!(plain("c:1"), Ok(PlainDestination::Upstream));
    }

    #[test]
    fn another_redis_than_the_leaders_serves_nothing() {
        let router =
            |upstream_match, has_upstream| Router::of(Routing::default(), None, has_upstream, upstream_match);
        let words: Vec<&[u8]> = "LOCK.ACQUIRE x 10 TIER EFFICIENCY".split(' ').map(str::as_bytes).collect();
        let request = grammar::parse(&words).unwrap().unwrap();
        for (upstream_match, has_upstream, expected) in [
            (UpstreamMatch::Other, true, "TIER"),
            (UpstreamMatch::Other, false, "TIER"),
            (UpstreamMatch::Unknown, true, "UNAVAILABLE"),
        ] {
            let router = router(upstream_match, has_upstream);
            assert_eq!(router.lock(ListenerKind::Main, &request).unwrap_err().code(), expected);
            assert_eq!(router.plain(ListenerKind::Main, [&b"x"[..]]).unwrap_err().code(), expected);
            assert_eq!(router.plain(ListenerKind::Correctness, [&b"x"[..]]), Ok(PlainDestination::Keyspace));
        }
        assert_eq!(
            router(UpstreamMatch::Unknown, false).plain(ListenerKind::Main, [&b"x"[..]]),
            Ok(PlainDestination::Keyspace)
        );
    }

    #[test]
    fn plain_keys_follow_routes_alone() {
        use PlainDestination::{Keyspace, Upstream};
        let plain = |keys: &[&str]| {
            router()
                .plain(ListenerKind::Main, keys.iter().map(|key| key.as_bytes()))
                .map_err(|refusal| refusal.code().to_string())
        };
        assert_eq!(plain(&["x"]), Ok(Upstream));
        assert_eq!(plain(&[]), Ok(Upstream));
        assert_eq!(plain(&["wallet:1", "wallet:2"]), Ok(Keyspace));
        assert_eq!(plain(&["wallet:1", "x"]), Err("CROSSTIER".into()));
        assert_eq!(router().plain(ListenerKind::Correctness, [&b"x"[..]]), Ok(Keyspace));
        assert_eq!(router().plain(ListenerKind::Redlock, [&b"x"[..]]), Ok(Keyspace));
        let alone = Router::new(vec![], Tier::Efficiency, false);
        for line in ["LOCK.ACQUIRE x 10", "LOCK.ACQUIRE x 10 TIER EFFICIENCY", "FENCE.CHECK x 1"] {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let request = grammar::parse(&words).unwrap().unwrap();
            assert_eq!(alone.lock(ListenerKind::Main, &request), Ok(Destination::Tier2), "{line}");
        }
        assert_eq!(alone.plain(ListenerKind::Main, [&b"x"[..]]), Ok(Keyspace));
    }
}
