//! Starts every system that is compared, and builds the load targets for each.

use crate::etcd::{EtcdLoad, EtcdMethod};
use crate::load_generator::{Client, LoadGenerator};
use crate::options::Options;
use crate::servers::etcd::Etcd;
use crate::servers::redfence::Cluster;
use crate::servers::redis::{load_script, Redis};
use crate::servers::zookeeper::ZooKeeper;
use crate::target::Target;
use crate::work::hot::LastRelease;
use crate::work::pairs::{LockCommands, PairClient, COMPARE_AND_DELETE, FENCED};
use crate::zookeeper::{Recipe, ZooKeeperWork};
use std::net::SocketAddr;
use std::rc::Rc;

/// The Lua library as it ships.
const FUNCTIONS: &[u8] = include_bytes!("../../../lua/redfence.lua");

/// Each system, or the reason why it could not be started.
pub(crate) struct Systems {
    pub(crate) redis: Result<Redis, String>,
    pub(crate) functions: Result<Redis, String>,
    pub(crate) module: Result<Redis, String>,
    pub(crate) proxy: Result<Cluster, String>,
    pub(crate) one: Result<Cluster, String>,
    pub(crate) three: Result<Cluster, String>,
    pub(crate) five: Result<Cluster, String>,
    pub(crate) etcd: Result<Etcd, String>,
    /// None where no second one is asked for.
    pub(crate) other_etcd: Option<Result<Etcd, String>>,
    pub(crate) zookeeper: Result<ZooKeeper, String>,
}

impl Systems {
    pub(crate) fn start(options: &Options) -> Result<Systems, String> {
        let binary = options.redfence()?;
        crate::report::progress("starting servers");
        let module = options.module().and_then(|module| Redis::start(Some(&module)));
        let proxy = match &module {
            Ok(module) => {
                let upstream = module.address.to_string();
                Cluster::start(&binary, 1, &["--redis", &upstream, "--default-tier", "efficiency"])
            }
            Err(reason) => Err(reason.clone()),
        };
        let functions = Redis::start(None);
        let functions = functions.and_then(|redis| redis.load_functions(FUNCTIONS).map(|()| redis));
        let systems = Systems {
            redis: Redis::start(None),
            functions,
            module,
            proxy,
            one: Cluster::start(&binary, 1, &[]),
            three: Cluster::start(&binary, 3, &[]),
            five: Cluster::start(&binary, 5, &[]),
            etcd: Etcd::start(&options.etcd()),
            other_etcd: options.other_etcd().map(|program| Etcd::start(&program)),
            zookeeper: ZooKeeper::start(),
        };
        crate::report::progress("");
        Ok(systems)
    }
}

/// Which nodes of a cluster the clients are connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeSelection {
    Leader,
    Followers,
    All,
}

pub(crate) fn addresses_of(cluster: &Cluster, nodes: NodeSelection) -> Result<Vec<SocketAddr>, String> {
    let leader = cluster.await_leader()?;
    let mut addresses = cluster.addresses();
    Ok(match nodes {
        NodeSelection::Leader => vec![addresses[leader]],
        NodeSelection::Followers => {
            addresses.remove(leader);
            addresses
        }
        NodeSelection::All => addresses,
    })
}

/// Clients of one kind against a cluster.
pub(crate) fn on_cluster<C: Client + 'static>(
    name: &str,
    cluster: &Result<Cluster, String>,
    nodes: NodeSelection,
    clients: Vec<C>,
) -> Result<Target, String> {
    let cluster = cluster.as_ref().map_err(Clone::clone)?;
    let generator = LoadGenerator::connect(&addresses_of(cluster, nodes)?, clients)?;
    Ok(Target::of_generator(name, generator, cluster.process_ids()))
}

/// Clients of one kind against a Redis.
pub(crate) fn on_redis<C: Client + 'static>(
    name: &str,
    redis: &Result<Redis, String>,
    clients: Vec<C>,
) -> Result<Target, String> {
    let redis = redis.as_ref().map_err(Clone::clone)?;
    let generator = LoadGenerator::connect(&[redis.address], clients)?;
    Ok(Target::of_generator(name, generator, vec![redis.process.id()]))
}

/// The proxy and its upstream Redis: the CPU time of both counts.
pub(crate) fn on_proxy<C: Client + 'static>(
    name: &str,
    systems: &Systems,
    clients: Vec<C>,
) -> Result<Target, String> {
    let redis = systems.module.as_ref().map_err(Clone::clone)?;
    let proxy = systems.proxy.as_ref().map_err(Clone::clone)?;
    let generator = LoadGenerator::connect(&proxy.addresses(), clients)?;
    let mut processes = proxy.process_ids();
    processes.push(redis.process.id());
    Ok(Target::of_generator(name, generator, processes))
}

pub(crate) fn on_etcd(
    name: &str,
    etcd: &Result<Etcd, String>,
    method: EtcdMethod,
    clients: usize,
) -> Result<Target, String> {
    let etcd = etcd.as_ref().map_err(Clone::clone)?;
    let leader = etcd.addresses[etcd.await_leader()?];
    Ok(Target::of_etcd(name, EtcdLoad::connect(leader, method, clients)?, etcd.process_ids()))
}

pub(crate) fn on_zookeeper(
    name: &str,
    systems: &Systems,
    work: ZooKeeperWork,
    clients: usize,
) -> Result<Target, String> {
    let zookeeper = systems.zookeeper.as_ref().map_err(Clone::clone)?;
    let last_release = LastRelease::default();
    let client = |number: usize| Recipe::new(work, number, &last_release);
    let generator = LoadGenerator::connect(&[zookeeper.leader()?], (0..clients).map(client).collect())?;
    Ok(Target::of_generator(name, generator, zookeeper.process_ids()))
}

pub(crate) fn pairs(words: LockCommands, clients: usize) -> Vec<PairClient> {
    let words = Rc::new(words);
    (0..clients).map(|number| PairClient::new(&words, number)).collect()
}

pub(crate) fn set_nx(address: SocketAddr) -> Result<LockCommands, String> {
    Ok(LockCommands::SetNx { compare_and_delete: load_script(address, COMPARE_AND_DELETE)? })
}

pub(crate) fn fenced(address: SocketAddr) -> Result<LockCommands, String> {
    Ok(LockCommands::Fenced {
        acquire: load_script(address, FENCED)?,
        compare_and_delete: load_script(address, COMPARE_AND_DELETE)?,
    })
}
