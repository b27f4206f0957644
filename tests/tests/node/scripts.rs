//! Scripts that the leader runs: their order, their place beside other commands, and that all nodes are equal after them.

use super::*;
use bytes::Bytes;
use redfence::node_api::{AdminRequest, OwnedQuery};
use redfence::tier2::Node;
use redfence_core::keyspace::Resp;
use redfence_core::machine::Watched;

/// Not one of the forms that are logged as native commands.
const APPEND_LENGTH: &str =
    "local n = redis.call('llen', KEYS[1]) redis.call('rpush', KEYS[1], ARGV[1]) return {n, ARGV[1]}";

fn redis<'a>(words: &[&'a str]) -> Command<'a> {
    let argv = words.iter().map(|word| word.as_bytes()).collect();
    Command::Redis { db: 0, resp: Resp::Two, member: None, argv }
}

fn read(words: &[&str]) -> OwnedQuery {
    let argv = words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
    match words[0].starts_with("EVAL") {
        true => OwnedQuery::Script { db: 0, resp: Resp::Two, member: None, argv },
        false => OwnedQuery::Redis { db: 0, resp: Resp::Two, member: None, argv },
    }
}

fn texts(reply: &Reply) -> Vec<String> {
    let Reply::Array(items) = reply else { panic!("not an array: {reply:?}") };
    let text = |item: &Reply| match item {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("not a text: {other:?}"),
    };
    items.iter().map(text).collect()
}

fn list(cluster: &mut SimCluster, node: NodeId, name: &str) -> Vec<String> {
    let ticket = cluster.read(node, read(&["LRANGE", name, "0", "-1"]));
    texts(&cluster.wait_for(ticket, 6_000))
}

#[test]
fn a_script_runs_from_every_node_and_all_are_equal() {
    for seed in 0..10 {
        let mut cluster = settled(3, seed);
        for (turn, node) in cluster.ids().into_iter().enumerate() {
            let value = turn.to_string();
            let ticket = cluster.submit(node, &redis(&["EVAL", APPEND_LENGTH, "1", "l", &value]), 0);
            let expected =
                Reply::Array(vec![Reply::Int(turn as i64), Reply::Bulk(value.into_bytes().into())]);
            assert_eq!(cluster.wait_for(ticket, 1_000), expected, "seed {seed}");
        }
        assert_eq!(list(&mut cluster, 1, "l"), ["0", "1", "2"], "seed {seed}");
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn what_is_pipelined_around_a_script_keeps_its_order_on_every_node() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        cluster.network().loss_permille = if seed % 2 == 0 { 0 } else { 30 };
        cluster.network().double_permille = 50;
        let nodes = cluster.ids();
        let mut tickets = Vec::new();
        for number in 0..60u64 {
            for client in 0..6u64 {
                let (name, value) = (format!("l{client}"), number.to_string());
                let command = match (number + client) % 3 {
                    0 => redis(&["EVAL", APPEND_LENGTH, "1", &name, &value]),
                    _ => redis(&["RPUSH", &name, &value]),
                };
                let node = nodes[client as usize % nodes.len()];
                tickets.push(cluster.submit_by(node, client + 1, &command, 0));
            }
            cluster.run_for(seed % 4);
        }
        if seed % 4 == 3 {
            let to = follower(&cluster);
            cluster.admin(to, AdminRequest::Transfer { id: to });
        }
        cluster.run_for(1_000);
        cluster.heal();
        let answered = |cluster: &SimCluster| tickets.iter().all(|ticket| cluster.answer(*ticket).is_some());
        assert!(cluster.run_until(8_000, answered), "seed {seed}: somebody was not answered");
        let served = tickets.iter().all(|ticket| !matches!(cluster.answer(*ticket), Some(Reply::Error(_))));
        assert!(served, "seed {seed}: somebody was refused");
        let expected: Vec<String> = (0..60).map(|number| number.to_string()).collect();
        for client in 0..6 {
            assert_eq!(list(&mut cluster, 1, &format!("l{client}")), expected, "seed {seed}");
        }
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn scripts_on_the_same_key_see_each_other() {
    for seed in 0..10 {
        let mut cluster = settled(3, seed);
        let script = "local n = tonumber(redis.call('get', KEYS[1]) or '0') + 1 redis.call('set', KEYS[1], n) return n";
        let nodes = cluster.ids();
        let tickets: Vec<Ticket> = (0..40)
            .map(|at| cluster.submit_by(nodes[at % 3], at as u64 + 1, &redis(&["EVAL", script, "1", "n"]), 0))
            .collect();
        let mut numbers: Vec<i64> = tickets
            .iter()
            .map(|ticket| match cluster.wait_for(*ticket, 4_000) {
                Reply::Int(number) => number,
                other => panic!("seed {seed}: {other:?}"),
            })
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=40).collect::<Vec<i64>>(), "seed {seed}");
        assert_equal_states(&mut cluster, seed);
    }
}

/// Other connections keep entries under way all the time; a script has its turn nonetheless.
#[test]
fn a_script_is_not_passed_for_ever() {
    for seed in 0..10 {
        let mut cluster = settled(3, seed);
        let leader = leader(&cluster);
        let mut script = None;
        for step in 0..1_500u64 {
            let (name, value) = (format!("k{}", step % 50), step.to_string());
            cluster.submit_by(leader, 100 + step % 50, &redis(&["SET", &name, &value]), 0);
            if step == 200 {
                script =
                    Some(cluster.submit_by(leader, 7, &redis(&["EVAL", APPEND_LENGTH, "1", "l", "x"]), 0));
            }
            // Far more often than an entry takes.
            cluster.run_until(0, |_| false);
            if step % 5 == 0 {
                cluster.run_for(1);
            }
        }
        let ticket = script.expect("asked");
        let answer = cluster.answers.get(&ticket).unwrap_or_else(|| panic!("seed {seed}: not run"));
        assert!(!matches!(answer, Reply::Error(_)), "seed {seed}: {answer:?}");
        cluster.run_for(1_000);
        assert_equal_states(&mut cluster, seed);
    }
}

/// Locks that end all the time: every stamp a script could have makes something due.
#[test]
fn scripts_run_though_something_is_due_at_every_moment() {
    for seed in 0..10 {
        let mut cluster = settled(3, seed);
        let leader = leader(&cluster);
        for at in 0..2_000u64 {
            cluster.submit(leader, &acquire(&format!("r{at}"), "a", 100 + at / 4, 0), 0);
        }
        cluster.run_for(100);
        for turn in 0..10 {
            let ticket = cluster.submit(leader, &redis(&["EVAL", APPEND_LENGTH, "1", "l", "x"]), 0);
            let reply = cluster.wait_for(ticket, 200);
            assert!(!matches!(reply, Reply::Error(_)), "seed {seed}: turn {turn}: {reply:?}");
            cluster.run_for(20);
        }
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn an_endless_script_changes_nothing_and_others_are_served() {
    let mut cluster = settled(3, 4);
    let node = follower(&cluster);
    let endless = "redis.call('set', KEYS[1], 'x') while true do end";
    let hostile: Vec<Ticket> =
        (0..5).map(|at| cluster.submit_by(node, 50 + at, &redis(&["EVAL", endless, "1", "k"]), 0)).collect();
    take(&mut cluster, node, "r", "a", 60_000);
    let ticket = cluster.submit_by(node, 1, &redis(&["EVAL", APPEND_LENGTH, "1", "l", "x"]), 0);
    let reply = cluster.wait_for(ticket, 5_000);
    assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
    for ticket in hostile {
        assert!(matches!(cluster.wait_for(ticket, 6_000), Reply::Error(_)));
    }
    let ticket = cluster.read(node, read(&["GET", "k"]));
    assert_eq!(cluster.wait_for(ticket, 1_000), Reply::Nil);
    assert_equal_states(&mut cluster, 4);
}

/// While a flush is being swept, what it ended goes to who waits for it, whoever asks first.
#[test]
fn a_flushed_lock_goes_to_its_waiter_before_a_script_gets_it() {
    for seed in 0..3 {
        let mut cluster = settled(3, seed);
        let leader = leader(&cluster);
        for part in 0..24 {
            let names: Vec<String> = (0..500).map(|at| format!("k{part}-{at}")).collect();
            let words: Vec<&str> =
                std::iter::once("MSET").chain(names.iter().flat_map(|name| [name.as_str(), "v"])).collect();
            let ticket = cluster.submit(leader, &redis(&words), 0);
            assert_eq!(cluster.wait_for(ticket, 1_000), Reply::OK, "seed {seed}");
        }
        take(&mut cluster, leader, "lock", "first", 60_000);
        let waits = cluster.submit(leader, &acquire("lock", "second", 60_000, 30_000), 30_000);
        cluster.run_for(50);
        let script = "if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('SET', KEYS[1], 'script') return 1 end return 0";
        cluster.submit_by(leader, 7, &redis(&["FLUSHALL"]), 0);
        let ticket = cluster.submit_by(leader, 7, &redis(&["EVAL", script, "1", "lock"]), 0);
        assert_eq!(cluster.wait_for(ticket, 2_000), Reply::Int(0), "seed {seed}");
        assert!(matches!(cluster.wait_for(waits, 2_000), Reply::Granted { .. }), "seed {seed}");
        cluster.run_for(1_000);
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn a_read_only_script_is_answered_by_every_node_and_may_not_write() {
    let mut cluster = settled(3, 5);
    let ticket = cluster.submit(1, &redis(&["SET", "k", "v"]), 0);
    cluster.wait_for(ticket, 1_000);
    for node in cluster.ids() {
        let index = cluster.node(node).map(Node::applied_index);
        let ticket = cluster.read(node, read(&["EVAL_RO", "return redis.call('get', KEYS[1])", "1", "k"]));
        assert_eq!(cluster.wait_for(ticket, 1_000), Reply::Bulk(Bytes::from_static(b"v")));
        assert_eq!(cluster.node(node).map(Node::applied_index), index, "nothing was logged");
        let ticket =
            cluster.read(node, read(&["EVAL_RO", "return redis.call('set', KEYS[1], 'w')", "1", "k"]));
        assert!(matches!(cluster.wait_for(ticket, 1_000), Reply::Error(_)));
    }
    assert_equal_states(&mut cluster, 5);
}

/// Recognised scripts are logged as native commands and pipelined with the rest.
#[test]
fn compare_and_delete_is_pipelined_like_any_command() {
    let script =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    let mut cluster = settled(3, 6);
    let node = follower(&cluster);
    let before = cluster.node(node).map_or(0, Node::applied_index);
    let tickets: Vec<Ticket> = (0..50)
        .flat_map(|at| {
            let name = format!("k{at}");
            let set = cluster.submit_by(node, 1, &redis(&["SET", &name, "me", "NX", "PX", "30000"]), 0);
            let ends = cluster.submit_by(node, 1, &redis(&["EVAL", script, "1", &name, "me"]), 0);
            [set, ends]
        })
        .collect();
    for pair in tickets.chunks(2) {
        assert!(matches!(cluster.wait_for(pair[0], 1_000), Reply::Status(_)));
        assert_eq!(cluster.wait_for(pair[1], 1_000), Reply::Int(1));
    }
    let entries = cluster.node(node).map_or(0, Node::applied_index) - before;
    assert!(entries < 20, "{entries} entries for 100 commands of one pipeline");
    assert_equal_states(&mut cluster, 6);
}

/// Two scripts of one entry: the second is a transaction that watches what the first changes.
#[test]
fn a_watched_key_that_a_script_of_the_same_entry_changes_ends_the_transaction() {
    for seed in 0..10 {
        let mut cluster = settled(3, seed);
        let leader = leader(&cluster);
        let ticket =
            cluster.read(leader, OwnedQuery::Tokens { db: 0, keys: vec![Bytes::from_static(b"guard")] });
        let Reply::Array(tokens) = cluster.wait_for(ticket, 1_000) else { panic!("seed {seed}: no tokens") };
        let [Reply::Int(token)] = tokens[..] else { panic!("seed {seed}: {tokens:?}") };
        let take = "redis.call('set', KEYS[1], ARGV[1]) return ARGV[1]";
        // While it is under way both scripts come to wait, and then share an entry.
        cluster.submit_by(leader, 3, &redis(&["SET", "other", "1"]), 0);
        let first = cluster.submit_by(leader, 1, &redis(&["EVAL", take, "1", "guard", "A"]), 0);
        let watched = vec![Watched { db: 0, key: b"guard", token: token as u64 }];
        let commands = vec![["EVAL", take, "1", "lock", "B"].iter().map(|word| word.as_bytes()).collect()];
        let transaction = Command::Transaction { db: 0, resp: Resp::Two, member: None, watched, commands };
        let second = cluster.submit_by(leader, 2, &transaction, 0);
        assert_eq!(cluster.wait_for(first, 1_000), Reply::bulk("A"), "seed {seed}");
        assert_eq!(cluster.wait_for(second, 1_000), Reply::NilArray, "seed {seed}: two holders");
        assert_equal_states(&mut cluster, seed);
    }
}
