//! How much one turn does is bounded, so that heartbeats leave in time. Counted in work, not in time.

use super::*;
use redfence_core::keyspace::Resp;
use std::cell::Cell;

fn redis(cluster: &mut SimCluster, words: &[&str]) -> Ticket {
    let argv = words.iter().map(|word| word.as_bytes()).collect();
    cluster.submit(1, &Command::Redis { db: 0, resp: Resp::Two, member: None, argv }, 0)
}

/// A node starts with a log full of commands that take as long as any may: each turn applies a few entries of it.
#[test]
fn a_turn_applies_no_more_than_its_share_of_heavy_entries() {
    const HEAVY: usize = 40;
    let mut cluster = settled(1, 1);
    for batch in 0..60 {
        let members: Vec<String> = (0..500).map(|n| format!("m{}", 500 * batch + n)).collect();
        let words: Vec<&str> = ["SADD", "s"].into_iter().chain(members.iter().map(String::as_str)).collect();
        let ticket = redis(&mut cluster, &words);
        cluster.wait_for(ticket, 1_000);
    }
    for _ in 0..HEAVY {
        let ticket = redis(&mut cluster, &["SUNIONSTORE", "d", "s"]);
        cluster.wait_for(ticket, 1_000);
    }
    let applied = cluster.node(1).expect("runs").applied_index();
    cluster.crash(1);
    cluster.start(1);
    let (last, most) = (Cell::new(0), Cell::new(0));
    let done = cluster.run_until(60_000, |cluster| {
        let node = cluster.node(1).expect("runs");
        let total = node.machine().work_total();
        most.set(total.saturating_sub(last.get()).max(most.get()));
        last.set(total);
        node.applied_index() >= applied
    });
    assert!(done, "the log is applied");
    assert!(last.get() > 1_200_000, "the log holds {} units of work", last.get());
    assert!(most.get() <= 800_000, "one turn did {} units of work", most.get());
}
