//! The command table: what `COMMAND INFO` and `COMMAND DOCS` say, and what the module registers.

/// Which command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Acquire,
    Release,
    Renew,
    Convert,
    Info,
    Explain,
    MAcquire,
    MRelease,
    Queue,
    Scan,
    Session,
    Notify,
    ForceRelease,
    Cluster,
    FenceCheck,
    FenceGet,
    FenceCall,
}

/// Where a command's keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPlaces {
    /// No key in a fixed place.
    None,
    /// The first argument.
    First,
    /// A count in the first argument, then that many keys, `step` words apart.
    Counted { step: u8 },
}

/// One row. Arity as in Redis: the command's name counts, negative means "at least".
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub verb: Verb,
    /// Upper case, as in the contract.
    pub name: &'static str,
    pub arity: i64,
    pub write: bool,
    pub blocking: bool,
    pub fast: bool,
    /// For operators: ACL category `@dangerous`, and `@admin`.
    pub dangerous: bool,
    /// Refused when memory is short: it may grow the state.
    pub deny_oom: bool,
    pub keys: KeyPlaces,
    pub syntax: &'static str,
    pub summary: &'static str,
}

const ROW: Row = Row {
    verb: Verb::Info,
    name: "",
    arity: 0,
    write: false,
    blocking: false,
    fast: false,
    dangerous: false,
    deny_oom: false,
    keys: KeyPlaces::First,
    syntax: "",
    summary: "",
};

/// Every command, in the contract's order.
pub const ROWS: &[Row] = &[
    Row {
        verb: Verb::Acquire,
        name: "LOCK.ACQUIRE",
        arity: -3,
        write: true,
        blocking: true,
        deny_oom: true,
        syntax: "resource ttl [WAIT ms] [OWNER owner] [SESSION id] [SHARED | PERMITS n OF max] [VALUE bytes] [TIER tier]",
        summary: "Takes a lock; answers its fencing token and the milliseconds granted, or nil.",
        ..ROW
    },
    Row {
        verb: Verb::Release,
        name: "LOCK.RELEASE",
        arity: -3,
        write: true,
        fast: true,
        syntax: "resource fence [TIER tier]",
        summary: "Gives a lock back; the next waiter has it in the same step.",
        ..ROW
    },
    Row {
        verb: Verb::Renew,
        name: "LOCK.RENEW",
        arity: -4,
        write: true,
        fast: true,
        syntax: "resource fence ttl [TIER tier]",
        summary: "Sets the time left of a lock that is still held under this fence.",
        ..ROW
    },
    Row {
        verb: Verb::Convert,
        name: "LOCK.CONVERT",
        arity: -4,
        write: true,
        blocking: true,
        syntax: "resource fence SHARED | EXCLUSIVE [WAIT ms]",
        summary: "Turns a held lock into a shared or an exclusive one, in one step.",
        ..ROW
    },
    Row {
        verb: Verb::Info,
        name: "LOCK.INFO",
        arity: -2,
        fast: true,
        syntax: "resource [TIER tier]",
        summary: "Shows a lock: state, mode, holders, fence, time left, waiters.",
        ..ROW
    },
    Row {
        verb: Verb::Explain,
        name: "LOCK.EXPLAIN",
        arity: -2,
        syntax: "resource [TIER tier]",
        summary: "Explains a wait: who holds, who is in line, what they wait for, and how long it takes.",
        ..ROW
    },
    Row {
        verb: Verb::MAcquire,
        name: "LOCK.MACQUIRE",
        arity: -4,
        write: true,
        blocking: true,
        deny_oom: true,
        keys: KeyPlaces::Counted { step: 1 },
        syntax: "count resource [resource ...] ttl [WAIT ms] [OWNER owner] [SESSION id] [SHARED] [TIER tier]",
        summary: "Takes several locks, all or nothing.",
        ..ROW
    },
    Row {
        verb: Verb::MRelease,
        name: "LOCK.MRELEASE",
        arity: -4,
        write: true,
        keys: KeyPlaces::Counted { step: 2 },
        syntax: "count resource fence [resource fence ...] [TIER tier]",
        summary: "Gives several locks back, each by its own fence.",
        ..ROW
    },
    Row {
        verb: Verb::Queue,
        name: "LOCK.QUEUE",
        arity: -2,
        syntax: "resource [TIER tier]",
        summary: "Lists who waits for a lock and since when, first in line first.",
        ..ROW
    },
    Row {
        verb: Verb::Scan,
        name: "LOCK.SCAN",
        arity: -2,
        keys: KeyPlaces::None,
        syntax: "cursor [MATCH glob] [COUNT n] [TIER tier]",
        summary: "Iterates over the locks that are held.",
        ..ROW
    },
    Row {
        verb: Verb::Session,
        name: "LOCK.SESSION",
        arity: -3,
        write: true,
        fast: true,
        keys: KeyPlaces::None,
        syntax: "OPEN ttl [NAME label] [POLICY detect | wait-die | wound-wait] [AGE n] | KEEPALIVE id | INFO id | CLOSE id",
        summary: "Opens, keeps, shows and closes a session; its locks die with it.",
        ..ROW
    },
    Row {
        verb: Verb::Notify,
        name: "LOCK.NOTIFY",
        arity: -2,
        keys: KeyPlaces::None,
        syntax: "ON [SESSION id] | OFF",
        summary: "Pushes a message to this connection when it loses a lock without having released it.",
        ..ROW
    },
    Row {
        verb: Verb::ForceRelease,
        name: "LOCK.FORCERELEASE",
        arity: -2,
        write: true,
        dangerous: true,
        syntax: "resource [FENCE fence] [TIER tier]",
        summary: "Takes a lock away from whoever holds it. For operators.",
        ..ROW
    },
    Row {
        verb: Verb::Cluster,
        name: "LOCK.CLUSTER",
        arity: -2,
        dangerous: true,
        keys: KeyPlaces::None,
        syntax: "INFO | NODES | ADD id addr | REMOVE id | TRANSFER id | SET name value | GET name | VERSION | UPGRADE HOLD | UPGRADE FINISH | BACKUP BEGIN | BACKUP READ id offset | BACKUP END id",
        summary: "Shows and changes the Raft cluster inside the proxies, its settings and its version; gives out backups.",
        ..ROW
    },
    Row {
        verb: Verb::FenceCheck,
        name: "FENCE.CHECK",
        arity: 3,
        write: true,
        fast: true,
        deny_oom: true,
        syntax: "resource fence",
        summary: "Answers 1 and raises the high-water mark where the fence is not stale, else 0.",
        ..ROW
    },
    Row {
        verb: Verb::FenceGet,
        name: "FENCE.GET",
        arity: 2,
        fast: true,
        syntax: "resource",
        summary: "Shows the high-water mark of a resource, 0 if none.",
        ..ROW
    },
    Row {
        verb: Verb::FenceCall,
        name: "FENCE.CALL",
        arity: -4,
        write: true,
        deny_oom: true,
        syntax: "resource fence command [arg ...]",
        summary: "Runs a command if the fence is not stale, atomically.",
        ..ROW
    },
];

/// Looks a name up, whatever its case.
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static Row> {
    // Every name of ours has a dot at the fifth or sixth byte: the cheapest way to pass others by.
    if !(name.get(4) == Some(&b'.') || name.get(5) == Some(&b'.')) {
        return None;
    }
    ROWS.iter().find(|row| row.name.as_bytes().eq_ignore_ascii_case(name))
}
