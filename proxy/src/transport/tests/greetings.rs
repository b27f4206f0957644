//! Who is let in by the greeting, and what each side is sent.

use super::*;

/// Lets `dialler` greet `acceptor` and returns how it ended on both sides.
fn greet(dialler: &Who, acceptor: &Who, twice_with: Option<&Who>) -> (Option<String>, Option<String>) {
    let (dial_dir, accept_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let acceptor = acceptor.registry(&accept_dir);
    let mut outcome = meet(&dialler.registry(&dial_dir), &acceptor);
    if let Some(again) = twice_with {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(outcome, (None, None), "the first greeting must pass");
        outcome = meet(&again.registry(&dir), &acceptor);
    }
    outcome
}

pub(super) fn meet(dialler: &PeerRegistry, acceptor: &PeerRegistry) -> (Option<String>, Option<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let dial = async {
            let stream = TcpStream::connect(addr).await.unwrap();
            greeting::dial(stream, "127.0.0.1:1", dialler, 2, Channel::Raft).await.map(|_| ())
        };
        let accept = async {
            let (stream, _) = listener.accept().await.unwrap();
            greeting::accept(stream, acceptor).await.map(|_| ())
        };
        let (dialled, accepted) = tokio::join!(dial, accept);
        let text = |outcome: Result<(), GreetingError>| outcome.err().map(|e| e.to_string());
        (text(dialled), text(accepted))
    })
}

fn both_say(outcome: &(Option<String>, Option<String>), words: &str) {
    for side in [&outcome.0, &outcome.1] {
        let text = side.as_deref().unwrap_or("let in");
        assert!(text.contains(words), "expected '{words}', got '{text}'");
    }
}

#[test]
fn whoever_does_not_belong_is_refused_on_both_sides() {
    assert_eq!(greet(&Who::node(1), &Who::node(2), None), (None, None));
    let stranger = Who { cluster_id: 99, ..Who::node(1) };
    both_say(&greet(&stranger, &Who::node(2), None), "is not our cluster");
    let wiped = Who { store: 1_000, ..Who::node(1) };
    both_say(&greet(&Who::node(1), &Who::node(2), Some(&wiped)), "its disk was wiped");
    both_say(&greet(&Who::node(2), &Who::node(2), None), "both sides say they are node 2");
    both_say(&greet(&Who::node(1), &Who::node(3), None), "node 2 was wanted, but node 3 answers");
    let unadded = Who { cluster_id: 0, ..Who::node(9) };
    both_say(&greet(&unadded, &Who::node(2), None), "was not added to this cluster");
}

#[test]
fn in_clear_a_refusal_names_no_cluster_and_no_store() {
    let stranger = Who { cluster_id: 99, ..Who::node(1) };
    let (told, logged) = greet(&stranger, &Who::node(2), None);
    assert!(logged.unwrap().contains(&format!("{CLUSTER:016x}")), "our own log says it all");
    assert!(!told.unwrap().contains(&format!("{CLUSTER:x}")));
    let wiped = Who { store: 0xABCD_EF12, ..Who::node(1) };
    let known = Who { store: 0x1234_5678, ..Who::node(1) };
    let (told, logged) = greet(&known, &Who::node(2), Some(&wiped));
    assert!(logged.unwrap().contains("12345678"));
    let told = told.unwrap();
    assert!(told.contains("its disk was wiped") && !told.contains("12345678"), "{told}");
}

#[test]
fn a_secret_is_needed_on_both_sides() {
    let with = |node, number| Who { secrets: vec![secret(number)], ..Who::node(node) };
    assert_eq!(greet(&with(1, 1), &with(2, 1), None), (None, None));
    let differs = "the peer secret is missing or differs";
    for (dialler, acceptor) in
        [(with(1, 1), with(2, 2)), (Who::node(1), with(2, 2)), (with(1, 1), Who::node(2))]
    {
        let (dialled, accepted) = greet(&dialler, &acceptor, None);
        assert!(dialled.unwrap().contains(differs));
        assert!(accepted.is_some(), "the acceptor lets nobody in");
    }
}

#[test]
fn a_node_dials_with_the_first_secret_and_accepts_all() {
    let old = |node| Who { secrets: vec![secret(1)], ..Who::node(node) };
    let both = |node| Who { secrets: vec![secret(1), secret(2)], ..Who::node(node) };
    let turned = |node| Who { secrets: vec![secret(2), secret(1)], ..Who::node(node) };
    let new = |node| Who { secrets: vec![secret(2)], ..Who::node(node) };
    // Each step of a rotation beside the one before it, either way round.
    for (before, after) in [(old(1), both(2)), (both(1), turned(2)), (turned(1), new(2))] {
        assert_eq!(greet(&before, &after, None), (None, None));
        let (before, after) = (Who { node_id: 2, ..before }, Who { node_id: 1, ..after });
        assert_eq!(greet(&after, &before, None), (None, None));
    }
    assert!(greet(&old(1), &new(2), None).1.is_some());
}

#[test]
fn refusals_are_logged_a_few_times_and_then_counted() {
    let mut log = RefusalLog::default();
    let now = Instant::now();
    let logged = (0..100).filter(|_| log.admit(now).is_some()).count();
    assert_eq!(logged, REFUSAL_LINES_MAX as usize);
    assert_eq!(log.admit(now + REFUSAL_LINES_EVERY), Some(95));
}

#[test]
fn a_removed_node_is_let_in_so_that_it_can_be_told() {
    let acceptor = Who { members: vec![2, 3], ..Who::node(2) };
    assert_eq!(greet(&Who::node(1), &acceptor, None), (None, None));
}

#[test]
fn a_joining_node_takes_the_cluster_of_its_first_caller_and_keeps_it() {
    for secrets in [vec![], vec![secret(1)]] {
        let dir = tempfile::tempdir().unwrap();
        let joining = Who { cluster_id: 0, members: vec![], secrets: secrets.clone(), ..Who::node(2) };
        let registry = joining.registry(&dir);
        let caller_dir = tempfile::tempdir().unwrap();
        let caller = Who { secrets, ..Who::node(1) };
        assert_eq!(meet(&caller.registry(&caller_dir), &registry), (None, None));
        assert_eq!(registry.identity().cluster_id, CLUSTER);
        drop(registry);
        let stored = DataDir::open(dir.path()).unwrap().identity().unwrap().unwrap();
        assert_eq!(stored.cluster_id, CLUSTER);
    }
}

#[test]
fn a_restored_node_takes_the_cluster_of_its_own_restore_alone() {
    const FAMILY: u64 = 7 << 32;
    let dir = tempfile::tempdir().unwrap();
    let restored = Who { cluster_id: FAMILY, members: vec![], ..Who::node(2) };
    let registry = restored.registry(&dir);
    let caller = |cluster_id| Who { cluster_id, ..Who::node(1) };
    let meets = |cluster_id| {
        let caller_dir = tempfile::tempdir().unwrap();
        meet(&caller(cluster_id).registry(&caller_dir), &registry)
    };
    both_say(&meets(CLUSTER), "is not our cluster");
    both_say(&meets(FAMILY), "was not added to this cluster");
    assert_eq!(registry.identity().cluster_id, FAMILY, "nothing is learned from a refused one");
    assert_eq!(meets(FAMILY | 5), (None, None));
    assert_eq!(registry.identity().cluster_id, FAMILY | 5);
    // Its first member was restored again.
    both_say(&meets(FAMILY | 6), "is not our cluster");
}

/// Two nodes that can run these versions, of clusters that run these, and what each side hears.
fn meet_as(
    dialler: (VersionRange, ClusterVersion),
    acceptor: (VersionRange, ClusterVersion),
) -> (Option<String>, Option<String>) {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let registry = |id: NodeId, dir, (versions, runs): (VersionRange, ClusterVersion)| {
        let registry = Arc::into_inner(Who::node(id).registry(dir)).unwrap().with_versions(versions);
        registry.set_cluster_version(runs);
        registry
    };
    meet(&registry(1, &dirs[0], dialler), &registry(2, &dirs[1], acceptor))
}

#[test]
fn a_peer_that_cannot_run_the_version_of_the_cluster_is_refused_and_both_sides_say_why() {
    let (old, both) = (VersionRange { oldest: 1, newest: 1 }, VersionRange { oldest: 1, newest: 2 });
    assert_eq!(meet_as((old, 1), (both, 1)), (None, None));
    assert_eq!(meet_as((both, 1), (old, 1)), (None, None));
    let why = |id| {
        format!("the cluster runs version 2, node {id} can run version 1: start it with a release that can")
    };
    for (dialler, acceptor, id) in [((old, 1), (both, 2), 1), ((both, 2), (old, 1), 2)] {
        let (here, there) = meet_as(dialler, acceptor);
        let (here, there) = (here.unwrap(), there.unwrap());
        assert!(here.contains(&why(id)) && there.contains(&why(id)), "{here} / {there}");
    }
    // A node that was down during the raise, and a later release that has dropped version 1.
    let later = VersionRange { oldest: 2, newest: 3 };
    assert_eq!(meet_as((both, 1), (later, 2)), (None, None));
    assert_eq!(meet_as((later, 2), (both, 1)), (None, None));
}

#[test]
fn a_peer_from_before_release_1_is_named() {
    let refused = Hello::decode(b"RFPEER\r\n\x01\0rest").unwrap_err();
    assert_eq!(refused.to_string(), "the peer is a program from before release 1");
}
