//! What this node has counted of its clients since it started, for `INFO` and metrics.

use crate::metrics::histogram::{Snapshot, LATENCY_BOUNDS_US, LONG_BOUNDS_US};
use crate::metrics::{Histogram, ServedBy};
use redfence_core::reply::Reply;
use redfence_core::types::Reason;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which command a reply belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandKind {
    Acquire,
    Release,
    Renew,
    MAcquire,
    MRelease,
    Convert,
    /// `LOCK.INFO`, `LOCK.EXPLAIN`, `LOCK.QUEUE`, `LOCK.SCAN`.
    Inspect,
    Session,
    ForceRelease,
    Cluster,
    Fence,
    KeyRead,
    KeyWrite,
    Script,
    Transaction,
    #[default]
    Other,
}

impl CommandKind {
    pub const ALL: [CommandKind; 16] = [
        CommandKind::Acquire,
        CommandKind::Release,
        CommandKind::Renew,
        CommandKind::MAcquire,
        CommandKind::MRelease,
        CommandKind::Convert,
        CommandKind::Inspect,
        CommandKind::Session,
        CommandKind::ForceRelease,
        CommandKind::Cluster,
        CommandKind::Fence,
        CommandKind::KeyRead,
        CommandKind::KeyWrite,
        CommandKind::Script,
        CommandKind::Transaction,
        CommandKind::Other,
    ];

    /// As the label `command` says it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CommandKind::Acquire => "acquire",
            CommandKind::Release => "release",
            CommandKind::Renew => "renew",
            CommandKind::MAcquire => "macquire",
            CommandKind::MRelease => "mrelease",
            CommandKind::Convert => "convert",
            CommandKind::Inspect => "inspect",
            CommandKind::Session => "session",
            CommandKind::ForceRelease => "force_release",
            CommandKind::Cluster => "cluster",
            CommandKind::Fence => "fence",
            CommandKind::KeyRead => "key_read",
            CommandKind::KeyWrite => "key_write",
            CommandKind::Script => "script",
            CommandKind::Transaction => "transaction",
            CommandKind::Other => "other",
        }
    }

    /// Whether nil means that a lock is taken.
    fn is_acquire(self) -> bool {
        matches!(self, CommandKind::Acquire | CommandKind::MAcquire | CommandKind::Convert)
    }
}

/// Why a command did not do what it was to do: the code of an error, a reason, or `taken`. What is in no other place counts as the last.
pub const REFUSAL_CODES: [&str; 25] = [
    "taken",
    "not_owner",
    "already_released",
    "expired",
    "ERR",
    "UNAVAILABLE",
    "INDETERMINATE",
    "TIER",
    "CROSSTIER",
    "CROSSSLOT",
    "NOSESSION",
    "MODE",
    "DEADLOCK",
    "STALE",
    "OOM",
    "WRONGTYPE",
    "NOSCRIPT",
    "NOTBUSY",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "NOPROTO",
    "EXECABORT",
    "UNBLOCKED",
    "other",
];
const TAKEN: usize = 0;

/// One command that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub command: CommandKind,
    pub by: ServedBy,
    /// It had a `WAIT`.
    pub waits: bool,
    pub took_us: u64,
}

#[derive(Debug)]
pub struct Stats {
    pub connections: AtomicU64,
    pub connections_refused: AtomicU64,
    pub tls_handshakes_failed: AtomicU64,
    pub idle_disconnected: AtomicU64,
    pub commands: AtomicU64,
    pub grants: AtomicU64,
    pub releases: AtomicU64,
    pub renewals: AtomicU64,
    /// Acquires that found the lock taken, releases and renewals with a reason.
    pub refusals: AtomicU64,
    pub errors: AtomicU64,
    refusals_by_code: [AtomicU64; REFUSAL_CODES.len()],
    /// By who served it and command.
    latency: [[Histogram; CommandKind::ALL.len()]; 2],
    /// By who served it: acquires with a `WAIT` that were granted.
    acquire_wait: [Histogram; 2],
}

impl Default for Stats {
    fn default() -> Stats {
        Stats {
            connections: AtomicU64::default(),
            connections_refused: AtomicU64::default(),
            tls_handshakes_failed: AtomicU64::default(),
            idle_disconnected: AtomicU64::default(),
            commands: AtomicU64::default(),
            grants: AtomicU64::default(),
            releases: AtomicU64::default(),
            renewals: AtomicU64::default(),
            refusals: AtomicU64::default(),
            errors: AtomicU64::default(),
            refusals_by_code: Default::default(),
            latency: [
                [const { Histogram::new(LATENCY_BOUNDS_US) }; CommandKind::ALL.len()],
                [const { Histogram::new(LATENCY_BOUNDS_US) }; CommandKind::ALL.len()],
            ],
            acquire_wait: [Histogram::new(LONG_BOUNDS_US), Histogram::new(LONG_BOUNDS_US)],
        }
    }
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Stats {
    /// Counts an answer to a command that was awaited.
    pub fn count(&self, answered: Answered, reply: &Reply) {
        self.count_outcome(answered, reply);
        self.count_latency(answered);
    }

    fn count_outcome(&self, answered: Answered, reply: &Reply) {
        match reply {
            // The holder had the lock before.
            Reply::Granted { .. } if answered.command == CommandKind::Convert => {}
            Reply::Granted { .. } | Reply::GrantedMany { .. } => self.count_grant(answered),
            Reply::Released => bump(&self.releases),
            Reply::Renewed { .. } => bump(&self.renewals),
            Reply::Refused(reason) => self.count_refusal(reason_index(*reason)),
            // One answer for each of its commands, or of its locks.
            Reply::Array(items)
                if matches!(answered.command, CommandKind::Transaction | CommandKind::MRelease) =>
            {
                items.iter().for_each(|item| self.count_outcome(answered, item));
            }
            Reply::Nil | Reply::NilArray if answered.command.is_acquire() => self.count_refusal(TAKEN),
            Reply::Error(refusal) => self.count_error(refusal.code()),
            Reply::Nil
            | Reply::NilArray
            | Reply::Int(_)
            | Reply::Double(_)
            | Reply::Bool(_)
            | Reply::Bulk(_)
            | Reply::Text(_)
            | Reply::Status(_)
            | Reply::Array(_)
            | Reply::Map(_)
            | Reply::Set(_)
            | Reply::Verbatim(_)
            | Reply::Info(_) => {}
        }
    }

    /// Counts a reply of Tier 1 that passed through as bytes.
    pub fn count_bytes(&self, answered: Answered, reply: &[u8]) {
        if reply == b"+QUEUED\r\n" {
            // It has not run, and may never.
            return;
        }
        let is_nil = reply.starts_with(b"$-1") || reply.starts_with(b"*-1") || reply.starts_with(b"_");
        if let Some(error) = reply.strip_prefix(b"-") {
            let end = error.iter().position(|byte| !byte.is_ascii_uppercase()).unwrap_or(error.len());
            self.count_error(std::str::from_utf8(&error[..end]).unwrap_or(""));
        } else if is_nil && answered.command.is_acquire() {
            self.count_refusal(TAKEN);
        } else if answered.command == CommandKind::MRelease {
            // One pair for each lock.
            for pair in reply.split(|byte| *byte == b'*') {
                match pair.strip_prefix(b"2\r\n:") {
                    Some([b'1', ..]) => bump(&self.releases),
                    Some([b'0', b'\r', b'\n', rest @ ..]) => {
                        let reason = rest.split(|byte| *byte == b'\n').nth(1).unwrap_or(&[]);
                        let reason = std::str::from_utf8(reason).unwrap_or("").trim_end();
                        self.count_refusal(code_index(reason));
                    }
                    Some(_) | None => {}
                }
            }
        } else if reply.starts_with(b"*2\r\n:0") {
            let reason = reply.split(|byte| *byte == b'\n').nth(3).unwrap_or(&[]);
            let reason = std::str::from_utf8(reason).unwrap_or("").trim_end();
            self.count_refusal(code_index(reason));
        } else {
            match answered.command {
                CommandKind::Acquire | CommandKind::MAcquire => self.count_grant(answered),
                CommandKind::Release => bump(&self.releases),
                CommandKind::Renew => bump(&self.renewals),
                CommandKind::MRelease
                | CommandKind::Convert
                | CommandKind::Inspect
                | CommandKind::Session
                | CommandKind::ForceRelease
                | CommandKind::Cluster
                | CommandKind::Fence
                | CommandKind::KeyRead
                | CommandKind::KeyWrite
                | CommandKind::Script
                | CommandKind::Transaction
                | CommandKind::Other => {}
            }
        }
        self.count_latency(answered);
    }

    /// Counts an error that was told at once, or as an answer.
    pub fn count_error(&self, code: &str) {
        bump(&self.errors);
        bump(&self.refusals_by_code[code_index(code)]);
    }

    fn count_refusal(&self, code: usize) {
        bump(&self.refusals);
        bump(&self.refusals_by_code[code]);
    }

    fn count_grant(&self, answered: Answered) {
        bump(&self.grants);
        if answered.waits {
            self.acquire_wait[answered.by as usize].observe_us(answered.took_us);
        }
    }

    fn count_latency(&self, answered: Answered) {
        self.latency[answered.by as usize][answered.command as usize].observe_us(answered.took_us);
    }

    #[must_use]
    pub fn latency(&self, by: ServedBy, command: CommandKind) -> Snapshot {
        self.latency[by as usize][command as usize].snapshot()
    }

    #[must_use]
    pub fn acquire_wait(&self, by: ServedBy) -> Snapshot {
        self.acquire_wait[by as usize].snapshot()
    }

    /// One for each of [`REFUSAL_CODES`].
    pub fn refusals_by_code(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = self.refusals_by_code.iter().map(|count| count.load(Ordering::Relaxed));
        REFUSAL_CODES.into_iter().zip(counts)
    }

    /// Of all commands.
    #[must_use]
    pub fn all_latency(&self) -> Snapshot {
        let mut sum = Snapshot::default();
        self.latency.iter().flatten().for_each(|histogram| sum.add(&histogram.snapshot()));
        sum
    }
}

fn code_index(code: &str) -> usize {
    REFUSAL_CODES.iter().position(|known| *known == code).unwrap_or(REFUSAL_CODES.len() - 1)
}

fn reason_index(reason: Reason) -> usize {
    match reason {
        Reason::NotOwner => 1,
        Reason::AlreadyReleased => 2,
        Reason::Expired => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::reply::Refusal;
    use redfence_core::types::Fence;

    fn answered(command: CommandKind, waits: bool, took_us: u64) -> Answered {
        Answered { command, by: ServedBy::Cluster, waits, took_us }
    }

    fn refusals(stats: &Stats, code: &str) -> u64 {
        stats.refusals_by_code().find(|(known, _)| *known == code).expect("a known code").1
    }

    #[test]
    fn counts_by_reply() {
        let stats = Stats::default();
        let acquire = |took_us| answered(CommandKind::Acquire, false, took_us);
        stats.count(acquire(100), &Reply::Granted { fence: Fence(1), ttl_ms: 1 });
        stats.count(acquire(100), &Reply::Nil);
        stats.count(answered(CommandKind::KeyRead, false, 100), &Reply::Nil);
        stats.count(acquire(100), &Reply::Error(Refusal::new("DEADLOCK a circle")));
        stats.count_bytes(answered(CommandKind::Release, false, 100), b"*2\r\n:1\r\n$2\r\nok\r\n");
        stats.count_bytes(
            answered(CommandKind::Release, false, 100),
            b"*2\r\n:0\r\n$16\r\nalready_released\r\n",
        );
        stats.count_bytes(acquire(5_000), b"_\r\n");
        stats.count_bytes(acquire(5_000), b"-NEWCODE what\r\n");
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((read(&stats.grants), read(&stats.releases), read(&stats.refusals)), (1, 1, 3));
        assert_eq!(read(&stats.errors), 2);
        assert_eq!((refusals(&stats, "taken"), refusals(&stats, "already_released")), (2, 1));
        assert_eq!((refusals(&stats, "DEADLOCK"), refusals(&stats, "other")), (1, 1));
        assert_eq!(stats.all_latency().percentile_us(50), 100);
        assert_eq!(stats.all_latency().percentile_us(99), 5_000);
        assert_eq!(stats.latency(ServedBy::Cluster, CommandKind::Acquire).count(), 5);
        assert_eq!(Stats::default().all_latency().percentile_us(50), 0);
    }

    #[test]
    fn counts_each_of_several_and_nothing_that_has_not_run() {
        let stats = Stats::default();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let grant = || Reply::Granted { fence: Fence(1), ttl_ms: 1 };
        for command in [CommandKind::Acquire, CommandKind::Release, CommandKind::Renew] {
            stats.count_bytes(answered(command, false, 100), b"+QUEUED\r\n");
        }
        stats.count(answered(CommandKind::Convert, false, 100), &grant());
        assert_eq!((read(&stats.grants), read(&stats.releases), read(&stats.renewals)), (0, 0, 0));
        let several = || vec![Reply::Released, Reply::Refused(Reason::NotOwner), Reply::Released];
        stats.count(answered(CommandKind::MRelease, false, 100), &Reply::Array(several()));
        assert_eq!((read(&stats.releases), refusals(&stats, "not_owner")), (2, 1));
        let bytes = b"*3\r\n*2\r\n:1\r\n$2\r\nok\r\n*2\r\n:0\r\n$9\r\nnot_owner\r\n*2\r\n:1\r\n$2\r\nok\r\n";
        stats.count_bytes(answered(CommandKind::MRelease, false, 100), bytes);
        assert_eq!((read(&stats.releases), refusals(&stats, "not_owner")), (4, 2));
        let outcomes = Reply::Array(vec![grant(), Reply::Nil, Reply::Released]);
        stats.count(answered(CommandKind::Transaction, false, 100), &outcomes);
        assert_eq!((read(&stats.grants), read(&stats.releases)), (1, 5));
    }

    #[test]
    fn only_granted_waits_count_as_waits() {
        let stats = Stats::default();
        let granted = Reply::Granted { fence: Fence(1), ttl_ms: 1 };
        stats.count(answered(CommandKind::Acquire, false, 100), &granted);
        stats.count(answered(CommandKind::Acquire, true, 100), &Reply::Nil);
        assert_eq!(stats.acquire_wait(ServedBy::Cluster).count(), 0);
        stats.count(answered(CommandKind::Acquire, true, 7_000), &granted);
        let waits = stats.acquire_wait(ServedBy::Cluster);
        assert_eq!((waits.count(), waits.sum_us), (1, 7_000));
    }

    #[test]
    fn kinds_and_reasons_are_at_their_places() {
        for (at, kind) in CommandKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at, "{}", kind.as_str());
        }
        for reason in [Reason::NotOwner, Reason::AlreadyReleased, Reason::Expired] {
            assert_eq!(REFUSAL_CODES[reason_index(reason)], reason.as_str());
        }
    }
}
