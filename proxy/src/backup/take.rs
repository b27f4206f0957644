//! `redfence backup`: asks a node for a backup and writes it to a file.
//!
//! The file is written under a temporary name, checked piece by piece as it comes, synced and renamed: under its own name it is whole.

use super::connection::BackupConnection;
use crate::cli::access::LoginArgs;
use crate::cli::output::{say, tell};
use crate::cli::reply::Reply;
use crate::cli::BackupArgs;
use crate::clock::Clock;
use crate::node_api::backup_file::BackupHeader;
use crate::node_api::snapshot_stream::StreamChecker;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the cluster may be without a leader, or the node busy, before the backup is given up.
const RETRY_WITHIN_MS: u64 = 60_000;
/// How long the snapshot may make no progress: a digest of the whole state may be under way when it is asked for, and half a minute
/// each is usual for a large one.
const CONFIRM_WITHIN_MS: u64 = 180_000;
/// Longer by a second for each 64 MiB of the snapshot: before it counts, a majority hashes its whole state, which takes several times
/// less, and no progress shows meanwhile.
const CONFIRM_BYTES_PER_MS: u64 = 64 * 1024;
const RETRY_EVERY: Duration = Duration::from_millis(100);
const PROGRESS_EVERY_MS: u64 = 1_000;
/// Far more than a snapshot of the largest `max-memory` takes.
const TOTAL_BYTES_MAX: u64 = 1 << 44;

pub(super) fn take(args: &BackupArgs) -> Result<(), String> {
    let (Some(from), Some(out)) = (&args.from, &args.out) else {
        return Err("backup needs --from ADDR and --out FILE (or: backup verify FILE)".to_owned());
    };
    // It would be replaced by a file.
    if fs::symlink_metadata(out).is_ok_and(|found| !found.is_file()) {
        return Err(format!("{} is there and is no file", out.display()));
    }
    let connection = connect(args, from)?;
    let mut source = Source { connection, clock: Clock::start(), id: String::new(), told_ms: 0 };
    let temp = temp_path(out)?;
    let taken = source.begin().and_then(|()| source.write(&temp)).and_then(|header| {
        fs::rename(&temp, out).map_err(|error| format!("cannot write {}: {error}", out.display()))?;
        sync_folder(out)?;
        Ok(header)
    });
    // The node drops it by itself where this is not heard.
    let _ = source.connection.ask(&["LOCK.CLUSTER", "BACKUP", "END", &source.id]);
    let header = taken.inspect_err(|_| drop(fs::remove_file(&temp)))?;
    say(&format!(
        "backup of cluster {} at index {} written to {} ({} bytes)",
        header.cluster,
        header.index,
        out.display(),
        header.size_bytes
    ));
    Ok(())
}

/// A connection to the member at `from`, with TLS and logged in as the arguments say.
pub(crate) fn connect(args: &BackupArgs, from: &str) -> Result<BackupConnection, String> {
    BackupConnection::open(from, &login(args))
}

fn login(args: &BackupArgs) -> LoginArgs {
    LoginArgs {
        password_file: args.password_file.clone(),
        user: args.user.clone(),
        tls_ca: args.tls_ca.clone(),
        tls_name: args.tls_name.clone(),
        tls_cert: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
    }
}

/// A name of its own for each backup: two to the same file must not write into one another.
fn temp_path(out: &Path) -> Result<PathBuf, String> {
    let mut number = [0; 8];
    getrandom::getrandom(&mut number).map_err(|error| format!("no random numbers: {error}"))?;
    let mut name = out.as_os_str().to_owned();
    name.push(format!(".{:016x}.partial", u64::from_le_bytes(number)));
    Ok(name.into())
}

fn sync_folder(out: &Path) -> Result<(), String> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| format!("cannot sync {}: {error}", folder.display()))
}

/// A backup under way at a node.
struct Source {
    connection: BackupConnection,
    clock: Clock,
    id: String,
    told_ms: u64,
}

/// One answer to `BACKUP READ`.
struct Piece {
    is_ready: bool,
    /// Of the whole backup, or written so far.
    total_bytes: u64,
    bytes: Vec<u8>,
}

impl Source {
    fn begin(&mut self) -> Result<(), String> {
        match self.ask(&["LOCK.CLUSTER", "BACKUP", "BEGIN"])? {
            Reply::Int(id) => self.id = id.to_string(),
            Reply::Error(line) => return Err(line),
            Reply::Nil | Reply::Text(_) | Reply::Array(_) | Reply::Map(_) | Reply::Push(_) => {
                return Err(strange_answer())
            }
        }
        Ok(())
    }

    /// Asks until the cluster has a leader.
    fn ask(&mut self, words: &[&str]) -> Result<Reply, String> {
        let begun_ms = self.clock.monotonic_ms();
        loop {
            let answer = self.connection.ask(words)?;
            let is_late = self.clock.monotonic_ms() - begun_ms >= RETRY_WITHIN_MS;
            match answer {
                Reply::Error(line) if line.starts_with("UNAVAILABLE") && !is_late => {
                    std::thread::sleep(RETRY_EVERY);
                }
                Reply::Nil
                | Reply::Error(_)
                | Reply::Int(_)
                | Reply::Text(_)
                | Reply::Array(_)
                | Reply::Map(_)
                | Reply::Push(_) => return Ok(answer),
            }
        }
    }

    fn read(&mut self, offset: u64) -> Result<Piece, String> {
        let id = self.id.clone();
        let mut items = match self.ask(&["LOCK.CLUSTER", "BACKUP", "READ", &id, &offset.to_string()])? {
            Reply::Array(items) => items.into_iter(),
            Reply::Error(line) => return Err(line),
            Reply::Nil | Reply::Int(_) | Reply::Text(_) | Reply::Map(_) | Reply::Push(_) => {
                return Err(strange_answer())
            }
        };
        match (items.next(), items.next(), items.next()) {
            (Some(Reply::Text(state)), Some(Reply::Int(total)), Some(Reply::Text(bytes))) => {
                let total_bytes = u64::try_from(total).ok().filter(|total| *total <= TOTAL_BYTES_MAX);
                let total_bytes = total_bytes.ok_or_else(strange_answer)?;
                Ok(Piece { is_ready: state == b"ready", total_bytes, bytes })
            }
            _ => Err(strange_answer()),
        }
    }

    /// Waits until the node has written its snapshot, and a majority has confirmed what is in it.
    fn first(&mut self) -> Result<Piece, String> {
        let (mut written_bytes, mut most_bytes, mut moved_ms) = (0, 0, self.clock.monotonic_ms());
        loop {
            let piece = self.read(0)?;
            if piece.is_ready {
                return Ok(piece);
            }
            let now_ms = self.clock.monotonic_ms();
            if piece.total_bytes != written_bytes {
                (written_bytes, moved_ms) = (piece.total_bytes, now_ms);
            }
            most_bytes = written_bytes.max(most_bytes);
            if now_ms - moved_ms >= patience_ms(most_bytes) {
                return Err(stalled(now_ms - moved_ms));
            }
            self.tell(|| {
                format!("the node writes a snapshot and has it confirmed: {}", shown(piece.total_bytes))
            });
            std::thread::sleep(RETRY_EVERY);
        }
    }

    fn write(&mut self, temp: &Path) -> Result<BackupHeader, String> {
        let mut piece = self.first()?;
        let total_bytes = piece.total_bytes;
        let failed = |error: std::io::Error| format!("cannot write {}: {error}", temp.display());
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(temp).map_err(failed)?;
        let mut check = Check::default();
        let mut offset = 0;
        while offset < total_bytes {
            if piece.bytes.is_empty() || piece.total_bytes != total_bytes {
                return Err(strange_answer());
            }
            check.push(&piece.bytes)?;
            file.write_all(&piece.bytes).map_err(failed)?;
            offset += piece.bytes.len() as u64;
            self.tell(|| format!("{} of {}", shown(offset), shown(total_bytes)));
            if offset < total_bytes {
                piece = self.read(offset)?;
            }
        }
        let header = check.finish()?;
        file.sync_all().map_err(failed)?;
        self.told_ms = 0;
        self.tell(|| format!("{} of {}, checked", shown(offset), shown(total_bytes)));
        Ok(header)
    }

    /// Progress, for people: a line a second at most.
    fn tell(&mut self, line: impl FnOnce() -> String) {
        let now_ms = self.clock.monotonic_ms().max(1);
        if self.told_ms == 0 || now_ms - self.told_ms >= PROGRESS_EVERY_MS {
            self.told_ms = now_ms;
            tell(&format!("backup: {}", line()));
        }
    }
}

/// Whether the bytes that come are a whole backup. Needs no more memory than the largest collection.
#[derive(Default)]
struct Check {
    /// The first line, until it is whole.
    line: Vec<u8>,
    header: Option<BackupHeader>,
    snapshot: StreamChecker,
    crc: crc32fast::Hasher,
    snapshot_bytes: u64,
}

impl Check {
    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.header.is_some() {
            return self.push_snapshot(bytes);
        }
        self.line.extend_from_slice(bytes);
        let Some((header, length)) = BackupHeader::decode(&self.line)? else { return Ok(()) };
        self.header = Some(header);
        let rest = self.line.split_off(length);
        self.push_snapshot(&rest)
    }

    fn push_snapshot(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.crc.update(bytes);
        self.snapshot_bytes += bytes.len() as u64;
        self.snapshot.push(bytes)
    }

    fn finish(self) -> Result<BackupHeader, String> {
        let header = self.header.ok_or_else(strange_answer)?;
        if self.snapshot_bytes != header.size_bytes || self.crc.finalize() != header.crc32 {
            return Err("what the node sent does not fit its checksum; try again".to_owned());
        }
        if header.size_bytes > 0 {
            self.snapshot.finish()?;
        }
        Ok(header)
    }
}

/// How long a snapshot of so many bytes may make no progress.
fn patience_ms(snapshot_bytes: u64) -> u64 {
    CONFIRM_WITHIN_MS + snapshot_bytes.min(TOTAL_BYTES_MAX) / CONFIRM_BYTES_PER_MS
}

fn stalled(for_ms: u64) -> String {
    format!(
        "the node's snapshot has made no progress for {} s: a majority must confirm its digests. \
         LOCK.CLUSTER NODES shows who is down or quarantined",
        for_ms / 1_000
    )
}

fn strange_answer() -> String {
    "the node gave an answer that is none of a backup: is it a Redfence node of this release?".to_owned()
}

fn shown(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_grows_with_the_snapshot_and_ends() {
        let gib = 1 << 30;
        for (bytes, seconds) in [(0, 180), (1, 180), (64 << 20, 181), (gib, 196), (16 * gib, 442)] {
            assert_eq!(patience_ms(bytes) / 1_000, seconds, "{bytes} bytes");
        }
        assert_eq!(patience_ms(u64::MAX), patience_ms(TOTAL_BYTES_MAX), "nothing waits for ever");
    }
}
