//! Modes of the data directory: 0700, and 0600 for the files in it.
//!
//! New files get theirs from the umask of the process. Here a directory that an older program or a person made is tightened, or
//! refused where it is not ours to change.

use super::error::StorageError;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const GROUP_AND_OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;
/// What a data directory holds; anything else in it is not ours.
const OWN_NAMES: [&str; 7] = ["LOCK", "IDENTITY", "PEERS", "RESERVE", "durable-mark", "log", "snapshots"];

/// Makes the directory private. One that users share (`/tmp`) is refused.
pub(super) fn restrict_root(root: &Path) -> Result<(), StorageError> {
    let meta = fs::metadata(root).map_err(|e| StorageError::io_at("look at", root, e))?;
    if meta.mode() & STICKY != 0 {
        let shared = io::Error::other("users share this directory (sticky bit); name a directory of its own");
        return Err(StorageError::io_at("use as data directory", root, shared));
    }
    restrict(root, &meta)
}

/// Makes private what is in it already.
pub(super) fn restrict_files(root: &Path) -> Result<(), StorageError> {
    for name in OWN_NAMES {
        let path = root.join(name);
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        restrict(&path, &meta)?;
        if !meta.is_dir() {
            continue;
        }
        let entries = fs::read_dir(&path).map_err(|e| StorageError::io_at("read", &path, e))?;
        for entry in entries {
            let path = entry.map_err(|e| StorageError::io_at("read", &path, e))?.path();
            // The log engine removes files of its own; one that is gone is private enough.
            if let Ok(meta) = fs::symlink_metadata(&path) {
                restrict(&path, &meta)?;
            }
        }
    }
    Ok(())
}

/// Links are left alone: what they point to may be anything.
fn restrict(path: &Path, meta: &fs::Metadata) -> Result<(), StorageError> {
    let mode = meta.mode() & 0o7777;
    if meta.is_symlink() || mode & GROUP_AND_OTHERS == 0 {
        return Ok(());
    }
    let private = fs::Permissions::from_mode(if meta.is_dir() { 0o700 } else { 0o600 });
    let what = "make private (chmod go-rwx; use a directory of this user)";
    fs::set_permissions(path, private).map_err(|e| StorageError::io_at(what, path, e))
}

#[cfg(test)]
mod tests {
    use super::super::datadir::DataDir;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn an_open_directory_is_made_private_with_its_files() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("data");
        fs::create_dir_all(root.join("log")).unwrap();
        fs::write(root.join("log/0001.raftlog"), b"x").unwrap();
        fs::write(root.join("foreign"), b"x").unwrap();
        for name in ["", "log", "log/0001.raftlog", "foreign"] {
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        drop(DataDir::open(&root).unwrap());
        let mode = |name: &str| fs::metadata(root.join(name)).unwrap().mode() & 0o777;
        assert_eq!(
            [mode(""), mode("log"), mode("log/0001.raftlog"), mode("foreign")],
            [0o700, 0o700, 0o600, 0o755]
        );
        assert_eq!(mode("LOCK") & 0o077, 0);
    }

    #[test]
    fn a_directory_that_users_share_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let text = DataDir::open(temp.path()).unwrap_err().to_string();
        assert!(text.contains("directory of its own") && !text.contains('\n'), "{text}");
        assert_eq!(fs::metadata(temp.path()).unwrap().mode() & 0o7777, 0o1777, "it is left as it was");
    }
}
