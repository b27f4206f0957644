//! Fairness by cost: what heavy commands of some clients cost the others, and that they are served all the same.

use super::*;
use bytes::Bytes;
use redfence::node_api::{Input, OwnedQuery};
use redfence_core::keyspace::Resp;

/// Heavy commands that are in the log at one time, of a node: as many as [`mset`]s fit into what may be under way, and one more.
const WINDOW: usize = 13;

fn redis<'a>(words: &[&'a str]) -> Command<'a> {
    let argv = words.iter().map(|word| word.as_bytes()).collect();
    Command::Redis { db: 0, resp: Resp::Two, member: None, argv }
}

/// 200 keys.
fn mset(cluster: &mut SimCluster, node: NodeId, connection: u64, name: &str) -> Ticket {
    let keys: Vec<String> = (0..200).map(|number| format!("{name}:{number}")).collect();
    let words: Vec<&str> =
        ["MSET"].into_iter().chain(keys.iter().flat_map(|key| [key.as_str(), "v"])).collect();
    let command = redis(&words);
    cluster.submit_by(node, connection, &command, 0)
}

fn answered(cluster: &SimCluster, tickets: &[Ticket]) -> usize {
    tickets.iter().filter(|ticket| cluster.answer(**ticket).is_some()).count()
}

fn read(cluster: &mut SimCluster, words: &[&str]) -> Reply {
    let argv = words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
    let node = leader(cluster);
    let ticket = cluster.read(node, OwnedQuery::Redis { db: 0, resp: Resp::Two, member: None, argv });
    cluster.wait_for(ticket, 6_000)
}

/// Heavy commands at `busy`, then a lock at `node`: how many of the heavy ones were answered before it, of 400.
fn passed_by_heavy(seed: u64, busy: fn(&SimCluster) -> NodeId, node: fn(&SimCluster) -> NodeId) -> usize {
    let mut cluster = settled(3, seed);
    let (busy, node) = (busy(&cluster), node(&cluster));
    let heavy: Vec<Ticket> =
        (0..400).map(|number| mset(&mut cluster, busy, 100 + number, &format!("k{number}"))).collect();
    let lock = cluster.submit_by(node, 7, &acquire("r", "me", 60_000, 0), 0);
    assert!(cluster.run_until(4_000, |cluster| cluster.answer(lock).is_some()), "seed {seed}");
    let before = answered(&cluster, &heavy);
    granted(cluster.answer(lock).expect("answered"));
    assert!(cluster.run_until(4_500, |cluster| answered(cluster, &heavy) == heavy.len()), "seed {seed}");
    assert!(heavy.iter().all(|ticket| cluster.answer(*ticket) == Some(&Reply::OK)), "seed {seed}");
    assert_equal_states(&mut cluster, seed);
    before
}

#[test]
fn a_lock_has_few_heavy_commands_of_others_in_front_of_it() {
    for seed in 0..5 {
        for (busy, node) in [(leader, leader), (follower, follower), (leader, follower), (follower, leader)]
            as [(fn(&_) -> _, fn(&_) -> _); 4]
        {
            let before = passed_by_heavy(seed, busy, node);
            assert!(before <= 4 * WINDOW, "seed {seed}: {before} heavy commands came first");
        }
    }
}

#[test]
fn what_is_pipelined_around_heavy_commands_keeps_its_order_on_every_node() {
    for seed in 0..12 {
        let mut cluster = settled(3, seed);
        cluster.network().loss_permille = if seed % 2 == 0 { 0 } else { 30 };
        cluster.network().double_permille = 50;
        let nodes = cluster.ids();
        let script = "return redis.call('rpush', KEYS[1], ARGV[1])";
        let mut tickets = Vec::new();
        for number in 0..45u64 {
            for client in 0..6u64 {
                let (name, value) = (format!("l{client}"), number.to_string());
                let heavy: Vec<&str> =
                    ["RPUSH", &name].into_iter().chain(std::iter::repeat_n(value.as_str(), 300)).collect();
                let command = match (number + client) % 4 {
                    0 => redis(&["EVAL", script, "1", &name, &value]),
                    1 | 2 => redis(&heavy),
                    _ => redis(&["RPUSH", &name, &value]),
                };
                let node = nodes[client as usize % nodes.len()];
                tickets.push(cluster.submit_by(node, client + 1, &command, 0));
            }
        }
        cluster.run_for(1_000);
        cluster.heal();
        assert!(
            cluster.run_until(8_000, |cluster| answered(cluster, &tickets) == tickets.len()),
            "seed {seed}"
        );
        for client in 0..6 {
            let Reply::Array(items) = read(&mut cluster, &["LRANGE", &format!("l{client}"), "0", "-1"])
            else {
                panic!("seed {seed}: not a list")
            };
            let mut values = items;
            values.dedup();
            let expected: Vec<Reply> = (0..45).map(|number: u64| Reply::bulk(number.to_string())).collect();
            assert_eq!(values, expected, "seed {seed}: client {client}");
        }
        assert_equal_states(&mut cluster, seed);
    }
}

/// Neither light commands without a pause nor a long pipeline of heavy ones keep a heavy one from its turn.
#[test]
fn a_heavy_command_has_its_turn() {
    for seed in 0..5 {
        let mut cluster = settled(3, seed);
        let node = leader(&cluster);
        let pipeline: Vec<Ticket> =
            (0..400).map(|number| mset(&mut cluster, node, 5, &format!("p{number}"))).collect();
        let single = mset(&mut cluster, node, 6, "single");
        let mut step = 0u64;
        while cluster.answer(single).is_none() {
            for _ in 0..5 {
                step += 1;
                let (name, value) = (format!("k{}", step % 50), step.to_string());
                cluster.submit_by(node, 100 + step % 50, &redis(&["SET", &name, &value]), 0);
                cluster.run_until(0, |_| false);
            }
            cluster.run_for(1);
            assert!(step < 10_000, "seed {seed}: it never had its turn");
        }
        assert_eq!(cluster.answer(single), Some(&Reply::OK), "seed {seed}");
        let before = answered(&cluster, &pipeline);
        assert!(before <= 3 * WINDOW, "seed {seed}: {before} of another connection came first");
        assert!(
            cluster.run_until(4_500, |cluster| answered(cluster, &pipeline) == pipeline.len()),
            "seed {seed}"
        );
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn a_heavy_command_that_waited_until_its_deadline_was_certainly_not_applied() {
    for seed in 0..3 {
        let mut cluster = settled(3, seed);
        let node = follower(&cluster);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != node).collect();
        cluster.network().split(&[node], &others);
        let heavy: Vec<Ticket> =
            (0..60).map(|number| mset(&mut cluster, node, 100 + number, &format!("k{number}"))).collect();
        assert!(cluster.run_until(7_000, |cluster| answered(cluster, &heavy) == heavy.len()), "seed {seed}");
        cluster.heal();
        cluster.run_for(3_000);
        let mut unavailable = 0;
        for (number, ticket) in heavy.iter().enumerate() {
            match code(cluster.answer(*ticket).expect("answered")) {
                "UNAVAILABLE" => {
                    unavailable += 1;
                    let there = read(&mut cluster, &["GET", &format!("k{number}:0")]);
                    assert_eq!(there, Reply::Nil, "seed {seed}: {number}");
                }
                "INDETERMINATE" => {}
                other => panic!("seed {seed}: {other}"),
            }
        }
        assert!(unavailable >= heavy.len() - WINDOW, "seed {seed}: {unavailable}");
        assert_equal_states(&mut cluster, seed);
    }
}

/// A blocking pop of many keys whose client leaves before its turn takes nothing.
#[test]
fn a_heavy_command_that_is_called_off_before_its_turn_never_happens() {
    let mut cluster = settled(3, 1);
    let node = leader(&cluster);
    for number in 0..60 {
        mset(&mut cluster, node, 100 + number, &format!("k{number}"));
    }
    let keys: Vec<String> = (0..100).map(|number| format!("list{number}")).collect();
    let words: Vec<&str> =
        ["BLPOP"].into_iter().chain(keys.iter().map(String::as_str)).chain(["0"]).collect();
    let left = cluster.submit_by(node, 1, &redis(&words), u64::MAX);
    let withdrawn = cluster.submit_by(node, 2, &redis(&words), u64::MAX);
    cluster.input(node, Input::Cancel { ticket: left });
    cluster.input(node, Input::Withdraw { ticket: withdrawn });
    assert_eq!(cluster.wait_for(withdrawn, 1_000), Reply::NilArray);
    cluster.run_for(2_000);
    let push = cluster.submit_by(node, 3, &redis(&["RPUSH", "list7", "v"]), 0);
    assert_eq!(cluster.wait_for(push, 1_000), Reply::Int(1));
    assert_eq!(read(&mut cluster, &["LLEN", "list7"]), Reply::Int(1));
    assert!(cluster.answer(left).is_none());
}
