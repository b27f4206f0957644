//! The audit log: one JSON line for every administrative act, refused permission and failed login.
//!
//! Lines go through a bounded queue to a thread of their own; where it is full they are counted, and the next line says how many
//! are missing. The file is appended to, has mode 0600, and is opened again when it was moved away.

use crate::clock;
use redfence_core::reply::Reply;
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;

const LINES_MAX: usize = 4_096;
/// Bytes of each text from a client that are shown.
const TEXT_BYTES_MAX: usize = 256;
const ARGUMENTS_MAX: usize = 8;

/// What is written down.
#[derive(Clone, Copy, Debug)]
pub struct AuditEvent<'a> {
    /// `admin`, `denied` or `login_failed`.
    pub event: &'static str,
    pub user: &'a [u8],
    /// The client's address.
    pub client: std::net::SocketAddr,
    /// The command, with its subcommand.
    pub command: &'a str,
    pub arguments: &'a [&'a [u8]],
    /// See [`result_of`]; of a refused permission or login its code.
    pub result: &'a str,
    pub object: &'a [u8],
}

/// An administrative act whose outcome is not known yet.
#[derive(Debug)]
pub struct AuditDraft(serde_json::Value);

/// What a line says of an act that has this reply: `ok`, or the code of the error.
#[must_use]
pub fn result_of(reply: &Reply) -> &str {
    if let Reply::Error(refusal) = reply {
        refusal.code()
    } else {
        OK
    }
}

pub const OK: &str = "ok";
/// It will be carried out with `EXEC`.
pub const QUEUED: &str = "queued";
/// The upstream Redis has it; its reply goes to the client unread.
pub const PASSED: &str = "passed";
/// The client was gone before the reply came.
pub const UNKNOWN: &str = "unknown";

#[derive(Debug)]
pub struct AuditLog {
    lines: SyncSender<String>,
    dropped: Arc<AtomicU64>,
}

impl AuditLog {
    /// The error is one line.
    pub fn open(path: PathBuf) -> Result<AuditLog, String> {
        let file = open(&path).map_err(|error| format!("audit-log {}: {error}", path.display()))?;
        let (sender, receiver) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&dropped);
        std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write_lines(&path, file, &receiver, &counter))
            .map_err(|error| format!("audit-log: cannot start its thread: {error}"))?;
        Ok(AuditLog { lines: sender, dropped })
    }

    pub fn write(&self, event: AuditEvent<'_>) {
        self.send(line(event, clock::wall_us() / 1_000).to_string());
    }

    /// What was asked for, and when; [`AuditLog::finish`] writes it with its outcome.
    #[must_use]
    pub fn draft(event: AuditEvent<'_>) -> AuditDraft {
        AuditDraft(line(event, clock::wall_us() / 1_000))
    }

    pub fn finish(&self, mut draft: AuditDraft, result: &str) {
        draft.0["result"] = result.into();
        self.send(draft.0.to_string());
    }

    fn send(&self, line: String) {
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn line(event: AuditEvent<'_>, now_ms: u64) -> serde_json::Value {
    let arguments: Vec<String> = shown_arguments(event.command, event.arguments);
    json!({
        "time": timestamp(now_ms),
        "event": event.event,
        "user": shown(event.user),
        "client": event.client.to_string(),
        "command": event.command,
        "arguments": arguments,
        "object": shown(event.object),
        "result": event.result,
    })
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(TEXT_BYTES_MAX)]).into_owned()
}

/// Arguments that say what was done, and no secret: of other commands none.
fn shown_arguments(command: &str, arguments: &[&[u8]]) -> Vec<String> {
    let is_secret = |word: &[u8]| matches!(word.first(), Some(b'>' | b'<' | b'#' | b'!'));
    let shown_all = || arguments.iter().take(ARGUMENTS_MAX).map(|word| shown(word)).collect();
    match command {
        "acl|setuser" => {
            let words = arguments.iter().take(ARGUMENTS_MAX);
            words.map(|word| if is_secret(word) { "(redacted)".into() } else { shown(word) }).collect()
        }
        "config|set" => arguments.iter().step_by(2).take(ARGUMENTS_MAX).map(|word| shown(word)).collect(),
        "acl|deluser" | "client|kill" | "flushall" | "flushdb" => shown_all(),
        _ if command.starts_with("lock.") => shown_all(),
        _ => Vec::new(),
    }
}

/// RFC 3339, in UTC.
fn timestamp(unix_ms: u64) -> String {
    let (days, of_day_ms) = ((unix_ms / 86_400_000) as i64, unix_ms % 86_400_000);
    // Howard Hinnant's civil_from_days.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (seconds, ms) = (of_day_ms / 1_000, of_day_ms % 1_000);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}Z",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    )
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn write_lines(path: &Path, mut file: File, lines: &Receiver<String>, dropped: &AtomicU64) {
    let mut has_failed = false;
    while let Ok(line) = lines.recv() {
        if was_moved(path, &file) {
            match open(path) {
                Ok(fresh) => file = fresh,
                Err(error) => {
                    tracing::error!(%error, path = %path.display(), "audit log cannot be opened again")
                }
            }
        }
        let missing = dropped.swap(0, Ordering::Relaxed);
        let mut text = line + "\n";
        if missing > 0 {
            let note =
                json!({ "time": timestamp(clock::wall_us() / 1_000), "event": "dropped", "lines": missing });
            text = format!("{note}\n{text}");
        }
        match file.write_all(text.as_bytes()) {
            Ok(()) => has_failed = false,
            Err(error) => {
                dropped.fetch_add(1 + missing, Ordering::Relaxed);
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::error!(%error, path = %path.display(), "audit log cannot be written");
                }
            }
        }
    }
}

fn was_moved(path: &Path, file: &File) -> bool {
    let own = file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let there = fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    own != there
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event<'a>(command: &'a str, arguments: &'a [&'a [u8]]) -> AuditEvent<'a> {
        let client = "127.0.0.1:5".parse().unwrap();
        AuditEvent { event: "admin", user: b"ro\not", client, command, arguments, result: OK, object: b"" }
    }

    #[test]
    fn a_line_is_one_json_object_without_secrets() {
        let text = line(event("acl|setuser", &[b"app", b">secret", b"~a\x1b[1m", b"#abc"]), 0).to_string();
        assert!(!text.contains("secret") && !text.contains('\n') && !text.contains('\x1b'), "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["user"], "ro\not");
        assert_eq!(value["arguments"], json!(["app", "(redacted)", "~a\u{1b}[1m", "(redacted)"]));
        assert_eq!(value["time"], "1970-01-01T00:00:00.000Z");
        let silent = line(event("migrate", &[b"host", b"AUTH", b"secret"]), 0).to_string();
        assert!(!silent.contains("secret"), "{silent}");
        let config = line(event("config|set", &[b"requirepass", b"secret"]), 0).to_string();
        assert!(!config.contains("secret") && config.contains("requirepass"), "{config}");
    }

    #[test]
    fn dates_are_right() {
        assert_eq!(timestamp(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(timestamp(1_767_225_599_999), "2025-12-31T23:59:59.999Z");
    }

    #[test]
    fn it_appends_with_mode_0600_and_follows_a_moved_file() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("audit");
        let log = AuditLog::open(path.clone()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default().lines().count();
        let await_lines = |path: &Path, count: usize| {
            for _ in 0..2_000 {
                if lines(path) == count {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            panic!("{} has {} lines", path.display(), lines(path));
        };
        log.write(event("flushall", &[]));
        await_lines(&path, 1);
        let moved = folder.path().join("audit.1");
        fs::rename(&path, &moved).unwrap();
        log.write(event("flushall", &[]));
        await_lines(&path, 1);
        assert_eq!(lines(&moved), 1);
    }
}
