//! Commands that a client pipelines are applied in the order it sent them, whatever happens between its node and the leader.

use super::*;
use bytes::Bytes;
use redfence::node_api::{AdminRequest, Input, OwnedQuery};
use redfence_core::keyspace::Resp;

/// Clients, each with a connection and a list of its own.
const CLIENTS: u64 = 4;

/// Clients of all nodes push rising numbers, each to its own list, without waiting for answers.
struct Pushers {
    pushed: Vec<Vec<Ticket>>,
}

fn list_of(client: usize) -> String {
    format!("list{client}")
}

impl Pushers {
    fn new(cluster: &SimCluster) -> Pushers {
        Pushers { pushed: vec![Vec::new(); cluster.ids().len() * CLIENTS as usize] }
    }

    /// Every client pushes its next number.
    fn push(&mut self, cluster: &mut SimCluster) {
        let nodes = cluster.ids();
        for (client, pushed) in self.pushed.iter_mut().enumerate() {
            let node = nodes[client % nodes.len()];
            let (list, number) = (list_of(client), pushed.len().to_string());
            let argv = [&b"RPUSH"[..], list.as_bytes(), number.as_bytes()].into_iter().collect();
            let command = Command::Redis { db: 0, resp: Resp::Two, member: None, argv };
            pushed.push(cluster.submit_by(node, client as u64 + 1, &command, 0));
        }
    }

    /// Numbers rise, and those whose push was answered are there.
    fn check(&self, cluster: &mut SimCluster, seed: u64) {
        for (client, pushed) in self.pushed.iter().enumerate() {
            let numbers = numbers_in(cluster, &list_of(client));
            let falls = numbers.windows(2).find(|pair| pair[0] >= pair[1]);
            assert_eq!(falls, None, "seed {seed}: client {client}: {numbers:?}");
            for (number, ticket) in pushed.iter().enumerate() {
                let reply = cluster.answer(*ticket).expect("answered by now");
                match reply {
                    Reply::Int(_) => assert!(numbers.contains(&number), "seed {seed}: {number} is lost"),
                    reply => match code(reply) {
                        "UNAVAILABLE" => {
                            assert!(!numbers.contains(&number), "seed {seed}: {number} is there")
                        }
                        "INDETERMINATE" => {}
                        other => panic!("seed {seed}: {other}"),
                    },
                }
            }
        }
    }
}

fn numbers_in(cluster: &mut SimCluster, list: &str) -> Vec<usize> {
    let argv =
        ["LRANGE", list, "0", "-1"].iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
    let node = leader(cluster);
    let ticket = cluster.read(node, OwnedQuery::Redis { db: 0, resp: Resp::Two, member: None, argv });
    let Reply::Array(items) = cluster.wait_for(ticket, 6_000) else { panic!("not a list") };
    let number = |item: &Reply| match item {
        Reply::Bulk(bytes) => std::str::from_utf8(bytes).expect("a number").parse().expect("a number"),
        other => panic!("not a number: {other:?}"),
    };
    items.iter().map(number).collect()
}

/// Everybody is answered, in one way or the other, and the nodes agree.
fn settle(cluster: &mut SimCluster, pushers: &Pushers, seed: u64) {
    cluster.heal();
    cluster.run_for(8_000);
    pushers.check(cluster, seed);
    assert_equal_states(cluster, seed);
}

#[test]
fn lost_repeated_and_overtaken_messages_do_not_change_the_order_of_a_client() {
    for seed in 0..30 {
        let mut cluster = settled(3, seed);
        let mut pushers = Pushers::new(&cluster);
        cluster.network().loss_permille = 50;
        cluster.network().double_permille = 100;
        cluster.network().reorder_permille = 100;
        for _ in 0..300 {
            pushers.push(&mut cluster);
            cluster.run_for(2);
        }
        settle(&mut cluster, &pushers, seed);
    }
}

#[test]
fn connections_cut_between_a_follower_and_its_leader_do_not_change_the_order_of_a_client() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let mut pushers = Pushers::new(&cluster);
        for _ in 0..16 {
            let (leader, follower) = (leader(&cluster), follower(&cluster));
            for step in 0..20 {
                // Too short to be noticed by raft. The sender notices at the end, as with a connection that is reset.
                match step {
                    8 => cluster.network().split(&[leader], &[follower]),
                    11 => {
                        cluster.heal();
                        cluster.input(follower, Input::Unreachable(leader));
                    }
                    _ => {}
                }
                pushers.push(&mut cluster);
                cluster.run_for(1);
            }
        }
        settle(&mut cluster, &pushers, seed);
    }
}

#[test]
fn a_lost_connection_costs_a_follower_no_time_out() {
    let mut cluster = settled(3, 1);
    let (leader, follower) = (leader(&cluster), follower(&cluster));
    cluster.network().cut.insert((follower, leader));
    let ticket = cluster.submit(follower, &acquire("r", "a", 60_000, 0), 0);
    cluster.run_for(5);
    cluster.heal();
    cluster.input(follower, Input::Unreachable(leader));
    // The sender may have noticed while the connection was still cut; then it pauses a little before it tries again.
    granted(&cluster.wait_for(ticket, 150));
}

fn tiny_stage(config: &mut NodeConfig) {
    config.staged_commands_max = 24;
    config.entries_under_way_max = 1;
    config.resend_ms = 20;
}

#[test]
fn batches_that_a_leader_has_no_room_for_do_not_change_the_order_of_a_client() {
    for seed in 0..20 {
        let mut cluster = settled_with(3, seed, tiny_stage);
        let mut pushers = Pushers::new(&cluster);
        for round in 0..200 {
            for _ in 0..1 + round % 3 {
                pushers.push(&mut cluster);
            }
            cluster.run_for(3);
        }
        settle(&mut cluster, &pushers, seed);
    }
}

#[test]
fn new_leaders_do_not_change_the_order_of_a_client() {
    for seed in 0..20 {
        let mut cluster = settled(3, seed);
        let mut pushers = Pushers::new(&cluster);
        cluster.network().double_permille = 200;
        cluster.network().reorder_permille = 200;
        for round in 0..6 {
            for _ in 0..60 {
                pushers.push(&mut cluster);
                cluster.run_for(2);
            }
            let (old, other) = match cluster.leader() {
                Some(old) => (old, cluster.ids().into_iter().find(|id| *id != old).expect("there are three")),
                None => continue,
            };
            match round % 2 {
                0 => cluster.pause(old),
                _ => drop(cluster.admin(other, AdminRequest::Transfer { id: other })),
            }
            for _ in 0..400 {
                pushers.push(&mut cluster);
                cluster.run_for(2);
            }
            if round % 2 == 0 {
                cluster.resume(old);
            }
        }
        settle(&mut cluster, &pushers, seed);
    }
}
