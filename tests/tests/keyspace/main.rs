//! The Raft keyspace over the wire, next to a real redis-server: random commands, scripts, pipelines, transactions and blocking
//! pops must be answered with the same values, in RESP2 and RESP3; and bad input must change nothing else.
//!
//! The seeds are fixed; `REDFENCE_SEED=<n>` tries or repeats another, `REDFENCE_STEPS` sets the length. The commands and scripts
//! are those of core's own differential test. What differs by design is in `docs/keyspace.md`; [`pair::same`] knows the
//! parts of it that can be compared away.

mod bad_input;
#[path = "../../../core/tests/differential/generate.rs"]
mod generate;
mod key_positions;
mod moves;
mod pair;
#[path = "../../../core/tests/differential/scripts.rs"]
mod scripts;

use generate::Dice;
use moves::Mover;
use pair::Pair;
use redfence_tests::artifacts;
use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::redis::{self, Redis};
use redfence_tests::resp::Protocol;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// A single node with no upstream Redis: all keys are in the Raft keyspace.
fn node() -> Cluster {
    let cluster = Cluster::start(&Options::nodes(1));
    cluster.wait_for_leader(REPLY_WITHIN);
    cluster
}

#[test]
fn random_moves_are_answered_as_redis_does() {
    if let Err(missing) = artifacts::redis_server() {
        redfence_tests::left_out::or_fail(&format!("random moves against Redis: {missing}"));
        return;
    }
    // Where Redis keeps small hashes and sorted sets in order, so do we.
    let options = redis::Options::plain()
        .set("hash-max-listpack-entries", "128")
        .set("zset-max-listpack-entries", "128");
    let (redis, cluster) = (Redis::start(&options), node());
    let steps = number("REDFENCE_STEPS").unwrap_or(1_000);
    let seeds = number("REDFENCE_SEED").map_or(vec![1, 2, 3], |seed| vec![seed]);
    for seed in seeds {
        for protocol in Protocol::BOTH {
            println!("REDFENCE_SEED={seed} {}", protocol.name());
            let mut pair = Pair::open(redis.address(), cluster.nodes[0].address, protocol, seed);
            pair.ask("FLUSHALL");
            let mut mover = Mover { dice: Dice::new(seed), pair };
            for _ in 0..steps {
                mover.step();
            }
        }
    }
}
