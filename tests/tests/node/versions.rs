//! The cluster version: raised by the leader once every member can run it, held, and refused to those who cannot.

use super::*;
use redfence::node_api::AdminRequest;
use redfence_core::machine::version::{UpgradeCommand, VersionRange};
use redfence_tests::sim::kernel::address as addr;

const OLD: VersionRange = VersionRange { oldest: 1, newest: 1 };
const BOTH: VersionRange = VersionRange { oldest: 1, newest: 2 };

fn old(config: &mut NodeConfig) {
    config.versions = OLD;
}

fn new(config: &mut NodeConfig) {
    config.versions = BOTH;
    // Snapshots of both versions are made, and sent to whoever was away.
    config.snapshot_entries = 20;
    config.log_keep_entries = 5;
}

fn new_but_node_3(config: &mut NodeConfig) {
    new(config);
    if config.id == 3 {
        config.versions = OLD;
    }
}

fn versions(cluster: &SimCluster) -> Vec<u16> {
    let up = cluster.ids().into_iter().filter_map(|id| cluster.node(id));
    up.map(|node| node.machine().cluster_version()).collect()
}

fn rises_to_2(cluster: &mut SimCluster, ms_max: u64) -> bool {
    cluster.run_until(ms_max, |cluster| versions(cluster).iter().all(|version| *version == 2))
}

fn upgrade(cluster: &mut SimCluster, command: UpgradeCommand) {
    let at = follower(cluster);
    let ticket = cluster.submit(at, &Command::Upgrade(command), 0);
    assert_eq!(cluster.wait_for(ticket, 6_000), Reply::OK);
}

fn some_work(cluster: &mut SimCluster) {
    for number in 0..30 {
        let name = format!("r{number}");
        let at = cluster.ids()[number % 3];
        if cluster.is_up(at) {
            take(cluster, at, &name, "o", 100_000);
        }
    }
}

#[test]
fn a_new_cluster_of_one_program_runs_its_newest_version_by_itself() {
    for nodes in [1, 3] {
        let mut cluster = settled_with(nodes, 1, new);
        assert!(rises_to_2(&mut cluster, 3_000), "{nodes} nodes: {:?}", versions(&cluster));
        if nodes > 1 {
            assert_equal_states(&mut cluster, 1);
        }
    }
}

#[test]
fn the_version_rises_when_the_last_member_was_upgraded() {
    for seed in 0..4 {
        let mut cluster = settled_with(3, seed, old);
        cluster.set_configure(new);
        for id in [1, 2, 3] {
            some_work(&mut cluster);
            assert!(versions(&cluster).iter().all(|version| *version == 1), "seed {seed}");
            cluster.crash(id);
            cluster.run_for(1_500);
            cluster.start(id);
            cluster.run_for(1_500);
        }
        assert!(rises_to_2(&mut cluster, 5_000), "seed {seed}: {:?}", versions(&cluster));
        some_work(&mut cluster);
        assert_equal_states(&mut cluster, seed);
    }
}

#[test]
fn every_node_shows_the_versions_of_all_members() {
    let mut cluster = settled_with(3, 5, new_but_node_3);
    let shown = |cluster: &SimCluster, id: NodeId| -> Vec<u16> {
        cluster.node(id).unwrap().status().nodes.iter().map(|node| node.version).collect()
    };
    let all_known = |cluster: &SimCluster| (1..=3).all(|id| shown(cluster, id) == [2, 2, 1]);
    assert!(cluster.run_until(5_000, all_known), "{:?}", shown(&cluster, 1));
    let status = |cluster: &SimCluster, id| cluster.node(id).unwrap().status().clone();
    assert_eq!((status(&cluster, 1).cluster_version, status(&cluster, 1).node_version), (1, 2));
    assert_eq!((status(&cluster, 3).cluster_version, status(&cluster, 3).node_version), (1, 1));
}

#[test]
fn a_member_that_was_not_heard_of_in_this_term_blocks_the_raise() {
    let mut cluster = settled_with(3, 2, new_but_node_3);
    cluster.crash(3);
    cluster.run_for(10_000);
    assert_eq!(versions(&cluster), [1, 1]);
    cluster.set_configure(new);
    cluster.start(3);
    assert!(rises_to_2(&mut cluster, 5_000));

    // It said so once, under a leader that is gone: the next one must hear it again.
    let mut cluster = settled_with(3, 3, new_but_node_3);
    upgrade(&mut cluster, UpgradeCommand::Hold);
    cluster.set_configure(new);
    cluster.crash(3);
    cluster.start(3);
    cluster.run_for(2_000);
    let first = leader(&cluster);
    let away = follower(&cluster);
    cluster.crash(away);
    cluster.crash(first);
    cluster.run_for(1_000);
    cluster.start(first);
    assert!(cluster.run_until(5_000, |cluster| cluster.leader().is_some()));
    cluster.run_for(500);
    upgrade_at_leader(&mut cluster, UpgradeCommand::Finish);
    cluster.run_for(5_000);
    assert_eq!(versions(&cluster), [1, 1]);
    cluster.start(away);
    assert!(rises_to_2(&mut cluster, 5_000));
}

fn upgrade_at_leader(cluster: &mut SimCluster, command: UpgradeCommand) {
    let at = leader(cluster);
    let ticket = cluster.submit(at, &Command::Upgrade(command), 0);
    assert_eq!(cluster.wait_for(ticket, 6_000), Reply::OK);
}

#[test]
fn a_learner_blocks_the_raise_too() {
    let mut cluster = settled_with(3, 4, old);
    let at = leader(&cluster);
    let ticket = cluster.admin(at, AdminRequest::Add { id: 4, addr: addr(4) });
    assert_eq!(cluster.wait_for(ticket, 6_000), Reply::OK);
    cluster.set_configure(new);
    for id in [1, 2, 3] {
        cluster.crash(id);
        cluster.run_for(1_500);
        cluster.start(id);
        cluster.run_for(1_500);
    }
    cluster.run_for(5_000);
    assert_eq!(versions(&cluster), [1; 3], "nobody knows what the new member can run");
    cluster.add_joiner(4);
    assert!(rises_to_2(&mut cluster, 10_000));
    assert_equal_states(&mut cluster, 4);
}

#[test]
fn a_hold_keeps_the_way_back_open_until_it_is_finished() {
    let mut cluster = settled_with(3, 6, old);
    upgrade(&mut cluster, UpgradeCommand::Hold);
    for configure in [new as fn(&mut NodeConfig), old, new] {
        cluster.set_configure(configure);
        for id in [1, 2, 3] {
            cluster.crash(id);
            cluster.run_for(1_500);
            cluster.start(id);
            cluster.run_for(1_500);
        }
        some_work(&mut cluster);
        cluster.run_for(3_000);
        assert_eq!(versions(&cluster), [1; 3]);
    }
    upgrade(&mut cluster, UpgradeCommand::Finish);
    assert!(rises_to_2(&mut cluster, 5_000));
    assert_equal_states(&mut cluster, 6);
}

#[test]
fn an_older_program_stops_where_the_version_has_risen() {
    let mut cluster = settled_with(3, 7, new);
    assert!(rises_to_2(&mut cluster, 3_000));
    cluster.crash(3);
    cluster.may_give_up.insert(3);
    cluster.set_configure(new_but_node_3);
    // Its own log may hold the raise already, or only entries before it.
    cluster.start(3);
    assert!(cluster.run_until(5_000, |cluster| cluster.gave_up.contains_key(&3)));
    let line = &cluster.gave_up[&3];
    assert!(line.contains("cluster version") && line.lines().count() == 1, "{line}");
    take(&mut cluster, 1, "still-served", "o", 1_000);
}

/// A follower that has applied the raise may send the command to a leader; one that has not refuses it itself.
#[cfg(feature = "next-version")]
#[test]
fn a_command_of_a_later_version_is_refused_also_when_it_was_forwarded() {
    use redfence::node_api::{Forward, Forwarded, Input, PeerMessage};
    fn next_but_node_3(config: &mut NodeConfig) {
        new(config);
        config.versions.newest = if config.id == 3 { 2 } else { 3 };
    }
    let text = "ERR LOCK.CLUSTER NEXT needs cluster version 3 (the cluster runs 2)";
    let refused = Reply::Error(Refusal::new(text));
    // Node 3 as a leader would not know the command at all.
    let mut seeds = 8..100;
    let mut cluster = loop {
        let mut cluster = settled_with(3, seeds.next().expect("another node leads in some"), next_but_node_3);
        if leader(&cluster) != 3 && rises_to_2(&mut cluster, 3_000) && leader(&cluster) != 3 {
            break cluster;
        }
    };
    for id in [1, 2] {
        let ticket = cluster.submit(id, &Command::Next, 0);
        assert_eq!(cluster.wait_for(ticket, 2_000), refused);
    }
    let (at, from) = (leader(&cluster), follower(&cluster));
    let before = cluster.node(at).unwrap().machine().state_hash();
    let node = cluster.node(from).unwrap();
    let (origin, term) = (node.origin(), node.term());
    let mut blob = Vec::new();
    Command::Next.encode(&mut blob);
    let commands = vec![Forwarded { seq: u64::MAX - 1, connection: 1, blob: blob.into() }];
    let forward = Forward { origin, term, prev: 0, acked_below: 0, commands };
    cluster.input(at, Input::Peer { from, message: PeerMessage::Forward(forward) });
    cluster.run_for(1_000);
    let id = redfence_core::types::RequestId { origin, seq: u64::MAX - 1 };
    let fate = cluster.node(at).unwrap().machine().fate(id);
    assert_eq!(fate, redfence_core::machine::Fate::Answered(refused));
    assert_ne!(cluster.node(at).unwrap().machine().state_hash(), before, "the error was logged in its place");
    assert_equal_states(&mut cluster, 8);
}

/// Upgraded, then stopped to go back to the old program: what it said before no longer counts.
#[test]
fn what_a_member_said_is_forgotten_when_it_is_stopped() {
    let mut cluster = settled_with(3, 9, old);
    let (first, back) = (leader(&cluster), follower(&cluster));
    let last = cluster.ids().into_iter().find(|id| ![first, back].contains(id)).unwrap();
    cluster.set_configure(new);
    for id in [first, back] {
        cluster.crash(id);
        cluster.run_for(1_500);
        cluster.start(id);
        cluster.run_for(1_500);
    }
    cluster.crash(back);
    cluster.crash(last);
    cluster.start(last);
    cluster.run_for(10_000);
    assert_eq!(versions(&cluster), [1, 1], "a voter that cannot run it may come back");
    cluster.set_configure(old);
    cluster.start(back);
    cluster.run_for(3_000);
    assert_eq!(versions(&cluster), [1; 3]);
    some_work(&mut cluster);
    assert_equal_states(&mut cluster, 9);
}

#[test]
fn what_a_removed_member_said_does_not_count_for_its_successor() {
    let mut cluster = settled_with(3, 10, new_but_node_3);
    upgrade(&mut cluster, UpgradeCommand::Hold);
    cluster.set_configure(new);
    cluster.crash(3);
    cluster.start(3);
    cluster.run_for(2_000);
    let at = leader(&cluster);
    let away = if at == 3 { 2 } else { 3 };
    for request in [AdminRequest::Remove { id: away }, AdminRequest::Add { id: away, addr: addr(away) }] {
        let ticket = cluster.admin(at, request);
        assert_eq!(cluster.wait_for(ticket, 6_000), Reply::OK);
    }
    cluster.crash(away);
    upgrade_at_leader(&mut cluster, UpgradeCommand::Finish);
    cluster.run_for(5_000);
    assert!(versions(&cluster).iter().all(|version| *version == 1), "{:?}", versions(&cluster));
}

/// A node that missed the raise does not say that the cluster has not got what it has by now.
#[test]
fn a_node_that_is_cut_off_does_not_refuse_what_the_cluster_may_know_by_now() {
    use redfence_core::types::LockKind;
    let shared = Command::AcquireWith {
        db: 0,
        resource: b"r",
        ttl_ms: 100_000,
        wait_ms: 0,
        owner: b"o",
        session: None,
        kind: LockKind::Shared,
        value: b"",
    };
    let mut seeds = 1..50;
    let mut cluster = loop {
        let cluster = settled_with(3, seeds.next().expect("another node leads in some"), new_but_node_3);
        if leader(&cluster) != 3 {
            break cluster;
        }
    };
    // It has told the leader what it can run.
    cluster.run_for(1_000);
    let (leads, alone) = (leader(&cluster), 3 - leader(&cluster));
    cluster.network().split(&[alone], &[leads, 3]);
    cluster.set_configure(new);
    cluster.crash(3);
    cluster.start(3);
    let raised =
        |cluster: &SimCluster| cluster.node(leads).is_some_and(|node| node.machine().cluster_version() == 2);
    assert!(cluster.run_until(6_000, raised), "{:?}", versions(&cluster));
    assert_eq!(cluster.node(alone).unwrap().machine().cluster_version(), 1);
    // Not before it has noticed.
    cluster.run_for(2_000);
    let ticket = cluster.submit(alone, &shared, 0);
    match cluster.wait_for(ticket, 6_000) {
        Reply::Error(refusal) => assert_eq!(refusal.code(), "UNAVAILABLE"),
        other => panic!("{other:?}"),
    }
    cluster.heal();
    let caught_up = |cluster: &SimCluster| versions(cluster).iter().all(|version| *version == 2);
    assert!(cluster.run_until(6_000, caught_up), "{:?}", versions(&cluster));
    let ticket = cluster.submit(alone, &shared, 0);
    granted(&cluster.wait_for(ticket, 6_000));
}

/// A healthy cluster that works says at once what its version has not got: nobody is a few entries behind for long.
#[test]
fn a_busy_cluster_says_which_version_a_command_needs() {
    use redfence_core::types::LockKind;
    let shared = Command::AcquireWith {
        db: 0,
        resource: b"r",
        ttl_ms: 1_000,
        wait_ms: 0,
        owner: b"o",
        session: None,
        kind: LockKind::Shared,
        value: b"",
    };
    let mut cluster = settled_with(3, 8, new_but_node_3);
    cluster.run_for(1_000);
    let mut asked = Vec::new();
    for round in 0..300 {
        let name = format!("busy:{round}");
        asked.extend([1, 2].map(|id| {
            cluster.submit(id, &acquire(&name, "o", 60_000, 0), 0);
            cluster.run_for(1);
            cluster.submit(id, &shared, 0)
        }));
    }
    for ticket in asked {
        match cluster.wait_for(ticket, 6_000) {
            Reply::Error(refusal) => assert_eq!(refusal.code(), "ERR", "{refusal:?}"),
            other => panic!("{other:?}"),
        }
    }
}

/// Nothing of a later version is logged before every member can run it; then readers at different nodes hold a lock together, over a
/// snapshot too.
#[test]
fn kinds_of_locks_are_refused_until_the_cluster_runs_version_2() {
    use redfence_core::types::LockKind;
    let shared = |owner: &'static [u8]| Command::AcquireWith {
        db: 0,
        resource: b"r",
        ttl_ms: 100_000,
        wait_ms: 0,
        owner,
        session: None,
        kind: LockKind::Shared,
        value: b"v",
    };
    let mut cluster = settled_with(3, 8, new_but_node_3);
    let text = "ERR LOCK.ACQUIRE SHARED needs cluster version 2 (the cluster runs 1)";
    for id in [1, 2] {
        let ticket = cluster.submit(id, &shared(b"early"), 0);
        assert_eq!(cluster.wait_for(ticket, 6_000), Reply::Error(Refusal::new(text)));
    }
    cluster.set_configure(new);
    cluster.crash(3);
    cluster.run_for(1_500);
    cluster.start(3);
    assert!(rises_to_2(&mut cluster, 8_000), "{:?}", versions(&cluster));
    let owners: [&'static [u8]; 3] = [b"a", b"b", b"c"];
    for (id, owner) in (1..=3).zip(owners) {
        let ticket = cluster.submit(id, &shared(owner), 0);
        granted(&cluster.wait_for(ticket, 6_000));
    }
    cluster.crash(2);
    some_work(&mut cluster);
    cluster.run_for(1_000);
    cluster.start(2);
    cluster.run_for(2_000);
    some_work(&mut cluster);
    assert_equal_states(&mut cluster, 8);
    let writer = cluster.submit(2, &acquire("r", "w", 1_000, 0), 0);
    assert_eq!(cluster.wait_for(writer, 6_000), Reply::Nil, "three readers hold it");
}
