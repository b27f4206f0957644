//! What an entry may hold. A command borrows from the bytes it was decoded from; the machine copies what it keeps.

use crate::grammar::convert::ConvertTo;
use crate::keyspace::Resp;
use crate::machine::digest::DigestCommand;
use crate::machine::keys::redis::for_each_name;
use crate::machine::log::conditional::Conditional;
use crate::machine::log::effects::{Effects, Step};
use crate::machine::settings::SettingsCommand;
use crate::machine::version::UpgradeCommand;
use crate::types::{Fence, LockKind, Member, Origin, RequestId, SessionId, SessionPolicy, UserTag};
use smallvec::SmallVec;

/// Keyspace number, as in `SELECT`.
pub type Db = u32;

/// A change to the state. Reads are [`super::Query`], and never go into the log. Each is answered where it carries a request
/// id: those without an answer of their own with `OK`.
// Decoded and applied at once: a box would cost an allocation for every released lock.
#[derive(Clone, Debug, PartialEq)]
pub enum Command<'a> {
    /// `wait_ms` 0 is a try. `ttl_ms` 0 (with a session): as long as the session lives.
    Acquire {
        db: Db,
        resource: &'a [u8],
        ttl_ms: u64,
        wait_ms: u64,
        owner: &'a [u8],
        session: Option<SessionId>,
    },
    /// The same in any mode, and with a value. Since cluster version 2.
    AcquireWith {
        db: Db,
        resource: &'a [u8],
        ttl_ms: u64,
        wait_ms: u64,
        owner: &'a [u8],
        session: Option<SessionId>,
        kind: LockKind,
        /// Empty: none.
        value: &'a [u8],
    },
    /// Since cluster version 2. `wait_ms` 0 is a try.
    Convert {
        db: Db,
        resource: &'a [u8],
        fence: Fence,
        to: ConvertTo,
        wait_ms: u64,
    },
    Release {
        db: Db,
        resource: &'a [u8],
        fence: Fence,
    },
    Renew {
        db: Db,
        resource: &'a [u8],
        fence: Fence,
        ttl_ms: u64,
    },
    MAcquire {
        db: Db,
        resources: SmallVec<[&'a [u8]; 4]>,
        ttl_ms: u64,
        wait_ms: u64,
        owner: &'a [u8],
        session: Option<SessionId>,
    },
    /// The same in mode shared. Since cluster version 2.
    MAcquireShared {
        db: Db,
        resources: SmallVec<[&'a [u8]; 4]>,
        ttl_ms: u64,
        wait_ms: u64,
        owner: &'a [u8],
        session: Option<SessionId>,
    },
    MRelease {
        db: Db,
        pairs: SmallVec<[(&'a [u8], Fence); 4]>,
    },
    ForceRelease {
        db: Db,
        resource: &'a [u8],
    },
    /// Of one holder. Since cluster version 2.
    ForceReleaseOne {
        db: Db,
        resource: &'a [u8],
        fence: Fence,
    },
    /// The id is drawn by the node that was asked, because the machine knows no randomness.
    SessionOpen {
        id: SessionId,
        ttl_ms: u64,
        label: &'a [u8],
    },
    /// With a policy or an age. Since cluster version 2. An age of 0 is that of the order of opening.
    SessionOpenWith {
        id: SessionId,
        ttl_ms: u64,
        label: &'a [u8],
        policy: SessionPolicy,
        age: u64,
    },
    SessionKeepAlive {
        id: SessionId,
        /// By the connection that opened it (cluster version 2): it takes nothing over.
        own: bool,
    },
    /// `any_user`: asked for by an administrator, whoever opened the session.
    SessionClose {
        id: SessionId,
        any_user: bool,
    },
    /// One node's batched keep-alive for its clients' sessions. Dead ids are passed over, and sessions whose connection is
    /// closed: those are kept by `SessionKeepAlive` alone.
    SessionsTouch {
        ids: SmallVec<[SessionId; 4]>,
    },
    /// The connection that opened these is gone: each dies after `grace_ms` unless a `SessionKeepAlive` comes for it.
    SessionsOrphan {
        ids: SmallVec<[SessionId; 4]>,
        grace_ms: u64,
        /// The last entry its node had applied when it last heard of the connection (cluster version 2). A session that somebody else
        /// has kept alive since then is not touched: this command may come long after it.
        heard_index: Option<u64>,
    },
    /// The client behind `request` is gone: leave the queue. A grant already made stands. A request that was not applied yet
    /// is remembered as answered nil, so that one which comes late queues nobody.
    Cancel {
        request: RequestId,
    },
    /// What is due ends. Forgets records idle for longer than `idle_ms`. Late, doubled or stale ones are harmless.
    Expire {
        idle_ms: u64,
    },
    /// A node (re)started: waiters and remembered replies of every other incarnation of `origin.node` go. A node sends it first
    /// of all, and under its own new incarnation; one that comes late, after a newer start, changes nothing.
    OriginStart {
        origin: Origin,
    },
    /// A node was lost for good: its waiters leave, its remembered replies go, and what this incarnation still sends is passed
    /// over. A node that finds itself taken for lost starts again under a new incarnation.
    OriginGone {
        origin: Origin,
    },
    /// A change of the replicated settings.
    Settings(SettingsCommand<'a>),
    /// A change of the cluster version, or of the hold that keeps it from rising.
    Upgrade(UpgradeCommand),
    /// Counts. Made up: plays the newer release in tests of mixed clusters.
    #[cfg(feature = "next-version")]
    Next,
    /// `FENCE.CHECK` where no Redis is behind.
    FenceCheck {
        db: Db,
        resource: &'a [u8],
        fence: Fence,
    },
    /// `FENCE.CALL` where no Redis is behind: mark and command in one step.
    FenceCall {
        db: Db,
        resp: Resp,
        resource: &'a [u8],
        fence: Fence,
        argv: Words<'a>,
    },
    /// A Redis command that may write, or runs or manages scripts. Those that only read are [`super::Machine::read`].
    Redis {
        db: Db,
        resp: Resp,
        /// The Redlock listener it came in by, if it was one.
        member: Option<Member>,
        argv: Words<'a>,
    },
    /// What stood between `MULTI` and `EXEC`. Nothing of it happens where a watched key is not as it was.
    Transaction {
        db: Db,
        resp: Resp,
        member: Option<Member>,
        watched: Vec<Watched<'a>>,
        commands: Vec<Words<'a>>,
    },
    /// A script that compares one key with one value, recognised by the leader.
    Conditional(Box<Conditional<'a>>),
    /// What a script, or a transaction with one, did when the leader ran it.
    Effects(Effects<'a>),
    /// Digests of the replicas: see [`crate::machine::digest`].
    Digest(DigestCommand),
    /// A command of a client whose ACL user is not `default`: locks that it takes and sessions that it opens are that user's.
    OfUser(Box<OfUser<'a>>),
}

/// See [`Command::OfUser`].
#[derive(Clone, Debug, PartialEq)]
pub struct OfUser<'a> {
    /// Never `default`.
    pub user: UserTag,
    /// What may take locks (`Acquire`, `MAcquire`, their forms of version 2, `Redis` or `Transaction`, without a script), or names one
    /// session.
    pub command: Command<'a>,
}

/// A command's words, its name first.
pub type Words<'a> = SmallVec<[&'a [u8]; 6]>;

// Commands are decoded by value on the hot path: what is inline in one variant is copied for all of them.
const _: () = assert!(size_of::<Command<'_>>() <= 136);

/// A key and how it was when the client said `WATCH`: see [`super::Machine::watch_token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched<'a> {
    pub db: Db,
    pub key: &'a [u8],
    pub token: u64,
}

/// Where in a command a Redis command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallSite {
    /// As a client sent it.
    Client,
    /// The same, within `MULTI`.
    Transaction,
    /// In a command the leader made, or behind a fence: never a script.
    Native,
}

impl<'a> Command<'a> {
    /// Whose command it is.
    #[must_use]
    pub fn user(&self) -> UserTag {
        if let Command::OfUser(of_user) = self {
            of_user.user
        } else {
            UserTag::DEFAULT
        }
    }

    /// The command itself, whoever's it is.
    #[must_use]
    pub fn without_user(self) -> Command<'a> {
        if let Command::OfUser(of_user) = self {
            of_user.command
        } else {
            self
        }
    }
}

impl Command<'_> {
    /// Visits the names of the locks and keys of which what is due ends before the command does anything. The effects of a script are
    /// not looked at: a script runs when nothing is due.
    pub(crate) fn for_each_lock(&self, mut visit: impl FnMut(Db, &[u8])) {
        match self {
            Command::Acquire { db, resource, .. }
            | Command::AcquireWith { db, resource, .. }
            | Command::Convert { db, resource, .. }
            | Command::Release { db, resource, .. }
            | Command::Renew { db, resource, .. }
            | Command::ForceRelease { db, resource }
            | Command::ForceReleaseOne { db, resource, .. } => visit(*db, resource),
            Command::MAcquire { db, resources, .. } | Command::MAcquireShared { db, resources, .. } => {
                resources.iter().for_each(|name| visit(*db, name));
            }
            Command::MRelease { db, pairs } => pairs.iter().for_each(|(name, _)| visit(*db, name)),
            Command::Redis { db, argv, .. } | Command::FenceCall { db, argv, .. } => {
                for_each_name(*db, argv, visit);
            }
            Command::Transaction { db, watched, commands, .. } => {
                watched.iter().for_each(|key| visit(key.db, key.key));
                commands.iter().fold(*db, |db, argv| for_each_name(db, argv, &mut visit));
            }
            Command::Conditional(conditional) => visit(conditional.db, conditional.key()),
            Command::OfUser(of_user) => of_user.command.for_each_lock(visit),
            Command::Effects(_)
            | Command::SessionOpenWith { .. }
            | Command::SessionOpen { .. }
            | Command::SessionKeepAlive { .. }
            | Command::SessionClose { .. }
            | Command::SessionsTouch { .. }
            | Command::SessionsOrphan { .. }
            | Command::Cancel { .. }
            | Command::Expire { .. }
            | Command::OriginStart { .. }
            | Command::OriginGone { .. }
            | Command::FenceCheck { .. }
            | Command::Digest(_)
            | Command::Settings(_)
            | Command::Upgrade(_) => {}
            #[cfg(feature = "next-version")]
            Command::Next => {}
        }
    }

    /// Visits every Redis command that this command holds.
    pub(crate) fn for_each_redis_call(&self, mut visit: impl FnMut(CallSite, &Words<'_>)) {
        match self {
            Command::Redis { argv, .. } => visit(CallSite::Client, argv),
            Command::Transaction { commands, .. } => {
                commands.iter().for_each(|argv| visit(CallSite::Transaction, argv));
            }
            Command::FenceCall { argv, .. } => visit(CallSite::Native, argv),
            Command::OfUser(of_user) => of_user.command.for_each_redis_call(visit),
            Command::Conditional(conditional) => {
                conditional.calls().for_each(|argv| visit(CallSite::Native, &argv));
            }
            Command::Effects(effects) => effects.steps.iter().for_each(|step| match step {
                Step::Write(write) => visit(CallSite::Native, &write.argv),
                Step::Read { .. } | Step::Load { .. } | Step::FlushScripts => {}
            }),
            Command::Acquire { .. }
            | Command::AcquireWith { .. }
            | Command::MAcquireShared { .. }
            | Command::Convert { .. }
            | Command::ForceReleaseOne { .. }
            | Command::SessionOpenWith { .. }
            | Command::Release { .. }
            | Command::Renew { .. }
            | Command::MAcquire { .. }
            | Command::MRelease { .. }
            | Command::ForceRelease { .. }
            | Command::SessionOpen { .. }
            | Command::SessionKeepAlive { .. }
            | Command::SessionClose { .. }
            | Command::SessionsTouch { .. }
            | Command::SessionsOrphan { .. }
            | Command::Cancel { .. }
            | Command::Expire { .. }
            | Command::OriginStart { .. }
            | Command::OriginGone { .. }
            | Command::FenceCheck { .. }
            | Command::Digest(_)
            | Command::Settings(_)
            | Command::Upgrade(_) => {}
            #[cfg(feature = "next-version")]
            Command::Next => {}
        }
    }
}
