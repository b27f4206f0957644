//! Snapshots that are not confirmed at once: nobody compares them, a disk does not take them, or they take long. Nobody is refused
//! for that, and nothing counts that nobody has compared.

use super::*;
use redfence::node_api::{AdminRequest, Role};
use redfence_core::machine::digest::Divergence;
use redfence_tests::sim::kernel::address;

fn snapshot_index(cluster: &SimCluster, id: NodeId) -> u64 {
    cluster.node(id).map_or(0, |node| node.snapshot_index())
}

fn role(cluster: &SimCluster, seen_by: NodeId, of: NodeId) -> Option<Role> {
    let status = cluster.node(seen_by)?.status();
    status.nodes.iter().find(|node| node.id == of).map(|node| node.role)
}

/// What a memory cell was while it wrote one would go to the next member.
#[test]
fn a_learner_of_a_single_voter_makes_no_snapshot() {
    fn growing(config: &mut NodeConfig) {
        config.snapshot_entries = 200;
        // The learner needs no second snapshot of the voter.
        config.log_keep_entries = if config.id == 1 { 100_000 } else { 10 };
        config.cache_entries_max = 16;
        // It stays a learner while there is work.
        config.promote_lag_entries = 0;
        config.promote_lag_ms = 3_600_000;
    }
    let mut stayed = 0;
    for seed in 0..6 {
        let mut cluster = settled_with(1, seed, growing);
        let busy = |cluster: &mut SimCluster, ms: u64| {
            for _ in 0..ms {
                cluster.submit(1, &acquire("busy", "b", 100, 0), 0);
                cluster.run_for(1);
            }
        };
        busy(&mut cluster, 300);
        cluster.add_joiner(2);
        cluster.admin(1, AdminRequest::Add { id: 2, addr: address(2) });
        let mut began = None;
        for _ in 0..3_000 {
            busy(&mut cluster, 1);
            let applied = cluster.node(2).map_or(0, |node| node.applied_index());
            if applied > 300 && began.is_none() {
                began = Some((applied, snapshot_index(&cluster, 2)));
            }
            if began.is_some_and(|(began, _)| applied > began + 1_000) {
                break;
            }
        }
        let (_, before) = began.expect("it has applied what there is");
        if role(&cluster, 1, 2) != Some(Role::Learner) {
            // A quiet moment was enough to catch up.
            continue;
        }
        stayed += 1;
        assert_eq!(snapshot_index(&cluster, 2), before, "seed {seed}: nobody has compared it");
        assert!(snapshot_index(&cluster, 1) > before, "seed {seed}: the voter makes its own");
        assert!(
            cluster.run_until(20_000, |cluster| role(cluster, 1, 2) == Some(Role::Follower)),
            "seed {seed}"
        );
        for _ in 0..300 {
            busy(&mut cluster, 2);
            cluster.run_for(100);
        }
        assert!(snapshot_index(&cluster, 2) > before, "seed {seed}: as a voter it makes some");
    }
    assert!(stayed >= 2, "{stayed} seeds");
}

/// Its disk is nearly full, or broken. It takes part in the digests all the same.
#[test]
fn a_voter_that_cannot_store_snapshots_confirms_those_of_others() {
    fn slower(config: &mut NodeConfig) {
        config.snapshot_entries = 60;
        config.log_keep_entries = 10;
        config.cache_entries_max = 16;
        // A piece waits for the one before it, as with a state of more than 2 MiB.
        config.snapshot_window_bytes = 1;
        // Two slices: a walk takes so long.
        config.digest_slice_ms = 2_000;
        config.unconfirmed_entries_max = 3_000;
    }
    for nodes in [2, 3] {
        let mut cluster = settled_with(nodes, nodes, slower);
        let at = leader(&cluster);
        let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != at).collect();
        if nodes == 3 {
            cluster.crash(others[1]);
        }
        for name in 0..1_500 {
            cluster.submit(at, &acquire(&format!("held{name}"), "h", 1_000_000_000, 0), 0);
        }
        cluster.run_for(5_000);
        cluster.refuse_snapshots(others[0], true);
        let (mut counted, mut last) = (0, snapshot_index(&cluster, at));
        for _ in 0..2_400 {
            let ticket = cluster.submit(at, &acquire("s", "s", 100, 0), 0);
            cluster.run_for(500);
            assert!(!cluster.wait_for(ticket, 8_000).is_error(), "{nodes} nodes");
            let now = snapshot_index(&cluster, at);
            counted += u64::from(now != std::mem::replace(&mut last, now));
        }
        assert!(counted > 50, "{nodes} nodes: {counted} counted in 20 minutes");
    }
}

/// All agree on every digest. One follower takes long to store its snapshots, and its log is beyond the limit when one counts.
#[test]
fn a_follower_with_a_long_log_does_not_wait_its_turn_to_ask() {
    fn bounded(config: &mut NodeConfig) {
        config.snapshot_entries = 1_400;
        config.unconfirmed_entries_max = 3_000;
        config.log_keep_entries = 10;
        config.cache_entries_max = 16;
    }
    let mut cluster = settled_with(3, 1, bounded);
    let (at, slow) = (leader(&cluster), follower(&cluster));
    cluster.slow_finish(slow, 100_000);
    let (mut counted, mut last) = (0, snapshot_index(&cluster, slow));
    for second in 0..600 {
        for name in 0..20 {
            cluster.submit(at, &acquire(&format!("l{name}"), "x", 20, 0), 0);
            cluster.run_for(50);
        }
        let ticket = cluster.submit(slow, &acquire("s", "s", 100, 0), 0);
        assert!(!cluster.wait_for(ticket, 8_000).is_error(), "refused in second {second}");
        let now = snapshot_index(&cluster, slow);
        counted += u64::from(now != std::mem::replace(&mut last, now));
    }
    assert!(counted >= 3, "{counted} of its snapshots counted");
}

/// A single voter commits at once: many entries are on their way to a learner that is far away, however well it keeps up.
#[test]
fn a_far_learner_of_a_single_voter_is_promoted_under_load() {
    for delay_us in [1_000, 45_000, 100_000] {
        let mut cluster = settled_with(1, 3, |_| {});
        cluster.network().delay_us = (delay_us, delay_us + 2_000);
        cluster.add_joiner(2);
        cluster.admin(1, AdminRequest::Add { id: 2, addr: address(2) });
        let mut is_voter = false;
        for n in 0..10_000 {
            cluster.submit(1, &acquire(&format!("l{}", n % 50), "x", 20, 0), 0);
            cluster.run_for(1);
            is_voter |= role(&cluster, 1, 2) == Some(Role::Follower);
        }
        assert!(is_voter, "{delay_us} us away");
    }
}

/// Two voters differ, and the operator removes one. What the other stored at that digest is why they differ: it does not count.
#[test]
fn a_snapshot_that_was_found_to_differ_counts_no_more_when_its_voter_is_alone() {
    fn eager(config: &mut NodeConfig) {
        config.snapshot_entries = 200;
        config.log_keep_entries = 10;
        config.cache_entries_max = 16;
    }
    for seed in 0..3 {
        let mut cluster = settled_with(2, seed, eager);
        let keep = leader(&cluster);
        let other = 3 - keep;
        let full = |cluster: &SimCluster| cluster.node(keep).unwrap().status().digests.full_index;
        take(&mut cluster, keep, "kept", "k", 600_000_000);
        let (before, was) = (snapshot_index(&cluster, keep), full(&cluster));
        // A cell is wrong for a moment.
        cluster.diverge(keep, Divergence::State(5));
        for _ in 0..3_000 {
            if full(&cluster) != was {
                break;
            }
            cluster.submit(keep, &acquire("busy", "b", 20, 0), 0);
            cluster.run_for(3);
        }
        cluster.diverge(keep, Divergence::State(5_u64.wrapping_neg()));
        let differs_at = full(&cluster);
        cluster.run_for(1_500);
        assert!(cluster.node(keep).unwrap().status().digests.no_majority, "seed {seed}: they differ");
        let remove = cluster.admin(keep, AdminRequest::Remove { id: other });
        assert_eq!(cluster.wait_for(remove, 8_000), Reply::OK);
        cluster.run_for(5_000);
        let now = snapshot_index(&cluster, keep);
        assert_ne!(now, differs_at, "seed {seed}: it counts");
        assert!(now > before, "seed {seed}: another takes its place");
        let ticket = cluster.submit(keep, &acquire("busy", "b", 20, 0), 0);
        assert!(!cluster.wait_for(ticket, 6_000).is_error(), "seed {seed}");
    }
}

/// Its log grows. That refuses nobody, and the others do not digest without end for its sake.
#[test]
fn a_broken_disk_costs_the_others_little() {
    fn bounded(config: &mut NodeConfig) {
        config.snapshot_entries = 200;
        config.unconfirmed_entries_max = 1_000;
        config.log_keep_entries = 10;
        config.cache_entries_max = 16;
    }
    let digests_with = |broken: &[NodeId]| {
        let mut cluster = settled_with(3, 3, bounded);
        for id in broken {
            cluster.refuse_snapshots(*id, true);
        }
        let (mut digests, mut last) = (0, 0);
        for second in 0..900 {
            for name in 0..20 {
                cluster.submit(1 + name % 3, &acquire(&format!("l{name}"), "x", 20, 0), 0);
                cluster.run_for(50);
                let now = cluster.node(1).unwrap().status().digests.full_index;
                digests += u64::from(now != std::mem::replace(&mut last, now));
            }
            for at in 1..=3 {
                let ticket = cluster.submit(at, &acquire("s", "s", 100, 0), 0);
                assert!(
                    !cluster.wait_for(ticket, 8_000).is_error(),
                    "{broken:?}: refused in second {second}"
                );
            }
        }
        digests
    };
    let (healthy, one, all) = (digests_with(&[]), digests_with(&[1]), digests_with(&[1, 2, 3]));
    assert!(one <= healthy + healthy / 8 && all < healthy / 2, "{one}, {all} of {healthy} in 15 minutes");
}

/// Its log is behind that of the others, and its disk takes no snapshot.
#[test]
fn a_snapshot_that_cannot_be_stored_is_asked_for_now_and_then() {
    fn short(config: &mut NodeConfig) {
        config.snapshot_entries = 60;
        config.log_keep_entries = 10;
        config.cache_entries_max = 16;
    }
    let mut cluster = settled_with(3, 3, short);
    let (at, behind) = (leader(&cluster), follower(&cluster));
    cluster.crash(behind);
    for _ in 0..400 {
        cluster.submit(at, &acquire("busy", "b", 20, 0), 0);
        cluster.run_for(20);
    }
    cluster.start(behind);
    cluster.refuse_snapshots(behind, true);
    cluster.run_for(60_000);
    let (mut tries, mut last) = (0, cluster.snapshot_refused_us());
    for _ in 0..3_000 {
        cluster.run_for(100);
        tries += u64::from(
            cluster.snapshot_refused_us() != std::mem::replace(&mut last, cluster.snapshot_refused_us()),
        );
    }
    assert!((3..=20).contains(&tries), "{tries} tries in five minutes");
    cluster.refuse_snapshots(behind, false);
    let caught_up = |cluster: &SimCluster| {
        let applied = |id| cluster.node(id).map_or(0, |node| node.applied_index());
        applied(behind) >= applied(at)
    };
    assert!(cluster.run_until(90_000, caught_up));
}
