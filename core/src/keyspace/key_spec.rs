//! Where a command has its keys.
//!
//! Every command of Redis has one [`KeySpec`]: those the keyspace runs in [`super::table::ROWS`], all others in [`NOT_RUN_HERE`].
//! The router, `COMMAND INFO`, `COMMAND GETKEYS`, `WATCH` and client tracking all ask these.

use super::numbers;
use smallvec::SmallVec;

/// Positions count the command's name as 0; a negative `last` counts from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySpec {
    None,
    /// From `first` to `last`, `step` words apart.
    Span {
        first: usize,
        last: i32,
        step: usize,
    },
    /// A count at `count_at`, the keys right behind it.
    Counted {
        count_at: usize,
    },
    /// The same, and the first word is the key that is written.
    StoredCounted {
        count_at: usize,
    },
    /// The first word; and the one behind `STORE` or `STOREDIST`, if that is among the options from `options_at` on.
    FirstAndStored {
        options_at: usize,
    },
    /// A count at `count_at`, and so many pairs of key and value right behind it.
    CountedPairs {
        count_at: usize,
    },
    /// Behind the option `STREAMS`: the first half of the rest.
    Streams,
    /// The word at `at`; where it is empty, all behind the option `KEYS`, which is at `options_at` or later.
    OneOrListed {
        at: usize,
        options_at: usize,
    },
}

pub const ONE: KeySpec = KeySpec::Span { first: 1, last: 1, step: 1 };
pub(super) const TWO: KeySpec = KeySpec::Span { first: 1, last: 2, step: 1 };
pub(super) const ALL: KeySpec = KeySpec::Span { first: 1, last: -1, step: 1 };
pub(super) const BUT_LAST: KeySpec = KeySpec::Span { first: 1, last: -2, step: 1 };
pub(super) const SECOND: KeySpec = KeySpec::Span { first: 2, last: 2, step: 1 };
pub(super) const PAIRS: KeySpec = KeySpec::Span { first: 1, last: -1, step: 2 };

/// Commands of Redis that the keyspace does not run, for whoever must know their keys. No name is in both tables. What a Redis
/// has besides (modules, newer versions) it tells itself: the proxy asks the upstream's `COMMAND`.
pub const NOT_RUN_HERE: &[(KeySpec, &str)] = &[
    (
        ONE,
        "BITCOUNT BITFIELD BITFIELD_RO BITPOS DIGEST DUMP GEOADD GEODIST GEOHASH GEOPOS GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH \
         GETBIT HEXPIRE HEXPIREAT HEXPIRETIME HGETDEL HGETEX HPERSIST HPEXPIRE HPEXPIREAT HPEXPIRETIME HPTTL HSETEX HTTL MOVE \
         PFADD RESTORE RESTORE-ASKING SETBIT SORT_RO XACK XACKDEL XADD XAUTOCLAIM XCLAIM XDEL XDELEX XLEN XPENDING XRANGE \
         XREVRANGE XSETID XTRIM ZRANDMEMBER",
    ),
    (TWO, "GEOSEARCHSTORE LCS"),
    (ALL, "PFCOUNT PFMERGE"),
    (SECOND, "PFDEBUG XGROUP XINFO"),
    (KeySpec::Span { first: 2, last: -1, step: 1 }, "BITOP"),
    (KeySpec::OneOrListed { at: 3, options_at: 6 }, "MIGRATE"),
    (KeySpec::Counted { count_at: 2 }, "FCALL FCALL_RO"),
    (KeySpec::Counted { count_at: 1 }, "SINTERCARD ZDIFF ZINTER ZINTERCARD ZUNION"),
    (KeySpec::CountedPairs { count_at: 1 }, "MSETEX"),
    (KeySpec::StoredCounted { count_at: 2 }, "ZDIFFSTORE ZINTERSTORE ZUNIONSTORE"),
    (KeySpec::FirstAndStored { options_at: 2 }, "SORT"),
    (KeySpec::FirstAndStored { options_at: 5 }, "GEORADIUSBYMEMBER"),
    (KeySpec::FirstAndStored { options_at: 6 }, "GEORADIUS"),
    (KeySpec::Streams, "XREAD XREADGROUP"),
    (
        KeySpec::None,
        "ACL ASKING BGREWRITEAOF BGSAVE CLUSTER COMMAND CONFIG DEBUG FAILOVER FUNCTION INFO LASTSAVE LATENCY LOLWUT MODULE MONITOR \
         PFSELFTEST PSYNC PUBSUB READONLY READWRITE REPLCONF REPLICAOF ROLE SAVE SHUTDOWN SLAVEOF SLOWLOG SPUBLISH SSUBSCRIBE \
         SUNSUBSCRIBE SWAPDB SYNC WAIT WAITAOF",
    ),
];

impl KeySpec {
    /// The keys a command names. Fewer where it is malformed, which running it will tell.
    #[must_use]
    pub fn keys_of<'a>(self, argv: &[&'a [u8]]) -> SmallVec<[&'a [u8]; 8]> {
        match self {
            KeySpec::None => SmallVec::new(),
            ONE => argv.iter().skip(1).take(1).copied().collect(),
            KeySpec::Span { first, last, step } => {
                let last = if last < 0 { argv.len() as i64 + i64::from(last) } else { i64::from(last) };
                (first..)
                    .step_by(step)
                    .take_while(|at| *at as i64 <= last)
                    .map_while(|at| argv.get(at))
                    .copied()
                    .collect()
            }
            KeySpec::Counted { count_at } => counted(argv, count_at).copied().collect(),
            KeySpec::StoredCounted { count_at } => {
                argv.iter().skip(1).take(1).chain(counted(argv, count_at)).copied().collect()
            }
            KeySpec::FirstAndStored { options_at } => {
                argv.iter().skip(1).take(1).copied().chain(stored(argv, options_at)).collect()
            }
            KeySpec::CountedPairs { count_at } => {
                let rest = argv.iter().skip(count_at + 1).step_by(2);
                rest.take(count(argv, count_at)).copied().collect()
            }
            KeySpec::Streams => streams(argv).iter().copied().collect(),
            KeySpec::OneOrListed { at, options_at } => {
                let one = argv.get(at).into_iter().filter(|key| !key.is_empty());
                one.chain(listed(argv, options_at)).copied().collect()
            }
        }
    }

    /// Whether all keys are among the first `seen` words of a command, however many more there are.
    #[must_use]
    pub fn are_within(self, seen: usize) -> bool {
        match self {
            KeySpec::None => true,
            KeySpec::Span { last, .. } => last >= 0 && seen > last.unsigned_abs() as usize,
            KeySpec::Counted { .. }
            | KeySpec::StoredCounted { .. }
            | KeySpec::FirstAndStored { .. }
            | KeySpec::CountedPairs { .. }
            | KeySpec::Streams
            | KeySpec::OneOrListed { .. } => false,
        }
    }

    /// First key, last key and step, as `COMMAND INFO` shows them.
    #[must_use]
    pub fn range(self) -> (i64, i64, i64) {
        match self {
            KeySpec::Span { first, last, step } => (first as i64, i64::from(last), step as i64),
            KeySpec::StoredCounted { .. } | KeySpec::FirstAndStored { .. } => (1, 1, 1),
            KeySpec::OneOrListed { at, .. } => (at as i64, at as i64, 1),
            KeySpec::None | KeySpec::Counted { .. } | KeySpec::CountedPairs { .. } | KeySpec::Streams => {
                (0, 0, 0)
            }
        }
    }

    /// Whether the words of a command must be looked at to find its keys.
    #[must_use]
    pub fn is_movable(self) -> bool {
        match self {
            KeySpec::None | KeySpec::Span { .. } => false,
            KeySpec::Counted { .. }
            | KeySpec::StoredCounted { .. }
            | KeySpec::FirstAndStored { .. }
            | KeySpec::CountedPairs { .. }
            | KeySpec::Streams
            | KeySpec::OneOrListed { .. } => true,
        }
    }
}

fn count(argv: &[&[u8]], count_at: usize) -> usize {
    let count = argv.get(count_at).and_then(|count| numbers::parse_i64(count));
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
}

fn counted<'w, 'a>(argv: &'w [&'a [u8]], count_at: usize) -> impl Iterator<Item = &'w &'a [u8]> {
    argv.iter().skip(count_at + 1).take(count(argv, count_at))
}

/// The keys of `XREAD` and `XREADGROUP`. The values of options are skipped: a group may be called `streams`. Where an option is
/// none we know, any word behind it may be a key.
fn streams<'w, 'a>(argv: &'w [&'a [u8]]) -> &'w [&'a [u8]] {
    let mut at = 1;
    while let Some(word) = argv.get(at) {
        let is = |option: &str| word.eq_ignore_ascii_case(option.as_bytes());
        let rest = &argv[at + 1..];
        at += match () {
            () if is("STREAMS") => return &rest[..rest.len() / 2],
            () if is("GROUP") => 3,
            () if is("COUNT") || is("BLOCK") || is("CLAIM") => 2,
            () if is("NOACK") => 1,
            () => return rest,
        };
    }
    &[]
}

/// The keys behind `KEYS` of `MIGRATE`: passwords and user names are none of the options.
fn listed<'w, 'a>(argv: &'w [&'a [u8]], options_at: usize) -> &'w [&'a [u8]] {
    let mut at = options_at;
    while let Some(word) = argv.get(at) {
        let is = |option: &str| word.eq_ignore_ascii_case(option.as_bytes());
        at += match () {
            () if is("KEYS") => return &argv[at + 1..],
            () if is("AUTH") => 2,
            () if is("AUTH2") => 3,
            () => 1,
        };
    }
    &[]
}

/// The key behind the last `STORE`: the words of `BY`, `GET` and `LIMIT` are none of the options.
fn stored<'a>(argv: &[&'a [u8]], options_at: usize) -> Option<&'a [u8]> {
    let mut found = None;
    let mut at = options_at;
    while let Some(word) = argv.get(at) {
        let is = |option: &str| word.eq_ignore_ascii_case(option.as_bytes());
        let mut values = 0;
        if is("STORE") || is("STOREDIST") {
            found = argv.get(at + 1).copied().or(found);
            values = 1;
        } else if is("BY") || is("GET") {
            values = 1;
        } else if is("LIMIT") {
            values = 2;
        }
        at += 1 + values;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;
    use std::collections::BTreeSet;

    fn spec(name: &str) -> KeySpec {
        if let Some(row) = table::find(name.as_bytes()) {
            return row.keys;
        }
        let rows = NOT_RUN_HERE.iter();
        let mut rows = rows.filter(|(_, names)| names.split_ascii_whitespace().any(|known| known == name));
        rows.next().unwrap_or_else(|| panic!("{name} is in no table")).0
    }

    #[test]
    fn every_command_is_in_one_table_and_once() {
        let not_run = NOT_RUN_HERE.iter().flat_map(|(_, names)| names.split_ascii_whitespace());
        let all =
            table::ROWS.iter().map(|row| row.name.to_ascii_uppercase()).chain(not_run.map(str::to_owned));
        let mut seen = BTreeSet::new();
        for name in all {
            assert!(seen.insert(name.clone()), "{name} is there twice");
        }
    }

    #[test]
    fn keys_are_found() {
        for (line, expected) in [
            ("GET a", "a"),
            ("GET", ""),
            ("SET a b NX", "a"),
            ("MSET a 1 b 2", "a b"),
            ("DEL a b c", "a b c"),
            ("BLPOP a b 0", "a b"),
            ("EVAL body 2 a b c", "a b"),
            ("EVAL body x a b c", ""),
            ("EVAL body 99999999999 a", "a"),
            ("EVALSHA sha 0 x", ""),
            ("BLMPOP 0 2 a b LEFT", "a b"),
            ("LMOVE a b LEFT RIGHT", "a b"),
            ("RENAME a b", "a b"),
            ("OBJECT ENCODING a", "a"),
            ("MEMORY USAGE a", "a"),
            ("MEMORY DOCTOR", ""),
            ("PING", ""),
            ("ZUNIONSTORE d 2 a b", "d a b"),
            ("XREAD COUNT 2 STREAMS a b 0 0", "a b"),
            ("XREAD", ""),
            ("XREAD STREAMS", ""),
            ("XREAD COUNT STREAMS", ""),
            ("XREAD BLOCK 5 COUNT streams STREAMS a 0", "a"),
            ("XREADGROUP GROUP streams c STREAMS a >", "a"),
            ("XREADGROUP GROUP g streams NOACK STREAMS a b > >", "a b"),
            ("XREADGROUP GROUP g c CLAIM 5 streams a b > >", "a b"),
            ("XREAD NEWER streams STREAMS a 0", "streams STREAMS a 0"),
            ("MIGRATE host 6379 a 0 1000", "a"),
            ("MIGRATE host 6379 a 0 1000 COPY REPLACE", "a"),
            ("MIGRATE host 6379  0 1000 KEYS a b", "a b"),
            ("MIGRATE host 6379  0 1000 COPY AUTH keys KEYS a b", "a b"),
            ("MIGRATE host 6379  0 1000 AUTH2 keys keys REPLACE keys a b", "a b"),
            ("MIGRATE host 6379 a 0 1000 KEYS b", "a b"),
            ("MIGRATE host 6379  0 1000", ""),
            ("RESTORE-ASKING a 0 dump", "a"),
            ("PFDEBUG GETREG a", "a"),
            ("MSETEX 2 a 1 b 2 EX 5", "a b"),
            ("MSETEX 9 a 1 b", "a b"),
            ("SORT a BY store GET store LIMIT 0 1", "a"),
            ("SORT a STORE b", "a b"),
            ("SORT a STORE", "a"),
            ("GEORADIUS a 1 2 3 km STORE b", "a b"),
            ("GEORADIUSBYMEMBER a m 3 km ASC STOREDIST b", "a b"),
        ] {
            let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let keys = spec(line.split(' ').next().unwrap()).keys_of(&argv);
            assert_eq!(keys.join(&b' '), expected.as_bytes(), "{line}");
        }
    }

    #[test]
    fn it_is_known_when_all_keys_are_seen() {
        assert!(spec("SET").are_within(2) && spec("PING").are_within(1));
        assert!(!spec("SET").are_within(1));
        for name in ["MSET", "EVAL", "SORT", "XREAD", "ZUNIONSTORE"] {
            assert!(!spec(name).are_within(100), "{name}");
        }
    }
}
