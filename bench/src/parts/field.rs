//! All that is compared, started together: one place for who serves whom.

use crate::etcd::{EtcdLoad, Way};
use crate::fleet::{Client, Fleet};
use crate::options::Options;
use crate::servers::etcd::Etcd;
use crate::servers::redfence::Cluster;
use crate::servers::redis::{load_script, Redis};
use crate::servers::zookeeper::ZooKeeper;
use crate::target::Target;
use crate::work::hot::GivenUp;
use crate::work::pairs::{Pairs, Words, COMPARE_AND_DELETE, FENCED};
use crate::zookeeper::Recipe;
use std::net::SocketAddr;
use std::rc::Rc;

/// The Lua library as it ships.
const FUNCTIONS: &[u8] = include_bytes!("../../../lua/redfence.lua");
/// The proxies that show Tier 1.
const TIER1: [&str; 2] = ["--default-tier", "efficiency"];

/// Each is there, or the reason why not.
pub(crate) struct Field {
    pub(crate) redis: Result<Redis, String>,
    pub(crate) functions: Result<Redis, String>,
    pub(crate) module: Result<Redis, String>,
    pub(crate) embedded: Result<Cluster, String>,
    pub(crate) proxy: Result<Cluster, String>,
    pub(crate) one: Result<Cluster, String>,
    pub(crate) three: Result<Cluster, String>,
    pub(crate) five: Result<Cluster, String>,
    pub(crate) etcd: Result<Etcd, String>,
    pub(crate) zookeeper: Result<ZooKeeper, String>,
}

impl Field {
    pub(crate) fn start(options: &Options) -> Result<Field, String> {
        let binary = options.redfence()?;
        crate::report::progress("starting servers");
        let module = options.module().and_then(|module| Redis::start(Some(&module)));
        let proxy = match &module {
            Ok(module) => {
                let behind = module.address.to_string();
                Cluster::start(&binary, 1, &["--redis", &behind, TIER1[0], TIER1[1]])
            }
            Err(reason) => Err(reason.clone()),
        };
        let functions = Redis::start(None);
        let functions = functions.and_then(|redis| redis.load_functions(FUNCTIONS).map(|()| redis));
        let field = Field {
            redis: Redis::start(None),
            functions,
            module,
            embedded: Cluster::start(&binary, 1, &TIER1),
            proxy,
            one: Cluster::start(&binary, 1, &[]),
            three: Cluster::start(&binary, 3, &[]),
            five: Cluster::start(&binary, 5, &[]),
            etcd: Etcd::start(),
            zookeeper: ZooKeeper::start(),
        };
        crate::report::progress("");
        Ok(field)
    }
}

/// Which nodes of a cluster the clients are connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Through {
    Leader,
    Followers,
    All,
}

pub(crate) fn doors(cluster: &Cluster, through: Through) -> Result<Vec<SocketAddr>, String> {
    let leader = cluster.await_leader()?;
    let mut addresses = cluster.addresses();
    Ok(match through {
        Through::Leader => vec![addresses[leader]],
        Through::Followers => {
            addresses.remove(leader);
            addresses
        }
        Through::All => addresses,
    })
}

/// Clients of one kind against a cluster.
pub(crate) fn on_cluster<C: Client + 'static>(
    name: &str,
    cluster: &Result<Cluster, String>,
    through: Through,
    clients: Vec<C>,
) -> Result<Target, String> {
    let cluster = cluster.as_ref().map_err(Clone::clone)?;
    let fleet = Fleet::connect(&doors(cluster, through)?, clients)?;
    Ok(Target::of_fleet(name, fleet, cluster.process_ids()))
}

/// Clients of one kind against a Redis.
pub(crate) fn on_redis<C: Client + 'static>(
    name: &str,
    redis: &Result<Redis, String>,
    clients: Vec<C>,
) -> Result<Target, String> {
    let redis = redis.as_ref().map_err(Clone::clone)?;
    let fleet = Fleet::connect(&[redis.address], clients)?;
    Ok(Target::of_fleet(name, fleet, vec![redis.process.id()]))
}

/// The proxy and the Redis behind it: the time of both counts.
pub(crate) fn on_proxy<C: Client + 'static>(
    name: &str,
    field: &Field,
    clients: Vec<C>,
) -> Result<Target, String> {
    let redis = field.module.as_ref().map_err(Clone::clone)?;
    let proxy = field.proxy.as_ref().map_err(Clone::clone)?;
    let fleet = Fleet::connect(&proxy.addresses(), clients)?;
    let mut processes = proxy.process_ids();
    processes.push(redis.process.id());
    Ok(Target::of_fleet(name, fleet, processes))
}

pub(crate) fn on_etcd(name: &str, field: &Field, way: Way, clients: usize) -> Result<Target, String> {
    let etcd = field.etcd.as_ref().map_err(Clone::clone)?;
    let leader = etcd.addresses[etcd.await_leader()?];
    Ok(Target::of_etcd(name, EtcdLoad::connect(leader, way, clients)?, etcd.process_ids()))
}

/// Every client on a name of its own, or all on one.
pub(crate) fn on_zookeeper(name: &str, field: &Field, clients: usize, hot: bool) -> Result<Target, String> {
    let zookeeper = field.zookeeper.as_ref().map_err(Clone::clone)?;
    let given_up = GivenUp::default();
    let client = |number: usize| {
        let lock = crate::work::name(if hot { 1_000_000 } else { number as u64 });
        Recipe::new(&lock, hot.then_some(&given_up))
    };
    let fleet = Fleet::connect(&[zookeeper.leader()?], (0..clients).map(client).collect())?;
    Ok(Target::of_fleet(name, fleet, zookeeper.process_ids()))
}

pub(crate) fn pairs(words: Words, clients: usize) -> Vec<Pairs> {
    let words = Rc::new(words);
    (0..clients).map(|number| Pairs::new(&words, number)).collect()
}

pub(crate) fn set_nx(address: SocketAddr) -> Result<Words, String> {
    Ok(Words::SetNx { compare_and_delete: load_script(address, COMPARE_AND_DELETE)? })
}

pub(crate) fn fenced(address: SocketAddr) -> Result<Words, String> {
    Ok(Words::Fenced {
        acquire: load_script(address, FENCED)?,
        compare_and_delete: load_script(address, COMPARE_AND_DELETE)?,
    })
}
