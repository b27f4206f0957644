//! The cluster version: how it rises and is held, and what a node that does not know a version does.

use redfence_core::keyspace::Resp;
use redfence_core::machine::request::{work, MachineWork, RequestContext};
use redfence_core::machine::version::{
    begins_entry, FormatError, UpgradeCommand, VersionRange, FIRST, NEWEST,
};
use redfence_core::machine::{
    Applied, Command, EntryBuilder, EntryError, Limits, Machine, RestoreError, Restorer, Words,
};
use redfence_core::reply::Reply;
use redfence_core::types::{Origin, SessionId, Stamp};

const BOTH: VersionRange = VersionRange { oldest: 1, newest: 2 };
#[cfg(feature = "next-version")]
const ALL: VersionRange = VersionRange { oldest: 1, newest: 3 };
const OLD: VersionRange = VersionRange { oldest: 1, newest: 1 };

fn machine(versions: VersionRange) -> Machine {
    let mut machine = Machine::with_limits(Limits::default());
    machine.set_versions(versions);
    machine
}

fn entry(version: u16, command: &Command<'_>) -> Vec<u8> {
    let mut blob = Vec::new();
    command.encode(&mut blob);
    let mut entry = EntryBuilder::for_version(version, Stamp { term: 1, logical_ms: 5, wall_us: 5 });
    entry.push_batch(Origin { node: 1, incarnation: 1 }, 0, [(0, &blob)]);
    entry.finish()
}

fn apply(machine: &mut Machine, version: u16, command: UpgradeCommand) -> Result<(), EntryError> {
    machine.apply_entry(&entry(version, &Command::Upgrade(command)), &mut Applied::default())
}

fn pieces(machine: &mut Machine) -> Vec<Vec<u8>> {
    machine.snapshot_begin();
    std::iter::from_fn(|| machine.snapshot_step(10)).collect()
}

fn restore(versions: VersionRange, pieces: &[Vec<u8>]) -> Result<Machine, RestoreError> {
    let mut restorer = Restorer::for_versions(versions);
    pieces.iter().try_for_each(|piece| restorer.push(piece))?;
    restorer.finish()
}

#[test]
fn a_cluster_begins_at_the_first_version() {
    assert_eq!((Machine::new().cluster_version(), Machine::new().upgrade_hold()), (FIRST, false));
    assert!(VersionRange::PROGRAM.contains(FIRST) && VersionRange::PROGRAM.contains(NEWEST));
}

#[test]
fn a_raise_is_replicated_and_never_lowers() {
    let mut machine = machine(BOTH);
    apply(&mut machine, 1, UpgradeCommand::Raise { to: 2 }).unwrap();
    assert_eq!(machine.cluster_version(), 2);
    apply(&mut machine, 1, UpgradeCommand::Raise { to: 1 }).unwrap();
    assert_eq!(machine.cluster_version(), 2);
}

#[test]
fn under_a_hold_nothing_rises_until_it_is_finished() {
    let mut machine = machine(BOTH);
    apply(&mut machine, 1, UpgradeCommand::Hold).unwrap();
    apply(&mut machine, 1, UpgradeCommand::Raise { to: 2 }).unwrap();
    assert_eq!((machine.cluster_version(), machine.upgrade_hold()), (1, true));
    apply(&mut machine, 1, UpgradeCommand::Finish).unwrap();
    assert_eq!((machine.cluster_version(), machine.upgrade_hold()), (1, false));
    apply(&mut machine, 1, UpgradeCommand::Raise { to: 2 }).unwrap();
    assert_eq!(machine.cluster_version(), 2);
}

#[test]
fn version_and_hold_are_state() {
    let mut with_hold = machine(BOTH);
    let mut plain = machine(BOTH);
    apply(&mut with_hold, 1, UpgradeCommand::Hold).unwrap();
    apply(&mut plain, 1, UpgradeCommand::Finish).unwrap();
    assert_ne!(with_hold.state_hash(), plain.state_hash());
    let held = restore(BOTH, &pieces(&mut with_hold)).unwrap();
    assert!(held.upgrade_hold());
    assert_eq!(held.state_hash(), with_hold.state_hash());

    let before = plain.state_hash();
    apply(&mut plain, 1, UpgradeCommand::Raise { to: 2 }).unwrap();
    assert_ne!(plain.state_hash(), before);
    let raised = restore(BOTH, &pieces(&mut plain)).unwrap();
    assert_eq!((raised.cluster_version(), raised.state_hash()), (2, plain.state_hash()));
}

#[test]
fn an_entry_of_a_later_version_stops_whoever_does_not_know_it() {
    let mut old = machine(OLD);
    let raise = apply(&mut old, 1, UpgradeCommand::Raise { to: 2 });
    assert_eq!(raise, Err(EntryError::Raise { at: 0, to: 2, known: OLD }));
    let later = apply(&mut old, 2, UpgradeCommand::Finish);
    assert_eq!(later, Err(EntryError::Format(FormatError::Unknown { version: 2, known: OLD })));
    assert_eq!(old.state_hash(), machine(OLD).state_hash(), "nothing of it was applied");

    // Known, but the cluster does not run it yet: an older program beside this one would stop.
    let mut new = machine(BOTH);
    let ahead = apply(&mut new, 2, UpgradeCommand::Finish);
    assert_eq!(ahead, Err(EntryError::Ahead { version: 2, runs: 1 }));
    apply(&mut new, 1, UpgradeCommand::Raise { to: 2 }).unwrap();
    apply(&mut new, 2, UpgradeCommand::Finish).unwrap();
    // Proposed before the raise was applied by its leader.
    apply(&mut new, 1, UpgradeCommand::Finish).unwrap();
}

#[test]
fn a_snapshot_of_a_later_version_is_refused() {
    let mut new = machine(BOTH);
    apply(&mut new, 1, UpgradeCommand::Raise { to: 2 }).unwrap();
    let refused = restore(OLD, &pieces(&mut new)).err();
    assert_eq!(refused, Some(RestoreError::Format(FormatError::Unknown { version: 2, known: OLD })));
}

#[test]
fn entries_and_snapshots_from_before_release_1_are_refused() {
    let mut early = entry(1, &Command::Expire { idle_ms: 1 });
    early[0] = 1;
    let refused = machine(BOTH).apply_entry(&early, &mut Applied::default());
    assert_eq!(refused, Err(EntryError::Format(FormatError::BeforeRelease1)));
    assert_eq!(refused.unwrap_err().to_string(), "its format is from before release 1");
    let mut pieces = pieces(&mut machine(BOTH));
    for format in [1, 2] {
        let (body, crc) = pieces[0].split_last_chunk_mut::<4>().unwrap();
        body[0] = format;
        *crc = crc32fast::hash(body).to_le_bytes();
        assert_eq!(restore(BOTH, &pieces).err(), Some(RestoreError::Format(FormatError::BeforeRelease1)));
    }
}

/// The version that the made-up command needs is not there before the raise; an entry with it stops a node of that version.
#[cfg(feature = "next-version")]
#[test]
fn a_command_is_applied_from_its_version_on() {
    let mut machine = machine(ALL);
    let mut blob = Vec::new();
    Command::Next.encode(&mut blob);
    let refused = machine.check_command(&blob).unwrap_err();
    let EntryError::NeedsVersion { need, runs, .. } = refused else { panic!("{refused}") };
    let line = need.refusal(runs);
    assert_eq!(line.0, "ERR LOCK.CLUSTER NEXT needs cluster version 3 (the cluster runs 1)");
    assert!(machine.apply_entry(&entry(1, &Command::Next), &mut Applied::default()).is_err());
    apply(&mut machine, 1, UpgradeCommand::Raise { to: 3 }).unwrap();
    machine.check_command(&blob).unwrap();
    machine.apply_entry(&entry(3, &Command::Next), &mut Applied::default()).unwrap();
    let restored = restore(ALL, &pieces(&mut machine)).unwrap();
    assert_eq!(restored.state_hash(), machine.state_hash());
}

/// A hold that was logged just before a raise makes it void, and the way back to the old program stays open.
#[test]
fn an_older_program_passes_a_raise_that_a_hold_has_made_void() {
    let mut old = machine(OLD);
    let mut new = machine(BOTH);
    for command in [UpgradeCommand::Hold, UpgradeCommand::Raise { to: 2 }] {
        apply(&mut old, 1, command).unwrap();
        apply(&mut new, 1, command).unwrap();
    }
    assert_eq!((old.cluster_version(), new.cluster_version()), (1, 1));
    assert_eq!(old.state_hash(), new.state_hash());

    // Behind other commands of its entry nobody can tell: such an entry is never built, and stops who cannot run it.
    let mut blobs = [Vec::new(), Vec::new()];
    Command::Upgrade(UpgradeCommand::Finish).encode(&mut blobs[0]);
    Command::Upgrade(UpgradeCommand::Raise { to: 2 }).encode(&mut blobs[1]);
    assert!(!begins_entry(&blobs[0]) && begins_entry(&blobs[1]));
    let mut entry = EntryBuilder::for_version(1, Stamp { term: 1, logical_ms: 5, wall_us: 5 });
    entry.push_batch(Origin { node: 1, incarnation: 1 }, 0, blobs.iter().map(|blob| (0, blob)));
    let stopped = old.apply_entry(&entry.finish(), &mut Applied::default());
    assert_eq!(stopped, Err(EntryError::Raise { at: 1, to: 2, known: OLD }));
}

/// What stands within `MULTI` is parsed when it is applied, so its words are looked at before it is logged.
#[cfg(feature = "next-version")]
#[test]
fn words_within_a_transaction_need_their_version_too() {
    let words = ["LOCK.CLUSTER", "NEXT"].map(str::as_bytes);
    let transaction = Command::Transaction {
        db: 0,
        resp: redfence_core::keyspace::Resp::Two,
        member: None,
        watched: Vec::new(),
        commands: vec![words.into_iter().collect()],
    };
    assert_eq!(transaction.need().version, 3);
    let mut new = machine(ALL);
    let refused = new.apply_entry(&entry(1, &transaction), &mut Applied::default());
    assert!(matches!(refused, Err(EntryError::NeedsVersion { at: 0, runs: 1, .. })), "{refused:?}");
}

/// The words of kinds of locks, values, conversions and policies came with version 2: before it they are refused, alone and within
/// `MULTI`, with the version they need.
#[test]
fn kinds_of_locks_need_version_2() {
    let lines: [(&[&str], &str); 8] = [
        (&["LOCK.ACQUIRE", "a", "1000", "SHARED"], "LOCK.ACQUIRE SHARED"),
        (&["LOCK.ACQUIRE", "a", "1000", "PERMITS", "1", "OF", "2"], "LOCK.ACQUIRE PERMITS"),
        (&["LOCK.ACQUIRE", "a", "1000", "VALUE", "v"], "LOCK.ACQUIRE VALUE"),
        (&["LOCK.MACQUIRE", "1", "a", "1000", "SHARED"], "LOCK.MACQUIRE SHARED"),
        (&["LOCK.CONVERT", "a", "5", "SHARED"], "LOCK.CONVERT"),
        (&["LOCK.FORCERELEASE", "a", "FENCE", "5"], "LOCK.FORCERELEASE FENCE"),
        (&["LOCK.SESSION", "OPEN", "1000", "POLICY", "wait-die"], "LOCK.SESSION OPEN POLICY or AGE"),
        (&["LOCK.SESSION", "OPEN", "1000", "AGE", "7"], "LOCK.SESSION OPEN POLICY or AGE"),
    ];
    let mut new = machine(BOTH);
    for (words, needs) in lines {
        let argv: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let request = redfence_core::grammar::parse(&argv).unwrap().unwrap();
        let context = RequestContext {
            db: 0,
            owner: b"o",
            session: SessionId(1),
            sessions: redfence_core::types::SessionScope::All,
            resp: redfence_core::keyspace::Resp::Two,
            guarded: &[],
        };
        let Ok(MachineWork::Change(command)) = work(request, context) else { panic!("{words:?} is logged") };
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let refused = new.check_command(&blob).unwrap_err();
        let EntryError::NeedsVersion { need, runs, .. } = refused else { panic!("{words:?}: {refused}") };
        let line = need.refusal(runs).0;
        assert_eq!(line, format!("ERR {needs} needs cluster version 2 (the cluster runs 1)"));
        if needs.starts_with("LOCK.SESSION") {
            continue;
        }
        let transaction = Command::Transaction {
            db: 0,
            resp: redfence_core::keyspace::Resp::Two,
            member: None,
            watched: Vec::new(),
            commands: vec![argv.iter().copied().collect()],
        };
        assert_eq!(transaction.need().version, 2, "{words:?} in MULTI");
    }
    apply(&mut new, 1, UpgradeCommand::Raise { to: 2 }).unwrap();
    let mut blob = Vec::new();
    Command::Convert {
        db: 0,
        resource: b"a",
        fence: redfence_core::types::Fence(5),
        to: redfence_core::grammar::convert::ConvertTo::Shared,
        wait_ms: 0,
    }
    .encode(&mut blob);
    new.check_command(&blob).unwrap();
}

/// What `LOCK.INFO` answers within `MULTI` is logged, so it has its new fields from version 2 on.
#[test]
fn info_within_a_transaction_follows_the_version() {
    let info = |machine: &mut Machine, version: u16, seq: u64| {
        let words = ["LOCK.INFO", "a"].map(str::as_bytes);
        let transaction = Command::Transaction {
            db: 0,
            resp: redfence_core::keyspace::Resp::Two,
            member: None,
            watched: Vec::new(),
            commands: vec![words.into_iter().collect()],
        };
        let mut blob = Vec::new();
        transaction.encode(&mut blob);
        let mut entry = EntryBuilder::for_version(version, Stamp { term: 1, logical_ms: 5, wall_us: 5 });
        entry.push_batch(Origin { node: 1, incarnation: 1 }, 0, [(seq, &blob)]);
        let mut out = Applied::default();
        machine.apply_entry(&entry.finish(), &mut out).unwrap();
        let Reply::Array(mut replies) = out.replies.remove(0).1 else { panic!("an array") };
        let Reply::Map(pairs) = replies.remove(0).plain() else { panic!("a map") };
        pairs.len()
    };
    let mut machine = machine(BOTH);
    assert_eq!(info(&mut machine, 1, 1), 8);
    apply(&mut machine, 1, UpgradeCommand::Raise { to: 2 }).unwrap();
    assert_eq!(info(&mut machine, 2, 2), 13);
}

/// What is remembered for retries is part of the state. Release 1 remembers an answer of `LOCK.INFO` of any size.
#[test]
fn a_large_answer_of_info_in_a_transaction_is_remembered_at_version_1_alone() {
    for (version, remembered) in [(1, true), (2, false)] {
        let mut machine = machine(BOTH);
        if version == 2 {
            apply(&mut machine, 1, UpgradeCommand::Raise { to: 2 }).unwrap();
        }
        let origin = Origin { node: 1, incarnation: 1 };
        let large = vec![b'x'; 20_000];
        let words = |words: &[&'static [u8]]| words.iter().copied().collect::<Words<'_>>();
        let set = Command::Redis {
            db: 0,
            resp: Resp::Two,
            member: None,
            argv: [&b"SET"[..], b"k", &large].into_iter().collect(),
        };
        let info = Command::Transaction {
            db: 0,
            resp: Resp::Two,
            member: None,
            watched: vec![],
            commands: vec![words(&[b"LOCK.INFO", b"k"])],
        };
        let mut ask = |command: &Command<'_>, seq| {
            let mut blob = Vec::new();
            command.encode(&mut blob);
            let mut entry = EntryBuilder::for_version(version, Stamp { term: 1, logical_ms: 5, wall_us: 5 });
            entry.push_batch(origin, 0, [(seq, &blob)]);
            let mut out = Applied::default();
            machine.apply_entry(&entry.finish(), &mut out).unwrap();
            out.replies.pop().map(|(_, reply)| reply)
        };
        ask(&Command::OriginStart { origin }, 0);
        ask(&set, 1);
        let first = ask(&info, 2);
        assert!(first.is_some(), "version {version}: no answer");
        assert_eq!(ask(&info, 2) == first, remembered, "version {version}");
    }
}
