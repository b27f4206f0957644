//! The audit log: one JSON line for every administrative act, refused permission and failed login.
//!
//! A thread of its own writes the lines, which wait for it in a bounded queue, in the order of their times. Where it is full,
//! administrative acts are counted, and the next line says how many are missing. Refusals cannot fill that queue: they have half
//! of it and so many lines a second, and equal ones beyond become one line with a count ([`super::audit_repeats`]). The file is
//! appended to, has mode 0600, and is opened again when it was moved away.

use super::audit_repeats::{Repeated, Repeats};
use crate::calendar;
use crate::clock;
use crate::node_api::AdminActs;
use redfence_core::reply::Reply;
use serde_json::json;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LINES_MAX: usize = 4_096;
/// Bytes of lines that wait.
const LINES_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Lines that are kept for the admin API, and their bytes.
const LAST_LINES_MAX: usize = 1_000;
const LAST_LINES_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of each text from a client that are shown.
const TEXT_BYTES_MAX: usize = 256;
/// How many of them are missing is said behind the last: nobody hides `+@all` behind words of no consequence.
const ARGUMENTS_MAX: usize = 32;

/// What is written down.
#[derive(Clone, Copy, Debug)]
pub struct AuditEvent<'a> {
    /// `admin`, `script`, `denied` or `login_failed`.
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
pub struct AuditDraft {
    line: serde_json::Value,
    /// What scripts called. With nothing else to tell, it is written down only where they called something.
    acts: Option<Arc<AdminActs>>,
}

impl AuditDraft {
    /// Why it was done, as an operator said.
    #[must_use]
    pub fn with_reason(mut self, reason: &str) -> AuditDraft {
        self.line["reason"] = shown(reason.as_bytes()).into();
        self
    }
}

/// What a line says of an act that has this reply: `ok`, or the code of the error.
#[must_use]
pub fn result_of(reply: &Reply) -> &str {
    if let Reply::Error(refusal) = reply {
        refusal.code()
    } else {
        OK
    }
}

/// The same for the bytes of a reply of the upstream Redis.
#[must_use]
pub fn result_of_bytes(reply: &[u8]) -> &str {
    let code = |text: &[u8]| text.iter().position(|byte| !byte.is_ascii_uppercase()).unwrap_or(text.len());
    match reply {
        [b'-', text @ ..] => std::str::from_utf8(&text[..code(text)]).unwrap_or(UNKNOWN),
        [b'+', b'Q', b'U', b'E', b'U', b'E', b'D', ..] => QUEUED,
        [b'*', b'-', b'1', ..] | [b'_', ..] => DISCARDED,
        _ => OK,
    }
}

pub const OK: &str = "ok";
/// It will be carried out with `EXEC`.
pub const QUEUED: &str = "queued";
/// The upstream Redis has it; its reply goes to the client unread.
pub const PASSED: &str = "passed";
/// A transaction that was not carried out, because a watched key had changed.
pub const DISCARDED: &str = "discarded";
/// The client was gone before the reply came.
pub const UNKNOWN: &str = "unknown";

#[derive(Debug)]
pub struct AuditLog {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// What the thread has not written yet.
#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<String>,
    lines_bytes: usize,
    repeats: Repeats,
    dropped: u64,
    is_closed: bool,
    /// All was written that was there when it was closed.
    is_finished: bool,
    last: LastLines,
}

impl Waiting {
    fn push(&mut self, line: String) {
        self.lines_bytes += line.len();
        self.lines.push_back(line);
    }

    /// Whether a line of so many bytes fits into so much of the queue.
    fn has_room(&self, bytes: usize, lines_max: usize, bytes_max: usize) -> bool {
        self.lines.len() < lines_max && self.lines_bytes + bytes <= bytes_max
    }
}

/// The newest lines, for the admin API.
#[derive(Debug, Default)]
struct LastLines {
    lines: VecDeque<String>,
    bytes: usize,
}

impl LastLines {
    fn push(&mut self, line: &str) {
        self.bytes += line.len();
        self.lines.push_back(line.to_owned());
        while self.lines.len() > LAST_LINES_MAX || self.bytes > LAST_LINES_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AuditLog {
    /// The error is one line.
    pub fn open(path: PathBuf) -> Result<AuditLog, String> {
        let file = open(&path).map_err(|error| format!("audit-log {}: {error}", path.display()))?;
        let shared = Arc::new(Shared::default());
        let log = AuditLog { shared: Arc::clone(&shared) };
        std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write_lines(&path, file, &shared))
            .map_err(|error| format!("audit-log: cannot start its thread: {error}"))?;
        Ok(log)
    }

    /// A refusal: they may come very often. Beyond so many in a second, equal ones become one line.
    pub fn write_refusal(&self, event: AuditEvent<'_>) {
        let mut waiting = self.shared.waiting();
        let now_ms = now_ms();
        if waiting.repeats.has_room(now_ms) {
            let mut line = line(event);
            line["count"] = 1.into();
            let line = dated(line, now_ms);
            let fits = waiting.has_room(line.len(), LINES_MAX / 2, LINES_BYTES_MAX / 2);
            if fits && waiting.repeats.takes_line(line.len(), now_ms) {
                waiting.push(line);
                self.shared.changed.notify_one();
                return;
            }
        }
        if waiting.repeats.add(&event, now_ms) {
            self.shared.changed.notify_one();
        }
    }

    /// One that may come very often and need not have a line of its own: equal ones within a second become one.
    pub fn write_repeated(&self, event: AuditEvent<'_>) {
        if self.shared.waiting().repeats.add(&event, now_ms()) {
            self.shared.changed.notify_one();
        }
    }

    /// What was asked for; [`AuditLog::finish`] writes it with its outcome. `acts`: of scripts, joined to the arguments. Without
    /// either it is not written down.
    #[must_use]
    pub fn draft(event: AuditEvent<'_>, acts: Option<Arc<AdminActs>>) -> AuditDraft {
        AuditDraft { line: line(event), acts }
    }

    pub fn finish(&self, mut draft: AuditDraft, result: &str) {
        if let Some(acts) = draft.acts.take() {
            let mut names: Vec<serde_json::Value> =
                draft.line["arguments"].as_array().cloned().unwrap_or_default();
            names.extend(acts.names().into_iter().map(Into::into));
            let mut seen = std::collections::BTreeSet::new();
            names.retain(|name| seen.insert(name.to_string()));
            // Where the outcome is not known, neither is what the script did.
            if names.is_empty() && !matches!(result, UNKNOWN | "INDETERMINATE") {
                return;
            }
            draft.line["arguments"] = names.into();
        }
        draft.line["result"] = result.into();
        self.send(draft.line);
    }

    /// Writes what waits, for so long at most: the program is about to end.
    pub fn close(&self, within: Duration) {
        let mut waiting = self.shared.waiting();
        waiting.is_closed = true;
        self.shared.changed.notify_all();
        let finished =
            self.shared.changed.wait_timeout_while(waiting, within, |waiting| !waiting.is_finished);
        drop(finished.unwrap_or_else(PoisonError::into_inner));
    }

    /// The newest lines since the start of the program, newest first.
    #[must_use]
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        self.shared.waiting().last.lines.iter().rev().take(count).cloned().collect()
    }

    fn send(&self, line: serde_json::Value) {
        let mut waiting = self.shared.waiting();
        let line = dated(line, now_ms());
        if waiting.has_room(line.len(), LINES_MAX, LINES_BYTES_MAX) {
            waiting.push(line);
            self.shared.changed.notify_one();
        } else {
            waiting.dropped += 1;
        }
    }
}

/// What waits is still written.
impl Drop for AuditLog {
    fn drop(&mut self) {
        self.shared.waiting().is_closed = true;
        self.shared.changed.notify_all();
    }
}

fn now_ms() -> u64 {
    clock::wall_us() / 1_000
}

/// A line gets its time when it gets its place in the file.
fn dated(mut line: serde_json::Value, now_ms: u64) -> String {
    line["time"] = calendar::utc_ms(now_ms).into();
    let text = line.to_string();
    // JSON leaves them as they are, and some readers end a line at them.
    let ends_line = |character| matches!(character, '\u{85}' | '\u{2028}' | '\u{2029}');
    if !text.contains(ends_line) {
        return text;
    }
    let escaped = |character| match ends_line(character) {
        true => format!("\\u{:04x}", u32::from(character)),
        false => character.to_string(),
    };
    text.chars().map(escaped).collect()
}

fn line(event: AuditEvent<'_>) -> serde_json::Value {
    let arguments: Vec<String> = shown_arguments(event.command, event.arguments);
    json!({
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
    String::from_utf8_lossy(cut(text)).into_owned()
}

/// As much of a text as is shown.
pub(super) fn cut(text: &[u8]) -> &[u8] {
    &text[..text.len().min(TEXT_BYTES_MAX)]
}

/// Arguments that say what was done, and no secret: of other commands none.
fn shown_arguments(command: &str, arguments: &[&[u8]]) -> Vec<String> {
    let (words, step) = match command {
        "acl|setuser" | "acl|deluser" | "acl|getuser" | "client|kill" | "config|get" | "flushall"
        | "flushdb" | "exec" => (arguments, 1),
        "config|set" => (arguments, 2),
        _ if command.starts_with("lock.") => (arguments, 1),
        _ => (&[][..], 1),
    };
    let may_be_secret = command == "acl|setuser";
    let shown_word = |word: &&[u8]| match may_be_secret && is_secret(word) {
        true => "(redacted)".to_owned(),
        false => shown(word) + if word.len() > TEXT_BYTES_MAX { "…" } else { "" },
    };
    let words = words.iter().step_by(step);
    let missing = words.len().saturating_sub(ARGUMENTS_MAX);
    let note = (missing > 0).then(|| format!("({missing} more)"));
    words.take(ARGUMENTS_MAX).map(shown_word).chain(note).collect()
}

/// A password or its hash, as a rule of a user. None may stand in a selector: there it is a mistake, and a secret all the same.
fn is_secret(word: &[u8]) -> bool {
    match word.first() {
        Some(b'>' | b'<' | b'#' | b'!') => true,
        Some(b'(') => word.iter().any(|byte| matches!(byte, b'>' | b'<')),
        Some(_) | None => false,
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    // One that was there already. Not every place for it is a file that has a mode.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

fn write_lines(path: &Path, mut file: File, shared: &Shared) {
    let mut has_failed = false;
    while let Some((lines, mut text)) = next_text(shared) {
        if was_moved(path, &file) {
            match open(path) {
                Ok(fresh) => file = fresh,
                Err(error) => {
                    tracing::error!(%error, path = %path.display(), "audit log cannot be opened again")
                }
            }
        }
        if has_failed {
            // What was written last may have ended within a line.
            text.insert(0, '\n');
        }
        match file.write_all(text.as_bytes()) {
            Ok(()) => has_failed = false,
            Err(error) => {
                shared.waiting().dropped += lines;
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::error!(%error, path = %path.display(), "audit log cannot be written");
                }
            }
        }
    }
    shared.waiting().is_finished = true;
    shared.changed.notify_all();
}

/// Sleeps until there is something to write: how many lines or missing lines it stands for, and the text. `None`: that was all.
fn next_text(shared: &Shared) -> Option<(u64, String)> {
    let mut waiting = shared.waiting();
    loop {
        let now_ms = now_ms();
        let lines = std::mem::take(&mut waiting.lines);
        waiting.lines_bytes = 0;
        let repeated = match waiting.is_closed {
            true => waiting.repeats.take_all(),
            false => waiting.repeats.take_due(now_ms),
        };
        if !lines.is_empty() || !repeated.is_empty() {
            let missing = std::mem::take(&mut waiting.dropped);
            let count = (lines.len() + repeated.len()) as u64 + missing;
            let note = json!({ "event": "dropped", "lines": missing });
            let note = (missing > 0).then(|| dated(note, now_ms));
            let repeated = repeated.iter().map(|repeated| dated(repeated_line(repeated), now_ms));
            let all = lines.into_iter().chain(note).chain(repeated);
            let mut text = String::new();
            for line in all {
                waiting.last.push(&line);
                text.push_str(&line);
                text.push('\n');
            }
            return Some((count, text));
        }
        if waiting.is_closed {
            return None;
        }
        let wait_ms =
            waiting.repeats.next_due_ms().map(|due_ms| due_ms.saturating_sub(now_ms).clamp(1, 1_000));
        waiting = match wait_ms {
            Some(ms) => {
                let slept = shared.changed.wait_timeout(waiting, Duration::from_millis(ms));
                slept.unwrap_or_else(PoisonError::into_inner).0
            }
            None => shared.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

fn repeated_line(repeated: &Repeated) -> serde_json::Value {
    let mut line = line(repeated.event());
    line["since"] = calendar::utc_ms(repeated.first_ms).into();
    line["count"] = repeated.count.into();
    line
}

fn was_moved(path: &Path, file: &File) -> bool {
    let own = file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let there = fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    own != there
}

#[cfg(test)]
mod tests {
    use super::super::audit_repeats::LINES_PER_SECOND;
    use super::*;

    fn event<'a>(command: &'a str, arguments: &'a [&'a [u8]]) -> AuditEvent<'a> {
        let client = "127.0.0.1:5".parse().unwrap();
        AuditEvent { event: "admin", user: b"ro\not", client, command, arguments, result: OK, object: b"" }
    }

    #[test]
    fn a_line_is_one_json_object_without_secrets() {
        let text = line(event("acl|setuser", &[b"app", b">secret", b"~a\x1b[1m", b"#abc"]));
        let text = dated(text, 0);
        assert!(!text.contains("secret") && !text.contains('\n') && !text.contains('\x1b'), "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["user"], "ro\not");
        assert_eq!(value["arguments"], json!(["app", "(redacted)", "~a\u{1b}[1m", "(redacted)"]));
        assert_eq!(value["time"], "1970-01-01T00:00:00.000Z");
        let silent = line(event("migrate", &[b"host", b"AUTH", b"secret"])).to_string();
        assert!(!silent.contains("secret"), "{silent}");
        let config = line(event("config|set", &[b"requirepass", b"secret"])).to_string();
        assert!(!config.contains("secret") && config.contains("requirepass"), "{config}");
    }

    #[test]
    fn what_is_left_out_is_said() {
        let mut words: Vec<&[u8]> = vec![b"app"];
        words.resize(ARGUMENTS_MAX, b"on");
        words.extend([&b"+@all"[..], b"~*"]);
        let shown = shown_arguments("acl|setuser", &words);
        assert_eq!((shown.len(), shown[ARGUMENTS_MAX].as_str()), (ARGUMENTS_MAX + 1, "(2 more)"));
        let long = [b'x'; TEXT_BYTES_MAX + 1];
        assert!(shown_arguments("acl|deluser", &[&long])[0].ends_with("x…"));
        assert_eq!(shown_arguments("acl|setuser", &[b"a", b"(+get >secret)"])[1], "(redacted)");
        assert_eq!(shown_arguments("acl|setuser", &[b"a", b"(+get ~a#b)"])[1], "(+get ~a#b)");
    }

    #[test]
    fn lines_that_wait_are_limited_in_bytes() {
        let log = AuditLog { shared: Arc::default() };
        let line = json!({ "x": "x".repeat(LINES_BYTES_MAX / 4 - 100) });
        (0..10).for_each(|_| log.send(line.clone()));
        let (lines, text) = next_text(&log.shared).unwrap();
        assert_eq!(lines, 10, "four of them, and six that are missing");
        assert!(text.contains("\"lines\":6") && text.len() < LINES_BYTES_MAX + 1_000);
        assert!(text.lines().last().unwrap().contains("\"dropped\""), "behind what came before");
        log.send(line);
        assert_eq!(next_text(&log.shared).unwrap().0, 1);
    }

    #[test]
    fn one_event_is_one_line_whatever_a_reader_takes_for_its_end() {
        let name = "a\u{2028}b\u{2029}c\u{85}d\ne".as_bytes();
        let text = dated(line(event("lock.forcerelease", &[name])), 0);
        assert!(text.contains(r"a\u2028b\u2029c\u0085d\ne"), "{text}");
        let back: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(back["arguments"][0], std::str::from_utf8(name).unwrap());
    }

    #[test]
    fn it_appends_with_mode_0600_and_follows_a_moved_file() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("audit");
        // One that others may read, from before.
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
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
        log.finish(AuditLog::draft(event("flushall", &[]), None), OK);
        await_lines(&path, 1);
        let moved = folder.path().join("audit.1");
        fs::rename(&path, &moved).unwrap();
        log.finish(AuditLog::draft(event("flushall", &[]), None), OK);
        await_lines(&path, 1);
        assert_eq!(lines(&moved), 1);
    }

    #[test]
    fn every_refusal_has_its_line_and_the_lines_are_in_the_order_of_their_times() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("audit");
        let log = AuditLog::open(path.clone()).unwrap();
        let first = AuditLog::draft(event("flushall", &[]), None);
        for port in 1..=40_u16 {
            let client = ([127, 0, 0, 1], port).into();
            let refused = AuditEvent { event: "login_failed", client, ..event("auth", &[]) };
            log.write_refusal(refused);
        }
        // Its answer comes last.
        log.finish(first, OK);
        log.close(Duration::from_secs(60));
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let clients: Vec<_> =
            lines.iter().filter(|line| line["count"] == 1).map(|line| &line["client"]).collect();
        let expected: Vec<String> = (1..=40).map(|port| format!("127.0.0.1:{port}")).collect();
        assert_eq!(clients, expected.iter().collect::<Vec<_>>());
        let times: Vec<_> = lines.iter().map(|line| line["time"].as_str().unwrap()).collect();
        assert!(times.is_sorted(), "{times:?}");
    }

    #[test]
    fn refusals_by_the_thousand_are_few_lines_and_drop_no_act() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("audit");
        let log = AuditLog::open(path.clone()).unwrap();
        let begun = std::time::Instant::now();
        for _ in 0..200 {
            for _ in 0..1_000 {
                log.write_refusal(AuditEvent { event: "denied", result: "NOPERM", ..event("save", &[]) });
            }
            log.finish(AuditLog::draft(event("flushall", &[]), None), OK);
        }
        log.close(Duration::from_secs(60));
        let seconds = begun.elapsed().as_secs() + 2;
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let denials: u64 = lines.iter().filter_map(|line| line["count"].as_u64()).sum();
        assert_eq!(denials, 200_000, "every one is counted, and written before the program ends");
        let acts = lines.iter().filter(|line| line["event"] == "admin").count();
        assert_eq!(acts, 200);
        let times: Vec<_> = lines.iter().map(|line| line["time"].as_str().unwrap()).collect();
        assert!(times.is_sorted(), "{times:?}");
        // So many a second and one for all beyond, however slow the machine.
        let lines_max = seconds * (LINES_PER_SECOND + 1) + 1;
        assert!((lines.len() - acts) as u64 <= lines_max, "{} lines", lines.len() - acts);
    }

    /// The disk is stuck: what waits for it leaves room for administrative acts.
    #[test]
    fn refusals_have_half_of_the_queue() {
        let log = AuditLog { shared: Arc::default() };
        log.shared.waiting().lines.extend((0..LINES_MAX / 2).map(|_| String::new()));
        log.write_refusal(AuditEvent { event: "denied", ..event("save", &[]) });
        assert_eq!(log.shared.waiting().lines.len(), LINES_MAX / 2);
        log.finish(AuditLog::draft(event("flushall", &[]), None), OK);
        let mut waiting = log.shared.waiting();
        assert_eq!((waiting.lines.len(), waiting.dropped), (LINES_MAX / 2 + 1, 0));
        assert_eq!(waiting.repeats.take_all().len(), 1, "it is not missing");
    }

    #[test]
    fn a_script_is_written_down_for_what_it_did() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("audit");
        let log = AuditLog::open(path.clone()).unwrap();
        let script = || {
            let acts = Arc::new(AdminActs::default());
            (Arc::clone(&acts), AuditLog::draft(event("eval", &[]), Some(acts)))
        };
        let ((_, harmless), (flushes, flushing), (_, unknown)) = (script(), script(), script());
        log.finish(harmless, OK);
        flushes.add(redfence_core::machine::AdminAct::FlushAll);
        log.finish(flushing, OK);
        log.finish(unknown, "INDETERMINATE");
        log.close(Duration::from_secs(60));
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("\"arguments\":[\"flushall\"]") && text.contains("INDETERMINATE"), "{text}");
    }

    #[test]
    fn the_outcome_is_read_from_a_reply_of_the_upstream() {
        for (reply, expected) in [
            (&b"+OK\r\n"[..], OK),
            (&b"-NOPERM no\r\n"[..], "NOPERM"),
            (&b"-ERR x\r\n"[..], "ERR"),
            (&b"+QUEUED\r\n"[..], QUEUED),
            (&b"*-1\r\n"[..], DISCARDED),
            (&b"*0\r\n"[..], OK),
        ] {
            assert_eq!(result_of_bytes(reply), expected);
        }
    }
}
