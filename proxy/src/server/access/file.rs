//! The ACL file of a node: read at the start, by `ACL LOAD` and when it has changed; written by `ACL SAVE`.
//!
//! A file that cannot be read or has an error in it changes nothing: the users stay as they were, and one log line says why.

use super::{is_open, AccessControl};
use crate::acl::commands::OtherNames;
use crate::acl::users::{is_comment, FILE_BYTES_MAX};
use crate::acl::Users;
use crate::server::ServerState;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub const NO_FILE: &str = "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER \
                           command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store \
                           users in the Redis configuration.";

/// By which a change of the file is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMark {
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl FileMark {
    fn of(metadata: &fs::Metadata) -> FileMark {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        FileMark { inode: metadata.ino(), len: metadata.len(), modified }
    }
}

/// An ACL file as it was read.
pub(super) struct AclFile {
    pub(super) users: Users,
    pub(super) mark: FileMark,
    /// Whether it names no user at all, not even `default`.
    is_blank: bool,
}

/// Reads a file. The error is one line that names it.
pub(super) fn read(path: &Path, password: Option<&[u8]>, others: OtherNames<'_>) -> Result<AclFile, String> {
    let named = |error: String| format!("acl-file {}: {error}", path.display());
    let mut file = File::open(path).map_err(|error| named(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| named(error.to_string()))?;
    let mut text = Vec::new();
    let limit = FILE_BYTES_MAX as u64 + 1;
    Read::by_ref(&mut file).take(limit).read_to_end(&mut text).map_err(|error| named(error.to_string()))?;
    if text.len() > FILE_BYTES_MAX {
        return Err(named(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    let users = Users::parse(&text, password, others).map_err(named)?;
    let is_blank = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).all(is_comment);
    Ok(AclFile { users, mark: FileMark::of(&metadata), is_blank })
}

impl AccessControl {
    #[must_use]
    pub fn has_file(&self) -> bool {
        self.settings.acl_file.is_some()
    }

    /// Reads the file again. Answers the names of users that are gone.
    pub fn load(&self) -> Result<Vec<Vec<u8>>, String> {
        self.load_if(|_| Ok(()))
    }

    /// The file has changed and nobody has asked for it to be read: it may be half written, so it must neither let everybody in nor
    /// delete all users.
    fn load_changed(&self) -> Result<Vec<Vec<u8>>, String> {
        self.load_if(|file| {
            let problem = if self.needs_login() && is_open(&file.users) {
                "with it everybody would be let in without a password"
            } else if file.is_blank {
                "it names no user"
            } else {
                return Ok(());
            };
            Err(format!("{problem}; ACL LOAD takes it all the same"))
        })
    }

    fn load_if(&self, check: impl Fn(&AclFile) -> Result<(), String>) -> Result<Vec<Vec<u8>>, String> {
        let Some(path) = &self.settings.acl_file else {
            return Err("no ACL file is configured (--acl-file)".into());
        };
        let password = self.settings.password.as_deref().map(str::as_bytes);
        let upstream = self.upstream_commands();
        let others = match &upstream {
            Some(known) => OtherNames::Upstream(known),
            None if self.settings.has_upstream => OtherNames::Any,
            None => OtherNames::None,
        };
        let file = read(path, password, others)?;
        check(&file)?;
        let AclFile { users, mark, .. } = file;
        if upstream.is_none() {
            super::warn_of_unchecked(&users);
        }
        *self.file_mark.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
        let gone = self.change(|now| {
            *now = users;
            Ok(())
        });
        Ok(gone.unwrap_or_default())
    }

    /// Writes the users to the file: whole, or not at all.
    pub fn save(&self) -> Result<(), String> {
        let Some(path) = &self.settings.acl_file else {
            return Err("no ACL file is configured (--acl-file)".into());
        };
        let text = self.users().text();
        let written = replace(path, text.as_bytes());
        written.map_err(|error| format!("acl-file {}: {error}", path.display()))?;
        let mark = fs::metadata(path).ok().map(|metadata| FileMark::of(&metadata));
        *self.file_mark.lock().unwrap_or_else(PoisonError::into_inner) = mark;
        Ok(())
    }

    /// Whether the file is another one than was read last, and has been the same for two looks: whoever writes it has finished.
    fn has_changed(&self, last_look: &mut Option<FileMark>) -> bool {
        let Some(path) = &self.settings.acl_file else { return false };
        let Ok(metadata) = fs::metadata(path) else { return false };
        let now = Some(FileMark::of(&metadata));
        let is_settled = std::mem::replace(last_look, now) == now;
        let mut mark = self.file_mark.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_settled || *mark == now {
            return false;
        }
        // Remembered at once: an error in it is reported once.
        *mark = now;
        true
    }
}

/// Beside the file, then in its place.
fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let _ = fs::remove_file(&beside);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written =
        file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Reads the file again whenever it changes, for ever.
pub async fn follow(server: Arc<ServerState>) {
    if !server.access.has_file() {
        return;
    }
    let mut last_look = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if !server.access.has_changed(&mut last_look) {
            continue;
        }
        match server.access.load_changed() {
            Ok(gone) => {
                tracing::info!(
                    users = server.access.users().iter().count(),
                    "ACL file has changed and was read again"
                );
                server.close_clients_of(&gone, None);
            }
            Err(error) => {
                tracing::error!(error, "ACL file has changed but cannot be used; the users stay as they were")
            }
        }
    }
}
