//! The data directory: who holds it, which node's it is, and how small files in it are replaced safely.
//!
//! ```text
//! LOCK            held (flock) while a process uses the directory
//! IDENTITY        format version, node id, cluster id, store id; text with a checksum
//! PEERS           store ids of the other nodes, learned from their greetings; text with a checksum
//! RESTORING       a restore is under way, or was cut short
//! RESERVE         blocks for the moment when the disk is full, see reserve.rs
//! durable-mark    see durable_mark.rs
//! log/            the log engine's files
//! snapshots/      see snapshots.rs
//! ```
//!
//! The directory has mode 0700 and its files 0600 (permissions.rs).
//!
//! `tier2::shell` opens it; nothing else in the program writes here.

use super::error::StorageError;
use super::guarded_fs::read_small;
use super::permissions;
use fs2::FileExt;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Raised whenever a newer program writes what an older one would misread. 1 is what programs wrote before release 1.
const FORMAT_VERSION: u32 = 2;
const FORMAT_BEFORE_RELEASE_1: &str = "1";
const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;
const IDENTITY_HEAD: &str = "redfence-data";
const RESTORING: &str = "RESTORING";
const LOCK_FILE: &str = "LOCK";
const SNAPSHOTS: &str = "snapshots";
/// A file system's own folder.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";
const PEERS_HEAD: &str = "redfence-peers";

/// A random number drawn when a data directory is made: the same node id with another one is a wiped disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreId(pub u128);

impl StoreId {
    pub fn random() -> Result<StoreId, StorageError> {
        let mut bytes = [0; 16];
        getrandom::getrandom(&mut bytes)
            .map_err(|e| StorageError::Internal(format!("no random numbers from the system: {e}")))?;
        Ok(StoreId(u128::from_le_bytes(bytes)))
    }
}

impl std::fmt::Display for StoreId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Whose data this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    pub node_id: u64,
    /// 0: not known yet, learned from the first peer (a node that joins). Lower half 0: learned from the first peer whose id has
    /// this upper half (a node restored from a backup).
    pub cluster_id: u64,
    pub store_id: StoreId,
    /// False while the very first start is under way: what it left behind may be thrown away.
    pub log_made: bool,
}

/// Whether a node that shows this id knows its cluster.
pub fn is_whole(cluster_id: u64) -> bool {
    cluster_id as u32 != 0
}

/// Whether a node with the first id may become one of the cluster with the second.
pub fn is_begin_of(begin: u64, cluster_id: u64) -> bool {
    !is_whole(begin) && is_whole(cluster_id) && (begin == 0 || begin >> 32 == cluster_id >> 32)
}

/// Who showed which store: a member's id, and the log index that brought it in (two lives of one id differ in it).
pub type KnownStores = BTreeMap<(u64, u64), StoreId>;

/// An open data directory. Dropping it lets the lock go.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates the directory where it is missing, and takes the lock.
    pub fn open(root: &Path) -> Result<DataDir, StorageError> {
        make_root(root)?;
        let lock_path = root.join(LOCK_FILE);
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(|e| StorageError::io_at("open", &lock_path, e))?;
        lock.try_lock_exclusive().map_err(|e| {
            if e.kind() == io::ErrorKind::WouldBlock {
                StorageError::InUse(root.to_path_buf())
            } else {
                StorageError::io_at("lock", &lock_path, e)
            }
        })?;
        let dir = DataDir { root: root.to_path_buf(), _lock: lock };
        fs::create_dir_all(dir.snapshots_path()).map_err(|e| StorageError::io_at("create", root, e))?;
        permissions::restrict_files(root)?;
        sync_dir(root)?;
        Ok(dir)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn log_path(&self) -> PathBuf {
        self.root.join("log")
    }

    pub fn snapshots_path(&self) -> PathBuf {
        self.root.join(SNAPSHOTS)
    }

    pub(crate) fn mark_path(&self) -> PathBuf {
        self.root.join("durable-mark")
    }

    /// The directory, locked, for a restore. From here to [`DataDir::end_restore`] no node starts from it: half of a backup is an empty
    /// cluster. So the mark is the first thing there is. `None`: somebody has used the directory.
    pub fn begin_restore(root: &Path) -> Result<Option<DataDir>, StorageError> {
        make_root(root)?;
        let mark = root.join(RESTORING);
        let failed = |e| StorageError::io_at("create", &mark, e);
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&mark) {
            Ok(file) => file.sync_all().map_err(failed)?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            Err(e) => return Err(failed(e)),
        }
        sync_dir(root)?;
        let opened = DataDir::open(root).and_then(|dir| Ok((!dir.is_used()?).then_some(dir)));
        if matches!(opened, Ok(None) | Err(StorageError::InUse(_))) {
            // It is somebody else's.
            fs::remove_file(&mark).map_err(|e| StorageError::io_at("delete", &mark, e))?;
            sync_dir(root)?;
        }
        opened
    }

    pub fn end_restore(&self) -> Result<(), StorageError> {
        let path = self.root.join(RESTORING);
        fs::remove_file(&path).map_err(|e| StorageError::io_at("delete", &path, e))?;
        sync_dir(&self.root)
    }

    /// A restore that has written nothing yet is given up: what it made is removed, `with_root` with the directory itself.
    pub fn abandon_restore(self, with_root: bool) {
        // What cannot be removed keeps a node from starting here, and the next restore says so.
        let _ = fs::remove_dir(self.snapshots_path());
        let _ = fs::remove_file(self.root.join(LOCK_FILE));
        let _ = fs::remove_file(self.root.join(RESTORING));
        if with_root {
            let _ = fs::remove_dir(&self.root);
        }
    }

    /// Whether somebody has used the directory, for more than a restore that begins.
    fn is_used(&self) -> Result<bool, StorageError> {
        let failed = |e| StorageError::io_at("read", &self.root, e);
        let ours = [LOCK_FILE, SNAPSHOTS, RESTORING, LOST_AND_FOUND];
        for entry in fs::read_dir(&self.root).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if !ours.iter().any(|known| name == *known) {
                return Ok(true);
            }
        }
        let mut snapshots = fs::read_dir(self.snapshots_path()).map_err(failed)?;
        Ok(snapshots.next().is_some())
    }

    /// `None` in a directory that was never used.
    pub fn identity(&self) -> Result<Option<NodeIdentity>, StorageError> {
        if self.root.join(RESTORING).exists() {
            return Err(StorageError::Damaged(format!(
                "a restore into {} did not come to its end: empty the directory and restore again",
                self.root.display()
            )));
        }
        let path = self.root.join("IDENTITY");
        let Some(fields) = read_fields(&path, IDENTITY_HEAD)? else {
            return if fs::read_dir(self.log_path()).is_ok_and(|mut files| files.next().is_some()) {
                Err(StorageError::Damaged(format!("{} has log files but no IDENTITY", self.root.display())))
            } else {
                Ok(None)
            };
        };
        let number = |key: &str, radix| {
            let text = fields.get(key).ok_or_else(|| bad_file(&path, &format!("has no line '{key}'")))?;
            u128::from_str_radix(text, radix).map_err(|_| bad_file(&path, &format!("has a bad line '{key}'")))
        };
        Ok(Some(NodeIdentity {
            node_id: number("node", 10)? as u64,
            cluster_id: number("cluster", 16)? as u64,
            store_id: StoreId(number("store", 16)?),
            log_made: number("log", 10)? != 0,
        }))
    }

    pub fn save_identity(&self, identity: &NodeIdentity) -> Result<(), StorageError> {
        let lines = format!(
            "node {}\ncluster {:016x}\nstore {}\nlog {}\n",
            identity.node_id,
            identity.cluster_id,
            identity.store_id,
            u8::from(identity.log_made)
        );
        write_fields(&self.root, "IDENTITY", IDENTITY_HEAD, &lines)
    }

    pub fn known_stores(&self) -> Result<KnownStores, StorageError> {
        let path = self.root.join("PEERS");
        let Some(fields) = read_fields(&path, PEERS_HEAD)? else { return Ok(KnownStores::new()) };
        let parse = |member: &str, store: &str| {
            let (node, added_at) = member.split_once('@')?;
            let store = u128::from_str_radix(store, 16).ok()?;
            Some(((node.parse().ok()?, added_at.parse().ok()?), StoreId(store)))
        };
        let parsed: Option<KnownStores> = fields.iter().map(|(member, store)| parse(member, store)).collect();
        parsed.ok_or_else(|| bad_file(&path, "has a bad line"))
    }

    pub fn save_known_stores(&self, stores: &KnownStores) -> Result<(), StorageError> {
        let line =
            |((node, added_at), store): (&(u64, u64), &StoreId)| format!("{node}@{added_at} {store}\n");
        let lines: String = stores.iter().map(line).collect();
        write_fields(&self.root, "PEERS", PEERS_HEAD, &lines)
    }
}

fn make_root(root: &Path) -> Result<(), StorageError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(root)
        .map_err(|e| StorageError::io_at("create data directory", root, e))?;
    permissions::restrict_root(root)
}

fn bad_file(path: &Path, what: &str) -> StorageError {
    StorageError::Damaged(format!("{} {what}", path.display()))
}

/// Reads `key value` lines between a head line with the version and a checksum line. `None`: there is no such file.
fn read_fields(path: &Path, head: &str) -> Result<Option<BTreeMap<String, String>>, StorageError> {
    let bytes = match read_small(path, SMALL_FILE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(StorageError::io_at("read", path, e)),
    };
    let text = String::from_utf8(bytes).map_err(|_| bad_file(path, "is not text"))?;
    let (body, crc_text) =
        text.trim_end_matches('\n').rsplit_once("crc ").ok_or_else(|| bad_file(path, "has no checksum"))?;
    let crc = u32::from_str_radix(crc_text, 16).map_err(|_| bad_file(path, "has a bad checksum line"))?;
    if crc32fast::hash(body.as_bytes()) != crc {
        return Err(bad_file(path, "fails its checksum"));
    }
    let mut lines = body.lines();
    let version = lines.next().and_then(|line| line.strip_prefix(head)).map(str::trim);
    if version == Some(FORMAT_BEFORE_RELEASE_1) {
        return Err(StorageError::NotOurs(format!(
            "{} was written before release 1, and this program does not read that; start with an empty data directory",
            path.display()
        )));
    }
    if version != Some(FORMAT_VERSION.to_string().as_str()) {
        return Err(StorageError::NotOurs(format!(
            "{} has format '{}', this program writes '{head} {FORMAT_VERSION}'",
            path.display(),
            body.lines().next().unwrap_or_default()
        )));
    }
    let fields = lines
        .map(|line| line.split_once(' ').map(|(k, v)| (k.to_string(), v.to_string())))
        .collect::<Option<_>>()
        .ok_or_else(|| bad_file(path, "has a line without a value"))?;
    Ok(Some(fields))
}

fn write_fields(root: &Path, name: &str, head: &str, lines: &str) -> Result<(), StorageError> {
    let body = format!("{head} {FORMAT_VERSION}\n{lines}");
    let crc = crc32fast::hash(body.as_bytes());
    replace_file(root, name, format!("{body}crc {crc:08x}\n").as_bytes())
}

/// Puts `bytes` in place of `name` so that a crash leaves the old or the new file, never half of one.
fn replace_file(root: &Path, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
    let temp = root.join(format!("{name}.tmp"));
    let target = root.join(name);
    let write = || -> io::Result<()> {
        let mut file = File::create(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temp, &target)
    };
    write().map_err(|e| StorageError::io_at("write", &target, e))?;
    sync_dir(root)
}

/// Makes created, renamed and deleted names of a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), StorageError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| StorageError::io_at("fsync directory", dir, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_opener_is_told_that_the_directory_is_in_use() {
        let temp = tempfile::tempdir().unwrap();
        let first = DataDir::open(temp.path()).unwrap();
        let text = DataDir::open(temp.path()).unwrap_err().to_string();
        assert!(text.starts_with("data directory in use"), "{text}");
        drop(first);
        DataDir::open(temp.path()).unwrap();
    }

    #[test]
    fn the_mark_of_a_restore_is_the_first_thing_in_its_directory() {
        let temp = tempfile::tempdir().unwrap();
        let made = temp.path().join("deep/data");
        let held = DataDir::open(temp.path()).unwrap();
        assert!(DataDir::begin_restore(temp.path()).is_err(), "a node runs here");
        assert!(!temp.path().join(RESTORING).exists(), "and can be started again");
        drop(held);
        fs::create_dir_all(&made).unwrap();
        fs::write(made.join("IDENTITY"), "").unwrap();
        assert!(DataDir::begin_restore(&made).unwrap().is_none(), "it is used");
        assert!(!made.join(RESTORING).exists());
        fs::remove_dir_all(&made).unwrap();
        // Nothing more can be made in it.
        fs::create_dir_all(made.join(LOCK_FILE)).unwrap();
        assert!(DataDir::begin_restore(&made).is_err());
        assert!(made.join(RESTORING).exists(), "nobody starts here");
        fs::remove_dir_all(&made).unwrap();
        let dir = DataDir::begin_restore(&made).unwrap().expect("it is new");
        let age = |name: &str| fs::metadata(made.join(name)).unwrap().modified().unwrap();
        assert!(age(RESTORING) <= age(LOCK_FILE) && age(RESTORING) <= age(SNAPSHOTS));
        assert!(DataDir::begin_restore(&made).unwrap().is_none(), "another restore was first");
        assert!(made.join(RESTORING).exists(), "which goes on");
        dir.identity().unwrap_err();
    }

    #[test]
    fn identity_and_peers_survive_and_every_flipped_bit_is_noticed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DataDir::open(temp.path()).unwrap();
        assert_eq!(dir.identity().unwrap(), None);
        let identity =
            NodeIdentity { node_id: 3, cluster_id: 77, store_id: StoreId::random().unwrap(), log_made: true };
        dir.save_identity(&identity).unwrap();
        let peers = KnownStores::from([((1, 0), StoreId(5)), ((2, 77), StoreId(u128::MAX))]);
        dir.save_known_stores(&peers).unwrap();
        assert_eq!(dir.identity().unwrap(), Some(identity));
        assert_eq!(dir.known_stores().unwrap(), peers);

        let path = temp.path().join("IDENTITY");
        let good = fs::read(&path).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bad).unwrap();
            // A flip inside the checksum's own hexadecimal may change its case alone: the same number.
            if let Ok(read) = dir.identity() {
                assert_eq!(read, Some(identity), "bit {bit}");
            }
        }
    }

    #[test]
    fn data_from_before_release_1_is_refused_in_one_line() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DataDir::open(temp.path()).unwrap();
        let body = "redfence-data 1\nnode 1\ncluster 1\nstore 1\nlog 1\n";
        let crc = crc32fast::hash(body.as_bytes());
        fs::write(temp.path().join("IDENTITY"), format!("{body}crc {crc:08x}\n")).unwrap();
        let text = dir.identity().unwrap_err().to_string();
        assert!(text.contains("was written before release 1") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DataDir::open(temp.path()).unwrap();
        let body = "redfence-data 9\nnode 1\n";
        let crc = crc32fast::hash(body.as_bytes());
        fs::write(temp.path().join("IDENTITY"), format!("{body}crc {crc:08x}\n")).unwrap();
        let text = dir.identity().unwrap_err().to_string();
        assert!(text.contains("redfence-data 9"), "{text}");
    }
}
