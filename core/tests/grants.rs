//! What the state says of one grant, by its fence or its owner: any of them, however many hold the lock.

use redfence_core::keyspace::Resp;
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{put_user, Applied, Command, EntryBuilder, GrantOf, GrantState, Machine, Query};
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, LockKind, Origin, OwnerIdentity, Reason, SessionId, Stamp, UserTag};

const ORIGIN: Origin = Origin { node: 1, incarnation: 7 };
const ALICE: UserTag = UserTag(0xa11ce);
const NAME: &[u8] = b"name";

struct Cluster {
    machine: Machine,
    seq: u64,
}

impl Cluster {
    /// At cluster version 2.
    fn new() -> Cluster {
        let mut cluster = Cluster { machine: Machine::new(), seq: 0 };
        cluster.run(&Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
        cluster
    }

    fn run(&mut self, command: &Command<'_>) -> Reply {
        let mut blob = Vec::new();
        let is_of_user = matches!(command, Command::AcquireWith { .. } | Command::Acquire { .. });
        put_user(&mut blob, if is_of_user { ALICE } else { UserTag::DEFAULT });
        command.encode(&mut blob);
        self.seq += 1;
        let stamp = Stamp { term: 1, logical_ms: self.seq, wall_us: 1_000_000 };
        let mut entry = EntryBuilder::new(stamp);
        entry.push_batch(ORIGIN, self.seq, [(self.seq, blob)]);
        let mut out = Applied::default();
        self.machine.apply_entry(&entry.finish(), &mut out).expect("a known entry");
        out.replies.pop().map_or(Reply::Nil, |(_, reply)| reply)
    }

    fn share(&mut self, owner: &str, ttl_ms: u64, session: Option<SessionId>) -> Fence {
        let (db, owner, kind) = (0, owner.as_bytes(), LockKind::Shared);
        let (resource, wait_ms, value) = (NAME, 0, &b""[..]);
        let command = Command::AcquireWith { db, resource, ttl_ms, wait_ms, owner, session, kind, value };
        match self.run(&command) {
            Reply::Granted { fence, .. } => fence,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn restart_from_snapshot(&mut self) {
        self.machine.snapshot_begin();
        let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| self.machine.snapshot_step(usize::MAX)).collect();
        self.machine = Machine::restore(pieces).expect("its own snapshot");
    }

    fn look(&self, by: GrantOf<'_>) -> GrantState {
        let reply = self.machine.query(Query::Grant { db: 0, resource: NAME, by });
        GrantState::read(&reply).expect("what the state says")
    }

    fn is_mode(&self, fence: Fence) -> bool {
        let reply = self.machine.query(Query::FenceKind { db: 0, resource: NAME, fence });
        matches!(reply, Reply::Error(refusal) if refusal.code() == "MODE")
    }
}

fn of(owner: &str, user: UserTag) -> GrantOf<'_> {
    GrantOf::Owner(OwnerIdentity { owner: owner.as_bytes(), user })
}

#[test]
fn any_of_many_holders_is_found() {
    let mut cluster = Cluster::new();
    let fences: Vec<Fence> = (0..1_500).map(|at| cluster.share(&format!("o{at}"), 60_000, None)).collect();
    for at in [0, 999, 1_000, 1_499] {
        let held = GrantState::Held { fence: fences[at], lease_ms: 60_000 };
        assert_eq!(cluster.look(GrantOf::Fence(fences[at])), held);
        assert_eq!(cluster.look(of(&format!("o{at}"), ALICE)), held);
        assert!(cluster.is_mode(fences[at]));
    }
    let ended = |reason| GrantState::Ended { reason, successor: Some(fences[0]) };
    assert_eq!(cluster.look(of("o1400", UserTag::DEFAULT)), ended(Reason::NotOwner), "another user's");
    let release = Command::Release { db: 0, resource: NAME, fence: fences[1_400] };
    assert_eq!(cluster.run(&release), Reply::Released);
    assert_eq!(cluster.look(GrantOf::Fence(fences[1_400])), ended(Reason::AlreadyReleased));
    let force = Command::ForceReleaseOne { db: 0, resource: NAME, fence: fences[1_300] };
    assert_eq!(cluster.run(&force), Reply::Int(1));
    assert_eq!(cluster.look(GrantOf::Fence(fences[1_300])), ended(Reason::Expired));
}

#[test]
fn a_lease_is_the_last_renewal_or_the_sessions_ttl() {
    let mut cluster = Cluster::new();
    let fence = cluster.share("a", 60_000, None);
    cluster.run(&Command::Renew { db: 0, resource: NAME, fence, ttl_ms: 5_000 });
    let lease_ms = |cluster: &Cluster, fence| match cluster.look(GrantOf::Fence(fence)) {
        GrantState::Held { lease_ms, .. } => lease_ms,
        GrantState::Ended { .. } | GrantState::Deleted { .. } => panic!("it is held"),
    };
    assert_eq!(lease_ms(&cluster, fence), 5_000);
    let id = SessionId(7);
    let mut blob = Vec::new();
    put_user(&mut blob, ALICE);
    Command::SessionOpen { id, ttl_ms: 700, label: b"" }.encode(&mut blob);
    let mut entry = EntryBuilder::new(Stamp { term: 1, logical_ms: cluster.seq, wall_us: 1_000_000 });
    cluster.seq += 1;
    entry.push_batch(ORIGIN, cluster.seq, [(cluster.seq, blob)]);
    cluster.machine.apply_entry(&entry.finish(), &mut Applied::default()).expect("a known entry");
    let bound = cluster.share("b", 0, Some(id));
    assert_eq!(lease_ms(&cluster, bound), 700);
    let both = cluster.share("c", 60_000, Some(id));
    assert_eq!(lease_ms(&cluster, both), 700, "whichever is shorter");
    let nobody = cluster.machine.query(Query::Grant { db: 1, resource: NAME, by: GrantOf::Fence(bound) });
    let ended = GrantState::Ended { reason: Reason::NotOwner, successor: None };
    assert_eq!(GrantState::read(&nobody), Some(ended));
}

/// By the fence alone it looks like a release; whoever is told of losses has to know.
#[test]
fn a_plain_deletion_is_known_from_a_release_since_version_2() {
    let redis = |words: &[&'static [u8]]| {
        let argv = words.iter().copied().collect();
        Command::Redis { db: 0, resp: Resp::Two, member: None, argv }
    };
    let acquire =
        Command::Acquire { db: 0, resource: NAME, ttl_ms: 60_000, wait_ms: 0, owner: b"o", session: None };
    for version in [1, 2] {
        let mut cluster = Cluster { machine: Machine::new(), seq: 0 };
        if version == 2 {
            cluster.run(&Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
        }
        let Reply::Granted { fence, .. } = cluster.run(&acquire) else { panic!("it is free") };
        cluster.run(&redis(&[b"DEL", NAME]));
        let released = GrantState::Ended { reason: Reason::AlreadyReleased, successor: None };
        let deleted = GrantState::Deleted { successor: None };
        assert_eq!(cluster.look(GrantOf::Fence(fence)), if version == 2 { deleted } else { released });
        let release = Command::Release { db: 0, resource: NAME, fence };
        assert_eq!(
            cluster.run(&release),
            Reply::Refused(Reason::AlreadyReleased),
            "its holder is told the same"
        );
        cluster.restart_from_snapshot();
        assert_eq!(cluster.look(GrantOf::Fence(fence)), if version == 2 { deleted } else { released });
    }
}
