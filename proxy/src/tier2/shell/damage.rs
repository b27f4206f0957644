//! Damage to a data directory, at rest: every byte of every file flipped, every file cut at every byte, every file gone.
//!
//! A real node writes a small directory: identity, peers, durable mark, log files, a snapshot. Each damaged copy is opened as a
//! start does it. It is refused in one clear line and left as it was found, or what comes out of it is what went in: the
//! same state of the machine, the same term and vote, the same members. Only where the mark is an old one, as a power cut
//! leaves it, may the newest log file lose what was written after that mark, batch by batch from the end.

use super::startup::{open_data, ShellConfig};
use crate::clock::Clock;
use crate::node_api::snapshot_stream;
use crate::node_api::{Input, Now, Outputs, Recovered, Submit};
use crate::storage::datadir::{KnownStores, StoreId};
use crate::storage::engine::EngineLimits;
use crate::storage::snapshots::SnapshotWriter;
use crate::storage::LogStore;
use crate::tier2::Node;
use bytes::Bytes;
use raft::eraftpb::EntryType;
use redfence_core::keyspace::Resp;
use redfence_core::machine::{Applied, Command};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A few log files with room for a few batches each.
const FILES: EngineLimits = EngineLimits { file_bytes: 1_500, purge_bytes: 1 << 20 };
/// Smaller ones, the oldest of which are given back, and what is still needed of them moved.
const PURGED: EngineLimits = EngineLimits { file_bytes: 600, purge_bytes: 1_500 };
/// Commands of the small history. The snapshot falls into the middle of it.
const COMMANDS: u64 = 12;
const SNAPSHOT_ENTRIES: u64 = 8;

/// All files of a directory but its lock.
type Image = BTreeMap<PathBuf, Vec<u8>>;

fn config(data: &Path, files: EngineLimits) -> ShellConfig {
    let mut config = ShellConfig::single(1, 7, data.to_path_buf(), Clock::start());
    config.log = files;
    config.node.snapshot_entries = SNAPSHOT_ENTRIES;
    config.node.log_keep_entries = 2;
    config
}

/// In memory where the system has such a place: thousands of opens and syncs.
fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn names(root: &Path) -> Vec<PathBuf> {
    let mut names = Vec::new();
    for folder in ["", "log", "snapshots"] {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        for entry in entries.map(|entry| entry.unwrap()) {
            if entry.file_type().unwrap().is_file() && entry.file_name() != "LOCK" {
                names.push(Path::new(folder).join(entry.file_name()));
            }
        }
    }
    names
}

fn image(root: &Path) -> Image {
    names(root).into_iter().map(|name| (name.clone(), fs::read(root.join(name)).unwrap())).collect()
}

/// Makes the directory hold these files and no others.
fn put(root: &Path, files: &Image) {
    for name in names(root).iter().filter(|name| !files.contains_key(*name)) {
        fs::remove_file(root.join(name)).unwrap();
    }
    for (name, bytes) in files {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), bytes).unwrap();
    }
}

/// Everything a node would begin with, but for the count of starts.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    state: u64,
    recovered: Recovered,
    identity: String,
    peers: KnownStores,
}

/// Opens the directory as a start does, and works the log through.
fn open(root: &Path) -> Result<Found, String> {
    let (dir, identity, store) = open_data(&config(root, FILES)).map_err(|error| error.to_string())?;
    let peers = dir.known_stores().map_err(|error| error.to_string())?;
    let mut recovered = store.recovered();
    recovered.boot = 0;
    let reader = store.reader();
    let mut machine = snapshot_stream::load(&recovered.snapshot, reader.as_ref())?;
    let mut applied = Applied::default();
    let (first, end) = (recovered.snapshot.at.index + 1, recovered.last_index + 1);
    if first < end {
        for entry in reader.entries(first, end, u64::MAX).map_err(|error| error.0)? {
            if entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty() {
                machine.apply_entry_at(entry.index, &entry.data, &mut applied).expect("a known entry");
            }
        }
    }
    let (state, identity) = (machine.state_hash(), format!("{identity:?}"));
    Ok(Found { state, recovered, identity, peers })
}

/// A node of its own cluster, driven by hand, that notes what the directory holds after every batch.
struct Writer {
    node: Node,
    store: crate::storage::engine::EngineStore,
    snapshots: SnapshotWriter,
    now_ms: u64,
    root: PathBuf,
    images: Vec<Image>,
    answered: u64,
}

impl Writer {
    fn turn(&mut self) {
        self.now_ms += 5;
        let now =
            Now { monotonic_us: 1_000 * self.now_ms, wall_us: 1_790_000_000_000_000 + 1_000 * self.now_ms };
        let mut out = Outputs::default();
        self.node.turn(now, &mut out);
        assert_eq!(out.fatal, None);
        self.answered += out.replies.len() as u64;
        if let Some(last) = out.persist.last() {
            let number = last.number;
            self.store.write(&out.persist).unwrap();
            self.images.push(image(&self.root));
            self.node.input(now, Input::Persisted { number });
        }
        for op in out.snapshot_ops {
            if let Some(input) = self.snapshots.carry_out(op) {
                self.node.input(now, input);
            }
        }
    }

    /// One command, until it is answered.
    fn submit(&mut self, ticket: u64, command: &Command<'_>) {
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let (blob, now) = (Bytes::from(blob), Now { monotonic_us: 1_000 * self.now_ms, wall_us: 0 });
        let submit = Submit { ticket, connection: 0, blob, timeout_ms: 60_000, wait_ms: 0 };
        self.node.input(now, Input::Submit(submit));
        let wanted = self.answered + 1;
        for _ in 0..200 {
            self.turn();
            if self.answered == wanted {
                return;
            }
        }
        panic!("command {ticket} was not answered");
    }
}

/// A small directory: as it was after each batch, and as its last, orderly end left it.
fn history(root: &Path, files: EngineLimits) -> (Vec<Image>, Image) {
    let config = config(root, files);
    let (dir, _, store) = open_data(&config).unwrap();
    dir.save_known_stores(&KnownStores::from([((2, 0), StoreId(5)), ((3, 9), StoreId(6))])).unwrap();
    let node = Node::new(config.node, store.recovered(), store.reader()).unwrap();
    let snapshots = SnapshotWriter::new(&dir.snapshots_path());
    let (root, images) = (root.to_path_buf(), Vec::new());
    let mut writer = Writer { node, store, snapshots, now_ms: 1_000, root, images, answered: 0 };
    for number in 0..COMMANDS {
        let (name, owner) = (format!("r{}", number % 5), format!("o{number}"));
        let (resource, owner) = (name.as_bytes(), owner.as_bytes());
        if number == COMMANDS - 2 {
            writer.store.tidy().unwrap();
        }
        writer.submit(
            number,
            &match number % 3 {
                0 => Command::Redis {
                    db: 0,
                    resp: Resp::Two,
                    member: None,
                    argv: [b"SET".as_slice(), resource, owner].into_iter().collect(),
                },
                _ => Command::Acquire { db: 0, resource, ttl_ms: 60_000, wait_ms: 0, owner, session: None },
            },
        );
    }
    let Writer { store, root, images, .. } = writer;
    drop(store);
    drop(dir);
    (images, image(&root))
}

/// All ways to damage one file: one bit of every byte, all bits of every byte, and every cut.
fn damages(whole: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> + '_ {
    let flipped = (0..whole.len()).flat_map(move |at| {
        [1 << (at % 8), 0xff].into_iter().map(move |bits: u8| {
            let mut bytes = whole.to_vec();
            bytes[at] ^= bits;
            (format!("byte {at} flipped by {bits:#x}"), bytes)
        })
    });
    flipped.chain((0..whole.len()).map(|len| (format!("cut at {len}"), whole[..len].to_vec())))
}

/// Damages one file in every way. What opens must be one of `allowed`; answers how often it was refused.
fn try_all(root: &Path, files: &Image, name: &Path, allowed: &[Found]) -> usize {
    let mut refused = 0;
    for (how, bytes) in damages(&files[name]) {
        let mut damaged = files.clone();
        damaged.insert(name.to_path_buf(), bytes);
        put(root, &damaged);
        match open(root) {
            Ok(found) => {
                assert!(allowed.contains(&found), "{}, {how}: opened as {found:?}", name.display());
            }
            Err(text) => {
                refused += 1;
                let clear = ["data directory damaged", "data directory not ours", "cannot "];
                assert!(
                    clear.iter().any(|start| text.starts_with(start)) && text.lines().count() == 1,
                    "{}, {how}: {text}",
                    name.display()
                );
                if fs::read(root.join(name)).unwrap() != damaged[name] {
                    // The mark speaks of the newest log alone: after it, and in files of moved entries, the engine cuts what it
                    // cannot read before the rest is looked at. What is left must not pass for whole the next time.
                    let is_moved = name.extension().is_some_and(|ext| ext == "rewrite");
                    assert!(is_moved || allowed.len() > 1, "{}, {how}: changed", name.display());
                    assert!(open(root).map_or(true, |found| allowed.contains(&found)), "{how}: once more");
                }
            }
        }
    }
    refused
}

fn newest_log(files: &Image) -> PathBuf {
    let logs = files.keys().filter(|name| name.extension().is_some_and(|ext| ext == "raftlog"));
    logs.max().expect("there is a log").clone()
}

#[test]
fn no_damage_to_any_file_becomes_another_state() {
    let (made, tried) = (temp_dir(), temp_dir());
    let (_, files) = history(made.path(), PURGED);
    put(tried.path(), &files);
    let whole = open(tried.path()).unwrap();
    assert!(whole.recovered.snapshot.at.index > 1, "no snapshot was made");
    let names: Vec<&PathBuf> = files.keys().collect();
    let moved = files
        .iter()
        .filter(|(name, bytes)| name.extension().is_some_and(|ext| ext == "rewrite") && bytes.len() > 69);
    assert_eq!(moved.count(), 1, "nothing was moved to a rewrite file");
    assert!(names.len() >= 6, "identity, peers, mark, two logs and a snapshot: {names:?}");
    let mut needed = 0;
    for name in names {
        let refused = try_all(tried.path(), &files, name, std::slice::from_ref(&whole));
        println!("{}: {} bytes, refused {refused} times", name.display(), files[name].len());
        let mut without = files.clone();
        without.remove(name);
        put(tried.path(), &without);
        match open(tried.path()) {
            // Peers are learned anew; an old log file may be one that nothing is needed of any more.
            Ok(found) => assert_eq!((found.state, found.recovered), (whole.state, whole.recovered.clone())),
            Err(text) => {
                needed += 1;
                assert!(text.starts_with("data directory damaged"), "{text}");
                assert!(refused > files[name].len(), "{}: {refused} damages were noticed", name.display());
            }
        }
    }
    assert!(needed >= 5, "identity, mark, newest log, moved log and snapshot are needed: {needed}");
}

#[test]
fn after_a_power_cut_the_newest_log_loses_its_unmarked_end_alone() {
    let (made, tried) = (temp_dir(), temp_dir());
    let (images, _) = history(made.path(), FILES);
    let newest = newest_log(images.last().unwrap());
    // The last batches, all in the newest file. The mark is that of the first of them.
    let last: Vec<&Image> = images.iter().rev().take(4).collect();
    let last: Vec<&Image> = last.into_iter().rev().filter(|files| newest_log(files) == newest).collect();
    assert!(last.len() >= 2, "the newest file has one batch only");
    let allowed: Vec<Found> = last
        .iter()
        .map(|files| {
            put(tried.path(), files);
            open(tried.path()).unwrap()
        })
        .collect();
    let mark = PathBuf::from("durable-mark");
    let mut files = (*last.last().unwrap()).clone();
    files.insert(mark.clone(), last[0][&mark].clone());
    put(tried.path(), &files);
    assert_eq!(&open(tried.path()).unwrap(), allowed.last().unwrap());
    try_all(tried.path(), &files, &newest, &allowed);
}
