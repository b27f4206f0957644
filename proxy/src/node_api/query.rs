//! Reads of the state machine, linearizable but for [`OwnedQuery::Here`].

use bytes::Bytes;
use redfence_core::grammar::cluster::Backup;
use redfence_core::keyspace::key_spec::KeySpec;
use redfence_core::keyspace::{table, Resp};
use redfence_core::machine::settings::Setting;
use redfence_core::machine::{GrantOf, KeysWalk, Machine, Query, Words};
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::{Fence, Member as RedlockMember, OwnerIdentity, SessionId, SessionScope, UserTag};

/// A read of the state that owns its bytes, to cross threads: [`redfence_core::machine::Query`], or a command on plain keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedQuery {
    Info {
        db: u32,
        resource: Bytes,
        /// Those that are shown.
        sessions: SessionScope,
    },
    Queue {
        db: u32,
        resource: Bytes,
    },
    Explain {
        db: u32,
        resource: Bytes,
        sessions: SessionScope,
    },
    /// What became of the grant with this fence. The answer is read by [`redfence_core::machine::GrantState`].
    GrantByFence {
        db: u32,
        resource: Bytes,
        fence: Fence,
    },
    /// The same of what an owner was granted.
    GrantByOwner {
        db: u32,
        resource: Bytes,
        owner: Bytes,
        user: UserTag,
    },
    /// Whether a fence may guard writes.
    FenceKind {
        db: u32,
        resource: Bytes,
        fence: Fence,
    },
    /// What a session holds.
    SessionLocks {
        id: SessionId,
        sessions: SessionScope,
    },
    Scan {
        db: u32,
        cursor: u64,
        pattern: Option<Bytes>,
        count: u64,
    },
    Session {
        id: SessionId,
        sessions: SessionScope,
    },
    /// `FENCE.GET`.
    Mark {
        db: u32,
        resource: Bytes,
    },
    /// The names most waited for lately, as this node has seen it.
    Contention {
        count: usize,
    },
    /// How the last holds of a name ended, as this node has seen it.
    Past {
        db: u32,
        resource: Bytes,
    },
    Sessions {
        cursor: u64,
        count: u64,
        sessions: SessionScope,
    },
    /// Answered at once from this node's own state, which may be behind: what a node that is cut off can still say.
    Here(Box<OwnedQuery>),
    /// All replicated settings, encoded.
    Settings,
    /// One of them, as text.
    Setting(Setting),
    /// A step of a backup, answered by the node.
    Backup(Backup),
    /// Version tokens of keys, for `WATCH`, in the order asked, as integers with the same bits.
    Tokens {
        db: u32,
        keys: Vec<Bytes>,
    },
    /// A plain command that only reads.
    Redis {
        db: u32,
        resp: Resp,
        member: Option<RedlockMember>,
        argv: Vec<Bytes>,
    },
    /// `EVAL_RO`, `EVALSHA_RO`, or a script flagged `no-writes`.
    Script {
        db: u32,
        resp: Resp,
        member: Option<RedlockMember>,
        argv: Vec<Bytes>,
    },
}

impl OwnedQuery {
    /// A `KEYS`, which is answered in slices.
    #[must_use]
    pub fn keys_walk(&self) -> Option<KeysWalk> {
        let OwnedQuery::Redis { db, member, argv, .. } = self else { return None };
        KeysWalk::new(*member, *db, argv)
    }

    /// Answers from the state; scripts and backups are answered by the node, which has the VM and the files. `late_ms`: see [`Machine::query_later`].
    #[must_use]
    pub fn ask(&self, machine: &Machine, late_ms: u64) -> Reply {
        let query = match self {
            OwnedQuery::Info { db, resource, sessions } => {
                Query::Info { db: *db, resource, sessions: *sessions }
            }
            OwnedQuery::Queue { db, resource } => Query::Queue { db: *db, resource },
            OwnedQuery::Explain { db, resource, sessions } => {
                Query::Explain { db: *db, resource, sessions: *sessions }
            }
            OwnedQuery::GrantByFence { db, resource, fence } => {
                Query::Grant { db: *db, resource, by: GrantOf::Fence(*fence) }
            }
            OwnedQuery::GrantByOwner { db, resource, owner, user } => {
                let by = GrantOf::Owner(OwnerIdentity { owner, user: *user });
                Query::Grant { db: *db, resource, by }
            }
            OwnedQuery::FenceKind { db, resource, fence } => {
                Query::FenceKind { db: *db, resource, fence: *fence }
            }
            OwnedQuery::SessionLocks { id, sessions } => Query::SessionLocks { id: *id, sessions: *sessions },
            OwnedQuery::Scan { db, cursor, pattern, count } => {
                Query::Scan { db: *db, cursor: *cursor, pattern: pattern.as_deref(), count: *count }
            }
            OwnedQuery::Session { id, sessions } => Query::Session { id: *id, sessions: *sessions },
            OwnedQuery::Mark { db, resource } => Query::Mark { db: *db, resource },
            OwnedQuery::Contention { count } => Query::Contention { count: *count },
            OwnedQuery::Past { db, resource } => Query::Past { db: *db, resource },
            OwnedQuery::Sessions { cursor, count, sessions } => {
                Query::Sessions { cursor: *cursor, count: *count, sessions: *sessions }
            }
            OwnedQuery::Here(query) => return query.ask(machine, late_ms),
            OwnedQuery::Settings => Query::Settings,
            OwnedQuery::Setting(name) => Query::Setting(*name),
            OwnedQuery::Backup(_) => {
                return Refusal::new("ERR a backup is answered by the node, not by its state").into();
            }
            OwnedQuery::Tokens { db, keys } => {
                let token = |key: &Bytes| Reply::Int(machine.watch_token(*db, key) as i64);
                return Reply::Array(keys.iter().map(token).collect());
            }
            OwnedQuery::Redis { db, resp, member, argv } | OwnedQuery::Script { db, resp, member, argv } => {
                let argv: Words<'_> = argv.iter().map(|word| &word[..]).collect();
                return machine.read_later(*member, *db, *resp, &argv, late_ms);
            }
        };
        machine.query_later(query, late_ms)
    }
}

impl OwnedQuery {
    /// Whether it would show a key whose time is over at `logical_ms`.
    #[must_use]
    pub fn meets_ending(&self, machine: &Machine, logical_ms: u64) -> bool {
        if machine.next_end_ms().is_none_or(|end_ms| end_ms > logical_ms) {
            return false;
        }
        let is_ending = |member, db: u32, key: &[u8]| machine.is_ending(member, db, key, logical_ms);
        match self {
            OwnedQuery::Info { db, resource, .. } | OwnedQuery::Explain { db, resource, .. } => {
                is_ending(None, *db, resource)
            }
            OwnedQuery::Tokens { db, keys } => keys.iter().any(|key| is_ending(None, *db, key)),
            OwnedQuery::Redis { db, member, argv, .. } | OwnedQuery::Script { db, member, argv, .. } => {
                let argv: Words<'_> = argv.iter().map(|word| &word[..]).collect();
                let Some(row) = argv.first().and_then(|name| table::find(name)) else { return false };
                if row.keys == KeySpec::None {
                    // `KEYS`, `SCAN`, `DBSIZE`: any key may be the one.
                    return row.is(table::R);
                }
                row.keys_of(&argv).iter().any(|key| is_ending(*member, *db, key))
            }
            OwnedQuery::Scan { .. } => true,
            // Whoever asks these is told of the end when it is in an entry.
            OwnedQuery::GrantByFence { .. }
            | OwnedQuery::GrantByOwner { .. }
            | OwnedQuery::FenceKind { .. }
            | OwnedQuery::Queue { .. }
            | OwnedQuery::SessionLocks { .. }
            | OwnedQuery::Session { .. }
            | OwnedQuery::Mark { .. }
            | OwnedQuery::Past { .. }
            | OwnedQuery::Sessions { .. }
            | OwnedQuery::Here(_)
            | OwnedQuery::Settings
            | OwnedQuery::Setting(_)
            | OwnedQuery::Contention { .. }
            | OwnedQuery::Backup(_) => false,
        }
    }

    /// Bytes of its words.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let sum = |words: &[Bytes]| words.iter().map(Bytes::len).sum();
        match self {
            OwnedQuery::Tokens { keys, .. } => sum(keys),
            OwnedQuery::Here(query) => query.bytes(),
            OwnedQuery::Redis { argv, .. } | OwnedQuery::Script { argv, .. } => sum(argv),
            OwnedQuery::Info { resource, .. }
            | OwnedQuery::Queue { resource, .. }
            | OwnedQuery::Explain { resource, .. }
            | OwnedQuery::Past { resource, .. }
            | OwnedQuery::Mark { resource, .. } => resource.len(),
            OwnedQuery::GrantByFence { resource, .. } | OwnedQuery::FenceKind { resource, .. } => {
                resource.len()
            }
            OwnedQuery::GrantByOwner { resource, owner, .. } => resource.len() + owner.len(),
            OwnedQuery::Scan { pattern, .. } => pattern.as_ref().map_or(0, Bytes::len),
            OwnedQuery::Session { .. }
            | OwnedQuery::SessionLocks { .. }
            | OwnedQuery::Contention { .. }
            | OwnedQuery::Sessions { .. }
            | OwnedQuery::Settings
            | OwnedQuery::Setting(_)
            | OwnedQuery::Backup(_) => 0,
        }
    }
}
