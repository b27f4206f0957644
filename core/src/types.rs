//! The words every part of Redfence shares: ids, times, and the limits the contract puts on them.
//!
//! Nothing here asks a clock. A time is a number somebody else measured.

use std::fmt;

/// Longest resource name, in bytes.
pub const RESOURCE_BYTES_MAX: usize = 512;
/// Longest owner, in bytes.
pub const OWNER_BYTES_MAX: usize = 256;
/// Longest session label, in bytes.
pub const LABEL_BYTES_MAX: usize = 256;
/// Longest ttl: one year of 365 days.
pub const TTL_MS_MAX: u64 = 365 * 24 * 3600 * 1000;
/// Longest WAIT: one hour.
pub const WAIT_MS_MAX: u64 = 3600 * 1000;
/// Most resources one multi-lock may name.
pub const MULTI_RESOURCES_MAX: usize = 256;
/// Largest COUNT of `LOCK.SCAN`.
pub const SCAN_COUNT_MAX: u64 = 10_000;
/// COUNT of `LOCK.SCAN` when none is given, as in Redis.
pub const SCAN_COUNT_DEFAULT: u64 = 10;
/// Longest glob pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 1024;
/// Longest name of a channel, in bytes.
pub const CHANNEL_BYTES_MAX: usize = 1024;
/// Fences stay below this bound, so that a double holds every one of them exactly.
pub const FENCE_BOUND: u64 = 1 << 53;
/// Keys one blocking command such as `BLPOP` may wait for.
pub const KEYS_PER_BLOCKED_MAX: usize = 1024;
/// Waiters one lock may have. One more is refused with `OOM`.
pub const WAITERS_PER_LOCK_MAX: usize = 10_000;

/// Holders one shared lock or semaphore may have. One more is refused with `OOM`.
pub const HOLDERS_PER_LOCK_MAX: usize = 10_000;

/// A fencing token: positive, below 2^53, strictly increasing per resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl Fence {
    /// The contract's rule, the same in both tiers: one above the last, and never behind the clock.
    #[must_use]
    pub fn next(last: Fence, wall_us: u64) -> Fence {
        let next = (last.0 + 1).max(wall_us);
        assert!(next < FENCE_BOUND, "fence {next} reached 2^53");
        Fence(next)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A session's id, drawn at random by the node that opens it. On the wire: 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl SessionId {
    /// Reads the wire form. `None` where the text is not an id this service could have issued.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<SessionId> {
        if text.len() != 16 {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        u64::from_str_radix(text, 16).ok().map(SessionId)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The ACL user of a client, as the machine knows it: the beginning of the SHA-256 of the user's name, made by the node of the
/// client. 0 is `default`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserTag(pub u64);

impl UserTag {
    pub const DEFAULT: UserTag = UserTag(0);
}

/// Whose sessions somebody may see and close. For everybody else they do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionScope {
    /// Of every user: for administrators, and for the node itself.
    All,
    Of(UserTag),
    None,
}

impl SessionScope {
    #[must_use]
    pub fn includes(self, user: UserTag) -> bool {
        match self {
            SessionScope::All => true,
            SessionScope::Of(own) => own == user,
            SessionScope::None => false,
        }
    }
}

/// Who asks for a lock: an OWNER names an attempt of its own user alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerIdentity<'a> {
    pub owner: &'a [u8],
    pub user: UserTag,
}

/// Which tier answers. Ordered: `Efficiency` is the weaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    Efficiency,
    Correctness,
}

impl Tier {
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Tier> {
        if word.eq_ignore_ascii_case(b"EFFICIENCY") {
            Some(Tier::Efficiency)
        } else if word.eq_ignore_ascii_case(b"CORRECTNESS") {
            Some(Tier::Correctness)
        } else {
            None
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Tier::Efficiency => "EFFICIENCY",
            Tier::Correctness => "CORRECTNESS",
        }
    }
}

/// Why a release or a renewal was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    NotOwner,
    AlreadyReleased,
    Expired,
}

impl Reason {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::NotOwner => "not_owner",
            Reason::AlreadyReleased => "already_released",
            Reason::Expired => "expired",
        }
    }
}

/// Who asked: the node (and which start of it) and that node's own count. Unique for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub origin: Origin,
    pub seq: u64,
}

/// One start of one node: the node's id and a number that rises with every start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    pub node: u64,
    pub incarnation: u64,
}

/// A Redlock member: the node by whose Redlock listener a command came in. To a Redlock client it is one of N masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u64);

/// What the leader writes on an entry. `logical_ms` drives every deadline; `wall_us` serves fences, and absolute times in
/// the entry's own commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub term: u64,
    pub logical_ms: u64,
    pub wall_us: u64,
}

/// Whether a deadline on the logical clock has passed. Deadlines are exclusive: with a millisecond clock a full ttl has elapsed
/// only after the deadline's own millisecond.
#[inline]
#[must_use]
pub const fn has_passed(deadline_ms: u64, logical_ms: u64) -> bool {
    logical_ms > deadline_ms
}

/// The first millisecond of the logical clock at which a deadline has passed: see [`has_passed`].
#[inline]
#[must_use]
pub const fn passed_from_ms(deadline_ms: u64) -> u64 {
    deadline_ms.saturating_add(1)
}

/// A deadline that has passed already: what ends at once, not with the millisecond.
#[inline]
#[must_use]
pub const fn just_passed(logical_ms: u64) -> u64 {
    logical_ms.saturating_sub(1)
}

/// Longest VALUE of a grant, in bytes.
pub const VALUE_BYTES_MAX: usize = 1024;
/// Most permits of one semaphore.
pub const PERMITS_MAX: u32 = 1_000_000;

/// In which way a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    Exclusive,
    Shared,
    Permits,
}

impl LockMode {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LockMode::Exclusive => "exclusive",
            LockMode::Shared => "shared",
            LockMode::Permits => "permits",
        }
    }
}

/// What an acquire asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// One holder alone.
    #[default]
    Exclusive,
    /// Any number of readers.
    Shared,
    /// So many of a semaphore's permits, granted while no more than `max` are held with them.
    Permits { count: u32, max: u32 },
}

impl LockKind {
    #[must_use]
    pub fn mode(self) -> LockMode {
        match self {
            LockKind::Exclusive => LockMode::Exclusive,
            LockKind::Shared => LockMode::Shared,
            LockKind::Permits { .. } => LockMode::Permits,
        }
    }

    /// What it adds to the sum of its lock: permits, or one reader.
    #[must_use]
    pub(crate) fn count(self) -> u32 {
        match self {
            LockKind::Exclusive | LockKind::Shared => 1,
            LockKind::Permits { count, .. } => count,
        }
    }

    /// Whether the numbers are within the contract's limits.
    #[must_use]
    pub(crate) fn is_valid(self) -> bool {
        match self {
            LockKind::Exclusive | LockKind::Shared => true,
            LockKind::Permits { count, max } => 1 <= count && count <= max && max <= PERMITS_MAX,
        }
    }
}

/// What happens where sessions would wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SessionPolicy {
    /// A wait that would close a circle is refused.
    #[default]
    Detect,
    /// It waits only for younger sessions.
    WaitDie,
    /// It takes locks away from younger sessions of the same policy.
    WoundWait,
}

impl SessionPolicy {
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<SessionPolicy> {
        let all = [SessionPolicy::Detect, SessionPolicy::WaitDie, SessionPolicy::WoundWait];
        all.into_iter().find(|policy| word.eq_ignore_ascii_case(policy.as_str().as_bytes()))
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            SessionPolicy::Detect => "detect",
            SessionPolicy::WaitDie => "wait-die",
            SessionPolicy::WoundWait => "wound-wait",
        }
    }
}

/// Why a grant ended without its holder's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossCause {
    Expired,
    Forced,
    Wounded,
    SessionEnded,
    Deleted,
}

impl LossCause {
    /// In the order of their numbers.
    pub const ALL: [LossCause; 5] = [
        LossCause::Expired,
        LossCause::Forced,
        LossCause::Wounded,
        LossCause::SessionEnded,
        LossCause::Deleted,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LossCause::Expired => "expired",
            LossCause::Forced => "forced",
            LossCause::Wounded => "wounded",
            LossCause::SessionEnded => "session_ended",
            LossCause::Deleted => "deleted",
        }
    }
}
