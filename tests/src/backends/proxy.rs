//! The proxy in all its shapes: Tier 1 from a Redis with the module, from a plain Redis by Lua; and
//! Tier 2 on one, three and five nodes, asked through the leader, through a follower, and through all in turn.
//!
//! Clusters are shared between the backends that differ only in whom they ask, and end when the last of them is dropped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::artifacts;
use crate::backend::{Abilities, Backend};
use crate::client::{SocketWire, Wire};
use crate::cluster::{self, Cluster};
use crate::process::poll_until;
use crate::redis::{self, Redis};
use crate::resp::Protocol;

/// Names that begin with this are routed to the other tier, at every proxy that serves Tier 1 by default.
pub const ROUTED_TO_CORRECTNESS: &str = "routed-to-correctness:";

const LEADER_WITHIN: Duration = Duration::from_secs(20);

/// What stands behind the proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    Nothing,
    RedisWithModule,
    PlainRedis,
}

/// Which node a client is given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    Leader,
    Follower,
    AllInTurn,
}

/// A cluster that starts when first asked for, with the upstream Redis.
struct Deployment {
    nodes: usize,
    tier1_by_default: bool,
    behind: Behind,
    running: OnceLock<(Cluster, Option<Redis>)>,
}

impl Deployment {
    fn new(nodes: usize, tier1_by_default: bool, behind: Behind) -> Arc<Deployment> {
        Arc::new(Deployment { nodes, tier1_by_default, behind, running: OnceLock::new() })
    }

    fn running(&self) -> &(Cluster, Option<Redis>) {
        self.running.get_or_init(|| {
            let redis = match self.behind {
                Behind::Nothing => None,
                Behind::RedisWithModule => Some(Redis::start(&redis::Options::with_module())),
                Behind::PlainRedis => Some(Redis::start(&redis::Options::plain())),
            };
            let mut options = cluster::Options::nodes(self.nodes);
            if self.tier1_by_default {
                let route = format!("{ROUTED_TO_CORRECTNESS}*=correctness");
                options = options.flag("--default-tier", "efficiency").flag("--route", &route);
            }
            if let Some(redis) = &redis {
                options = options.flag("--redis", &redis.address().to_string());
            }
            let cluster = Cluster::start(&options);
            cluster.wait_for_leader(LEADER_WITHIN);
            // It rises by itself, unless a case that holds upgrades comes first.
            let version = |node: &cluster::Node| {
                let reply = node.ask(&["LOCK.CLUSTER", "VERSION"], LEADER_WITHIN);
                reply.map(|reply| reply.array()[1].integer())
            };
            let has_risen = || cluster.nodes.iter().all(|node| version(node) == Some(2));
            assert!(poll_until(LEADER_WITHIN, has_risen), "the cluster should run version 2");
            (cluster, redis)
        })
    }
}

pub struct ProxyBackend {
    name: &'static str,
    deployment: Arc<Deployment>,
    through: Through,
    abilities: Abilities,
    turn: AtomicUsize,
}

/// Every shape of the proxy.
pub fn all() -> Vec<Arc<dyn Backend>> {
    let wire = Abilities::EVENTS
        .and(Abilities::COMMAND_TABLE)
        .and(Abilities::WIRE)
        .and(Abilities::FRAME_LIMITS)
        .and(Abilities::CLUSTER);
    let tier1 = wire.and(Abilities::EFFICIENCY).and(Abilities::ROUTES);
    let with_redis = tier1.and(Abilities::FENCING).and(Abilities::PLAIN_KEYS);
    let tier2 = wire
        .and(Abilities::CORRECTNESS)
        .and(Abilities::FENCING)
        .and(Abilities::PLAIN_KEYS)
        .and(Abilities::TRANSACTIONS);
    let one = Deployment::new(1, false, Behind::Nothing);
    let three = Deployment::new(3, false, Behind::Nothing);
    let five = Deployment::new(5, false, Behind::Nothing);
    let shapes = [
        ("proxy_without_redis", Deployment::new(1, true, Behind::Nothing), Through::Leader, tier2),
        ("proxy_module", Deployment::new(1, true, Behind::RedisWithModule), Through::Leader, with_redis),
        ("proxy_lua", Deployment::new(1, true, Behind::PlainRedis), Through::Leader, with_redis),
        ("tier2_1", one, Through::Leader, tier2),
        ("tier2_3_leader", Arc::clone(&three), Through::Leader, tier2),
        ("tier2_3_follower", Arc::clone(&three), Through::Follower, tier2),
        ("tier2_3_all", three, Through::AllInTurn, tier2),
        ("tier2_5_leader", Arc::clone(&five), Through::Leader, tier2),
        ("tier2_5_follower", Arc::clone(&five), Through::Follower, tier2),
        ("tier2_5_all", five, Through::AllInTurn, tier2),
    ];
    shapes
        .into_iter()
        .map(|(name, deployment, through, abilities)| -> Arc<dyn Backend> {
            Arc::new(ProxyBackend { name, deployment, through, abilities, turn: AtomicUsize::new(0) })
        })
        .collect()
}

impl Backend for ProxyBackend {
    fn name(&self) -> &'static str {
        self.name
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn missing(&self) -> Option<String> {
        let behind = match self.deployment.behind {
            Behind::Nothing => Ok(()),
            Behind::RedisWithModule => {
                artifacts::redis_server().and_then(|_| artifacts::module()).map(|_| ())
            }
            Behind::PlainRedis => artifacts::redis_server().map(|_| ()),
        };
        artifacts::redfence().and(behind).err()
    }

    fn connect(&self, protocol: Protocol) -> Box<dyn Wire> {
        let (cluster, _) = self.deployment.running();
        let node = match self.through {
            Through::Leader => cluster.node(cluster.wait_for_leader(LEADER_WITHIN)),
            Through::Follower => cluster.follower(cluster.wait_for_leader(LEADER_WITHIN)),
            Through::AllInTurn => {
                &cluster.nodes[self.turn.fetch_add(1, Ordering::Relaxed) % cluster.nodes.len()]
            }
        };
        let wire = SocketWire::open(node.address, protocol);
        Box::new(wire.unwrap_or_else(|error| panic!("{error}\n{}", cluster.log())))
    }

    fn log(&self) -> String {
        match self.deployment.running.get() {
            Some((cluster, redis)) => cluster.log() + &redis.as_ref().map(Redis::log).unwrap_or_default(),
            None => String::new(),
        }
    }
}
