//! One truth on all nodes: settings, routes, the upstream Redis, high-water marks, scripts. Real processes.

use std::time::Duration;

use redfence_tests::cluster::{Cluster, Host, Options};
use redfence_tests::process::poll_until;
use redfence_tests::redis::{self, Redis};
use redfence_tests::resp::{Connection, Value};

const SOON: Duration = Duration::from_secs(30);
const ASK: Duration = Duration::from_secs(10);

fn host(environment: &[(&str, &str)]) -> Host {
    let environment =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Host { environment, ..Host::default() }
}

fn ask(cluster: &Cluster, id: u64, words: &[&str]) -> Value {
    cluster
        .node(id)
        .ask(words, ASK)
        .unwrap_or_else(|| panic!("node {id} does not answer {words:?}\n{}", cluster.log()))
}

fn await_that(cluster: &Cluster, what: &str, done: impl FnMut() -> bool) {
    assert!(poll_until(SOON, done), "{what}\n{}", cluster.log());
}

fn code(reply: &Value) -> String {
    if reply.is_error() {
        reply.error_code().to_owned()
    } else {
        String::new()
    }
}

/// Item 7.
#[test]
fn fence_check_without_a_redis_is_the_same_on_all_nodes_and_over_restarts() {
    let mut cluster = Cluster::start(&Options::nodes(3));
    cluster.wait_for_leader(SOON);
    assert_eq!(ask(&cluster, 1, &["FENCE.CHECK", "r", "43"]), Value::Integer(1));
    for id in 1..=3 {
        assert_eq!(ask(&cluster, id, &["FENCE.CHECK", "r", "42"]), Value::Integer(0), "node {id}");
        assert_eq!(ask(&cluster, id, &["FENCE.GET", "r"]), Value::Integer(43), "node {id}");
    }
    (1..=3).for_each(|id| cluster.kill(id));
    (1..=3).for_each(|id| cluster.restart(id));
    cluster.wait_for_leader(SOON);
    await_that(&cluster, "the mark is there again", || {
        cluster.node(2).ask(&["FENCE.CHECK", "r", "42"], ASK) == Some(Value::Integer(0))
    });
    let stale = ask(&cluster, 3, &["FENCE.CALL", "r", "42", "SET", "data", "old"]);
    assert_eq!(stale, Value::Error("STALE fence 42 is behind 43".into()));
}

/// Item 7: a table per node would grant it at every node.
#[test]
fn efficiency_without_a_redis_is_granted_once() {
    let cluster = Cluster::start(&Options::nodes(3).flag("--default-tier", "efficiency"));
    cluster.wait_for_leader(SOON);
    assert!(!ask(&cluster, 1, &["LOCK.ACQUIRE", "a", "60000", "TIER", "EFFICIENCY"]).is_error());
    for id in 1..=3 {
        assert_eq!(
            ask(&cluster, id, &["LOCK.ACQUIRE", "a", "60000", "TIER", "EFFICIENCY"]),
            Value::NullBulk,
            "node {id}"
        );
        assert_eq!(ask(&cluster, id, &["LOCK.ACQUIRE", "a", "60000"]), Value::NullBulk, "node {id}");
    }
}

/// Item 15: nodes started with different routes follow the founder's.
#[test]
fn every_node_follows_the_routes_of_the_cluster() {
    let redis = Redis::start(&redis::Options::plain());
    let address = redis.address().to_string();
    let mut options = Options::nodes(3).flag("--redis", &address);
    options.hosts = vec![
        host(&[("REDFENCE_ROUTE", "cache:*=efficiency")]),
        host(&[]),
        host(&[("REDFENCE_ROUTE", "other:*=efficiency")]),
    ];
    let cluster = Cluster::start(&options);
    cluster.wait_for_leader(SOON);
    let route = |id| ask(&cluster, id, &["LOCK.CLUSTER", "GET", "route"]);
    let first = route(1);
    assert_eq!((route(2), route(3)), (first.clone(), first));
    for name in ["cache:1", "other:1"] {
        let granted = |id| {
            let mut reply = Value::NullBulk;
            await_that(&cluster, "the name is served", || {
                reply = ask(&cluster, id, &["LOCK.ACQUIRE", name, "60000"]);
                code(&reply) != "UNAVAILABLE"
            });
            matches!(reply, Value::Array(_))
        };
        let holders = (1..=3).filter(|id| granted(*id)).count();
        assert_eq!(holders, 1, "{name} has one holder\n{}", cluster.log());
    }
}

/// A change of routes reaches every node; a node that missed it serves no name by the old ones.
#[test]
fn a_node_that_missed_a_change_of_routes_serves_nothing_by_the_old_ones() {
    let redis = Redis::start(&redis::Options::plain());
    let options =
        Options::nodes(3).flag("--redis", &redis.address().to_string()).flag("--default-tier", "efficiency");
    let cluster = Cluster::start(&options);
    let leader = cluster.wait_for_leader(SOON);
    let (other, paused) = (cluster.followers(leader)[0], cluster.followers(leader)[1]);
    await_that(&cluster, "tier 1 is served", || {
        matches!(
            cluster.node(paused).ask(&["LOCK.ACQUIRE", "warm", "1"], ASK),
            Some(Value::Array(_) | Value::NullBulk)
        )
    });
    cluster.pause(paused);
    let set = ask(&cluster, leader, &["LOCK.CLUSTER", "SET", "route", "wallet:*=correctness"]);
    assert_eq!(code(&set), "INDETERMINATE", "it waits for the silent one\n{}", cluster.log());
    await_that(&cluster, "the change is in force", || {
        // Until then the old tier answers, or none.
        let info = ask(&cluster, other, &["LOCK.INFO", "wallet:1"]);
        matches!(&info, Value::Array(fields) if fields.contains(&Value::bulk("CORRECTNESS")))
    });
    let holder = ask(&cluster, other, &["LOCK.ACQUIRE", "wallet:1", "600000"]);
    assert!(matches!(holder, Value::Array(_)), "{holder:?}\n{}", cluster.log());
    assert_eq!(redis.ask(&["EXISTS", "wallet:1"]), Value::Integer(0), "it is held in tier 2");
    cluster.resume(paused);
    for _ in 0..50 {
        let reply = ask(&cluster, paused, &["LOCK.ACQUIRE", "wallet:1", "600000"]);
        assert!(!matches!(reply, Value::Array(_)), "two holders: {reply:?}\n{}", cluster.log());
    }
    await_that(&cluster, "the node follows", || {
        ask(&cluster, paused, &["LOCK.ACQUIRE", "wallet:1", "600000"]) == Value::NullBulk
    });
    assert_eq!(ask(&cluster, paused, &["LOCK.CLUSTER", "GET", "route"]), Value::bulk("wallet:*=correctness"));
}

/// The same for a wait that the Lua library serves: a grant it gets by the old routes is not told.
#[test]
fn a_wait_at_a_node_that_missed_a_change_of_routes_ends_without_a_grant() {
    let redis = Redis::start(&redis::Options::plain());
    let options = Options::nodes(3)
        .relayed()
        .flag("--redis", &redis.address().to_string())
        .flag("--default-tier", "efficiency");
    let cluster = Cluster::start(&options);
    let leader = cluster.wait_for_leader(SOON);
    let (other, cut_off) = (cluster.followers(leader)[0], cluster.followers(leader)[1]);
    await_that(&cluster, "tier 1 is served", || {
        [other, cut_off].iter().all(|id| {
            let reply = cluster.node(*id).ask(&["LOCK.ACQUIRE", "warm", "1"], ASK);
            matches!(reply, Some(Value::Array(_) | Value::NullBulk))
        })
    });
    let before = ask(&cluster, other, &["LOCK.ACQUIRE", "wallet:1", "600000"]);
    assert!(matches!(before, Value::Array(_)), "{before:?}");
    let mut waiter = Connection::open(cluster.node(cut_off).address).expect("the node serves");
    waiter.send(&["LOCK.ACQUIRE", "wallet:1", "600000", "WAIT", "120000"]).expect("the node serves");
    await_that(
        &cluster,
        "it stands in line",
        || matches!(ask(&cluster, other, &["LOCK.QUEUE", "wallet:1"]), Value::Array(line) if line.len() == 1),
    );
    cluster.cut_off(cut_off);
    let set = ask(&cluster, leader, &["LOCK.CLUSTER", "SET", "route", "wallet:*=correctness"]);
    assert_eq!(code(&set), "INDETERMINATE", "it waits for the silent one\n{}", cluster.log());
    await_that(&cluster, "the change is in force", || {
        let info = ask(&cluster, other, &["LOCK.INFO", "wallet:1"]);
        matches!(&info, Value::Array(fields) if fields.contains(&Value::bulk("CORRECTNESS")))
    });
    let holder = ask(&cluster, other, &["LOCK.ACQUIRE", "wallet:1", "600000"]);
    assert!(matches!(holder, Value::Array(_)), "{holder:?}\n{}", cluster.log());
    // The lock taken before the change ends in the tier it was taken in: there the wait is served.
    assert_eq!(redis.ask(&["DEL", "wallet:1"]), Value::Integer(1));
    let told = waiter.receive(SOON);
    assert!(!matches!(told, Ok(Value::Array(_))), "two holders: {told:?}\n{}", cluster.log());
}

fn set_route(cluster: &Cluster, id: u64, value: &str) -> Value {
    ask(cluster, id, &["LOCK.CLUSTER", "SET", "route", value])
}

fn with_redis(redis: &Redis) -> Cluster {
    let options = Options::nodes(3)
        .relayed()
        .flag("--redis", &redis.address().to_string())
        .flag("--default-tier", "efficiency");
    let cluster = Cluster::start(&options);
    cluster.wait_for_leader(SOON);
    for id in 1..=3 {
        await_that(&cluster, "tier 1 is served", || {
            code(&ask(&cluster, id, &["SET", "warm", "1"])).is_empty()
        });
    }
    cluster
}

fn waits_in_line(cluster: &Cluster, id: u64, name: &str) {
    await_that(
        cluster,
        "it stands in line",
        || matches!(ask(cluster, id, &["LOCK.QUEUE", name]), Value::Array(line) if line.len() == 1),
    );
}

#[test]
fn a_change_of_routes_is_in_force_when_it_is_answered_and_the_next_waits_for_it() {
    let redis = Redis::start(&redis::Options::plain());
    let cluster = with_redis(&redis);
    let ok = Value::Simple(b"OK".to_vec());
    for round in 0..4 {
        for (id, tier) in [(1, "correctness"), (2, "efficiency"), (3, "correctness"), (3, "correctness")] {
            let route = format!("a{round}:*={tier}");
            assert_eq!(set_route(&cluster, id, &route), ok, "{route}\n{}", cluster.log());
            let info = ask(&cluster, id, &["LOCK.INFO", &format!("a{round}:1")]);
            let tier = Value::bulk(tier.to_uppercase());
            assert!(matches!(&info, Value::Array(fields) if fields.contains(&tier)), "{info:?}");
        }
    }
    // Two at once: both come into force, one behind the other.
    let mut clients = [1, 2].map(|id| Connection::open(cluster.node(id).address).expect("the node serves"));
    clients[0].send(&["LOCK.CLUSTER", "SET", "route", "b:*=correctness"]).expect("the node serves");
    clients[1].send(&["LOCK.CLUSTER", "SET", "default-tier", "correctness"]).expect("the node serves");
    for client in &mut clients {
        assert_eq!(client.receive(ASK).ok(), Some(ok.clone()), "{}", cluster.log());
    }
    assert_eq!(ask(&cluster, 3, &["LOCK.CLUSTER", "GET", "route"]), Value::bulk("b:*=correctness"));
    assert_eq!(ask(&cluster, 3, &["LOCK.CLUSTER", "GET", "default-tier"]), Value::bulk("correctness"));
}

#[test]
fn a_change_of_routes_ends_the_waits_it_decides_otherwise_and_no_others() {
    let redis = Redis::start(&redis::Options::plain());
    let cluster = with_redis(&redis);
    let ok = Value::Simple(b"OK".to_vec());
    assert_eq!(set_route(&cluster, 1, "keep:*=correctness move:*=correctness"), ok);
    // OK says that the answering node follows; the others do a moment later.
    await_that(&cluster, "node 2 follows", || {
        let info = ask(&cluster, 2, &["LOCK.INFO", "move:1"]);
        matches!(info, Value::Array(fields) if fields[3].text() == "CORRECTNESS")
    });
    let open = || Connection::open(cluster.node(2).address).expect("the node serves");
    for name in ["keep:1", "move:1", "plain:1"] {
        assert!(matches!(
            ask(&cluster, 1, &["LOCK.ACQUIRE", name, "600000", "OWNER", "me"]),
            Value::Array(_)
        ));
    }
    let wait = |words: &[&str]| {
        let mut client = open();
        client.send(words).expect("the node serves");
        client
    };
    let mut kept = wait(&["LOCK.ACQUIRE", "keep:1", "600000", "WAIT", "120000"]);
    let mut kept_plain = wait(&["LOCK.ACQUIRE", "plain:1", "600000", "WAIT", "120000"]);
    let mut moved = wait(&["LOCK.ACQUIRE", "move:1", "600000", "WAIT", "120000"]);
    let mut popping = wait(&["BLPOP", "keep:list", "0"]);
    let mut popping_plain = wait(&["BLPOP", "plain:list", "0"]);
    let mut listening = wait(&["SUBSCRIBE", "news"]);
    assert!(matches!(listening.receive(ASK), Ok(Value::Array(_))));
    ["keep:1", "plain:1", "move:1"].iter().for_each(|name| waits_in_line(&cluster, 1, name));
    await_that(&cluster, "a client is blocked at the Redis", || {
        redis.ask(&["INFO", "clients"]).text().contains("blocked_clients:1")
    });

    assert_eq!(set_route(&cluster, 1, "keep:*=correctness zzz:*=correctness"), ok, "{}", cluster.log());
    // In force on all nodes, and then some: whoever is to be disconnected has been.
    assert_eq!(set_route(&cluster, 2, "keep:*=correctness"), ok, "{}", cluster.log());
    assert!(moved.receive(ASK).is_err(), "its name moved to the other tier");

    assert_eq!(ask(&cluster, 1, &["DEL", "keep:1"]), Value::Integer(1));
    assert_eq!(ask(&cluster, 1, &["DEL", "plain:1"]), Value::Integer(1));
    for client in [&mut kept, &mut kept_plain] {
        let told = client.receive(ASK);
        assert!(matches!(told, Ok(Value::Array(_))), "{told:?}\n{}", cluster.log());
    }
    for (list, client) in [("keep:list", &mut popping), ("plain:list", &mut popping_plain)] {
        assert_eq!(ask(&cluster, 1, &["RPUSH", list, "x"]), Value::Integer(1));
        let told = client.receive(ASK);
        assert!(matches!(told, Ok(Value::Array(_))), "{list}: {told:?}\n{}", cluster.log());
    }
    ask(&cluster, 2, &["PUBLISH", "news", "x"]);
    let told = listening.receive(ASK);
    assert!(matches!(told, Ok(Value::Array(_))), "{told:?}\n{}", cluster.log());
}

/// A node that is cut off has a client that waits in Tier 2. The name moves to Tier 1 meanwhile: the wait is not served.
#[test]
fn a_wait_in_tier_2_is_not_served_after_its_name_moved_to_tier_1() {
    let redis = Redis::start(&redis::Options::plain());
    let cluster = with_redis(&redis);
    let leader = cluster.wait_for_leader(SOON);
    let (other, cut_off) = (cluster.followers(leader)[0], cluster.followers(leader)[1]);
    assert_eq!(set_route(&cluster, leader, "wallet:*=correctness"), Value::Simple(b"OK".to_vec()));
    let Value::Array(before) = ask(&cluster, other, &["LOCK.ACQUIRE", "wallet:1", "600000"]) else {
        panic!("not granted\n{}", cluster.log())
    };
    await_that(&cluster, "the node follows", || {
        ask(&cluster, cut_off, &["LOCK.ACQUIRE", "wallet:1", "600000"]) == Value::NullBulk
    });
    let mut waiter = Connection::open(cluster.node(cut_off).address).expect("the node serves");
    waiter.send(&["LOCK.ACQUIRE", "wallet:1", "600000", "WAIT", "120000"]).expect("the node serves");
    waits_in_line(&cluster, other, "wallet:1");
    cluster.cut_off(cut_off);
    await_that(&cluster, "the change is in force", || {
        set_route(&cluster, leader, "wallet:*=efficiency") == Value::Simple(b"OK".to_vec())
    });
    let holder = ask(&cluster, other, &["LOCK.ACQUIRE", "wallet:1", "600000"]);
    assert!(matches!(holder, Value::Array(_)), "{holder:?}\n{}", cluster.log());
    // The lock taken before the change ends in the tier it was taken in: there the wait would be served.
    let fence = before[0].integer().to_string();
    ask(&cluster, leader, &["LOCK.RELEASE", "wallet:1", &fence, "TIER", "CORRECTNESS"]);
    cluster.heal();
    let told = waiter.receive(SOON);
    assert!(!matches!(told, Ok(Value::Array(_))), "two holders: {told:?}\n{}", cluster.log());
}

/// Item 15: two Redis servers would be two stores.
#[test]
fn a_node_with_another_redis_than_the_leaders_answers_tier() {
    let (one, two) = (Redis::start(&redis::Options::plain()), Redis::start(&redis::Options::plain()));
    let (first, second) = (one.address().to_string(), two.address().to_string());
    let mut options = Options::nodes(3);
    options.hosts = [&first, &first, &second].map(|redis| host(&[("REDFENCE_REDIS", redis)])).into();
    let cluster = Cluster::start(&options);
    cluster.wait_for_leader(SOON);
    let serves = |id: u64| -> Option<bool> {
        let reply = ask(&cluster, id, &["LOCK.ACQUIRE", "a", "60000", "TIER", "EFFICIENCY"]);
        match code(&reply).as_str() {
            "UNAVAILABLE" => None,
            "TIER" => Some(false),
            "" => Some(true),
            other => panic!("{other}"),
        }
    };
    let mut seen = [None; 3];
    await_that(&cluster, "every node knows where it stands", || {
        seen = [serves(1), serves(2), serves(3)];
        seen.iter().all(Option::is_some)
    });
    assert!(
        seen == [Some(true), Some(true), Some(false)] || seen == [Some(false), Some(false), Some(true)],
        "{seen:?}"
    );
    for id in 1..=3 {
        let passed = ask(&cluster, id, &["SET", "key", "value"]);
        assert_eq!(code(&passed) == "TIER", seen[id as usize - 1] == Some(false), "node {id}: {passed:?}");
    }
}

#[test]
fn a_failover_of_the_redis_behind_goes_on() {
    let primary = Redis::start(&redis::Options::plain());
    let replica = Redis::start(&redis::Options::plain());
    let port = primary.address().port().to_string();
    replica.ask(&["REPLICAOF", "127.0.0.1", &port]);
    assert!(poll_until(SOON, || replica
        .ask(&["INFO", "replication"])
        .text()
        .contains("master_link_status:up")));
    let cluster = Cluster::start(&Options::nodes(1).flag("--redis", &primary.address().to_string()));
    await_that(&cluster, "tier 1 is served", || code(&ask(&cluster, 1, &["SET", "before", "1"])).is_empty());
    // The same address serves the promoted one: what stood there before is gone.
    let address = primary.address();
    let mut primary = primary;
    primary.kill();
    replica.ask(&["REPLICAOF", "NO", "ONE"]);
    let relay = std::net::TcpListener::bind(address).expect("the address is free again");
    let to = replica.address();
    std::thread::spawn(move || {
        for client in relay.incoming().flatten() {
            let Ok(server) = std::net::TcpStream::connect(to) else { continue };
            for (mut from, mut into) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server.try_clone().unwrap(), client.try_clone().unwrap()),
            ] {
                std::thread::spawn(move || std::io::copy(&mut from, &mut into));
            }
        }
    });
    await_that(&cluster, "tier 1 is served by the promoted one", || {
        let reply = ask(&cluster, 1, &["GET", "before"]);
        assert_ne!(code(&reply), "TIER", "a failover is no other Redis");
        reply == Value::bulk("1")
    });
}

/// Item 9.
#[test]
fn a_script_loaded_once_releases_keys_of_both_stores() {
    let redis = Redis::start(&redis::Options::plain());
    let options = Options::nodes(1)
        .flag("--redis", &redis.address().to_string())
        .flag("--route", "wallet:*=correctness");
    let cluster = Cluster::start(&options);
    await_that(&cluster, "it serves", || code(&ask(&cluster, 1, &["SET", "x", "1"])).is_empty());
    let body =
        "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
    let sha = ask(&cluster, 1, &["SCRIPT", "LOAD", body]).text();
    assert_eq!(ask(&cluster, 1, &["SCRIPT", "EXISTS", &sha]), Value::Array(vec![Value::Integer(1)]));
    for key in ["wallet:1", "plain:1"] {
        ask(&cluster, 1, &["SET", key, "me", "NX", "PX", "60000"]);
        assert_eq!(ask(&cluster, 1, &["EVALSHA", &sha, "1", key, "me"]), Value::Integer(1), "{key}");
    }
    redis.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(
        ask(&cluster, 1, &["SCRIPT", "EXISTS", &sha]),
        Value::Array(vec![Value::Integer(0)]),
        "one has it not"
    );
    ask(&cluster, 1, &["SCRIPT", "LOAD", body]);
    ask(&cluster, 1, &["SCRIPT", "FLUSH"]);
    for key in ["wallet:1", "plain:1"] {
        assert_eq!(code(&ask(&cluster, 1, &["EVALSHA", &sha, "1", key, "me"])), "NOSCRIPT", "{key}");
    }
}
