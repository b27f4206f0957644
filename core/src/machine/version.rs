//! Cluster versions: which ones this program can run, which one the cluster runs, and what each command needs.
//!
//! Whatever changes the result of applying an entry, or the bytes of an entry or snapshot, is a new cluster version. A program
//! runs a range of them ([`VersionRange::PROGRAM`]); the cluster runs exactly one, which is replicated state and rises by a log
//! entry ([`UpgradeCommand::Raise`]) once every member can run the next one. Until then every node behaves as the older
//! version does, so that an older program beside it stays equal. `docs/internals/versions.md` has the rules.

use crate::grammar::{self, Request};
use crate::machine::log::bytes::{put_varint, Reader};
use crate::machine::log::command::{CallSite, Command, Words};
use crate::machine::settings::{Setting, SettingsCommand};
use crate::machine::Machine;
use crate::reply::{Refusal, Reply};
use crate::types::LockKind;
use std::fmt;

/// What the replicated machine does, counted from 1.
pub type ClusterVersion = u16;

/// The version of release 1. A cluster is founded with it.
pub const FIRST: ClusterVersion = 1;
/// Kinds of locks; a limit of sessions per user; marks of the future are not folded.
pub const SECOND: ClusterVersion = 2;
/// The oldest version this program can run.
pub const OLDEST: ClusterVersion = FIRST;
/// The newest version this program can run.
pub const NEWEST: ClusterVersion = if cfg!(feature = "next-version") { 3 } else { 2 };

/// First byte of an entry or of a piece of a snapshot at version 1; each version counts one up. What is below was written before
/// release 1.
const FIRST_FORMAT_BYTE: u8 = 16;

/// The versions a program can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    pub oldest: ClusterVersion,
    pub newest: ClusterVersion,
}

impl VersionRange {
    pub const PROGRAM: VersionRange = VersionRange { oldest: OLDEST, newest: NEWEST };
    /// Every version since release 1, known or not.
    pub(crate) const ANY: VersionRange = VersionRange { oldest: FIRST, newest: ClusterVersion::MAX };

    #[must_use]
    pub fn contains(self, version: ClusterVersion) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

impl Default for VersionRange {
    fn default() -> VersionRange {
        VersionRange::PROGRAM
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "version {}", self.oldest),
            false => write!(f, "versions {} to {}", self.oldest, self.newest),
        }
    }
}

/// Why an entry or a snapshot cannot be read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatError {
    BeforeRelease1,
    Unknown { version: ClusterVersion, known: VersionRange },
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::BeforeRelease1 => f.write_str("its format is from before release 1"),
            FormatError::Unknown { version, known } => {
                write!(f, "its format is that of cluster version {version}, this node reads {known}")
            }
        }
    }
}

/// The first byte of what is written at this version.
pub(crate) fn format_byte(version: ClusterVersion) -> u8 {
    let above = version.checked_sub(FIRST).and_then(|above| u8::try_from(above).ok());
    above.and_then(|above| FIRST_FORMAT_BYTE.checked_add(above)).expect("at most 240 cluster versions")
}

/// The version of what begins with this byte, where it is one of `known`.
pub(crate) fn read_format_byte(byte: u8, known: VersionRange) -> Result<ClusterVersion, FormatError> {
    let above = byte.checked_sub(FIRST_FORMAT_BYTE).ok_or(FormatError::BeforeRelease1)?;
    let version = FIRST + ClusterVersion::from(above);
    known.contains(version).then_some(version).ok_or(FormatError::Unknown { version, known })
}

/// What a command needs, and its name for the error where the cluster does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    pub command: &'static str,
    pub version: ClusterVersion,
}

impl Need {
    const fn first(command: &'static str) -> Need {
        Need { command, version: FIRST }
    }

    const fn second(command: &'static str) -> Need {
        Need { command, version: 2 }
    }

    /// The error where the cluster runs an older version.
    #[must_use]
    pub fn refusal(self, runs: ClusterVersion) -> Refusal {
        let Need { command, version } = self;
        Refusal::new(format!("ERR {command} needs cluster version {version} (the cluster runs {runs})"))
    }
}

/// A Redis command, or an option of one, that came after version 1.
struct LaterRedisCommand {
    need: Need,
    /// Whether these words use it. The name is compared already.
    uses: fn(&Words<'_>) -> bool,
}

/// All others run at version 1.
const LATER_REDIS_COMMANDS: &[LaterRedisCommand] = &[];

impl Command<'_> {
    /// The cluster version that this command needs. A new command, and a new form of an old one, names its version here.
    #[must_use]
    pub fn need(&self) -> Need {
        match self {
            Command::Acquire { .. } => Need::first("LOCK.ACQUIRE"),
            Command::AcquireWith { kind, .. } => acquire_need(*kind),
            Command::MAcquireShared { .. } => Need::second("LOCK.MACQUIRE SHARED"),
            Command::Convert { .. } => Need::second("LOCK.CONVERT"),
            Command::ForceReleaseOne { .. } => Need::second("LOCK.FORCERELEASE FENCE"),
            Command::SessionOpenWith { .. } => Need::second("LOCK.SESSION OPEN POLICY or AGE"),
            Command::Release { .. } => Need::first("LOCK.RELEASE"),
            Command::Renew { .. } => Need::first("LOCK.RENEW"),
            Command::MAcquire { .. } => Need::first("LOCK.MACQUIRE"),
            Command::MRelease { .. } => Need::first("LOCK.MRELEASE"),
            Command::ForceRelease { .. } => Need::first("LOCK.FORCERELEASE"),
            Command::SessionOpen { .. } => Need::first("LOCK.SESSION OPEN"),
            Command::SessionKeepAlive { own: false, .. } => Need::first("LOCK.SESSION KEEPALIVE"),
            Command::SessionKeepAlive { own: true, .. } => Need::second("LOCK.SESSION KEEPALIVE"),
            Command::SessionClose { .. } => Need::first("LOCK.SESSION CLOSE"),
            Command::SessionsTouch { .. } => Need::first("SessionsTouch"),
            Command::SessionsOrphan { heard_index: None, .. } => Need::first("SessionsOrphan"),
            Command::SessionsOrphan { heard_index: Some(_), .. } => Need::second("SessionsOrphan"),
            Command::Cancel { .. } => Need::first("Cancel"),
            Command::Expire { .. } => Need::first("Expire"),
            Command::OriginStart { .. } => Need::first("OriginStart"),
            Command::OriginGone { .. } => Need::first("OriginGone"),
            Command::Settings(command) => settings_need(command),
            Command::Upgrade(_) => Need::first("LOCK.CLUSTER UPGRADE"),
            Command::Digest(_) => Need::first("Digest"),
            Command::OfUser(of_user) => of_user.command.need(),
            #[cfg(feature = "next-version")]
            Command::Next => Need { command: "LOCK.CLUSTER NEXT", version: 3 },
            Command::FenceCheck { .. } => Need::first("FENCE.CHECK"),
            Command::FenceCall { .. } => self.redis_need("FENCE.CALL"),
            Command::Redis { .. } => self.redis_need("a Redis command"),
            Command::Transaction { .. } => self.redis_need("MULTI"),
            Command::Conditional(_) | Command::Effects(_) => self.redis_need("EVAL"),
        }
    }

    /// The highest version that one of the calls in this command needs. What stands within `MULTI` is parsed when it is applied,
    /// so its words count, not only its name.
    fn redis_need(&self, name: &'static str) -> Need {
        let mut highest = Need::first(name);
        self.for_each_redis_call(|site: CallSite, argv: &Words<'_>| {
            let need = match grammar::parse(argv).filter(|_| site == CallSite::Transaction) {
                Some(Ok(request)) => Some(request_need(&request)),
                // Malformed for this program too.
                Some(Err(_)) => None,
                None => later_need(argv),
            };
            if let Some(need) = need.filter(|need| need.version > highest.version) {
                highest = need;
            }
        });
        highest
    }
}

fn later_need(argv: &Words<'_>) -> Option<Need> {
    let name = argv.first()?;
    let used = LATER_REDIS_COMMANDS
        .iter()
        .filter(|later| name.eq_ignore_ascii_case(later.need.command.as_bytes()) && (later.uses)(argv));
    used.map(|later| later.need).max_by_key(|need| need.version)
}

/// Of an acquire that is more than a plain exclusive one.
fn acquire_need(kind: LockKind) -> Need {
    match kind {
        LockKind::Exclusive => Need::second("LOCK.ACQUIRE VALUE"),
        LockKind::Shared => Need::second("LOCK.ACQUIRE SHARED"),
        LockKind::Permits { .. } => Need::second("LOCK.ACQUIRE PERMITS"),
    }
}

/// The version that a command as a client sent it needs: a new command, and a new option of an old one, names its version here.
fn request_need(request: &Request<'_>) -> Need {
    match request {
        Request::Acquire(request)
            if request.options.kind != LockKind::Exclusive || request.options.value.is_some() =>
        {
            acquire_need(request.options.kind)
        }
        Request::Acquire(_) => Need::first("LOCK.ACQUIRE"),
        Request::MAcquire(request) if request.options.kind == LockKind::Shared => {
            Need::second("LOCK.MACQUIRE SHARED")
        }
        Request::ForceRelease(request) if request.fence.is_some() => Need::second("LOCK.FORCERELEASE FENCE"),
        Request::Convert(_) => Need::second("LOCK.CONVERT"),
        Request::Explain(_) => Need::second("LOCK.EXPLAIN"),
        Request::Notify(_) => Need::second("LOCK.NOTIFY"),
        Request::Release(_) => Need::first("LOCK.RELEASE"),
        Request::Renew(_) => Need::first("LOCK.RENEW"),
        Request::Info(_) => Need::first("LOCK.INFO"),
        Request::MAcquire(_) => Need::first("LOCK.MACQUIRE"),
        Request::MRelease(_) => Need::first("LOCK.MRELEASE"),
        Request::Queue(_) => Need::first("LOCK.QUEUE"),
        Request::Scan(_) => Need::first("LOCK.SCAN"),
        Request::Session(_) => Need::first("LOCK.SESSION"),
        Request::ForceRelease(_) => Need::first("LOCK.FORCERELEASE"),
        #[cfg(feature = "next-version")]
        Request::Cluster(grammar::cluster::Cluster::Next) => {
            Need { command: "LOCK.CLUSTER NEXT", version: 3 }
        }
        Request::Cluster(_) => Need::first("LOCK.CLUSTER"),
        Request::FenceCheck(_) => Need::first("FENCE.CHECK"),
        Request::FenceGet(_) => Need::first("FENCE.GET"),
        Request::FenceCall(_) => Need::first("FENCE.CALL"),
    }
}

/// Whether an encoded command must be the first of its entry: whether a raise takes effect is then told by the state before the
/// entry, and no program stops at one that a hold has made void.
#[must_use]
pub fn begins_entry(blob: &[u8]) -> bool {
    matches!(Command::decode(blob), Some(Command::Upgrade(UpgradeCommand::Raise { .. })))
}

fn settings_need(command: &SettingsCommand<'_>) -> Need {
    match command {
        SettingsCommand::Found(_) => Need::first("Found"),
        SettingsCommand::Set { name, .. } => match Setting::parse(name) {
            Ok(
                Setting::MaxMemory
                | Setting::Route
                | Setting::DefaultTier
                | Setting::IdleRetentionMs
                | Setting::MarkRetentionMs
                | Setting::SessionGraceMs,
            )
            | Err(_) => Need::first("LOCK.CLUSTER SET"),
        },
        SettingsCommand::Seen { .. } => Need::first("Seen"),
        SettingsCommand::Settle { .. } => Need::first("Settle"),
        SettingsCommand::Behind { .. } => Need::first("Behind"),
    }
}

/// A change of the cluster version or of the hold, as it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeCommand {
    /// Proposed by the leader when every member can run `to`. Changes nothing under a hold, and never lowers the version.
    Raise { to: ClusterVersion },
    /// `LOCK.CLUSTER UPGRADE HOLD`.
    Hold,
    /// `LOCK.CLUSTER UPGRADE FINISH`.
    Finish,
}

impl UpgradeCommand {
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        match self {
            UpgradeCommand::Raise { to } => {
                out.push(1);
                put_varint(out, u64::from(to));
            }
            UpgradeCommand::Hold => out.push(2),
            UpgradeCommand::Finish => out.push(3),
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<UpgradeCommand> {
        Some(match reader.u8()? {
            1 => UpgradeCommand::Raise { to: ClusterVersion::try_from(reader.varint()?).ok()? },
            2 => UpgradeCommand::Hold,
            3 => UpgradeCommand::Finish,
            _ => return None,
        })
    }
}

/// The version the cluster runs. The version itself is in a snapshot's first byte, the hold in its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upgrade {
    pub(crate) version: ClusterVersion,
    pub(crate) hold: bool,
}

impl Default for Upgrade {
    fn default() -> Upgrade {
        Upgrade { version: FIRST, hold: false }
    }
}

/// What decides whether this node may apply something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    /// What the cluster runs.
    pub(crate) runs: ClusterVersion,
    /// What this node can run.
    pub(crate) known: VersionRange,
    /// A raise changes nothing.
    pub(crate) hold: bool,
}

impl Machine {
    /// The version the cluster runs, as of the last applied entry.
    #[must_use]
    pub fn cluster_version(&self) -> ClusterVersion {
        self.upgrade.version
    }

    /// Whether `LOCK.CLUSTER UPGRADE HOLD` keeps the version from rising.
    #[must_use]
    pub fn upgrade_hold(&self) -> bool {
        self.upgrade.hold
    }

    /// The versions this node can run: the program's, unless a test plays an older or a newer program.
    pub fn set_versions(&mut self, known: VersionRange) {
        self.known_versions = known;
    }

    pub(crate) fn gate(&self) -> Gate {
        Gate { runs: self.upgrade.version, known: self.known_versions, hold: self.upgrade.hold }
    }

    pub(crate) fn upgrade(&mut self, command: UpgradeCommand) -> Reply {
        match command {
            UpgradeCommand::Raise { to } if !self.upgrade.hold => {
                self.upgrade.version = self.upgrade.version.max(to);
            }
            UpgradeCommand::Raise { .. } => {}
            UpgradeCommand::Hold => self.upgrade.hold = true,
            UpgradeCommand::Finish => self.upgrade.hold = false,
        }
        Reply::OK
    }
}
